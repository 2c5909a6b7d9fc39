//! What a session with a terminal has besides: the input its program has not read, and the output no client received.
//!
//! ```text
//!   program ◄──► slave │ master ──► every client            (without one: the ring keeps the last 256 KiB)
//!                             ◄── input, no faster than the program reads
//! ```

use std::collections::VecDeque;
use std::os::fd::RawFd;

use crate::protocol::{Code, Failure};
use crate::streams::Streams;
use crate::sys;

/// Output kept for the next client.
const RING_BYTES: usize = 256 * 1024;
/// Input that the program has not read. The window bounds the input of one client, this the input of all clients that
/// came and left.
const MAX_INPUT_BYTES: usize = 4 * 1024 * 1024;

#[derive(Default)]
pub struct Terminal {
    missed: Ring,
    /// The stream it came from, and the bytes.
    input: VecDeque<(u32, Vec<u8>)>,
    input_bytes: usize,
    /// Bytes of the first input that are written already.
    written: usize,
}

impl Terminal {
    /// Output that no client received.
    pub fn miss(&mut self, bytes: &[u8]) {
        self.missed.push(bytes);
    }

    pub fn take_missed(&mut self) -> Vec<u8> {
        self.missed.take()
    }

    pub fn add_input(&mut self, stream: u32, bytes: &[u8]) -> Result<(), Failure> {
        if self.input_bytes + bytes.len() > MAX_INPUT_BYTES {
            let message = "the terminal's program does not read what is typed";
            return Err(Failure::new(Code::TooMany, message));
        }
        self.input_bytes += bytes.len();
        self.input.push_back((stream, bytes.to_vec()));
        Ok(())
    }

    /// Writes as much input as the master takes. Without a master, or after an error, the input is dropped.
    pub fn write_input(&mut self, master: Option<RawFd>, streams: &mut Streams) {
        while let Some((stream, bytes)) = self.input.front() {
            let rest = &bytes[self.written..];
            let written = match master.map(|fd| sys::write(fd, rest)) {
                Some(Ok(None)) => return,
                Some(Ok(Some(count))) => count,
                Some(Err(_)) | None => rest.len(),
            };
            let is_done = written == rest.len();
            streams.consumed(*stream, written);
            self.written += written;
            self.input_bytes -= written;
            if is_done {
                self.input.pop_front();
                self.written = 0;
            }
        }
    }
}

/// The last `RING_BYTES` of everything pushed.
#[derive(Default)]
struct Ring {
    bytes: VecDeque<u8>,
}

impl Ring {
    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(RING_BYTES)..];
        let excess = (self.bytes.len() + bytes.len()).saturating_sub(RING_BYTES);
        self.bytes.drain(..excess);
        self.bytes.extend(bytes);
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_the_end() {
        let mut ring = Ring::default();
        ring.push(&[1; RING_BYTES - 1]);
        ring.push(&[2, 3]);
        let kept = ring.take();
        assert_eq!(
            (kept.len(), kept[0], &kept[RING_BYTES - 2..]),
            (RING_BYTES, 1, [2, 3].as_slice())
        );
        assert!(ring.take().is_empty());
        ring.push(&[4; 3 * RING_BYTES]);
        assert_eq!(ring.take().len(), RING_BYTES);
    }
}
