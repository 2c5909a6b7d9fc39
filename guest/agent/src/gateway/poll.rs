//! The one place where the gateway waits.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::flows::Slot;
use crate::sys::{check, owned};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Port,
    /// The interface of the guest.
    Outer,
    /// The interface of the gateway's own network namespace.
    Inner,
    Listener,
    Flow(Slot),
}

/// Every number above is that of a flow.
const FLOW: u64 = 1 << 63;
const GENERATIONS: u64 = FLOW - 1;

impl Source {
    fn token(self) -> u64 {
        match self {
            Source::Port => 1,
            Source::Outer => 2,
            Source::Inner => 3,
            Source::Listener => 4,
            Source::Flow(Slot { index, generation }) => {
                FLOW | (u64::from(generation) << 32 & GENERATIONS) | u64::from(index)
            }
        }
    }

    fn from_token(token: u64) -> Option<Source> {
        match token {
            1 => Some(Source::Port),
            2 => Some(Source::Outer),
            3 => Some(Source::Inner),
            4 => Some(Source::Listener),
            FLOW.. => Some(Source::Flow(Slot {
                index: token as u32,
                generation: ((token & GENERATIONS) >> 32) as u32,
            })),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
pub struct Readiness {
    pub source: Source,
    pub readable: bool,
    pub writable: bool,
    /// A connection has had RST, or an interface is gone.
    pub is_broken: bool,
}

const BATCH: usize = 64;
const LEVEL: i32 = libc::EPOLLIN;
const INPUT: i32 = libc::EPOLLIN | libc::EPOLLET;
const BOTH: i32 = INPUT | libc::EPOLLOUT | libc::EPOLLRDHUP;

pub struct Poll {
    fd: OwnedFd,
    events: [libc::epoll_event; BATCH],
}

impl Poll {
    pub fn new() -> io::Result<Poll> {
        // SAFETY: plain call.
        let fd = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        Ok(Poll { fd, events })
    }

    /// Reports input as long as there is any.
    pub fn watch_level(&self, fd: RawFd, source: Source) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, LEVEL, source)
    }

    /// Reports changes of both ways.
    pub fn watch_both(&self, fd: RawFd, source: Source) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, BOTH, source)
    }

    /// Reports changes of input.
    pub fn watch_input(&self, fd: RawFd, source: Source) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, INPUT, source)
    }

    /// Whether room is reported too; if there is room already, at once.
    pub fn watch_room(&self, fd: RawFd, source: Source, is_wanted: bool) -> io::Result<()> {
        let events = if is_wanted { BOTH } else { INPUT };
        self.control(libc::EPOLL_CTL_MOD, fd, events, source)
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
            let ended = libc::EPOLLHUP | libc::EPOLLERR;
            Some(Readiness {
                source: Source::from_token(token)?,
                readable: events & (libc::EPOLLIN | libc::EPOLLRDHUP | ended) != 0,
                writable: events & (libc::EPOLLOUT | ended) != 0,
                is_broken: events & libc::EPOLLERR != 0,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_as_their_sources() {
        let flow = |index, generation| Source::Flow(Slot { index, generation });
        for source in [
            Source::Port,
            Source::Outer,
            Source::Inner,
            Source::Listener,
            flow(7, 9),
        ] {
            assert_eq!(Source::from_token(source.token()), Some(source));
        }
        assert_eq!(Source::from_token(0), None);
    }
}
