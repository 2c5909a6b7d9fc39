//! ARCHIVE: files and whole trees as a tar. All paths are looked up before its first byte; a failure after that ends it
//! without an end mark.
//!
//! A file has the size in the archive that it had when it was opened: what it is longer is left out, what it is shorter is
//! zeros. Sockets, devices and the content of the kernel's own file systems are left out, and what vanishes meanwhile.

mod content;
mod extents;
mod header;
mod root;
mod walk;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::accounts::names;
use crate::files::archive::content::Content;
use crate::files::archive::extents::Extent;
use crate::files::archive::header::Member;
use crate::files::archive::root::Root;
pub use crate::files::archive::walk::is_the_kernels;
use crate::files::archive::walk::{stat, Walk};
use crate::files::location::{open_dir, read_link, stat_at};
use crate::files::paths::{failure, invalid, named, normalize};
use crate::files::tar::{kind, BLOCK_BYTES};
use crate::job::{Input, Job, Next, Progress};
use crate::memory;
use crate::protocol::{empty, Code, Failure};
use crate::sys;

/// The end of a step, and the most that is read of a file in one piece.
const STEP_BYTES: usize = 256 * 1024;
/// The end of a step without so many bytes.
const STEP_ENTRIES: usize = 256;
const MAX_NAME_BYTES: usize = 4_096;
/// Files of several names that are remembered, with their first names; any other is archived under each name.
const MAX_LINK_BYTES: usize = 4 * 1024 * 1024;
const LINK_BYTES: usize = 64;

pub struct Archiving {
    roots: VecDeque<Root>,
    is_checked: bool,
    walk: Option<Walk>,
    content: Option<Content>,
    /// Device and inode → name in the archive, of files with several names.
    links: BTreeMap<(u64, u64), Vec<u8>>,
    link_bytes: usize,
    /// The path of the root being archived, for messages.
    path: PathBuf,
}

impl Archiving {
    pub fn new(paths: &[&[u8]], base: Option<&[u8]>) -> Result<Archiving, Failure> {
        let base = base.map(normalize).transpose()?;
        let roots: Result<_, Failure> = paths
            .iter()
            .map(|path| Root::new(normalize(path)?, base.as_deref()))
            .collect();
        Ok(Archiving {
            roots: roots?,
            is_checked: false,
            walk: None,
            content: None,
            links: BTreeMap::new(),
            link_bytes: 0,
            path: PathBuf::new(),
        })
    }

    fn try_step(&mut self) -> Result<Progress, Failure> {
        if !self.is_checked {
            self.roots.iter().try_for_each(Root::check)?;
            self.is_checked = true;
        }
        memory::require(2 * STEP_BYTES)?;
        let mut data = Vec::with_capacity(STEP_BYTES);
        for _ in 0..STEP_ENTRIES {
            if data.len() >= STEP_BYTES {
                break;
            }
            if !self.add(&mut data).map_err(|error| self.failure(&error))? {
                data.resize(data.len() + 2 * BLOCK_BYTES, 0);
                let end = Next::Done {
                    has_end: true,
                    result: empty(),
                };
                return Ok(Progress::data(data, end));
            }
        }
        Ok(Progress::data(data, Next::Continue))
    }

    /// Adds the next entry, or a part of a file. False: nothing is left.
    fn add(&mut self, data: &mut Vec<u8>) -> io::Result<bool> {
        if let Some(content) = &mut self.content {
            if content.add(data, STEP_BYTES)? {
                self.content = None;
            }
            return Ok(true);
        }
        let Some(walk) = &mut self.walk else {
            return self.begin_root(data);
        };
        match walk.next()? {
            None => self.walk = None,
            Some(entry) => {
                let (dir, name) = (walk.dir().try_clone()?, walk.name_of(&entry));
                self.add_entry(&dir, &entry, name, data)?;
            }
        }
        Ok(true)
    }

    fn begin_root(&mut self, data: &mut Vec<u8>) -> io::Result<bool> {
        let Some(Root { path, name }) = self.roots.pop_front() else {
            return Ok(false);
        };
        self.path = path;
        let path = &self.path;
        let (Some(parent), Some(entry)) = (path.parent(), path.file_name()) else {
            let root = open_dir(None, c"/")?;
            self.add_root_directory(root, name, data)?;
            return Ok(true);
        };
        let parent = open_dir(None, &sys::c_string(parent.as_os_str().as_bytes())?)?;
        let entry = sys::c_string(entry.as_bytes())?;
        if name.is_empty() {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            self.add_root_directory(sys::open_at(&parent, &entry, flags)?, name, data)?;
        } else {
            self.add_entry(&parent, &entry, name, data)?;
        }
        Ok(true)
    }

