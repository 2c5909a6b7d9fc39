//! The kernel's inotify: watches of directories, and their events.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sys::{self, check};

/// The descriptor of a watched directory.
pub type Wd = libc::c_int;

/// For a directory whose changes are told.
pub const CONTENT: u32 = libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_MODIFY
    | libc::IN_ATTRIB
    | libc::IN_DELETE_SELF
    | libc::IN_MOVE_SELF
    | libc::IN_EXCL_UNLINK
    | libc::IN_ONLYDIR;

/// For a directory above the watched one; a directory that is watched already keeps its watch.
pub const ABOVE: u32 = libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_DELETE_SELF
    | libc::IN_MOVE_SELF
    | libc::IN_ONLYDIR
    | libc::IN_MASK_CREATE;

/// A change of the names in a directory, during which the kernel holds its lock.
pub const NAMES: u32 = libc::IN_CREATE | libc::IN_DELETE | libc::IN_MOVED_FROM | libc::IN_MOVED_TO;

/// Room for some hundred events.
const READ_BYTES: usize = 16 * 1024;
const HEAD_BYTES: usize = std::mem::size_of::<libc::inotify_event>();

pub struct Event {
    pub wd: Wd,
    pub mask: u32,
    pub cookie: u32,
    /// Empty: the directory itself.
    pub name: Vec<u8>,
}

impl Event {
    pub fn is(&self, mask: u32) -> bool {
        self.mask & mask != 0
    }

    pub fn is_dir(&self) -> bool {
        self.is(libc::IN_ISDIR)
    }
}

pub struct Inotify {
    fd: OwnedFd,
}

impl Inotify {
    pub fn new() -> io::Result<Inotify> {
        // SAFETY: plain call.
        let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
        Ok(Inotify {
            fd: sys::owned(fd)?,
        })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// By its descriptor: a path might lead elsewhere by now.
    pub fn add(&self, dir: &OwnedFd, mask: u32) -> io::Result<Wd> {
        let path = sys::c_string(format!("/proc/self/fd/{}", dir.as_raw_fd()).as_bytes())?;
        // SAFETY: `path` ends in NUL.
        check(unsafe { libc::inotify_add_watch(self.fd.as_raw_fd(), path.as_ptr(), mask) })
    }

    /// The kernel has removed that of a directory which is gone.
    pub fn remove(&self, wd: Wd) {
        // SAFETY: plain call.
        unsafe { libc::inotify_rm_watch(self.fd.as_raw_fd(), wd) };
    }

    /// False: there are no events.
    pub fn read(&self, events: &mut VecDeque<Event>) -> io::Result<bool> {
        let mut buffer = vec![0u8; READ_BYTES];
        let Some(count) = sys::read(self.fd.as_raw_fd(), &mut buffer)? else {
            return Ok(false);
        };
        parse(&buffer[..count], events);
        Ok(count > 0)
    }
}

fn parse(mut bytes: &[u8], events: &mut VecDeque<Event>) {
    let field = |bytes: &[u8], at: usize| {
        let word = bytes[at..].first_chunk().copied().unwrap_or_default();
        u32::from_ne_bytes(word)
    };
    while bytes.len() >= HEAD_BYTES {
        let (head, rest) = bytes.split_at(HEAD_BYTES);
        let (name, rest) = rest.split_at(rest.len().min(field(head, 12) as usize));
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        events.push_back(Event {
            wd: field(head, 0) as Wd,
            mask: field(head, 4),
            cookie: field(head, 8),
            name: name.to_vec(),
        });
        bytes = rest;
    }
}
