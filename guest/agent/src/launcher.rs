//! EXEC and PTY: from a command to the session that runs it, with its pipes or terminal and its cgroup.
//!
//! A child that does not execute its program within `MAX_WAIT` is left to itself: its session begins without being told to
//! the client, which supervisor.rs does when the start has succeeded or failed.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::cgroups::Cgroups;
use crate::command::{self, out_of_resources, spawn_failure, Stuck};
use crate::output::Output;
use crate::protocol::{channel, Code, Command, Failure};
use crate::pty::{self, Size};
use crate::session::{Kind, Leader, Session};
use crate::spawn::{self, Program, SpawnError, Spawned, Stack, Stage, Start};
use crate::stdin::Stdin;
use crate::sys;

/// A new cgroup is usable, so a kernel that refuses this many refuses all.
const MAX_ATTEMPTS: usize = 16;
/// How long the loop waits for a child. Any start takes less, unless something in the guest prevents it.
const MAX_WAIT: Duration = Duration::from_millis(50);
/// The same while other children are stuck already.
const SHORT_WAIT: Duration = Duration::from_millis(5);
/// Children that have not executed their programs.
const MAX_STUCK: usize = 64;

/// Everything a command needs, before its process is started.
pub struct Launch<'a> {
    kind: Kind,
    command: &'a Command<'a>,
    program: Arc<Program>,
    outputs: Vec<Output>,
    stdin: Option<Box<Stdin>>,
    /// A foreground command goes on when its client leaves.
    pub survives: bool,
    /// A terminal's slave or the read end of standard input, open until the process has it.
    _theirs: Option<OwnedFd>,
}

/// A started command, and its child if that has not executed its program yet.
pub struct Launched {
    pub session: Session,
    pub stuck: Option<Stuck>,
}

pub struct Launcher {
    /// /dev/null, for the standard input of commands without one.
    null: OwnedFd,
    /// `None` while a child uses it.
    stack: Option<Stack>,
}

impl Launcher {
    pub fn new() -> io::Result<Launcher> {
        Ok(Launcher {
            null: sys::open(c"/dev/null", libc::O_RDWR)?,
            stack: None,
        })
    }

    /// Standard input is a pipe with `has_stdin`, or else /dev/null.
    pub fn with_pipes<'a>(
        &self,
        kind: Kind,
        command: &'a Command,
        has_stdin: bool,
    ) -> Result<Launch<'a>, Failure> {
        let mut program = command::prepare(command, false)?;
        let pipe = || sys::pipe().map_err(|error| out_of_resources(&error));
        let (stdout, stderr) = (pipe()?, pipe()?);
        let (theirs, stdin) = if has_stdin {
            let (reading, writing) = sys::input_pipe().map_err(|error| out_of_resources(&error))?;
            (Some(reading), Some(Box::new(Stdin::new(writing))))
        } else {
            (None, None)
        };
        program.stdio = [
            theirs.as_ref().unwrap_or(&self.null).as_raw_fd(),
            stdout.1.as_raw_fd(),
            stderr.1.as_raw_fd(),
        ];
        let outputs = vec![
            Output::pipe(stdout, channel::STDOUT),
            Output::pipe(stderr, channel::STDERR),
        ];
        Ok(Launch {
            kind,
            command,
            program: Arc::new(program),
            outputs,
            stdin,
            survives: false,
            _theirs: theirs,
        })
    }

    pub fn with_terminal<'a>(
        &self,
        command: &'a Command,
        size: Size,
    ) -> Result<Launch<'a>, Failure> {
        let mut program = command::prepare(command, true)?;
        let owner = program.identity.as_ref().map(|identity| identity.uid);
        let (master, slave) = pty::open(size, owner).map_err(|error| out_of_resources(&error))?;
        program.stdio = [slave.as_raw_fd(); 3];
        Ok(Launch {
            kind: Kind::Terminal,
            command,
            program: Arc::new(program),
            outputs: vec![Output::terminal(master, channel::MAIN)],
            stdin: None,
            survives: false,
            _theirs: Some(slave),
        })
    }

    /// `stuck`: how many children have not executed their programs.
    pub fn start(
        &mut self,
        launch: Launch,
        tag: String,
        stuck: usize,
        cgroups: &mut Cgroups,
    ) -> Result<Launched, Failure> {
        let max_wait = match stuck {
            0 => MAX_WAIT,
            1..MAX_STUCK => SHORT_WAIT,
            _ => {
                let message = "too many commands wait for the execution of their programs";
                return Err(Failure::new(Code::TooMany, message));
            }
        };
        let started_ns = sys::monotonic_ns();
        let command = launch.command;
        let (spawned, cgroup) = self
            .spawn(&launch.program, max_wait, cgroups)
            .map_err(|error| spawn_failure(command.cmd, command.cwd, &error))?;
        let leader = Leader {
            pid: spawned.pid,
            cgroup,
            started_ns,
        };
        // A start that has failed since the wait is told like that of a stuck child.
        let is_stuck = !matches!(spawned.start(), Start::Done);
        let stuck = if is_stuck {
            Some(Stuck {
                spawned,
                cmd: command.cmd.to_vec(),
                cwd: command.cwd.map(<[u8]>::to_vec),
            })
        } else {
            self.stack = Some(spawned.into_stack());
            None
        };
        let mut session = Session::new(launch.kind, tag, leader, launch.outputs, launch.stdin);
        if launch.survives {
            session.keep_after_client();
        }
        Ok(Launched { session, stuck })
    }

    /// The commands that used a cgroup before may have made it unusable; then another one is tried.
    fn spawn(
        &mut self,
        program: &Arc<Program>,
        max_wait: Duration,
        cgroups: &mut Cgroups,
    ) -> Result<(Spawned, Option<u32>), SpawnError> {
        let mut attempts = 0;
        loop {
            let cgroup = cgroups.acquire().map_err(|error| SpawnError {
                stage: Stage::Clone,
                error,
            })?;
            let dir = cgroup.and_then(|id| cgroups.dir(id));
            let error = match self.spawn_into(dir, program, max_wait) {
                Ok(spawned) => return Ok((spawned, cgroup)),
                Err(error) => error,
            };
            attempts += 1;
            let is_unusable = error.stage == Stage::Clone
                && matches!(
                    error.error.raw_os_error(),
                    Some(libc::EBUSY | libc::EOPNOTSUPP | libc::ENODEV)
                );
            if let Some(id) = cgroup {
                if is_unusable {
                    cgroups.discard(id);
                } else {
                    cgroups.release(id);
                }
            }
            if !is_unusable || attempts > MAX_ATTEMPTS {
                return Err(error);
            }
        }
    }

    fn spawn_into(
        &mut self,
        cgroup: Option<RawFd>,
        program: &Arc<Program>,
        max_wait: Duration,
    ) -> Result<Spawned, SpawnError> {
        let stack = self.stack.take().unwrap_or_default();
        let spawned = match spawn::spawn(stack, program, cgroup) {
            Ok(spawned) => spawned,
            Err((stack, error)) => {
                self.stack = Some(stack);
                return Err(error);
            }
        };
        let error = match spawned.wait(max_wait) {
            Start::Failed(error) => error,
            Start::Done if spawned.has_not_run() => SpawnError {
                stage: Stage::Clone,
                error: io::Error::from_raw_os_error(libc::EBUSY),
            },
            Start::Done | Start::Unknown => return Ok(spawned),
        };
        spawned.reap();
        self.stack = Some(spawned.into_stack());
        Err(error)
    }
}
