//! Where a file is written: the folder and the name that a path leads to when all links are followed.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sys::{self, check};

/// A folder and a name in it, all links resolved.
pub struct Location {
    pub dir: OwnedFd,
    pub name: CString,
}

const MAX_LINKS: usize = 40;

impl Location {
    /// Follows links, the last one too: a file is written where its link points. An error is the folder's, or ELOOP.
    pub fn find(path: &Path) -> io::Result<Location> {
        let mut dir = open_dir(None, c"/")?;
        let mut rest = path.as_os_str().as_bytes().to_vec();
        for _ in 0..MAX_LINKS {
            let (parent, name) = split(&rest);
            if name.is_empty() || name == b"." || name == b".." {
                return Err(io::Error::from_raw_os_error(libc::EISDIR));
            }
            if !parent.is_empty() {
                dir = open_dir(Some(&dir), &sys::c_string(parent)?)?;
            }
            let name = sys::c_string(name)?;
            match read_link(&dir, &name) {
                Ok(target) => rest = target,
                Err(_) => return Ok(Location { dir, name }),
            }
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    /// The file there now, without following a link; `None` if there is none.
    pub fn stat(&self) -> io::Result<Option<libc::stat>> {
        stat_at(&self.dir, &self.name)
    }
}

/// `/a/b/c` → `/a/b`, `c`; `c` → nothing, `c`.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

pub fn open_dir(at: Option<&OwnedFd>, path: &CStr) -> io::Result<OwnedFd> {
    let at = at.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: `path` ends in NUL.
    sys::owned(unsafe { libc::openat(at, path.as_ptr(), flags) })
}

pub fn read_link(dir: &OwnedFd, name: &CStr) -> io::Result<Vec<u8>> {
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
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    target.truncate(length);
    Ok(target)
}

pub fn stat_at(dir: &OwnedFd, name: &CStr) -> io::Result<Option<libc::stat>> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `stat` is what the call fills.
    let result =
        check(unsafe { libc::fstatat(dir.as_raw_fd(), name.as_ptr(), stat.as_mut_ptr(), flags) });
    match result {
        // SAFETY: filled.
        Ok(_) => Ok(Some(unsafe { stat.assume_init() })),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_to_their_targets() {
        let dir = std::env::temp_dir().join(format!("capsule-links-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("deep/er")).unwrap();
        symlink("deep/er/../target", dir.join("one")).unwrap();
        symlink(dir.join("one"), dir.join("two")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        let location = Location::find(&dir.join("two")).unwrap();
        assert_eq!(location.name.to_bytes(), b"target");
        assert!(location.stat().unwrap().is_none());
        std::fs::write(dir.join("deep/target"), b"x").unwrap();
        assert_eq!(location.stat().unwrap().unwrap().st_size, 1);
        let code = |path: &str| {
            Location::find(&dir.join(path))
                .err()
                .unwrap()
                .raw_os_error()
        };
        assert_eq!(code("loop"), Some(libc::ELOOP));
        assert_eq!(code("no/where"), Some(libc::ENOENT));
        assert_eq!(code("deep/target/x"), Some(libc::ENOTDIR));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
