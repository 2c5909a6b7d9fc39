//! A file under a temporary name in the folder of its target, to be renamed to the target when it is complete. So readers
//! see the old content or the new, and an abandoned file is removed.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use crate::files::hidden_names::{hidden_name, marks_replacement, rehide};
use crate::files::location::{open_dir, Location};
use crate::files::walk::{is_same, stat_of};
use crate::sys::{self, check};

/// Mode and owner that the client asks for.
#[derive(Clone, Copy, Default)]
pub struct Asked {
    pub mode: Option<u32>,
    pub ids: Option<(u32, u32)>,
}

impl Asked {
    /// To a file that is written in place and otherwise keeps both.
    pub fn apply(self, file: &File) -> io::Result<()> {
        // SAFETY: plain calls. The mode comes last, since a change of owner clears bits of it.
        unsafe {
            if let Some((uid, gid)) = self.ids {
                check(libc::fchown(file.as_raw_fd(), uid, gid))?;
            }
            if let Some(mode) = self.mode {
                check(libc::fchmod(file.as_raw_fd(), mode))?;
            }
        }
        Ok(())
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
        let name = hidden_name(false)?;
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

    /// Replaces the file at the target. Without `asked` it takes over that file's owner and mode; a new file gets 0644. EXDEV
    /// leaves it as it was.
    pub fn rename(&mut self, to: &Location, asked: Asked) -> io::Result<()> {
        let old = to.stat()?;
        let fd = self.file.as_raw_fd();
        // SAFETY: plain calls. The mode comes last, since a change of owner clears bits of it.
        unsafe {
            if let Some((uid, gid)) = asked.ids.or(old.map(|old| (old.st_uid, old.st_gid))) {
                check(libc::fchown(fd, uid, gid))?;
            }
            let mode = old.map_or(0o644, |old| old.st_mode & 0o7777);
            check(libc::fchmod(fd, asked.mode.unwrap_or(mode)))?;
        }
        self.check_written()?;
        if marks_replacement(self.name.to_bytes()) != old.is_some()
            || !is_same(&stat_of(&self.dir)?, &stat_of(&to.dir)?)
        {
            let dir = to.dir.try_clone()?;
            self.name = rehide(&self.dir, &self.name, &dir, old.is_some())?;
            self.dir = dir;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("capsule-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_dropped_file_is_removed_and_a_renamed_one_keeps_the_mode() {
        let dir = scratch("temporary");
        let location = Location::find(&dir.join("file")).unwrap();
        drop(Temporary::create(&location.dir).unwrap());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        Temporary::create(&location.dir)
            .unwrap()
            .rename(&location, Asked::default())
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
            .rename(&location, Asked::default())
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
        file.rename(&location, Asked::default()).unwrap();
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
