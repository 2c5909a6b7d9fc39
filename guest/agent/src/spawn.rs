//! Starting a program at the lowest cost: `clone3` with CLONE_VM, into the command's cgroup. No memory is copied. The caller
//! waits until the child has executed its program, as with `vfork`, but not for ever: a frozen cgroup, a lease on the
//! program's file, or a file system that hangs can keep a child from that. Its memory then stays as it is until the kernel
//! clears `running`, which it does at the child's exec or exit.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::c_strings::CStrings;
use child::{run_child, Child, HAS_NOT_RUN};

mod child;
mod clone;

/// The user and groups of the child, if they are not ours.
pub struct Identity {
    pub uid: libc::uid_t,
    pub gid: libc::gid_t,
    pub groups: Vec<libc::gid_t>,
}

pub struct Program {
    /// Where the program may be, tried in this order.
    pub paths: CStrings,
    pub argv: CStrings,
    pub envp: CStrings,
    /// The working directory: the first one that exists.
    pub dirs: CStrings,
    pub identity: Option<Identity>,
    /// They become descriptors 0, 1 and 2. All are above 2.
    pub stdio: [RawFd; 3],
    pub has_terminal: bool,
}

/// The step of a spawn that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Clone,
    Terminal,
    Identity,
    Directory,
    Execute,
}

#[derive(Debug)]
pub struct SpawnError {
    pub stage: Stage,
    pub error: io::Error,
}

const STACK_BYTES: usize = 32 * 1024;

/// The stack of a child until it executes its program. One is reused by all children that do so in time: an allocation of
/// this size would make the allocator consolidate its free lists at each command.
pub struct Stack(Vec<u128>);

impl Default for Stack {
    fn default() -> Stack {
        Stack(Vec::with_capacity(STACK_BYTES / 16)) // aligned, and not cleared
    }
}

/// A started process, which may not have executed its program yet.
pub struct Spawned {
    pub pid: libc::pid_t,
    child: ManuallyDrop<Box<Child>>,
    stack: ManuallyDrop<Stack>,
}

/// How the start of a process has gone so far.
#[derive(Debug)]
pub enum Start {
    Unknown,
    /// It executes the program, or was killed before.
    Done,
    Failed(SpawnError),
}

/// Starts a process in a new session and process group; `cgroup` is an open cgroup folder.
pub fn spawn(
    stack: Stack,
    program: &Arc<Program>,
    cgroup: Option<RawFd>,
) -> Result<Spawned, (Stack, SpawnError)> {
    let mut stack = ManuallyDrop::new(stack);
    let child = ManuallyDrop::new(Box::new(Child::new(program.clone())));
    const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let into_cgroup = cgroup.map_or(0, |_| CLONE_INTO_CGROUP);
    let flags = (libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID) as u64;
    let args = clone::Args {
        flags: flags | CLONE_CLEAR_SIGHAND | into_cgroup,
        child_tid: child.running.as_ptr() as u64,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.0.as_mut_ptr() as u64,
        stack_size: STACK_BYTES as u64,
        cgroup: cgroup.unwrap_or(0) as u64,
        ..clone::Args::default()
    };
    // SAFETY: `Spawned` keeps `child` and `stack` as long as the child uses them.
    let pid =
        unsafe { clone::clone_onto(&args, run_child, (&raw const **child).cast_mut().cast()) };
    let spawned = Spawned {
        pid: pid as libc::pid_t,
        child,
        stack,
    };
    if pid < 0 {
        spawned.child.running.store(0, Ordering::SeqCst);
        let error = SpawnError {
            stage: Stage::Clone,
            error: io::Error::from_raw_os_error(-pid as i32),
        };
        return Err((spawned.into_stack(), error));
    }
    Ok(spawned)
}

impl Spawned {
    fn is_running(&self) -> bool {
        self.child.running.load(Ordering::SeqCst) != 0
    }

    /// Waits until the start has succeeded or failed, but no longer than `max_wait`.
    pub fn wait(&self, max_wait: Duration) -> Start {
        let timeout = libc::timespec {
            tv_sec: max_wait.as_secs() as libc::time_t,
            tv_nsec: max_wait.subsec_nanos().into(),
        };
        let mut has_waited = false;
        while self.is_running() && !has_waited {
            let running = self.child.running.as_ptr();
            // SAFETY: the word and `timeout` outlive the call. Without FUTEX_PRIVATE_FLAG, as the kernel wakes.
            let result =
                unsafe { libc::syscall(libc::SYS_futex, running, libc::FUTEX_WAIT, 1, &timeout) };
            has_waited =
                result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT);
        }
        self.start()
    }

    pub fn start(&self) -> Start {
        if self.is_running() {
            return Start::Unknown;
        }
        match self.child.errno.load(Ordering::SeqCst) {
            0 | HAS_NOT_RUN => Start::Done,
            errno => Start::Failed(SpawnError {
                stage: self.child.stage(),
                error: io::Error::from_raw_os_error(errno),
            }),
        }
    }

    /// It ended without running at all, as in a cgroup that has been killed.
    pub fn has_not_run(&self) -> bool {
        !self.is_running() && self.child.errno.load(Ordering::SeqCst) == HAS_NOT_RUN
    }

    /// Reaps a child that failed to start and is not reported. It is dying, so this does not take long.
    pub fn reap(&self) {
        // SAFETY: plain call.
        while unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) } < 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
    }

    /// For the next child. A stack that is still in use is not given back.
    pub fn into_stack(mut self) -> Stack {
        if self.is_running() {
            return Stack::default();
        }
        std::mem::replace(&mut *self.stack, Stack(Vec::new()))
    }
}

