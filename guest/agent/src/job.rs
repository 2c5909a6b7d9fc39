//! A job: work that may block, such as a file verb, done in bounded steps by worker threads. Between steps it is with the
//! loop, which decides whether it may continue: while its data waits for the host, it may not.

use std::os::fd::RawFd;

use crate::attributes::Attributes;
use crate::protocol::Failure;

/// A message from the host to a job.
pub enum Input {
    Data(Vec<u8>),
    Target(Vec<u8>),
    Attributes(Attributes),
    /// The total of the bytes sent.
    End(u64),
}

/// The result of a step.
pub struct Progress {
    /// Sent before any data.
    pub event: Option<Vec<u8>>,
    pub data: Vec<u8>,
    /// Bytes of input that are processed.
    pub consumed: usize,
    pub next: Next,
}

impl Progress {
    pub fn next(next: Next) -> Progress {
        Progress {
            event: None,
            data: Vec::new(),
            consumed: 0,
            next,
        }
    }

    pub fn data(data: Vec<u8>, next: Next) -> Progress {
        Progress {
            data,
            ..Progress::next(next)
        }
    }
}

pub enum Next {
    /// Another step, as soon as there is room for its data.
    Continue,
    /// Another step, as soon as there is input.
    Await,
    /// Another step, as soon as the job's descriptor is readable.
    AwaitEvents,
    Done {
        /// An END follows the data.
        has_end: bool,
        result: Vec<u8>,
    },
    Failed(Failure),
}

impl Next {
    /// No step follows.
    pub fn is_last(&self) -> bool {
        matches!(self, Next::Done { .. } | Next::Failed(_))
    }
}

/// Does a bounded part of the work in each step. Dropping a job undoes what is unfinished.
pub trait Job: Send {
    fn step(&mut self, inputs: Vec<Input>) -> Progress;

    fn descriptor(&self) -> Option<RawFd> {
        None
    }
}
