//! The directory that an archive is extracted into. Nothing outside of it is touched: each component of a name is opened
//! without following a link, from the directory on, and `..` is refused.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use crate::files::extract::fault::{refused, Fault};
use crate::sys::{self, check};

const MAX_NAME_BYTES: usize = 4_096;
/// The mode of a directory that the archive has content of but no entry for.
const MISSING_DIRECTORY_MODE: libc::mode_t = 0o755;
/// The names and times of directories whose times are set last; beyond it they are set earlier.
const MAX_PENDING_BYTES: usize = 4 * 1024 * 1024;
const PENDING_BYTES: usize = 64;

/// A name in the archive: the components below the target. None at all: the target itself.
pub type Name = Vec<CString>;

#[derive(Clone, Copy)]
pub struct Attributes {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: (i64, u32),
}

pub struct Tree {
    root: OwnedFd,
    /// The directory of the entry before.
    last: Option<(Name, OwnedFd)>,
    pending: Vec<(Name, (i64, u32))>,
    pending_bytes: usize,
}

/// A leading slash is dropped; empty components and `.` are none.
pub fn name_of(path: &[u8]) -> Result<Name, Fault> {
    if path.len() > MAX_NAME_BYTES {
        return Err(refused(&path[..100], "… is a name of more than 4096 bytes"));
    }
    let mut name = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(refused(path, "leads out of the directory")),
            _ => name.push(CString::new(part).map_err(|_| refused(path, "contains a NUL"))?),
        }
    }
    Ok(name)
}

pub fn shown(name: &[CString]) -> Vec<u8> {
    let parts: Vec<&[u8]> = name.iter().map(|part| part.to_bytes()).collect();
    parts.join(&b'/')
}

impl Tree {
    pub fn open(path: &Path) -> io::Result<Tree> {
        use std::os::unix::ffi::OsStrExt;
        let path = sys::c_string(path.as_os_str().as_bytes())?;
        let root = sys::open(&path, libc::O_RDONLY | libc::O_DIRECTORY)?;
        Ok(Tree {
            root,
            last: None,
            pending: Vec::new(),
            pending_bytes: 0,
        })
    }

    /// The directory of these components. Missing ones are made where `makes` says so; otherwise ENOENT.
    pub fn directory(&mut self, name: &[CString], makes: bool) -> Result<&OwnedFd, Fault> {
        if name.is_empty() {
            return Ok(&self.root);
        }
        let is_last = self.last.as_ref().is_some_and(|(last, _)| last == name);
        if !is_last {
            let dir = self.walk(name, makes)?;
            self.last = Some((name.to_vec(), dir));
        }
        Ok(self.last.as_ref().map_or(&self.root, |(_, dir)| dir))
    }

    fn walk(&self, name: &[CString], makes: bool) -> Result<OwnedFd, Fault> {
        // A directory whose entries come one after the other is not searched from the root.
        let (mut dir, done) = match &self.last {
            Some((last, dir)) if name.starts_with(last) => (dir.try_clone()?, last.len()),
            _ => (self.root.try_clone()?, 0),
        };
        for at in done..name.len() {
            dir = match open_directory(&dir, &name[at]) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) && makes => {
                    make_directory(&dir, &name[at])?;
                    let made = open_directory(&dir, &name[at])?;
                    // SAFETY: plain call; the mask of this program may have cleared bits.
                    check(unsafe { libc::fchmod(made.as_raw_fd(), MISSING_DIRECTORY_MODE) })?;
                    made
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => {
                    return Err(refused(&shown(&name[..=at]), "is not a directory"));
                }
                opened => opened?,
            };
        }
        Ok(dir)
    }

    /// Makes a directory, or takes over one that is there. Its time is set at the end, since entries change it.
    pub fn add_directory(&mut self, name: Name, attributes: Attributes) -> Result<(), Fault> {
        let Some((own, parents)) = name.split_last() else {
            return Ok(()); // the target stays as it is
        };
        let parent = self.directory(parents, true)?;
        match make_directory(parent, own) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error.into()),
            _ => {}
        }
        let dir = match open_directory(parent, own) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => {
                return Err(refused(&shown(&name), "is not a directory"));
            }
            opened => opened?,
        };
        set_owner_and_mode(&dir, attributes)?;
        self.pending_bytes += PENDING_BYTES
            + name
                .iter()
                .map(|part| PENDING_BYTES + part.as_bytes().len())
                .sum::<usize>();
        self.last = Some((name.clone(), dir));
        self.pending.push((name, attributes.mtime));
        if self.pending_bytes > MAX_PENDING_BYTES {
            self.set_times();
        }
        Ok(())
    }

    /// Sets the times of directories. A directory that has been removed meanwhile is left out.
    pub fn set_times(&mut self) {
        self.pending_bytes = 0;
        for (name, mtime) in std::mem::take(&mut self.pending).into_iter().rev() {
            if let Ok(dir) = self.directory(&name, false) {
                let _ = set_time(dir, mtime);
            }
        }
    }
}

/// A link at the name is ENOTDIR.
fn open_directory(dir: &OwnedFd, name: &CString) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    sys::open_at(dir, name, flags)
}

fn make_directory(dir: &OwnedFd, name: &CString) -> io::Result<()> {
    // SAFETY: the name ends in NUL.
    check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o700) }).map(drop)
}

/// The mode comes last, since a change of owner clears bits of it.
pub fn set_owner_and_mode(file: &impl AsRawFd, attributes: Attributes) -> io::Result<()> {
    let fd = file.as_raw_fd();
    // SAFETY: plain calls.
    unsafe {
        check(libc::fchown(fd, attributes.uid, attributes.gid))?;
        check(libc::fchmod(fd, attributes.mode & 0o7777)).map(drop)
    }
}

pub fn set_time(file: &impl AsRawFd, mtime: (i64, u32)) -> io::Result<()> {
    let times = times(mtime);
    // SAFETY: `times` has the two that the call reads.
    check(unsafe { libc::futimens(file.as_raw_fd(), times.as_ptr()) }).map(drop)
}

/// The time of access stays as it is.
pub fn times((seconds, nanoseconds): (i64, u32)) -> [libc::timespec; 2] {
    let time = |seconds, nanoseconds| libc::timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    [
        time(0, libc::UTIME_OMIT),
        time(seconds, i64::from(nanoseconds)),
    ]
}
