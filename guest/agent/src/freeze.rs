//! FREEZE and THAW: whether commands run. Asleep, between a FREEZE (or the boot) and THAW, none does.

use crate::agent::Agent;
use crate::protocol::empty;
use crate::record::Writer;
use crate::sys::monotonic_ns;
use crate::timers::Due;

const PATIENCE_NS: u64 = 300_000_000;

/// A FREEZE that waits for its answer.
pub struct Freezing {
    stream: Option<u32>,
    deadline_ns: u64,
    next_look_ms: u64,
}

impl Freezing {
    /// Nobody is left to hear of it.
    pub fn forget_stream(&mut self) {
        self.stream = None;
    }
}

impl Agent {
    pub fn freeze(&mut self, stream: u32) {
        self.is_awake = false;
        self.give_up_freezing();
        if !self.cgroups.freeze(true) {
            self.answer_freeze(Some(stream), false);
            return;
        }
        self.freezing = Some(Freezing {
            stream: Some(stream),
            deadline_ns: monotonic_ns() + PATIENCE_NS,
            next_look_ms: 1,
        });
        self.look_at_freezer();
    }

    pub fn look_at_freezer(&mut self) {
        let Some(freezing) = &mut self.freezing else {
            return;
        };
        let is_frozen = self.cgroups.are_frozen();
        if is_frozen || monotonic_ns() >= freezing.deadline_ns {
            let stream = freezing.stream;
            self.freezing = None;
            self.answer_freeze(stream, is_frozen);
            return;
        }
        self.timers.after_ms(freezing.next_look_ms, Due::Freeze);
        freezing.next_look_ms = (2 * freezing.next_look_ms).min(20);
    }

    pub fn thaw(&mut self, stream: u32) {
        self.give_up_freezing();
        self.cgroups.freeze(false);
        self.is_awake = true;
        self.streams.result(stream, empty());
    }

    fn give_up_freezing(&mut self) {
        if let Some(freezing) = self.freezing.take() {
            self.answer_freeze(freezing.stream, false);
        }
    }

    fn answer_freeze(&mut self, stream: Option<u32>, is_frozen: bool) {
        let Some(stream) = stream else {
            return;
        };
        let answer = Writer::new().u8(is_frozen.into()).finish();
        self.streams.result(stream, answer);
    }
}
