//! Full-screen programs draw when the size of their terminal changes. A client that rejoins a terminal sees an empty page
//! otherwise, since its size is mostly the one that the program knows.
//!
//! So the terminal gets another size for a moment. It gets its own back when the program has written something, which it does
//! when it draws; before input is written; and after `REDRAW_MS` at the latest. Two changes without a pause would be no
//! change to a program that looks at its size after both of them.

use super::Session;
use crate::pty::{self, Size};

/// How long a terminal has another size if its program writes nothing.
pub const REDRAW_MS: u64 = 3_000;

impl Session {
    pub fn begin_redraw(&mut self) {
        let Some(master) = self.terminal_master().filter(|_| self.is_alive()) else {
            return;
        };
        if self.size_to_restore.is_none() {
            if let Ok(size) = pty::size(master) {
                let is_set = pty::set_size(master, size.other()).is_ok();
                self.size_to_restore = is_set.then_some(size);
            }
        }
    }

    pub fn end_redraw(&mut self) {
        if let Some(size) = self.size_to_restore.take() {
            self.set_size(size);
        }
    }

    pub fn resize(&mut self, size: Size) {
        if self.size_to_restore != Some(size) {
            self.size_to_restore = None;
            self.set_size(size);
        }
    }

    fn set_size(&self, size: Size) {
        if let Some(master) = self.terminal_master() {
            let _ = pty::set_size(master, size);
        }
    }
}
