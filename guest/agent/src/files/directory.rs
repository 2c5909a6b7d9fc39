//! The names in an open directory, without a `DIR` of the C library.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::check;

/// How much is read at once.
const NAMES_BYTES: usize = 32 * 1024;

/// A name in a directory.
pub struct Entry {
    pub name: CString,
    /// `DT_DIR` and the like; `DT_UNKNOWN` where the file system does not tell.
    pub kind: u8,
}

/// Some of a directory's names, from its beginning; none when it is empty.
pub fn read_names(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    // The directory may have been read before.
    read_names_at(dir, 0).map(|(names, _)| names)
}

/// Some of a directory's names from a position on, and the position behind them; none at its end. The position is 0 or one
/// that was returned for this directory, perhaps through another descriptor.
pub fn read_names_at(dir: &OwnedFd, position: i64) -> io::Result<(Vec<CString>, i64)> {
    let (entries, position) = read_entries_at(dir, position)?;
    Ok((entries.into_iter().map(|it| it.name).collect(), position))
}

/// The same with the kind of each.
pub fn read_entries_at(dir: &OwnedFd, position: i64) -> io::Result<(Vec<Entry>, i64)> {
    // SAFETY: plain call.
    unsafe { libc::lseek(dir.as_raw_fd(), position, libc::SEEK_SET) };
    let mut buffer = vec![0u8; NAMES_BYTES];
    let mut entries = Vec::new();
    let mut position = position;
    while entries.is_empty() {
        // SAFETY: `buffer` has that much room.
        let count = unsafe {
            libc::syscall(
                libc::SYS_getdents64,
                dir.as_raw_fd(),
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        let count = check(count as libc::c_int)? as usize;
        if count == 0 {
            break;
        }
        (entries, position) = parse_entries(&buffer[..count], position);
    }
    Ok((entries, position))
}

/// From the kernel's `struct linux_dirent64`s.
fn parse_entries(mut records: &[u8], mut position: i64) -> (Vec<Entry>, i64) {
    const POSITION_AT: usize = 8;
    const LENGTH_AT: usize = 16;
    const KIND_AT: usize = 18;
    const NAME_AT: usize = 19;
    let mut entries = Vec::new();
    while records.len() > NAME_AT {
        let length = u16::from_ne_bytes([records[LENGTH_AT], records[LENGTH_AT + 1]]) as usize;
        if length <= NAME_AT || length > records.len() {
            break;
        }
        if let Ok(name) = CStr::from_bytes_until_nul(&records[NAME_AT..length]) {
            if name != c"." && name != c".." {
                entries.push(Entry {
                    name: name.to_owned(),
                    kind: records[KIND_AT],
                });
            }
        }
        if let Some(next) = records[POSITION_AT..].first_chunk() {
            position = i64::from_ne_bytes(*next);
        }
        records = &records[length..];
    }
    (entries, position)
}
