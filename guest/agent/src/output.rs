//! One output of a command: the read end of a pipe, or the master of its terminal.
//!
//! The write end of a pipe stays open here too until the leader has ended. Otherwise the leader's exit would cause an event
//! for each pipe it closes. After its end, a read shows whether another process holds the pipe: a descendant, or a command
//! that has inherited all descriptors and not executed its program yet.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::effects::{Effect, Effects};
use crate::epoll::{Epoll, Source};
use crate::sys;

pub struct Output {
    fd: Option<OwnedFd>,
    /// The write end of a pipe, until the leader has ended.
    writer: Option<OwnedFd>,
    channel: u8,
    /// There may be something to read.
    is_readable: bool,
    /// After the drain: bytes that were in it already and still belong to the command.
    remaining: Option<usize>,
}

impl Output {
    pub fn pipe((reader, writer): (OwnedFd, OwnedFd), channel: u8) -> Output {
        Output::new(reader, Some(writer), channel)
    }

    pub fn terminal(master: OwnedFd, channel: u8) -> Output {
        Output::new(master, None, channel)
    }

    fn new(fd: OwnedFd, writer: Option<OwnedFd>, channel: u8) -> Output {
        Output {
            fd: Some(fd),
            writer,
            channel,
            is_readable: false,
            remaining: None,
        }
    }

    pub fn fd(&self) -> Option<RawFd> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd)
    }

    pub fn channel(&self) -> u8 {
        self.channel
    }

    pub fn watch(&self, epoll: &Epoll, source: Source) {
        if let Some(fd) = self.fd() {
            // It fails without memory at worst; then the output is read when the leader ends.
            let _ = epoll.watch(fd, source);
        }
    }

    pub fn note_readable(&mut self, is_readable: bool) {
        self.is_readable |= is_readable;
    }

    /// Nothing more will come that belongs to the command.
    pub fn is_over(&self) -> bool {
        self.fd.is_none() || self.remaining == Some(0)
    }

    pub fn has_more(&self) -> bool {
        self.is_readable && !self.is_over()
    }

    /// Reads once. 0: nothing there now, or never again. `is_terminal_held` is true for a terminal whose leader lives:
    /// the leader may have closed it on its side, and would get SIGHUP if we closed the master.
    pub fn read(
        &mut self,
        space: &mut [u8],
        is_terminal_held: bool,
        effects: &mut Effects,
    ) -> usize {
        let Some(fd) = self.fd().filter(|_| self.is_readable) else {
            return 0;
        };
        match sys::read(fd, space) {
            Ok(Some(count @ 1..)) => {
                self.remaining = self.remaining.map(|bytes| bytes.saturating_sub(count));
                return count;
            }
            Ok(None) => self.is_readable = false,
            Err(_) if is_terminal_held => self.is_readable = false,
            // A terminal without a user left answers an error instead of an end of file.
            Ok(Some(_)) | Err(_) => effects.extend(self.fd.take().map(Effect::Close)),
        }
        0
    }

    /// The leader has ended: from now on an end of file can be seen.
    pub fn release_writer(&mut self) {
        self.writer = None;
        self.is_readable = true;
    }

    /// Another process holds it open: only the bytes in it now still belong to the command.
    pub fn end_drain(&mut self) {
        if let Some(fd) = self.fd() {
            let mut waiting: libc::c_int = 0;
            // SAFETY: `waiting` is what the request fills.
            unsafe { libc::ioctl(fd, libc::FIONREAD, &mut waiting) };
            self.remaining = Some(waiting.max(0) as usize);
            self.is_readable = true;
        }
    }

    pub fn into_fd(self) -> Option<OwnedFd> {
        self.fd
    }
}
