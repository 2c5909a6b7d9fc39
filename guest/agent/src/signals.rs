//! The signals that this program reads from a descriptor instead of having them delivered.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::halt::Halt;
use crate::sys::{self, check, owned};

const INFO_BYTES: usize = std::mem::size_of::<libc::signalfd_siginfo>();

pub struct Signals {
    fd: OwnedFd,
}

/// What the signals read at once ask for.
#[derive(Default)]
pub struct Received {
    pub has_children: bool,
    pub halt: Option<Halt>,
}

impl Signals {
    /// SIGPIPE is blocked and never read: a write fails with EPIPE. Programs are started with an empty mask.
    pub fn block() -> io::Result<Signals> {
        // SAFETY: the sets are ours.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGUSR2] {
                libc::sigaddset(&mut set, signal);
            }
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            let fd = owned(libc::signalfd(-1, &set, flags))?;
            libc::sigaddset(&mut set, libc::SIGPIPE);
            let old = std::ptr::null_mut();
            check(libc::sigprocmask(libc::SIG_BLOCK, &set, old))?;
            Ok(Signals { fd })
        }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn read(&self) -> Received {
        let mut received = Received::default();
        let mut infos = [0u8; 8 * INFO_BYTES];
        while let Ok(Some(count)) = sys::read(self.fd(), &mut infos) {
            for info in infos[..count].chunks_exact(INFO_BYTES) {
                // ssi_signo comes first.
                let signal = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]) as i32;
                match signal {
                    libc::SIGCHLD => received.has_children = true,
                    libc::SIGUSR2 => received.halt = Some(Halt::PowerOff),
                    _ => received.halt = Some(Halt::Reboot),
                }
            }
            if count < infos.len() {
                break;
            }
        }
        received
    }
}
