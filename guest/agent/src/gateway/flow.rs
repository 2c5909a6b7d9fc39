//! One connection: its state, and its bytes between the socket of the gateway's kernel and the stream to the relay.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::conversation::Conversation;
use super::credit::{Credit, Pool};
use super::owners::Uid;
use super::packet::Key;
use super::pipe::{Pipe, MAX_DATA};
use super::wire::{self, FIRST_WINDOW};
use crate::frames;
use crate::sys::{self, check};

pub enum Purpose {
    /// Passed on.
    Relay,
    /// The resolver, asked by TCP.
    Resolver(Conversation),
    /// Closed as soon as it stands.
    Discard,
}

pub enum State {
    /// `syn`: the packet that is held. Without a stream it waits for a relay until the deadline.
    Asking {
        syn: Vec<u8>,
        deadline_ns: u64,
    },
    Opening {
        deadline_ns: u64,
    },
    Open(OwnedFd),
}

pub struct Stream {
    pub number: u32,
    /// The gateway may send so much.
    send_credit: u32,
    sent: u64,
    credit: Credit,
    /// From the relay, not taken by the socket yet.
    pending: VecDeque<u8>,
    relay_ended: bool,
    /// The socket was told so.
    is_shut: bool,
    has_ended: bool,
}

pub struct Flow {
    pub key: Key,
    pub owner: Uid,
    pub purpose: Purpose,
    pub state: State,
    /// A flow to the relay that opens without one is reset once it is accepted.
    pub stream: Option<Stream>,
    pub readable: bool,
    pub writable: bool,
    pub is_queued: bool,
}

/// A flow after its turn.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    Idle,
    /// It has more to do.
    Again,
    /// Both ways have ended, and all is passed on.
    Over,
    /// The program has reset it.
    Broken,
}

impl Stream {
    pub fn new(number: u32) -> Stream {
        Stream {
            number,
            send_credit: FIRST_WINDOW,
            sent: 0,
            credit: Credit::default(),
            pending: VecDeque::new(),
            relay_ended: false,
            is_shut: false,
            has_ended: false,
        }
    }

    /// False: beyond the window, or behind the end.
    pub fn receive(&mut self, bytes: &[u8]) -> bool {
        let is_allowed = !self.relay_ended && self.credit.receive(bytes.len());
        if is_allowed {
            self.pending.extend(bytes);
        }
        is_allowed
    }

    pub fn widen(&mut self, credit: u32) {
        self.send_credit = self.send_credit.saturating_add(credit);
    }

    pub fn relay_ended(&mut self) {
        self.relay_ended = true;
    }

    /// Both sides have said END.
    pub fn is_over(&self) -> bool {
        self.relay_ended && self.has_ended
    }

    pub fn release(self, pool: &mut Pool) {
        self.credit.release(pool);
    }

    /// To the socket. `Err`: the connection is broken.
    fn deliver(
        &mut self,
        fd: &OwnedFd,
        writable: &mut bool,
        pipe: &mut Pipe,
        pool: &mut Pool,
    ) -> io::Result<()> {
        while *writable && !self.pending.is_empty() {
            let (part, _) = self.pending.as_slices();
            let Some(count) = send(fd, part)? else {
                *writable = false;
                break;
            };
            self.pending.drain(..count);
            let credit = self.credit.take(count, !self.pending.is_empty(), pool);
            if credit > 0 && !self.relay_ended {
                pipe.push(frames::WINDOW, self.number, &wire::window(credit));
            }
        }
        if self.pending.is_empty() && self.relay_ended && !self.is_shut {
            self.is_shut = true;
            // SAFETY: plain call.
            check(unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) })?;
        }
        if self.pending.is_empty() && self.pending.capacity() > FIRST_WINDOW as usize {
            self.pending = VecDeque::new();
        }
        Ok(())
    }

    /// One frame from the socket. `Err`: the connection is broken.
    fn collect(&mut self, fd: &OwnedFd, readable: &mut bool, pipe: &mut Pipe) -> io::Result<()> {
        let limit = MAX_DATA.min(self.send_credit as usize);
        if self.has_ended || !*readable || limit == 0 || !pipe.has_room() {
            return Ok(());
        }
        let read = |space: &mut [u8]| sys::read(fd.as_raw_fd(), space);
        match pipe.push_read(frames::DATA, self.number, limit, read)? {
            None => *readable = false,
            Some(0) => {
                self.has_ended = true;
                pipe.push(frames::END, self.number, &wire::end(self.sent));
            }
            Some(count) => {
                self.sent += count as u64;
                self.send_credit -= count as u32;
            }
        }
        Ok(())
    }
}

