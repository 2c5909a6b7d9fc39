//! A session: one command started through the API, from its start until its end has been delivered.
//!
//! ```text
//!   pipe or terminal ─► pump ─► every listener's stream
//!   waitpid ─► leader_ended ─► pump, end_drain ─► settle ─► RESULT, after all output
//! ```

use std::os::fd::RawFd;

use crate::effects::{Effect, Effects};
use crate::epoll::{Epoll, Source};
use crate::input::Input;
use crate::listeners::{Listeners, CHUNK_BYTES};
use crate::output::Output;
use crate::output_log::OutputLog;
use crate::protocol::{self, channel, Exit};
use crate::readers::Readers;
use crate::stdin::Stdin;
use crate::stream::Role;
use crate::streams::Streams;
use crate::terminal::Terminal;
use redraw::Redraw;
use starting::Starting;

mod input;
mod log;
pub mod redraw;
mod starting;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Foreground,
    Background,
    Terminal,
}

/// The process that a session begins and ends with.
#[derive(Clone, Copy)]
pub struct Leader {
    pub pid: libc::pid_t,
    pub cgroup: Option<u32>,
    pub started_ns: u64,
}

pub struct Session {
    kind: Kind,
    tag: String,
    leader: Leader,
    starting: Option<Starting>,
    outputs: Vec<Output>,
    /// Streams that receive its output and its exit.
    listeners: Listeners,
    /// It goes on when the client that started it leaves.
    survives: bool,
    /// The last output, of a background process and of a command that survives.
    log: Option<Box<OutputLog>>,
    /// Streams that receive its output from the log, and its exit.
    readers: Readers,
    /// Streams that receive its exit only.
    waiters: Vec<u32>,
    /// The leader's, from `waitpid`.
    exit: Option<Exit>,
    /// Kills of its process tree that are not completed. The session does not end before them.
    kills: u32,
    /// Input of a terminal.
    input: Option<Input>,
    /// Only where standard input is a pipe.
    stdin: Option<Box<Stdin>>,
    /// Only with a terminal.
    terminal: Option<Terminal>,
    redraw: Option<Redraw>,
    /// Its result is sent. A terminal and a background process are kept for late clients.
    is_over: bool,
    /// A client has received its result, and all output before it.
    is_delivered: bool,
}

