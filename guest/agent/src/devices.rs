//! Descriptors of the clock chip and of the random generator for WAKE, held from boot on: root inside may remove the nodes in
//! /dev, or mount over it.

use std::ffi::{c_int, CStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::mounts;
use crate::sys::{self, check};

pub const MAX_ENTROPY_BYTES: usize = 4_096;

/// The kernel's `struct rand_pool_info` with room for its bytes.
#[repr(C)]
struct RandPoolInfo {
    entropy_bits: c_int,
    size_bytes: c_int,
    bytes: [u8; MAX_ENTROPY_BYTES],
}

/// The kernel's random generator.
pub struct Random {
    fd: OwnedFd,
}

impl Random {
    pub fn open() -> io::Result<Random> {
        let fd = sys::open(c"/dev/random", libc::O_WRONLY)?;
        Ok(Random { fd })
    }

    /// Adds the bytes with credit, and reseeds every generator of the kernel.
    pub fn reseed(&self, entropy: &[u8]) -> io::Result<()> {
        const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
        const RNDRESEEDCRNG: libc::c_ulong = 0x5207;
        let mut pool = RandPoolInfo {
            entropy_bits: 8 * entropy.len() as c_int,
            size_bytes: entropy.len() as c_int,
            bytes: [0; MAX_ENTROPY_BYTES],
        };
        pool.bytes[..entropy.len()].copy_from_slice(entropy);
        let fd = self.fd.as_raw_fd();
        // SAFETY: `pool` is what the request reads.
        check(unsafe { libc::ioctl(fd, RNDADDENTROPY as _, &pool) })?;
        // SAFETY: the request has no argument.
        check(unsafe { libc::ioctl(fd, RNDRESEEDCRNG as _) }).map(drop)
    }
}

/// The clock chip, which keeps the time of a machine that is off. It is opened for each use, since only one process can have
/// it open: by a node in a file system of the agent's own.
pub struct ClockChip {
    nodes: OwnedFd,
}

impl ClockChip {
    const NODE: &'static CStr = c"rtc0";

    /// `None`: the machine has none.
    pub fn find() -> io::Result<Option<ClockChip>> {
        let Ok(numbers) = std::fs::read_to_string("/sys/class/rtc/rtc0/dev") else {
            return Ok(None);
        };
        let parsed = numbers.trim().split_once(':').and_then(|(major, minor)| {
            Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
        });
        let device = parsed.ok_or(io::ErrorKind::InvalidData)?;
        let nodes = mounts::detached(c"tmpfs")?;
        let mode = libc::S_IFCHR | 0o600;
        // SAFETY: the name ends in NUL.
        check(unsafe { libc::mknodat(nodes.as_raw_fd(), Self::NODE.as_ptr(), mode, device) })?;
        Ok(Some(ClockChip { nodes }))
    }

    /// To the system's time, rounded to seconds.
    pub fn set(&self) -> io::Result<()> {
        const RTC_SET_TIME: libc::c_ulong = 0x4024_700a;
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let chip = sys::open_at(&self.nodes, Self::NODE, libc::O_RDONLY)?;
        // SAFETY: both structures are ours. The kernel's `struct rtc_time` is the beginning of `tm`.
        unsafe {
            check(libc::clock_gettime(libc::CLOCK_REALTIME, &mut now))?;
            let seconds = now.tv_sec + i64::from(now.tv_nsec >= 500_000_000);
            check(libc::ioctl(
                chip.as_raw_fd(),
                RTC_SET_TIME as _,
                &civil_time(seconds),
            ))
            .map(drop)
        }
    }
}

/// Seconds since 1970 as a date and a time in UTC, without the fields that the clock chip does not keep. `gmtime_r` would link
/// the C library's time zones, and with them its scanner of floating point numbers.
fn civil_time(seconds: i64) -> libc::tm {
    const DAY: i64 = 86_400;
    let (days, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    // Years begin in March here, so the leap day is the last of its year. An era is 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let month = (shifted_month + 2) % 12;
    let year = 400 * era + year_of_era + i64::from(month < 2);
    // SAFETY: all bits zero are a value of it.
    let mut time: libc::tm = unsafe { std::mem::zeroed() };
    time.tm_year = (year - 1_900) as c_int;
    time.tm_mon = month as c_int;
    time.tm_mday = (day_of_year - (153 * shifted_month + 2) / 5 + 1) as c_int;
    time.tm_hour = (second / 3_600) as c_int;
    time.tm_min = (second / 60 % 60) as c_int;
    time.tm_sec = (second % 60) as c_int;
    time
}

#[cfg(test)]
mod tests {
    use super::civil_time;

    #[test]
    fn times_of_the_clock_chip_are_those_of_the_c_library() {
        // Each quarter of a day and a second of 1 600 years, over leap years and their exceptions.
        for step in -1_000_000..1_400_000_i64 {
            let seconds = step * (86_400 / 4 + 1);
            let ours = civil_time(seconds);
            // SAFETY: `theirs` is written by the call.
            let theirs = unsafe {
                let mut theirs: libc::tm = std::mem::zeroed();
                assert!(!libc::gmtime_r(&seconds, &mut theirs).is_null());
                theirs
            };
            let fields = |time: &libc::tm| {
                let date = (time.tm_year, time.tm_mon, time.tm_mday);
                (date, time.tm_hour, time.tm_min, time.tm_sec)
            };
            assert_eq!(fields(&ours), fields(&theirs), "{seconds}");
        }
    }
}
