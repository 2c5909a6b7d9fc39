//! PROCESSES and LIST_PROCESSES: every process of the guest, except kernel threads, zombies and the gateway.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use crate::accounts::{self, Names};
use crate::job::{Input, Job, Next, Progress};
use crate::memory;
use crate::record::Writer;
use crate::session::Kind;
use crate::sessions::LeaderLabel;
use crate::start_times::{since_boot_ns, ticks_to_ns, StartTimes};

/// In one step.
const BATCH: usize = 64;
/// A longer command line is cut. Once the whole listing is longer, arguments are left out.
const MAX_LINE_BYTES: u64 = 128 * 1024;
const MAX_LISTING_BYTES: usize = 12 * 1024 * 1024;
/// A command line of nothing but NULs, decoded and encoded, takes less.
const STEP_BYTES: usize = 4 * 1024 * 1024;
const MAX_PROCESSES: usize = 65_000;
/// A user with a longer name, and each once the listing is long, is listed as a number.
const MAX_USER_BYTES: usize = 256;

/// How a process of LIST_PROCESSES was started.
mod process_kind {
    pub const OTHER: u8 = 0;
    pub const EXEC: u8 = 1;
    pub const PTY: u8 = 2;
}

pub struct Processes {
    leaders: BTreeMap<i32, LeaderLabel>,
    gateway: Option<i32>,
    /// For LIST_PROCESSES, and the names once the first step has read them.
    start_times: Option<StartTimes>,
    names: Option<Arc<Names>>,
    /// Not listed yet, the highest first; `None` before the first step.
    pids: Option<Vec<i32>>,
    count: u32,
    listed_bytes: usize,
}

impl Processes {
    /// With `start_times`, each process has its user, start and kind.
    pub fn new(
        leaders: BTreeMap<i32, LeaderLabel>,
        gateway: Option<i32>,
        start_times: Option<StartTimes>,
    ) -> Processes {
        Processes {
            leaders,
            gateway,
            start_times,
            names: None,
            pids: None,
            count: 0,
            listed_bytes: 0,
        }
    }

    fn record(&self, pid: i32) -> Option<Vec<u8>> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let Stat { name, start_ticks } = parse_stat(&stat)?;
        let line = command_line(pid);
        let mut words = line.split(|&byte| byte == 0);
        let cmd = words.next().filter(|word| !word.is_empty());
        let is_full = self.listed_bytes >= MAX_LISTING_BYTES;
        let args: Vec<&[u8]> = if cmd.is_some() && !is_full {
            words.collect()
        } else {
            Vec::new()
        };
        let leader = self.leaders.get(&pid);
        let tag = leader.map_or("", |leader| leader.tag.as_str());
        let record = Writer::new()
            .u32(pid as u32)
            .str(tag)
            .str(cmd.unwrap_or(name))
            .list(&args);
        let Some(start_times) = &self.start_times else {
            return Some(record.bare());
        };
        let start_ns = leader.map_or(ticks_to_ns(start_ticks), |leader| {
            since_boot_ns(leader.started_ns)
        });
        let user = self.user(effective_uid(pid)?, is_full);
        let record = record.str(user).u64(start_times.unix_ms(start_ns));
        Some(record.u8(kind_of(leader)).bare())
    }

    fn user(&self, uid: u32, is_full: bool) -> Vec<u8> {
        let names = self.names.as_ref().filter(|_| !is_full);
        let name = names.map(|names| names.user(uid));
        name.filter(|name| name.len() <= MAX_USER_BYTES)
            .unwrap_or_else(|| uid.to_string().into_bytes())
    }
}