impl Drop for Spawned {
    /// Memory that the child still uses is never freed.
    fn drop(&mut self) {
        if !self.is_running() {
            // SAFETY: both are dropped here only, and nobody else uses them.
            unsafe {
                ManuallyDrop::drop(&mut self.child);
                ManuallyDrop::drop(&mut self.stack);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::time::Instant;

    use super::*;

    /// `path` without arguments, with /dev/null for its streams.
    fn program(path: &str, null: &File) -> Arc<Program> {
        let strings = |values: &[&str]| {
            let mut strings = CStrings::with_room_for(values.len());
            for value in values {
                strings.push(&[value.as_bytes()], "it").unwrap();
            }
            strings
        };
        Arc::new(Program {
            paths: strings(&[path]),
            argv: strings(&[path]),
            envp: strings(&[]),
            dirs: strings(&["/no such folder", "/"]),
            identity: None,
            stdio: [null.as_raw_fd(); 3],
            has_terminal: false,
        })
    }

    fn wait_status(pid: libc::pid_t) -> i32 {
        let mut status = 0;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        status
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(5);

    #[test]
    fn a_program_runs_or_its_failure_is_told() {
        let null = File::open("/dev/null").unwrap();
        let start = |path: &str| {
            let spawned = spawn(Stack::default(), &program(path, &null), None);
            let spawned = spawned.map_err(|(_, error)| error).unwrap();
            let start = spawned.wait(LONG);
            (start, wait_status(spawned.pid))
        };
        let (done, status) = start("/bin/true");
        assert!(matches!(done, Start::Done) && status == 0, "{done:?}");
        let (failed, _) = start("/no such program");
        assert!(
            matches!(&failed, Start::Failed(it) if it.stage == Stage::Execute
                && it.error.raw_os_error() == Some(libc::ENOENT)),
            "{failed:?}"
        );
    }

    /// A program whose file has a lease is opened only when the lease is given back.
    #[test]
    fn a_child_that_cannot_execute_its_program_does_not_hold_up_its_parent() {
        // SAFETY: plain call; a lease that is to be broken is told by this signal.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        let null = File::open("/dev/null").unwrap();
        let path = std::env::temp_dir().join(format!("capsule-leased-{}", std::process::id()));
        let path = path.to_str().unwrap();
        std::fs::copy("/bin/true", path).unwrap();
        let leased = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)
            .unwrap();
        let lease =
            |kind: libc::c_int| unsafe { libc::fcntl(leased.as_raw_fd(), libc::F_SETLEASE, kind) };
        // A child of another test has the copy open for writing, if it was started meanwhile, until it executes its program.
        let deadline = Instant::now() + LONG;
        while lease(libc::F_WRLCK) != 0 {
            let error = io::Error::last_os_error();
            assert!(Instant::now() < deadline, "no lease on {path}: {error}");
            std::thread::sleep(Duration::from_millis(1));
        }
        let start = || {
            let spawned = spawn(Stack::default(), &program(path, &null), None);
            spawned.map_err(|(_, error)| error).unwrap()
        };
        let (killed, waiting) = (start(), start());
        for spawned in [&killed, &waiting] {
            let start = spawned.wait(SHORT);
            assert!(matches!(start, Start::Unknown), "{start:?}");
        }
        let other = spawn(Stack::default(), &program("/bin/true", &null), None);
        let other = other.map_err(|(_, error)| error).unwrap();
        assert!(matches!(other.wait(LONG), Start::Done));
        assert_eq!(wait_status(other.pid), 0);
        // SAFETY: plain call.
        unsafe { libc::kill(killed.pid, libc::SIGKILL) };
        assert_eq!(wait_status(killed.pid), libc::SIGKILL);
        assert!(matches!(killed.start(), Start::Done));
        assert_eq!(lease(libc::F_UNLCK), 0);
        assert!(matches!(waiting.wait(LONG), Start::Done));
        assert_eq!(wait_status(waiting.pid), 0);
        std::fs::remove_file(path).unwrap();
    }
}
