//! From frames to what they ask for: the handshake, opening a stream with its verb, and what the host says within one.

use crate::agent::Agent;
use crate::files::listing::Listing;
use crate::files::making::Making;
use crate::files::paths::normalize;
use crate::files::reading::Reading;
use crate::files::removal::Removal;
use crate::files::writing::Writing;
use crate::frames::{self, Frame};
use crate::processes::Processes;
use crate::protocol::{
    self, event, exec_mode, verb, welcome, Code, Command, Failure, Selector, MAX_REQUEST_BYTES,
};
use crate::record::{Malformed, Reader};
use crate::stream::{Dropped, Role};
use crate::terminal::check_size;
use crate::wake::Wake;
use crate::work::{Input, Job};

/// Requests in several frames of which the last has not come yet.
const MAX_PARTIAL: usize = 64;
const MAX_PARTIAL_BYTES: usize = 4 * MAX_REQUEST_BYTES;

impl Agent {
    /// A payload that is not what it should be is dropped whole, without a word: it may be half a frame of another
    /// life.
    pub fn take(&mut self, frame: Frame) {
        if frame.kind == frames::HELLO {
            if let Ok(nonce) = protocol::read_hello(frame.payload) {
                self.greet(frame.epoch, &nonce);
            }
        } else if frame.epoch == self.streams.epoch() && frame.epoch != 0 {
            let _ = self.take_from_stream(frame);
        }
    }

    fn greet(&mut self, epoch: u16, nonce: &[u8]) {
        if epoch == 0 {
            return;
        }
        self.partial.clear();
        for dropped in self.streams.begin_epoch(epoch) {
            self.dropped(dropped);
        }
        for kill in &mut self.kills {
            kill.forget_stream();
        }
        if let Some(freezing) = &mut self.freezing {
            freezing.forget_stream();
        }
        self.port.speak();
        let answer = welcome(nonce, self.is_awake, std::process::id());
        self.streams.control(frames::WELCOME, 0, &answer);
    }

