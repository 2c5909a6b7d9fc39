//! The content of one file of a copy.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::attributes::copy_attributes;
use crate::files::walk::{is_unchanged, stat_of, Walk};
use crate::sys::{self, check};

/// A file whose content is being copied.
pub struct Content {
    from: OwnedFd,
    to: OwnedFd,
    at: u64,
    stat: libc::stat,
}

impl Content {
    pub fn open(walk: &Walk, name: &CStr, dir: &OwnedFd, to: &CStr) -> io::Result<Content> {
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let from = sys::open_at(walk.dir(), name, flags)?;
        let stat = stat_of(&from)?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let to = sys::open_at(dir, to, flags)?;
        // SAFETY: plain call.
        check(unsafe { libc::ftruncate(to.as_raw_fd(), stat.st_size) })?;
        Ok(Content {
            from,
            to,
            at: 0,
            stat,
        })
    }

    /// Copies what is no hole, at most `left` bytes. True: the content is complete. A file that was changed since it was
    /// opened is EBUSY.
    pub fn copy(&mut self, left: &mut u64) -> io::Result<bool> {
        let size = self.stat.st_size as u64;
        while self.at < size {
            if *left == 0 {
                return Ok(false);
            }
            let (data, end) = self.next_data(size)?;
            if data >= size {
                break;
            }
            let wanted = (end - data).min(*left);
            let copied = copy_range(&self.from, &self.to, data, wanted)?;
            if copied == 0 {
                // The file has become shorter.
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
            self.at = data + copied;
            *left -= copied;
        }
        if is_unchanged(&self.stat, &stat_of(&self.from)?) {
            return Ok(true);
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Gives the copy the attributes that the file had when it was opened.
    pub fn finish(self) -> io::Result<()> {
        copy_attributes(&self.to, &self.stat)
    }

    /// Begin and end of the next part that is no hole; `size` for both: the rest is one.
    fn next_data(&self, size: u64) -> io::Result<(u64, u64)> {
        let fd = self.from.as_raw_fd();
        // SAFETY: plain calls.
        let (data, end) = unsafe {
            let data = libc::lseek(fd, self.at as i64, libc::SEEK_DATA);
            if data < 0 {
                let error = io::Error::last_os_error();
                return match error.raw_os_error() {
                    Some(libc::ENXIO) => Ok((size, size)),
                    _ => Err(error),
                };
            }
            (data, libc::lseek(fd, data, libc::SEEK_HOLE))
        };
        let end = if end > data { end as u64 } else { size };
        Ok((data as u64, end.min(size)))
    }
}

fn copy_range(from: &OwnedFd, to: &OwnedFd, at: u64, count: u64) -> io::Result<u64> {
    let (from, to) = (File::from(from.try_clone()?), File::from(to.try_clone()?));
    let mut buffer = vec![0u8; 64 * 1024];
    let mut copied = 0;
    while copied < count {
        let wanted = buffer.len().min((count - copied) as usize);
        let read = from.read_at(&mut buffer[..wanted], at + copied)?;
        if read == 0 {
            break;
        }
        to.write_all_at(&buffer[..read], at + copied)?;
        copied += read as u64;
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::walk::open_parent;
    use std::fs;
    use std::path::Path;

    /// The result of a copy whose file this changes after its first 4 KiB.
    fn copy_of_changed(name: &str, change: fn(&Path)) -> io::Result<bool> {
        let dir = std::env::temp_dir().join(format!("capsule-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("file");
        fs::write(&path, [1; 16 * 1024]).unwrap();
        // Older than any change that this test makes.
        let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_times(times))
            .unwrap();
        let (parent, own) = open_parent(&path).unwrap();
        let to = parent.try_clone().unwrap();
        let mut walk = Walk::new(dir.clone(), parent, own.clone());
        walk.advance().unwrap();
        let mut content = Content::open(&walk, &own, &to, c"copy").unwrap();
        assert!(!content.copy(&mut 4_096).unwrap());
        change(&path);
        let result = content.copy(&mut u64::MAX.clone());
        fs::remove_dir_all(&dir).unwrap();
        result
    }

    #[test]
    fn a_file_that_is_changed_while_it_is_copied_is_busy() {
        let busy = |name, change| {
            let error = copy_of_changed(name, change).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{name}");
        };
        assert!(copy_of_changed("read", |path| drop(fs::read(path).unwrap())).unwrap());
        busy("written", |path| fs::write(path, [2; 16 * 1024]).unwrap());
        busy("longer", |path| fs::write(path, [1; 17 * 1024]).unwrap());
        busy("shorter", |path| fs::write(path, [1; 100]).unwrap());
    }
}
