//! Pseudo-terminals as the kernel makes them: a master and a slave of a given size.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::protocol::{Code, Failure};
use crate::sys::{self, check, owned};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    cols: u16,
    rows: u16,
}

impl Size {
    pub fn new(cols: u16, rows: u16) -> Result<Size, Failure> {
        if cols == 0 || rows == 0 {
            let message = "a terminal has at least one column and one row";
            return Err(Failure::new(Code::Invalid, message));
        }
        Ok(Size { cols, rows })
    }

    /// Another size, with a row less where there is one to spare.
    pub fn other(self) -> Size {
        let rows = if self.rows > 1 { self.rows - 1 } else { 2 };
        Size { rows, ..self }
    }
}

/// Master, which does not block, and slave.
pub fn open(size: Size, owner: Option<libc::uid_t>) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY;
    let master = sys::open(c"/dev/ptmx", flags | libc::O_NONBLOCK)?;
    let locked: libc::c_int = 0;
    let slave_flags = flags | libc::O_CLOEXEC;
    // SAFETY: the requests take what they are given, and `mode` is ours.
    unsafe {
        check(libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &locked))?;
        let slave = owned(libc::ioctl(
            master.as_raw_fd(),
            libc::TIOCGPTPEER as _,
            slave_flags,
        ))?;
        set_size(master.as_raw_fd(), size)?;
        let mut mode: libc::termios = std::mem::zeroed();
        check(libc::tcgetattr(slave.as_raw_fd(), &mut mode))?;
        mode.c_iflag |= libc::IUTF8;
        check(libc::tcsetattr(slave.as_raw_fd(), libc::TCSANOW, &mode))?;
        if let Some(uid) = owner {
            check(libc::fchown(slave.as_raw_fd(), uid, libc::gid_t::MAX))?;
        }
        Ok((master, slave))
    }
}

pub fn set_size(master: RawFd, size: Size) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `size` is what the request reads.
    check(unsafe { libc::ioctl(master, libc::TIOCSWINSZ, &size) }).map(drop)
}

pub fn size(master: RawFd) -> io::Result<Size> {
    // SAFETY: the request fills `size`.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        check(libc::ioctl(master, libc::TIOCGWINSZ, &mut size))?;
        size
    };
    Ok(Size {
        cols: size.ws_col,
        rows: size.ws_row,
    })
}
