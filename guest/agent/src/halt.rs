//! Power-off and reboot from inside the guest: `poweroff` and `reboot` are signals to process 1 (signals.rs).

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
