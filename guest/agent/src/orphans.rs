//! Pipes of commands that are over, still open in a process that outlived them, such as a server started with `&` in a
//! foreground command. Closing a pipe would kill that process at its next write, so the pipes are read and the bytes
//! discarded.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::epoll::{Epoll, Source};
use crate::sys;

/// Beyond this many the oldest is closed.
const MAX_ORPHANS: usize = 512;
const READ_BYTES: usize = 65_536;

#[derive(Default)]
pub struct Orphans {
    outputs: BTreeMap<u32, OwnedFd>,
    last: u32,
    /// Allocated with the first orphan.
    scratch: Vec<u8>,
}

impl Orphans {
    pub fn adopt(&mut self, output: OwnedFd, epoll: &Epoll) {
        if self.outputs.len() >= MAX_ORPHANS {
            self.outputs.pop_first();
        }
        self.last = self.last.wrapping_add(1);
        let source = Source::Orphan(self.last);
        if epoll.rewatch_level(output.as_raw_fd(), source).is_ok() {
            self.scratch.resize(READ_BYTES, 0);
            self.outputs.insert(self.last, output);
        }
    }

    pub fn discard(&mut self, key: u32) {
        let Some(output) = self.outputs.get(&key) else {
            return;
        };
        let result = sys::read(output.as_raw_fd(), &mut self.scratch);
        if matches!(result, Ok(Some(0)) | Err(_)) {
            self.outputs.remove(&key);
        }
    }
}
