//! A walk of a tree, entry by entry. Follows no link and enters no mount point. It holds one descriptor whatever
//! the depth: it returns through `..`, and checks that this is the directory it came from.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::files::directory::read_names_at;
use crate::files::mount_points::is_mount_point;
use crate::files::paths::display_path;
use crate::memory;
use crate::sys::{self, check};

pub enum Visit {
    /// An entry of `Walk::dir`. A directory's content comes next, and then `Left`.
    Entry(CString, libc::stat),
    /// A directory of `Walk::dir`.
    Left(CString, libc::stat),
}

struct Level {
    name: CString,
    stat: libc::stat,
    /// Names read and not yet visited.
    names: Vec<CString>,
    position: i64,
}

pub struct Walk {
    /// The parent of the start.
    top: PathBuf,
    dir: OwnedFd,
    start: Option<CString>,
    levels: Vec<Level>,
    /// A directory that was visited, to be entered.
    next: Option<(CString, libc::stat)>,
}

impl Walk {
    /// `start` lies in `dir`, the directory `top`.
    pub fn new(top: PathBuf, dir: OwnedFd, start: CString) -> Walk {
        Walk {
            top,
            dir,
            start: Some(start),
            levels: Vec::new(),
            next: None,
        }
    }

    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// The directory of the last visit, for a message.
    pub fn path(&self) -> PathBuf {
        let names = self.levels.iter().map(|level| display_path(&level.name));
        std::iter::once(self.top.as_path()).chain(names).collect()
    }

    /// The same below the start's parent.
    pub fn relative(&self) -> PathBuf {
        let names = self.levels.iter().map(|level| display_path(&level.name));
        names.collect::<PathBuf>()
    }

    /// `None` at the end. An entry that is gone is left out.
    pub fn advance(&mut self) -> io::Result<Option<Visit>> {
        if memory::is_low() {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        if let Some((name, stat)) = self.next.take() {
            if let Some(left) = self.enter(name, stat)? {
                return Ok(Some(left));
            }
        }
        loop {
            let Some(name) = self.next_name()? else {
                return self.leave();
            };
            let Some(stat) = stat_at(&self.dir, &name)? else {
                continue;
            };
            let is_dir = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
            if is_dir && !self.levels.is_empty() && is_mount_point(&self.dir, &name) {
                continue;
            }
            if is_dir {
                self.next = Some((name.clone(), stat));
            }
            return Ok(Some(Visit::Entry(name, stat)));
        }
    }

    /// Does not enter the directory that was just visited.
    pub fn skip(&mut self) {
        self.next = None;
    }

    fn next_name(&mut self) -> io::Result<Option<CString>> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(self.start.take());
        };
        if level.names.is_empty() {
            (level.names, level.position) = read_names_at(&self.dir, level.position)?;
        }
        Ok(level.names.pop())
    }

    /// A directory that is gone, or another thing by now, is left at once.
    fn enter(&mut self, name: CString, stat: libc::stat) -> io::Result<Option<Visit>> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        match sys::open_at(&self.dir, &name, flags) {
            Ok(below) => self.dir = below,
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => {
                    return Ok(Some(Visit::Left(name, stat)));
                }
                _ => return Err(error),
            },
        }
        let stat = stat_of(&self.dir)?;
        self.levels.push(Level {
            name,
            stat,
            names: Vec::new(),
            position: 0,
        });
        Ok(None)
    }

    fn leave(&mut self) -> io::Result<Option<Visit>> {
        let Some(level) = self.levels.pop() else {
            return Ok(None);
        };
        let above = sys::open_at(&self.dir, c"..", libc::O_RDONLY | libc::O_DIRECTORY)?;
        if let Some(parent) = self.levels.last() {
            if !is_same(&stat_of(&above)?, &parent.stat) {
                // The tree was moved meanwhile.
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
        }
        self.dir = above;
        Ok(Some(Visit::Left(level.name, level.stat)))
    }
}

pub fn is_same(one: &libc::stat, other: &libc::stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// The same file or directory, and not written to in between.
pub fn is_unchanged(before: &libc::stat, now: &libc::stat) -> bool {
    let version = |it: &libc::stat| {
        let modified = (it.st_mtime, it.st_mtime_nsec);
        (it.st_size, modified, (it.st_ctime, it.st_ctime_nsec))
    };
    is_same(before, now) && version(before) == version(now)
}

pub fn stat_of(file: &OwnedFd) -> io::Result<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is what the call fills, and read only when it succeeds.
    unsafe {
        check(libc::fstat(file.as_raw_fd(), stat.as_mut_ptr()))?;
        Ok(stat.assume_init())
    }
}

/// The entry itself; `None` if there is none.
pub fn stat_at(dir: &OwnedFd, name: &CStr) -> io::Result<Option<libc::stat>> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `stat` is what the call fills, and read only when it succeeds.
    unsafe {
        match check(libc::fstatat(
            dir.as_raw_fd(),
            name.as_ptr(),
            stat.as_mut_ptr(),
            flags,
        )) {
            Ok(_) => Ok(Some(stat.assume_init())),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The parent of a path that is not the root, and its name there.
pub fn open_parent(path: &Path) -> io::Result<(OwnedFd, CString)> {
    let missing = || io::Error::from_raw_os_error(libc::EISDIR);
    let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(missing)?;
    let parent = sys::c_string(parent.as_os_str().as_encoded_bytes())?;
    let dir = sys::open(&parent, libc::O_RDONLY | libc::O_DIRECTORY)?;
    Ok((dir, sys::c_string(name.as_encoded_bytes())?))
}
