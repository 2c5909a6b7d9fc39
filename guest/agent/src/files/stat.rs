//! STAT: the entry of one path. A link at its end is not followed.

use std::path::PathBuf;

use crate::accounts::names;
use crate::files::entries::entry;
use crate::files::paths::failure;
use crate::job::{Input, Job, Next, Progress};

pub struct Stat {
    path: PathBuf,
}

impl Stat {
    pub fn new(path: PathBuf) -> Stat {
        Stat { path }
    }
}

impl Job for Stat {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        Progress::next(match self.path.symlink_metadata() {
            Ok(meta) => Next::Done {
                has_end: false,
                result: entry(&self.path, &meta, &names()).finish(),
            },
            Err(error) => Next::Failed(failure(&self.path, &error)),
        })
    }
}
