//! EXEC and PTY: from a command to the session that runs it, with its pipes or terminal and its cgroup.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::cgroups::Cgroups;
use crate::command::{self, out_of_resources, spawn_failure};
use crate::output::Output;
use crate::protocol::{channel, Command, Failure};
use crate::pty::{self, Size};
use crate::session::{Kind, Leader, Session};
use crate::spawn::{self, Program, Stack, Stage};
use crate::sys;

/// A new cgroup is usable, so a kernel that refuses this many refuses all.
const MAX_ATTEMPTS: usize = 16;

/// Everything a command needs, before its process is started.
pub struct Launch<'a> {
    kind: Kind,
    command: &'a Command<'a>,
    program: Program,
    outputs: Vec<Output>,
    /// A terminal's slave, open until the process has it.
    _slave: Option<OwnedFd>,
}

pub struct Launcher {
    /// /dev/null, for commands' standard input.
    null: OwnedFd,
    stack: Stack,
}

impl Launcher {
    pub fn new() -> io::Result<Launcher> {
        Ok(Launcher {
            null: sys::open(c"/dev/null", libc::O_RDWR)?,
            stack: Stack::default(),
        })
    }

    pub fn with_pipes<'a>(&self, kind: Kind, command: &'a Command) -> Result<Launch<'a>, Failure> {
        let mut program = command::prepare(command, false)?;
        let pipe = || sys::pipe().map_err(|error| out_of_resources(&error));
        let (stdout, stderr) = (pipe()?, pipe()?);
        program.stdio = [
            self.null.as_raw_fd(),
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
            program,
            outputs,
            _slave: None,
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
            program,
            outputs: vec![Output::terminal(master, channel::MAIN)],
            _slave: Some(slave),
        })
    }

    pub fn start(
        &mut self,
        launch: Launch,
        tag: String,
        cgroups: &mut Cgroups,
    ) -> Result<Session, Failure> {
        let started_ns = sys::monotonic_ns();
        let (pid, cgroup) = self.spawn(launch.command, &launch.program, cgroups)?;
        let leader = Leader {
            pid,
            cgroup,
            started_ns,
        };
        Ok(Session::new(launch.kind, tag, leader, launch.outputs))
    }

    /// The commands that used a cgroup before may have made it unusable; then another one is tried.
    fn spawn(
        &mut self,
        command: &Command,
        program: &Program,
        cgroups: &mut Cgroups,
    ) -> Result<(libc::pid_t, Option<u32>), Failure> {
        let mut attempts = 0;
        loop {
            let cgroup = cgroups
                .acquire()
                .map_err(|error| out_of_resources(&error))?;
            let dir = cgroup.and_then(|id| cgroups.dir(id));
            let error = match spawn::spawn(&mut self.stack, program, dir) {
                Ok(pid) => return Ok((pid, cgroup)),
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
                return Err(spawn_failure(command, &error));
            }
        }
    }
}
