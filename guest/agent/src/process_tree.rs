//! The tree of a command, wherever its processes went: found in /proc by parents and by sessions, since a process may leave
//! its control group, and a descendant of its own session is no longer known once its parent is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::mounts;
use crate::sys;

/// Kernel threads that are remembered, since looking at one costs more than asking for its group.
const MAX_KNOWN: usize = 4_096;

/// A process file system of the agent's own, where it may mount one: root inside may unmount /proc.
pub struct ProcessTable {
    proc: OwnedFd,
    kernel_threads: BTreeSet<libc::pid_t>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: libc::pid_t,
    parent: libc::pid_t,
    session: libc::pid_t,
    /// In ticks since boot: tells a process from a later one with its number.
    started: u64,
}

impl ProcessTable {
    pub fn open() -> io::Result<ProcessTable> {
        let proc = mounts::detached(c"proc")
            .or_else(|_| sys::open(c"/proc", libc::O_RDONLY | libc::O_DIRECTORY))?;
        Ok(ProcessTable {
            proc,
            kernel_threads: BTreeSet::new(),
        })
    }

    /// All but kernel threads.
    fn read(&self) -> Vec<Process> {
        let names = sys::folders_in(&self.proc).unwrap_or_default();
        let pids = names
            .iter()
            .filter_map(|name| name.to_str().ok()?.parse().ok());
        pids.filter_map(|pid| self.process(pid)).collect()
    }

    pub fn is_traced(&self, pid: libc::pid_t) -> bool {
        const NOT_TRACED: &[u8] = b"\nTracerPid:\t0\n";
        let mut status = [0u8; 512];
        let path = sys::c_string(format!("{pid}/status").as_bytes());
        let file = path.and_then(|path| sys::open_at(&self.proc, &path, libc::O_RDONLY));
        let count = file.and_then(|file| sys::read(file.as_raw_fd(), &mut status));
        let text = &status[..count.ok().flatten().unwrap_or(0)];
        let is_known_free = text
            .windows(NOT_TRACED.len())
            .any(|window| window == NOT_TRACED);
        !is_known_free
    }

    /// Whether it is a process with a program, and no kernel thread.
    pub fn is_user(&mut self, pid: libc::pid_t) -> bool {
        // SAFETY: plain call. The kernel's own helper programs have group 0 too, as its threads have.
        let group = unsafe { libc::getpgid(pid) };
        if group != 0 || self.kernel_threads.contains(&pid) {
            return group > 0;
        }
        let has_program = has_memory(pid);
        if !has_program {
            if self.kernel_threads.len() >= MAX_KNOWN {
                self.kernel_threads.clear();
            }
            self.kernel_threads.insert(pid);
        }
        has_program
    }

    /// A zombie counts as living: the parent that should reap it is killed too, and then it is reparented to us.
    fn process(&self, pid: libc::pid_t) -> Option<Process> {
        // SAFETY: plain call. Kernel threads have group 0; this costs less than reading their files.
        if unsafe { libc::getpgid(pid) } <= 0 {
            return None;
        }
        let path = sys::c_string(format!("{pid}/stat").as_bytes()).ok()?;
        let file = sys::open_at(&self.proc, &path, libc::O_RDONLY).ok()?;
        let mut stat = [0u8; 1024];
        let count = sys::read(file.as_raw_fd(), &mut stat).ok()??;
        parse_stat(pid, &stat[..count])
    }
}

/// Whether it has memory of its own, as every program has and no thread of the kernel. A look into /proc would leave two of the
/// kernel's inodes for each thread.
fn has_memory(pid: libc::pid_t) -> bool {
    let mut byte = 0u8;
    let to = libc::iovec {
        iov_base: std::ptr::addr_of_mut!(byte).cast(),
        iov_len: 1,
    };
    let from = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 1,
    };
    // SAFETY: `to` has that much room. Address 0 is mapped in hardly any program, so nothing is read.
    let count = unsafe { libc::process_vm_readv(pid, &to, 1, &from, 1, 0) };
    count >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

