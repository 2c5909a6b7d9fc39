//! Killing: SIGKILL for a whole process tree, other signals for a process group; and waiting until what was killed is
//! gone.
//!
//! With cgroups a tree is the content of the command's cgroup. Without, it is the process group and every descendant in
//! /proc. The descendants are remembered from before the first SIGKILL, since an orphan's parent is no longer known.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::cgroups::Cgroups;
use crate::effects::{Effect, Effects};
use crate::process_tree::living_tree;
use crate::protocol::{Code, Failure};
use crate::session::Session;
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
    /// Only without cgroups.
    known: BTreeSet<libc::pid_t>,
}

/// A kill that has been completed or given up.
pub struct Ended {
    pub stream: Option<u32>,
    pub session: Option<u32>,
    pub is_gone: bool,
}

#[derive(Default)]
pub struct Kills {
    pending: Vec<Kill>,
}

impl Kills {
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
        kill.send_sigkill(sessions, cgroups);
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
            let is_gone = kill.is_gone(sessions, cgroups);
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
            known: BTreeSet::new(),
        }
    }

    fn session(&self) -> Option<u32> {
        match self.target {
            Target::Session(key) => Some(key),
            Target::Process(_) => None,
        }
    }

    fn send_sigkill(&mut self, sessions: &Sessions, cgroups: &mut Cgroups) {
        let Some(session) = self.session().and_then(|key| sessions.get(key)) else {
            return;
        };
        let leader = session.leader();
        match leader.cgroup {
            Some(cgroup) => cgroups.kill(cgroup),
            None => {
                if session.is_alive() {
                    self.known.insert(leader.pid);
                }
                self.known = living_tree(&self.known);
                for &pid in &self.known {
                    // SAFETY: plain call.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
            }
        }
        if session.is_alive() {
            signal_group(leader.pid, libc::SIGKILL);
        }
    }

    fn is_gone(&self, sessions: &Sessions, cgroups: &Cgroups) -> bool {
        match &self.target {
            Target::Process(pidfd) => has_ended(pidfd),
            Target::Session(key) => sessions.get(*key).is_none_or(|session: &Session| {
                let is_tree_empty = match session.leader().cgroup {
                    Some(cgroup) => !cgroups.is_populated(cgroup),
                    None => living_tree(&self.known).is_empty(),
                };
                !session.is_alive() && is_tree_empty
            }),
        }
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
