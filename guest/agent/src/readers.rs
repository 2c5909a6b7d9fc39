//! Clients that read a command's output from its log, each from an offset of its own on. They get no more than they take,
//! so that a reader costs little memory however far behind it is, and never delays the command. It is cut off when the next
//! byte it should get has been dropped.

use crate::listeners::CHUNK_BYTES;
use crate::output_log::OutputLog;
use crate::protocol::{Code, Exit, Failure};
use crate::streams::Streams;

struct Reader {
    stream: u32,
    next: u64,
}

#[derive(Default)]
pub struct Readers {
    readers: Vec<Reader>,
}

impl Readers {
    pub fn add(&mut self, stream: u32, next: u64) {
        self.readers.push(Reader { stream, next });
    }

    /// False: the stream is none of them, or has been sent its result.
    pub fn remove(&mut self, stream: u32) -> bool {
        let before = self.readers.len();
        self.readers.retain(|reader| reader.stream != stream);
        self.readers.len() < before
    }

    /// Sends what each can take. With `exit`, nothing more will come, and it follows the last output.
    pub fn feed(&mut self, log: &OutputLog, exit: Option<Exit>, streams: &mut Streams) {
        self.readers.retain_mut(|reader| {
            while let Some((channel, bytes)) = log.piece(reader.next) {
                let queued = streams.queued(reader.stream);
                if queued >= CHUNK_BYTES || queued > 0 && streams.is_congested() {
                    return true;
                }
                let bytes = &bytes[..bytes.len().min(CHUNK_BYTES)];
                streams.data(reader.stream, channel, bytes);
                reader.next += bytes.len() as u64;
            }
            if reader.next < log.written() {
                fail(reader, streams);
                return false;
            }
            if let Some(exit) = exit {
                streams.result(reader.stream, exit.record());
            }
            exit.is_none()
        });
    }

    /// The log is no longer kept.
    pub fn cut_off(&mut self, streams: &mut Streams) {
        for reader in std::mem::take(&mut self.readers) {
            fail(&reader, streams);
        }
    }
}

fn fail(reader: &Reader, streams: &mut Streams) {
    let message = format!("reads too slowly: byte {} is no longer kept", reader.next);
    let failure = Failure::new(Code::SlowReader, message);
    streams.fail(reader.stream, &failure);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output_log::KEPT_BYTES;
    use crate::protocol::channel;

    #[test]
    fn a_reader_is_queued_little_and_cut_off_when_its_next_byte_is_dropped() {
        let (mut streams, mut readers) = (Streams::default(), Readers::default());
        streams.begin_epoch(1);
        let mut log = OutputLog::default();
        log.push(channel::STDOUT, &[b'x'; KEPT_BYTES as usize]);
        for stream in [1, 2] {
            streams.open(stream);
            readers.add(stream, 0);
        }
        readers.feed(&log, None, &mut streams);
        assert!(
            streams.queued(1) <= 2 * CHUNK_BYTES,
            "{}",
            streams.queued(1)
        );
        // The first was sent more than the second, for which the outbox had no room.
        let next = readers.readers[1].next;
        assert_eq!(next, CHUNK_BYTES as u64);
        assert!(readers.readers[0].next > next);
        log.push(channel::STDERR, &[b'y'; CHUNK_BYTES]);
        readers.feed(&log, None, &mut streams);
        assert!(streams.is_open(1) && streams.is_open(2), "all is kept");
        log.push(channel::STDERR, b"z");
        readers.feed(&log, None, &mut streams);
        assert!(streams.is_open(1) && !streams.is_open(2));
        readers.cut_off(&mut streams);
        assert!(!streams.is_open(1));
    }
}
