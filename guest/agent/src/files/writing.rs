//! WRITE and WRITE_AS: the content goes into a temporary file, which replaces the target once all bytes have come. A target that is
//! itself a mount point cannot be replaced: the content is copied into it.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::attributes::{make_parents, own, Attributes};
use crate::files::location::Location;
use crate::files::mount_points::is_mount_point;
use crate::files::paths::{failure, invalid, named, normalize};
use crate::files::temporary::{Asked, Temporary};
use crate::job::{Input, Job, Next, Progress};
use crate::protocol::{Code, Failure};
use crate::record::Writer;
use crate::sys;

const COPY_BYTES: u64 = 1024 * 1024;
const NO_PARENT: &str = "cannot be written: its parent directory does not exist";

/// The file to be written.
struct Target {
    path: PathBuf,
    location: Location,
    is_mount_point: bool,
}

/// Where the content is copied when it cannot be renamed.
enum Copy {
    /// A file on the target's mount, which is then renamed.
    Beside(Temporary),
    /// The target itself.
    InPlace(File),
}

impl Copy {
    fn file(&self) -> &File {
        match self {
            Copy::Beside(temporary) => temporary.file(),
            Copy::InPlace(file) => file,
        }
    }
}

pub struct Writing {
    /// The path, until the target is found.
    path: Option<Vec<u8>>,
    /// Attributes will follow before the content.
    has_attributes: bool,
    has_parents: bool,
    /// Directories made for this file.
    made: Vec<PathBuf>,
    asked: Asked,
    target: Option<Target>,
    content: Option<Temporary>,
    written: u64,
    copy: Option<Copy>,
    is_complete: bool,
}

impl Writing {
    /// Without a path, a TARGET will follow.
    pub fn new(path: &[u8], has_attributes: bool) -> Writing {
        Writing {
            path: (!path.is_empty()).then(|| path.to_vec()),
            has_attributes,
            has_parents: false,
            made: Vec::new(),
            asked: Asked::default(),
            target: None,
            content: None,
            written: 0,
            copy: None,
            is_complete: false,
        }
    }

    fn try_step(&mut self, inputs: Vec<Input>) -> Result<Progress, Failure> {
        if !self.has_attributes {
            self.find_target(false)?;
        }
        let mut consumed = 0;
        for input in inputs {
            match input {
                Input::Data(_) if self.is_complete => {
                    return Err(Failure::new(Code::Invalid, "content goes on after its end"));
                }
                Input::Data(bytes) => {
                    self.find_target(false)?;
                    self.write(&bytes)?;
                    consumed += bytes.len();
                }
                Input::Target(path) if self.target.is_none() && self.path.is_none() => {
                    self.path = Some(path);
                    self.find_target(false)?;
                }
                Input::Target(path) => return Err(invalid(path, "is a second target")),
                Input::Attributes(attributes) => self.take(&attributes)?,
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

    fn take(&mut self, attributes: &Attributes) -> Result<(), Failure> {
        self.has_parents = attributes.has_parents;
        self.asked = Asked {
            mode: attributes.mode.map(|mode| mode & 0o7777),
            ids: attributes.ids()?,
        };
        own(&self.made, self.asked.ids).map_err(|error| self.failure(&error))
    }

    /// Before the end, a missing parent is no failure yet: the client may still ask for it to be made.
    fn find_target(&mut self, is_last: bool) -> Result<(), Failure> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let path = clean(path)?;
        let location = match Location::find(&path) {
            Err(error) if is_missing(&error) && self.has_parents => {
                self.made = make_parents(&path, self.asked.ids)
                    .map_err(|error| parent_failure(&path, &error))?;
                Location::find(&path)
            }
            Err(error) if is_missing(&error) && !is_last => return Ok(()),
            found => found,
        };
        let location = location.map_err(|error| parent_failure(&path, &error))?;
        self.path = None;
        self.set_target(path, location)
    }

    fn set_target(&mut self, path: PathBuf, location: Location) -> Result<(), Failure> {
        let known = location.stat().map_err(|error| failure(&path, &error))?;
        let shown = path.as_os_str().as_bytes();
        match known.map(|stat| stat.st_mode & libc::S_IFMT) {
            None | Some(libc::S_IFREG) => {}
            Some(libc::S_IFDIR) => return Err(named(Code::IsDirectory, shown, "is a directory")),
            Some(_) => return Err(invalid(shown, "is not a regular file")),
        }
        let is_mount_point = is_mount_point(&location.dir, &location.name);
        self.target = Some(Target {
            path,
            location,
            is_mount_point,
        });
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

    /// The temporary file, in the folder of the target if that is known and the file can be renamed to it.
    fn content(&mut self) -> io::Result<&mut Temporary> {
        if self.content.is_none() {
            self.content = Some(match &self.target {
                Some(target) if !target.is_mount_point => Temporary::create(&target.location.dir)?,
                _ => Temporary::spool()?,
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
        self.find_target(true)?;
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
        let Some(copy) = &self.copy else {
            self.copy = match begin_copy(content, target, self.asked)? {
                None => {
                    self.content = None;
                    return Ok(self.done());
                }
                copy => copy,
            };
            content.file().rewind()?;
            return Ok(Next::Continue);
        };
        let copied = io::copy(&mut content.file().take(COPY_BYTES), &mut copy.file())?;
        if copied < COPY_BYTES {
            match self.copy.take() {
                Some(Copy::Beside(temporary)) => self.content = Some(temporary),
                Some(Copy::InPlace(file)) => {
                    self.asked.apply(&file)?;
                    return Ok(self.done());
                }
                None => return Ok(self.done()),
            }
        }
        Ok(Next::Continue)
    }

    fn done(&self) -> Next {
        Next::Done {
            has_end: false,
            result: Writer::new().u64(self.written).finish(),
        }
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

/// Renames the content to the target. Where that is not possible, returns where to copy it.
fn begin_copy(content: &mut Temporary, target: &Target, asked: Asked) -> io::Result<Option<Copy>> {
    let location = &target.location;
    if target.is_mount_point {
        let flags = libc::O_WRONLY | libc::O_TRUNC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = sys::open_at(&location.dir, &location.name, flags)?;
        return Ok(Some(Copy::InPlace(File::from(file))));
    }
    match content.rename(location, asked) {
        Ok(()) => Ok(None),
        // Two mounts, which may be of one file system.
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
            Temporary::create(&location.dir).map(|copy| Some(Copy::Beside(copy)))
        }
        Err(error) => Err(error),
    }
}

impl Job for Writing {
    fn step(&mut self, inputs: Vec<Input>) -> Progress {
        self.try_step(inputs)
            .unwrap_or_else(|failure| Progress::next(Next::Failed(failure)))
    }
}

/// The path to write to, whose end is the file's name.
fn clean(path: &[u8]) -> Result<PathBuf, Failure> {
    if path.last() == Some(&b'/') {
        return Err(named(Code::IsDirectory, path, "names a directory"));
    }
    normalize(path).map_err(|failure| match failure.code {
        // `..` is part of the parent directory's path.
        Code::NotFound => invalid(path, NO_PARENT),
        _ => failure,
    })
}

fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}

fn parent_failure(path: &Path, error: &io::Error) -> Failure {
    let shown = path.as_os_str().as_bytes();
    match error.raw_os_error() {
        Some(libc::ENOENT) => invalid(shown, NO_PARENT),
        Some(libc::ENOTDIR) => invalid(shown, "cannot be written: its parent is not a directory"),
        _ => failure(path, error),
    }
}
