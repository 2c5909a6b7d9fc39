//! READ and READ_RANGE: a regular file or a part of it, up to the size it had when it was opened.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::files::paths::{failure, invalid, named};
use crate::frames::HEADER_BYTES;
use crate::job::{Input, Job, Next, Progress};
use crate::memory;
use crate::protocol::{empty, event, Code, Failure};
use crate::record::{Malformed, Reader, Writer};

/// With the headers of its four frames 256 KiB, which the port takes in eight writes of equal size.
const STEP_BYTES: u64 = 4 * (64 * 1024 - HEADER_BYTES as u64);

/// Bytes of a file, by their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Up to and with `last`, which may lie behind the end.
    From { first: u64, last: u64 },
    /// So many at the end.
    Last(u64),
}

impl Range {
    pub fn read(fields: &mut Reader) -> Result<Range, Malformed> {
        let is_from_end = fields.flag()?;
        let (first, last) = (fields.u64()?, fields.u64()?);
        if is_from_end {
            return Ok(Range::Last(first));
        }
        Ok(Range::From { first, last })
    }

    /// First byte and count in a file of this size; the count is 0 where the range lies behind its end.
    fn within(self, size: u64) -> (u64, u64) {
        match self {
            Range::Last(count) => (size - count.min(size), count.min(size)),
            Range::From { first, last } => {
                let end = last.saturating_add(1).min(size);
                (first.min(size), end.saturating_sub(first))
            }
        }
    }
}

pub struct Reading {
    path: PathBuf,
    range: Option<Range>,
    open: Option<Open>,
}

struct Open {
    file: File,
    /// Bytes still to be read, so that reading a growing file ends.
    left: u64,
}

impl Reading {
    pub fn new(path: PathBuf, range: Option<Range>) -> Reading {
        Reading {
            path,
            range,
            open: None,
        }
    }

    fn open(&self) -> Result<(Open, u64), Failure> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(&self.path)
            .map_err(|error| self.failure(&error))?;
        let meta = file.metadata().map_err(|error| self.failure(&error))?;
        let path = self.path.as_os_str().as_bytes();
        if meta.is_dir() {
            return Err(named(Code::IsDirectory, path, "is a directory"));
        }
        if !meta.is_file() {
            return Err(invalid(path, "is not a regular file"));
        }
        let left = match (meta.len(), self.range) {
            // Files in /proc have size 0 and content. They are read as a whole.
            (0, _) => u64::MAX,
            (size, None) => size,
            (size, Some(range)) => {
                let (first, count) = range.within(size);
                let found = file.seek(SeekFrom::Start(first));
                found.map_err(|error| self.failure(&error))?;
                count
            }
        };
        Ok((Open { file, left }, meta.len()))
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        match error.raw_os_error() {
            // A socket, or a device without a driver.
            Some(libc::ENXIO | libc::ENODEV) => {
                invalid(self.path.as_os_str().as_bytes(), "is not a regular file")
            }
            _ => failure(&self.path, error),
        }
    }

    fn chunk(&mut self) -> Result<(Vec<u8>, bool), Failure> {
        let Some(open) = &mut self.open else {
            return Ok((Vec::new(), true));
        };
        let wanted = STEP_BYTES.min(open.left);
        memory::require(wanted as usize)?;
        let mut bytes = Vec::with_capacity(wanted as usize);
        match (&open.file).take(wanted).read_to_end(&mut bytes) {
            Ok(_) => {}
            // A file whose read would block, such as /proc/kmsg, ends here.
            Err(error) if error.kind() == ErrorKind::WouldBlock => open.left = 0,
            Err(error) => return Err(failure(&self.path, &error)),
        }
        open.left -= open.left.min(bytes.len() as u64);
        let is_over = open.left == 0 || (bytes.len() as u64) < wanted;
        Ok((bytes, is_over))
    }

    fn try_step(&mut self) -> Result<Progress, Failure> {
        let mut opened = None;
        if self.open.is_none() {
            let (open, size) = self.open()?;
            self.open = Some(open);
            opened = Some(Writer::new().u16(event::OPENED).u64(size).finish());
        }
        let (bytes, is_over) = self.chunk()?;
        let next = if is_over {
            Next::Done {
                has_end: true,
                result: empty(),
            }
        } else {
            Next::Continue
        };
        Ok(Progress {
            event: opened,
            ..Progress::data(bytes, next)
        })
    }
}

impl Job for Reading {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        self.try_step()
            .unwrap_or_else(|failure| Progress::next(Next::Failed(failure)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_to_the_file() {
        let from = |first, last| Range::From { first, last }.within(10);
        assert_eq!(from(0, 0), (0, 1));
        assert_eq!(from(3, 5), (3, 3));
        assert_eq!(from(9, u64::MAX), (9, 1));
        assert_eq!(from(10, 12).1, 0);
        assert_eq!(from(u64::MAX, u64::MAX).1, 0);
        assert_eq!(Range::Last(3).within(10), (7, 3));
        assert_eq!(Range::Last(11).within(10), (0, 10));
        assert_eq!(Range::Last(0).within(10).1, 0);
    }
}
