//! PTY and CONNECT: commands with a terminal, which live on when their clients leave.
//!
//! ```text
//!   program ◄──► slave │ master ──► every client            (none there: the ring keeps the last 256 KiB)
//!                             ◄── input, no faster than the program reads
//! ```

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::agent::Agent;
use crate::command::{self, check_tag, out_of_resources};
use crate::protocol::{channel, Code, Command, Failure, Selector};
use crate::sessions::{Kind, Output};
use crate::stream::Role;
use crate::sys::{self, check, owned};
use crate::timers::Due;

/// Output kept for the next client.
const RING_BYTES: usize = 256 * 1024;
/// An ended session is kept this long, for its last words and its exit.
const KEPT_MS: u64 = 5 * 60 * 1_000;
const MAX_KEPT: usize = 64;
/// Input that the program has not read: the window bounds each client's, this the sum of all that came and left.
const MAX_INPUT_BYTES: usize = 4 * 1024 * 1024;

#[derive(Clone, Copy)]
pub struct Size {
    pub cols: u16,
    pub rows: u16,
}

/// What a session with a terminal has besides.
#[derive(Default)]
pub struct Terminal {
    missed: Ring,
    /// From which stream, and what.
    input: VecDeque<(u32, Vec<u8>)>,
    input_bytes: usize,
    /// Bytes of the first that are written already.
    taken: usize,
}

impl Agent {
    pub fn pty(&mut self, stream: u32, command: &Command, size: Size) -> Result<(), Failure> {
        let tag = command.tag.map(check_tag).transpose()?;
        let tag = self.sessions.claim_tag(tag, "pty")?;
        let mut program = command::prepare(command, true)?;
        let owner = program.identity.as_ref().map(|identity| identity.uid);
        let (master, slave) =
            open_terminal(size, owner).map_err(|error| out_of_resources(&error))?;
        program.stdio = [slave.as_raw_fd(); 3];
        let outputs = vec![Output::terminal(master, channel::MAIN)];
        let (key, _) = self.start(Kind::Terminal, &tag, command, &program, outputs)?;
        if let Some(session) = self.sessions.get_mut(key) {
            session.terminal = Some(Terminal::default());
        }
        self.listen(stream, Role::Terminal(key), key);
        Ok(())
    }

    /// What was missed and then what comes: no gap and nothing twice, since nothing happens in between.
    pub fn connect(&mut self, stream: u32, tag: &[u8]) -> Result<(), Failure> {
        let key = self.sessions.tagged(tag);
        let session = key.and_then(|key| self.sessions.get_mut(key));
        let terminal = session.and_then(|session| session.terminal.as_mut());
        let (Some(key), Some(terminal)) = (key, terminal) else {
            return Err(Selector::Tag(tag.to_vec()).not_found());
        };
        let missed = terminal.missed.take();
        self.listen(stream, Role::Terminal(key), key);
        self.streams.data(stream, channel::MAIN, &missed);
        let session = self.sessions.get(key).filter(|session| session.is_over);
        if let Some(exit) = session.and_then(|session| session.exit) {
            self.streams.result(stream, exit.record());
        }
        Ok(())
    }

    pub fn terminal_input(&mut self, stream: u32, key: u32, bytes: &[u8]) -> Result<(), Failure> {
        let session = self.sessions.get_mut(key);
        match session.and_then(|session| session.terminal.as_mut()) {
            Some(terminal) => {
                if terminal.input_bytes + bytes.len() > MAX_INPUT_BYTES {
                    let message = "the terminal's program does not read what is typed";
                    return Err(Failure::new(Code::TooMany, message));
                }
                terminal.input_bytes += bytes.len();
                terminal.input.push_back((stream, bytes.to_vec()));
            }
            None => self.streams.consumed(stream, bytes.len()),
        }
        self.feed(key);
        Ok(())
    }

