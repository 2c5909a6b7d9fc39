//! PROCESSES: every process of the guest, except kernel threads and zombies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

use crate::job::{Input, Job, Next, Progress};
use crate::memory;
use crate::record::Writer;

/// In one step.
const BATCH: usize = 64;
/// A longer command line is cut. Once the whole listing is longer, arguments are left out.
const MAX_LINE_BYTES: u64 = 128 * 1024;
const MAX_LISTING_BYTES: usize = 12 * 1024 * 1024;
/// A command line of nothing but NULs, decoded and encoded, takes less.
const STEP_BYTES: usize = 4 * 1024 * 1024;
const MAX_PROCESSES: usize = 65_000;

pub struct Processes {
    /// The tags of session leaders.
    tags: BTreeMap<i32, String>,
    /// Not listed yet, the highest first; `None` before the first step.
    pids: Option<Vec<i32>>,
    count: u32,
    listed_bytes: usize,
}

impl Processes {
    pub fn new(tags: BTreeMap<i32, String>) -> Processes {
        Processes {
            tags,
            pids: None,
            count: 0,
            listed_bytes: 0,
        }
    }

    fn record(&self, pid: i32) -> Option<Vec<u8>> {
        let name = living_name(pid)?;
        let line = command_line(pid);
        let mut words = line.split(|&byte| byte == 0);
        let cmd = words.next().filter(|word| !word.is_empty());
        let args: Vec<&[u8]> = if cmd.is_some() && self.listed_bytes < MAX_LISTING_BYTES {
            words.collect()
        } else {
            Vec::new()
        };
        let tag = self.tags.get(&pid).map_or("", String::as_str);
        let head = Writer::new().u32(pid as u32).str(tag);
        Some(head.str(cmd.unwrap_or(&name)).list(&args).bare())
    }
}

impl Job for Processes {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        if let Err(failure) = memory::require(STEP_BYTES) {
            return Progress::next(Next::Failed(failure));
        }
        let mut pids = self.pids.take().unwrap_or_else(all_pids);
        let mut data = Vec::new();
        for pid in pids
            .split_off(pids.len().saturating_sub(BATCH))
            .into_iter()
            .rev()
        {
            if let Some(record) = self.record(pid) {
                self.count += 1;
                self.listed_bytes += record.len();
                if let Err(failure) = memory::extend(&mut data, &record) {
                    return Progress::next(Next::Failed(failure));
                }
            }
        }
        let next = if pids.is_empty() {
            Next::Done {
                has_end: false,
                result: Writer::new().u32(self.count).finish(),
            }
        } else {
            Next::Continue
        };
        self.pids = Some(pids);
        Progress::data(data, next)
    }
}

/// Sorted, the lowest last.
fn all_pids() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<i32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .take(MAX_PROCESSES)
        .collect();
    pids.sort_unstable_by(|a, b| b.cmp(a));
    pids
}

/// The name, unless the process is a kernel thread or a zombie.
fn living_name(pid: i32) -> Option<Vec<u8>> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&stat).map(<[u8]>::to_vec)
}

fn parse_stat(stat: &[u8]) -> Option<&[u8]> {
    const PF_KTHREAD: u32 = 0x0020_0000;
    // The name may contain anything, parentheses too.
    let opening = stat.iter().position(|&byte| byte == b'(')?;
    let closing = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(closing + 2..)?).ok()?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let flags: u32 = fields.get(6)?.parse().ok()?;
    let is_living = !matches!(fields[0], "Z" | "X");
    let name = stat.get(opening + 1..closing)?;
    (is_living && flags & PF_KTHREAD == 0).then_some(name)
}

/// Arguments, each but the last followed by a NUL.
fn command_line(pid: i32) -> Vec<u8> {
    let mut line = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cmdline")) {
        let _ = file.take(MAX_LINE_BYTES).read_to_end(&mut line);
    }
    without_trailing_nuls(line)
}

/// Each argument is followed by a NUL. A process that has shortened its title leaves many of them, which are no arguments;
/// an empty last argument leaves two.
fn without_trailing_nuls(mut line: Vec<u8>) -> Vec<u8> {
    let length = line
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |at| at + 1);
    let nuls = line.len() - length;
    let kept = if nuls > 2 { 0 } else { nuls.saturating_sub(1) };
    line.truncate(length + kept);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_has_name_state_and_flags() {
        let line = |name: &str, state: &str, flags: u32| {
            format!("7 ({name}) {state} 1 7 7 0 -1 {flags} 0 0 0\n").into_bytes()
        };
        assert_eq!(
            parse_stat(&line("a) R (b", "S", 4_194_560)),
            Some(b"a) R (b".as_slice())
        );
        assert_eq!(parse_stat(&line("gone", "Z", 0)), None);
        assert_eq!(parse_stat(&line("kworker/0:1", "I", 0x0020_8040)), None);
        assert_eq!(parse_stat(b"7 (x"), None);
        assert_eq!(
            parse_stat(b") S 1 7 7 0 -1 0 ("),
            None,
            "it may be a file that root put there"
        );
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn nuls_after_a_shortened_title_are_no_arguments() {
        for (line, expected) in [
            (&b"postgres: idle\0\0\0\0\0"[..], &b"postgres: idle"[..]),
            (b"a\0b\0\0\0", b"a\0b"),
            (b"a\0\0", b"a\0"),
            (b"a\0\0b\0", b"a\0\0b"),
            (b"a\0", b"a"),
            (b"a cut li", b"a cut li"),
            (b"\0\0\0\0", b""),
            (b"", b""),
        ] {
            assert_eq!(without_trailing_nuls(line.to_vec()), expected, "{line:?}");
        }
    }

    #[test]
    fn the_listing_has_this_process() {
        let own = std::process::id() as i32;
        let mut job = Processes::new(BTreeMap::from([(own, "proc-1".into())]));
        let record = job.record(own).unwrap();
        assert_eq!(
            &record[..14],
            Writer::new().u32(own as u32).str("proc-1").bare()
        );
        let mut steps = 0;
        while let Next::Continue = job.step(vec![]).next {
            steps += 1;
        }
        assert!(steps < 10_000 && job.count > 0);
    }
}
