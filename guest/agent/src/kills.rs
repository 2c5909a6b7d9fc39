//! Killing: SIGKILL for a whole process tree, other signals for a process group; and waiting until what was killed is
//! gone.
//!
//! A tree is the content of the command's cgroup, its session, and every descendant of these in /proc, which may have moved to
//! another cgroup. The descendants are remembered from before the first SIGKILL, since an orphan's parent is no longer known.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::cgroups::Cgroups;
use crate::effects::{Effect, Effects};
use crate::process_tree::{ProcessTable, ProcessTree};
use crate::protocol::{Code, Failure};
use crate::sessions::Sessions;
use crate::sys::{self, monotonic_ns};
use crate::timers::Due;

/// A tree that lives longer than this hangs in the kernel: the kill is given up.
const TIMEOUT_NS: u64 = 5_000_000_000;
const POLL_MS: u64 = 3;

enum Target {
    /// The tree of the session with this key.
    Session(u32),
    /// A process that is no session's leader, by pidfd.
    Process(OwnedFd),
}

struct Kill {
    target: Target,
    /// The stream to be answered.
    stream: Option<u32>,
    deadline_ns: u64,
    tree: ProcessTree,
}

/// A kill that has been completed or given up.
pub struct Ended {
    pub stream: Option<u32>,
    pub session: Option<u32>,
    pub is_gone: bool,
}

pub struct Kills {
    pending: Vec<Kill>,
    table: ProcessTable,
}

impl Kills {
    pub fn new() -> io::Result<Kills> {
        Ok(Kills {
            pending: Vec::new(),
            table: ProcessTable::open()?,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// A new host does not know the streams.
    pub fn forget_streams(&mut self) {
        for kill in &mut self.pending {
            kill.stream = None;
        }
    }

    /// Kills everything that a session has started.
    pub fn kill_session(
        &mut self,
        key: u32,
        stream: Option<u32>,
        sessions: &Sessions,
        cgroups: &mut Cgroups,
        effects: &mut Effects,
    ) {
        let mut kill = Kill::new(Target::Session(key), stream);
        kill.walk(&self.table, sessions, cgroups);
        kill.send_sigkill(sessions, cgroups);
        kill.kill_members();
        self.add(kill, effects);
    }

    /// Waits for the end of a process that has been sent SIGKILL.
    pub fn await_process(&mut self, pidfd: OwnedFd, stream: u32, effects: &mut Effects) {
        self.add(Kill::new(Target::Process(pidfd), Some(stream)), effects);
    }

    fn add(&mut self, kill: Kill, effects: &mut Effects) {
        if self.pending.is_empty() {
            effects.push(arm_poll());
        }
        self.pending.push(kill);
    }

    /// To be called whenever a process was reaped, and when the timer is due. Processes started since the last SIGKILL
    /// get another one.
    pub fn poll(&mut self, sessions: &Sessions, cgroups: &mut Cgroups) -> Vec<Ended> {
        let now = monotonic_ns();
        let mut ended = Vec::new();
        self.pending.retain_mut(|kill| {
            let is_gone = kill.is_gone(&self.table, sessions, cgroups);
            if !is_gone && now < kill.deadline_ns {
                kill.send_sigkill(sessions, cgroups);
                return true;
            }
            ended.push(Ended {
                stream: kill.stream,
                session: kill.session(),
                is_gone,
            });
            false
        });
        ended
    }

    /// The timer was due, and `poll` has been called.
    pub fn arm_again(&self, effects: &mut Effects) {
        if !self.pending.is_empty() {
            effects.push(arm_poll());
        }
    }
}

fn arm_poll() -> Effect {
    Effect::arm(POLL_MS, Due::Kills)
}

impl Kill {
    fn new(target: Target, stream: Option<u32>) -> Kill {
        Kill {
            target,
            stream,
            deadline_ns: monotonic_ns() + TIMEOUT_NS,
            tree: ProcessTree::default(),
        }
    }

    fn session(&self) -> Option<u32> {
        match self.target {
            Target::Session(key) => Some(key),
            Target::Process(_) => None,
        }
    }

    fn send_sigkill(&self, sessions: &Sessions, cgroups: &mut Cgroups) {
        let Some(session) = self.session().and_then(|key| sessions.get(key)) else {
            return;
        };
        let leader = session.leader();
        if let Some(cgroup) = leader.cgroup {
            cgroups.kill(cgroup);
        }
        if session.is_alive() {
            signal_group(leader.pid, libc::SIGKILL);
        }
    }

    /// Right after a walk: later, a member's number may be that of another process.
    fn kill_members(&self) {
        for pid in self.tree.pids() {
            // SAFETY: plain call.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }

    /// Finds the living members of the tree. Leaders of other commands and this program are none, whatever their parents.
    fn walk(&mut self, table: &ProcessTable, sessions: &Sessions, cgroups: &Cgroups) {
        let Some(session) = self.session().and_then(|key| sessions.get(key)) else {
            return;
        };
        let leader = session.leader();
        let mut seeds = leader.cgroup.map_or_else(Vec::new, |id| cgroups.pids(id));
        let mut excluded = sessions.leaders();
        if session.is_alive() {
            seeds.push(leader.pid);
            excluded.remove(&leader.pid);
        }
        excluded.extend([1, std::process::id() as libc::pid_t]);
        self.tree.walk(table, leader.pid, &seeds, &excluded);
    }

    /// A walk costs more than the other checks, so it comes when they find nothing left.
    fn is_gone(&mut self, table: &ProcessTable, sessions: &Sessions, cgroups: &Cgroups) -> bool {
        let key = match &self.target {
            Target::Process(pidfd) => return has_ended(pidfd),
            Target::Session(key) => *key,
        };
        let Some(session) = sessions.get(key) else {
            return true;
        };
        let cgroup = session.leader().cgroup;
        if session.is_alive() || cgroup.is_some_and(|id| cgroups.is_populated(id)) {
            return false;
        }
        self.walk(table, sessions, cgroups);
        self.kill_members();
        self.tree.is_empty()
    }
}

/// Signals the group of a process that is no session's leader; returns the process's pidfd. `None`: there is no such
/// process, or it may not be signalled.
pub fn signal_process(pid: u32, signal: i32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().filter(|&pid| pid > 1)?;
    // SAFETY: plain call. It fails for a thread that is not a process.
    let pidfd = sys::owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32).ok()?;
    // SAFETY: plain calls.
    let (own_pid, own_group, group) =
        unsafe { (libc::getpid(), libc::getpgid(0), libc::getpgid(pid)) };
    // Kernel threads have group 0.
    if pid == own_pid || group <= 0 || has_ended(&pidfd) {
        return None;
    }
    if group == own_group || group == 1 {
        // SAFETY: plain call.
        unsafe { libc::kill(pid, signal) };
    } else {
        signal_group(group, signal);
    }
    Some(pidfd)
}

pub fn signal_number(signal: u8) -> Result<i32, Failure> {
    match signal {
        9 => Ok(libc::SIGKILL),
        15 => Ok(libc::SIGTERM),
        _ => {
            let message = "only signals 9 and 15 can be sent";
            Err(Failure::new(Code::Invalid, message))
        }
    }
}

pub fn signal_group(group: libc::pid_t, signal: i32) {
    if group > 1 {
        // SAFETY: plain call.
        unsafe { libc::kill(-group, signal) };
    }
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd {
        fd: pidfd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, ours.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}
