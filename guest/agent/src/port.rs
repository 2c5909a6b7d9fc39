//! The byte pipe to the host: a virtio-serial port in a VM, a UNIX socket in tests.
//!
//! A virtio port stays open whether or not anybody is at its other end. Without a host it reads as end of file and
//! polls as hung up for ever; edge-triggered, that is one wake-up, and the driver wakes us again when a host connects.
//! A slow timer looks too while nobody is there, in case an edge got lost. A socket, by contrast, is gone when it ends.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

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
            awaits_room: false,
        }
    }

    pub fn replace(&mut self, connection: OwnedFd) {
        *self = Port::with(Kind::Socket, Some(connection));
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
        while let Some(fd) = self.fd().filter(|_| self.writable && !outbox.is_empty()) {
            match sys::write(fd, outbox.bytes()) {
                Ok(Some(count)) => outbox.written(count),
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
        while !outbox.is_empty() && self.fd.is_some() && sys::monotonic_ns() < deadline {
            sys::sleep_ms(2);
            self.writable = true;
            self.flush(outbox);
        }
    }

    fn host_gone(&mut self) {
        self.readable = false;
        match self.kind {
            Kind::Virtio => self.has_host = false,
            Kind::Socket => self.fd = None,
        }
        self.writable = self.kind == Kind::Virtio && self.writable;
    }
}

/// Framed bytes that the pipe has not taken yet.
#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    start: usize,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start >= self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn written(&mut self, count: usize) {
        self.start += count;
        if self.start >= self.bytes.len() {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_keeps_order_and_forgets_what_is_written() {
        let mut outbox = Outbox::default();
        outbox.push(b"abcdef");
        outbox.written(4);
        outbox.push(b"gh");
        assert_eq!(outbox.bytes(), b"efgh");
        assert_eq!(outbox.len(), 4);
        outbox.written(4);
        assert!(outbox.is_empty());
    }
}
