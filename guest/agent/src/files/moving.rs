//! MOVE: a rename, and between mounts a copy whose source is then removed. Until the copy has its name the source is whole and
//! nothing is at the target.

#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::accounts::names;
use crate::files::archive::is_the_kernels;
use crate::files::copying::{rename, Copying, IN_ITSELF};
use crate::files::entries::entry;
use crate::files::location::{open_dir, Location};
use crate::files::mount_points::{holds_mount_point, is_mount_point};
use crate::files::paths::{failure, invalid, named, normalize};
use crate::files::removal::Removal;
use crate::files::walk::{is_same, is_unchanged, open_parent, stat_at, Walk};
use crate::job::{Input, Job, Next, Progress};
use crate::memory;
use crate::protocol::{Code, Failure};
use crate::sys::{self, check};

pub struct Moving {
    from: PathBuf,
    to: PathBuf,
    overwrites: bool,
    stage: Stage,
}

enum Stage {
    Renaming,
    /// With the source's stat from before the copy, and the flags of the rename.
    Copying(Box<Copying>, libc::stat, libc::c_uint),
    Removing(Box<Removal>),
    Done,
}

/// Where a move begins.
struct Source {
    dir: OwnedFd,
    name: CString,
    stat: libc::stat,
}

impl Source {
    fn is_dir(&self) -> bool {
        self.stat.st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

impl Moving {
    pub fn new(from: &[u8], to: &[u8], overwrites: bool) -> Result<Moving, Failure> {
        let from = normalize(from)?;
        let to = normalize(to).map_err(|failure| match failure.code {
            // `..` is part of the parent directory's path.
            Code::NotFound => no_parent(to),
            _ => failure,
        })?;
        Ok(Moving {
            from,
            to,
            overwrites,
            stage: Stage::Renaming,
        })
    }

    fn next_step(&mut self) -> Result<Next, Failure> {
        match &mut self.stage {
            Stage::Renaming => self.rename(),
            Stage::Copying(copying, before, flags) => {
                let is_done = copying
                    .step()
                    .map_err(|error| copy_failure(&self.from, &copying.path(), &self.to, &error))?;
                if is_done {
                    require_unchanged(&self.from, before)?;
                    let result = copying.publish(*flags);
                    result.map_err(|error| self.failure(&error))?;
                    self.stage = Stage::Removing(Box::new(Removal::new(self.from.clone())));
                }
                Ok(Next::Continue)
            }
            Stage::Removing(removal) => match removal.step(Vec::new()).next {
                Next::Failed(failure) => {
                    self.stage = Stage::Done;
                    let to = self.to.display();
                    let why = failure.message;
                    let message =
                        format!("all is at {to}, and not all is gone from its old place: {why}");
                    Err(Failure::new(failure.code, message))
                }
                Next::Done { .. } => self.done(),
                next => Ok(next),
            },
            Stage::Done => self.done(),
        }
    }

    fn rename(&mut self) -> Result<Next, Failure> {
        let source = self.source()?;
        let target = self.target(&source)?;
        let known = target.stat().map_err(|error| failure(&self.to, &error))?;
        if let Some(known) = &known {
            self.require_replaceable(&source, &target, known)?;
            if is_same(known, &source.stat) {
                return self.join(&source, &target);
            }
        }
        let flags = if known.is_some() {
            0
        } else {
            libc::RENAME_NOREPLACE
        };
        match rename(&source.dir, &source.name, &target.dir, &target.name, flags) {
            Ok(()) => self.done(),
            Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
                self.begin_copy(source, target, flags)
            }
            Err(error) => Err(self.failure(&error)),
        }
    }

    fn source(&self) -> Result<Source, Failure> {
        let path = &self.from;
        let wrong = |error: io::Error| failure(path, &error);
        if path.parent().is_none() {
            return Err(invalid(bytes(path), "cannot be moved"));
        }
        let (dir, name) = open_parent(path).map_err(wrong)?;
        let found = stat_at(&dir, &name).map_err(wrong)?;
        let gone = || wrong(io::Error::from_raw_os_error(libc::ENOENT));
        let stat = found.ok_or_else(gone)?;
        if is_mount_point(&dir, &name) {
            return Err(invalid(bytes(path), "is a mount point"));
        }
        Ok(Source { dir, name, stat })
    }

    fn target(&self, source: &Source) -> Result<Location, Failure> {
        let path = &self.to;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(invalid(bytes(path), "cannot be replaced"));
        };
        let open = |at: &Path| open_dir(None, &sys::c_string(at.as_os_str().as_encoded_bytes())?);
        let dir = open(parent).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => no_parent(bytes(path)),
            Some(libc::ENOTDIR) => {
                invalid(bytes(path), "cannot be made: its parent is not a directory")
            }
            _ => failure(path, &error),
        })?;
        let real = |at: &Path| at.canonicalize().map_err(|error| failure(at, &error));
        if source.is_dir() && real(parent)?.starts_with(real(&self.from)?) {
            return Err(into_itself(&self.from));
        }
        let name = sys::c_string(name.as_encoded_bytes()).map_err(|error| failure(path, &error))?;
        Ok(Location { dir, name })
    }

    fn require_replaceable(
        &self,
        source: &Source,
        target: &Location,
        known: &libc::stat,
    ) -> Result<(), Failure> {
        let conflict = |what| Err(named(Code::Conflict, bytes(&self.to), what));
        if is_mount_point(&target.dir, &target.name) {
            return Err(invalid(bytes(&self.to), "is a mount point"));
        }
        if !self.overwrites {
            return conflict("exists already");
        }
        if known.st_mode & libc::S_IFMT == libc::S_IFDIR {
            return conflict("is a directory, which is never replaced");
        }
        if source.is_dir() {
            return conflict("is not replaced by a directory");
        }
        Ok(())
    }

    /// Two names of one file, which a rename would leave as they are; or twice the same one.
    fn join(&mut self, source: &Source, target: &Location) -> Result<Next, Failure> {
        let wrong = |error: io::Error| failure(&self.from, &error);
        let folder = |dir: &OwnedFd| crate::files::walk::stat_of(dir).map_err(wrong);
        let is_one_place =
            source.name == target.name && is_same(&folder(&source.dir)?, &folder(&target.dir)?);
        if !is_one_place {
            // SAFETY: the name ends in NUL.
            let result =
                check(unsafe { libc::unlinkat(source.dir.as_raw_fd(), source.name.as_ptr(), 0) });
            result.map_err(wrong)?;
        }
        self.done()
    }

    fn begin_copy(
        &mut self,
        source: Source,
        target: Location,
        flags: libc::c_uint,
    ) -> Result<Next, Failure> {
        let wrong = |error: io::Error| failure(&self.from, &error);
        let entry = sys::open_at(&source.dir, &source.name, libc::O_PATH | libc::O_NOFOLLOW);
        if is_the_kernels(&entry.map_err(wrong)?) {
            let what = "is the kernel's own and cannot be moved";
            return Err(invalid(bytes(&self.from), what));
        }
        if is_read_only(&source.dir) {
            return Err(wrong(io::Error::from_raw_os_error(libc::EROFS)));
        }
        if source.is_dir() && holds_mount_point(&self.from, &source.dir).map_err(wrong)? {
            return Err(invalid(bytes(&self.from), "holds a mount point"));
        }
        let top = self.from.parent().unwrap_or(Path::new("/"));
        let folder = self.to.parent().unwrap_or(Path::new("/"));
        let walk = Walk::new(top.to_path_buf(), source.dir, source.name);
        let copying = Copying::new(walk, target, folder.to_path_buf()).map_err(wrong)?;
        self.stage = Stage::Copying(Box::new(copying), source.stat, flags);
        Ok(Next::Continue)
    }

    fn done(&mut self) -> Result<Next, Failure> {
        self.stage = Stage::Done;
        let meta = self.to.symlink_metadata();
        let meta = meta.map_err(|error| failure(&self.to, &error))?;
        Ok(Next::Done {
            has_end: false,
            result: entry(&self.to, &meta, &names()).finish(),
        })
    }

    /// For a rename that failed after all was looked at: another process has changed something meanwhile.
    fn failure(&self, error: &io::Error) -> Failure {
        match error.raw_os_error() {
            Some(libc::EEXIST | libc::ENOTEMPTY | libc::EISDIR | libc::ENOTDIR) => {
                named(Code::Conflict, bytes(&self.to), "exists already")
            }
            Some(libc::EBUSY) => invalid(bytes(&self.from), "is a mount point, or in use"),
            Some(libc::ENOSPC | libc::EDQUOT | libc::ENAMETOOLONG) => failure(&self.to, error),
            _ => failure(&self.from, error),
        }
    }
}

