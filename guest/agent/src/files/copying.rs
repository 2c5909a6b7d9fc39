//! A copy of a file or tree on another mount, under a temporary name beside its target: modes, owners, times, holes, links and
//! devices are kept, extended attributes are not. A copy that is dropped before it is published is removed.

mod content;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::attributes::{copy_attributes, copy_attributes_at};
use crate::files::copying::content::Content;
use crate::files::hidden_names::hidden_name;
use crate::files::location::{read_link, Location};
use crate::files::paths::display_path;
use crate::files::removal::Removal;
use crate::files::walk::{is_same, is_unchanged, stat_at, stat_of, Visit, Walk};
use crate::job::{Job, Next};
use crate::sys::{self, check};

/// Copied in one step.
const STEP_BYTES: u64 = 1024 * 1024;
const STEP_ENTRIES: usize = 256;
/// The error of a copy that has come to itself: its target lies in the tree that is copied.
pub const IN_ITSELF: libc::c_int = libc::EDEADLK;

pub struct Copying {
    walk: Walk,
    target: Location,
    /// The directory of the target, for the removal.
    folder: PathBuf,
    hidden: CString,
    /// The copy of the walk's directory.
    dir: OwnedFd,
    /// The copy itself, of a directory.
    top: Option<libc::stat>,
    /// The directories from the target's down to the one above `dir`.
    above: Vec<libc::stat>,
    content: Option<Content>,
    /// The first copy of each file that has several names, below the target's directory.
    links: BTreeMap<(u64, u64), PathBuf>,
    is_published: bool,
}

impl Copying {
    /// `walk` has visited nothing yet.
    pub fn new(walk: Walk, target: Location, folder: PathBuf) -> io::Result<Copying> {
        Ok(Copying {
            walk,
            dir: target.dir.try_clone()?,
            target,
            folder,
            top: None,
            hidden: hidden_name(false)?,
            above: Vec::new(),
            content: None,
            links: BTreeMap::new(),
            is_published: false,
        })
    }

    /// For a message.
    pub fn path(&self) -> PathBuf {
        self.walk.path()
    }

    /// True: all is copied.
    pub fn step(&mut self) -> io::Result<bool> {
        let mut left = STEP_BYTES;
        for _ in 0..STEP_ENTRIES {
            if let Some(mut content) = self.content.take() {
                if !content.copy(&mut left)? {
                    self.content = Some(content);
                    return Ok(false);
                }
                content.finish()?;
            }
            match self.walk.advance()? {
                Some(Visit::Entry(name, stat)) => self.make(&name, &stat)?,
                Some(Visit::Left(name, stat)) => self.leave(&name, &stat)?,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Gives the copy its name.
    pub fn publish(&mut self, flags: libc::c_uint) -> io::Result<()> {
        let at = &self.target;
        rename(&at.dir, &self.hidden, &at.dir, &at.name, flags)?;
        self.is_published = true;
        Ok(())
    }

    fn make(&mut self, name: &CStr, stat: &libc::stat) -> io::Result<()> {
        let new_name = if self.above.is_empty() {
            self.hidden.clone()
        } else {
            name.to_owned()
        };
        let (to, fd) = (new_name.as_c_str(), self.dir.as_raw_fd());
        if self.link(to, stat)? {
            return Ok(());
        }
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => {
                self.content = Some(Content::open(&self.walk, name, &self.dir, to)?);
                return Ok(());
            }
            libc::S_IFDIR => {
                // A bind mount may lead into the tree, so that the paths do not tell.
                if self.top.is_some_and(|top| is_same(&top, stat)) {
                    return Err(io::Error::from_raw_os_error(IN_ITSELF));
                }
                // SAFETY: `to` ends in NUL.
                check(unsafe { libc::mkdirat(fd, to.as_ptr(), 0o700) })?;
                let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
                let below = sys::open_at(&self.dir, to, flags)?;
                if self.top.is_none() {
                    self.top = Some(stat_of(&below)?);
                }
                self.above.push(stat_of(&self.dir)?);
                self.dir = below;
                return Ok(());
            }
            libc::S_IFLNK => {
                let link = sys::c_string(&read_link(self.walk.dir(), name)?)?;
                // SAFETY: both end in NUL.
                check(unsafe { libc::symlinkat(link.as_ptr(), fd, to.as_ptr()) })?;
            }
            // SAFETY: `to` ends in NUL.
            _ => drop(check(unsafe {
                libc::mknodat(
                    fd,
                    to.as_ptr(),
                    stat.st_mode & libc::S_IFMT | 0o600,
                    stat.st_rdev,
                )
            })?),
        }
        copy_attributes_at(&self.dir, to, stat)
    }

    /// True: it is another name of a file that is copied already.
    fn link(&mut self, to: &CStr, stat: &libc::stat) -> io::Result<bool> {
        if stat.st_nlink < 2
            || stat.st_mode & libc::S_IFMT == libc::S_IFDIR
            || self.above.is_empty()
        {
            return Ok(false);
        }
        let identity = (stat.st_dev, stat.st_ino);
        let Some(first) = self.links.get(&identity) else {
            let below = self.walk.relative();
            let below: PathBuf = below.components().skip(1).collect();
            let path = Path::new(display_path(&self.hidden))
                .join(below)
                .join(display_path(to));
            self.links.insert(identity, path);
            return Ok(false);
        };
        let first = sys::c_string(first.as_os_str().as_bytes())?;
        let (top, dir) = (self.target.dir.as_raw_fd(), self.dir.as_raw_fd());
        // SAFETY: both end in NUL.
        match check(unsafe { libc::linkat(top, first.as_ptr(), dir, to.as_ptr(), 0) }) {
            Ok(_) => Ok(true),
            // A file system without such links, too many of them, or too long a path: a copy of its own.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EPERM | libc::EMLINK | libc::ENAMETOOLONG)
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// `stat` is from when the directory was entered; one that has got or lost entries since is EBUSY.
    fn leave(&mut self, name: &CStr, stat: &libc::stat) -> io::Result<()> {
        let Some(parent) = self.above.pop() else {
            return Ok(());
        };
        let now = stat_at(self.walk.dir(), name)?;
        if !now.is_some_and(|now| is_unchanged(stat, &now)) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        copy_attributes(&self.dir, stat)?;
        let above = sys::open_at(&self.dir, c"..", libc::O_RDONLY | libc::O_DIRECTORY)?;
        if !is_same(&stat_of(&above)?, &parent) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        self.dir = above;
        Ok(())
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        self.content = None;
        let mut removal = Removal::new(self.folder.join(display_path(&self.hidden)));
        while matches!(removal.step(Vec::new()).next, Next::Continue) {}
    }
}

/// With `RENAME_NOREPLACE` where the file system has it; the caller has looked that nothing is there.
pub fn rename(
    from_dir: &OwnedFd,
    from: &CStr,
    to_dir: &OwnedFd,
    to: &CStr,
    flags: libc::c_uint,
) -> io::Result<()> {
    let attempt = |flags: libc::c_uint| {
        // SAFETY: both names end in NUL.
        let result = unsafe {
            libc::syscall(
                libc::SYS_renameat2,
                from_dir.as_raw_fd(),
                from.as_ptr(),
                to_dir.as_raw_fd(),
                to.as_ptr(),
                flags,
            )
        };
        check(result as libc::c_int).map(drop)
    };
    match attempt(flags) {
        Err(error) if flags != 0 && error.raw_os_error() == Some(libc::EINVAL) => attempt(0),
        result => result,
    }
}
