//! One stream: its role, its credit in both directions, and the bytes that wait for credit. Which stream sends when is
//! decided in streams.rs.

use std::collections::VecDeque;

use crate::frames::MAX_PAYLOAD_BYTES;
use crate::memory;
use crate::protocol::{MAX_WINDOW_BYTES, WINDOW_BYTES};

/// A chunk is split for lack of credit only into parts of at least this size.
const MIN_PART_BYTES: usize = 4_096;
/// Credit is returned in steps of at least this size, to save frames.
const GRANT_BYTES: u32 = 131_072;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Waits for one answer.
    Call,
    /// Waits for the command with this session key to execute its program.
    Starting(u32),
    /// Receives the output of the foreground command with this session key.
    Foreground(u32),
    /// Receives the output of the background process with this session key.
    Attached(u32),
    /// Reads the output of the background process with this session key from its log.
    Reading(u32),
    /// Receives the output and sends the input of the terminal with this session key.
    Terminal(u32),
    /// Waits for the exit of the background process with this session key.
    Waiting(u32),
    /// Sends standard input of the background process with this session key.
    Input(u32),
    /// Exchanges data with a server of the guest (see dials.rs).
    Dial,
    /// Exchanges data with a job (see tasks.rs).
    Work,
}

impl Role {
    /// The session that the stream's DATA is input for.
    pub fn input_session(self) -> Option<u32> {
        match self {
            Role::Terminal(key)
            | Role::Starting(key)
            | Role::Foreground(key)
            | Role::Input(key) => Some(key),
            Role::Call
            | Role::Attached(_)
            | Role::Reading(_)
            | Role::Waiting(_)
            | Role::Dial
            | Role::Work => None,
        }
    }
}

/// A stream that ended before all its data was delivered.
#[derive(Debug, PartialEq, Eq)]
pub struct Dropped {
    pub id: u32,
    pub role: Role,
    /// Queued, or sent to a host that did not take it.
    pub unsent: Vec<u8>,
}

/// The frames after the last queued data; they close the stream.
pub struct Last {
    /// An END precedes the RESULT.
    pub has_end: bool,
    pub result: Vec<u8>,
}

struct Chunk {
    channel: u8,
    bytes: Vec<u8>,
}

pub struct Stream {
    role: Role,
    /// How much may be sent now.
    credit: u32,
    /// The credit when the host has consumed everything.
    window: u32,
    /// All DATA bytes sent.
    sent: u64,
    queue: VecDeque<Chunk>,
    /// Bytes of the first chunk that have been sent.
    first_chunk_sent: usize,
    queued: usize,
    /// Terminals only: bytes sent and not yet credited back, so that the bytes a leaving host did not take can be kept
    /// for the next client.
    in_flight: Option<VecDeque<u8>>,
    /// How much of `sent` a leaving host has taken.
    taken_by_host: Option<u64>,
    is_in_send_queue: bool,
    last: Option<Last>,
    /// An END is to follow the queued data, while the stream stays open for the host's.
    is_ending: bool,
    /// How much the host may still send.
    allowance: u32,
    /// Bytes consumed and not yet granted again.
    ungranted: u32,
}

impl Default for Stream {
    fn default() -> Stream {
        Stream {
            role: Role::Call,
            credit: WINDOW_BYTES,
            window: WINDOW_BYTES,
            sent: 0,
            queue: VecDeque::new(),
            first_chunk_sent: 0,
            queued: 0,
            in_flight: None,
            taken_by_host: None,
            is_in_send_queue: false,
            last: None,
            is_ending: false,
            allowance: WINDOW_BYTES,
            ungranted: 0,
        }
    }
}

impl Stream {
    pub fn role(&self) -> Role {
        self.role
    }

    pub fn set_role(&mut self, role: Role) {
        self.role = role;
        if matches!(role, Role::Terminal(_)) {
            self.in_flight = Some(VecDeque::new());
        }
    }

    pub fn is_terminal(&self) -> bool {
        self.in_flight.is_some()
    }

    // ---- Agent → host

    pub fn queued(&self) -> usize {
        self.queued
    }

    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether nothing is queued before a frame of `length` bytes, and it has credit.
    pub fn can_send_at_once(&self, length: usize) -> bool {
        self.queued == 0 && length <= self.credit as usize
    }

