//! The streams of one epoch: flow control in both directions and fair sending.
//!
//! ```text
//!   data() ─► a stream's queue ─► send queue (one frame each) ─► outbox ─► port
//!                  ▲ credit: WINDOW                      ▲ at most OUTBOX_BYTES of it
//! ```
//!
//! A stream carries a `Role`, which this file stores and returns but does not interpret.

use std::collections::{BTreeMap, VecDeque};

use crate::closed_terminals::ClosedTerminals;
use crate::frames::{self, Header, MAX_PAYLOAD_BYTES};
use crate::memory;
use crate::outbox::Outbox;
use crate::protocol::{Failure, MAX_STREAMS};
use crate::record::Writer;
use crate::stream::{Dropped, Last, Role, Stream};

/// Data stays in its stream's queue while the outbox holds more than this.
const OUTBOX_BYTES: usize = 128 * 1024;
/// Half of the memory that the smallest capsule can spare.
const CONGESTED_BYTES: usize = 16 * 1024 * 1024;

#[derive(Default)]
pub struct Streams {
    epoch: u16,
    /// Boxed: a node of the tree has room for eleven values, and the first stream allocates a whole node.
    open: BTreeMap<u32, Box<Stream>>,
    /// Streams with data and credit, each once, in the order in which they send.
    send_queue: VecDeque<u32>,
    outbox: Outbox,
    /// Streams closed since the last `take_closed`.
    closed: Vec<(u32, Role)>,
    closed_terminals: ClosedTerminals,
    /// Streams whose queue has become shorter since the last `take_drained`.
    drained: Vec<(u32, Role)>,
}

impl Streams {
    pub fn epoch(&self) -> u16 {
        self.epoch
    }

    /// Drops every stream and the outbox. Returns the streams that were open, and those closed terminals' streams of
    /// which the outbox still held output.
    pub fn begin_epoch(&mut self, epoch: u16) -> Vec<Dropped> {
        let held = self.outbox.data_bytes();
        self.epoch = epoch;
        self.outbox.clear();
        self.send_queue.clear();
        self.closed.clear();
        self.drained.clear();
        let open = std::mem::take(&mut self.open);
        self.closed_terminals
            .take_held(&held)
            .chain(open)
            .map(|(id, mut stream)| {
                stream.assume_taken_but(held.get(&id).copied().unwrap_or(0));
                stream.into_dropped(id)
            })
            .collect()
    }

    pub fn open(&mut self, id: u32) {
        self.open.insert(id, Box::default());
    }

    pub fn is_open(&self, id: u32) -> bool {
        self.open.contains_key(&id)
    }

    pub fn is_full(&self) -> bool {
        self.open.len() >= MAX_STREAMS
    }

    /// Its last frames are known, but need not be sent yet; or it is closed.
    pub fn is_finished(&self, id: u32) -> bool {
        self.open.get(&id).is_none_or(|stream| stream.is_finished())
    }

    pub fn role(&self, id: u32) -> Option<Role> {
        self.open.get(&id).map(|stream| stream.role())
    }