impl Job for Moving {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        Progress::next(self.next_step().unwrap_or_else(Next::Failed))
    }
}

/// A move whose copy has its name is brought to its end.
impl Drop for Moving {
    fn drop(&mut self) {
        if let Stage::Removing(removal) = &mut self.stage {
            while matches!(removal.step(Vec::new()).next, Next::Continue) {}
        }
    }
}

/// The removal looks the source up anew: what has come to its place meanwhile is not what was copied.
fn require_unchanged(path: &Path, before: &libc::stat) -> Result<(), Failure> {
    let now = open_parent(path).and_then(|(dir, name)| stat_at(&dir, &name));
    let now = now.map_err(|error| failure(path, &error))?;
    if now.is_some_and(|now| is_unchanged(before, &now)) {
        return Ok(());
    }
    Err(busy(path))
}

/// `path` is where the copy of `from` has come to.
fn copy_failure(from: &Path, path: &Path, to: &Path, error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(IN_ITSELF) => into_itself(from),
        Some(libc::ENOSPC | libc::EDQUOT) => failure(to, error),
        Some(libc::EBUSY) => busy(path),
        Some(libc::ENOMEM) => memory::exhausted(),
        _ => failure(path, error),
    }
}

fn busy(path: &Path) -> Failure {
    named(Code::Conflict, bytes(path), "is being written to")
}

fn into_itself(path: &Path) -> Failure {
    invalid(bytes(path), "cannot be moved into itself")
}

fn no_parent(path: impl AsRef<[u8]>) -> Failure {
    invalid(path, "cannot be made: its parent directory does not exist")
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

fn is_read_only(dir: &OwnedFd) -> bool {
    let mut about = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: filled when the call succeeds, and read only then.
    unsafe {
        libc::fstatvfs(dir.as_raw_fd(), about.as_mut_ptr()) == 0
            && about.assume_init().f_flag & libc::ST_RDONLY != 0
    }
}
