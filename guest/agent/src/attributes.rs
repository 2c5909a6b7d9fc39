//! Attributes of an uploaded file, and the system calls that set modes, owners and times.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::accounts;
use crate::protocol::{Code, Failure};
use crate::record::{Malformed, Reader};
use crate::sys::{self, check};

/// The event ATTRIBUTES.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Missing directories above the file are made.
    pub has_parents: bool,
    pub mode: Option<u32>,
    /// A name or a number.
    pub owner: Option<Vec<u8>>,
}

impl Attributes {
    pub fn read(fields: &mut Reader) -> Result<Attributes, Malformed> {
        Ok(Attributes {
            has_parents: fields.flag()?,
            mode: fields.optional_u32()?,
            owner: fields.optional()?.map(<[u8]>::to_vec),
        })
    }

    /// The owner, with the group that is that user's first.
    pub fn ids(&self) -> Result<Option<(u32, u32)>, Failure> {
        self.owner.as_deref().map(find_user).transpose()
    }
}

pub fn find_user(user: &[u8]) -> Result<(u32, u32), Failure> {
    let account = accounts::find(user).ok_or_else(|| unknown("user", user))?;
    Ok((account.uid, account.gid))
}

pub fn find_group(group: &[u8]) -> Result<u32, Failure> {
    accounts::find_group(group).ok_or_else(|| unknown("group", group))
}

fn unknown(what: &str, name: &[u8]) -> Failure {
    let name = String::from_utf8_lossy(name);
    Failure::new(Code::Invalid, format!("there is no {what} {name}"))
}

/// Makes the missing directories above `path`, 0755 whatever the umask, and returns them.
pub fn make_parents(path: &Path, ids: Option<(u32, u32)>) -> io::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    let mut missing = Vec::new();
    for dir in path.ancestors().skip(1) {
        match dir.metadata() {
            Ok(_) => break,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => missing.push(dir),
            Err(error) => return Err(error),
        }
    }
    for dir in missing.into_iter().rev() {
        match std::fs::create_dir(dir) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => continue,
            Err(error) => return Err(error),
        }
        std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        made.push(dir.to_path_buf());
    }
    own(&made, ids)?;
    Ok(made)
}

/// Without `ids` they keep their owner.
pub fn own(dirs: &[PathBuf], ids: Option<(u32, u32)>) -> io::Result<()> {
    let (uid, gid) = ids.unzip();
    let mut dirs = dirs.iter();
    dirs.try_for_each(|dir| std::os::unix::fs::lchown(dir, uid, gid))
}

/// Gives `to` the mode, owner and times of `stat`. The mode comes last, since a change of owner clears bits of it.
pub fn copy_attributes(to: &OwnedFd, stat: &libc::stat) -> io::Result<()> {
    let fd = to.as_raw_fd();
    // SAFETY: plain calls.
    unsafe {
        check(libc::fchown(fd, stat.st_uid, stat.st_gid))?;
        check(libc::fchmod(fd, stat.st_mode & 0o7777))?;
        check(libc::futimens(fd, times(stat).as_ptr())).map(drop)
    }
}

/// The same for an entry that is not opened: a link, a pipe, a device.
pub fn copy_attributes_at(dir: &OwnedFd, name: &CStr, stat: &libc::stat) -> io::Result<()> {
    change_owner(dir, name, Some(stat.st_uid), Some(stat.st_gid))?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFLNK {
        change_mode(dir, name, stat.st_mode & 0o7777)?;
    }
    let (fd, flags) = (dir.as_raw_fd(), libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: `name` ends in NUL, and there are two times.
    check(unsafe { libc::utimensat(fd, name.as_ptr(), times(stat).as_ptr(), flags) }).map(drop)
}

fn times(stat: &libc::stat) -> [libc::timespec; 2] {
    let mut times = [libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    }; 2];
    (times[0].tv_sec, times[0].tv_nsec) = (stat.st_atime, stat.st_atime_nsec);
    (times[1].tv_sec, times[1].tv_nsec) = (stat.st_mtime, stat.st_mtime_nsec);
    times
}

/// The entry itself is changed. A link has no mode: one that takes the entry's place is EOPNOTSUPP or ELOOP, and its target stays.
pub fn change_mode(dir: &OwnedFd, name: &CStr, mode: u32) -> io::Result<()> {
    let entry = sys::open_at(dir, name, libc::O_PATH | libc::O_NOFOLLOW)?;
    let path = sys::c_string(format!("/proc/self/fd/{}", entry.as_raw_fd()).as_bytes())?;
    // SAFETY: `path` ends in NUL.
    check(unsafe { libc::chmod(path.as_ptr(), mode) }).map(drop)
}

/// The entry itself is changed, a link too.
pub fn change_owner(
    dir: &OwnedFd,
    name: &CStr,
    uid: Option<u32>,
    gid: Option<u32>,
) -> io::Result<()> {
    const UNCHANGED: u32 = u32::MAX;
    let (uid, gid) = (uid.unwrap_or(UNCHANGED), gid.unwrap_or(UNCHANGED));
    let (fd, flags) = (dir.as_raw_fd(), libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: `name` ends in NUL.
    check(unsafe { libc::fchownat(fd, name.as_ptr(), uid, gid, flags) }).map(drop)
}
