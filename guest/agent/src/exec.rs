//! EXEC and ATTACH: commands with pipes for their output. What comes out of them is the business of outputs.rs.

use std::os::fd::AsRawFd;

use crate::agent::Agent;
use crate::command::{self, check_tag, out_of_resources, spawn_failure};
use crate::epoll::Source;
use crate::protocol::{self, channel, exec_mode, Code, Command, Failure, Selector};
use crate::sessions::{Kind, Output, Session};
use crate::spawn::{self, Program, Step};
use crate::stream::Role;
use crate::sys;

impl Agent {
    pub fn exec(&mut self, stream: u32, command: &Command, mode: u8) -> Result<(), Failure> {
        let is_background = mode == exec_mode::BACKGROUND;
        let tag = command.tag.map(check_tag).transpose()?;
        let tag = self.sessions.claim_tag(tag, "proc")?;
        let mut program = command::prepare(command, false)?;
        let pipes = || sys::pipe().map_err(|error| out_of_resources(&error));
        let (stdout, stderr) = (pipes()?, pipes()?);
        program.stdio = [
            self.null.as_raw_fd(),
            stdout.1.as_raw_fd(),
            stderr.1.as_raw_fd(),
        ];
        let outputs = vec![
            Output::pipe(stdout, channel::STDOUT),
            Output::pipe(stderr, channel::STDERR),
        ];
        let kind = if is_background {
            Kind::Background
        } else {
            Kind::Foreground
        };
        let (key, pid) = self.start(kind, &tag, command, &program, outputs)?;
        if is_background {
            let result = protocol::started(pid, &tag).finish();
            self.streams.result(stream, result);
        } else {
            self.hear(stream, Role::Foreground(key), key);
            // Unasked, it would be one more message between the command and its end.
            if mode != exec_mode::OUTCOME {
                self.tell_start(stream, key);
            }
        }
        Ok(())
    }

    pub fn attach(&mut self, stream: u32, selector: &Selector) -> Result<(), Failure> {
        let key = self
            .sessions
            .select(selector)
            .filter(|&key| {
                self.sessions
                    .get(key)
                    .is_some_and(|session| session.kind == Kind::Background)
            })
            .ok_or_else(|| selector.not_found())?;
        self.listen(stream, Role::Attached(key), key);
        Ok(())
    }

    /// Tells of a background process's end only, also when that was a while ago.
    pub fn await_exit(&mut self, stream: u32, selector: &Selector) -> Result<(), Failure> {
        let key = self.sessions.background(selector);
        let session = key.and_then(|key| self.sessions.get_mut(key));
        let (Some(key), Some(session)) = (key, session) else {
            return Err(selector.not_found());
        };
        match session.exit.filter(|_| session.is_over) {
            Some(exit) => {
                session.is_told = true;
                self.streams.result(stream, exit.record());
            }
            None => {
                session.waiters.push(stream);
                self.streams.set_role(stream, Role::Waiting(key));
            }
        }
        Ok(())
    }

    /// Starts a program as a session of its own.
    pub fn start(
        &mut self,
        kind: Kind,
        tag: &str,
        command: &Command,
        program: &Program,
        outputs: Vec<Output>,
    ) -> Result<(u32, u32), Failure> {
        if self.sessions.is_full() {
            let message = "the capsule has too many commands running";
            return Err(Failure::new(Code::TooMany, message));
        }
        let started_ns = sys::monotonic_ns();
        let (pid, cgroup) = self.spawn_in_cgroup(command, program)?;
        let key = self.sessions.new_key();
        for (index, output) in outputs.iter().enumerate() {
            if let Some(fd) = output.raw() {
                let source = Source::Session(key, index as u8);
                // Out of memory at worst; then the output is read when the leader ends.
                let _ = self.epoll.watch(fd, source);
            }
        }
        let session = Session {
            kind,
            tag: tag.to_string(),
            pid,
            cgroup,
            started_ns,
            outputs,
            clients: Vec::new(),
            waiters: Vec::new(),
            exit: None,
            kills: 0,
            terminal: None,
            is_over: false,
            is_told: false,
        };
        self.sessions.insert(key, session);
        Ok((key, pid as u32))
    }

    /// A used cgroup may have been spoilt by what ran in it; a new one then does.
    fn spawn_in_cgroup(
        &mut self,
        command: &Command,
        program: &Program,
    ) -> Result<(libc::pid_t, Option<u32>), Failure> {
        let mut attempts = 0;
        loop {
            let cgroup = self
                .cgroups
                .take()
                .map_err(|error| out_of_resources(&error))?;
            let dir = cgroup.and_then(|id| self.cgroups.dir(id));
            let error = match spawn::spawn(&mut self.stack, program, dir) {
                Ok(pid) => return Ok((pid, cgroup)),
                Err(error) => error,
            };
            attempts += 1;
            let is_spoilt = error.step == Step::Clone
                && matches!(
                    error.error.raw_os_error(),
                    Some(libc::EBUSY | libc::EOPNOTSUPP | libc::ENODEV)
                );
            if let Some(id) = cgroup {
                if is_spoilt {
                    self.cgroups.discard(id);
                } else {
                    self.cgroups.give_back(id);
                }
            }
            if !is_spoilt || attempts > 16 {
                return Err(spawn_failure(command, &error));
            }
        }
    }

    /// The stream hears the session from now on, and first that it was started.
    pub fn listen(&mut self, stream: u32, role: Role, key: u32) {
        self.hear(stream, role, key);
        self.tell_start(stream, key);
    }

    fn hear(&mut self, stream: u32, role: Role, key: u32) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.clients.push(stream);
            self.streams.set_role(stream, role);
        }
    }

    fn tell_start(&mut self, stream: u32, key: u32) {
        if let Some(session) = self.sessions.get(key) {
            let event = protocol::started_event(session.pid as u32, &session.tag);
            self.streams.event(stream, &event);
        }
    }
}
