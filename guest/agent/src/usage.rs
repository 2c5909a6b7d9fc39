//! USAGE: how much of its memory and of its root file system the guest uses. The host cannot know either.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use crate::job::{Input, Job, Next, Progress};
use crate::protocol::{Code, Failure};
use crate::record::Writer;

pub const ROOT: &CStr = c"/";

pub struct Measuring;

impl Job for Measuring {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        Progress::next(match record() {
            Some(result) => Next::Done {
                has_end: false,
                result,
            },
            None => {
                let message = "the use of memory or disk cannot be read";
                Next::Failed(Failure::new(Code::Internal, message))
            }
        })
    }
}

/// Total and used bytes, of memory and of the root file system.
fn record() -> Option<Vec<u8>> {
    let memory = parse_memory(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let disk = disk_of(&root_file_system()?);
    let record = Writer::new().u64(memory.0).u64(memory.1);
    Some(record.u64(disk.0).u64(disk.1).finish())
}

/// Cache that can be dropped is not used memory.
fn parse_memory(meminfo: &str) -> Option<(u64, u64)> {
    let bytes_of = |name: &str| {
        let mut lines = meminfo.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = value.split_whitespace().next()?.parse().ok()?;
        kib.checked_mul(1024)
    };
    let total = bytes_of("MemTotal")?;
    let available = bytes_of("MemAvailable")?;
    Some((total, total.saturating_sub(available)))
}

fn disk_of(about: &libc::statvfs) -> (u64, u64) {
    let bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
    let used = about.f_blocks.saturating_sub(about.f_bfree);
    (bytes(about.f_blocks), bytes(used))
}

pub fn root_file_system() -> Option<libc::statvfs> {
    let mut about = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: filled when the call succeeds, and read only then.
    unsafe {
        let is_read = libc::statvfs(ROOT.as_ptr(), about.as_mut_ptr()) == 0;
        is_read.then(|| about.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_can_be_had_is_not_used() {
        let meminfo =
            "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     600 kB\n";
        assert_eq!(parse_memory(meminfo), Some((1_024_000, 409_600)));
        assert_eq!(parse_memory("MemTotal: 1000 kB\n"), None);
        assert_eq!(parse_memory("MemTotal: x kB\nMemAvailable: 1 kB\n"), None);
    }

    #[test]
    fn a_record_has_totals_of_at_least_the_used_bytes() {
        let record = record().unwrap();
        let mut fields = crate::record::Reader::new(&record);
        for _ in ["memory", "disk"] {
            let (total, used) = (fields.u64().unwrap(), fields.u64().unwrap());
            assert!(total > 0 && used <= total);
        }
        assert!(fields.finish().is_ok());
    }
}
