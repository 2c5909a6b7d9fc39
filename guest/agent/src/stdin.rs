//! The standard input of a command, where it is a pipe: what waits for room in it, and the streams that may write to it.
//!
//! ```text
//!   DATA of EXEC_STDIN's own stream, or of INPUT's ─► queue ─► pipe ─► program          END ─► the pipe is closed behind it
//! ```

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::input::{Input, MAX_INPUT_BYTES};
use crate::protocol::{empty, Code, Failure, WINDOW_BYTES};
use crate::streams::Streams;

pub struct Stdin {
    /// The write end, which does not block. `None`: the input has ended.
    pipe: Option<OwnedFd>,
    input: Input,
    /// Streams of INPUT.
    writers: Vec<u32>,
    /// Nothing may follow what is queued.
    is_ending: bool,
}

impl Stdin {
    pub fn new(pipe: OwnedFd) -> Stdin {
        Stdin {
            pipe: Some(pipe),
            input: Input::default(),
            writers: Vec::new(),
            is_ending: false,
        }
    }

    pub fn fd(&self) -> Option<RawFd> {
        self.pipe.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// The stream may write from now on. The windows of all writers fit into the queue, so that none is refused later.
    pub fn add_writer(&mut self, stream: u32) -> Result<(), Failure> {
        if self.is_ending {
            return Err(not_open());
        }
        let windows = (self.writers.len() + 1) * WINDOW_BYTES as usize;
        if self.input.queued_bytes() + windows > MAX_INPUT_BYTES {
            let message = "too many clients write to the standard input of the process";
            return Err(Failure::new(Code::TooMany, message));
        }
        self.writers.push(stream);
        Ok(())
    }

    /// The stream is closed. Its bytes in the queue are still written.
    pub fn remove_writer(&mut self, stream: u32) {
        self.writers.retain(|&writer| writer != stream);
    }

    pub fn add(&mut self, stream: u32, bytes: &[u8]) -> Result<(), Failure> {
        if self.is_ending {
            return Err(not_open());
        }
        if !self.input.add(stream, bytes) {
            let message = "the process does not read its standard input";
            return Err(Failure::new(Code::TooMany, message));
        }
        Ok(())
    }

    pub fn end(&mut self) {
        self.is_ending = true;
    }

    /// Writes as much as the pipe takes. A program that has closed its end gets nothing, and all is dropped.
    pub fn pump(&mut self, streams: &mut Streams) {
        self.input.write_to(self.fd(), streams);
        if self.is_ending && self.input.queued_bytes() == 0 {
            self.close(streams);
        }
    }

    /// Closes the pipe, drops what waits for it, and answers the writers.
    pub fn close(&mut self, streams: &mut Streams) {
        self.is_ending = true;
        self.pipe = None;
        self.input.write_to(None, streams);
        for stream in self.writers.drain(..) {
            streams.result(stream, empty());
        }
    }
}

pub fn not_open() -> Failure {
    Failure::new(
        Code::Conflict,
        "the standard input of the process is not open",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    /// Both ends of a command's standard input.
    fn pipe() -> (OwnedFd, Stdin) {
        let (reading, writing) = sys::input_pipe().unwrap();
        (reading, Stdin::new(writing))
    }

    fn open(ids: std::ops::RangeInclusive<u32>) -> Streams {
        let mut streams = Streams::default();
        streams.begin_epoch(1);
        ids.for_each(|id| streams.open(id));
        streams
    }

    #[test]
    fn the_pipe_is_closed_behind_the_last_byte_and_the_writers_are_told() {
        let (reading, mut stdin) = pipe();
        let mut streams = open(1..=2);
        for stream in 1..=2 {
            stdin.add_writer(stream).unwrap();
        }
        let bytes = vec![b'x'; 200_000];
        stdin.add(1, &bytes).unwrap();
        stdin.end();
        stdin.pump(&mut streams);
        assert!(stdin.fd().is_some() && streams.is_open(1));
        assert_eq!(stdin.add(2, b"y").unwrap_err().code, Code::Conflict);
        assert_eq!(stdin.add_writer(3).unwrap_err().code, Code::Conflict);
        let mut space = [0; 4_096];
        let mut total = 0;
        while let Ok(Some(count @ 1..)) = sys::read(reading.as_raw_fd(), &mut space) {
            total += count;
            stdin.pump(&mut streams);
        }
        assert_eq!(total, bytes.len());
        assert!(stdin.fd().is_none() && !streams.is_open(1) && !streams.is_open(2));
    }

    #[test]
    fn input_of_a_program_that_has_closed_its_end_is_dropped() {
        let (reading, mut stdin) = pipe();
        let mut streams = open(1..=1);
        drop(reading);
        for _ in 0..100 {
            stdin.add(1, &[0; 65_536]).unwrap();
            stdin.pump(&mut streams);
            assert_eq!(stdin.input.queued_bytes(), 0);
        }
        assert!(!stdin.is_ending, "more may be sent");
    }

    #[test]
    fn no_writer_is_admitted_whose_window_has_no_room() {
        let (_reading, mut stdin) = pipe();
        let mut streams = open(1..=20);
        let admitted = (1..=20).filter(|&id| stdin.add_writer(id).is_ok()).count();
        assert_eq!(admitted, MAX_INPUT_BYTES / WINDOW_BYTES as usize);
        for stream in 1..=admitted as u32 {
            for _ in 0..4 {
                stdin.add(stream, &[0; 65_536]).unwrap();
            }
        }
        stdin.pump(&mut streams);
        stdin.remove_writer(1);
        assert_eq!(stdin.add_writer(20).unwrap_err().code, Code::TooMany);
    }
}
