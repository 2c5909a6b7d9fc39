//! Power-off and reboot: `poweroff` and `reboot` in the guest are signals to process 1 (signals.rs), and HALT is the host's
//! request.

use std::io;

use crate::protocol::notice;
use crate::record::Writer;
use crate::sys::{monotonic_ns, sleep_ms};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    PowerOff,
    Reboot,
}

/// How long the NOTICE may take to reach the host.
pub const NOTICE_MS: u64 = 200;
/// How long processes have to end after SIGTERM, and then after SIGKILL.
const TERM_MS: u64 = 500;
const KILL_MS: u64 = 1_000;

/// Between two looks at the programs that a HALT waits for; each sends SIGHUP to the leaders of terminals.
const LOOK_MS: u64 = 1_000;

/// A stop that the host has asked for: programs have had SIGTERM.
pub struct Stop {
    deadline_ns: u64,
}

impl Stop {
    pub fn within(term_ms: u32) -> Stop {
        Stop {
            deadline_ns: monotonic_ns() + u64::from(term_ms) * 1_000_000,
        }
    }

    /// The time until the next look.
    pub fn next_ms(&self) -> u64 {
        let left_ns = self.deadline_ns.saturating_sub(monotonic_ns());
        left_ns.div_ceil(1_000_000).min(LOOK_MS)
    }

    pub fn is_over(&self) -> bool {
        monotonic_ns() >= self.deadline_ns || !has_children()
    }
}

/// A stopped process would not receive SIGTERM.
pub fn terminate_all() {
    // SAFETY: plain calls. This program is not among the targets.
    unsafe {
        libc::kill(-1, libc::SIGTERM);
        libc::kill(-1, libc::SIGCONT);
    }
}

/// Whether any process of the guest is left: all are children of process 1, or become so.
fn has_children() -> bool {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is ours, and nothing is reaped.
    let result = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_ALL, 0, &mut info, flags)
    };
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ECHILD)
}

/// The payload of the NOTICE.
pub fn notice(halt: Halt) -> Vec<u8> {
    let is_reboot = halt == Halt::Reboot;
    let record = Writer::new().u16(notice::HALTING).u8(is_reboot.into());
    record.finish()
}

/// Ends every process, syncs the disk, mounts it read-only, and stops the machine.
pub fn halt(halt: Halt) -> ! {
    // Frozen processes would not receive SIGTERM.
    let _ = std::fs::write("/sys/fs/cgroup/capsule/cgroup.freeze", "0");
    // SAFETY: plain calls, here and below.
    unsafe { libc::kill(-1, libc::SIGTERM) };
    wait_for_processes(TERM_MS);
    unsafe { libc::kill(-1, libc::SIGKILL) };
    wait_for_processes(KILL_MS);
    unsafe {
        libc::sync();
        let (none, flags) = (std::ptr::null(), libc::MS_REMOUNT | libc::MS_RDONLY);
        libc::mount(none, c"/".as_ptr(), none, flags, none.cast());
    }
    stop(halt)
}

pub fn stop(halt: Halt) -> ! {
    let how = match halt {
        Halt::PowerOff => libc::RB_POWER_OFF,
        Halt::Reboot => libc::RB_AUTOBOOT,
    };
    loop {
        // SAFETY: plain call. It returns only on failure, and then is tried again.
        unsafe { libc::reboot(how) };
        sleep_ms(1_000);
    }
}

fn wait_for_processes(timeout_ms: u64) {
    let deadline = monotonic_ns() + timeout_ms * 1_000_000;
    while monotonic_ns() < deadline {
        // SAFETY: the status is not asked for.
        let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        let has_no_child =
            pid < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD);
        if has_no_child {
            return;
        }
        if pid == 0 {
            sleep_ms(2);
        }
    }
}
