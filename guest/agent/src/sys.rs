//! System calls with owned descriptors, errors as values, and messages for people.

use std::ffi::{CStr, CString};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The result of a call that answers -1 on failure.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The same for calls that return a new descriptor.
pub fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the caller made the descriptor just now; nobody else has it.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn open(path: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: `path` ends in NUL.
    owned(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o600) })
}

pub fn open_at(dir: &OwnedFd, name: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: `name` ends in NUL.
    owned(unsafe {
        libc::openat(
            dir.as_raw_fd(),
            name.as_ptr(),
            flags | libc::O_CLOEXEC,
            0o600,
        )
    })
}

/// The names of the folders in a folder of a kernel's file system, without `.` and `..`.
pub fn folders_in(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    let listed = open_at(dir, c".", libc::O_RDONLY | libc::O_DIRECTORY)?;
    let mut names = Vec::new();
    // SAFETY: the stream owns the descriptor from here on, and an entry is valid until the next one is read.
    unsafe {
        let stream = libc::fdopendir(listed.into_raw_fd());
        if stream.is_null() {
            return Err(io::Error::last_os_error());
        }
        while let Some(entry) = libc::readdir64(stream).as_ref() {
            let name = CStr::from_ptr(entry.d_name.as_ptr());
            if entry.d_type == libc::DT_DIR && !matches!(name.to_bytes(), b"." | b"..") {
                names.push(name.into());
            }
        }
        libc::closedir(stream);
    }
    Ok(names)
}

/// `Ok(None)`: it would block.
pub fn read(fd: RawFd, space: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: `space` is ours and as long as we say.
    let count = unsafe { libc::read(fd, space.as_mut_ptr().cast(), space.len()) };
    transferred(count)
}

/// `Ok(None)`: it would block.
pub fn write(fd: RawFd, bytes: &[u8]) -> io::Result<Option<usize>> {
    // SAFETY: `bytes` is as long as we say.
    let count = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    transferred(count)
}

pub fn transferred(count: isize) -> io::Result<Option<usize>> {
    if count >= 0 {
        return Ok(Some(count as usize));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(None),
        _ => Err(error),
    }
}

/// A new pipe, its read end first. Both ends close on exec; only the read end does not block.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let ends = blocking_pipe()?;
    set_nonblocking(&ends.0)?;
    Ok(ends)
}

/// The same for a program that reads from it: only the write end does not block.
pub fn input_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let ends = blocking_pipe()?;
    set_nonblocking(&ends.1)?;
    Ok(ends)
}

fn blocking_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: both were made just now.
    unsafe { Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))) }
}

pub fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain call; a fresh pipe, socket or terminal has no other status flags that would be lost.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }).map(drop)
}

/// A listening UNIX socket that does not block. An old file of that name is removed.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// A clock that always exists; 0 is the least.
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is ours.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec.max(0) as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The machine's memory in bytes.
pub fn total_memory() -> usize {
    // SAFETY: `info` is what the call fills.
    let info = unsafe {
        let mut info: libc::sysinfo = std::mem::zeroed();
        libc::sysinfo(&mut info);
        info
    };
    info.totalram as usize * info.mem_unit as usize
}

pub fn sleep_ms(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}

/// Random bytes for names, not for secrets: a clone of this VM draws the same ones until WAKE.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    const GRND_INSECURE: libc::c_uint = 4;
    // SAFETY: `bytes` is ours. With this flag it never blocks, and never fails for so few bytes.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, GRND_INSECURE) };
    bytes
}

pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

/// "No such file or directory", without Rust's "(os error 2)".
pub fn reason(error: &io::Error) -> String {
    let Some(code) = error.raw_os_error() else {
        return error.to_string();
    };
    let text = error.to_string();
    let suffix = format!(" (os error {code})");
    text.strip_suffix(&suffix).unwrap_or(&text).to_string()
}

/// Prefixes an error with what was attempted.
pub fn context<T>(result: io::Result<T>, what: impl Display) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {}", reason(&error)))
}

/// A path or name for the kernel. Callers have refused a NUL already, or use their own text.
pub fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
