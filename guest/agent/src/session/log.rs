//! The log of a session's output, and the clients that read from it.

use super::{Kind, Session};
use crate::output_log::OutputLog;
use crate::protocol::{position_event, Code, Failure, Position};
use crate::stream::Role;
use crate::streams::Streams;

impl Session {
    /// A foreground command goes on when its client leaves, and keeps its output for others.
    pub fn keep_after_client(&mut self) {
        self.survives = true;
        self.log = Some(Box::default());
    }

    pub fn survives(&self) -> bool {
        self.survives
    }

    /// Clients may come and go.
    pub fn is_background(&self) -> bool {
        self.kind == Kind::Background || self.survives
    }

    pub fn log(&self) -> Option<&OutputLog> {
        self.log.as_deref()
    }

    /// The memory that its log takes.
    pub fn log_size(&self) -> usize {
        self.log().map_or(0, OutputLog::size)
    }

    /// The stream receives the output from there on, or from the first byte after it that is kept.
    pub fn read_from(
        &mut self,
        key: u32,
        stream: u32,
        position: Position,
        streams: &mut Streams,
    ) -> Result<(), Failure> {
        let (first, written) = self.log().map_or((0, 0), |it| (it.first(), it.written()));
        let next = match position {
            Position::Start => first,
            Position::Now => written,
            Position::Screen => return Err(Failure::new(Code::Invalid, "it has no terminal")),
            Position::Offset(offset) if offset > written => {
                let message = format!("only {written} bytes are written");
                return Err(Failure::new(Code::Invalid, message));
            }
            Position::Offset(offset) => offset.max(first),
        };
        streams.set_role(stream, Role::Reading(key));
        self.send_started(stream, streams);
        streams.event(stream, &position_event(next));
        self.readers.add(stream, next);
        self.feed_readers(streams);
        Ok(())
    }

    pub fn feed_readers(&mut self, streams: &mut Streams) {
        let exit = self.exit.filter(|_| self.is_over);
        if let Some(log) = &self.log {
            self.readers.feed(log, exit, streams);
        }
    }

    /// Drops the oldest output, at most a block. False: there is none.
    pub fn drop_oldest_output(&mut self) -> bool {
        self.log.as_mut().is_some_and(|log| log.drop_oldest())
    }

    /// Keeps no output from now on.
    pub fn drop_log(&mut self, streams: &mut Streams) {
        self.log = None;
        self.readers.cut_off(streams);
    }
}
