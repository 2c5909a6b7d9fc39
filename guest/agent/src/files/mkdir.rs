//! MKDIR: a directory and its missing parents.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::accounts::names;
use crate::files::entries::entry;
use crate::files::paths::{failure, named};
use crate::job::{Input, Job, Next, Progress};
use crate::protocol::{Code, Failure};

pub struct Mkdir {
    path: PathBuf,
}

impl Mkdir {
    pub fn new(path: PathBuf) -> Mkdir {
        Mkdir { path }
    }

    fn make(&self) -> Result<Vec<u8>, Failure> {
        let path = &self.path;
        if let Err(error) = std::fs::create_dir_all(path) {
            return Err(match error.raw_os_error() {
                Some(libc::EEXIST | libc::ENOTDIR) => not_a_directory(path),
                _ => failure(path, &error),
            });
        }
        let meta = std::fs::metadata(path).map_err(|error| failure(path, &error))?;
        Ok(entry(path, &meta, &names()).finish())
    }
}

fn not_a_directory(path: &Path) -> Failure {
    let blocking = path
        .ancestors()
        .find(|part| part.symlink_metadata().is_ok() && !part.is_dir())
        .unwrap_or(path);
    named(
        Code::NotDirectory,
        blocking.as_os_str().as_bytes(),
        "is not a directory",
    )
}

impl Job for Mkdir {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        Progress::next(match self.make() {
            Ok(result) => Next::Done {
                has_end: false,
                result,
            },
            Err(failure) => Next::Failed(failure),
        })
    }
}