impl Flow {
    pub fn new(key: Key, owner: Uid, purpose: Purpose, state: State) -> Flow {
        Flow {
            key,
            owner,
            purpose,
            state,
            stream: None,
            readable: true,
            writable: true,
            is_queued: false,
        }
    }

    pub fn deadline_ns(&self) -> Option<u64> {
        match (&self.state, &self.purpose) {
            (State::Asking { deadline_ns, .. }, _) if self.stream.is_none() => Some(*deadline_ns),
            (State::Opening { deadline_ns }, _) => Some(*deadline_ns),
            (State::Open(_), Purpose::Resolver(talk)) if !talk.is_asking => Some(talk.deadline_ns),
            _ => None,
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// At most one frame each way.
    pub fn take_turn(&mut self, pipe: &mut Pipe, pool: &mut Pool) -> Turn {
        let (State::Open(fd), Some(stream)) = (&self.state, &mut self.stream) else {
            return Turn::Idle;
        };
        let done = stream
            .deliver(fd, &mut self.writable, pipe, pool)
            .and_then(|()| stream.collect(fd, &mut self.readable, pipe));
        if done.is_err() {
            return Turn::Broken;
        }
        if stream.is_shut && stream.has_ended {
            return Turn::Over;
        }
        let has_more = self.readable && stream.send_credit > 0 && !stream.has_ended;
        if has_more {
            Turn::Again
        } else {
            Turn::Idle
        }
    }

    /// For a connection of the resolver: reads what it may read now, and writes the answers. `Err`: it is over.
    pub fn converse(&mut self) -> io::Result<()> {
        let (State::Open(fd), Purpose::Resolver(talk)) = (&self.state, &mut self.purpose) else {
            return Ok(());
        };
        while self.writable && !talk.answer.is_empty() {
            match send(fd, &talk.answer)? {
                Some(count) => drop(talk.answer.drain(..count)),
                None => self.writable = false,
            }
        }
        let mut space = [0; 2_048];
        while self.readable && talk.is_hungry() {
            match sys::read(fd.as_raw_fd(), &mut space)? {
                None => self.readable = false,
                Some(0) => talk.has_ended = true,
                Some(count) => {
                    talk.receive(&space[..count]);
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Flow {
    /// Whether a connection to the resolver has something to read or write at once.
    pub fn may_converse(&self) -> bool {
        let Purpose::Resolver(talk) = &self.purpose else {
            return false;
        };
        self.readable && talk.is_hungry() || self.writable && !talk.answer.is_empty()
    }

    /// Whether the program of a connection to the resolver has ended, and has its answers.
    pub fn has_conversed(&self) -> bool {
        matches!(&self.purpose, Purpose::Resolver(talk)
            if talk.has_ended && !talk.is_asking && talk.answer.is_empty())
    }
}

/// The other end gets RST.
pub fn reset(fd: OwnedFd) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let bytes = std::mem::size_of::<libc::linger>() as u32;
    let pointer = std::ptr::from_ref(&linger).cast();
    // SAFETY: the value is as long as we say.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            pointer,
            bytes,
        );
    }
    drop(fd);
}

/// `Ok(None)`: it would block.
fn send(fd: &OwnedFd, bytes: &[u8]) -> io::Result<Option<usize>> {
    let (pointer, flags) = (bytes.as_ptr().cast(), libc::MSG_NOSIGNAL);
    // SAFETY: `bytes` is as long as we say.
    let count = unsafe { libc::send(fd.as_raw_fd(), pointer, bytes.len(), flags) };
    sys::transferred(count)
}
