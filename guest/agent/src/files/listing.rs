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
use crate::protocol::{Code, Failure};
use crate::record::Writer;

/// In one step.
const BATCH: usize = 256;
/// Bounds the limit that the host asks for.
const MAX_ENTRIES: usize = 1_000_000;

/// A path, and how many levels below it are listed.
type Pending = Reverse<(Vec<u8>, u32)>;

pub struct Listing {
    start: Option<(PathBuf, u32)>,
    limit: usize,
    heap: BinaryHeap<Pending>,
    count: usize,
}

impl Listing {
    pub fn new(path: PathBuf, depth: u32, limit: u32) -> Listing {
        Listing {
            start: Some((path, depth)),
            limit: (limit as usize).min(MAX_ENTRIES),
            heap: BinaryHeap::new(),
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
        match self.push_children(path, depth) {
            Ok(()) => Ok(Vec::new()),
            Err(error) => Err(failure(path, &error)),
        }
    }

    fn record(&mut self, path: &Path, meta: &Metadata) -> Vec<u8> {
        self.count += 1;
        entry(path, meta, &names()).bare()
    }

    /// Stops once the listing is too long.
    fn push_children(&mut self, path: &Path, depth: u32) -> io::Result<()> {
        for child in std::fs::read_dir(path)? {
            let Ok(child) = child else {
                break;
            };
            let path = child.path().into_os_string().into_vec();
            self.heap.push(Reverse((path, depth - 1)));
            if self.is_too_long() {
                break;
            }
        }
        Ok(())
    }

    fn is_too_long(&self) -> bool {
        self.count + self.heap.len() > self.limit
    }

    /// An entry that has been removed meanwhile is left out.
    fn record_next(&mut self, path: &Path, depth: u32) -> Vec<u8> {
        let Ok(meta) = std::fs::symlink_metadata(path) else {
            return Vec::new();
        };
        if meta.is_dir() && depth > 0 {
            let _ = self.push_children(path, depth);
        }
        self.record(path, &meta)
    }

    fn try_step(&mut self) -> Result<Progress, Failure> {
        let mut data = match self.start.take() {
            Some((path, depth)) => self.begin(&path, depth)?,
            None => Vec::new(),
        };
        for _ in 0..BATCH {
            if self.is_too_long() {
                let message = format!("the listing has more than {} entries", self.limit);
                return Err(Failure::new(Code::TooLarge, message));
            }
            let Some(Reverse((path, depth))) = self.heap.pop() else {
                break;
            };
            let path = Path::new(std::ffi::OsStr::from_bytes(&path));
            data.extend(self.record_next(path, depth));
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

impl Job for Listing {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        self.try_step()
            .unwrap_or_else(|failure| Progress::next(Next::Failed(failure)))
    }
}
