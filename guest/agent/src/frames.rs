//! Frames: the header's bytes, and a parser that cuts the pipe's bytes into frames.
//!
//! The pipe may hold half a frame from an earlier connection, or noise. The parser keeps at most one frame, never fails,
//! and is synchronized again after one frame's worth of padding.

pub const HEADER_BYTES: usize = 12;
pub const MAX_PAYLOAD_BYTES: usize = 65_536;

pub const HELLO: u8 = 0x01;
pub const WELCOME: u8 = 0x02;
pub const OPEN: u8 = 0x03;
pub const DATA: u8 = 0x04;
pub const END: u8 = 0x05;
pub const WINDOW: u8 = 0x06;
pub const EVENT: u8 = 0x07;
pub const RESULT: u8 = 0x08;
pub const FAIL: u8 = 0x09;
pub const CANCEL: u8 = 0x0a;
pub const NOTICE: u8 = 0x0b;

/// Flag of OPEN: the payload continues in the next OPEN of the same stream.
pub const MORE: u8 = 1;
/// Flag of HELLO: the WELCOME ends with the agent's verbs.
pub const LIST_VERBS: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: u8,
    pub flags: u8,
    pub epoch: u16,
    pub stream: u32,
    pub length: u32,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.stream.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Header {
        let [kind, flags, e0, e1, s0, s1, s2, s3, l0, l1, l2, l3] = *bytes;
        Header {
            kind,
            flags,
            epoch: u16::from_le_bytes([e0, e1]),
            stream: u32::from_le_bytes([s0, s1, s2, s3]),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
        }
    }
}

/// One frame; the payload is a view into the parser's memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: u8,
    pub flags: u8,
    pub epoch: u16,
    pub stream: u32,
    pub payload: &'a [u8],
}

const ARENA_BYTES: usize = 2 * (HEADER_BYTES + MAX_PAYLOAD_BYTES);

pub struct Parser {
    arena: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Default for Parser {
    fn default() -> Self {
        Parser {
            arena: vec![0; ARENA_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }
}

impl Parser {
    /// Where the next bytes belong. Never empty, provided that `next` has returned `None` since the last `filled`.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.arena.len() - self.end < self.arena.len() / 4 {
            self.arena.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.arena[self.end..]
    }

    /// The first `bytes` of `space` are filled.
    pub fn filled(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.arena.len());
    }

    /// Forgets everything: the next bytes come from another pipe.
    pub fn reset(&mut self) {
        self.start = 0;
        self.end = 0;
    }

    /// Forgets half a DATA frame whose host has left; the next host's padding would complete it. Other frames are records,
    /// which the padding leaves without an end mark.
    pub fn forget_half_data(&mut self) {
        if self.arena[self.start..self.end].first() == Some(&DATA) {
            self.reset();
        }
    }

    #[allow(clippy::should_implement_trait)] // a frame borrows the parser, which an Iterator's item cannot
    pub fn next(&mut self) -> Option<Frame<'_>> {
        loop {
            let waiting = &self.arena[self.start..self.end];
            self.start += waiting
                .iter()
                .position(|&byte| byte != 0)
                .unwrap_or(waiting.len());
            let waiting = &self.arena[self.start..self.end];
            let header = Header::decode(waiting.first_chunk()?);
            let length = header.length as usize;
            if length > MAX_PAYLOAD_BYTES {
                // Noise. The padding before the next HELLO is longer than any frame that begins in the noise.
                self.start += 1;
                continue;
            }
            if waiting.len() < HEADER_BYTES + length {
                return None;
            }
            let payload = self.start + HEADER_BYTES..self.start + HEADER_BYTES + length;
            self.start = payload.end;
            return Some(Frame {
                kind: header.kind,
                flags: header.flags,
                epoch: header.epoch,
                stream: header.stream,
                payload: &self.arena[payload],
            });
        }
    }
}
