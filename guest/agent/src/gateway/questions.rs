//! Questions of programs to the resolver, while the relay looks for the answers.

use std::net::SocketAddrV4;

use super::dns::Question;
use super::flows::Slot;
use super::owners::{self, Uid};

/// Others are answered "server failure" at once.
pub const MAX_QUESTIONS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Udp {
        client: SocketAddrV4,
        server: SocketAddrV4,
    },
    Tcp(Slot),
}

pub struct Pending {
    pub question: Question,
    pub asker: Asker,
    pub owner: Uid,
    /// The stream of the RESOLVE; `None` without a relay.
    pub stream: Option<u32>,
    /// Until when it waits for a relay.
    pub deadline_ns: u64,
}

#[derive(Default)]
pub struct Questions {
    pending: Vec<Pending>,
}

impl Questions {
    /// Whether the same question is on its way already: a program that waits asks again.
    pub fn has(&self, asker: &Asker, question: &Question) -> bool {
        let is_same = |it: &Pending| it.asker == *asker && it.question == *question;
        self.pending.iter().any(is_same)
    }

    pub fn has_place(&self, owner: Uid) -> bool {
        let own = || self.pending.iter().filter(|it| it.owner == owner).count();
        owners::may_have(owner, MAX_QUESTIONS, self.pending.len(), own)
    }

    pub fn add(&mut self, pending: Pending) {
        self.pending.push(pending);
    }

    pub fn take(&mut self, stream: u32) -> Option<Pending> {
        let at = self
            .pending
            .iter()
            .position(|it| it.stream == Some(stream))?;
        Some(self.pending.swap_remove(at))
    }

    /// The relay has left: all wait for the next one.
    pub fn wait(&mut self, deadline_ns: u64) {
        for pending in self.pending.iter_mut().filter(|it| it.stream.is_some()) {
            pending.stream = None;
            pending.deadline_ns = deadline_ns;
        }
    }

    /// Asks all of them of a new relay, on streams of its own.
    pub fn ask_again(&mut self, mut ask: impl FnMut(&Question) -> Option<u32>) {
        for pending in &mut self.pending {
            pending.stream = ask(&pending.question);
        }
    }

    pub fn next_deadline(&self) -> Option<u64> {
        let waiting = self.pending.iter().filter(|it| it.stream.is_none());
        waiting.map(|it| it.deadline_ns).min()
    }

    /// A question that has waited for a relay in vain.
    pub fn take_late(&mut self, now_ns: u64) -> Option<Pending> {
        let is_late = |it: &Pending| it.stream.is_none() && it.deadline_ns <= now_ns;
        let at = self.pending.iter().position(is_late)?;
        Some(self.pending.swap_remove(at))
    }
}
