//! Frames on their way to the host. Whole frames are kept until the pipe has taken their last byte, so that it is known
//! which data a host cannot have received.

use std::collections::BTreeMap;

use crate::frames::{self, Header, HEADER_BYTES};

#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// Where the first frame begins that is not written whole.
    frame: usize,
    /// Where the first byte is that is not written.
    start: usize,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub fn push(&mut self, header: &Header, payload: &[u8]) {
        if self.frame > 0 && self.frame >= self.bytes.len() / 2 {
            self.bytes.drain(..self.frame);
            self.start -= self.frame;
            self.frame = 0;
        }
        self.bytes.extend_from_slice(&header.encode());
        self.bytes.extend_from_slice(payload);
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.frame = 0;
        self.start = 0;
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The first `count` of these bytes are written.
    pub fn written(&mut self, count: usize) {
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

    /// For each stream the DATA bytes of frames that no host can have received whole.
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
        outbox.push(&header, payload);
    }

    #[test]
    fn an_outbox_keeps_order_and_drops_written_frames() {
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
