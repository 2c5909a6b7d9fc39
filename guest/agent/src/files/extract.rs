//! EXTRACT: a tar that the host sends, into a directory. A failure leaves the files that were written before it.

mod fault;
mod fields;
mod members;
mod reader;
mod records;
mod sparse;
mod tree;

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::files::extract::fault::{damaged, Fault};
use crate::files::extract::reader::Reader;
use crate::files::extract::tree::Tree;
use crate::files::paths::{failure, named};
use crate::job::{Input, Job, Next, Progress};
use crate::memory;
use crate::protocol::{empty, Code, Failure};

/// The memory of one step: names, links and records of 1 MiB each, and the times that are set at the end.
const STEP_BYTES: usize = 8 * 1024 * 1024;

pub struct Extraction {
    path: PathBuf,
    tree: Option<Tree>,
    reader: Reader,
    received: u64,
}

impl Extraction {
    pub fn new(path: PathBuf) -> Extraction {
        Extraction {
            path,
            tree: None,
            reader: Reader::new(),
            received: 0,
        }
    }

    fn open(&self) -> Result<Tree, Failure> {
        Tree::open(&self.path).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOTDIR) if self.path.exists() => {
                let path = self.path.as_os_str().as_bytes();
                named(Code::NotDirectory, path, "is not a directory")
            }
            _ => failure(&self.path, &error),
        })
    }

    fn try_step(&mut self, inputs: Vec<Input>) -> Result<Progress, Failure> {
        let mut tree = match self.tree.take() {
            Some(tree) => tree,
            None => self.open()?,
        };
        if let Err(failure) = memory::admit(STEP_BYTES) {
            tree.set_times();
            return Err(failure);
        }
        let mut consumed = 0;
        let mut next = Next::Await;
        for input in inputs {
            match input {
                Input::Data(bytes) => {
                    consumed += bytes.len();
                    self.received += bytes.len() as u64;
                    if let Err(fault) = self.reader.read(&bytes, &mut tree) {
                        tree.set_times();
                        return Err(self.failure(fault));
                    }
                }
                Input::End(total) => {
                    tree.set_times();
                    self.end(total)?;
                    next = Next::Done {
                        has_end: false,
                        result: empty(),
                    };
                }
                Input::Target(_) | Input::Attributes(_) => {
                    return Err(
                        self.failure(damaged("it comes with a second path or with attributes"))
                    )
                }
            }
        }
        self.tree = Some(tree);
        Ok(Progress {
            consumed,
            ..Progress::next(next)
        })
    }

    fn end(&self, total: u64) -> Result<(), Failure> {
        if total != self.received {
            let message = format!("{total} bytes were sent, {} arrived", self.received);
            return Err(Failure::new(Code::Invalid, message));
        }
        if !self.reader.is_complete() {
            return Err(self.failure(damaged("it ends before its end mark")));
        }
        Ok(())
    }

    fn failure(&self, fault: Fault) -> Failure {
        match fault {
            Fault::Damaged(what) => {
                Failure::new(Code::Invalid, format!("the archive is damaged: {what}"))
            }
            Fault::Refused(name, what) => {
                named(Code::Invalid, name, &format!("of the archive {what}"))
            }
            Fault::System(error) => match error.raw_os_error() {
                // The target has been removed meanwhile, or holds no files of users, such as /proc.
                Some(libc::ENOENT | libc::ENOTDIR) => named(
                    Code::Invalid,
                    self.path.as_os_str().as_bytes(),
                    "takes no new files",
                ),
                Some(libc::ENOMEM) => memory::exhausted(),
                _ => failure(&self.path, &error),
            },
        }
    }
}

impl Job for Extraction {
    fn step(&mut self, inputs: Vec<Input>) -> Progress {
        self.try_step(inputs)
            .unwrap_or_else(|failure| Progress::next(Next::Failed(failure)))
    }
}
