//! The directory that is watched: where it lies, and whether its path still leads to it. Directories are opened from there
//! without following a link or crossing a mount.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::files::paths::{failure, invalid, named};
use crate::files::walk::stat_of;
use crate::files::watching::inotify::{Inotify, Wd, ABOVE};
use crate::files::watching::tree::{Identity, Tree};
use crate::protocol::{Code, Failure};
use crate::sys::{self, check};

/// The same number on every architecture; the C library's bindings have it for some only.
const SYS_OPENAT2: libc::c_long = 437;
const RESOLVE_NO_XDEV: u64 = 0x01;
const RESOLVE_NO_SYMLINKS: u64 = 0x04;

/// The kernel's `struct open_how`.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

pub struct Top {
    /// As the client names it.
    path: PathBuf,
    /// Without a link in it.
    place: PathBuf,
    pub identity: Identity,
}

impl Top {
    /// With the directory itself, open.
    pub fn find(path: &Path) -> Result<(Top, OwnedFd), Failure> {
        let shown = path.as_os_str().as_bytes();
        let meta = std::fs::symlink_metadata(path).map_err(|error| failure(path, &error))?;
        if meta.is_symlink() {
            return Err(invalid(shown, "is a link; watch what it leads to"));
        }
        if !meta.is_dir() {
            return Err(named(Code::NotDirectory, shown, "is not a directory"));
        }
        let open = || {
            let place = path.canonicalize()?;
            let dir = open_at(None, &sys::c_string(place.as_os_str().as_bytes())?)?;
            let identity = identity_of(&dir)?;
            let path = path.to_path_buf();
            let top = Top {
                path,
                place,
                identity,
            };
            Ok((top, dir))
        };
        open().map_err(|error| failure(path, &error))
    }

    pub fn path(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    /// The path of a name in a directory of the tree, or of the directory.
    pub fn path_in(&self, tree: &Tree, wd: Wd, name: &[u8]) -> Option<Vec<u8>> {
        let mut path = self.path().to_vec();
        let names = tree.names(wd)?;
        let names = names.iter().map(AsRef::as_ref).chain([name]);
        for name in names.filter(|name: &&[u8]| !name.is_empty()) {
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        Some(path)
    }

    /// An error where the path leads elsewhere by now.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let place = sys::c_string(self.place.as_os_str().as_bytes())?;
        same(open_at(None, &place)?, self.identity)
    }

    pub fn is_gone(&self) -> bool {
        self.open().is_err_and(|error| is_missing(&error))
    }

    /// A directory of the tree. An error where it is elsewhere by now.
    pub fn open_in(&self, tree: &Tree, wd: Wd) -> io::Result<OwnedFd> {
        let missing = || io::Error::from_raw_os_error(libc::ENOENT);
        let (names, identity) = tree.names(wd).zip(tree.identity(wd)).ok_or_else(missing)?;
        let top = self.open()?;
        if names.is_empty() {
            return Ok(top);
        }
        let below = sys::c_string(&names.join(&b'/'))?;
        same(open_below(&top, &below)?, identity)
    }

    /// Watches the directories above, whose names are those that lead here. Returns each with that name.
    pub fn watch_above(&self, inotify: &Inotify) -> io::Result<Vec<(Wd, Vec<u8>)>> {
        let mut above = Vec::new();
        let mut at = self.place.as_path();
        while let Some((parent, name)) = at.parent().zip(at.file_name()) {
            let dir = open_at(None, &sys::c_string(parent.as_os_str().as_bytes())?)?;
            match inotify.add(&dir, ABOVE) {
                Ok(wd) => above.push((wd, name.as_bytes().to_vec())),
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) => return Err(error),
            }
            at = parent;
        }
        Ok(above)
    }
}

/// A directory in `dir`, to be read.
pub fn open_below(dir: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    open_with(dir.as_raw_fd(), name, RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS)
}

fn open_at(dir: Option<&OwnedFd>, path: &CStr) -> io::Result<OwnedFd> {
    let at = dir.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    open_with(at, path, RESOLVE_NO_SYMLINKS)
}

fn open_with(at: libc::c_int, path: &CStr, resolve: u64) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let how = OpenHow {
        flags: (flags | libc::O_NONBLOCK) as u64,
        mode: 0,
        resolve,
    };
    let size = std::mem::size_of::<OpenHow>();
    // SAFETY: `path` ends in NUL, and `how` is as long as we say.
    let fd = unsafe { libc::syscall(SYS_OPENAT2, at, path.as_ptr(), &how, size) };
    sys::owned(check(fd as libc::c_int)?)
}

fn same(dir: OwnedFd, identity: Identity) -> io::Result<OwnedFd> {
    if identity_of(&dir)? == identity {
        return Ok(dir);
    }
    Err(io::Error::from_raw_os_error(libc::ENOENT))
}

/// The path leads to nothing, to another thing, or through a link.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EXDEV)
    )
}

pub fn identity_of(dir: &OwnedFd) -> io::Result<Identity> {
    stat_of(dir).map(|stat| (stat.st_dev, stat.st_ino))
}
