//! PORTS: the TCP sockets of the guest on which a server listens, from the kernel's tables.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::job::{Input, Job, Next, Progress};
use crate::memory;
use crate::record::Writer;

const MAX_PORTS: usize = 1_000;
/// The length read of each table. The kernel lists those that listen first, 150 bytes each.
const MAX_TABLE_BYTES: u64 = 1024 * 1024;
const MAX_PROCESSES: usize = 65_000;
/// Processes in one step, and descriptors of each.
const BATCH: usize = 32;
const MAX_DESCRIPTORS: usize = 16_384;
const MAX_CMD_BYTES: u64 = 256;
/// A step's tables and names take less.
const STEP_BYTES: usize = 4 * 1024 * 1024;
const LISTEN: &str = "0A";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Listening {
    port: u16,
    address: IpAddr,
    inode: u64,
    /// 0: its process was not found.
    pid: u32,
    cmd: Vec<u8>,
}

#[derive(Default)]
pub struct Ports {
    /// `None` before the first step.
    found: Option<Found>,
}

struct Found {
    sockets: Vec<Listening>,
    /// Sockets whose process is looked for, by inode.
    unknown: BTreeMap<u64, usize>,
    /// Not looked at yet, the lowest last.
    pids: Vec<u32>,
}

impl Job for Ports {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        if let Err(failure) = memory::require(STEP_BYTES) {
            return Progress::next(Next::Failed(failure));
        }
        let found = self.found.get_or_insert_with(Found::read);
        if !found.look_for_processes() {
            return Progress::next(Next::Continue);
        }
        let data = found.sockets.iter().flat_map(record).collect();
        let count = found.sockets.len() as u32;
        let next = Next::Done {
            has_end: false,
            result: Writer::new().u32(count).finish(),
        };
        Progress::data(data, next)
    }
}

fn record(socket: &Listening) -> Vec<u8> {
    port_record(
        socket.port,
        &socket.address.to_string(),
        socket.pid,
        &socket.cmd,
    )
}

/// One item of the listing.
pub fn port_record(port: u16, address: &str, pid: u32, cmd: &[u8]) -> Vec<u8> {
    let record = Writer::new().u16(port).str(address);
    record.u32(pid).str(cmd).bare()
}

impl Found {
    fn read() -> Found {
        let mut sockets = listening(&table("/proc/net/tcp"));
        sockets.extend(listening(&table("/proc/net/tcp6")));
        sockets.sort_by_key(|socket| (socket.port, socket.address));
        sockets.dedup_by_key(|socket| (socket.port, socket.address));
        sockets.truncate(MAX_PORTS);
        let unknown = sockets.iter().enumerate();
        let unknown = unknown.map(|(at, socket)| (socket.inode, at)).collect();
        Found {
            sockets,
            unknown,
            pids: pids(),
        }
    }

    /// True: every process is looked at, or no more need be.
    fn look_for_processes(&mut self) -> bool {
        for _ in 0..BATCH {
            let Some(pid) = self.pids.pop().filter(|_| !self.unknown.is_empty()) else {
                return true;
            };
            for inode in socket_inodes(pid) {
                if let Some(at) = self.unknown.remove(&inode) {
                    self.sockets[at].pid = pid;
                    self.sockets[at].cmd = command_name(pid);
                }
            }
        }
        false
    }
}

fn table(path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(MAX_TABLE_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn listening(table: &str) -> Vec<Listening> {
    table.lines().skip(1).filter_map(parse).collect()
}

/// `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode`
fn parse(line: &str) -> Option<Listening> {
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    fields.nth(1).filter(|&state| state == LISTEN)?;
    Some(Listening {
        port: u16::from_str_radix(port, 16).ok()?,
        address: parse_address(address)?,
        inode: fields.nth(5)?.parse().ok()?,
        pid: 0,
        cmd: Vec::new(),
    })
}

/// The words of an address, each printed as a number of this machine's byte order.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = text.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
    };
    match text.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(word(0)?))),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(bytes)))
        }
        _ => None,
    }
}

/// The lowest last.
fn pids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .take(MAX_PROCESSES)
        .collect();
    pids.sort_unstable_by(|a, b| b.cmp(a));
    pids
}

fn socket_inodes(pid: u32) -> impl Iterator<Item = u64> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let entries = entries.into_iter().flatten().flatten();
    entries.take(MAX_DESCRIPTORS).filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?;
        inode.strip_suffix(']')?.parse().ok()
    })
}

/// The first word of its command line, or the kernel's name of it.
fn command_name(pid: u32) -> Vec<u8> {
    let read = |file: &str| {
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(format!("/proc/{pid}/{file}")) {
            let _ = file.take(MAX_CMD_BYTES).read_to_end(&mut bytes);
        }
        let mut words = bytes.split(|&byte| byte == 0 || byte == b'\n');
        words.next().unwrap_or_default().to_vec()
    };
    Some(read("cmdline"))
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| read("comm"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn lines_of_both_tables_are_read_and_only_those_that_listen() {
        let four = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 12345 1 0 100";
        let found = parse(four).unwrap();
        assert_eq!(
            (found.port, found.address, found.inode),
            (8080, "127.0.0.1".parse().unwrap(), 12_345)
        );
        let six = "1: 00000000000000000000000001000000:0016 0:0 0A 0:0 00:0 0 0 0 7 1";
        assert_eq!(
            parse(six).unwrap().address,
            "::1".parse::<IpAddr>().unwrap()
        );
        for odd in [
            &four.replace(" 0A ", " 01 "),
            "",
            "x",
            "1: 0100007F 0:0 0A 0:0 00:0 0 0 0 7",
            "1: ü100007F:0016 0:0 0A 0:0 00:0 0 0 0 7",
        ] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn the_listing_has_a_listener_of_this_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut job = Ports::default();
        let mut steps = 0;
        let data = loop {
            let progress = job.step(vec![]);
            steps += 1;
            assert!(steps < 100_000);
            if let Next::Done { .. } = progress.next {
                break progress.data;
            }
        };
        let own = command_name(std::process::id());
        let expected = port_record(port, "127.0.0.1", std::process::id(), &own);
        assert!(!own.is_empty());
        assert!(data
            .windows(expected.len())
            .any(|part| part == expected.as_slice()));
    }
}
