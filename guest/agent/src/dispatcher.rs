//! From the host's frames to the parts that serve them: the handshake, requests, and messages within a stream.

use crate::dials::Dials;
use crate::epoll::Epoll;
use crate::frames::{self, Frame};
use crate::growing::Growing;
use crate::job::Input;
use crate::partial::PartialRequests;
use crate::ports::Ports;
use crate::processes::Processes;
use crate::protocol::{self, empty, Code, Failure, Hello, Position, Selector, Versions, Welcome};
use crate::pty::Size;
use crate::record::{Malformed, Reader, END_MARK};
use crate::request::{Message, Request};
use crate::session::Session;
use crate::stream::{Dropped, Role};
use crate::streams::Streams;
use crate::supervisor::Supervisor;
use crate::tasks::Tasks;
use crate::usage::Measuring;
use crate::wake::WakeState;

mod admission;
mod events;
mod sending;

pub struct Dispatcher {
    wake_state: WakeState,
    /// The host asked for the list of verbs. An older one takes a WAKE's result with problems for a malformed one.
    reads_problems: bool,
    versions: Versions,
    streams: Streams,
    partial: PartialRequests,
    supervisor: Supervisor,
    tasks: Tasks,
    dials: Dials,
}

impl Dispatcher {
    pub fn new(
        wake_state: WakeState,
        versions: Versions,
        supervisor: Supervisor,
        tasks: Tasks,
    ) -> Dispatcher {
        Dispatcher {
            wake_state,
            reads_problems: false,
            versions,
            streams: Streams::default(),
            partial: PartialRequests::default(),
            supervisor,
            tasks,
            dials: Dials::default(),
        }
    }

    // ---- Frames

    /// True: the frame is a HELLO that began a new epoch. A malformed payload is dropped without an answer, since it may be
    /// part of a frame from an earlier connection.
    pub fn receive(&mut self, frame: &Frame, epoll: &Epoll) -> bool {
        if frame.kind == frames::HELLO {
            let hello = protocol::read_hello(frame.payload);
            let hello = hello.ok().filter(|_| frame.epoch != 0);
            let has_verbs = frame.flags & frames::LIST_VERBS != 0;
            return hello.is_some_and(|hello| self.begin_epoch(frame.epoch, &hello, has_verbs));
        }
        if frame.epoch == self.streams.epoch() && frame.epoch != 0 {
            if frame.kind == frames::OPEN {
                let has_more = frame.flags & frames::MORE != 0;
                self.receive_open(frame.stream, has_more, frame.payload, epoll);
            } else if let Ok(message) = Message::read(frame) {
                self.receive_message(frame.stream, message);
            }
        }
        false
    }

    fn begin_epoch(&mut self, epoch: u16, hello: &Hello, has_verbs: bool) -> bool {
        self.partial.clear();
        for dropped in self.streams.begin_epoch(epoch) {
            self.drop_stream(dropped);
        }
        self.supervisor.forget_streams();
        self.reads_problems = has_verbs;
        let welcome = Welcome {
            nonce: &hello.nonce,
            version: self.versions.welcome(hello.version),
            is_awake: self.supervisor.is_awake(),
            pid: std::process::id(),
            has_verbs,
        };
        self.streams.control(frames::WELCOME, 0, &welcome.record());
        true
    }

    fn receive_open(&mut self, id: u32, has_more: bool, payload: &[u8], epoll: &Epoll) {
        if id == 0 || self.streams.is_open(id) {
            return;
        }
        match self.partial.add(id, has_more, payload) {
            Some(Ok(request)) => self.open(id, &request, epoll),
            Some(Err(failure)) => {
                self.streams.open(id);
                self.streams.fail(id, &failure);
            }
            None => {}
        }
    }

    fn open(&mut self, id: u32, request: &[u8], epoll: &Epoll) {
        let mut fields = Reader::new(request);
        let Ok(number) = fields.u16() else {
            return;
        };
        if request.last() != Some(&END_MARK) {
            return;
        }
        let admitted = self.admit(number, request.len());
        self.streams.open(id);
        let result = match admitted {
            Err(failure) => Err(failure),
            Ok(verb) => match Request::read(verb, fields) {
                Ok(request) => self.serve(id, &request, epoll),
                Err(Malformed) => {
                    self.streams.cancel(id);
                    return;
                }
            },
        };
        if let Err(failure) = result {
            self.streams.fail(id, &failure);
        }
    }

