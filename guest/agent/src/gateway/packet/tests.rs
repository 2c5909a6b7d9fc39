//! Packets as the kernel makes them, and those of the gateway.

use super::*;

const CLIENT: SocketAddrV4 = SocketAddrV4::new(GUEST, 40_000);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(93, 184, 216, 34), 443);
const KEY: Key = Key {
    source: CLIENT,
    destination: SERVER,
};

/// A packet of the guest without the header before it.
fn bare(packet: Vec<u8>) -> Vec<u8> {
    assert_eq!(packet[..VNET_BYTES], [0; VNET_BYTES]);
    packet[VNET_BYTES..].to_vec()
}

fn syn() -> Vec<u8> {
    bare(segment(CLIENT, SERVER, 7, 0, SYN, &[]))
}

/// 0 when the checksum of an IPv4 header, or of a segment with its pseudo header, is right.
fn header_sum(packet: &[u8]) -> u16 {
    checksum(&[&packet[..IP_BYTES]])
}

fn segment_sum(packet: &[u8]) -> u16 {
    let length = (packet.len() - IP_BYTES) as u8;
    checksum(&[&packet[12..20], &[0, TCP, 0, length], &packet[IP_BYTES..]])
}

#[test]
fn a_connection_begins_with_a_syn_alone() {
    for (flags, is_opening) in [(SYN, true), (SYN | ACK, false), (ACK, false), (RST, false)] {
        let bytes = bare(segment(CLIENT, SERVER, 7, 9, flags, &[]));
        let read = Packet::read(&bytes)
            .and_then(|packet| packet.segment())
            .unwrap();
        assert_eq!((read.key, read.is_opening()), (KEY, is_opening), "{flags}");
        assert_eq!(read.is_reset(), flags == RST);
        assert_eq!((header_sum(&bytes), segment_sum(&bytes)), (0, 0));
    }
}

#[test]
fn a_refusal_acknowledges_the_syn() {
    let bytes = syn();
    let refusal = bare(Packet::read(&bytes).unwrap().segment().unwrap().refusal());
    assert_eq!((header_sum(&refusal), segment_sum(&refusal)), (0, 0));
    let read = Packet::read(&refusal).unwrap().segment().unwrap();
    assert_eq!((read.key.source, read.key.destination), (SERVER, CLIENT));
    assert!(read.is_reset());
    assert_eq!(refusal[IP_BYTES + 8..IP_BYTES + 12], 8u32.to_be_bytes());
}

#[test]
fn a_question_is_a_byte_of_the_other_end() {
    let bytes = bare(question(&KEY, 7, 9));
    assert_eq!((header_sum(&bytes), segment_sum(&bytes)), (0, 0));
    let read = Packet::read(&bytes).unwrap().segment().unwrap();
    assert_eq!((read.key.source, read.key.destination), (SERVER, CLIENT));
    assert_eq!((read.flags, read.payload_bytes), (ACK, 1));
}

#[test]
fn an_error_quotes_the_packet_and_comes_from_the_gateway() {
    let bytes = syn();
    for code in [Unreachable::Host, Unreachable::Prohibited] {
        let error = bare(Packet::read(&bytes).unwrap().unreachable(code));
        let read = Packet::read(&error).unwrap();
        assert_eq!(
            (read.protocol, read.source, read.destination),
            (ICMP, GATEWAY, GUEST)
        );
        assert_eq!(read.payload[..2], [3, code as u8]);
        assert_eq!(checksum(&[read.payload]), 0);
        assert_eq!(read.payload[8..], bytes[..IP_BYTES + 8]);
        assert!(!read.may_be_refused(), "no error about an error");
    }
}

#[test]
fn a_datagram_is_read_as_it_was_made() {
    for length in [0, 1, 512, 65_507] {
        let payload = vec![b'x'; length];
        let bytes = bare(datagram(CLIENT, SERVER, &payload));
        let packet = Packet::read(&bytes).unwrap();
        assert!(packet.may_be_refused() && packet.segment().is_none());
        let read = packet.datagram().unwrap();
        assert_eq!((read.key, read.payload), (KEY, &payload[..]));
    }
}

#[test]
fn nobody_is_told_about_packets_to_many_nor_about_later_parts() {
    let to = |ip: [u8; 4]| bare(datagram(CLIENT, SocketAddrV4::new(ip.into(), 9), b"x"));
    let may = |bytes: &[u8]| Packet::read(bytes).unwrap().may_be_refused();
    assert!(may(&to([8, 8, 8, 8])));
    for many in [[224, 0, 0, 251], [255, 255, 255, 255], [0, 0, 0, 0]] {
        assert!(!may(&to(many)), "{many:?}");
    }
    let mut part = to([8, 8, 8, 8]);
    part[6] = 0x20; // the first of several
    assert!(may(&part) && Packet::read(&part).unwrap().datagram().is_none());
    part[7] = 1;
    assert!(!may(&part));
    let mut ping = made(ICMP, GUEST, *SERVER.ip(), &[8, 0, 0, 0])[VNET_BYTES..].to_vec();
    assert!(may(&ping));
    ping[IP_BYTES] = 0;
    assert!(!may(&ping), "an answer to a ping");
}

#[test]
fn any_bytes_are_read_or_not_and_nothing_else() {
    let seed: [u8; 4] = crate::sys::random();
    let mut state = u32::from_ne_bytes(seed) | 1;
    println!("seed {state}");
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    for _ in 0..100_000 {
        let mut bytes = if next() % 2 == 0 {
            syn()
        } else {
            bare(datagram(CLIENT, SERVER, b"xyz"))
        };
        for _ in 0..next() % 8 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        bytes.truncate(next() as usize % (bytes.len() + 1));
        if let Some(packet) = Packet::read(&bytes) {
            packet.unreachable(Unreachable::Host);
            packet.datagram();
            if let Some(segment) = packet.segment() {
                segment.refusal();
            }
        }
    }
}
