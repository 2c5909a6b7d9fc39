//! A cgroup for each command, so that a tree of processes can be frozen and killed whatever its members do.
//!
//! Making one costs more than the rest of starting a small program. So they are named by number, not by tag, and one
//! that a command has left empty serves the next, unless it was killed:
//!
//! ```text
//!   take ─► in use ─ give_back ─► retired ─ sweep, once empty ─► free ─► take
//! ```

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sys::{self, check};

const MAX_FREE: usize = 16;

struct Group {
    name: CString,
    dir: OwnedFd,
    /// cgroup.events, read again and again.
    events: OwnedFd,
    /// Once killed, a group is a death trap: recent kernels kill what is cloned into it later.
    is_killed: bool,
}

/// The folder of all groups; what is asked of all commands together is kept open.
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
    /// Left by their commands, but perhaps not by all processes.
    retired: Vec<u32>,
    /// One of them may have become empty.
    is_due: bool,
    last: u32,
}

impl Cgroups {
    /// Below a folder of a cgroup version 2 tree, which is made if it is not there.
    pub fn below(path: &str) -> io::Result<Cgroups> {
        let path = sys::c_string(path.as_bytes())?;
        // SAFETY: `path` ends in NUL. What is wrong with it shows when it is opened.
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
    pub fn take(&mut self) -> io::Result<Option<u32>> {
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
    pub fn give_back(&mut self, id: u32) {
        self.retired.push(id);
        self.is_due = true;
    }

    pub fn processes_ended(&mut self) {
        self.is_due = true;
    }

    /// The kernel will not take it any more.
    pub fn discard(&mut self, id: u32) {
        self.remove(id);
    }

    /// Looks which retired groups are empty by now, if that may have changed.
    pub fn sweep(&mut self) {
        if !std::mem::take(&mut self.is_due) {
            return;
        }
        for id in std::mem::take(&mut self.retired) {
            if self.is_populated(id) {
                self.retired.push(id);
            } else if self.free.len() < MAX_FREE && !self.is_killed(id) {
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

    fn is_killed(&self, id: u32) -> bool {
        self.groups.get(&id).is_none_or(|group| group.is_killed)
    }

    pub fn kill(&mut self, id: u32) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.is_killed = true;
            let _ = write_file(&group.dir, c"cgroup.kill", b"1");
        }
    }

    /// Of all commands together. False: there is no freezer.
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
            self.last += 1;
            let name = sys::c_string(self.last.to_string().as_bytes())?;
            // SAFETY: `name` ends in NUL.
            match check(unsafe { libc::mkdirat(base.dir.as_raw_fd(), name.as_ptr(), 0o755) }) {
                Ok(_) => break name,
                // Somebody else's, or an earlier life's.
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
        self.groups.insert(self.last, group);
        Ok(self.last)
    }

    fn remove(&mut self, id: u32) {
        if let (Some(group), Some(base)) = (self.groups.remove(&id), &self.base) {
            // SAFETY: the name ends in NUL. If a process or a folder is in it, it stays; its number is never used
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

fn write_file(dir: &OwnedFd, name: &CStr, value: &[u8]) -> io::Result<()> {
    let file = sys::open_at(dir, name, libc::O_WRONLY)?;
    sys::write(file.as_raw_fd(), value).map(drop)
}

fn has_line(events: &OwnedFd, line: &[u8]) -> bool {
    let mut text = [0u8; 256];
    // SAFETY: `text` has that much room.
    let count = unsafe { libc::pread(events.as_raw_fd(), text.as_mut_ptr().cast(), text.len(), 0) };
    text[..count.max(0) as usize]
        .split(|&byte| byte == b'\n')
        .any(|found| found == line)
}
