//! The users of the guest to whom packets belong, and the share of the gateway's places that one of them may have.
//!
//! A packet of a TUN has no user. A program at the interface notes the user of its socket in a map, at the protocol and source port; the
//! gateway looks there when it reads the first packet of a connection, or a question. A port that a user's socket has is free for no other
//! user's, so none can be noted in another one's place: also not by a part of a packet, which has no ports.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::bpf::{self, call, code, copy, set, EXIT, MAP_LOOKUP};
use super::packet::{TCP, UDP};
use super::tun::Tun;

pub type Uid = u32;

const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;
const SOCKET_UID: i32 = 47;
const PORTS: u32 = 65_536;
const ROOT: Uid = 0;
/// The user of a packet that none was noted for.
const UNKNOWN: Uid = Uid::MAX;

/// In each place of the map the bits of two users are turned, so that zeros are the unknown one.
type Place = [u32; 2];

#[derive(Clone, Copy)]
pub enum Protocol {
    /// The user of the last packet that begins a connection.
    Tcp,
    /// The user of the last datagram.
    Udp,
}

pub struct Owners {
    map: OwnedFd,
}

impl Owners {
    /// The users of packets that are sent to this interface from now on.
    pub fn note(tun: &Tun) -> io::Result<Owners> {
        let map = bpf::make_map(MAP_TYPE_ARRAY, size_of::<Place>() as u32, PORTS)?;
        let program = bpf::load(PROG_TYPE_SOCKET_FILTER, 0, &program(map.as_raw_fd()))?;
        tun.filter(&program)?;
        Ok(Owners { map })
    }

    /// Packets of other network namespaces belong to the user "nobody".
    pub fn of(&self, protocol: Protocol, port: u16) -> Uid {
        let mut place: Place = [!UNKNOWN; 2];
        let _ = bpf::get(&self.map, u32::from(port), &mut place);
        !place[protocol as usize]
    }
}

/// Whether a user gets one more of `max` places. The last quarter is kept for root, and for users who have less than an eighth.
pub fn may_have(uid: Uid, max: usize, taken: usize, own: impl FnOnce() -> usize) -> bool {
    taken < max - max / 4 || taken < max && (uid == ROOT || own() < max / 8)
}

/// In C, of an IPv4 packet `ip`, with `&ip[n]` read as a u16 in the order of the network:
///
/// ```c
/// uid = ~socket_uid(skb);
/// if (&ip[6] & 0x1fff) return -1;                    // a later part of a packet
/// header = 4 * (ip[0] & 15);
/// if (ip[9] == UDP) at = 1;
/// else if (ip[9] == TCP && (ip[header + 13] & (SYN | ACK)) == SYN) at = 0;
/// else return -1;
/// map[&ip[header]][at] = uid;
/// return -1;                                         // the whole packet is kept
/// ```
///
/// A packet that ends before what is read is dropped.
fn program(map: i32) -> [u64; 32] {
    [
        copy(6, 1),
        call(SOCKET_UID),
        copy(7, 0),
        code(0xa7, 7, 0, 0, -1),
        code(0x28, 0, 0, 0, 6),
        code(0x57, 0, 0, 0, 0x1fff),
        code(0x55, 0, 0, 23, 0), // not 0: to the end
        code(0x30, 0, 0, 0, 0),
        code(0x57, 0, 0, 0, 15),
        code(0x67, 0, 0, 0, 2),
        copy(8, 0),
        code(0x30, 0, 0, 0, 9),
        copy(9, 0),
        code(0x15, 9, 0, 4, UDP as i32),  // to the port
        code(0x55, 9, 0, 15, TCP as i32), // another one: to the end
        code(0x50, 0, 8, 0, 13),
        code(0x57, 0, 0, 0, 0x12),
        code(0x55, 0, 0, 12, 2), // it begins no connection: to the end
        code(0x48, 0, 8, 0, 0),
        code(0x63, 10, 0, -4, 0), // the key, on the stack
        copy(2, 10),
        code(0x07, 2, 0, 0, -4),
        code(0x18, 1, 1, 0, map), // of two words
        0,
        call(MAP_LOOKUP),
        code(0x15, 0, 0, 4, 0), // none: to the end
        code(0x15, 9, 0, 2, UDP as i32),
        code(0x63, 0, 7, 0, 0),
        code(0x05, 0, 0, 1, 0),
        code(0x63, 0, 7, 4, 0),
        set(0, -1),
        EXIT,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many places a user gets while others have `taken`.
    fn places(uid: Uid, mut taken: usize) -> usize {
        let mut own = 0;
        while may_have(uid, 1_024, taken, || own) {
            own += 1;
            taken += 1;
        }
        own
    }

    #[test]
    fn one_user_leaves_places_to_root_and_to_others() {
        assert_eq!(places(ROOT, 0), 1_024);
        assert_eq!(places(1_000, 0), 768);
        assert_eq!(places(1_001, 768), 128);
        assert_eq!(places(1_002, 896), 128);
        assert_eq!((places(ROOT, 768), places(ROOT, 1_024)), (256, 0));
    }
}
