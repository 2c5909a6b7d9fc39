//! REMOVE: a file, a link, or a whole tree. Follows no link, stays within one file system, and needs two descriptors for a
//! tree of any depth: it returns through `..`, and checks that this is the directory it came from.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::files::directory::read_names;
use crate::files::mount_points::{holds_mount_point, is_mount_point};
use crate::files::paths::{display_path, failure, invalid, named};
use crate::job::{Input, Job, Next, Progress};
use crate::protocol::{empty, Code, Failure};
use crate::sys::{self, check};

/// Entries removed in one step.
const BATCH: usize = 256;
/// How often removing a directory may fail because another process has added to it.
const MAX_RETRIES: usize = 16;

const PROTECTED: [&str; 4] = ["/", "/proc", "/sys", "/dev"];

/// The current directory or one above it.
struct Level {
    name: CString,
    identity: (u64, u64),
    /// Entries read and not yet removed.
    names: Vec<CString>,
    retries: usize,
}

pub struct Removal {
    path: PathBuf,
    /// From the parent of the removed path down to the current directory.
    levels: Vec<Level>,
    current: Option<OwnedFd>,
}

impl Removal {
    pub fn new(path: PathBuf) -> Removal {
        Removal {
            path,
            levels: Vec::new(),
            current: None,
        }
    }

    fn begin(&mut self) -> Result<Next, Failure> {
        let path = &self.path;
        let wrong = |error: io::Error| failure(path, &error);
        let meta = path.symlink_metadata().map_err(wrong)?;
        let is_protected = PROTECTED.iter().any(|root| {
            std::fs::metadata(root)
                .is_ok_and(|root| (root.dev(), root.ino()) == (meta.dev(), meta.ino()))
        });
        let bytes = path.as_os_str().as_bytes();
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(invalid(bytes, "cannot be removed"));
        };
        if is_protected {
            return Err(invalid(bytes, "cannot be removed"));
        }
        let name = sys::c_string(name.as_bytes()).map_err(wrong)?;
        let parent = sys::c_string(parent.as_os_str().as_bytes())
            .and_then(|parent| sys::open(&parent, libc::O_RDONLY | libc::O_DIRECTORY))
            .map_err(wrong)?;
        if is_mount_point(&parent, &name) {
            return Err(invalid(bytes, "is a mount point"));
        }
        if !meta.is_dir() {
            return unlink(&parent, &name, 0).map(|()| done()).map_err(wrong);
        }
        if holds_mount_point(path, &parent).map_err(wrong)? {
            return Err(invalid(bytes, "holds a mount point"));
        }
        let root = Level {
            name: c"".into(),
            identity: identity(&parent).map_err(wrong)?,
            names: vec![name],
            retries: 0,
        };
        self.levels.push(root);
        self.current = Some(parent);
        Ok(Next::Continue)
    }

    fn next_step(&mut self) -> Result<Next, Failure> {
        if self.current.is_none() {
            return self.begin();
        }
        for _ in 0..BATCH {
            let is_done = self.remove_one().map_err(|error| self.failure(&error))?;
            if is_done {
                return Ok(done());
            }
        }
        Ok(Next::Continue)
    }

    /// Removes one entry, or goes down or up one level. True: everything is removed.
    fn remove_one(&mut self) -> io::Result<bool> {
        let is_top = self.levels.len() == 1;
        let (Some(level), Some(dir)) = (self.levels.last_mut(), &self.current) else {
            return Ok(true);
        };
        let Some(name) = level.names.pop() else {
            if is_top {
                return Ok(true);
            }
            level.names = read_names(dir)?;
            if level.names.is_empty() {
                self.leave()?;
            }
            return Ok(false);
        };
        match unlink(dir, &name, 0) {
            Ok(()) => Ok(false),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => Ok(false),
                // Linux answers EISDIR for a directory; POSIX and some file systems answer EPERM.
                Some(libc::EISDIR | libc::EPERM) => self.enter(name, error).map(|()| false),
                _ => Err(error),
            },
        }
    }

    fn enter(&mut self, name: CString, refusal: io::Error) -> io::Result<()> {
        let Some(dir) = &self.current else {
            return Ok(());
        };
        if is_mount_point(dir, &name) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let below = match sys::open_at(dir, &name, flags) {
            Ok(below) => below,
            // Not a directory, so unlink failed for another reason.
            Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => return Err(refusal),
            Err(error) => return Err(error),
        };
        self.levels.push(Level {
            name,
            identity: identity(&below)?,
            names: Vec::new(),
            retries: 0,
        });
        self.current = Some(below);
        Ok(())
    }

    /// The current directory is empty: goes up and removes it.
    fn leave(&mut self) -> io::Result<()> {
        let Some((level, dir)) = self.levels.pop().zip(self.current.take()) else {
            return Ok(());
        };
        let above = sys::open_at(&dir, c"..", libc::O_RDONLY | libc::O_DIRECTORY)?;
        let Some(parent) = self.levels.last_mut() else {
            return Ok(());
        };
        if identity(&above)? != parent.identity {
            // The tree was moved meanwhile.
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        match unlink(&above, &level.name, libc::AT_REMOVEDIR) {
            Ok(()) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => {}
                // Another process has added an entry meanwhile.
                Some(libc::ENOTEMPTY | libc::EEXIST) if parent.retries < MAX_RETRIES => {
                    parent.retries += 1;
                    parent.names.push(level.name);
                }
                _ => return Err(error),
            },
        }
        self.current = Some(above);
        Ok(())
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let mut at = self.path.parent().unwrap_or(Path::new("/")).to_path_buf();
        for level in &self.levels {
            at.push(display_path(&level.name));
        }
        let bytes = at.as_os_str().as_bytes();
        match error.raw_os_error() {
            Some(libc::EBUSY) => invalid(bytes, "holds a mount point, or is in use"),
            Some(libc::ENOTEMPTY) => named(Code::Conflict, bytes, "is being written to"),
            _ => failure(&at, error),
        }
    }
}

impl Job for Removal {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        Progress::next(self.next_step().unwrap_or_else(Next::Failed))
    }
}

fn done() -> Next {
    Next::Done {
        has_end: false,
        result: empty(),
    }
}

fn unlink(dir: &OwnedFd, name: &CStr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: `name` ends in NUL.
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) }).map(drop)
}

fn identity(dir: &OwnedFd) -> io::Result<(u64, u64)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is what the call fills.
    unsafe {
        check(libc::fstat(dir.as_raw_fd(), stat.as_mut_ptr()))?;
        let stat = stat.assume_init();
        Ok((stat.st_dev, stat.st_ino))
    }
}
