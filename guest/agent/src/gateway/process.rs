//! Process 1 keeps a gateway alive: it starts one at boot, and another when that has ended.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::{self, monotonic_ns};

/// The first argument of a gateway.
pub const ARGUMENT: &str = "--gateway";
/// The third, of one that was started again.
pub const AGAIN: &str = "again";
const READY_FD: libc::c_int = 3;
/// How long the boot waits for the first one.
const READY_MS: libc::c_int = 5_000;

const FIRST_PAUSE_MS: u64 = 50;
const MAX_PAUSE_MS: u64 = 10_000;
/// A gateway that has lived so long has not ended because it cannot work.
const STEADY_NS: u64 = 10_000_000_000;

pub struct GatewayProcess {
    /// The device of the port.
    port: CString,
    pid: Option<libc::pid_t>,
    started_ns: u64,
    pause_ms: u64,
}

impl GatewayProcess {
    /// Starts the first one, and waits until it serves.
    pub fn start(port: CString) -> GatewayProcess {
        let mut gateway = GatewayProcess {
            port,
            pid: None,
            started_ns: 0,
            pause_ms: FIRST_PAUSE_MS,
        };
        if let Ok(ready) = gateway.spawn(false) {
            wait_for(&ready);
        }
        gateway
    }

    pub fn pid(&self) -> Option<libc::pid_t> {
        self.pid
    }

    /// A process has ended and is not reaped yet. When it is the gateway: how long to wait for `restart`.
    pub fn look(&mut self) -> Option<u64> {
        let pid = self.pid?;
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is ours.
        let ended = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let result = libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags);
            result < 0 || info.si_pid() == pid
        };
        if !ended {
            return None;
        }
        self.pid = None;
        Some(self.next_pause())
    }

    fn next_pause(&mut self) -> u64 {
        if monotonic_ns().saturating_sub(self.started_ns) >= STEADY_NS {
            self.pause_ms = FIRST_PAUSE_MS;
        }
        let pause_ms = self.pause_ms;
        self.pause_ms = (2 * pause_ms).min(MAX_PAUSE_MS);
        pause_ms
    }

    /// `Some`: it could not be started, and is to be tried again after so long.
    pub fn restart(&mut self) -> Option<u64> {
        if self.pid.is_some() {
            return None;
        }
        self.spawn(true).err().map(|_| self.next_pause())
    }

    /// Returns a pipe that says when it serves.
    fn spawn(&mut self, is_again: bool) -> io::Result<OwnedFd> {
        let (ready, theirs) = sys::pipe()?;
        let again = if is_again { c"again" } else { c"first" };
        let (name, argument) = (c"capsule-agent", c"--gateway");
        let words = [
            name.as_ptr(),
            argument.as_ptr(),
            self.port.as_ptr(),
            again.as_ptr(),
        ];
        let argv = words.map(<*const _>::cast_mut);
        let argv = [argv[0], argv[1], argv[2], argv[3], std::ptr::null_mut()];
        let envp = [std::ptr::null_mut()];
        self.started_ns = monotonic_ns();
        let mut pid = 0;
        // SAFETY: every text ends in NUL, both lists in a null pointer, and what is made here is destroyed here.
        let code = unsafe {
            let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
            let mut attributes: libc::posix_spawnattr_t = std::mem::zeroed();
            let mut signals: libc::sigset_t = std::mem::zeroed();
            libc::posix_spawn_file_actions_init(&mut actions);
            libc::posix_spawnattr_init(&mut attributes);
            libc::sigemptyset(&mut signals);
            libc::posix_spawn_file_actions_adddup2(&mut actions, theirs.as_raw_fd(), READY_FD);
            libc::posix_spawnattr_setsigmask(&mut attributes, &signals);
            let flags = libc::POSIX_SPAWN_SETSIGMASK | SETSID;
            libc::posix_spawnattr_setflags(&mut attributes, flags as libc::c_short);
            let program = c"/proc/self/exe".as_ptr();
            let code = libc::posix_spawn(
                &mut pid,
                program,
                &actions,
                &attributes,
                argv.as_ptr(),
                envp.as_ptr(),
            );
            libc::posix_spawn_file_actions_destroy(&mut actions);
            libc::posix_spawnattr_destroy(&mut attributes);
            code
        };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        self.pid = Some(pid);
        Ok(ready)
    }
}

/// `POSIX_SPAWN_SETSID`, which the libc crate has not.
const SETSID: libc::c_int = 0x80;

fn wait_for(ready: &OwnedFd) {
    let mut event = libc::pollfd {
        fd: ready.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `event` is ours. The end of a process that failed is an event too.
    unsafe { libc::poll(&mut event, 1, READY_MS) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_cannot_work_is_started_ever_less_often() {
        let mut gateway = GatewayProcess {
            port: c"/nowhere".into(),
            pid: Some(libc::pid_t::MAX),
            started_ns: monotonic_ns(),
            pause_ms: FIRST_PAUSE_MS,
        };
        let pauses: Vec<u64> = (0..10).map(|_| gateway.next_pause()).collect();
        assert_eq!(pauses[..4], [50, 100, 200, 400]);
        assert_eq!(pauses[9], MAX_PAUSE_MS);
        gateway.started_ns = monotonic_ns().saturating_sub(STEADY_NS);
        assert_eq!(
            gateway.look(),
            Some(FIRST_PAUSE_MS),
            "there is no such child"
        );
        assert_eq!((gateway.look(), gateway.pid()), (None, None));
    }
}
