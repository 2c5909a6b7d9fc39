//! Packets of the guest's side: what the gateway reads in them, and those that it makes itself. Each stands behind the header of
//! `IFF_VNET_HDR`.

use std::net::{Ipv4Addr, SocketAddrV4};

/// `struct virtio_net_hdr`. Zeros: the checksums are whole, the packet is one.
pub const VNET_BYTES: usize = 10;
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);
pub const GUEST: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);

const IP_BYTES: usize = 20;
const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// The code of an ICMP "destination unreachable".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    Host = 1,
    Prohibited = 13,
}

/// A connection, as the guest's kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub source: SocketAddrV4,
    pub destination: SocketAddrV4,
}

/// An IPv4 packet whose lengths are those of its bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    pub protocol: u8,
    /// A part of a larger one, and whether it is its first.
    pub is_fragment: bool,
    is_first: bool,
    header: &'a [u8],
    pub payload: &'a [u8],
}

pub struct Segment {
    pub key: Key,
    sequence: u32,
    flags: u8,
    payload_bytes: usize,
}

pub struct Datagram<'a> {
    pub key: Key,
    pub payload: &'a [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'a> Packet<'a> {
    /// `bytes`: without the header of `IFF_VNET_HDR`.
    pub fn read(bytes: &'a [u8]) -> Option<Packet<'a>> {
        let first = *bytes.first()?;
        let header_bytes = usize::from(first & 15) * 4;
        let total = usize::from(u16_at(bytes, 2)?);
        if first >> 4 != 4 || header_bytes < IP_BYTES || total < header_bytes {
            return None;
        }
        let bytes = bytes.get(..total)?;
        let fragment = u16_at(bytes, 6)?;
        Some(Packet {
            source: u32_at(bytes, 12)?.into(),
            destination: u32_at(bytes, 16)?.into(),
            protocol: bytes[9],
            is_fragment: fragment & 0x3fff != 0,
            is_first: fragment & 0x1fff == 0,
            header: &bytes[..header_bytes],
            payload: &bytes[header_bytes..],
        })
    }

    fn key(&self) -> Option<Key> {
        Some(Key {
            source: SocketAddrV4::new(self.source, u16_at(self.payload, 0)?),
            destination: SocketAddrV4::new(self.destination, u16_at(self.payload, 2)?),
        })
    }

    pub fn segment(&self) -> Option<Segment> {
        if self.protocol != TCP || self.is_fragment {
            return None;
        }
        let header_bytes = usize::from(*self.payload.get(12)? >> 4) * 4;
        Some(Segment {
            key: self.key()?,
            sequence: u32_at(self.payload, 4)?,
            flags: *self.payload.get(13)?,
            payload_bytes: self.payload.len().checked_sub(header_bytes)?,
        })
    }

    pub fn datagram(&self) -> Option<Datagram<'a>> {
        if self.protocol != UDP || self.is_fragment {
            return None;
        }
        let length = usize::from(u16_at(self.payload, 4)?);
        Some(Datagram {
            key: self.key()?,
            payload: self.payload.get(8..length)?,
        })
    }

    /// Whether its sender is told that it does not arrive: never of an error, nor of a part that is not the first.
    pub fn may_be_refused(&self) -> bool {
        let is_one = |address: Ipv4Addr| {
            !address.is_multicast() && !address.is_broadcast() && !address.is_unspecified()
        };
        // Echo, timestamp and the requests for information and masks.
        let is_question = matches!(self.payload.first(), Some(8 | 13 | 15 | 17));
        let is_error = self.protocol == ICMP && !is_question;
        self.is_first && !is_error && is_one(self.source) && is_one(self.destination)
    }

    /// The ICMP error about it, from the gateway.
    pub fn unreachable(&self, code: Unreachable) -> Vec<u8> {
        let quoted = &self.payload[..self.payload.len().min(8)];
        let mut message = vec![3, code as u8, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(self.header);
        message.extend_from_slice(quoted);
        let sum = checksum(&[&message]);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        made(ICMP, GATEWAY, self.source, &message)
    }
}

impl Segment {
    /// The first of a connection.
    pub fn is_opening(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == SYN
    }

    pub fn is_reset(&self) -> bool {
        self.flags & RST != 0
    }

    /// The RST that answers it.
    pub fn refusal(&self) -> Vec<u8> {
        let length = self.payload_bytes as u32 + u32::from(self.is_opening());
        let acknowledged = self.sequence.wrapping_add(length);
        let Key {
            source,
            destination,
        } = self.key;
        segment(destination, source, 0, acknowledged, RST | ACK, &[])
    }
}

/// A byte in the name of the other end, with random numbers. The kernel answers a byte outside the window with the numbers of its
/// connection, and that answer is reset like any segment of a connection that nobody knows. It answers a SYN or a segment
/// without data too, but only one in 500 ms on a connection, and the last probe of a full window may have been that one.
///
/// A live connection is not harmed: the answer repeats what its other end knows. A byte within the window gets no answer, once in
/// thousands of times, and is not read either unless both numbers are right.
pub fn question(key: &Key, sequence: u32, acknowledged: u32) -> Vec<u8> {
    let Key {
        source,
        destination,
    } = *key;
    segment(destination, source, sequence, acknowledged, ACK, &[0])
}

fn segment(
    from: SocketAddrV4,
    to: SocketAddrV4,
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![0u8; 20];
    bytes[0..2].copy_from_slice(&from.port().to_be_bytes());
    bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
    bytes[4..8].copy_from_slice(&sequence.to_be_bytes());
    bytes[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    bytes[12] = 5 << 4;
    bytes[13] = flags;
    bytes.extend_from_slice(payload);
    let pseudo = [0, TCP, 0, bytes.len() as u8];
    let addresses = [from.ip().octets(), to.ip().octets()].concat();
    let sum = checksum(&[&addresses, &pseudo, &bytes]);
    bytes[16..18].copy_from_slice(&sum.to_be_bytes());
    made(TCP, *from.ip(), *to.ip(), &bytes)
}

/// `payload` has at most 65 507 bytes.
pub fn datagram(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() + 8) as u16;
    let mut bytes = Vec::with_capacity(payload.len() + 8);
    for field in [from.port(), to.port(), length, 0] {
        bytes.extend_from_slice(&field.to_be_bytes()); // the last is the checksum; 0: none
    }
    bytes.extend_from_slice(payload);
    made(UDP, *from.ip(), *to.ip(), &bytes)
}

fn made(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let mut header = [0u8; IP_BYTES];
    header[0] = 4 << 4 | (IP_BYTES / 4) as u8;
    header[2..4].copy_from_slice(&((IP_BYTES + payload.len()) as u16).to_be_bytes());
    header[8] = 64;
    header[9] = protocol;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&[0; VNET_BYTES], &header[..], payload].concat()
}

/// The internet checksum of parts of even length; the last may be odd.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u64 = words
        .map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0)))
        .sum();
    let mut folded = sum;
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    !(folded as u16)
}

#[cfg(test)]
#[path = "packet/tests.rs"]
mod tests;