    /// Queues bytes; small chunks of one channel are joined.
    pub fn enqueue(&mut self, channel: u8, bytes: &[u8]) {
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

    /// Queues bytes without copying them.
    pub fn enqueue_owned(&mut self, channel: u8, bytes: Vec<u8>) {
        self.queued += bytes.len();
        self.queue.push_back(Chunk { channel, bytes });
    }

    /// Passes the next frame's channel and payload to `send`, as far as credit allows. False: nothing can be sent.
    pub fn send_frame(&mut self, send: impl FnOnce(u8, &[u8])) -> bool {
        let Some(chunk) = self.queue.pop_front() else {
            return false;
        };
        let start = self.first_chunk_sent;
        let rest = chunk.bytes.len() - start;
        let length = rest.min(self.credit as usize).min(MAX_PAYLOAD_BYTES);
        // A small frame costs as much as a full one, so small credit is saved up.
        if length < rest.min(MIN_PART_BYTES) {
            self.queue.push_front(chunk);
            return false;
        }
        let bytes = &chunk.bytes[start..start + length];
        self.queued -= length;
        self.note_sent(bytes);
        send(chunk.channel, bytes);
        if length < rest {
            self.first_chunk_sent += length;
            self.queue.push_front(chunk);
        } else {
            self.first_chunk_sent = 0;
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

    /// WINDOW from the host.
    pub fn add_credit(&mut self, bytes: u32) {
        self.credit = self.credit.saturating_add(bytes).min(MAX_WINDOW_BYTES);
        self.window = self.window.max(self.credit);
        if let Some(in_flight) = &mut self.in_flight {
            let unconsumed = (self.window - self.credit) as usize;
            let consumed = in_flight.len().saturating_sub(unconsumed);
            in_flight.drain(..consumed);
        }
    }

    /// Whether it has to be added to the send queue. It then counts as a member.
    pub fn enter_send_queue(&mut self) -> bool {
        let enters = !self.is_in_send_queue && self.queued > 0 && self.credit > 0;
        self.is_in_send_queue |= enters;
        enters
    }

    pub fn leave_send_queue(&mut self) {
        self.is_in_send_queue = false;
    }

    /// No data may follow: its last frames are known, but need not be sent yet.
    pub fn is_finished(&self) -> bool {
        self.last.is_some()
    }

    pub fn finish(&mut self, last: Last) {
        self.last = Some(last);
    }

    /// Finished and all data sent: the last frames can follow.
    pub fn can_close(&self) -> bool {
        self.queued == 0 && self.is_finished()
    }

    /// No data may follow what is queued.
    pub fn end_data(&mut self) {
        self.is_ending = true;
    }

    /// All data is sent and an END is due; it counts as sent.
    pub fn take_end(&mut self) -> bool {
        self.queued == 0 && std::mem::take(&mut self.is_ending)
    }

    pub fn take_last(&mut self) -> Option<Last> {
        self.last.take()
    }

    /// TAKEN from a host that is about to leave: how many of all bytes sent reached its client.
    pub fn set_taken(&mut self, total: u64) {
        self.taken_by_host = Some(total);
    }

    /// The host left without TAKEN: everything but the `held` bytes still in the outbox counts as taken.
    pub fn assume_taken_but(&mut self, held: u64) {
        // The frames in the outbox may be those of an earlier stream of this number.
        let taken = self.sent.saturating_sub(held);
        self.taken_by_host.get_or_insert(taken);
    }

    pub fn into_dropped(self, id: u32) -> Dropped {
        Dropped {
            id,
            role: self.role,
            unsent: self.into_unsent(),
        }
    }

    /// Bytes sent to a host that did not take them, then the queued ones.
    pub fn into_unsent(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if memory::require(2 * self.queued).is_err() {
            return bytes; // as if it had been missed long ago
        }
        if let (Some(in_flight), Some(taken)) = (self.in_flight, self.taken_by_host) {
            let untaken = usize::try_from(self.sent.saturating_sub(taken)).unwrap_or(usize::MAX);
            bytes.extend(in_flight.range(in_flight.len().saturating_sub(untaken)..));
        }
        let mut skip = self.first_chunk_sent;
        for chunk in self.queue {
            bytes.extend_from_slice(&chunk.bytes[skip..]);
            skip = 0;
        }
        bytes
    }

    // ---- Host → agent

    /// Data has arrived. False: more than the window allows.
    pub fn receive(&mut self, bytes: usize) -> bool {
        match self.allowance.checked_sub(bytes as u32) {
            Some(rest) => {
                self.allowance = rest;
                true
            }
            None => false,
        }
    }

    /// Received bytes are processed. The credit to grant the host now, if there is enough for a frame.
    pub fn consume(&mut self, bytes: usize) -> Option<u32> {
        // Bytes sent to an earlier stream of this number never reduced this one's allowance.
        self.ungranted = (self.ungranted + bytes as u32).min(WINDOW_BYTES - self.allowance);
        if self.ungranted < GRANT_BYTES || self.is_finished() {
            return None;
        }
        let grant = std::mem::take(&mut self.ungranted);
        self.allowance += grant;
        Some(grant)
    }
}
