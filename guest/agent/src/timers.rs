//! Moments at which something is to be looked at again. Nothing is ever taken back: whoever is called looks whether
//! there is still something to do.

use std::collections::BTreeMap;

use crate::sys::monotonic_ns;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The drain of a session whose leader has ended is over.
    Drain(u32),
    /// Trees being killed are to be looked at.
    Kills,
    /// The freezer is to be looked at.
    Freeze,
    /// An ended terminal session has been kept long enough.
    Forget(u32),
    /// The port had no host; perhaps it has one now.
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

    /// For epoll: until the first moment, rounded up; -1 when there is none.
    pub fn timeout_ms(&self) -> i32 {
        let Some((&(at, _), _)) = self.due.first_key_value() else {
            return -1;
        };
        let ms = at.saturating_sub(monotonic_ns()).div_ceil(1_000_000);
        ms.min(i32::MAX as u64) as i32
    }

    /// The next thing whose moment has come.
    pub fn take_due(&mut self) -> Option<Due> {
        let entry = self.due.first_entry()?;
        if entry.key().0 > monotonic_ns() {
            return None;
        }
        Some(entry.remove())
    }
}
