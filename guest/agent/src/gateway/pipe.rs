//! The port to the relay: frames that come, and frames that wait to be written.
//!
//! A write to a virtio port takes up to 32 KiB and all of it, or nothing. Each write is of whole frames. So the relay never has half
//! a frame of a gateway that was killed, and the next gateway can speak at once.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::wire;
use crate::frames::{self, Header, Parser, HEADER_BYTES};
use crate::sys;

const WRITE_BYTES: usize = 32 * 1024;
/// The most that a DATA frame of the gateway carries.
pub const MAX_DATA: usize = WRITE_BYTES - HEADER_BYTES;
/// While more than this waits, no connection is read.
const FULL_BYTES: usize = 256 * 1024;

pub struct Pipe {
    fd: OwnedFd,
    outbox: Vec<u8>,
    /// Where the first byte is that is not written.
    start: usize,
    /// Where the last frame ends that was begun.
    boundary: usize,
    readable: bool,
    writable: bool,
    /// The epoch of the last HELLO; `None` without a relay.
    epoch: Option<u16>,
}

impl Pipe {
    pub fn new(fd: OwnedFd) -> Pipe {
        Pipe {
            fd,
            outbox: Vec::new(),
            start: 0,
            boundary: 0,
            readable: true,
            writable: true,
            epoch: None,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn epoch(&self) -> Option<u16> {
        self.epoch
    }

    pub fn ready(&mut self, readable: bool, writable: bool) {
        self.readable |= readable;
        self.writable |= writable;
    }

    pub fn is_readable(&self) -> bool {
        self.readable
    }

    pub fn has_room(&self) -> bool {
        self.outbox.len() - self.start < FULL_BYTES
    }

    /// `None`: the relay has left. Otherwise whether bytes came.
    pub fn read(&mut self, parser: &mut Parser) -> Option<bool> {
        match sys::read(self.fd(), parser.space()) {
            Ok(Some(0)) | Err(_) => {
                self.readable = false;
                parser.forget_half_data();
                None
            }
            Ok(Some(count)) => {
                parser.filled(count);
                Some(true)
            }
            Ok(None) => {
                self.readable = false;
                Some(false)
            }
        }
    }

    /// The relay that comes drops all bytes before its WELCOME.
    pub fn begin(&mut self, epoch: u16) {
        self.forget();
        self.epoch = Some(epoch);
    }

    pub fn end(&mut self) {
        self.forget();
        self.epoch = None;
    }

    fn forget(&mut self) {
        // Half a frame is only written to a socket, of tests.
        self.outbox.truncate(self.boundary);
    }

    pub fn push(&mut self, kind: u8, stream: u32, payload: &[u8]) {
        if let Some(epoch) = self.epoch {
            self.compact();
            let header = wire::header(kind, epoch, stream, payload.len());
            self.outbox.extend_from_slice(&header.encode());
            self.outbox.extend_from_slice(payload);
        }
    }

    /// A DATA frame of at most `limit` bytes, which `read` puts into place. Nothing is sent where it reads none.
    pub fn push_read<E>(
        &mut self,
        kind: u8,
        stream: u32,
        limit: usize,
        read: impl FnOnce(&mut [u8]) -> Result<Option<usize>, E>,
    ) -> Result<Option<usize>, E> {
        self.compact();
        let at = self.outbox.len();
        self.outbox
            .resize(at + HEADER_BYTES + limit.min(MAX_DATA), 0);
        let result = read(&mut self.outbox[at + HEADER_BYTES..]);
        let count = *result.as_ref().unwrap_or(&None);
        match (count, self.epoch) {
            (Some(count), Some(epoch)) if count > 0 => {
                let header = wire::header(kind, epoch, stream, count);
                self.outbox[at..at + HEADER_BYTES].copy_from_slice(&header.encode());
                self.outbox.truncate(at + HEADER_BYTES + count);
            }
            _ => self.outbox.truncate(at),
        }
        result
    }

    fn compact(&mut self) {
        if self.start == self.outbox.len() {
            self.outbox.clear();
        } else if self.start >= FULL_BYTES {
            self.outbox.drain(..self.start);
        } else {
            return;
        }
        self.boundary -= self.start;
        self.start = 0;
    }

    /// Writes as much as the port takes. Whether epoll has to report room.
    pub fn flush(&mut self) -> bool {
        while self.writable && self.start < self.outbox.len() {
            let end = self.chunk_end();
            match sys::write(self.fd(), &self.outbox[self.start..end]) {
                Ok(Some(count)) => {
                    self.start += count;
                    self.boundary = end;
                }
                Ok(None) | Err(_) => self.writable = false,
            }
        }
        self.compact();
        self.start < self.outbox.len()
    }

    /// Where the last frame ends that fits into a write.
    fn chunk_end(&self) -> usize {
        let mut end = self.boundary.max(self.start);
        while let Some(header) = self.outbox.get(end..).and_then(<[u8]>::first_chunk) {
            let next = end + HEADER_BYTES + Header::decode(header).length as usize;
            if next - self.start > WRITE_BYTES {
                break;
            }
            end = next;
        }
        end
    }

    /// Asks a relay that is in step with an earlier gateway to say HELLO anew.
    pub fn announce(&mut self) {
        let welcome = wire::welcome(&[0; wire::NONCE_BYTES]);
        let header = wire::header(frames::WELCOME, 0, 0, welcome.len());
        let frame = [&header.encode()[..], &welcome].concat();
        let _ = sys::write(self.fd(), &frame);
    }
}

#[cfg(test)]
#[path = "pipe/tests.rs"]
mod tests;
