//! Jobs as the loop sees them: each belongs to a stream, and is with a worker thread or waits here for input or for room
//! in its stream's queue.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;

use crate::epoll::{Epoll, Source};
use crate::frames::MAX_PAYLOAD_BYTES;
use crate::job::{Input, Job, Next};
use crate::protocol::{channel, Code, Failure};
use crate::stream::Role;
use crate::streams::Streams;
use crate::workers::{Report, Ticket, Workers};

/// Each holds up to half a window of data.
const MAX_TASKS: usize = 256;
/// A job does not continue while this much of its data is queued.
const QUEUE_BYTES: usize = 256 * 1024;
/// Events and ENDs that may wait for a job; a correct host sends one TARGET, one END, and ATTRIBUTES at most twice.
const MAX_MARKS: usize = 4;

struct Task {
    ticket: Ticket,
    /// `None` while a thread has it.
    job: Option<Box<dyn Job>>,
    inputs: Vec<Input>,
    awaits: Awaited,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// Room for its data.
    Room,
    Input,
    /// Its descriptor.
    Events,
}

pub struct Tasks {
    workers: Workers,
    /// By stream.
    tasks: BTreeMap<u32, Task>,
    last_serial: u64,
}

impl Tasks {
    pub fn new() -> io::Result<Tasks> {
        Ok(Tasks {
            workers: Workers::new()?,
            tasks: BTreeMap::new(),
            last_serial: 0,
        })
    }

    /// Readable when `take_reports` has something to do.
    pub fn eventfd(&self) -> RawFd {
        self.workers.eventfd()
    }

    pub fn start(
        &mut self,
        stream: u32,
        job: Box<dyn Job>,
        streams: &mut Streams,
    ) -> Result<(), Failure> {
        if self.tasks.len() >= MAX_TASKS {
            let message = "the capsule has too many file operations under way";
            return Err(Failure::new(Code::TooMany, message));
        }
        self.last_serial += 1;
        let ticket = Ticket {
            stream,
            serial: self.last_serial,
        };
        let task = Task {
            ticket,
            job: Some(job),
            inputs: Vec::new(),
            awaits: Awaited::Room,
        };
        self.tasks.insert(stream, task);
        streams.set_role(stream, Role::Work);
        self.advance(stream, streams);
        Ok(())
    }

    /// Input from the host. Bounded by the stream's window and `MAX_MARKS`.
    pub fn add_input(&mut self, stream: u32, input: Input, streams: &Streams) {
        let Some(task) = self.tasks.get_mut(&stream) else {
            return;
        };
        let is_mark = |input: &Input| !matches!(input, Input::Data(_));
        if is_mark(&input) && task.inputs.iter().filter(|&it| is_mark(it)).count() >= MAX_MARKS {
            return;
        }
        match (&input, task.inputs.last_mut()) {
            // Small inputs are joined, so that there are never many; joining larger ones would only copy.
            (Input::Data(bytes), Some(Input::Data(last)))
                if last.len() + bytes.len() <= MAX_PAYLOAD_BYTES =>
            {
                last.extend_from_slice(bytes);
            }
            _ => task.inputs.push(input),
        }
        self.advance(stream, streams);
    }

    /// Gives the job to a thread, if it is here and can continue.
    pub fn advance(&mut self, stream: u32, streams: &Streams) {
        let Some(task) = self.tasks.get_mut(&stream) else {
            return;
        };
        let can_continue = match task.awaits {
            Awaited::Input => !task.inputs.is_empty(),
            Awaited::Events => false,
            Awaited::Room => {
                let queued = streams.queued(stream);
                queued == 0 || queued < QUEUE_BYTES && !streams.is_congested()
            }
        };
        if let Some(job) = task.job.take_if(|_| can_continue) {
            let inputs = std::mem::take(&mut task.inputs);
            self.workers.step(task.ticket, job, inputs);
        }
    }

    /// The descriptor of the stream's job may be readable.
    pub fn note_readable(&mut self, stream: u32, streams: &Streams) {
        let task = self.tasks.get_mut(&stream);
        if let Some(task) = task.filter(|task| task.awaits == Awaited::Events) {
            task.awaits = Awaited::Room;
            self.advance(stream, streams);
        }
    }

    /// The stream is closed.
    pub fn end(&mut self, stream: u32) {
        if let Some(job) = self.tasks.remove(&stream).and_then(|task| task.job) {
            self.workers.drop_job(job);
        }
    }

    /// On threads, since a job may remove a tree when it is dropped.
    pub fn clear(&mut self) {
        for task in std::mem::take(&mut self.tasks).into_values() {
            if let Some(job) = task.job {
                self.workers.drop_job(job);
            }
        }
    }

    pub fn take_reports(&mut self, streams: &mut Streams, epoll: &Epoll) {
        for report in self.workers.take_reports() {
            self.take_report(report, streams, epoll);
        }
    }

    fn take_report(&mut self, report: Report, streams: &mut Streams, epoll: &Epoll) {
        let stream = report.ticket.stream;
        let task = self.tasks.get_mut(&stream);
        let Some(task) = task.filter(|task| task.ticket == report.ticket) else {
            if let Some(job) = report.job {
                self.workers.drop_job(job);
            }
            return;
        };
        let progress = report.progress;
        task.awaits = match progress.next {
            Next::Await => Awaited::Input,
            Next::AwaitEvents => Awaited::Events,
            _ => Awaited::Room,
        };
        let descriptor = report.job.as_ref().and_then(|job| job.descriptor());
        task.job = report.job;
        if let Some(event) = progress.event {
            streams.event(stream, &event);
        }
        streams.data_owned(stream, channel::MAIN, progress.data);
        streams.consumed(stream, progress.consumed);
        match progress.next {
            Next::Continue | Next::Await => self.advance(stream, streams),
            Next::AwaitEvents => {
                let fd = descriptor.unwrap_or(-1);
                if let Err(error) = epoll.watch_once(fd, Source::Job(stream)) {
                    let message = format!("the events cannot be awaited: {error}");
                    streams.fail(stream, &Failure::new(Code::Internal, message));
                    self.end(stream);
                }
            }
            Next::Done { has_end, result } => {
                if has_end {
                    streams.end_with_result(stream, result);
                } else {
                    streams.result(stream, result);
                }
                self.end(stream);
            }
            Next::Failed(failure) => {
                streams.fail(stream, &failure);
                self.end(stream);
            }
        }
    }
}
