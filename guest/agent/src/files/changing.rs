//! CHMOD and CHOWN: of what a path leads to, or of a whole tree.

use std::ffi::CString;
use std::io;
use std::path::PathBuf;

use crate::attributes::{change_mode, change_owner, find_group, find_user};
use crate::files::paths::{display_path, failure};
use crate::files::walk::{open_parent, Visit, Walk};
use crate::job::{Input, Job, Next, Progress};
use crate::protocol::{empty, Failure};
use crate::sys;

/// Entries changed in one step.
const BATCH: usize = 256;

#[derive(Clone, Copy)]
pub enum Change {
    Mode(u32),
    Owner { uid: Option<u32>, gid: Option<u32> },
}

impl Change {
    /// By name or number. Without a group, the group stays.
    pub fn owner(owner: Option<&[u8]>, group: Option<&[u8]>) -> Result<Change, Failure> {
        Ok(Change::Owner {
            uid: owner.map(find_user).transpose()?.map(|(uid, _)| uid),
            gid: group.map(find_group).transpose()?,
        })
    }
}

pub struct Changing {
    path: PathBuf,
    change: Change,
    is_recursive: bool,
    walk: Option<Walk>,
}

impl Changing {
    pub fn new(path: PathBuf, change: Change, is_recursive: bool) -> Changing {
        Changing {
            path,
            change,
            is_recursive,
            walk: None,
        }
    }

    /// A link at the end of the path is followed; further links are not.
    fn begin(&self) -> io::Result<Walk> {
        let real = self.path.canonicalize()?;
        let Some(parent) = real.parent() else {
            let root = sys::open(c"/", libc::O_RDONLY | libc::O_DIRECTORY)?;
            return Ok(Walk::new(real, root, c".".into()));
        };
        let (dir, name) = open_parent(&real)?;
        Ok(Walk::new(parent.to_path_buf(), dir, name))
    }

    fn next_step(&mut self) -> Result<Next, Failure> {
        let Some(walk) = &mut self.walk else {
            let walk = self.begin().map_err(|error| failure(&self.path, &error))?;
            self.walk = Some(walk);
            return Ok(Next::Continue);
        };
        for _ in 0..BATCH {
            let visit = walk
                .advance()
                .map_err(|error| failure(&walk.path(), &error))?;
            match visit {
                Some(Visit::Entry(name, stat)) => {
                    let is_link = stat.st_mode & libc::S_IFMT == libc::S_IFLNK;
                    if let Err(error) = apply(self.change, walk, &name, is_link) {
                        return Err(failure(&walk.path().join(display_path(&name)), &error));
                    }
                    if !self.is_recursive {
                        walk.skip();
                    }
                }
                Some(Visit::Left(..)) => {}
                None => {
                    return Ok(Next::Done {
                        has_end: false,
                        result: empty(),
                    });
                }
            }
        }
        Ok(Next::Continue)
    }
}

/// An entry that is gone, or has become a link, is left out.
fn apply(change: Change, walk: &Walk, name: &CString, is_link: bool) -> io::Result<()> {
    let result = match change {
        Change::Mode(_) if is_link => return Ok(()),
        Change::Mode(mode) => change_mode(walk.dir(), name, mode),
        Change::Owner { uid, gid } => change_owner(walk.dir(), name, uid, gid),
    };
    match result {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ELOOP)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

impl Job for Changing {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        Progress::next(self.next_step().unwrap_or_else(Next::Failed))
    }
}
