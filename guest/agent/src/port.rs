//! The byte pipe to the host: a virtio-serial port in a VM, a UNIX socket in tests.
//!
//! A virtio port stays open without a host. It then reads as end of file and polls as hung up; edge-triggered, that is
//! one event, and the driver sends another when a host connects. In case that event is lost, the loop also reads the port
//! every second while it has no host. A socket, by contrast, is closed when it reads as end of file.

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
    /// The host may have been replaced. A new one discards everything before its HELLO, so nothing is written until then.
    awaits_hello: bool,
    /// The current host has taken bytes. Without this an end of file does not mean that it left: a port may still read as
    /// end of file just after its host has come.
    has_written: bool,
    /// Epoll reports when there is room.
    awaits_room: bool,
}

impl Port {
    pub fn virtio(fd: OwnedFd) -> Port {
        Port::with(Kind::Virtio, Some(fd))
    }

    /// Without a connection yet.
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
            awaits_hello: false,
            has_written: false,
            awaits_room: false,
        }
    }

    pub fn replace(&mut self, connection: OwnedFd) {
        *self = Port::with(Kind::Socket, Some(connection));
        self.awaits_hello = true;
    }

    pub fn hello_received(&mut self) {
        self.awaits_hello = false;
    }

    pub fn awaits_hello(&self) -> bool {
        self.awaits_hello
    }

    pub fn fd(&self) -> Option<RawFd> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd)
    }

    pub fn ready(&mut self, readable: bool, writable: bool) {
        self.readable |= readable;
        self.writable |= writable;
    }

    /// A read may return bytes at once.
    pub fn is_readable(&self) -> bool {
        self.readable && self.fd.is_some()
    }

    /// False: the port has to be read again after some time.
    pub fn has_host(&self) -> bool {
        self.has_host
    }

    /// Bytes read into `space`; 0 when there are none now.
    pub fn read(&mut self, space: &mut [u8]) -> usize {
        let Some(fd) = self.fd().filter(|_| self.readable) else {
            return 0;
        };
        match sys::read(fd, space) {
            Ok(Some(0)) | Err(_) => self.host_left(),
            Ok(Some(count)) => {
                self.has_host = true;
                return count;
            }
            Ok(None) => self.readable = false,
        }
        0
    }

    /// Writes as much as the pipe takes now.
    pub fn flush(&mut self, outbox: &mut Outbox) {
        while let Some(fd) = self
            .fd()
            .filter(|_| self.writable && !self.awaits_hello && !outbox.is_empty())
        {
            match sys::write(fd, outbox.bytes()) {
                Ok(Some(count)) => {
                    self.has_written = true;
                    outbox.written(count);
                }
                Ok(None) => self.writable = false,
                Err(_) => self.host_left(),
            }
        }
    }

    /// To be called after each flush. Whether epoll has to report room from now on, if that has changed.
    pub fn awaits_room_changed(&mut self, outbox: &Outbox) -> Option<bool> {
        let awaits_room = !outbox.is_empty() && !self.writable;
        let is_changed = std::mem::replace(&mut self.awaits_room, awaits_room) != awaits_room;
        is_changed.then_some(awaits_room)
    }

    /// Waits at most `timeout_ms` for the pipe to take everything.
    pub fn flush_within(&mut self, outbox: &mut Outbox, timeout_ms: u64) {
        let deadline = sys::monotonic_ns() + timeout_ms * 1_000_000;
        self.writable = true;
        self.flush(outbox);
        while !outbox.is_empty()
            && self.fd.is_some()
            && !self.awaits_hello
            && sys::monotonic_ns() < deadline
        {
            sys::sleep_ms(2);
            self.writable = true;
            self.flush(outbox);
        }
    }

    fn host_left(&mut self) {
        self.readable = false;
        self.awaits_hello |= std::mem::take(&mut self.has_written);
        match self.kind {
            Kind::Virtio => self.has_host = false,
            Kind::Socket => self.fd = None,
        }
        self.writable = self.kind == Kind::Virtio && self.writable;
    }
}
