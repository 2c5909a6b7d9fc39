//! Ends of processes, from `waitpid` and nowhere else. As process 1 (or the nearest subreaper) we get every orphan of
//! the guest too; those are reaped and forgotten.

use crate::agent::Agent;
use crate::protocol::Exit;
use crate::sys::monotonic_ns;

impl Agent {
    pub fn reap(&mut self) {
        let mut has_reaped = false;
        loop {
            let mut status = 0;
            // SAFETY: `status` is ours.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
            if pid <= 0 {
                break;
            }
            has_reaped = true;
            if let Some(key) = self.sessions.leader_reaped(pid) {
                self.note_exit(key, status);
            }
        }
        if has_reaped {
            self.cgroups.processes_ended();
            self.look_at_kills();
        }
    }

    fn note_exit(&mut self, key: u32, status: i32) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.exit = Some(exit(status, session.started_ns));
            self.leader_ended(key);
        }
    }
}

fn exit(status: i32, started_ns: u64) -> Exit {
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
