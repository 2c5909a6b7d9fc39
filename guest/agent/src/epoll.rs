//! The one place where the loop waits. Descriptors are watched edge-triggered: an event means that something changed, and
//! the owner of the descriptor keeps a flag while it may still read or write. So the loop does not spin when the virtio port
//! hangs up or a reader is slow.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sys::{check, owned};

/// The descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Port,
    Listener,
    Signals,
    Workers,
    /// An output of a session: its key, and which output.
    Session(u32, u8),
    /// A pipe of a command that is over, which another process may still write to.
    Orphan(u32),
    /// The descriptor of the job of this stream.
    Job(u32),
    /// The connection of the DIAL of this stream.
    Dial(u32),
}

impl Source {
    fn token(self) -> u64 {
        let (kind, key, index) = match self {
            Source::Port => (1, 0, 0),
            Source::Listener => (2, 0, 0),
            Source::Signals => (3, 0, 0),
            Source::Workers => (4, 0, 0),
            Source::Session(key, index) => (5, key, index),
            Source::Orphan(key) => (6, key, 0),
            Source::Job(stream) => (7, stream, 0),
            Source::Dial(stream) => (8, stream, 0),
        };
        kind << 40 | u64::from(index) << 32 | u64::from(key)
    }

    fn from_token(token: u64) -> Option<Source> {
        let key = token as u32;
        let index = (token >> 32) as u8;
        match token >> 40 {
            1 => Some(Source::Port),
            2 => Some(Source::Listener),
            3 => Some(Source::Signals),
            4 => Some(Source::Workers),
            5 => Some(Source::Session(key, index)),
            6 => Some(Source::Orphan(key)),
            7 => Some(Source::Job(key)),
            8 => Some(Source::Dial(key)),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
pub struct Readiness {
    pub source: Source,
    pub readable: bool,
    pub writable: bool,
}

const BATCH: usize = 64;
const INPUT: i32 = libc::EPOLLIN | libc::EPOLLET;
const BOTH: i32 = INPUT | libc::EPOLLOUT;

pub struct Epoll {
    fd: OwnedFd,
    events: [libc::epoll_event; BATCH],
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: plain call.
        let fd = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        Ok(Epoll { fd, events })
    }

    /// Reports input and room for output, until the descriptor is closed.
    pub fn watch(&self, fd: RawFd, source: Source) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, BOTH, source)
    }

    /// Reports input only: a virtio port would report room after every single write.
    pub fn watch_input(&self, fd: RawFd, source: Source) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, INPUT, source)
    }

    /// Whether room for output is reported too; if there is room already, at once.
    pub fn watch_output_too(&self, fd: RawFd, source: Source, is_wanted: bool) -> io::Result<()> {
        let events = if is_wanted { BOTH } else { INPUT };
        self.control(libc::EPOLL_CTL_MOD, fd, events, source)
    }

    /// From now on level-triggered: reports input as long as there is any.
    pub fn rewatch_level(&self, fd: RawFd, source: Source) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN, source)
    }

    /// Reports input once, at once if there is some.
    pub fn watch_once(&self, fd: RawFd, source: Source) -> io::Result<()> {
        const ONCE: i32 = libc::EPOLLIN | libc::EPOLLONESHOT;
        match self.control(libc::EPOLL_CTL_MOD, fd, ONCE, source) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.control(libc::EPOLL_CTL_ADD, fd, ONCE, source)
            }
            changed => changed,
        }
    }

    fn control(&self, operation: i32, fd: RawFd, events: i32, source: Source) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: source.token(),
        };
        // SAFETY: `event` outlives the call.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &mut event) }).map(drop)
    }

    /// Waits for up to `timeout_ms` (-1: for ever). An interrupted wait is an empty one.
    pub fn wait(&mut self, timeout_ms: i32) -> impl Iterator<Item = Readiness> + '_ {
        let (fd, room) = (self.fd.as_raw_fd(), self.events.len() as i32);
        // SAFETY: `events` has that much room.
        let count = unsafe { libc::epoll_wait(fd, self.events.as_mut_ptr(), room, timeout_ms) };
        let ready = &self.events[..count.max(0) as usize];
        ready.iter().filter_map(|event| {
            let (events, token) = (event.events as i32, event.u64);
            Some(Readiness {
                source: Source::from_token(token)?,
                readable: events & (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR) != 0,
                writable: events & (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) != 0,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_as_their_sources() {
        for source in [
            Source::Port,
            Source::Workers,
            Source::Session(u32::MAX, 255),
            Source::Session(0, 1),
            Source::Orphan(7),
            Source::Job(8),
            Source::Dial(9),
        ] {
            assert_eq!(Source::from_token(source.token()), Some(source));
        }
        assert_eq!(Source::from_token(0), None);
    }
}
