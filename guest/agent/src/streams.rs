//! The streams of one epoch: credit in both directions, bytes that wait for credit, and fair sending.
//!
//! ```text
//!   data() ─► a stream's queue ─► turns (one frame each) ─► outbox ─► port
//!                  ▲ credit: WINDOW                ▲ at most OUTBOX_BYTES of it
//! ```
//!
//! What a stream is for is somebody else's business; here it carries a `Role` for whoever has to know.

use std::collections::{BTreeMap, VecDeque};

use crate::frames::{self, Header, MAX_PAYLOAD_BYTES};
use crate::port::Outbox;
use crate::protocol::{Failure, MAX_STREAMS, MAX_WINDOW_BYTES, WINDOW_BYTES};
use crate::record::Writer;
use crate::stream::{Last, Stream};

pub use crate::stream::Role;

/// Bulk waits in its stream while more than this is on its way to the pipe.
const OUTBOX_BYTES: usize = 128 * 1024;
/// Half of what the smallest capsule could spare.
const CROWDED_BYTES: usize = 16 * 1024 * 1024;
/// Credit is returned in steps, to save frames.
const GRANT_BYTES: u32 = 131_072;
/// Each holds at most a window.
const MAX_FAREWELLS: usize = 16;

#[derive(Default)]
pub struct Streams {
    epoch: u16,
    /// In boxes, as sessions are.
    open: BTreeMap<u32, Box<Stream>>,
    turns: VecDeque<u32>,
    pub outbox: Outbox,
    closed: Vec<(u32, Role)>,
    /// Terminals' streams that are over: the host may have left before it read their end.
    farewells: VecDeque<(u32, Box<Stream>)>,
    /// Streams whose queue has become shorter.
    eased: Vec<(u32, Role)>,
}

impl Streams {
    pub fn epoch(&self) -> u16 {
        self.epoch
    }

    /// Forgets every stream and everything unsent. The roles of what was open, or a terminal's and over but not sent to
    /// its end, and the unsent bytes of each.
    pub fn begin_epoch(&mut self, epoch: u16) -> Vec<(u32, Role, Vec<u8>)> {
        let held = self.outbox.data_bytes();
        self.epoch = epoch;
        self.outbox.clear();
        self.turns.clear();
        self.closed.clear();
        self.eased.clear();
        // Of a session's several clients one, or the next would see twice what they all missed.
        let mut farewells = BTreeMap::new();
        for (id, stream) in std::mem::take(&mut self.farewells) {
            if let (Role::Terminal(key), true) = (stream.role, held.contains_key(&id)) {
                farewells.insert(key, (id, stream));
            }
        }
        let open = std::mem::take(&mut self.open);
        farewells
            .into_values()
            .chain(open)
            .map(|(id, mut stream)| {
                let held = held.get(&id).copied().unwrap_or(0);
                // The frames may be those of an earlier stream of this number.
                let sent = stream.sent.saturating_sub(held);
                stream.taken_by_host.get_or_insert(sent);
                (id, stream.role, stream.unsent())
            })
            .collect()
    }

    pub fn is_open(&self, id: u32) -> bool {
        self.open.contains_key(&id)
    }

    pub fn is_full(&self) -> bool {
        self.open.len() >= MAX_STREAMS
    }

    /// Its last word has been said, though it may not be sent yet.
    pub fn is_finished(&self, id: u32) -> bool {
        self.open
            .get(&id)
            .is_none_or(|stream| stream.last.is_some())
    }

    pub fn role(&self, id: u32) -> Option<Role> {
        self.open.get(&id).map(|stream| stream.role)
    }

