//! The signals that this program reads from a descriptor instead of having them delivered.
//!
//! Process 1 is also a target of `pkill -u root`. The kernel drops every signal to it that is neither handled nor blocked, so
//! only those that nothing sends by accident are blocked: systemd's for power-off and reboot.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::halt::Halt;
use crate::options::Mode;
use crate::sys::{self, check, owned};

const INFO_BYTES: usize = std::mem::size_of::<libc::signalfd_siginfo>();

pub struct Signals {
    fd: OwnedFd,
}

/// The sum of the signals read at once.
#[derive(Default)]
pub struct Received {
    pub has_children: bool,
    pub halt: Option<Halt>,
}

/// SIGRTMIN is the C library's; Debian's `kill` has the same.
fn power_off() -> i32 {
    libc::SIGRTMIN() + 4
}

fn reboot() -> i32 {
    libc::SIGRTMIN() + 5
}

impl Signals {
    /// SIGPIPE is blocked and never read: a write fails with EPIPE. Programs are started with an empty mask.
    pub fn block(mode: &Mode) -> io::Result<Signals> {
        let ending = match mode {
            Mode::Machine => [power_off(), reboot()],
            Mode::Socket { .. } => [libc::SIGTERM, libc::SIGINT],
        };
        // SAFETY: the sets are ours.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGCHLD);
            for signal in ending {
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
                if signal == libc::SIGCHLD {
                    received.has_children = true;
                } else if signal == reboot() {
                    received.halt = Some(Halt::Reboot);
                } else {
                    received.halt = Some(Halt::PowerOff);
                }
            }
            if count < infos.len() {
                break;
            }
        }
        received
    }
}
