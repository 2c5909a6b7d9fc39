//! FREEZE and THAW: whether commands run. Between boot or FREEZE and THAW, the agent is asleep and none does.

use crate::cgroups::Cgroups;
use crate::effects::{Effect, Effects};
use crate::outside::Outside;
use crate::protocol::empty;
use crate::record::Writer;
use crate::streams::Streams;
use crate::sys::monotonic_ns;
use crate::timers::Due;

const TIMEOUT_NS: u64 = 300_000_000;
const MAX_POLL_MS: u64 = 20;

/// A FREEZE that is not answered yet.
struct Pending {
    stream: Option<u32>,
    deadline_ns: u64,
    next_poll_ms: u64,
}

pub struct Freezer {
    is_awake: bool,
    pending: Option<Pending>,
    /// In a VM.
    outside: Option<Outside>,
}

impl Freezer {
    /// `outside`: what runs beside the commands and is to be frozen with them.
    pub fn new(outside: Option<Outside>) -> Freezer {
        Freezer {
            is_awake: false,
            pending: None,
            outside,
        }
    }

    pub fn spare(&mut self, pid: Option<libc::pid_t>) {
        if let Some(outside) = &mut self.outside {
            outside.spare(pid);
        }
    }

    pub fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// A new host does not know the stream.
    pub fn forget_stream(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.stream = None;
        }
    }

    pub fn freeze(
        &mut self,
        stream: u32,
        cgroups: &Cgroups,
        streams: &mut Streams,
        effects: &mut Effects,
    ) {
        self.is_awake = false;
        self.give_up(streams);
        let can_freeze = self.outside.as_ref().is_none_or(Outside::can_freeze);
        if !can_freeze || !cgroups.freeze(true) {
            answer(Some(stream), false, streams);
            return;
        }
        self.pending = Some(Pending {
            stream: Some(stream),
            deadline_ns: monotonic_ns() + TIMEOUT_NS,
            next_poll_ms: 1,
        });
        self.poll(cgroups, streams, effects);
    }

    /// Answers the FREEZE if all processes are frozen or the time is up; or else arms the timer for the next poll.
    pub fn poll(&mut self, cgroups: &Cgroups, streams: &mut Streams, effects: &mut Effects) {
        let Some(pending) = &mut self.pending else {
            return;
        };
        // In this order: a command that is frozen already makes no further group.
        let is_frozen = cgroups.are_frozen() && self.outside.as_mut().is_none_or(Outside::freeze);
        if is_frozen || monotonic_ns() >= pending.deadline_ns {
            answer(pending.stream, is_frozen, streams);
            self.pending = None;
            return;
        }
        effects.push(Effect::arm(pending.next_poll_ms, Due::Freeze));
        pending.next_poll_ms = (2 * pending.next_poll_ms).min(MAX_POLL_MS);
    }

    pub fn thaw(&mut self, stream: u32, cgroups: &Cgroups, streams: &mut Streams) {
        self.give_up(streams);
        if let Some(outside) = &mut self.outside {
            outside.thaw();
        }
        cgroups.freeze(false);
        self.is_awake = true;
        streams.result(stream, empty());
    }

    fn give_up(&mut self, streams: &mut Streams) {
        if let Some(pending) = self.pending.take() {
            answer(pending.stream, false, streams);
        }
    }
}

fn answer(stream: Option<u32>, is_frozen: bool, streams: &mut Streams) {
    if let Some(stream) = stream {
        streams.result(stream, Writer::new().u8(is_frozen.into()).finish());
    }
}
