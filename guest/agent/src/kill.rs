//! Killing: a whole tree for SIGKILL, a process group for anything else; and knowing that what was killed is gone.
//!
//! With cgroups a tree is what is in the command's group. Without, it is the process group and every descendant in
//! /proc, remembered from before the first blow, since an orphan's descent cannot be seen any more.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::agent::Agent;
use crate::protocol::{empty, Code, Failure, Selector};
use crate::sys::{self, monotonic_ns};
use crate::timers::Due;

/// A tree that is still alive after this will not die: it hangs in the kernel.
const PATIENCE_NS: u64 = 5_000_000_000;
const LOOK_AGAIN_MS: u64 = 3;

enum Target {
    Session(u32),
    /// A process of nobody's, by pidfd.
    Process(OwnedFd),
}

pub struct Kill {
    target: Target,
    /// Who is to hear that it is done.
    stream: Option<u32>,
    deadline_ns: u64,
    /// Only without cgroups.
    known: BTreeSet<libc::pid_t>,
}

impl Kill {
    /// Nobody is left to hear of it.
    pub fn forget_stream(&mut self) {
        self.stream = None;
    }
}

impl Agent {
    pub fn signal(&mut self, stream: u32, selector: &Selector, signal: u8) -> Result<(), Failure> {
        let signal = match signal {
            9 => libc::SIGKILL,
            15 => libc::SIGTERM,
            _ => {
                return Err(Failure::new(
                    Code::Invalid,
                    "only signals 9 and 15 can be sent",
                ))
            }
        };
        if let Some(key) = self.sessions.select(selector) {
            if signal == libc::SIGKILL {
                self.kill_tree(key, Some(stream));
            } else {
                let pid = self.sessions.get(key).map_or(0, |session| session.pid);
                send_to_group(pid, signal);
                self.streams.result(stream, empty());
            }
            return Ok(());
        }
        let Selector::Pid(pid) = selector else {
            return Err(selector.not_found());
        };
        self.signal_stranger(stream, *pid, signal)
            .ok_or_else(|| selector.not_found())
    }

    /// A process that is no session's leader. `None`: there is no such process, or none that may be signalled.
    fn signal_stranger(&mut self, stream: u32, pid: u32, signal: i32) -> Option<()> {
        let pid = i32::try_from(pid).ok().filter(|&pid| pid > 1)?;
        // SAFETY: plain calls. A pidfd is given for processes only, not for threads.
        let (own, pidfd) = unsafe {
            (
                libc::getpid(),
                sys::owned(libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32).ok()?,
            )
        };
        let group = unsafe { libc::getpgid(pid) };
        // Kernel threads have group 0.
        if pid == own || group <= 0 || has_ended(&pidfd) {
            return None;
        }
        if group == unsafe { libc::getpgid(0) } || group == 1 {
            // SAFETY: as above.
            unsafe { libc::kill(pid, signal) };
        } else {
            send_to_group(group, signal);
        }
        if signal == libc::SIGKILL {
            self.await_end(Target::Process(pidfd), Some(stream));
        } else {
            self.streams.result(stream, empty());
        }
        Some(())
    }

    /// Kills everything a session has started. The session's own end follows.
    pub fn kill_tree(&mut self, key: u32, stream: Option<u32>) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.kills += 1;
        self.await_end(Target::Session(key), stream);
    }

    fn await_end(&mut self, target: Target, stream: Option<u32>) {
        let mut kill = Kill {
            target,
            stream,
            deadline_ns: monotonic_ns() + PATIENCE_NS,
            known: BTreeSet::new(),
        };
        self.strike(&mut kill);
        if self.kills.is_empty() {
            self.timers.after_ms(LOOK_AGAIN_MS, Due::Kills);
        }
        self.kills.push(kill);
    }

    fn strike(&mut self, kill: &mut Kill) {
        let Target::Session(key) = kill.target else {
            return;
        };
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        match session.cgroup {
            Some(cgroup) => self.cgroups.kill(cgroup),
            None => {
                if session.is_alive() {
                    kill.known.insert(session.pid);
                }
                kill.known = family(&kill.known);
                for &pid in &kill.known {
                    // SAFETY: plain call.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
            }
        }
        if session.is_alive() {
            send_to_group(session.pid, libc::SIGKILL);
        }
    }

    fn is_gone(&self, kill: &Kill) -> bool {
        match &kill.target {
            Target::Process(pidfd) => has_ended(pidfd),
            Target::Session(key) => self.sessions.get(*key).is_none_or(|session| {
                let is_tree_empty = match session.cgroup {
                    Some(cgroup) => !self.cgroups.is_populated(cgroup),
                    None => family(&kill.known).is_empty(),
                };
                !session.is_alive() && is_tree_empty
            }),
        }
    }

    /// Whenever something was reaped, and every few milliseconds.
    pub fn look_at_kills(&mut self) {
        let now = monotonic_ns();
        for mut kill in std::mem::take(&mut self.kills) {
            let is_gone = self.is_gone(&kill);
            if !is_gone && now < kill.deadline_ns {
                self.strike(&mut kill);
                self.kills.push(kill);
                continue;
            }
            if let Some(stream) = kill.stream {
                if is_gone {
                    self.streams.result(stream, empty());
                } else {
                    let message = "the process is killed but does not end";
                    self.streams
                        .fail(stream, &Failure::new(Code::Internal, message));
                }
            }
            if let Target::Session(key) = kill.target {
                if let Some(session) = self.sessions.get_mut(key) {
                    session.kills -= 1;
                }
                self.settle(key);
            }
        }
    }

    /// Before a test's agent goes: nothing that it started stays.
    pub fn kill_everything(&mut self, patience_ms: u64) {
        let alive: Vec<u32> = self.sessions.iter().map(|(key, _)| key).collect();
        for key in alive {
            self.kill_tree(key, None);
        }
        let deadline_ns = monotonic_ns() + patience_ms * 1_000_000;
        while !self.kills.is_empty() && monotonic_ns() < deadline_ns {
            sys::sleep_ms(1);
            self.reap();
            self.look_at_kills();
        }
    }

    pub fn kills_are_due(&mut self) {
        self.look_at_kills();
        if !self.kills.is_empty() {
            self.timers.after_ms(LOOK_AGAIN_MS, Due::Kills);
        }
    }
}

fn send_to_group(group: libc::pid_t, signal: i32) {
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

/// Those of `known` that live, and all their living descendants.
fn family(known: &BTreeSet<libc::pid_t>) -> BTreeSet<libc::pid_t> {
    if known.is_empty() {
        return BTreeSet::new();
    }
    let mut members = known.clone();
    let living: Vec<_> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: libc::pid_t| Some((pid, parent_of(pid)?)))
        .collect();
    loop {
        let before = members.len();
        members.extend(
            living
                .iter()
                .filter(|(_, parent)| members.contains(parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if members.len() == before {
            break;
        }
    }
    living
        .into_iter()
        .map(|(pid, _)| pid)
        .filter(|pid| members.contains(pid))
        .collect()
}

/// A zombie counts: whoever is to reap it dies too, and then it is ours.
fn parent_of(pid: libc::pid_t) -> Option<libc::pid_t> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let text = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    text.split(' ').nth(1)?.parse().ok()
}
