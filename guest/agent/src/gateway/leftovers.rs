//! Connections of a gateway before this one, which was killed. Their programs may only wait to read, and would wait for ever.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};

use super::packet::{self, Key, GUEST};
use super::tun::Tun;
use crate::sys::random;

/// The kernel sends at most so many answers a second.
const MAX_LEFT: usize = 1_024;
const LISTENS: &str = "0A";
/// Its packet is repeated, and asked for anew.
const OPENS: &str = "02";
const IS_OVER: &str = "06";

/// In the network namespace of the process.
pub fn list() -> Vec<Key> {
    let files = ["/proc/net/tcp", "/proc/net/tcp6"];
    let open = |path| std::fs::File::open(path).ok();
    let lines = files.into_iter().filter_map(open).flat_map(|file| {
        let lines = BufReader::new(file).lines();
        lines.map_while(Result::ok)
    });
    let keys = lines.filter_map(|line| read(&line));
    keys.take(MAX_LEFT).collect()
}

/// Each program's kernel is made to say a segment, which nobody knows any more and which is answered with RST.
pub fn reset(keys: &[Key], outer: &Tun) {
    for key in keys {
        let sequence = u32::from_ne_bytes(random());
        outer.write(&packet::question(key, sequence));
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
    let is_left = *key.source.ip() == GUEST && ![LISTENS, OPENS, IS_OVER].contains(&state);
    is_left.then_some(key)
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
        for odd in ["", ":", "x", "  sl  local_address rem_address   st"] {
            assert_eq!(read(odd), None);
        }
    }
}
