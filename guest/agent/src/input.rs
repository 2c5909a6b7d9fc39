//! Input that a session's program has not read yet, of all its clients.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use crate::streams::Streams;
use crate::sys;

/// The window bounds the input of one client, this the input of all clients that came and left.
pub const MAX_INPUT_BYTES: usize = 4 * 1024 * 1024;
/// Input of one stream is joined up to this, so that many small frames cost little more than their bytes.
const CHUNK_BYTES: usize = 65_536;

#[derive(Default)]
pub struct Input {
    /// The stream it came from, and the bytes.
    queue: VecDeque<(u32, Vec<u8>)>,
    queued_bytes: usize,
    /// Bytes of the first entry that are written already.
    written: usize,
}

impl Input {
    /// False: too much is queued already.
    #[must_use]
    pub fn add(&mut self, stream: u32, bytes: &[u8]) -> bool {
        let has_room = self.queued_bytes + bytes.len() <= MAX_INPUT_BYTES;
        if has_room {
            self.queued_bytes += bytes.len();
            match self.queue.back_mut() {
                Some((from, last))
                    if *from == stream && last.len() + bytes.len() <= CHUNK_BYTES =>
                {
                    last.extend_from_slice(bytes);
                }
                _ => self.queue.push_back((stream, bytes.to_vec())),
            }
        }
        has_room
    }

    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Writes as much as `target` takes, which does not block. Without a target, or after an error, all is dropped.
    pub fn write_to(&mut self, target: Option<RawFd>, streams: &mut Streams) {
        while let Some((stream, bytes)) = self.queue.front() {
            let rest = &bytes[self.written..];
            let written = match target.map(|fd| sys::write(fd, rest)) {
                Some(Ok(None)) => return,
                Some(Ok(Some(count))) => count,
                Some(Err(_)) | None => rest.len(),
            };
            let is_done = written == rest.len();
            streams.consumed(*stream, written);
            self.written += written;
            self.queued_bytes -= written;
            if is_done {
                self.queue.pop_front();
                self.written = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn input_waits_for_room_and_is_bounded() {
        let (mut input, mut streams) = (Input::default(), Streams::default());
        let (reading, writing) = sys::pipe().unwrap();
        sys::set_nonblocking(&writing).unwrap();
        let target = Some(writing.as_raw_fd());
        let chunk = [b'x'; 64 * 1024];
        for _ in 0..MAX_INPUT_BYTES / chunk.len() {
            assert!(input.add(1, &chunk));
        }
        assert!(!input.add(1, b"y"));
        input.write_to(target, &mut streams);
        let mut space = [0; 16 * 1024];
        let mut read = 0;
        while let Ok(Some(count)) = sys::read(reading.as_raw_fd(), &mut space) {
            assert!(count > 0 && space[..count].iter().all(|&byte| byte == b'x'));
            read += count;
            input.write_to(target, &mut streams);
        }
        assert_eq!(read, MAX_INPUT_BYTES);
        assert!(input.add(1, b"y"));
        input.write_to(None, &mut streams);
        assert_eq!((input.queued_bytes, input.queue.len()), (0, 0));
    }

    #[test]
    fn small_input_is_joined_in_its_order() {
        let (mut input, mut streams) = (Input::default(), Streams::default());
        let (reading, writing) = sys::pipe().unwrap();
        sys::set_nonblocking(&writing).unwrap();
        let mut sent = Vec::new();
        for at in 0..2_000_u32 {
            let bytes = at.to_le_bytes();
            assert!(input.add(1 + at / 1_000, &bytes));
            sent.extend(bytes);
        }
        assert_eq!(input.queue.len(), 2, "an entry of each stream");
        input.write_to(Some(writing.as_raw_fd()), &mut streams);
        let mut read = vec![0; sent.len()];
        assert_eq!(
            sys::read(reading.as_raw_fd(), &mut read).unwrap(),
            Some(sent.len())
        );
        assert_eq!(read, sent);
    }
}