impl Session {
    pub fn new(
        kind: Kind,
        tag: String,
        leader: Leader,
        outputs: Vec<Output>,
        stdin: Option<Box<Stdin>>,
    ) -> Session {
        Session {
            kind,
            tag,
            leader,
            starting: None,
            outputs,
            listeners: Listeners::default(),
            survives: false,
            log: (kind == Kind::Background).then(Box::default),
            readers: Readers::default(),
            waiters: Vec::new(),
            exit: None,
            kills: 0,
            input: (kind == Kind::Terminal).then(Input::default),
            stdin,
            terminal: (kind == Kind::Terminal).then(Terminal::default),
            redraw: None,
            is_over: false,
            is_delivered: false,
        }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn tag(&self) -> &str {
        &self.tag
    }

    pub fn leader(&self) -> Leader {
        self.leader
    }

    /// The leader's pid, as clients know it.
    pub fn pid(&self) -> u32 {
        self.leader.pid as u32
    }

    pub fn is_alive(&self) -> bool {
        self.exit.is_none()
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    pub fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    pub fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    // ---- Clients

    /// The stream receives the output from now on.
    pub fn add_listener(&mut self, stream: u32, role: Role, streams: &mut Streams) {
        if matches!(role, Role::Foreground(_)) {
            self.listeners.lead(stream);
        } else {
            self.listeners.add(stream);
        }
        streams.set_role(stream, role);
    }

    pub fn send_started(&self, stream: u32, streams: &mut Streams) {
        streams.event(stream, &protocol::started_event(self.pid(), &self.tag));
    }

    /// Adds a client of the terminal. It receives the missed output, or with `is_whole` the last output, and then the live output without a gap, since
    /// nothing is read in between.
    pub fn connect(&mut self, stream: u32, role: Role, is_whole: bool, streams: &mut Streams) {
        let take = if is_whole {
            Terminal::last
        } else {
            Terminal::take_missed
        };
        let missed = self.terminal.as_mut().map(take);
        self.add_listener(stream, role, streams);
        self.send_started(stream, streams);
        streams.data(stream, channel::MAIN, &missed.unwrap_or_default());
        if let Some(exit) = self.exit.filter(|_| self.is_over) {
            streams.result(stream, exit.record());
        }
    }

    /// The stream receives the exit: at once if the session is over.
    pub fn await_exit(&mut self, stream: u32, role: Role, streams: &mut Streams) {
        match self.exit.filter(|_| self.is_over) {
            Some(exit) => {
                self.is_delivered = true;
                streams.result(stream, exit.record());
            }
            None => {
                self.waiters.push(stream);
                streams.set_role(stream, role);
            }
        }
    }

    /// The stream is closed and no longer awaits the exit.
    pub fn remove_waiter(&mut self, stream: u32) {
        self.waiters.retain(|&waiter| waiter != stream);
    }

    /// The stream is closed. Output that a terminal's last client did not receive is kept for the next one.
    pub fn detach(&mut self, stream: u32, unsent: &[u8]) {
        if self.readers.remove(stream) {
            return;
        }
        self.listeners.remove(stream);
        self.is_delivered = self.is_over && unsent.is_empty();
        if let Some(terminal) = self.terminal.as_mut().filter(|_| self.listeners.is_empty()) {
            terminal.miss(unsent);
        }
    }

    // ---- Input and output

    fn terminal_master(&self) -> Option<RawFd> {
        let master = self.outputs.first().filter(|_| self.has_terminal());
        master.and_then(Output::fd)
    }

    pub fn watch_outputs(&self, key: u32, epoll: &Epoll) {
        for (index, output) in self.outputs.iter().enumerate() {
            output.watch(epoll, Source::Session(key, index as u8));
        }
        if let Some(fd) = self.stdin.as_ref().and_then(|it| it.fd()) {
            let _ = epoll.watch(fd, Source::Session(key, self.outputs.len() as u8));
        }
    }

    pub fn note_readable(&mut self, index: u8, is_readable: bool) {
        if let Some(output) = self.outputs.get_mut(usize::from(index)) {
            output.note_readable(is_readable);
        }
    }

    /// Moves input and output, at most `scratch` of each output. True: there is more to read and room for it.
    pub fn pump(
        &mut self,
        streams: &mut Streams,
        scratch: &mut [u8],
        effects: &mut Effects,
    ) -> bool {
        self.write_input(streams);
        let mut has_written = false;
        let is_terminal_held = self.has_terminal() && self.is_alive();
        let mut has_more = false;
        for output in &mut self.outputs {
            let room = self.listeners.room(streams);
            let mut budget = room.min(scratch.len());
            while budget > 0 {
                let count = output.read(&mut scratch[..budget], is_terminal_held, effects);
                if count == 0 {
                    break;
                }
                has_written = true;
                budget -= count;
                let bytes = &scratch[..count];
                if let Some(log) = &mut self.log {
                    log.push(output.channel(), bytes);
                }
                if let Some(terminal) = &mut self.terminal {
                    terminal.keep(bytes);
                }
                let unsent = self.listeners.deliver(output.channel(), bytes, streams);
                if let (Some(unsent), Some(terminal)) = (unsent, &mut self.terminal) {
                    terminal.miss(&unsent);
                    terminal.miss(bytes);
                }
            }
            has_more |= room > 0 && output.has_more();
        }
        if has_written {
            self.note_drawing();
        }
        self.feed_readers(streams);
        has_more
    }

    // ---- The end

    pub fn begin_kill(&mut self) {
        self.kills += 1;
    }

    pub fn end_kill(&mut self) {
        self.kills -= 1;
    }

    /// The leader has ended; its output is still to be read.
    pub fn leader_ended(&mut self, exit: Exit) {
        self.exit = Some(exit);
        self.outputs.iter_mut().for_each(Output::release_writer);
    }

    /// Another process holds an output open, and the leader ended long enough ago.
    pub fn end_drain(&mut self) {
        self.outputs.iter_mut().for_each(Output::end_drain);
    }

    /// Sends the result once everything before it is done. True: the session is over from now on.
    pub fn settle(&mut self, streams: &mut Streams) -> bool {
        let is_done = self.kills == 0 && self.outputs.iter().all(Output::is_over);
        let Some(exit) = self.exit.filter(|_| is_done && !self.is_over) else {
            return false;
        };
        self.is_over = true;
        let waiters = std::mem::take(&mut self.waiters);
        self.is_delivered = !waiters.is_empty();
        for stream in self.listeners.iter().chain(waiters) {
            streams.result(stream, exit.record());
        }
        self.feed_readers(streams);
        self.write_input(streams);
        self.close_input(streams);
        true
    }

    /// Takes a session that is over apart: returns its cgroup, and hands the pipes that other processes hold open to the
    /// loop.
    pub fn release(&mut self, effects: &mut Effects) -> Option<u32> {
        let outputs = std::mem::take(&mut self.outputs).into_iter();
        if !self.has_terminal() {
            effects.extend(outputs.filter_map(Output::into_fd).map(Effect::Orphan));
        }
        self.leader.cgroup.take()
    }
}

/// For every read of a command's output.
pub fn scratch() -> Vec<u8> {
    vec![0; CHUNK_BYTES]
}
