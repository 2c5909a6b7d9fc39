//! The end of the machine, at its own wish: `poweroff` and `reboot` in a capsule are signals to process 1.

use std::io;

use crate::protocol::notice;
use crate::record::Writer;
use crate::sys::{monotonic_ns, sleep_ms};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    PowerOff,
    Reboot,
}

/// The host is told within this time or not at all.
pub const NOTICE_MS: u64 = 200;
/// What processes get to end by themselves, and then to be gone.
const TERM_MS: u64 = 500;
const KILL_MS: u64 = 1_000;

/// The payload of the NOTICE.
pub fn notice(halt: Halt) -> Vec<u8> {
    let is_reboot = halt == Halt::Reboot;
    let record = Writer::new().u16(notice::HALTING).u8(is_reboot.into());
    record.finish()
}

/// Ends every process, brings the disk in order, and stops the machine.
pub fn halt(halt: Halt) -> ! {
    // SAFETY: plain calls, here and below. Frozen processes would not hear the first signal.
    let _ = std::fs::write("/sys/fs/cgroup/capsule/cgroup.freeze", "0");
    unsafe { libc::kill(-1, libc::SIGTERM) };
    wait_for_everyone(TERM_MS);
    unsafe { libc::kill(-1, libc::SIGKILL) };
    wait_for_everyone(KILL_MS);
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
        // SAFETY: it does not come back; if it does, there is nothing else to do.
        unsafe { libc::reboot(how) };
        sleep_ms(1_000);
    }
}

fn wait_for_everyone(timeout_ms: u64) {
    let deadline = monotonic_ns() + timeout_ms * 1_000_000;
    while monotonic_ns() < deadline {
        // SAFETY: the status is not asked for.
        let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        let has_nobody = pid < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD);
        if has_nobody {
            return;
        }
        if pid == 0 {
            sleep_ms(2);
        }
    }
}