impl Job for Processes {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        if let Err(failure) = memory::require(STEP_BYTES) {
            return Progress::next(Next::Failed(failure));
        }
        if self.start_times.is_some() && self.names.is_none() {
            self.names = Some(accounts::names());
        }
        let mut pids = self.pids.take().unwrap_or_else(all_pids);
        let mut data = Vec::new();
        for pid in pids
            .split_off(pids.len().saturating_sub(BATCH))
            .into_iter()
            .rev()
        {
            if self.gateway == Some(pid) {
                continue;
            }
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

/// Children of a command are `other`, too.
fn kind_of(leader: Option<&LeaderLabel>) -> u8 {
    match leader.map(|leader| leader.kind) {
        Some(Kind::Foreground | Kind::Background) => process_kind::EXEC,
        Some(Kind::Terminal) => process_kind::PTY,
        None => process_kind::OTHER,
    }
}

/// Not the owner of its folder in /proc, which is root where its memory may not be dumped.
fn effective_uid(pid: i32) -> Option<u32> {
    parse_uid(&std::fs::read(format!("/proc/{pid}/status")).ok()?)
}

/// The second of four numbers: real, effective, saved, and of file systems. The name in a line before it is escaped.
fn parse_uid(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let uids = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
    let uids = std::str::from_utf8(uids).ok()?;
    uids.split_whitespace().nth(1)?.parse().ok()
}

struct Stat<'a> {
    name: &'a [u8],
    /// From boot.
    start_ticks: u64,
}

/// Nothing of a kernel thread or a zombie.
fn parse_stat(stat: &[u8]) -> Option<Stat<'_>> {
    const PF_KTHREAD: u32 = 0x0020_0000;
    // The name may contain anything, parentheses too.
    let opening = stat.iter().position(|&byte| byte == b'(')?;
    let closing = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(closing + 2..)?).ok()?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let flags: u32 = fields.get(6)?.parse().ok()?;
    let is_living = !matches!(fields[0], "Z" | "X");
    let stat = Stat {
        name: stat.get(opening + 1..closing)?,
        start_ticks: fields.get(19)?.parse().ok()?,
    };
    (is_living && flags & PF_KTHREAD == 0).then_some(stat)
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
            let rest = "0 0 0 0 0 0 0 0 20 0 1 0 4321 0";
            format!("7 ({name}) {state} 1 7 7 0 -1 {flags} {rest}\n").into_bytes()
        };
        let parsed = |line: &[u8]| parse_stat(line).map(|it| (it.name.to_vec(), it.start_ticks));
        assert_eq!(
            parsed(&line("a) R (b", "S", 4_194_560)),
            Some((b"a) R (b".to_vec(), 4_321))
        );
        assert_eq!(parsed(&line("gone", "Z", 0)), None);
        assert_eq!(parsed(&line("kworker/0:1", "I", 0x0020_8040)), None);
        assert_eq!(parsed(b"7 (x"), None);
        assert_eq!(
            parsed(b") S 1 7 7 0 -1 0 ("),
            None,
            "it may be a file that root put there"
        );
        assert_eq!(parsed(b""), None);
    }

    #[test]
    fn the_effective_uid_is_the_second_one() {
        let status = b"Name:\tUid:\\n1\nUmask:\t0022\nUid:\t1000\t0\t7\t8\nGid:\t5\t5\t5\t5\n";
        assert_eq!(parse_uid(status), Some(0));
        for bad in [
            &b""[..],
            b"Uid:\t7\n",
            b"Uid:\t7\t-1\n",
            b"Uid:\t7\t4294967296\n",
        ] {
            assert_eq!(parse_uid(bad), None);
        }
    }

    #[test]
    fn a_long_name_is_listed_as_a_number() {
        let mut job = Processes::new(BTreeMap::new(), None, Some(StartTimes::new()));
        assert_eq!(job.user(0, false), b"0", "no names are read yet");
        job.names = Some(accounts::names());
        assert_eq!(job.user(0, false), b"root");
        assert_eq!(job.user(0, true), b"0");
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
        let label = LeaderLabel {
            tag: "proc-1".into(),
            kind: Kind::Terminal,
            started_ns: 0,
        };
        let mut job = Processes::new(BTreeMap::from([(own, label)]), None, None);
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
        let mut without = Processes::new(BTreeMap::new(), Some(own), None);
        without.pids = Some(vec![own]);
        without.step(vec![]);
        assert_eq!(without.count, 0, "the gateway is not listed");
    }
}
