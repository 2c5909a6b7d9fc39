//! A file under a temporary name in the folder of its target, to be renamed to the target when it is complete. So readers
//! see the old content or the new, and an abandoned file is removed.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
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
                Some(target) => rest = target,
                None => return Ok(Location { dir, name }),
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

fn open_dir(at: Option<&OwnedFd>, path: &CStr) -> io::Result<OwnedFd> {
    let at = at.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: `path` ends in NUL.
    sys::owned(unsafe { libc::openat(at, path.as_ptr(), flags) })
}

fn read_link(dir: &OwnedFd, name: &CStr) -> Option<Vec<u8>> {
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
    target.truncate(usize::try_from(length).ok()?);
    Some(target)
}

fn stat_at(dir: &OwnedFd, name: &CStr) -> io::Result<Option<libc::stat>> {
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

/// Removed when dropped, unless it has been renamed.
pub struct Temporary {
    dir: OwnedFd,
    name: CString,
    file: File,
    /// Its length, which is beyond what is written: see `lengthen`. `None`: it is not lengthened.
    length: Option<u64>,
    is_renamed: bool,
}

/// A file up to this length is not lengthened.
const LENGTHENED_BYTES: u64 = 4 * 1024 * 1024;
const LENGTH_STEP_BYTES: u64 = 16 * 1024 * 1024;

impl Temporary {
    pub fn create(dir: &OwnedFd) -> io::Result<Temporary> {
        let dir = dir.try_clone()?;
        let name = sys::c_string(format!(".capsule-{}", sys::hex(&sys::random::<8>())).as_bytes())?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let file = File::from(sys::open_at(&dir, &name, flags)?);
        let length = is_ext4(&file).then_some(0);
        Ok(Temporary {
            dir,
            name,
            file,
            length,
            is_renamed: false,
        })
    }

    /// For content whose target is not known yet.
    pub fn spool() -> io::Result<Temporary> {
        let mut dirs = [c"/tmp", c"/var/tmp", c"/"].into_iter();
        let attempt = |dir: &CStr| Temporary::create(&open_dir(None, dir)?);
        let first = attempt(dirs.next().unwrap_or(c"/"));
        dirs.fold(first, |result, dir| result.or_else(|_| attempt(dir)))
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// To be called before a write up to `end`. Sets the length of the file ahead of the writes: beyond its length, ext4
    /// updates the inode with every page, which is a third of all the work. Until `shorten`, the file ends in zeros. Other
    /// file systems gain nothing, and some would write the zeros.
    pub fn lengthen(&mut self, end: u64) {
        let Some(length) = self.length else { return };
        if end > length.max(LENGTHENED_BYTES) {
            let longer = end + LENGTH_STEP_BYTES;
            self.length = self.file.set_len(longer).ok().map(|()| longer);
        }
    }

    /// Cuts the file to what is written.
    pub fn shorten(&mut self, end: u64) -> io::Result<()> {
        if self.file.metadata()?.len() > end {
            self.file.set_len(end)?;
        }
        Ok(())
    }

    /// Replaces the file at the target and takes over its owner and mode; a new file gets 0644. EXDEV leaves it as it was.
    pub fn rename(&mut self, to: &Location) -> io::Result<()> {
        let old = to.stat()?;
        let fd = self.file.as_raw_fd();
        // SAFETY: plain calls. The mode comes last, since a change of owner clears bits of it.
        unsafe {
            if let Some(old) = old {
                check(libc::fchown(fd, old.st_uid, old.st_gid))?;
            }
            let mode = old.map_or(0o644, |old| old.st_mode & 0o7777);
            check(libc::fchmod(fd, mode))?;
        }
        self.check_written()?;
        let (dir, to_dir) = (self.dir.as_raw_fd(), to.dir.as_raw_fd());
        // SAFETY: both names end in NUL.
        check(unsafe { libc::renameat(dir, self.name.as_ptr(), to_dir, to.name.as_ptr()) })?;
        self.is_renamed = true;
        Ok(())
    }

    /// Closes a duplicate descriptor, since some file systems report failed writes only then.
    fn check_written(&self) -> io::Result<()> {
        let other = self.file.try_clone()?.into_raw_fd();
        // SAFETY: it is ours, and not used afterwards.
        check(unsafe { libc::close(other) }).map(drop)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_renamed {
            // SAFETY: the name ends in NUL.
            unsafe { libc::unlinkat(self.dir.as_raw_fd(), self.name.as_ptr(), 0) };
        }
    }
}

fn is_ext4(file: &File) -> bool {
    let mut about = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: filled when the call succeeds, and read only then.
    unsafe {
        libc::fstatfs(file.as_raw_fd(), about.as_mut_ptr()) == 0
            && about.assume_init().f_type == libc::EXT4_SUPER_MAGIC
    }
}

/// A path for a message.
pub fn display_path(name: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(name.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{symlink, PermissionsExt};

    fn scratch(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("capsule-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn links_are_followed_to_their_targets() {
        let dir = scratch("links");
        std::fs::create_dir_all(dir.join("deep/er")).unwrap();
        symlink("deep/er/../target", dir.join("one")).unwrap();
        symlink(dir.join("one"), dir.join("two")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        let location = Location::find(&dir.join("two")).unwrap();
        assert_eq!(location.name.to_bytes(), b"target");
        let mut file = Temporary::create(&location.dir).unwrap();
        file.file().write_all(b"x").unwrap();
        file.rename(&location).unwrap();
        assert_eq!(std::fs::read(dir.join("deep/target")).unwrap(), b"x");
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

    #[test]
    fn a_dropped_file_is_removed_and_a_renamed_one_keeps_the_mode() {
        let dir = scratch("temporary");
        let location = Location::find(&dir.join("file")).unwrap();
        drop(Temporary::create(&location.dir).unwrap());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        Temporary::create(&location.dir)
            .unwrap()
            .rename(&location)
            .unwrap();
        let mode = || {
            std::fs::metadata(dir.join("file"))
                .unwrap()
                .permissions()
                .mode()
                & 0o7777
        };
        assert_eq!(mode(), 0o644);
        std::fs::set_permissions(dir.join("file"), PermissionsExt::from_mode(0o4711)).unwrap();
        Temporary::create(&location.dir)
            .unwrap()
            .rename(&location)
            .unwrap();
        assert_eq!(mode(), 0o4711);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_long_file_is_lengthened_ahead_and_then_shortened() {
        let dir = scratch("length");
        let location = Location::find(&dir.join("file")).unwrap();
        let mut file = Temporary::create(&location.dir).unwrap();
        file.length = Some(0); // wherever this test runs
        let length = |file: &Temporary| file.file().metadata().unwrap().len();
        file.lengthen(LENGTHENED_BYTES);
        assert_eq!(length(&file), 0, "a short one");
        for end in [LENGTHENED_BYTES + 1, LENGTHENED_BYTES + LENGTH_STEP_BYTES] {
            file.lengthen(end);
            assert_eq!(length(&file), LENGTHENED_BYTES + 1 + LENGTH_STEP_BYTES);
        }
        file.file().write_all(b"content").unwrap();
        file.shorten(7).unwrap();
        file.rename(&location).unwrap();
        assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"content");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn without_lengthening_a_file_is_as_long_as_what_is_written() {
        let dir = scratch("no-length");
        let location = Location::find(&dir.join("file")).unwrap();
        let mut file = Temporary::create(&location.dir).unwrap();
        file.length = None;
        file.lengthen(2 * LENGTHENED_BYTES);
        file.file().write_all(b"content").unwrap();
        assert_eq!(file.file().metadata().unwrap().len(), 7);
        file.shorten(7).unwrap();
        drop(file);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
