//! Processes outside the commands' cgroup: in groups that root has made beside it, and in the root group, which cannot be
//! frozen. FREEZE freezes those groups too, and moves the root group's processes to a frozen one; THAW takes back both.
//!
//! Each look may find more, since a process runs until it is frozen: the freezer looks until nothing is left to do.

use std::collections::btree_map::{BTreeMap, Entry};
use std::ffi::{CStr, CString};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};

use crate::cgroups::{has_line, write_file};
use crate::process_tree::ProcessTable;
use crate::sys::{self, check};

/// Where processes of the root group are while they are frozen.
const HELD: &CStr = c"capsule-held";
/// Rounds of THAW: a process that is moved back while it forks leaves a child behind.
const ROUNDS: usize = 8;

pub struct Outside {
    root: OwnedFd,
    /// The group of all commands, which is frozen by itself.
    commands: CString,
    table: ProcessTable,
    /// Groups that were not frozen before.
    frozen: BTreeMap<CString, OwnedFd>,
    has_held: bool,
    /// The gateway, which is not frozen: what it has is taken from it by a new epoch.
    spared: Option<libc::pid_t>,
}

impl Outside {
    /// `commands`: the path of the group of all commands, directly below the root group.
    pub fn of(commands: &str) -> io::Result<Outside> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let (root, name) = commands.rsplit_once('/').ok_or_else(invalid)?;
        let root = sys::c_string(root.as_bytes())?;
        Ok(Outside {
            root: sys::open(&root, libc::O_RDONLY | libc::O_DIRECTORY)?,
            commands: sys::c_string(name.as_bytes())?,
            table: ProcessTable::open()?,
            frozen: BTreeMap::new(),
            has_held: false,
            spared: None,
        })
    }

    pub fn spare(&mut self, pid: Option<libc::pid_t>) {
        self.spared = pid;
    }

    /// To be called before anything is frozen. False: this process would not run on. A tracer must not freeze, since this
    /// process would wait for it at its next system call; and this process must not be in a group, to which root may have
    /// moved it.
    pub fn can_freeze(&self) -> bool {
        let own = own_pid();
        let is_in_root_group =
            || pids_in(&self.root).contains(&own) || self.move_to(&self.root, own).is_ok();
        !self.table.is_traced(own) && is_in_root_group()
    }

    /// True: all of it is frozen. The root group comes last: a frozen process does not move itself there.
    pub fn freeze(&mut self) -> bool {
        let mut is_frozen = true;
        if self.has_further_groups() {
            let Ok(groups) = sys::folders_in(&self.root) else {
                return false;
            };
            for name in groups {
                if name != self.commands {
                    is_frozen &= self.freeze_group(name);
                }
            }
        }
        self.empty_root_group() && is_frozen
    }

    /// By the number of links to the root group's folder, which costs less than a listing.
    fn has_further_groups(&self) -> bool {
        const WITH_ONE_FOLDER: u64 = 3;
        // SAFETY: `status` is what the call fills.
        let status = unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            check(libc::fstat(self.root.as_raw_fd(), &mut status)).map(|_| status)
        };
        !status.is_ok_and(|status| status.st_nlink == WITH_ONE_FOLDER)
    }

    fn freeze_group(&mut self, name: CString) -> bool {
        self.try_to_freeze(name).unwrap_or_else(|error| {
            // The group was removed just now.
            matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
        })
    }

    fn try_to_freeze(&mut self, name: CString) -> io::Result<bool> {
        let dir = sys::open_at(&self.root, &name, libc::O_RDONLY | libc::O_DIRECTORY)?;
        let events = sys::open_at(&dir, c"cgroup.events", libc::O_RDONLY)?;
        if has_line(&events, b"frozen 1") {
            return Ok(true);
        }
        if let Entry::Vacant(vacant) = self.frozen.entry(name) {
            let freeze = sys::open_at(&dir, c"cgroup.freeze", libc::O_RDWR)?;
            if !has_line(&freeze, b"1") {
                sys::write(freeze.as_raw_fd(), b"1")?;
                vacant.insert(freeze);
            }
        }
        Ok(has_line(&events, b"frozen 1"))
    }

    /// True: the root group has no process but this one, the gateway and kernel threads.
    fn empty_root_group(&mut self) -> bool {
        let own = own_pid();
        let mut pids = pids_in(&self.root);
        pids.retain(|&pid| pid != own && Some(pid) != self.spared && self.table.is_user(pid));
        if pids.is_empty() {
            return true;
        }
        // SAFETY: the name ends in NUL. If it cannot be made, it cannot be opened.
        unsafe { libc::mkdirat(self.root.as_raw_fd(), HELD.as_ptr(), 0o755) };
        self.has_held = true;
        if let Some(held) = self.held() {
            let _ = write_file(&held, c"cgroup.freeze", b"1");
            for pid in pids {
                let _ = self.move_to(&held, pid);
            }
        }
        false
    }

    pub fn thaw(&mut self) {
        let held = self.held();
        self.has_held = false;
        if let Some(held) = held {
            for _ in 0..ROUNDS {
                // Frozen ones do not fork meanwhile.
                for pid in pids_in(&held) {
                    let _ = self.move_to(&self.root, pid);
                }
                // SAFETY: the name ends in NUL. It fails while there is a process in it.
                let flags = libc::AT_REMOVEDIR;
                let removed =
                    unsafe { libc::unlinkat(self.root.as_raw_fd(), HELD.as_ptr(), flags) };
                if removed == 0 {
                    break;
                }
            }
            let _ = write_file(&held, c"cgroup.freeze", b"0");
        }
        for freeze in std::mem::take(&mut self.frozen).values() {
            let _ = sys::write(freeze.as_raw_fd(), b"0");
        }
    }

    fn held(&self) -> Option<OwnedFd> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        self.has_held
            .then(|| sys::open_at(&self.root, HELD, flags).ok())
            .flatten()
    }

    fn move_to(&self, group: &OwnedFd, pid: libc::pid_t) -> io::Result<()> {
        write_file(group, c"cgroup.procs", pid.to_string().as_bytes())
    }
}

fn own_pid() -> libc::pid_t {
    std::process::id() as libc::pid_t
}

fn pids_in(group: &OwnedFd) -> Vec<libc::pid_t> {
    let mut text = String::new();
    if let Ok(file) = sys::open_at(group, c"cgroup.procs", libc::O_RDONLY) {
        let _ = std::fs::File::from(file).read_to_string(&mut text);
    }
    let pids = text.lines().filter_map(|line| line.parse().ok());
    pids.collect()
}