    fn take_from_stream(&mut self, frame: Frame) -> Result<(), Malformed> {
        let id = frame.stream;
        match frame.kind {
            frames::OPEN => self.open_frame(id, frame.flags & frames::MORE != 0, frame.payload),
            frames::DATA => self.data(id, frame.payload),
            frames::END => {
                let mut fields = Reader::new(frame.payload);
                let total = fields.u64()?;
                fields.finish()?;
                self.give_job(id, Input::End(total));
            }
            frames::WINDOW => {
                let mut fields = Reader::new(frame.payload);
                let credit = fields.u32()?;
                fields.finish()?;
                self.streams.credit(id, credit);
            }
            frames::EVENT => self.event(id, frame.payload)?,
            frames::CANCEL => {
                Reader::new(frame.payload).finish()?;
                self.partial.remove(&id);
                if let Some(dropped) = self.streams.cancel(id) {
                    self.dropped(dropped);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts a request together that comes in several frames.
    fn open_frame(&mut self, id: u32, has_more: bool, payload: &[u8]) {
        if id == 0 || self.streams.is_open(id) {
            return;
        }
        if !has_more && !self.partial.contains_key(&id) {
            let _ = self.open(id, payload);
            return;
        }
        let partial_bytes: usize = self.partial.values().map(Vec::len).sum();
        let request = self.partial.entry(id).or_default();
        request.extend_from_slice(payload);
        let is_too_long = request.len() > MAX_REQUEST_BYTES;
        if is_too_long
            || partial_bytes + payload.len() > MAX_PARTIAL_BYTES
            || self.partial.len() > MAX_PARTIAL
        {
            self.partial.remove(&id);
            self.streams.open(id);
            let (code, message) = if is_too_long {
                (Code::TooLarge, "the request is too long")
            } else {
                (Code::TooMany, "too many long requests at once")
            };
            self.streams.fail(id, &Failure::new(code, message));
        } else if !has_more {
            let request = self.partial.remove(&id).unwrap_or_default();
            let _ = self.open(id, &request);
        }
    }

    fn open(&mut self, id: u32, request: &[u8]) -> Result<(), Malformed> {
        let mut fields = Reader::new(request);
        let number = fields.u16()?;
        if request.last() != Some(&crate::record::END_MARK) {
            return Err(Malformed);
        }
        let is_full = self.streams.is_full();
        self.streams.open(id);
        // FREEZE too: of a guest that did not freeze at the first attempt the host asks for another.
        let served_asleep = matches!(number, verb::PROBE | verb::WAKE | verb::FREEZE | verb::THAW);
        let result = if is_full {
            let message = "the capsule has too many operations under way";
            Ok(Err(Failure::new(Code::TooMany, message)))
        } else if !self.is_awake && !served_asleep {
            Ok(Err(Failure::new(Code::Asleep, "the capsule is asleep")))
        } else {
            self.serve(id, number, fields)
        };
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => {
                self.streams.fail(id, &failure);
                Ok(())
            }
            Err(Malformed) => {
                self.streams.cancel(id);
                Err(Malformed)
            }
        }
    }

    /// The outer error: the request is no request. The inner one: it is, and cannot be done.
    fn serve(
        &mut self,
        id: u32,
        number: u16,
        mut fields: Reader,
    ) -> Result<Result<(), Failure>, Malformed> {
        Ok(match number {
            verb::PROBE => {
                fields.finish()?;
                self.streams.result(id, protocol::empty());
                Ok(())
            }
            verb::WAKE => {
                let wake = Wake::read(&mut fields)?;
                fields.finish()?;
                self.wake(id, &wake)
            }
            verb::FREEZE => {
                fields.finish()?;
                self.freeze(id);
                Ok(())
            }
            verb::THAW => {
                fields.finish()?;
                self.thaw(id);
                Ok(())
            }
            verb::EXEC => {
                let command = Command::read(&mut fields)?;
                let mode = fields.u8()?;
                fields.finish()?;
                if mode > exec_mode::OUTCOME {
                    return Err(Malformed);
                }
                self.exec(id, &command, mode)
            }
            verb::ATTACH => {
                let selector = Selector::read(&mut fields)?;
                fields.finish()?;
                self.attach(id, &selector)
            }
            verb::AWAIT => {
                let selector = Selector::read(&mut fields)?;
                fields.finish()?;
                self.await_exit(id, &selector)
            }
            verb::SIGNAL => {
                let selector = Selector::read(&mut fields)?;
                let signal = fields.u8()?;
                fields.finish()?;
                self.signal(id, &selector, signal)
            }
            verb::PTY => {
                let command = Command::read(&mut fields)?;
                let (cols, rows) = (fields.u16()?, fields.u16()?);
                fields.finish()?;
                check_size(cols, rows).and_then(|size| self.pty(id, &command, size))
            }
            verb::CONNECT => {
                let tag = fields.str()?;
                fields.finish()?;
                self.connect(id, tag)
            }
            _ => return self.serve_job(id, number, fields),
        })
    }

    /// The verbs that are jobs.
    fn serve_job(
        &mut self,
        id: u32,
        number: u16,
        mut fields: Reader,
    ) -> Result<Result<(), Failure>, Malformed> {
        let job: Result<Box<dyn Job>, Failure> = match number {
            verb::PROCESSES => {
                fields.finish()?;
                Ok(Box::new(Processes::new(self.sessions.tags())))
            }
            verb::READ | verb::MKDIR | verb::REMOVE => {
                let path = fields.str()?;
                fields.finish()?;
                normalize(path).map(|path| -> Box<dyn Job> {
                    match number {
                        verb::READ => Box::new(Reading::new(path)),
                        verb::MKDIR => Box::new(Making::new(path)),
                        _ => Box::new(Removal::new(path)),
                    }
                })
            }
            verb::WRITE => {
                let path = fields.str()?;
                fields.finish()?;
                Ok(Box::new(Writing::new(path)))
            }
            verb::LIST => {
                let path = fields.str()?;
                let (depth, limit) = (fields.u32()?, fields.u32()?);
                fields.finish()?;
                normalize(path)
                    .map(|path| -> Box<dyn Job> { Box::new(Listing::new(path, depth, limit)) })
            }
            _ => {
                let message = format!("this agent has no verb {number}");
                Err(Failure::new(Code::Invalid, message))
            }
        };
        Ok(job.and_then(|job| self.start_job(id, job)))
    }

    fn event(&mut self, id: u32, payload: &[u8]) -> Result<(), Malformed> {
        let mut fields = Reader::new(payload);
        let kind = fields.u16()?;
        match (kind, self.streams.role(id)) {
            (event::STOP, Some(Role::Foreground(key) | Role::Terminal(key))) => {
                fields.finish()?;
                if !self.streams.is_finished(id) {
                    self.kill_tree(key, None);
                }
            }
            (event::RESIZE, Some(Role::Terminal(key))) => {
                let (cols, rows) = (fields.u16()?, fields.u16()?);
                fields.finish()?;
                if let Ok(size) = check_size(cols, rows) {
                    self.resize(key, size);
                }
            }
            (event::TAKEN, Some(Role::Terminal(_)) | None) => {
                let total = fields.u64()?;
                fields.finish()?;
                if let Some(dropped) = self.streams.taken(id, total) {
                    self.dropped(dropped);
                }
            }
            (event::TARGET, Some(Role::Work)) => {
                let path = fields.str()?.to_vec();
                fields.finish()?;
                self.give_job(id, Input::Target(path));
            }
            _ => {}
        }
        Ok(())
    }

    fn data(&mut self, id: u32, bytes: &[u8]) {
        let result = if !self.streams.receive(id, bytes.len()) {
            let message = "more data than the window allows";
            Err(Failure::new(Code::Invalid, message))
        } else {
            match self.streams.role(id) {
                Some(Role::Terminal(key)) => self.terminal_input(id, key, bytes),
                Some(Role::Work) => {
                    self.give_job(id, Input::Data(bytes.to_vec()));
                    Ok(())
                }
                _ => Ok(()),
            }
        };
        if let Err(failure) = result {
            self.fail(id, &failure);
        }
    }

    /// Ends a stream that its role knows nothing about yet.
    fn fail(&mut self, id: u32, failure: &Failure) {
        let role = self.streams.role(id);
        let unsent = self.streams.fail(id, failure);
        if let Some(role) = role {
            self.dropped(Dropped { id, role, unsent });
        }
    }

    /// A stream that the host has dropped, or that a new epoch ends.
    fn dropped(&mut self, Dropped { id, role, unsent }: Dropped) {
        match role {
            Role::Foreground(key) => {
                self.detach(id, key, &[]);
                self.kill_tree(key, None);
            }
            Role::Attached(key) | Role::Terminal(key) => self.detach(id, key, &unsent),
            Role::Waiting(key) => self.stop_waiting(id, key),
            Role::Work => self.end_job(id),
            Role::Call => {}
        }
    }
}
