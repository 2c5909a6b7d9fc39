//! Full-screen programs draw when the size of their terminal changes. A client that rejoins a terminal sees an empty page
//! otherwise, since its size is mostly the one that the program knows.
//!
//! So the terminal gets another size for a moment. It gets its own back when the program has written and then paused for
//! `QUIET_MS`; before input is written; and after `LATEST_MS` anyway. Two changes without a pause would be no change to a program
//! that looks at its size after both of them, and some programs (less) lose a change that comes while they draw.

use super::Session;
use crate::pty::{self, Size};
use crate::sys::monotonic_ns;

/// A program has drawn when it has written nothing for so long.
pub const QUIET_MS: u64 = 200;
const LATEST_MS: u64 = 3_000;
const NS_PER_MS: u64 = 1_000_000;

/// The terminal has another size until its program has drawn.
pub struct Redraw {
    /// Its own size.
    size: Size,
    written_ns: Option<u64>,
    latest_ns: u64,
}

impl Session {
    pub fn begin_redraw(&mut self) {
        let Some(master) = self.terminal_master().filter(|_| self.is_alive()) else {
            return;
        };
        if self.redraw.is_none() {
            if let Ok(size) = pty::size(master) {
                let is_set = pty::set_size(master, size.other()).is_ok();
                self.redraw = is_set.then_some(Redraw {
                    size,
                    written_ns: None,
                    latest_ns: monotonic_ns() + LATEST_MS * NS_PER_MS,
                });
            }
        }
    }

    /// The program has written.
    pub fn note_drawing(&mut self) {
        if let Some(redraw) = &mut self.redraw {
            redraw.written_ns = Some(monotonic_ns());
        }
    }

    /// Ends it when it is time; or else returns when to call again.
    pub fn poll_redraw(&mut self) -> Option<u64> {
        let redraw = self.redraw.as_ref()?;
        let now = monotonic_ns();
        let quiet_ns = redraw.written_ns.map(|it| it + QUIET_MS * NS_PER_MS);
        if now >= redraw.latest_ns || quiet_ns.is_some_and(|it| now >= it) {
            self.end_redraw();
            return None;
        }
        Some(quiet_ns.map_or(QUIET_MS, |it| (it - now).div_ceil(NS_PER_MS)))
    }

    pub fn end_redraw(&mut self) {
        if let Some(redraw) = self.redraw.take() {
            self.set_size(redraw.size);
        }
    }

    pub fn resize(&mut self, size: Size) {
        if self.redraw.as_ref().map(|it| it.size) != Some(size) {
            self.redraw = None;
            self.set_size(size);
        }
    }

    fn set_size(&self, size: Size) {
        if let Some(master) = self.terminal_master() {
            let _ = pty::set_size(master, size);
        }
    }
}
