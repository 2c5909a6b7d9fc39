//! A session whose child is still on the way to its program.

use super::{Kind, Session};
use crate::command::Stuck;
use crate::protocol::{self, Failure};
use crate::stream::Role;
use crate::streams::Streams;

pub struct Starting {
    child: Stuck,
    /// The stream to be told, unless that has been dropped.
    stream: Option<u32>,
    is_quiet: bool,
}

impl Session {
    pub fn is_starting(&self) -> bool {
        self.starting.is_some()
    }

    /// The stream is told when the start has succeeded or failed.
    pub fn await_start(&mut self, child: Stuck, stream: u32, is_quiet: bool) {
        self.starting = Some(Starting {
            child,
            stream: Some(stream),
            is_quiet,
        });
    }

    /// The stream is dropped: there is nobody to be told.
    pub fn abandon_start(&mut self) {
        if let Some(starting) = &mut self.starting {
            starting.stream = None;
        }
    }

    /// Tells the stream of a start that has gone well since the last call.
    pub fn poll_start(&mut self, key: u32, streams: &mut Streams) {
        let is_done = |it: &mut Starting| matches!(it.child.outcome(), Some(Ok(())));
        if let Some(starting) = self.starting.take_if(is_done) {
            if let Some(stream) = starting.stream {
                self.announce(key, stream, starting.is_quiet, streams);
            }
        }
    }

    /// The child has ended. A failed start: the stream to be told, and the failure.
    pub fn take_failed_start(&mut self) -> Option<(Option<u32>, Failure)> {
        let is_failed = |it: &mut Starting| matches!(it.child.outcome(), Some(Err(_)));
        let starting = self.starting.take_if(is_failed)?;
        let failure = starting.child.outcome()?.err()?;
        Some((starting.stream, failure))
    }

    /// Tells the stream that asked for the command that it runs.
    pub fn announce(&mut self, key: u32, stream: u32, is_quiet: bool, streams: &mut Streams) {
        match self.kind {
            Kind::Background => {
                let started = protocol::started(self.pid(), &self.tag);
                streams.result(stream, started.finish());
            }
            Kind::Foreground => {
                self.add_listener(stream, Role::Foreground(key), streams);
                if !is_quiet {
                    self.send_started(stream, streams);
                }
            }
            Kind::Terminal => self.connect(stream, Role::Terminal(key), false, streams),
        }
    }
}
