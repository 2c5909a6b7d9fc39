//! The streams that receive a command's output.
//!
//! A foreground command is read no faster than the client receives that started it. Any other command is read always; any
//! other listener that falls too far behind is cut off, so that it never delays the command or the other listeners.

use crate::protocol::{Code, Failure};
use crate::streams::Streams;

/// How much is read from one output at once.
pub const CHUNK_BYTES: usize = 65_536;
/// A foreground command is not read while this much of its output is queued.
const FOREGROUND_QUEUE_BYTES: usize = 2 * CHUNK_BYTES;
/// Any other listener is cut off when this much is queued for it.
const LISTENER_QUEUE_BYTES: usize = 1024 * 1024;

#[derive(Default)]
pub struct Listeners {
    streams: Vec<u32>,
    /// The client of a foreground command.
    lead: Option<u32>,
}

impl Listeners {
    /// The command is read no faster than this one receives.
    pub fn lead(&mut self, stream: u32) {
        self.lead = Some(stream);
        self.add(stream);
    }

    pub fn add(&mut self, stream: u32) {
        self.streams.push(stream);
    }

    pub fn remove(&mut self, stream: u32) {
        self.lead.take_if(|lead| *lead == stream);
        self.streams.retain(|&listener| listener != stream);
    }

    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.streams.iter().copied()
    }

    /// How much may be read for them now.
    pub fn room(&self, streams: &Streams) -> usize {
        match self.lead {
            Some(stream) => match streams.queued(stream) {
                0 => FOREGROUND_QUEUE_BYTES,
                _ if streams.is_congested() => 0,
                queued => FOREGROUND_QUEUE_BYTES.saturating_sub(queued),
            },
            None => usize::MAX,
        }
    }

    /// Sends output to all of them. `Some`: none is left; the bytes that the last one did not receive.
    pub fn deliver(&mut self, channel: u8, bytes: &[u8], streams: &mut Streams) -> Option<Vec<u8>> {
        let mut unsent = Vec::new();
        let lead = self.lead;
        self.streams.retain(|&stream| {
            let behind = streams.queued(stream);
            let is_too_slow = behind + bytes.len() > LISTENER_QUEUE_BYTES
                || behind > CHUNK_BYTES && streams.is_congested();
            if Some(stream) != lead && is_too_slow {
                let message = format!("reads too slowly: {behind} bytes behind");
                unsent = streams.fail(stream, &Failure::new(Code::SlowReader, message));
                return false;
            }
            streams.data(stream, channel, bytes);
            true
        });
        self.streams.is_empty().then_some(unsent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::channel;

    /// Two streams, of which the host has taken nothing.
    fn streams() -> Streams {
        let mut streams = Streams::default();
        streams.begin_epoch(1);
        streams.open(1);
        streams.open(2);
        streams
    }

    #[test]
    fn a_foreground_command_waits_for_its_listener() {
        let mut streams = streams();
        let mut listeners = Listeners::default();
        assert_eq!(listeners.room(&streams), usize::MAX, "without a listener");
        listeners.lead(1);
        let chunk = [b'x'; CHUNK_BYTES];
        let mut delivered = 0;
        while listeners.room(&streams) > 0 && delivered < LISTENER_QUEUE_BYTES {
            assert_eq!(
                listeners.deliver(channel::STDOUT, &chunk, &mut streams),
                None
            );
            delivered += chunk.len();
        }
        let queued = streams.queued(1);
        assert!((FOREGROUND_QUEUE_BYTES..FOREGROUND_QUEUE_BYTES + CHUNK_BYTES).contains(&queued));
        assert!(delivered > queued, "the window is sent");
    }

    #[test]
    fn a_slow_listener_is_cut_off_and_the_last_one_leaves_its_data() {
        let mut streams = streams();
        let mut listeners = Listeners::default();
        let chunk = [b'x'; CHUNK_BYTES];
        listeners.add(1);
        while streams.queued(1) + chunk.len() <= LISTENER_QUEUE_BYTES {
            assert_eq!(listeners.room(&streams), usize::MAX);
            listeners.deliver(channel::MAIN, &chunk, &mut streams);
        }
        listeners.add(2);
        let behind = streams.queued(1);
        assert_eq!(listeners.deliver(channel::MAIN, &chunk, &mut streams), None);
        assert!(!streams.is_open(1) && streams.is_open(2));
        listeners.remove(2);
        streams.open(1);
        listeners.add(1);
        while streams.queued(1) < behind {
            listeners.deliver(channel::MAIN, &chunk, &mut streams);
        }
        let unsent = listeners.deliver(channel::MAIN, &chunk, &mut streams);
        assert_eq!(unsent.map(|bytes| bytes.len()), Some(behind));
    }
}
