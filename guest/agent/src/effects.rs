//! Requests of the parts to the loop. A part owns its state but no timer and no source of events; so it returns effects, and
//! agent.rs carries them out before it waits again.

use std::os::fd::OwnedFd;

use crate::timers::Due;

pub enum Effect {
    /// To be called back.
    Arm { after_ms: u64, due: Due },
    /// To be closed when all answers are sent: closing takes longer than an answer should wait.
    Close(OwnedFd),
    /// The read end of an ended command's pipe that another process still holds open.
    Orphan(OwnedFd),
    /// Programs are to end within the time, and then the guest.
    Halt { term_ms: u32 },
}

impl Effect {
    pub fn arm(after_ms: u64, due: Due) -> Effect {
        Effect::Arm { after_ms, due }
    }
}

pub type Effects = Vec<Effect>;
