//! Outputs of commands that are over, still open in some process that outlived them. Closing them would kill that
//! process at its next write (a server started with `&` in a foreground command, say). So they are read, and what comes
//! is thrown away.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::epoll::{Epoll, Source};
use crate::sys;

/// Beyond this many the oldest is closed.
const MAX_ORPHANS: usize = 512;

#[derive(Default)]
pub struct Orphans {
    outputs: BTreeMap<u32, OwnedFd>,
    last: u32,
}

impl Orphans {
    pub fn adopt(&mut self, output: OwnedFd, epoll: &Epoll) {
        if self.outputs.len() >= MAX_ORPHANS {
            self.outputs.pop_first();
        }
        self.last = self.last.wrapping_add(1);
        let source = Source::Orphan(self.last);
        if epoll.rewatch_level(output.as_raw_fd(), source).is_ok() {
            self.outputs.insert(self.last, output);
        }
    }

    pub fn discard(&mut self, key: u32, scratch: &mut [u8]) {
        let Some(output) = self.outputs.get(&key) else {
            return;
        };
        if matches!(sys::read(output.as_raw_fd(), scratch), Ok(Some(0)) | Err(_)) {
            self.outputs.remove(&key);
        }
    }
}
