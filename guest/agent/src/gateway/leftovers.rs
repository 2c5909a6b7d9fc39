//! Connections of a gateway before this one, which was killed. Their programs may only wait to read, and would wait for ever.
//!
//! The kernel of each is made to say a segment, which nobody knows any more and which is answered with RST. A question or an
//! answer may be lost in a full queue of an interface. So those that the kernel still has are asked again, in rounds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::net::{Ipv4Addr, SocketAddrV4};

use super::flows::MAX_FLOWS;
use super::packet::{self, Key, GUEST};
use super::tun::Tun;
use crate::sys::{monotonic_ns, random};

/// The gateway before had at most `MAX_FLOWS`; programs may have closed others that are not over.
const MAX_LEFT: usize = 2 * MAX_FLOWS;
const ROUNDS: u32 = 5;
const ROUND_NS: u64 = 1_000_000_000;
/// Questions before the answers are read: an interface's queue has 500 packets.
const BATCH: usize = 32;
const LISTENS: &str = "0A";
/// Its packet is repeated, and asked for anew.
const OPENS: &str = "02";
const IS_OVER: &str = "06";

#[derive(Default)]
pub struct Leftovers {
    /// The kernel's tables of the network namespace in which they were opened.
    tables: Vec<File>,
    left: BTreeMap<Key, u32>,
    /// Keys of `left` that this round has not asked yet.
    asking: Vec<Key>,
    /// Rounds that have begun.
    rounds: u32,
    due_ns: Option<u64>,
}

impl Leftovers {
    /// In the network namespace of the process, before the first connection of this gateway.
    pub fn list() -> Leftovers {
        let paths = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter();
        let mut leftovers = Leftovers {
            tables: paths.filter_map(|path| File::open(path).ok()).collect(),
            ..Leftovers::default()
        };
        leftovers.left = leftovers.read_tables(|_| true);
        leftovers.begin_round();
        leftovers
    }

    /// A program opens a connection of this key: the one before is over.
    pub fn forget(&mut self, key: &Key) {
        self.left.remove(key);
    }

    /// Whether some are to be asked now.
    pub fn has_turn(&self) -> bool {
        !self.asking.is_empty()
    }

    pub fn take_turn(&mut self, outer: &Tun) {
        for key in self
            .asking
            .split_off(self.asking.len().saturating_sub(BATCH))
        {
            if self.left.contains_key(&key) {
                let number = || u32::from_ne_bytes(random());
                outer.write(&packet::question(&key, number(), number()));
            }
        }
    }

    pub fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// At `due_ns`: the next round, of those that the kernel still has.
    pub fn look_again(&mut self, now_ns: u64) {
        if self.due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            let before = std::mem::take(&mut self.left);
            self.left = self.read_tables(|key| before.contains_key(key));
            self.begin_round();
        }
    }

    fn begin_round(&mut self) {
        if self.left.is_empty() || self.rounds == ROUNDS {
            *self = Leftovers::default();
            return;
        }
        self.rounds += 1;
        self.asking = self.left.keys().copied().collect();
        self.due_ns = Some(monotonic_ns() + ROUND_NS);
    }

    fn read_tables(&mut self, is_wanted: impl Fn(&Key) -> bool) -> BTreeMap<Key, u32> {
        let mut keys = BTreeMap::new();
        for table in &mut self.tables {
            if table.rewind().is_err() {
                continue;
            }
            let lines = BufReader::new(table).lines().map_while(Result::ok);
            for key in lines.filter_map(|line| read(&line)) {
                if keys.len() < MAX_LEFT && is_wanted(&key) {
                    keys.insert(key, 0);
                }
            }
        }
        keys
    }
}

/// A line of the kernel's table: number, own address, other address, state and more.
fn read(line: &str) -> Option<Key> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (own, other, state) = (fields.next()?, fields.next()?, fields.next()?);
    let key = Key {
        source: address(own)?,
        destination: address(other)?,
    };
    let is_outbound = *key.source.ip() == GUEST && *key.destination.ip() != GUEST;
    (is_outbound && ![LISTENS, OPENS, IS_OVER].contains(&state)).then_some(key)
}

/// `020000C0:8AE2`, or the same of IPv6, whose last word is the address of an IPv4 connection.
fn address(text: &str) -> Option<SocketAddrV4> {
    let (ip, port) = text.split_once(':')?;
    let prefix = match ip.len() {
        8 => "",
        32 => "0000000000000000FFFF0000",
        _ => return None,
    };
    let word = u32::from_str_radix(ip.strip_prefix(prefix)?, 16).ok()?;
    let ip = Ipv4Addr::from(word.to_ne_bytes());
    Some(SocketAddrV4::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_through_the_gateway_are_told_from_all_others() {
        let line = |own: &str, other: &str, state: &str| {
            read(&format!(
                "  12: {own} {other} {state} 00000000:00000000 00:00000000"
            ))
        };
        let key = Key {
            source: SocketAddrV4::new(GUEST, 0x8ae2),
            destination: SocketAddrV4::new(Ipv4Addr::new(93, 184, 216, 34), 443),
        };
        let (own, other) = ("020000C0:8AE2", "22D8B85D:01BB");
        assert_eq!(line(own, other, "01"), Some(key));
        let six = "0000000000000000FFFF0000";
        assert_eq!(
            line(&format!("{six}{own}"), &format!("{six}{other}"), "08"),
            Some(key)
        );
        assert_eq!(line(own, other, "02"), None, "its first packet comes again");
        assert_eq!(line("0100007F:8AE2", other, "01"), None);
        assert_eq!(line(own, "020000C0:01BB", "01"), None, "within the guest");
        for odd in ["", ":", "x", "  sl  local_address rem_address   st"] {
            assert_eq!(read(odd), None);
        }
    }
}
