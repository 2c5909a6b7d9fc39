//! The byte pipe to the host: a virtio-serial port in a VM, a UNIX socket in tests.
//!
//! A virtio port stays open whether or not anybody is at its other end. Without a host it reads as end of file and
//! polls as hung up for ever; edge-triggered, that is one wake-up, and the driver wakes us again when a host connects.
//! A slow timer looks too while nobody is there, in case an edge got lost. A socket, by contrast, is gone when it ends.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::outbox::Outbox;
use crate::sys;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Virtio,
    Socket,
}

pub struct Port {
    kind: Kind,
    fd: Option<OwnedFd>,
    readable: bool,
    writable: bool,
    has_host: bool,
    /// There may be another host, which throws away what it reads until it has said HELLO: it is told nothing before.
    is_silent: bool,
    /// It has taken bytes since it said HELLO. A port may read as end of file for a moment after its host has come.
    is_heard: bool,
    /// Epoll tells when there is room.
    awaits_room: bool,
}

impl Port {
    pub fn virtio(fd: OwnedFd) -> Port {
        Port::with(Kind::Virtio, Some(fd))
    }

    /// Until someone connects there is nothing to read.
    pub fn socket() -> Port {
        Port::with(Kind::Socket, None)
    }

    fn with(kind: Kind, fd: Option<OwnedFd>) -> Port {
        Port {
            kind,
            fd,
            readable: true,
            writable: true,
            has_host: true,
            is_silent: false,
            is_heard: false,
            awaits_room: false,
        }
    }

    pub fn replace(&mut self, connection: OwnedFd) {
        *self = Port::with(Kind::Socket, Some(connection));
        self.is_silent = true;
    }

    /// The host has said HELLO.
    pub fn speak(&mut self) {
        self.is_silent = false;
    }

    pub fn is_silent(&self) -> bool {
        self.is_silent
    }

    pub fn fd(&self) -> Option<RawFd> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd)
    }

    pub fn ready(&mut self, readable: bool, writable: bool) {
        self.readable |= readable;
        self.writable |= writable;
    }

    /// There may be more to read without waiting.
    pub fn is_readable(&self) -> bool {
        self.readable && self.fd.is_some()
    }

    /// False: look again by the clock.
    pub fn has_host(&self) -> bool {
        self.has_host
    }

    /// Bytes read into `space`; 0 when there are none now.
    pub fn read(&mut self, space: &mut [u8]) -> usize {
        let Some(fd) = self.fd().filter(|_| self.readable) else {
            return 0;
        };
        match sys::read(fd, space) {
            Ok(Some(0)) | Err(_) => self.host_gone(),
            Ok(Some(count)) => {
                self.has_host = true;
                return count;
            }
            Ok(None) => self.readable = false,
        }
        0
    }

    /// Writes what the pipe takes now.
    pub fn flush(&mut self, outbox: &mut Outbox) {
        while let Some(fd) = self
            .fd()
            .filter(|_| self.writable && !self.is_silent && !outbox.is_empty())
        {
            match sys::write(fd, outbox.bytes()) {
                Ok(Some(count)) => {
                    self.is_heard = true;
                    outbox.written(count);
                }
                Ok(None) => self.writable = false,
                Err(_) => self.host_gone(),
            }
        }
    }

    /// To be asked for after each flush: whether epoll is to tell of room from now on, when that is another answer than
    /// before.
    pub fn awaits_room_anew(&mut self, outbox: &Outbox) -> Option<bool> {
        let awaits_room = !outbox.is_empty() && !self.writable;
        let is_new = std::mem::replace(&mut self.awaits_room, awaits_room) != awaits_room;
        is_new.then_some(awaits_room)
    }

    /// After a halting notice: waits at most `timeout_ms` in all for the pipe to take the rest.
    pub fn flush_within(&mut self, outbox: &mut Outbox, timeout_ms: u64) {
        let deadline = sys::monotonic_ns() + timeout_ms * 1_000_000;
        self.writable = true;
        self.flush(outbox);
        while !outbox.is_empty()
            && self.fd.is_some()
            && !self.is_silent
            && sys::monotonic_ns() < deadline
        {
            sys::sleep_ms(2);
            self.writable = true;
            self.flush(outbox);
        }
    }

    fn host_gone(&mut self) {
        self.readable = false;
        self.is_silent |= std::mem::take(&mut self.is_heard);
        match self.kind {
            Kind::Virtio => self.has_host = false,
            Kind::Socket => self.fd = None,
        }
        self.writable = self.kind == Kind::Virtio && self.writable;
    }
}