    pub fn set_role(&mut self, id: u32, role: Role) {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.set_role(role);
        }
    }

    /// CANCEL from the host.
    pub fn cancel(&mut self, id: u32) -> Option<Dropped> {
        let stream = self.open.remove(&id)?;
        Some(stream.into_dropped(id))
    }

    /// Streams that we have closed since the last call.
    pub fn take_closed(&mut self) -> Vec<(u32, Role)> {
        std::mem::take(&mut self.closed)
    }

    pub fn take_drained(&mut self) -> Vec<(u32, Role)> {
        std::mem::take(&mut self.drained)
    }

    // ---- Agent → host

    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    pub fn outbox_bytes(&self) -> usize {
        self.outbox.len()
    }

    /// Sends a frame that needs no credit, ahead of all queued data.
    pub fn control(&mut self, kind: u8, id: u32, payload: &[u8]) {
        self.frame(kind, 0, id, payload);
    }

    /// An EVENT, ahead of queued data: only before the stream's first data.
    pub fn event(&mut self, id: u32, payload: &[u8]) {
        if !self.is_finished(id) {
            self.frame(frames::EVENT, 0, id, payload);
        }
    }

    pub fn queued(&self, id: u32) -> usize {
        self.open.get(&id).map_or(0, |stream| stream.queued())
    }

    /// All streams together queue too much, so that each must queue little: the memory is the guest's.
    pub fn is_congested(&self) -> bool {
        let queued: usize = self.open.values().map(|stream| stream.queued()).sum();
        queued > CONGESTED_BYTES || memory::is_low()
    }

    /// Sends what credit and outbox allow, and queues the rest.
    pub fn data(&mut self, id: u32, channel: u8, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let has_room = self.send_queue.is_empty() && self.outbox.len() < OUTBOX_BYTES;
            let Some(stream) = self.writable(id) else {
                return;
            };
            let (payload, rest) = bytes.split_at(bytes.len().min(MAX_PAYLOAD_BYTES));
            bytes = rest;
            if has_room && stream.can_send_at_once(payload.len()) {
                stream.note_sent(payload);
                self.frame(frames::DATA, channel, id, payload);
            } else {
                stream.enqueue(channel, payload);
                self.enter_send_queue(id);
            }
        }
    }

    /// The same for data of any length that need not be copied.
    pub fn data_owned(&mut self, id: u32, channel: u8, bytes: Vec<u8>) {
        if let Some(stream) = self.writable(id).filter(|_| !bytes.is_empty()) {
            stream.enqueue_owned(channel, bytes);
            self.enter_send_queue(id);
        }
    }

    /// RESULT, after everything queued. Closes the stream.
    pub fn result(&mut self, id: u32, result: Vec<u8>) {
        let has_end = false;
        self.finish(id, Last { has_end, result });
    }

    /// END and RESULT, after everything queued. Closes the stream.
    pub fn end_with_result(&mut self, id: u32, result: Vec<u8>) {
        let has_end = true;
        self.finish(id, Last { has_end, result });
    }

    /// END, after everything queued. The stream stays open for the host's data and for the result.
    pub fn end_data(&mut self, id: u32) {
        if let Some(stream) = self.writable(id) {
            stream.end_data();
        }
        self.send_end(id);
    }

    fn send_end(&mut self, id: u32) {
        let stream = self.open.get_mut(&id);
        if let Some(stream) = stream.and_then(|stream| stream.take_end().then_some(stream)) {
            let total = Writer::new().u64(stream.sent()).finish();
            self.frame(frames::END, 0, id, &total);
        }
    }

    /// FAIL, at once. Closes the stream and returns what was queued.
    pub fn fail(&mut self, id: u32, failure: &Failure) -> Vec<u8> {
        if self.is_finished(id) {
            return Vec::new();
        }
        let Some(stream) = self.open.remove(&id) else {
            return Vec::new();
        };
        self.frame(frames::FAIL, 0, id, &failure.record());
        self.closed.push((id, stream.role()));
        stream.into_unsent()
    }

    /// Fills the outbox from the send queue, one frame of each stream in turn.
    pub fn pump(&mut self) {
        while self.outbox.len() < OUTBOX_BYTES {
            let Some(id) = self.send_queue.pop_front() else {
                return;
            };
            let Some(stream) = self.open.get_mut(&id) else {
                continue;
            };
            stream.leave_send_queue();
            let (outbox, epoch) = (&mut self.outbox, self.epoch);
            let is_sent = stream.send_frame(|channel, bytes| {
                outbox.push(&header(epoch, frames::DATA, channel, id, bytes), bytes);
            });
            if !is_sent {
                continue;
            }
            let (role, can_close) = (stream.role(), stream.can_close());
            self.drained.push((id, role));
            self.send_end(id);
            if can_close {
                self.close(id);
            } else {
                self.enter_send_queue(id);
            }
        }
    }

    fn writable(&mut self, id: u32) -> Option<&mut Stream> {
        let stream = self.open.get_mut(&id)?;
        (!stream.is_finished()).then_some(stream)
    }

    fn enter_send_queue(&mut self, id: u32) {
        if let Some(stream) = self.open.get_mut(&id) {
            if stream.enter_send_queue() {
                self.send_queue.push_back(id);
            }
        }
    }

    fn finish(&mut self, id: u32, last: Last) {
        let Some(stream) = self.writable(id) else {
            return;
        };
        stream.finish(last);
        if stream.can_close() {
            self.close(id);
        }
    }

    fn close(&mut self, id: u32) {
        let Some(mut stream) = self.open.remove(&id) else {
            return;
        };
        let Some(last) = stream.take_last() else {
            return;
        };
        if last.has_end {
            let total = Writer::new().u64(stream.sent()).finish();
            self.frame(frames::END, 0, id, &total);
        }
        self.frame(frames::RESULT, 0, id, &last.result);
        self.closed.push((id, stream.role()));
        if stream.is_terminal() {
            self.closed_terminals.push(id, stream);
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let header = header(self.epoch, kind, flags, stream, payload);
        self.outbox.push(&header, payload);
    }

    // ---- Host → agent

    /// WINDOW: the host takes `bytes` more.
    pub fn credit(&mut self, id: u32, bytes: u32) {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.add_credit(bytes);
            self.enter_send_queue(id);
        }
    }

    /// TAKEN: the host is about to leave, and `total` bytes have reached its client. Returns a stream that was closed
    /// already.
    pub fn taken(&mut self, id: u32, total: u64) -> Option<Dropped> {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.set_taken(total);
            return None;
        }
        self.closed_terminals.set_taken(id, total)
    }

    /// DATA has arrived. False: more than the window allows.
    pub fn receive(&mut self, id: u32, bytes: usize) -> bool {
        let stream = self.open.get_mut(&id);
        stream.is_none_or(|stream| stream.receive(bytes))
    }

    /// Received bytes are processed: the host may send as many again.
    pub fn consumed(&mut self, id: u32, bytes: usize) {
        let stream = self.open.get_mut(&id);
        if let Some(grant) = stream.and_then(|stream| stream.consume(bytes)) {
            self.frame(frames::WINDOW, 0, id, &Writer::new().u32(grant).finish());
        }
    }
}

fn header(epoch: u16, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Header {
    Header {
        kind,
        flags,
        epoch,
        stream,
        length: payload.len() as u32,
    }
}
