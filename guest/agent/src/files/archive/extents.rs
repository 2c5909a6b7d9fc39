//! The parts of a file that hold data, from the file system's own knowledge of its holes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    pub length: u64,
}

/// Smaller holes are not worth the map, which not all programs read.
const MIN_HOLES_BYTES: u64 = 1024 * 1024;
/// The data behind the last of them is one extent with all its holes.
const MAX_EXTENTS: usize = 4_096;

/// `None`: a file that is archived whole. The last extent ends where the file ends, if only by being empty.
pub fn extents_of(file: &File, size: u64, allocated: u64) -> Option<Vec<Extent>> {
    if allocated.saturating_add(MIN_HOLES_BYTES) > size {
        return None;
    }
    let mut extents = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, at, libc::SEEK_DATA) {
            Ok(start) => start.min(size),
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => break,
            Err(_) => return None,
        };
        let is_last = extents.len() + 1 == MAX_EXTENTS;
        let end = match seek(file, start, libc::SEEK_HOLE) {
            Ok(end) if !is_last => end.min(size),
            _ => size,
        };
        if end <= start {
            break;
        }
        extents.push(Extent {
            offset: start,
            length: end - start,
        });
        at = end;
    }
    let stored: u64 = extents.iter().map(|extent| extent.length).sum();
    if size - stored < MIN_HOLES_BYTES {
        return None;
    }
    if at < size {
        extents.push(Extent {
            offset: size,
            length: 0,
        });
    }
    Some(extents)
}

fn seek(file: &File, at: u64, whence: libc::c_int) -> io::Result<u64> {
    let at = i64::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: plain call; content is read at positions of its own.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}
