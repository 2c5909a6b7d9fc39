//! The last output of a command, of both its streams in the order of arrival, for clients that come later or come back.
//!
//! ```text
//!   dropped ┆ block ─ block ─ block ─ newest block ┆ to come
//!           first                                  written          (offsets: bytes of both streams before)
//! ```
//!
//! Memory is taken as output comes, in blocks of at most 32 KiB. A block has an entry of two bytes for each piece of one
//! stream, so that output that changes its stream with every byte takes three times its length, and no more.

use std::collections::VecDeque;

use crate::memory;
use crate::protocol::{channel, Failure};

/// Output kept of each command.
pub const KEPT_BYTES: u64 = 1024 * 1024;
const BLOCK_BYTES: usize = 32 * 1024;
const MIN_BLOCK_BYTES: usize = 64;

#[derive(Default)]
pub struct OutputLog {
    blocks: VecDeque<Block>,
    /// The first byte that is kept.
    first: u64,
    written: u64,
    /// The memory of the blocks, with their entries.
    bytes: usize,
}

/// Pieces that follow each other.
struct Block {
    start: u64,
    bytes: Vec<u8>,
    runs: Vec<Run>,
}

/// A piece of one stream: the index of its last byte, and the highest bit for standard error.
#[derive(Clone, Copy)]
struct Run(u16);

const STDERR_BIT: u16 = 1 << 15;

impl Run {
    fn new(channel: u8, end: usize) -> Run {
        let bit = if channel == channel::STDERR {
            STDERR_BIT
        } else {
            0
        };
        Run((end - 1) as u16 | bit)
    }

    fn channel(self) -> u8 {
        match self.0 & STDERR_BIT {
            0 => channel::STDOUT,
            _ => channel::STDERR,
        }
    }

    fn end(self) -> usize {
        usize::from(self.0 & !STDERR_BIT) + 1
    }
}

impl Block {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn size(&self) -> usize {
        size_of::<Block>() + self.bytes.capacity() + self.runs.capacity() * size_of::<Run>()
    }

    /// Appends what has room. `None`: there is no memory.
    fn push(&mut self, channel: u8, bytes: &[u8]) -> Option<usize> {
        let length = bytes.len().min(BLOCK_BYTES - self.bytes.len());
        let needed = self.bytes.len() + length;
        if needed > self.bytes.capacity() {
            let doubled = (2 * self.bytes.capacity()).clamp(MIN_BLOCK_BYTES, BLOCK_BYTES);
            let more = doubled.max(needed) - self.bytes.len();
            self.bytes.try_reserve_exact(more).ok()?;
        }
        let run = Run::new(channel, needed);
        match self.runs.last_mut().filter(|it| it.channel() == channel) {
            Some(last) => *last = run,
            None => {
                self.runs.try_reserve(1).ok()?;
                self.runs.push(run);
            }
        }
        self.bytes.extend_from_slice(&bytes[..length]);
        Some(length)
    }

    /// From this offset, which is in the block, to the end of its piece.
    fn piece(&self, offset: u64) -> (u8, &[u8]) {
        let at = (offset - self.start) as usize;
        let run = self.runs[self.runs.partition_point(|run| run.end() <= at)];
        (run.channel(), &self.bytes[at..run.end()])
    }
}

impl OutputLog {
    pub fn first(&self) -> u64 {
        self.first
    }

    pub fn written(&self) -> u64 {
        self.written
    }

    /// The memory that it takes.
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// Where there is no memory, everything is dropped.
    pub fn push(&mut self, channel: u8, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let pushed = if memory::is_low() {
                None
            } else {
                self.push_part(channel, bytes)
            };
            let Some(count) = pushed else {
                self.written += bytes.len() as u64;
                self.clear();
                return;
            };
            self.written += count as u64;
            bytes = &bytes[count..];
        }
        let first = self.written.saturating_sub(KEPT_BYTES);
        self.first = self.first.max(first);
        while self.blocks.front().is_some_and(|it| it.end() <= first) {
            self.pop_block();
        }
    }

    fn push_part(&mut self, channel: u8, bytes: &[u8]) -> Option<usize> {
        if self
            .blocks
            .back()
            .is_none_or(|it| it.bytes.len() == BLOCK_BYTES)
        {
            self.blocks.try_reserve(1).ok()?;
            let block = Block {
                start: self.written,
                bytes: Vec::new(),
                runs: Vec::new(),
            };
            self.bytes += block.size();
            self.blocks.push_back(block);
        }
        let block = self.blocks.back_mut()?;
        let before = block.size();
        let pushed = block.push(channel, bytes);
        self.bytes += block.size() - before;
        pushed
    }

    fn pop_block(&mut self) {
        if let Some(block) = self.blocks.pop_front() {
            self.bytes -= block.size();
            self.first = self.first.max(block.end());
        }
    }

    /// Drops the oldest output, at most a block. False: there is none.
    pub fn drop_oldest(&mut self) -> bool {
        self.pop_block();
        !self.blocks.is_empty()
    }

    pub fn clear(&mut self) {
        self.blocks = VecDeque::new();
        self.bytes = 0;
        self.first = self.written;
    }

    /// A piece of one stream that begins at this offset. `None`: it is dropped, or not written yet.
    pub fn piece(&self, offset: u64) -> Option<(u8, &[u8])> {
        if offset < self.first || offset >= self.written {
            return None;
        }
        let after = self.blocks.partition_point(|block| block.start <= offset);
        Some(self.blocks[after - 1].piece(offset))
    }

    /// The kept output of one stream, or of both with channel 0; with `tail` its last lines.
    pub fn collect(&self, channel: u8, tail: Option<u64>) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        let mut offset = self.first;
        while let Some((of, piece)) = self.piece(offset) {
            if channel == channel::MAIN || channel == of {
                memory::extend(&mut bytes, piece)?;
            }
            offset += piece.len() as u64;
        }
        if let Some(lines) = tail {
            let start = tail_start(&bytes, lines);
            bytes.drain(..start);
        }
        Ok(bytes)
    }
}