fn parse_stat(pid: libc::pid_t, stat: &[u8]) -> Option<Process> {
    // The name in parentheses may contain anything.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let text = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    let fields: Vec<&str> = text.split(' ').collect();
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// The known members of a tree. They are found once before the first SIGKILL, and grow with each further walk.
#[derive(Default)]
pub struct ProcessTree {
    /// The living, with their start.
    members: BTreeMap<libc::pid_t, u64>,
    sessions: BTreeSet<libc::pid_t>,
}

impl ProcessTree {
    /// `session`: that of the command. `seeds`: processes that belong to it.
    pub fn walk(
        &mut self,
        table: &ProcessTable,
        session: libc::pid_t,
        seeds: &[libc::pid_t],
        excluded: &BTreeSet<libc::pid_t>,
    ) {
        self.sessions.insert(session);
        self.grow(&table.read(), seeds, excluded);
    }

    pub fn pids(&self) -> impl Iterator<Item = libc::pid_t> + '_ {
        self.members.keys().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    fn grow(
        &mut self,
        living: &[Process],
        seeds: &[libc::pid_t],
        excluded: &BTreeSet<libc::pid_t>,
    ) {
        let starts: BTreeMap<_, _> = living.iter().map(|it| (it.pid, it.started)).collect();
        for &pid in seeds.iter().filter(|pid| !excluded.contains(pid)) {
            if let Some(&started) = starts.get(&pid) {
                self.members.insert(pid, started);
            }
        }
        self.members
            .retain(|pid, started| starts.get(pid) == Some(started));
        // The number of a session is not used again while it has a process: a leader that is not ours is a later process.
        let members = &self.members;
        self.sessions
            .retain(|leader| members.contains_key(leader) || !starts.contains_key(leader));
        loop {
            let before = self.members.len();
            for process in living {
                let is_ours = self.members.contains_key(&process.pid)
                    || self.members.contains_key(&process.parent)
                    || self.sessions.contains(&process.session);
                if is_ours && !excluded.contains(&process.pid) {
                    self.members.insert(process.pid, process.started);
                    self.sessions.insert(process.session);
                }
            }
            if self.members.len() == before {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: libc::pid_t, parent: libc::pid_t, session: libc::pid_t) -> Process {
        Process {
            pid,
            parent,
            session,
            started: 7,
        }
    }

    fn grown(tree: &mut ProcessTree, living: &[Process], seeds: &[libc::pid_t]) -> Vec<i32> {
        tree.grow(living, seeds, &BTreeSet::from([1, 50]));
        tree.pids().collect()
    }

    #[test]
    fn descendants_and_sessions_are_followed() {
        let mut tree = ProcessTree::default();
        let living = [
            process(1, 0, 1),
            process(10, 1, 10),
            process(11, 10, 11), // setsid
            process(12, 1, 11),  // an orphan in the session of 11
            process(50, 1, 50),  // another command
            process(51, 50, 50),
        ];
        assert_eq!(grown(&mut tree, &living, &[10]), [10, 11, 12]);
        // The child of 11 is known by its session, when 10 and 11 are gone.
        let left = [process(1, 0, 1), process(13, 1, 11), process(51, 1, 50)];
        assert_eq!(grown(&mut tree, &left, &[]), [13]);
        assert_eq!(grown(&mut tree, &[process(1, 0, 1)], &[]), [0; 0]);
    }

    /// Root may move any process to the group of a command.
    #[test]
    fn excluded_seeds_bring_nothing_into_the_tree() {
        let mut tree = ProcessTree::default();
        let living = [
            process(1, 0, 1),
            process(10, 1, 10),
            process(12, 1, 12),
            process(50, 1, 50),
            process(51, 50, 50),
        ];
        assert_eq!(grown(&mut tree, &living, &[1, 10, 50]), [10]);
    }

    #[test]
    fn a_later_process_with_a_members_number_is_none_of_the_tree() {
        let mut tree = ProcessTree::default();
        let own = [process(10, 1, 10), process(11, 10, 10)];
        assert_eq!(grown(&mut tree, &own, &[10]), [10, 11]);
        let later = Process {
            started: 8,
            ..process(10, 1, 10)
        };
        assert_eq!(grown(&mut tree, &[later, process(12, 10, 10)], &[]), [0; 0]);
    }

    #[test]
    fn this_process_is_in_the_table_and_kernel_threads_are_not() {
        let table = ProcessTable::open().unwrap().read();
        let own = std::process::id() as libc::pid_t;
        // SAFETY: plain calls.
        let (parent, session) = unsafe { (libc::getppid(), libc::getsid(0)) };
        let found = table.iter().find(|it| it.pid == own).unwrap();
        assert_eq!((found.parent, found.session), (parent, session));
        // In a container, process 2 is any process.
        let is_kthreadd = std::fs::read("/proc/2/comm").is_ok_and(|name| name == b"kthreadd\n");
        assert!(!is_kthreadd || table.iter().all(|it| it.parent != 2));
        assert!(has_memory(own) && has_memory(parent));
        assert!(!is_kthreadd || !has_memory(2));
        assert!(!ProcessTable::open().unwrap().is_traced(own));
    }
}
