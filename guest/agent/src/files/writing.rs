//! WRITE: the content goes into a temporary file, which replaces the target once all bytes have come.

use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::files::location::Location;
use crate::files::paths::{failure, invalid, named, normalize};
use crate::files::temporary::Temporary;
use crate::job::{Input, Job, Next, Progress};
use crate::protocol::{Code, Failure};
use crate::record::Writer;

const COPY_BYTES: u64 = 1024 * 1024;
const NO_PARENT: &str = "cannot be written: its parent directory does not exist";

/// The file to be written.
struct Target {
    path: PathBuf,
    location: Location,
}

pub struct Writing {
    /// The path of the request, until the first step.
    path: Option<Vec<u8>>,
    target: Option<Target>,
    content: Option<Temporary>,
    written: u64,
    /// The copy on the target's mount, when the content lies on another one.
    copy: Option<Temporary>,
    is_complete: bool,
}

impl Writing {
    /// Without a path, a TARGET will follow.
    pub fn new(path: &[u8]) -> Writing {
        Writing {
            path: (!path.is_empty()).then(|| path.to_vec()),
            target: None,
            content: None,
            written: 0,
            copy: None,
            is_complete: false,
        }
    }

    fn try_step(&mut self, inputs: Vec<Input>) -> Result<Progress, Failure> {
        if let Some(path) = self.path.take() {
            self.set_target(&path)?;
        }
        let mut consumed = 0;
        for input in inputs {
            match input {
                Input::Data(_) if self.is_complete => {
                    return Err(Failure::new(Code::Invalid, "content goes on after its end"));
                }
                Input::Data(bytes) => {
                    self.write(&bytes)?;
                    consumed += bytes.len();
                }
                Input::Target(path) if self.target.is_none() => self.set_target(&path)?,
                Input::Target(path) => return Err(invalid(path, "is a second target")),
                Input::End(total) => self.complete(total)?,
            }
        }
        let next = if self.is_complete {
            self.publish()?
        } else {
            Next::Await
        };
        Ok(Progress {
            consumed,
            ..Progress::next(next)
        })
    }

    fn set_target(&mut self, path: &[u8]) -> Result<(), Failure> {
        if path.last() == Some(&b'/') {
            return Err(named(Code::IsDirectory, path, "names a directory"));
        }
        let path = normalize(path).map_err(|failure| match failure.code {
            // `..` is part of the parent directory's path.
            Code::NotFound => invalid(path, NO_PARENT),
            _ => failure,
        })?;
        let location = Location::find(&path).map_err(|error| parent_failure(&path, &error))?;
        let known = location.stat().map_err(|error| failure(&path, &error))?;
        let shown = path.as_os_str().as_bytes();
        match known.map(|stat| stat.st_mode & libc::S_IFMT) {
            None | Some(libc::S_IFREG) => {}
            Some(libc::S_IFDIR) => return Err(named(Code::IsDirectory, shown, "is a directory")),
            Some(_) => return Err(invalid(shown, "is not a regular file")),
        }
        self.target = Some(Target { path, location });
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let end = self.written + bytes.len() as u64;
        let written = self.content().and_then(|content| {
            content.lengthen(end);
            content.file().write_all(bytes)
        });
        self.written = end;
        written.map_err(|error| self.failure(&error))
    }

    /// The temporary file, in the folder of the target if that is known.
    fn content(&mut self) -> io::Result<&mut Temporary> {
        if self.content.is_none() {
            self.content = Some(match &self.target {
                Some(target) => Temporary::create(&target.location.dir)?,
                None => Temporary::spool()?,
            });
        }
        self.content
            .as_mut()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn complete(&mut self, total: u64) -> Result<(), Failure> {
        if total != self.written {
            let message = format!("{total} bytes were sent, {} arrived", self.written);
            return Err(Failure::new(Code::Invalid, message));
        }
        if self.target.is_none() {
            return Err(Failure::new(Code::Invalid, "the content has no path"));
        }
        let written = self.content().and_then(|content| content.shorten(total));
        written.map_err(|error| self.failure(&error))?;
        self.is_complete = true;
        Ok(())
    }

    /// Renames the content to its target; from another mount it is copied first, a part in each step.
    fn publish(&mut self) -> Result<Next, Failure> {
        let result = self.try_publish();
        result.map_err(|error| self.failure(&error))
    }

    fn try_publish(&mut self) -> io::Result<Next> {
        let (Some(target), Some(content)) = (&self.target, &mut self.content) else {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        };
        if self.copy.is_none() {
            match content.rename(&target.location) {
                // Two mounts, which may be of one file system.
                Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
                    content.file().rewind()?;
                    self.copy = Some(Temporary::create(&target.location.dir)?);
                }
                result => {
                    result?;
                    self.content = None;
                    return Ok(Next::Done {
                        has_end: false,
                        result: Writer::new().u64(self.written).finish(),
                    });
                }
            }
        }
        if let Some(copy) = &self.copy {
            let copied = io::copy(&mut content.file().take(COPY_BYTES), &mut copy.file())?;
            if copied < COPY_BYTES {
                self.content = self.copy.take();
            }
        }
        Ok(Next::Continue)
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let path = self
            .target
            .as_ref()
            .map_or(Path::new("the content"), |target| &target.path);
        match error.raw_os_error() {
            // The folder has been removed meanwhile, or holds no files of users, such as /proc.
            Some(libc::ENOENT | libc::ENOTDIR) => {
                invalid(path.as_os_str().as_bytes(), "cannot be created there")
            }
            _ => failure(path, error),
        }
    }
}

impl Job for Writing {
    fn step(&mut self, inputs: Vec<Input>) -> Progress {
        self.try_step(inputs)
            .unwrap_or_else(|failure| Progress::next(Next::Failed(failure)))
    }
}

fn parent_failure(path: &Path, error: &io::Error) -> Failure {
    let shown = path.as_os_str().as_bytes();
    match error.raw_os_error() {
        Some(libc::ENOENT) => invalid(shown, NO_PARENT),
        Some(libc::ENOTDIR) => invalid(shown, "cannot be written: its parent is not a directory"),
        _ => failure(path, error),
    }
}
