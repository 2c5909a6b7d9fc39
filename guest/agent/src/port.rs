//! The byte pipe to the host: a virtio-serial port in a VM, a UNIX socket in tests.
//!
//! A virtio port stays open whether or not anybody is at its other end. Without a host it reads as end of file and
//! polls as hung up for ever; edge-triggered, that is one wake-up, and the driver wakes us again when a host connects.
//! A slow timer looks too while nobody is there, in case an edge got lost. A socket, by contrast, is gone when it ends.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::frames::{self, Header, HEADER_BYTES};
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

/// Frames that the pipe has not taken whole yet.
#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// Where the first frame begins, and behind that the first byte that the pipe has not taken.
    frame: usize,
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
        if self.frame > 0 && self.frame >= self.bytes.len() / 2 {
            self.bytes.drain(..self.frame);
            self.start -= self.frame;
            self.frame = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.frame = 0;
        self.start = 0;
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Of each stream, what no host can have got.
    pub fn data_bytes(&self) -> BTreeMap<u32, u64> {
        let mut bytes = BTreeMap::new();
        let mut at = self.frame;
        while let Some(header) = self.header(at) {
            if header.kind == frames::DATA {
                *bytes.entry(header.stream).or_default() += u64::from(header.length);
            }
            at += HEADER_BYTES + header.length as usize;
        }
        bytes
    }

    fn header(&self, at: usize) -> Option<Header> {
        self.bytes.get(at..)?.first_chunk().map(Header::decode)
    }

    fn written(&mut self, count: usize) {
        self.start += count;
        while let Some(header) = self.header(self.frame) {
            let end = self.frame + HEADER_BYTES + header.length as usize;
            if end > self.start {
                return;
            }
            self.frame = end;
        }
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(outbox: &mut Outbox, stream: u32, payload: &[u8]) {
        let header = Header {
            kind: frames::DATA,
            flags: 0,
            epoch: 1,
            stream,
            length: payload.len() as u32,
        };
        outbox.push(&header.encode());
        outbox.push(payload);
    }

    #[test]
    fn an_outbox_keeps_order_and_forgets_what_is_written() {
        let mut outbox = Outbox::default();
        push(&mut outbox, 1, b"abcdef");
        push(&mut outbox, 2, b"");
        let waiting = |outbox: &Outbox| outbox.data_bytes().into_keys().collect::<Vec<_>>();
        assert_eq!(waiting(&outbox), [1, 2]);
        outbox.written(HEADER_BYTES + 5);
        assert_eq!(waiting(&outbox), [1, 2], "half a frame is no frame");
        outbox.written(1);
        push(&mut outbox, 3, b"gh");
        assert_eq!(waiting(&outbox), [2, 3]);
        assert_eq!(outbox.len(), 2 * HEADER_BYTES + 2);
        outbox.written(HEADER_BYTES);
        push(&mut outbox, 4, &[b'x'; 100]);
        assert_eq!(waiting(&outbox), [3, 4]);
        assert_eq!(&outbox.bytes()[HEADER_BYTES..HEADER_BYTES + 2], b"gh");
        outbox.written(outbox.len());
        assert!(outbox.is_empty() && waiting(&outbox).is_empty());
    }
}