/// Where the last lines begin. A last line without its end counts.
fn tail_start(bytes: &[u8], lines: u64) -> usize {
    let mut end = bytes.len();
    if bytes.last() == Some(&b'\n') && lines > 0 {
        end -= 1;
    }
    for _ in 0..lines {
        match bytes[..end].iter().rposition(|&byte| byte == b'\n') {
            Some(at) => end = at,
            None => return 0,
        }
    }
    // `end` is the end of the line before, or the end of everything.
    (end + usize::from(lines > 0)).min(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of alternating streams, of changing lengths.
    fn script(total: usize) -> Vec<(u8, Vec<u8>)> {
        let (mut done, mut pieces) = (0, Vec::new());
        for at in 0.. {
            let length = [1, 7, 300, 1, 5_000, 70_000][at % 6].min(total - done);
            let channel = [channel::STDOUT, channel::STDERR][(at / 2) % 2];
            pieces.push((channel, (done..done + length).map(|it| it as u8).collect()));
            done += length;
            if done == total {
                break;
            }
        }
        pieces
    }

    fn streams_of(pieces: &[(u8, Vec<u8>)]) -> Vec<(u8, u8)> {
        let flat = pieces.iter();
        flat.flat_map(|(of, bytes)| bytes.iter().map(|&byte| (*of, byte)))
            .collect()
    }

    #[test]
    fn the_last_mebibyte_is_kept_with_the_stream_of_each_byte() {
        for total in [1, 32 * 1024, 1024 * 1024, 1024 * 1024 + 1, 3_333_333] {
            let pieces = script(total);
            let mut log = OutputLog::default();
            pieces.iter().for_each(|(of, bytes)| log.push(*of, bytes));
            assert_eq!(log.written(), total as u64);
            assert_eq!(log.first(), (total as u64).saturating_sub(KEPT_BYTES));
            let (mut offset, mut kept) = (log.first(), Vec::new());
            while let Some((of, bytes)) = log.piece(offset) {
                kept.extend(bytes.iter().map(|&byte| (of, byte)));
                offset += bytes.len() as u64;
            }
            let all = streams_of(&pieces);
            assert!(kept == all[total - kept.len()..], "{total}");
            assert_eq!(kept.len() as u64, log.written() - log.first());
            let of_stderr = kept.iter().filter(|(of, _)| *of == channel::STDERR);
            let stderr: Vec<u8> = of_stderr.map(|&(_, byte)| byte).collect();
            assert!(log.collect(channel::STDERR, None).unwrap() == stderr);
            assert!(log.piece(log.first().wrapping_sub(1)).is_none());
            assert!(log.piece(log.written()).is_none());
        }
    }

    #[test]
    fn memory_is_taken_as_output_comes_and_given_back() {
        let mut log = OutputLog::default();
        assert_eq!(log.size(), 0);
        log.push(channel::STDOUT, b"hello\n");
        assert!(log.size() < 256, "{}", log.size());
        for at in 0..2 * KEPT_BYTES {
            log.push([channel::STDOUT, channel::STDERR][at as usize % 2], b"x");
        }
        let most = 3 * (KEPT_BYTES as usize + BLOCK_BYTES) + 64 * size_of::<Block>();
        assert!(log.size() <= most, "{}", log.size());
        let (first, size) = (log.first(), log.size());
        assert!(log.drop_oldest());
        assert!(log.size() < size && log.first() > first);
        while log.drop_oldest() {}
        assert_eq!((log.size(), log.first()), (0, log.written()));
        log.push(channel::STDERR, b"y");
        assert_eq!(
            log.piece(log.first()),
            Some((channel::STDERR, b"y".as_slice()))
        );
        log.clear();
        assert_eq!((log.size(), log.piece(log.first())), (0, None));
    }

    #[test]
    fn the_tail_is_counted_in_lines() {
        let mut log = OutputLog::default();
        log.push(channel::STDOUT, b"one\ntwo\n");
        log.push(channel::STDERR, b"oops\n\nlast");
        let tail = |channel, lines| {
            let bytes = log.collect(channel, Some(lines)).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        for (lines, text) in [
            (0, ""),
            (1, "last"),
            (2, "\nlast"),
            (3, "oops\n\nlast"),
            (4, "two\noops\n\nlast"),
            (5, "one\ntwo\noops\n\nlast"),
            (6, "one\ntwo\noops\n\nlast"),
            (u64::MAX, "one\ntwo\noops\n\nlast"),
        ] {
            assert_eq!(tail(channel::MAIN, lines), text, "{lines}");
        }
        assert_eq!(tail(channel::STDOUT, 1), "two\n");
        assert_eq!(tail(channel::STDOUT, 0), "");
        assert_eq!(OutputLog::default().collect(0, Some(3)), Ok(Vec::new()));
    }
}
