//! The time at which a process started, by the clock that the host sets.
//!
//! The kernel counts a process's start from boot, and the count stands still while the guest is saved. So the difference of
//! the clock and the count is noted at boot and after each WAKE, and a start takes the difference of its own time. A program
//! that sets the guest's clock changes no start.

use crate::sys;

/// Two numbers each. Beyond it the oldest goes, and older processes take the difference of the oldest that is left.
const MAX_STEPS: usize = 1_024;
/// Smaller changes are no steps: reading both clocks takes time.
const STEP_MS: u64 = 20;

#[derive(Clone, Copy)]
struct Step {
    since_boot_ns: u64,
    /// Unix time less the time since boot.
    offset_ms: i64,
}

#[derive(Clone)]
pub struct StartTimes {
    steps: Vec<Step>,
}

impl StartTimes {
    pub fn new() -> StartTimes {
        let steps = vec![Step::now()];
        StartTimes { steps }
    }

    /// The clock may have been set.
    pub fn note(&mut self) {
        self.add(Step::now());
    }

    fn add(&mut self, step: Step) {
        let last = self.steps[self.steps.len() - 1];
        if step.offset_ms.abs_diff(last.offset_ms) < STEP_MS {
            return;
        }
        if self.steps.len() == MAX_STEPS {
            self.steps.remove(0);
        }
        self.steps.push(step);
    }

    /// Unix time in milliseconds, of a time since boot.
    pub fn unix_ms(&self, since_boot_ns: u64) -> u64 {
        let later = self
            .steps
            .partition_point(|step| step.since_boot_ns <= since_boot_ns);
        let step = self.steps[later.saturating_sub(1)];
        let since_boot_ms = (since_boot_ns / 1_000_000) as i64;
        u64::try_from(since_boot_ms.saturating_add(step.offset_ms)).unwrap_or(0)
    }
}

impl Default for StartTimes {
    fn default() -> StartTimes {
        StartTimes::new()
    }
}

impl Step {
    fn now() -> Step {
        let since_boot_ns = sys::clock_ns(libc::CLOCK_BOOTTIME);
        let unix_ms = sys::clock_ns(libc::CLOCK_REALTIME) / 1_000_000;
        Step {
            since_boot_ns,
            offset_ms: unix_ms as i64 - (since_boot_ns / 1_000_000) as i64,
        }
    }
}

/// From a time of `sys::monotonic_ns`. The two differ by the time for which a machine was suspended.
pub fn since_boot_ns(monotonic_ns: u64) -> u64 {
    let ahead = sys::clock_ns(libc::CLOCK_BOOTTIME).saturating_sub(sys::monotonic_ns());
    monotonic_ns.saturating_add(ahead)
}

/// From a field of /proc/PID/stat.
pub fn ticks_to_ns(ticks: u64) -> u64 {
    const TICKS_PER_SEC: u64 = 100;
    ticks.saturating_mul(1_000_000_000 / TICKS_PER_SEC)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = 1_000_000_000;

    fn step(since_boot_sec: u64, offset_ms: i64) -> Step {
        Step {
            since_boot_ns: since_boot_sec * SEC,
            offset_ms,
        }
    }

    #[test]
    fn a_start_keeps_its_time_over_steps_of_the_clock() {
        let mut times = StartTimes {
            steps: vec![step(2, 1_000_000)],
        };
        times.add(step(10, 5_000_000));
        times.add(step(20, 5_000_019));
        times.add(step(30, 4_000_000));
        for (at_sec, unix_ms) in [
            (0, 1_000_000),
            (1, 1_001_000),
            (9, 1_009_000),
            (10, 5_010_000),
            (25, 5_025_000),
            (31, 4_031_000),
        ] {
            assert_eq!(times.unix_ms(at_sec * SEC), unix_ms, "{at_sec}");
        }
        assert_eq!(times.steps.len(), 3);
    }

    #[test]
    fn steps_are_bounded_and_times_are_not_negative() {
        let mut times = StartTimes {
            steps: vec![step(0, -9_000_000)],
        };
        assert_eq!(times.unix_ms(SEC), 0);
        for second in 1..=3_000 {
            times.add(step(second, second as i64 * 1_000));
        }
        assert_eq!(times.steps.len(), MAX_STEPS);
        assert_eq!(times.unix_ms(3_000 * SEC), 6_000_000);
        assert_eq!(times.unix_ms(0), times.steps[0].offset_ms as u64);
        assert_eq!(times.unix_ms(u64::MAX), u64::MAX / 1_000_000 + 3_000_000);
    }

    #[test]
    fn the_time_of_now_is_now() {
        let times = StartTimes::new();
        let now = times.unix_ms(since_boot_ns(sys::monotonic_ns()));
        let clock = sys::clock_ns(libc::CLOCK_REALTIME) / 1_000_000;
        assert!(now.abs_diff(clock) < 60_000, "{now} {clock}");
    }
}