    /// Writes as much input as the terminal takes. What it will never take any more is dropped.
    pub fn feed(&mut self, key: u32) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let master = session.outputs.first().and_then(Output::raw);
        let Some(terminal) = &mut session.terminal else {
            return;
        };
        while let Some((stream, bytes)) = terminal.input.front() {
            let rest = &bytes[terminal.taken..];
            let written = match master.map(|fd| sys::write(fd, rest)) {
                Some(Ok(None)) => return,
                Some(Ok(Some(count))) => count,
                Some(Err(_)) | None => rest.len(),
            };
            let is_done = written == rest.len();
            self.streams.consumed(*stream, written);
            terminal.taken += written;
            terminal.input_bytes -= written;
            if is_done {
                terminal.input.pop_front();
                terminal.taken = 0;
            }
        }
    }

    pub fn resize(&mut self, key: u32, size: Size) {
        let session = self.sessions.get(key);
        if let Some(master) = session.and_then(|session| session.outputs.first()?.raw()) {
            let _ = set_size(master, size);
        }
    }

    /// Nobody listened: kept for the next one.
    pub fn miss(&mut self, key: u32, bytes: &[u8]) {
        let session = self.sessions.get_mut(key);
        if let Some(terminal) = session.and_then(|session| session.terminal.as_mut()) {
            terminal.missed.push(bytes);
        }
    }

    /// An ended session stays for a while; when there are too many of its kind, those go first whose end somebody has
    /// heard.
    pub fn keep(&mut self, key: u32) {
        self.feed(key);
        self.kept.push_back(key);
        let kind = |key: u32| self.sessions.get(key).map(|session| session.kind);
        let alike = |&at: &usize| kind(self.kept[at]) == kind(key);
        let kept: Vec<usize> = (0..self.kept.len()).filter(alike).collect();
        if kept.len() > MAX_KEPT {
            let is_told = |&&at: &&usize| {
                let session = self.sessions.get(self.kept[at]);
                session.is_none_or(|session| session.is_told)
            };
            let first = *kept.iter().find(is_told).unwrap_or(&kept[0]);
            if let Some(key) = self.kept.remove(first) {
                self.sessions.remove(key);
            }
        }
        self.timers.after_ms(KEPT_MS, Due::Forget(key));
    }

    pub fn forget(&mut self, key: u32) {
        // Its number may have gone to another one meanwhile.
        if self
            .sessions
            .get(key)
            .is_some_and(|session| session.is_over)
        {
            self.kept.retain(|&kept| kept != key);
            self.sessions.remove(key);
        }
    }
}

/// For a size out of a request.
pub fn check_size(cols: u16, rows: u16) -> Result<Size, Failure> {
    if cols == 0 || rows == 0 {
        let message = "a terminal has at least one column and one row";
        return Err(Failure::new(Code::Invalid, message));
    }
    Ok(Size { cols, rows })
}

/// Master, which does not block, and slave.
fn open_terminal(size: Size, owner: Option<libc::uid_t>) -> io::Result<(OwnedFd, OwnedFd)> {
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

fn set_size(master: i32, size: Size) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `size` is what the request reads.
    check(unsafe { libc::ioctl(master, libc::TIOCSWINSZ, &size) }).map(drop)
}

/// The last bytes of a long row.
#[derive(Default)]
struct Ring {
    bytes: VecDeque<u8>,
}

impl Ring {
    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(RING_BYTES)..];
        let excess = (self.bytes.len() + bytes.len()).saturating_sub(RING_BYTES);
        self.bytes.drain(..excess);
        self.bytes.extend(bytes);
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_the_end() {
        let mut ring = Ring::default();
        ring.push(&[1; RING_BYTES - 1]);
        ring.push(&[2, 3]);
        let kept = ring.take();
        assert_eq!(
            (kept.len(), kept[0], &kept[RING_BYTES - 2..]),
            (RING_BYTES, 1, [2, 3].as_slice())
        );
        assert!(ring.take().is_empty());
        ring.push(&[4; 3 * RING_BYTES]);
        assert_eq!(ring.take().len(), RING_BYTES);
    }
}
