//! A cgroup for each command, so that a process tree can be frozen and killed whatever its members do.
//!
//! Making a cgroup costs more than the rest of starting a small program. So cgroups are numbered, not named by tag, and
//! reused once their command has left them empty, unless they were killed or are frozen:
//!
//! ```text
//!   acquire ─► in use ─ release ─► released ─ sweep, once empty ─► free ─► acquire
//! ```

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sys::{self, check};

const MAX_FREE: usize = 16;
/// Deepest group that is looked for below a command's.
const MAX_DEPTH: usize = 32;

struct Group {
    name: CString,
    dir: OwnedFd,
    /// cgroup.events, kept open.
    events: OwnedFd,
    /// Recent kernels kill every process that is cloned into a killed cgroup, so it is not reused.
    is_killed: bool,
}

/// The parent of all groups, and those of its files that concern all commands.
struct Base {
    dir: OwnedFd,
    freeze: OwnedFd,
    events: OwnedFd,
}

#[derive(Default)]
pub struct Cgroups {
    base: Option<Base>,
    groups: BTreeMap<u32, Group>,
    free: Vec<u32>,
    /// Their commands are over, but processes may be left in them.
    released: Vec<u32>,
    /// A released group may have become empty.
    is_sweep_due: bool,
    last_id: u32,
}

impl Cgroups {
    /// Makes groups in `path`, a folder of a cgroup version 2 tree, which is created if it does not exist.
    pub fn below(path: &str) -> io::Result<Cgroups> {
        let path = sys::c_string(path.as_bytes())?;
        // SAFETY: `path` ends in NUL. An error shows when it is opened.
        unsafe { libc::mkdir(path.as_ptr(), 0o755) };
        let dir = sys::open(&path, libc::O_RDONLY | libc::O_DIRECTORY)?;
        sys::open_at(&dir, c"cgroup.kill", libc::O_WRONLY)?;
        let freeze = sys::open_at(&dir, c"cgroup.freeze", libc::O_WRONLY)?;
        let events = sys::open_at(&dir, c"cgroup.events", libc::O_RDONLY)?;
        let mut cgroups = Cgroups::default();
        cgroups.base.replace(Base {
            dir,
            freeze,
            events,
        });
        Ok(cgroups)
    }

    /// An empty group for a command; `None` without cgroups.
    pub fn acquire(&mut self) -> io::Result<Option<u32>> {
        if self.base.is_none() {
            return Ok(None);
        }
        match self.free.pop() {
            Some(id) => Ok(Some(id)),
            None => self.make().map(Some),
        }
    }

    /// The open folder, for `clone3`.
    pub fn dir(&self, id: u32) -> Option<RawFd> {
        self.groups.get(&id).map(|group| group.dir.as_raw_fd())
    }

    /// The command is over.
    pub fn release(&mut self, id: u32) {
        self.released.push(id);
        self.is_sweep_due = true;
    }

    pub fn processes_ended(&mut self) {
        self.is_sweep_due = true;
    }

    /// The kernel refuses to start a process in it.
    pub fn discard(&mut self, id: u32) {
        self.remove(id);
    }

    /// Frees or removes the released groups that are empty by now.
    pub fn sweep(&mut self) {
        if !std::mem::take(&mut self.is_sweep_due) {
            return;
        }
        for id in std::mem::take(&mut self.released) {
            if self.is_populated(id) {
                self.released.push(id);
            } else if self.free.len() < MAX_FREE && self.is_reusable(id) {
                self.free.push(id);
            } else {
                self.remove(id);
            }
        }
    }

    pub fn is_populated(&self, id: u32) -> bool {
        self.groups
            .get(&id)
            .is_some_and(|group| !has_line(&group.events, b"populated 0"))
    }

    /// The processes in it and in the groups below it.
    pub fn pids(&self, id: u32) -> Vec<libc::pid_t> {
        let mut pids = Vec::new();
        if let Some(group) = self.groups.get(&id) {
            add_pids(&group.dir, MAX_DEPTH, &mut pids);
        }
        pids
    }

    /// A group that the guest has frozen would hold the next command's child.
    fn is_reusable(&self, id: u32) -> bool {
        let group = self.groups.get(&id);
        group.is_some_and(|it| !it.is_killed && !has_line(&it.events, b"frozen 1"))
    }

    pub fn kill(&mut self, id: u32) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.is_killed = true;
            let _ = write_file(&group.dir, c"cgroup.kill", b"1");
        }
    }

    /// Freezes or thaws all commands. False: there is no freezer.
    pub fn freeze(&self, is_wanted: bool) -> bool {
        let Some(base) = &self.base else {
            return false;
        };
        let value: &[u8] = if is_wanted { b"1" } else { b"0" };
        sys::write(base.freeze.as_raw_fd(), value).is_ok()
    }

    pub fn are_frozen(&self) -> bool {
        self.base
            .as_ref()
            .is_some_and(|base| has_line(&base.events, b"frozen 1"))
    }

    fn make(&mut self) -> io::Result<u32> {
        let Some(base) = &self.base else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let name = loop {
            self.last_id += 1;
            let name = sys::c_string(self.last_id.to_string().as_bytes())?;
            // SAFETY: `name` ends in NUL.
            match check(unsafe { libc::mkdirat(base.dir.as_raw_fd(), name.as_ptr(), 0o755) }) {
                Ok(_) => break name,
                // Made by another program, or by an agent before this one.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) => return Err(error),
            }
        };
        let dir = sys::open_at(&base.dir, &name, libc::O_RDONLY | libc::O_DIRECTORY)?;
        let events = sys::open_at(&dir, c"cgroup.events", libc::O_RDONLY)?;
        let group = Group {
            name,
            dir,
            events,
            is_killed: false,
        };
        self.groups.insert(self.last_id, group);
        Ok(self.last_id)
    }

    fn remove(&mut self, id: u32) {
        if let (Some(group), Some(base)) = (self.groups.remove(&id), &self.base) {
            // SAFETY: the name ends in NUL. It stays if a process or a folder is in it; its number is never used
            // again.
            unsafe {
                libc::unlinkat(
                    base.dir.as_raw_fd(),
                    group.name.as_ptr(),
                    libc::AT_REMOVEDIR,
                );
            }
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.remove(id);
        }
    }
}

fn add_pids(dir: &OwnedFd, depth: usize, pids: &mut Vec<libc::pid_t>) {
    if let Ok(file) = sys::open_at(dir, c"cgroup.procs", libc::O_RDONLY) {
        let mut text = String::new();
        let _ = std::fs::File::from(file).read_to_string(&mut text);
        pids.extend(
            text.lines()
                .filter_map(|line| line.parse::<libc::pid_t>().ok()),
        );
    }
    if depth == 0 {
        return;
    }
    for name in sys::folders_in(dir).unwrap_or_default() {
        if let Ok(child) = sys::open_at(dir, &name, libc::O_RDONLY | libc::O_DIRECTORY) {
            add_pids(&child, depth - 1, pids);
        }
    }
}

pub fn write_file(dir: &OwnedFd, name: &CStr, value: &[u8]) -> io::Result<()> {
    let file = sys::open_at(dir, name, libc::O_WRONLY)?;
    sys::write(file.as_raw_fd(), value).map(drop)
}

pub fn has_line(events: &OwnedFd, line: &[u8]) -> bool {
    let mut text = [0u8; 256];
    // SAFETY: `text` has that much room.
    let count = unsafe { libc::pread(events.as_raw_fd(), text.as_mut_ptr().cast(), text.len(), 0) };
    text[..count.max(0) as usize]
        .split(|&byte| byte == b'\n')
        .any(|found| found == line)
}
