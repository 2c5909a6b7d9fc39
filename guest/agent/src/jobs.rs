//! Jobs as the loop sees them: which are at work, which wait for room or for input, and what their reports mean for the
//! stream that asked.

use std::collections::BTreeMap;

use crate::agent::Agent;
use crate::frames::MAX_PAYLOAD_BYTES;
use crate::protocol::{channel, Code, Failure};
use crate::stream::Role;
use crate::work::{Input, Job, Next, Ticket};

/// Each holds up to half a window of data.
const MAX_JOBS: usize = 256;
/// A job does not go on while this much of its data waits.
const QUEUE_BYTES: usize = 256 * 1024;

pub struct Task {
    ticket: Ticket,
    /// `None` while a thread has it.
    job: Option<Box<dyn Job>>,
    inputs: Vec<Input>,
    awaits_input: bool,
}

pub type Tasks = BTreeMap<u32, Task>;

impl Agent {
    pub fn start_job(&mut self, stream: u32, job: Box<dyn Job>) -> Result<(), Failure> {
        if self.tasks.len() >= MAX_JOBS {
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
            awaits_input: false,
        };
        self.tasks.insert(stream, task);
        self.streams.set_role(stream, Role::Work);
        self.advance_job(stream);
        Ok(())
    }

    /// What the host sent to a job. Bounded by the stream's window, and by one TARGET and one END.
    pub fn give_job(&mut self, stream: u32, input: Input) {
        let Some(task) = self.tasks.get_mut(&stream) else {
            return;
        };
        let is_small = |input: &Input| !matches!(input, Input::Data(_));
        if is_small(&input) && task.inputs.iter().filter(|known| is_small(known)).count() > 2 {
            return;
        }
        match (&input, task.inputs.last_mut()) {
            // Crumbs are joined, so that there are never many of them; joining more would copy more than it saves.
            (Input::Data(bytes), Some(Input::Data(last)))
                if last.len() + bytes.len() <= MAX_PAYLOAD_BYTES =>
            {
                last.extend_from_slice(bytes);
            }
            _ => task.inputs.push(input),
        }
        self.advance_job(stream);
    }

    pub fn advance_job(&mut self, stream: u32) {
        let queued = self.streams.queued(stream);
        let is_crowded = queued > 0 && self.streams.is_congested();
        let Some(task) = self.tasks.get_mut(&stream) else {
            return;
        };
        let may_go_on = if task.awaits_input {
            !task.inputs.is_empty()
        } else {
            queued == 0 || queued < QUEUE_BYTES && !is_crowded
        };
        if let Some(job) = task.job.take_if(|_| may_go_on) {
            let inputs = std::mem::take(&mut task.inputs);
            self.workers.step(task.ticket, job, inputs);
        }
    }

    pub fn end_job(&mut self, stream: u32) {
        if let Some(job) = self.tasks.remove(&stream).and_then(|task| task.job) {
            self.workers.drop_job(job);
        }
    }

    pub fn take_reports(&mut self) {
        for report in self.workers.take_reports() {
            let stream = report.ticket.stream;
            let task = self.tasks.get_mut(&stream);
            let Some(task) = task.filter(|task| task.ticket == report.ticket) else {
                self.workers.drop_job(report.job);
                continue;
            };
            let progress = report.progress;
            task.awaits_input = matches!(progress.next, Next::Await);
            task.job = Some(report.job);
            if let Some(event) = progress.event {
                self.streams.event(stream, &event);
            }
            self.streams
                .data_owned(stream, channel::MAIN, progress.data);
            self.streams.consumed(stream, progress.consumed);
            match progress.next {
                Next::Continue | Next::Await => self.advance_job(stream),
                Next::Done { has_end, result } => {
                    if has_end {
                        self.streams.end_with_result(stream, result);
                    } else {
                        self.streams.result(stream, result);
                    }
                    self.end_job(stream);
                }
                Next::Failed(failure) => {
                    self.streams.fail(stream, &failure);
                    self.end_job(stream);
                }
            }
        }
    }
}
