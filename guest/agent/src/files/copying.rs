//! A copy of a file or tree on another mount, under a temporary name beside its target: modes, owners, times, holes, links and
//! devices are kept, extended attributes are not. A copy that is dropped before it is published is removed.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::files::attributes::{copy_attributes, copy_attributes_at};
use crate::files::location::Location;
use crate::files::paths::display_path;
use crate::files::removal::Removal;
use crate::files::walk::{is_same, stat_of, Visit, Walk};
use crate::job::{Job, Next};
use crate::sys::{self, check};

/// Copied in one step.
const STEP_BYTES: u64 = 1024 * 1024;
const STEP_ENTRIES: usize = 256;

pub struct Copying {
    walk: Walk,
    target: Location,
    /// The directory of the target, for the removal.
    folder: PathBuf,
    hidden: CString,
    /// The copy of the walk's directory.
    dir: OwnedFd,
    /// The directories from the target's down to the one above `dir`.
    above: Vec<libc::stat>,
    content: Option<Content>,
    /// The first copy of each file that has several names, below the target's directory.
    links: BTreeMap<(u64, u64), PathBuf>,
    is_published: bool,
}

/// A file whose content is being copied.
struct Content {
    from: File,
    to: OwnedFd,
    at: u64,
    stat: libc::stat,
}

impl Copying {
    /// `walk` has visited nothing yet.
    pub fn new(walk: Walk, target: Location, folder: PathBuf) -> io::Result<Copying> {
        let hidden = format!(".capsule-{}", sys::hex(&sys::random::<8>()));
        Ok(Copying {
            walk,
            dir: target.dir.try_clone()?,
            target,
            folder,
            hidden: sys::c_string(hidden.as_bytes())?,
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
            if let Some(content) = &mut self.content {
                if !content.copy(&mut left)? {
                    return Ok(false);
                }
                copy_attributes(&content.to, &content.stat)?;
                self.content = None;
            }
            match self.walk.advance()? {
                Some(Visit::Entry(name, stat)) => self.make(&name, &stat)?,
                Some(Visit::Left(_, stat)) => self.leave(&stat)?,
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
                // SAFETY: `to` ends in NUL.
                check(unsafe { libc::mkdirat(fd, to.as_ptr(), 0o700) })?;
                let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
                let below = sys::open_at(&self.dir, to, flags)?;
                self.above.push(stat_of(&self.dir)?);
                self.dir = below;
                return Ok(());
            }
            libc::S_IFLNK => {
                let link = read_link(self.walk.dir(), name)?;
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

    fn leave(&mut self, stat: &libc::stat) -> io::Result<()> {
        let Some(parent) = self.above.pop() else {
            return Ok(());
        };
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

impl Content {
    fn open(walk: &Walk, name: &CStr, dir: &OwnedFd, to: &CStr) -> io::Result<Content> {
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let from = sys::open_at(walk.dir(), name, flags)?;
        let stat = stat_of(&from)?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let to = sys::open_at(dir, to, flags)?;
        // SAFETY: plain call.
        check(unsafe { libc::ftruncate(to.as_raw_fd(), stat.st_size) })?;
        Ok(Content {
            from: File::from(from),
            to,
            at: 0,
            stat,
        })
    }

    /// Copies what is no hole, at most `left` bytes. True: the content is complete.
    fn copy(&mut self, left: &mut u64) -> io::Result<bool> {
        let size = self.stat.st_size as u64;
        while self.at < size {
            if *left == 0 {
                return Ok(false);
            }
            let (data, end) = self.next_data(size)?;
            if data >= size {
                break;
            }
            let wanted = (end - data).min(*left);
            let copied = copy_range(&self.from, &self.to, data, wanted)?;
            if copied == 0 {
                // The file has become shorter.
                // SAFETY: plain call.
                check(unsafe { libc::ftruncate(self.to.as_raw_fd(), data as i64) })?;
                break;
            }
            self.at = data + copied;
            *left -= copied;
        }
        Ok(true)
    }

    /// Begin and end of the next part that is no hole; `size` for both: the rest is one.
    fn next_data(&self, size: u64) -> io::Result<(u64, u64)> {
        let fd = self.from.as_raw_fd();
        // SAFETY: plain calls.
        let (data, end) = unsafe {
            let data = libc::lseek(fd, self.at as i64, libc::SEEK_DATA);
            if data < 0 {
                let error = io::Error::last_os_error();
                return match error.raw_os_error() {
                    Some(libc::ENXIO) => Ok((size, size)),
                    _ => Err(error),
                };
            }
            (data, libc::lseek(fd, data, libc::SEEK_HOLE))
        };
        let end = if end > data { end as u64 } else { size };
        Ok((data as u64, end.min(size)))
    }
}

fn copy_range(from: &File, to: &OwnedFd, at: u64, count: u64) -> io::Result<u64> {
    use std::os::unix::fs::FileExt;
    let to = File::from(to.try_clone()?);
    let mut buffer = vec![0u8; 64 * 1024];
    let mut copied = 0;
    while copied < count {
        let wanted = buffer.len().min((count - copied) as usize);
        let read = from.read_at(&mut buffer[..wanted], at + copied)?;
        if read == 0 {
            break;
        }
        to.write_all_at(&buffer[..read], at + copied)?;
        copied += read as u64;
    }
    Ok(copied)
}

fn read_link(dir: &OwnedFd, name: &CStr) -> io::Result<CString> {
    let mut target = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: `target` has that much room.
    let length = unsafe {
        libc::readlinkat(
            dir.as_raw_fd(),
            name.as_ptr(),
            target.as_mut_ptr().cast(),
            target.len(),
        )
    };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    sys::c_string(&target[..length as usize])
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
