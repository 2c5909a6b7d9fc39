//! Ends of processes, from `waitpid`. As process 1, or as a subreaper in tests, we also reap every orphan of the guest;
//! those are ignored.

use crate::protocol::Exit;
use crate::sys::monotonic_ns;

/// A process that has ended, and its status.
pub fn next() -> Option<(libc::pid_t, i32)> {
    let mut status = 0;
    // SAFETY: `status` is ours.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

pub fn exit(status: i32, started_ns: u64) -> Exit {
    let (code, signal) = if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        (128 + signal, signal as u8)
    } else {
        (libc::WEXITSTATUS(status), 0)
    };
    let duration_us = monotonic_ns().saturating_sub(started_ns) / 1_000;
    Exit {
        code,
        signal,
        duration_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_code_or_a_signal() {
        let now = monotonic_ns();
        assert_eq!((exit(3 << 8, now).code, exit(3 << 8, now).signal), (3, 0));
        assert_eq!((exit(9, now).code, exit(9, now).signal), (137, 9));
        // With a core dump.
        assert_eq!(
            (exit(11 | 128, now).code, exit(11 | 128, now).signal),
            (139, 11)
        );
    }
}
