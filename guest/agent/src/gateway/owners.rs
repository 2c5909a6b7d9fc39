//! The users of the guest to whom packets belong, and the share of the gateway's places that one of them may have.
//!
//! A packet of a TUN has no user. A program at the interface notes the user of each packet's socket in a map, at the source port; the
//! gateway looks there when it reads the first packet of a connection, or a question.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::bpf::{self, call, code, copy, set, EXIT, MAP_LOOKUP};
use super::tun::Tun;

pub type Uid = u32;

const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;
const SOCKET_UID: i32 = 47;
/// Ports with the same last bits share a place, whose last packet counts.
const PLACES: u32 = 1_024;
const ROOT: Uid = 0;

pub struct Owners {
    map: OwnedFd,
}

impl Owners {
    /// The users of packets that are sent to this interface from now on.
    pub fn note(tun: &Tun) -> io::Result<Owners> {
        let map = bpf::make_map(MAP_TYPE_ARRAY, 4, PLACES)?;
        let program = bpf::load(PROG_TYPE_SOCKET_FILTER, 0, &program(map.as_raw_fd()))?;
        tun.filter(&program)?;
        Ok(Owners { map })
    }

    /// The user of the last packet from such a port. Packets of other network namespaces belong to the user "nobody".
    pub fn of(&self, port: u16) -> Uid {
        let mut uid = Uid::MAX;
        let _ = bpf::get(&self.map, u32::from(port) % PLACES, &mut uid);
        uid
    }
}

/// Whether a user gets one more of `max` places. The last quarter is kept for root, and for users who have less than an eighth.
pub fn may_have(uid: Uid, max: usize, taken: usize, own: impl FnOnce() -> usize) -> bool {
    taken < max - max / 4 || taken < max && (uid == ROOT || own() < max / 8)
}

/// In C: `uid = socket_uid(skb); port = skb[4 * (skb[0] & 15)] as u16; key = port % PLACES; map[key] = uid; return all of skb`.
/// A packet that ends before its ports is dropped.
fn program(map: i32) -> [u64; 19] {
    [
        copy(6, 1),
        call(SOCKET_UID),
        copy(7, 0),
        code(0x30, 0, 0, 0, 0), // the byte at 0
        code(0x57, 0, 0, 0, 15),
        code(0x67, 0, 0, 0, 2),
        copy(8, 0),
        code(0x48, 0, 8, 0, 0), // two bytes behind the header
        code(0x57, 0, 0, 0, PLACES as i32 - 1),
        code(0x63, 10, 0, -4, 0), // the key, on the stack
        copy(2, 10),
        code(0x07, 2, 0, 0, -4),
        code(0x18, 1, 1, 0, map), // of two words
        0,
        call(MAP_LOOKUP),
        code(0x15, 0, 0, 1, 0), // none: to the end
        code(0x63, 0, 7, 0, 0),
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
