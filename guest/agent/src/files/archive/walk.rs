//! A tree's entries, each directory before its content. Links are not followed, and a tree of any depth needs one descriptor:
//! the walk returns through `..`, and checks that this is the directory it came from.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::files::directory::read_names_at;
use crate::sys::{self, check};

/// A directory that is being read, or one above it.
struct Level {
    /// The length of `Walk::name` without its name.
    name_start: usize,
    identity: (u64, u64),
    /// Names read and not yet returned.
    names: Vec<CString>,
    /// Behind those names.
    position: i64,
}

pub struct Walk {
    levels: Vec<Level>,
    current: OwnedFd,
    /// The name in the archive of the current directory, with a slash at its end unless it is empty.
    name: Vec<u8>,
}

/// The kernel's own views, which are no files: some of them have no end.
const KERNEL_FILE_SYSTEMS: [u32; 14] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x6265_6570, // configfs
    0xf97c_ff8c, // selinuxfs
    0x4249_4e4d, // binfmt_misc
    0x1cd1,      // devpts
];

impl Walk {
    /// Below the directory, whose name in the archive is `name`.
    pub fn new(dir: OwnedFd, name: Vec<u8>) -> io::Result<Walk> {
        let level = level(&dir, 0)?;
        Ok(Walk {
            levels: vec![level],
            current: dir,
            name,
        })
    }

    pub fn dir(&self) -> &OwnedFd {
        &self.current
    }

    /// The name in the archive of an entry of the current directory.
    pub fn name_of(&self, entry: &CStr) -> Vec<u8> {
        [&self.name, entry.to_bytes()].concat()
    }

    /// The next entry of the current directory. `None`: the walk is over.
    pub fn next(&mut self) -> io::Result<Option<CString>> {
        loop {
            let Some(level) = self.levels.last_mut() else {
                return Ok(None);
            };
            if let Some(name) = level.names.pop() {
                return Ok(Some(name));
            }
            let (mut names, position) = read_names_at(&self.current, level.position)?;
            if names.is_empty() {
                self.leave()?;
                continue;
            }
            names.reverse(); // they are taken from the end
            (level.names, level.position) = (names, position);
        }
    }

    /// Into a directory that `next` has returned; its entries come next. `dir` is open on it.
    pub fn enter(&mut self, name: &CStr, dir: OwnedFd) -> io::Result<()> {
        self.levels.push(level(&dir, self.name.len())?);
        self.name.extend(name.to_bytes());
        self.name.push(b'/');
        self.current = dir;
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some(level) = self.levels.pop() else {
            return Ok(());
        };
        let Some(parent) = self.levels.last() else {
            return Ok(());
        };
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let above = sys::open_at(&self.current, c"..", flags)?;
        if identity(&stat(&above)?) != parent.identity {
            // The tree was moved meanwhile.
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        self.name.truncate(level.name_start);
        self.current = above;
        Ok(())
    }
}

fn level(dir: &OwnedFd, name_start: usize) -> io::Result<Level> {
    Ok(Level {
        name_start,
        identity: identity(&stat(dir)?),
        names: Vec::new(),
        position: 0,
    })
}

fn identity(stat: &libc::stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

pub fn stat(file: &impl AsRawFd) -> io::Result<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is filled when the call succeeds, and read only then.
    unsafe {
        check(libc::fstat(file.as_raw_fd(), stat.as_mut_ptr()))?;
        Ok(stat.assume_init())
    }
}

/// Whether the open file lies in one of the kernel's own file systems.
pub fn is_the_kernels(file: &impl AsRawFd) -> bool {
    let mut about = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: filled when the call succeeds, and read only then.
    unsafe {
        libc::fstatfs(file.as_raw_fd(), about.as_mut_ptr()) == 0
            && KERNEL_FILE_SYSTEMS.contains(&(about.assume_init().f_type as u32))
    }
}
