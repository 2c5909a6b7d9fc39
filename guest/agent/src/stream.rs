//! One stream: its counts, its credit in both directions, and the bytes that wait for credit. Who sends when is the
//! business of streams.rs.

use std::collections::VecDeque;

use crate::frames::MAX_PAYLOAD_BYTES;
use crate::protocol::WINDOW_BYTES;

/// A chunk is parted by want of credit only into such parts.
const MIN_PART_BYTES: usize = 4_096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Waits for one answer.
    Call,
    /// The foreground command, attached to, or the terminal with this key among the sessions.
    Foreground(u32),
    Attached(u32),
    Terminal(u32),
    /// The background process with this key, of which only the end is told.
    Waiting(u32),
    /// Work that the threads do.
    Work,
}

struct Chunk {
    channel: u8,
    bytes: Vec<u8>,
}

pub struct Stream {
    pub role: Role,
    pub credit: u32,
    /// What the credit comes to when nothing is under way.
    pub window: u32,
    pub sent: u64,
    queue: VecDeque<Chunk>,
    /// Bytes of the first chunk that are sent already.
    taken: usize,
    pub queued: usize,
    /// Of a terminal: what was sent and not granted again, so that what the host did not take any more is not lost.
    pub in_flight: Option<VecDeque<u8>>,
    /// What the host has taken of `sent`, told when it is about to leave: the rest goes to nobody.
    pub taken_by_host: Option<u64>,
    /// Stands among the turns.
    pub is_in_line: bool,
    /// Frames that follow the last of the queue; the stream ends with them.
    pub last: Option<Last>,
    /// What the host may still send, and what it has sent that is dealt with but not granted again.
    pub allowance: u32,
    pub owed: u32,
}

pub struct Last {
    pub has_end: bool,
    pub result: Vec<u8>,
}

impl Default for Stream {
    fn default() -> Stream {
        Stream {
            role: Role::Call,
            credit: WINDOW_BYTES,
            window: WINDOW_BYTES,
            sent: 0,
            queue: VecDeque::new(),
            taken: 0,
            queued: 0,
            in_flight: None,
            taken_by_host: None,
            is_in_line: false,
            last: None,
            allowance: WINDOW_BYTES,
            owed: 0,
        }
    }
}

impl Stream {
    pub fn put_in_queue(&mut self, channel: u8, bytes: &[u8]) {
        self.queued += bytes.len();
        let last = self.queue.back_mut().filter(|chunk| {
            chunk.channel == channel && chunk.bytes.len() + bytes.len() <= MAX_PAYLOAD_BYTES
        });
        match last {
            Some(chunk) => chunk.bytes.extend_from_slice(bytes),
            None => self.queue.push_back(Chunk {
                channel,
                bytes: bytes.to_vec(),
            }),
        }
    }

    /// The same, as it is: bulk is not copied on its way.
    pub fn put_whole_in_queue(&mut self, channel: u8, bytes: Vec<u8>) {
        self.queued += bytes.len();
        self.queue.push_back(Chunk { channel, bytes });
    }

    /// Hands `send` the next frame's worth, as far as credit goes. False: nothing can be sent.
    pub fn send_frame(&mut self, send: impl FnOnce(u8, &[u8])) -> bool {
        let Some(chunk) = self.queue.pop_front() else {
            return false;
        };
        let rest = chunk.bytes.len() - self.taken;
        let length = rest.min(self.credit as usize).min(MAX_PAYLOAD_BYTES);
        // Crumbs of credit are saved up: their frames would cost as much as full ones.
        if length < rest.min(MIN_PART_BYTES) {
            self.queue.push_front(chunk);
            return false;
        }
        let bytes = &chunk.bytes[self.taken..self.taken + length];
        self.queued -= length;
        self.note_sent(bytes);
        send(chunk.channel, bytes);
        if length < rest {
            self.taken += length;
            self.queue.push_front(chunk);
        } else {
            self.taken = 0;
        }
        true
    }

    pub fn note_sent(&mut self, bytes: &[u8]) {
        self.credit -= bytes.len() as u32;
        self.sent += bytes.len() as u64;
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.extend(bytes);
        }
    }

    /// What waits here, and before it what was sent to a host that did not take it any more.
    pub fn unsent(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.queued);
        if let (Some(in_flight), Some(taken)) = (self.in_flight, self.taken_by_host) {
            let untaken = usize::try_from(self.sent.saturating_sub(taken)).unwrap_or(usize::MAX);
            bytes.extend(in_flight.range(in_flight.len().saturating_sub(untaken)..));
        }
        let mut skip = self.taken;
        for chunk in self.queue {
            bytes.extend_from_slice(&chunk.bytes[skip..]);
            skip = 0;
        }
        bytes
    }
}
