//! LIST: a directory's entries, to some depth, in the order of their paths.
//!
//! The order is that of the whole paths' bytes (`a`, `a-b`, `a/x`), which no walk of the tree yields directly. So entries
//! found and not yet listed are kept in a heap. A directory's children are always greater than the directory, so the least
//! entry of the heap is the next one. The heap is bounded by the listing's limit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::accounts::names;
use crate::files::entries::entry;
use crate::files::paths::failure;
use crate::job::{Input, Job, Next, Progress};
use crate::memory;
use crate::protocol::{Code, Failure};
use crate::record::Writer;
use crate::sys;

/// In one step.
const BATCH: usize = 256;
/// Bounds the limit that the host asks for.
const MAX_ENTRIES: usize = 1_000_000;

/// The limit of `Listing::pending_bytes`.
const MAX_PENDING_BYTES: usize = 32 * 1024 * 1024;

/// A path, and how many levels below it are listed.
type Pending = Reverse<(Vec<u8>, u32)>;

pub struct Listing {
    start: Option<(PathBuf, u32)>,
    limit: usize,
    heap: BinaryHeap<Pending>,
    /// The length of all paths in the heap.
    pending_bytes: usize,
    count: usize,
}

impl Listing {
    pub fn new(path: PathBuf, depth: u32, limit: u32) -> Listing {
        Listing {
            start: Some((path, depth)),
            limit: (limit as usize).min(MAX_ENTRIES),
            heap: BinaryHeap::new(),
            pending_bytes: 0,
            count: 0,
        }
    }

    /// Lists the start itself, or pushes its children. Only here a link is followed, and only to a directory.
    fn begin(&mut self, path: &Path, depth: u32) -> Result<Vec<u8>, Failure> {
        let own = std::fs::symlink_metadata(path).map_err(|error| failure(path, &error))?;
        let meta = match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => meta,
            _ => own,
        };
        if depth == 0 || !meta.is_dir() {
            return Ok(self.record(path, &meta));
        }
        self.push_children(path, depth)
            .map_err(|error| listing_failure(path, &error))?;
        Ok(Vec::new())
    }

    fn record(&mut self, path: &Path, meta: &Metadata) -> Vec<u8> {
        self.count += 1;
        entry(path, meta, &names()).bare()
    }

    /// Stops once the listing is too long.
    fn push_children(&mut self, path: &Path, depth: u32) -> io::Result<()> {
        let no_memory = || io::Error::from_raw_os_error(libc::ENOMEM);
        for child in std::fs::read_dir(path)? {
            let path = child?.path().into_os_string().into_vec();
            self.pending_bytes += path.len();
            if memory::is_low() {
                return Err(no_memory());
            }
            self.heap.try_reserve(1).map_err(|_| no_memory())?;
            self.heap.push(Reverse((path, depth - 1)));
            if self.is_too_long() {
                break;
            }
        }
        Ok(())
    }

    fn is_too_long(&self) -> bool {
        self.count + self.heap.len() > self.limit || self.pending_bytes > MAX_PENDING_BYTES
    }

    /// An entry that has been removed meanwhile is left out. Any other that cannot be listed is a failure.
    fn record_next(&mut self, path: &Path, depth: u32) -> Result<Vec<u8>, Failure> {
        let meta = match std::fs::symlink_metadata(path) {
            Ok(meta) => meta,
            Err(error) if may_be_left_out(path, &error) => return Ok(Vec::new()),
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => {
                return Err(too_long(path));
            }
            Err(error) => return Err(failure(path, &error)),
        };
        if meta.is_dir() && depth > 0 {
            match self.push_children(path, depth) {
                Err(error) if !may_be_left_out(path, &error) => {
                    return Err(listing_failure(path, &error));
                }
                _ => {}
            }
        }
        Ok(self.record(path, &meta))
    }

    fn try_step(&mut self) -> Result<Progress, Failure> {
        let mut data = match self.start.take() {
            Some((path, depth)) => self.begin(&path, depth)?,
            None => Vec::new(),
        };
        for _ in 0..BATCH {
            if self.is_too_long() {
                let message = if self.pending_bytes > MAX_PENDING_BYTES {
                    "the listing has too many long paths at once; list fewer levels".to_string()
                } else {
                    format!("the listing has more than {} entries", self.limit)
                };
                return Err(Failure::new(Code::TooLarge, message));
            }
            let Some(Reverse((path, depth))) = self.heap.pop() else {
                break;
            };
            self.pending_bytes -= path.len();
            let path = Path::new(std::ffi::OsStr::from_bytes(&path));
            memory::extend(&mut data, &self.record_next(path, depth)?)?;
        }
        let next = if self.heap.is_empty() {
            Next::Done {
                has_end: false,
                result: Writer::new().u32(self.count as u32).finish(),
            }
        } else {
            Next::Continue
        };
        Ok(Progress::data(data, next))
    }
}

fn listing_failure(path: &Path, error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => memory::exhausted(),
        _ => failure(path, error),
    }
}

fn too_long(path: &Path) -> Failure {
    let path = path.as_os_str().as_bytes();
    let shown = String::from_utf8_lossy(&path[..path.len().min(100)]);
    let message =
        format!("{shown}… is a path of more than 4095 bytes; list a directory further down");
    Failure::new(Code::Invalid, message)
}

/// It is gone, or in a part of /proc that the kernel shows to nobody, or to the process alone.
fn may_be_left_out(path: &Path, error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ESRCH) => true,
        Some(libc::EACCES | libc::EPERM | libc::EINVAL) => is_in_proc_or_gone(path),
        _ => false,
    }
}

fn is_in_proc_or_gone(path: &Path) -> bool {
    let Ok(path) = sys::c_string(path.as_os_str().as_bytes()) else {
        return false;
    };
    let mut about = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `about` is filled when the call succeeds, and read only then.
    unsafe {
        if libc::statfs(path.as_ptr(), about.as_mut_ptr()) != 0 {
            let error = io::Error::last_os_error().raw_os_error();
            return matches!(error, Some(libc::ENOENT | libc::ESRCH));
        }
        about.assume_init().f_type == libc::PROC_SUPER_MAGIC
    }
}

impl Job for Listing {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        self.try_step()
            .unwrap_or_else(|failure| Progress::next(Next::Failed(failure)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    fn list(path: &Path, depth: u32) -> Result<usize, Failure> {
        let mut listing = Listing::new(path.to_path_buf(), depth, u32::MAX);
        loop {
            match listing.step(vec![]).next {
                Next::Continue => {}
                Next::Failed(failure) => return Err(failure),
                _ => return Ok(listing.count),
            }
        }
    }

    #[test]
    fn a_path_that_is_too_long_to_lead_back_is_a_failure() {
        let dir = std::env::temp_dir().join(format!("capsule-deep-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let name = "d".repeat(200);
        let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21; do mkdir $0; cd -P $0; done";
        let mut shell = Command::new("bash");
        let status = shell.args(["-c", script, &name]).current_dir(&dir).status();
        assert!(status.unwrap().success());
        assert_eq!(list(&dir, 19), Ok(19));
        let failure = list(&dir, 21).unwrap_err();
        assert_eq!(failure.code, Code::Invalid);
        assert!(failure.message.ends_with("further down"), "{failure:?}");
        assert!(Command::new("rm")
            .arg("-r")
            .arg(&dir)
            .status()
            .unwrap()
            .success());
    }

    #[test]
    fn all_of_proc_can_be_listed() {
        assert!(list(Path::new("/proc"), 4).unwrap_or_else(|it| panic!("{}", it.message)) > 1_000);
    }
}
