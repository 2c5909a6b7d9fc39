//! Timers. They cannot be cancelled: the code that a timer calls checks whether there is still something to do.

use std::collections::BTreeMap;

use crate::sys::monotonic_ns;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The drain after the end of this session's leader is over.
    Drain(u32),
    /// Commands that have not executed their programs are to be looked at.
    Starts,
    /// Pending kills are to be polled.
    Kills,
    /// The freezer is to be polled.
    Freeze,
    /// The size of this terminal, which is another one for its program to draw, is to be looked at.
    Redraw(u32),
    /// This ended session has been kept long enough.
    Forget(u32),
    /// A stop that the host has asked for is to go on.
    Halt,
    /// A gateway is to be started.
    Gateway,
    /// The port had no host and is to be read again.
    Host,
}

#[derive(Default)]
pub struct Timers {
    due: BTreeMap<(u64, u64), Due>,
    serial: u64,
}

impl Timers {
    pub fn after_ms(&mut self, ms: u64, due: Due) {
        self.serial += 1;
        self.due
            .insert((monotonic_ns() + ms * 1_000_000, self.serial), due);
    }

    /// For epoll: the time until the first timer is due, rounded up; -1 without a timer.
    pub fn timeout_ms(&self) -> i32 {
        let Some((&(at, _), _)) = self.due.first_key_value() else {
            return -1;
        };
        let ms = at.saturating_sub(monotonic_ns()).div_ceil(1_000_000);
        ms.min(i32::MAX as u64) as i32
    }

    pub fn take_due(&mut self) -> Option<Due> {
        let entry = self.due.first_entry()?;
        if entry.key().0 > monotonic_ns() {
            return None;
        }
        Some(entry.remove())
    }
}
