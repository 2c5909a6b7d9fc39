//! The last output of a terminal: what no client received, for the next one, and all of it, for clients that ask.
//!
//! ```text
//!   program ─► slave │ master ─► every client            (without one: the ring keeps the last 256 KiB)
//! ```

use std::collections::VecDeque;

/// Output kept for the next client.
const RING_BYTES: usize = 256 * 1024;

#[derive(Default)]
pub struct Terminal {
    missed: Ring,
    last: Ring,
}

impl Terminal {
    /// All output, received or missed.
    pub fn keep(&mut self, bytes: &[u8]) {
        self.last.push(bytes);
    }

    /// Output that no client received.
    pub fn miss(&mut self, bytes: &[u8]) {
        self.missed.push(bytes);
    }

    /// The last output, which contains all that was missed.
    pub fn last(&mut self) -> Vec<u8> {
        self.missed.take();
        self.last.bytes.iter().copied().collect()
    }

    pub fn take_missed(&mut self) -> Vec<u8> {
        self.missed.take()
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