    fn serve(&mut self, id: u32, request: &Request, epoll: &Epoll) -> Result<(), Failure> {
        let streams = &mut self.streams;
        let supervisor = &mut self.supervisor;
        match request {
            Request::Probe => streams.result(id, empty()),
            Request::Wake(wake) => {
                let mut problems = self.wake_state.wake(wake)?;
                supervisor.sessions().scatter_tags();
                if !self.reads_problems {
                    problems.clear();
                }
                streams.result(id, protocol::woken(&problems));
            }
            Request::Freeze => supervisor.freeze(id, streams),
            Request::Thaw => supervisor.thaw(id, streams),
            Request::Halt { term_ms } => {
                supervisor.halt(*term_ms);
                streams.result(id, empty());
            }
            Request::Exec(exec) => supervisor.exec(id, exec, streams, epoll)?,
            Request::Input(selector) => supervisor.sessions().open_input(id, selector, streams)?,
            Request::Pty {
                command,
                cols,
                rows,
            } => supervisor.pty(id, command, Size::new(*cols, *rows)?, streams, epoll)?,
            Request::Attach(selector) => supervisor.sessions().attach(id, selector, streams)?,
            Request::AttachFrom {
                selector: Selector::Tag(tag),
                position: Position::Screen,
            } => supervisor.connect(id, tag, true, streams)?,
            Request::AttachFrom { selector, position } => {
                let sessions = supervisor.sessions();
                sessions.attach_from(id, selector, *position, streams)?;
            }
            Request::Logs {
                selector,
                channel,
                tail,
            } => {
                let sessions = supervisor.sessions();
                sessions.send_log(id, selector, *channel, *tail, streams)?;
            }
            Request::Await(selector) => supervisor.sessions().await_exit(id, selector, streams)?,
            Request::Connect { tag } => supervisor.connect(id, tag, false, streams)?,
            Request::Signal { selector, signal } => {
                supervisor.signal(id, selector, *signal, streams)?;
            }
            Request::Processes { is_long } => {
                let times = is_long.then(|| self.wake_state.start_times().clone());
                let leaders = supervisor.sessions().leader_labels();
                let job = Processes::new(leaders, supervisor.gateway(), times);
                self.tasks.start(id, Box::new(job), streams)?;
            }
            Request::Usage => self.tasks.start(id, Box::new(Measuring), streams)?,
            Request::Grow { disk_bytes } => {
                let job = Growing::new(*disk_bytes)?;
                self.tasks.start(id, Box::new(job), streams)?;
            }
            Request::Dial { port } => self.dials.start(id, *port, streams, epoll)?,
            Request::Ports => self.tasks.start(id, Box::<Ports>::default(), streams)?,
            Request::File(request) => self.tasks.start(id, request.job()?, streams)?,
        }
        Ok(())
    }

    fn receive_message(&mut self, id: u32, message: Message) {
        match (message, self.streams.role(id)) {
            (Message::Data(bytes), role) => self.receive_data(id, role, bytes),
            (Message::End { total }, Some(Role::Dial)) => {
                if let Err(failure) = self.dials.end_input(id, total) {
                    self.streams.fail(id, &failure);
                    self.dials.end(id);
                }
            }
            (Message::End { total }, role) => match role.and_then(Role::input_session) {
                Some(key) => self.supervisor.sessions().end_input(key, &mut self.streams),
                None => self.tasks.add_input(id, Input::End(total), &self.streams),
            },
            (Message::Window { credit }, _) => self.streams.credit(id, credit),
            (Message::Cancel, _) => {
                self.partial.remove(id);
                let dropped = self.streams.cancel(id);
                dropped.into_iter().for_each(|it| self.drop_stream(it));
            }
            (
                Message::Stop,
                Some(Role::Starting(key) | Role::Foreground(key) | Role::Terminal(key)),
            ) if !self.streams.is_finished(id) => {
                self.supervisor.kill(key, None);
            }
            (Message::Resize { cols, rows }, Some(Role::Starting(key) | Role::Terminal(key))) => {
                let session = self.supervisor.sessions().get_mut(key);
                if let (Some(session), Ok(size)) = (session, Size::new(cols, rows)) {
                    session.resize(size);
                }
            }
            (Message::Taken { total }, Some(Role::Terminal(_)) | None) => {
                let dropped = self.streams.taken(id, total);
                dropped.into_iter().for_each(|it| self.drop_stream(it));
            }
            (Message::Target { path }, Some(Role::Work)) => {
                let input = Input::Target(path.to_vec());
                self.tasks.add_input(id, input, &self.streams);
            }
            (Message::Attributes(attributes), Some(Role::Work)) => {
                let input = Input::Attributes(attributes);
                self.tasks.add_input(id, input, &self.streams);
            }
            _ => {}
        }
    }

    fn receive_data(&mut self, id: u32, role: Option<Role>, bytes: &[u8]) {
        let streams = &mut self.streams;
        let result = if !streams.receive(id, bytes.len()) {
            let message = "more data than the window allows";
            Err(Failure::new(Code::Invalid, message))
        } else if let Some(key) = role.and_then(Role::input_session) {
            let sessions = self.supervisor.sessions();
            sessions.add_input(id, key, bytes, streams)
        } else if role == Some(Role::Dial) {
            self.dials.add_input(id, bytes)
        } else {
            if role == Some(Role::Work) {
                let input = Input::Data(bytes.to_vec());
                self.tasks.add_input(id, input, streams);
            }
            Ok(())
        };
        if let (Err(failure), Some(role)) = (result, role) {
            let unsent = self.streams.fail(id, &failure);
            self.drop_stream(Dropped { id, role, unsent });
        }
    }

    /// Ends or detaches from what the stream was opened for.
    fn drop_stream(&mut self, Dropped { id, role, unsent }: Dropped) {
        let sessions = self.supervisor.sessions();
        match role {
            Role::Starting(key) => self.supervisor.abandon_start(key),
            Role::Foreground(key) => {
                sessions.detach(id, key, &[]);
                if sessions.get(key).is_some_and(Session::survives) {
                    sessions.mark_ready(key); // its output may have waited for the client
                } else {
                    self.supervisor.kill(key, None);
                }
            }
            Role::Attached(key) | Role::Reading(key) | Role::Terminal(key) => {
                sessions.detach(id, key, &unsent);
            }
            Role::Waiting(key) => sessions.remove_waiter(id, key),
            Role::Input(key) => sessions.remove_writer(id, key),
            Role::Dial => self.dials.end(id),
            Role::Work => self.tasks.end(id),
            Role::Call => {}
        }
    }
}