    /// The base itself, under the name `./`.
    fn add_root_directory(
        &mut self,
        dir: OwnedFd,
        name: Vec<u8>,
        data: &mut Vec<u8>,
    ) -> io::Result<()> {
        add_headers(data, &stat(&dir)?, kind::DIRECTORY, b"./", b"", None);
        self.walk = Some(Walk::new(dir, name)?);
        Ok(())
    }

    /// An entry that has vanished is left out.
    fn add_entry(
        &mut self,
        dir: &OwnedFd,
        entry: &CStr,
        name: Vec<u8>,
        data: &mut Vec<u8>,
    ) -> io::Result<()> {
        if name.len() > MAX_NAME_BYTES {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        let Some(about) = stat_at(dir, entry)? else {
            return Ok(());
        };
        match about.st_mode & libc::S_IFMT {
            libc::S_IFDIR => self.add_directory(dir, entry, name, data),
            libc::S_IFREG => self.add_file(dir, entry, name, data),
            libc::S_IFLNK => {
                if let Ok(target) = read_link(dir, entry) {
                    add_headers(data, &about, kind::SYMLINK, &name, &target, None);
                }
                Ok(())
            }
            libc::S_IFIFO => {
                add_headers(data, &about, kind::FIFO, &name, b"", None);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn add_directory(
        &mut self,
        dir: &OwnedFd,
        entry: &CStr,
        mut name: Vec<u8>,
        data: &mut Vec<u8>,
    ) -> io::Result<()> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let Some(below) = present(sys::open_at(dir, entry, flags))? else {
            return Ok(());
        };
        name.push(b'/');
        add_headers(data, &stat(&below)?, kind::DIRECTORY, &name, b"", None);
        if is_the_kernels(&below) {
            return Ok(());
        }
        match &mut self.walk {
            Some(walk) => walk.enter(entry, below),
            None => {
                self.walk = Some(Walk::new(below, name)?);
                Ok(())
            }
        }
    }

    fn add_file(
        &mut self,
        dir: &OwnedFd,
        entry: &CStr,
        name: Vec<u8>,
        data: &mut Vec<u8>,
    ) -> io::Result<()> {
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let Some(file) = present(sys::open_at(dir, entry, flags))? else {
            return Ok(());
        };
        let about = stat(&file)?;
        if about.st_mode & libc::S_IFMT != libc::S_IFREG || is_the_kernels(&file) {
            return Ok(());
        }
        if let Some(first) = self.first_name(&about, &name) {
            add_headers(data, &about, kind::HARD_LINK, &name, &first, None);
            return Ok(());
        }
        let file = File::from(file);
        let (content, sparse) = Content::of(file, &about);
        let map = sparse.then(|| content.extents());
        add_headers(data, &about, kind::FILE, &name, b"", map.as_deref());
        self.content = Some(content);
        Ok(())
    }

    /// The name under which a file of several names is in the archive already.
    fn first_name(&mut self, about: &libc::stat, name: &[u8]) -> Option<Vec<u8>> {
        if about.st_nlink < 2 {
            return None;
        }
        let key = (about.st_dev, about.st_ino);
        if let Some(first) = self.links.get(&key) {
            return Some(first.clone());
        }
        let bytes = self.link_bytes + name.len() + LINK_BYTES;
        if bytes <= MAX_LINK_BYTES && !memory::is_low() {
            self.link_bytes = bytes;
            self.links.insert(key, name.to_vec());
        }
        None
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let path = self.path.as_os_str().as_bytes();
        match error.raw_os_error() {
            Some(libc::EBUSY) => named(Code::Conflict, path, "was moved while it was read"),
            Some(libc::ENAMETOOLONG) => invalid(path, "holds a path of more than 4096 bytes"),
            _ => failure(&self.path, error),
        }
    }
}

impl Job for Archiving {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        self.try_step()
            .unwrap_or_else(|failure| Progress::next(Next::Failed(failure)))
    }
}

/// `None`: it has vanished, or another kind of file has come in its place.
fn present(opened: io::Result<OwnedFd>) -> io::Result<Option<OwnedFd>> {
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENXIO) => Ok(None),
            _ => Err(error),
        },
    }
}

/// `sparse`: the extents of a file whose holes are left out.
fn add_headers(
    data: &mut Vec<u8>,
    about: &libc::stat,
    kind: u8,
    name: &[u8],
    link: &[u8],
    sparse: Option<&[Extent]>,
) {
    let names = names();
    let member = Member {
        name,
        kind,
        mode: about.st_mode,
        uid: about.st_uid,
        gid: about.st_gid,
        owner: &names.user(about.st_uid),
        group: &names.group(about.st_gid),
        size: if kind == kind::FILE {
            about.st_size as u64
        } else {
            0
        },
        mtime: (about.st_mtime, about.st_mtime_nsec as u32),
        link,
    };
    data.extend(match sparse {
        Some(extents) => member.sparse_headers(extents),
        None => member.headers(),
    });
}