    pub fn set_role(&mut self, id: u32, role: Role) {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.role = role;
            if matches!(role, Role::Terminal(_)) {
                stream.in_flight = Some(VecDeque::new());
            }
        }
    }

    pub fn open(&mut self, id: u32) {
        self.open.insert(id, Box::default());
    }

    /// The host has dropped it. Its role and unsent bytes.
    pub fn cancel(&mut self, id: u32) -> Option<(Role, Vec<u8>)> {
        let stream = self.open.remove(&id)?;
        Some((stream.role, stream.unsent()))
    }

    /// Streams that are over since the last call, because their last frame is on its way.
    pub fn take_closed(&mut self) -> Vec<(u32, Role)> {
        std::mem::take(&mut self.closed)
    }

    pub fn take_eased(&mut self) -> Vec<(u32, Role)> {
        std::mem::take(&mut self.eased)
    }

    // ---- Agent → host

    pub fn control(&mut self, kind: u8, id: u32, payload: &[u8]) {
        self.frame(kind, 0, id, payload);
    }

    /// Only before the stream's first data: it overtakes what is queued.
    pub fn event(&mut self, id: u32, payload: &[u8]) {
        if !self.is_finished(id) {
            self.frame(frames::EVENT, 0, id, payload);
        }
    }

    pub fn queued(&self, id: u32) -> usize {
        self.open.get(&id).map_or(0, |stream| stream.queued)
    }

    /// So much waits on all streams together that each must do with little: the guest's memory is not ours.
    pub fn is_crowded(&self) -> bool {
        let queued: usize = self.open.values().map(|stream| stream.queued).sum();
        queued > CROWDED_BYTES
    }

    /// Sends as credit and pipe allow; the rest waits.
    pub fn data(&mut self, id: u32, channel: u8, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let is_pipe_free = self.turns.is_empty() && self.outbox.len() < OUTBOX_BYTES;
            let Some(stream) = self
                .open
                .get_mut(&id)
                .filter(|stream| stream.last.is_none())
            else {
                return;
            };
            let length = bytes.len().min(MAX_PAYLOAD_BYTES);
            let (frame, rest) = bytes.split_at(length);
            bytes = rest;
            if is_pipe_free && stream.queued == 0 && length <= stream.credit as usize {
                stream.note_sent(frame);
                self.frame(frames::DATA, channel, id, frame);
            } else {
                stream.put_in_queue(channel, frame);
                self.line_up(id);
            }
        }
    }

    /// The same for bulk, of which there may be more than a frame's worth.
    pub fn bulk(&mut self, id: u32, channel: u8, bytes: Vec<u8>) {
        let stream = self.open.get_mut(&id).filter(|it| it.last.is_none());
        if let Some(stream) = stream.filter(|_| !bytes.is_empty()) {
            stream.put_whole_in_queue(channel, bytes);
            self.line_up(id);
        }
    }

    /// The stream's last word, after everything queued.
    pub fn result(&mut self, id: u32, payload: Vec<u8>) {
        self.last(id, false, payload);
    }

    /// The same with an END before it.
    pub fn end_with_result(&mut self, id: u32, payload: Vec<u8>) {
        self.last(id, true, payload);
    }

    /// The stream's last word, at once. What was queued comes back.
    pub fn fail(&mut self, id: u32, failure: &Failure) -> Vec<u8> {
        if self.is_finished(id) {
            return Vec::new();
        }
        let Some(stream) = self.open.remove(&id) else {
            return Vec::new();
        };
        self.frame(frames::FAIL, 0, id, &failure.record());
        self.closed.push((id, stream.role));
        stream.unsent()
    }

    fn last(&mut self, id: u32, has_end: bool, result: Vec<u8>) {
        let Some(stream) = self.open.get_mut(&id) else {
            return;
        };
        if stream.last.is_some() {
            return;
        }
        stream.last = Some(Last { has_end, result });
        if stream.queued == 0 {
            self.close(id);
        }
    }

    fn close(&mut self, id: u32) {
        let Some(mut stream) = self.open.remove(&id) else {
            return;
        };
        let Some(last) = stream.last.take() else {
            return;
        };
        if last.has_end {
            let total = Writer::new().u64(stream.sent).finish();
            self.frame(frames::END, 0, id, &total);
        }
        self.frame(frames::RESULT, 0, id, &last.result);
        self.closed.push((id, stream.role));
        if stream.in_flight.is_some() {
            if self.farewells.len() >= MAX_FAREWELLS {
                self.farewells.pop_front();
            }
            self.farewells.push_back((id, stream));
        }
    }

    /// Fills the outbox from those in line, one frame each.
    pub fn pump(&mut self) {
        while self.outbox.len() < OUTBOX_BYTES {
            let Some(id) = self.turns.pop_front() else {
                return;
            };
            let Some(stream) = self.open.get_mut(&id) else {
                continue;
            };
            stream.is_in_line = false;
            let (outbox, epoch) = (&mut self.outbox, self.epoch);
            let is_sent = stream.send_frame(|channel, bytes| {
                push_frame(outbox, epoch, (frames::DATA, channel, id), bytes)
            });
            if !is_sent {
                continue;
            }
            let role = stream.role;
            let is_over = stream.queued == 0 && stream.last.is_some();
            self.eased.push((id, role));
            if is_over {
                self.close(id);
            } else {
                self.line_up(id);
            }
        }
    }

    fn line_up(&mut self, id: u32) {
        if let Some(stream) = self.open.get_mut(&id) {
            if !stream.is_in_line && stream.queued > 0 && stream.credit > 0 {
                stream.is_in_line = true;
                self.turns.push_back(id);
            }
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        push_frame(&mut self.outbox, self.epoch, (kind, flags, stream), payload);
    }

    // ---- Host → agent

    /// WINDOW: the host takes this much more.
    pub fn credit(&mut self, id: u32, bytes: u32) {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.credit = stream.credit.saturating_add(bytes).min(MAX_WINDOW_BYTES);
            stream.window = stream.window.max(stream.credit);
            if let Some(in_flight) = &mut stream.in_flight {
                let settled = in_flight
                    .len()
                    .saturating_sub((stream.window - stream.credit) as usize);
                in_flight.drain(..settled);
            }
            self.line_up(id);
        }
    }

    /// The host is about to leave, and has taken this much in all. Of a stream that is over already, role and the rest.
    pub fn taken(&mut self, id: u32, total: u64) -> Option<(Role, Vec<u8>)> {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.taken_by_host = Some(total);
            return None;
        }
        let at = self.farewells.iter().position(|(of, _)| *of == id)?;
        let (_, mut stream) = self.farewells.remove(at)?;
        stream.taken_by_host = Some(total);
        Some((stream.role, stream.unsent()))
    }

    /// Data has arrived. False: more than the window allows.
    pub fn receive(&mut self, id: u32, bytes: usize) -> bool {
        let Some(stream) = self.open.get_mut(&id) else {
            return true;
        };
        match stream.allowance.checked_sub(bytes as u32) {
            Some(rest) => {
                stream.allowance = rest;
                true
            }
            None => false,
        }
    }

    /// Received bytes are dealt with: the host may send as many again.
    pub fn consumed(&mut self, id: u32, bytes: usize) {
        let Some(stream) = self.open.get_mut(&id) else {
            return;
        };
        // What an earlier stream of this number was sent is dealt with now, and was never this one's allowance.
        stream.owed = (stream.owed + bytes as u32).min(WINDOW_BYTES - stream.allowance);
        if stream.owed < GRANT_BYTES || stream.last.is_some() {
            return;
        }
        let grant = std::mem::take(&mut stream.owed);
        stream.allowance += grant;
        self.frame(frames::WINDOW, 0, id, &Writer::new().u32(grant).finish());
    }
}

fn push_frame(
    outbox: &mut Outbox,
    epoch: u16,
    (kind, flags, stream): (u8, u8, u32),
    payload: &[u8],
) {
    let length = payload.len() as u32;
    let header = Header {
        kind,
        flags,
        epoch,
        stream,
        length,
    };
    outbox.push(&header.encode());
    outbox.push(payload);
}
