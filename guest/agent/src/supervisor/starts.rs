//! The start of commands, and the commands whose children are stuck on the way to their programs.

use super::Supervisor;
use crate::effects::Effect;
use crate::epoll::Epoll;
use crate::launcher::{Launch, Launched};
use crate::protocol::{exec_mode, Command, Failure};
use crate::pty::Size;
use crate::request::Exec;
use crate::session::{Kind, Session};
use crate::stream::Role;
use crate::streams::Streams;
use crate::timers::Due;

/// Stuck commands are looked at after this time, and then at intervals that double up to the second one.
const FIRST_START_POLL_MS: u64 = 5;
const LAST_START_POLL_MS: u64 = 200;

#[derive(Default)]
pub struct StuckStarts {
    /// Sessions whose children have not executed their programs.
    keys: Vec<u32>,
    poll_ms: u64,
}

impl Supervisor {
    pub fn exec(
        &mut self,
        stream: u32,
        exec: &Exec,
        streams: &mut Streams,
        epoll: &Epoll,
    ) -> Result<(), Failure> {
        let command = &exec.command;
        let tag = self.sessions.claim_tag(command.tag, "proc")?;
        let kind = match exec.mode {
            exec_mode::BACKGROUND => Kind::Background,
            _ => Kind::Foreground,
        };
        // The client may wait for the result only; then STARTED would be one more frame before it.
        let is_quiet = exec.mode == exec_mode::OUTCOME;
        let mut launch = self.launcher.with_pipes(kind, command, exec.has_stdin)?;
        launch.survives = exec.survives && kind == Kind::Foreground;
        self.start(stream, launch, tag, is_quiet, streams, epoll)
    }

    pub fn pty(
        &mut self,
        stream: u32,
        command: &Command,
        size: Size,
        streams: &mut Streams,
        epoll: &Epoll,
    ) -> Result<(), Failure> {
        let tag = self.sessions.claim_tag(command.tag, "pty")?;
        let launch = self.launcher.with_terminal(command, size)?;
        self.start(stream, launch, tag, false, streams, epoll)
    }

    fn start(
        &mut self,
        stream: u32,
        launch: Launch,
        tag: String,
        is_quiet: bool,
        streams: &mut Streams,
        epoll: &Epoll,
    ) -> Result<(), Failure> {
        self.sessions.check_room()?;
        let stuck = self.stuck.keys.len();
        let Launched { session, stuck } =
            self.launcher.start(launch, tag, stuck, &mut self.cgroups)?;
        let (key, session) = self.sessions.insert(session, epoll);
        let Some(child) = stuck else {
            session.announce(key, stream, is_quiet, streams);
            return Ok(());
        };
        session.await_start(child, stream, is_quiet);
        streams.set_role(stream, Role::Starting(key));
        self.stuck.poll_ms = FIRST_START_POLL_MS;
        if self.stuck.keys.is_empty() {
            self.arm_start_poll();
        }
        self.stuck.keys.push(key);
        Ok(())
    }

    /// Commands that were stuck may have executed their programs.
    pub fn poll_starts(&mut self, streams: &mut Streams) {
        for key in std::mem::take(&mut self.stuck.keys) {
            self.pump(key, streams);
            if self.sessions.get(key).is_some_and(Session::is_starting) {
                self.stuck.keys.push(key);
            }
        }
        if !self.stuck.keys.is_empty() {
            self.stuck.poll_ms = (2 * self.stuck.poll_ms).min(LAST_START_POLL_MS);
            self.arm_start_poll();
        }
    }

    fn arm_start_poll(&mut self) {
        let effect = Effect::arm(self.stuck.poll_ms, Due::Starts);
        self.effects.push(effect);
    }

    /// The client of a stuck command is gone.
    pub fn abandon_start(&mut self, key: u32) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.abandon_start();
            if !session.survives() {
                self.kill(key, None);
            }
        }
    }

    /// The child of a stuck command could not execute its program, and has ended. False: it is another one.
    pub(super) fn end_failed_start(&mut self, key: u32, streams: &mut Streams) -> bool {
        let Some(session) = self.sessions.get_mut(key) else {
            return false;
        };
        let Some((stream, failure)) = session.take_failed_start() else {
            return false;
        };
        if let Some(stream) = stream {
            streams.fail(stream, &failure);
        }
        session.close_input(streams);
        if let Some(cgroup) = session.release(&mut self.effects) {
            self.cgroups.release(cgroup);
        }
        self.sessions.remove(key, streams);
        true
    }
}
