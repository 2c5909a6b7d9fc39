//! The input of a session: of its terminal, or standard input with the streams that write to it.

use super::Session;
use crate::protocol::{Code, Failure};
use crate::stdin;
use crate::streams::Streams;

impl Session {
    pub fn add_input(
        &mut self,
        stream: u32,
        bytes: &[u8],
        streams: &mut Streams,
    ) -> Result<(), Failure> {
        if let Some(stdin) = &mut self.stdin {
            stdin.add(stream, bytes)?;
            stdin.pump(streams);
            return Ok(());
        }
        self.end_redraw();
        let has_room = self.input.as_mut().is_none_or(|it| it.add(stream, bytes));
        if !has_room {
            let message = "the terminal's program does not read what is typed";
            return Err(Failure::new(Code::TooMany, message));
        }
        self.write_input(streams);
        Ok(())
    }

    pub(super) fn write_input(&mut self, streams: &mut Streams) {
        let target = self.terminal_master();
        if let Some(input) = &mut self.input {
            input.write_to(target, streams);
        }
        if let Some(stdin) = &mut self.stdin {
            stdin.pump(streams);
        }
    }

    pub fn add_writer(&mut self, stream: u32) -> Result<(), Failure> {
        let stdin = self.stdin.as_mut().ok_or_else(stdin::not_open)?;
        stdin.add_writer(stream)
    }

    pub fn remove_writer(&mut self, stream: u32) {
        if let Some(stdin) = &mut self.stdin {
            stdin.remove_writer(stream);
        }
    }

    /// No more input follows.
    pub fn end_input(&mut self, streams: &mut Streams) {
        if let Some(stdin) = &mut self.stdin {
            stdin.end();
            stdin.pump(streams);
        }
    }

    /// The program has ended, or was never executed.
    pub fn close_input(&mut self, streams: &mut Streams) {
        if let Some(mut stdin) = self.stdin.take() {
            stdin.close(streams);
        }
    }
}
