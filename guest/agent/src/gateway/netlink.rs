//! Addresses, routes and rules, asked of the kernel in the network namespace of the process.

use std::ffi::CStr;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::{self, check, owned};

const HEADER_BYTES: usize = 16;
/// Numbers of the kernel's headers that the libc crate has not.
const IFLA_MTU: u16 = 4;
const FRA_IIFNAME: u16 = 3;
const FR_ACT_TO_TBL: u8 = 1;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTPROT_BOOT: u8 = 3;
const MAIN: u8 = 254;

pub struct Netlink {
    socket: OwnedFd,
}

/// A kind of request and its fields, without attributes.
struct Request {
    kind: u16,
    flags: i32,
    body: Vec<u8>,
}

const NEW: i32 = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;

impl Netlink {
    pub fn open() -> io::Result<Netlink> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: plain call.
        let socket = owned(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        Ok(Netlink { socket })
    }

    pub fn index_of(name: &CStr) -> io::Result<u32> {
        // SAFETY: the name ends in NUL.
        match unsafe { libc::if_nametoindex(name.as_ptr()) } {
            0 => Err(io::Error::last_os_error()),
            index => Ok(index),
        }
    }

    pub fn bring_up(&self, index: u32, mtu: Option<u32>) -> io::Result<()> {
        let up = libc::IFF_UP as u32;
        let mut body = vec![0; 4];
        for field in [index, up, up] {
            body.extend_from_slice(&field.to_ne_bytes());
        }
        let mtu = mtu.map(|mtu| (IFLA_MTU, mtu.to_ne_bytes()));
        let attributes: Vec<_> = mtu.iter().map(|(kind, mtu)| (*kind, &mtu[..])).collect();
        let request = Request {
            kind: libc::RTM_NEWLINK,
            flags: 0,
            body,
        };
        self.ask(request, &attributes)
    }

    pub fn add_address(&self, index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mut body = vec![libc::AF_INET as u8, prefix, 0, 0];
        body.extend_from_slice(&index.to_ne_bytes());
        let octets = address.octets();
        let request = Request {
            kind: libc::RTM_NEWADDR,
            flags: NEW,
            body,
        };
        let attributes = [
            (libc::IFA_LOCAL, &octets[..]),
            (libc::IFA_ADDRESS, &octets[..]),
        ];
        self.ask(request, &attributes)
    }

    /// Everything that no other route takes goes to this interface.
    pub fn add_default(&self, index: u32, gateway: Option<Ipv4Addr>) -> io::Result<()> {
        let scope = gateway.map_or(libc::RT_SCOPE_LINK, |_| libc::RT_SCOPE_UNIVERSE);
        let octets = gateway.map(|address| address.octets());
        let index = index.to_ne_bytes();
        let mut attributes = vec![(libc::RTA_OIF, &index[..])];
        attributes.extend(octets.iter().map(|it| (libc::RTA_GATEWAY, &it[..])));
        self.ask(route(MAIN, scope, RTN_UNICAST), &attributes)
    }

    /// Every address is one of this machine, for the packets that come from `interface`.
    pub fn accept_everything(&self, interface: &CStr, loopback: u32) -> io::Result<()> {
        const TABLE: u8 = 100;
        let index = loopback.to_ne_bytes();
        let everything = route(TABLE, libc::RT_SCOPE_HOST, RTN_LOCAL);
        self.ask(everything, &[(libc::RTA_OIF, &index[..])])?;
        let family = libc::AF_INET as u8;
        let body = vec![family, 0, 0, 0, TABLE, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
        let rule = Request {
            kind: libc::RTM_NEWRULE,
            flags: libc::NLM_F_CREATE,
            body,
        };
        self.ask(rule, &[(FRA_IIFNAME, interface.to_bytes_with_nul())])
    }

    fn ask(&self, request: Request, attributes: &[(u16, &[u8])]) -> io::Result<()> {
        let flags = (request.flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let mut message = vec![0; HEADER_BYTES];
        message[4..6].copy_from_slice(&request.kind.to_ne_bytes());
        message[6..8].copy_from_slice(&flags.to_ne_bytes());
        message.extend_from_slice(&request.body);
        for (kind, value) in attributes {
            let length = (4 + value.len()) as u16;
            message.extend_from_slice(&length.to_ne_bytes());
            message.extend_from_slice(&kind.to_ne_bytes());
            message.extend_from_slice(value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        let fd = self.socket.as_raw_fd();
        // SAFETY: the message is as long as we say.
        check(unsafe { libc::send(fd, message.as_ptr().cast(), message.len(), 0) } as i32)?;
        // The answer: a header, and an errno, negated.
        let mut answer = [0; 1024];
        let count = sys::read(fd, &mut answer)?.unwrap_or(0);
        let code = answer[..count].get(HEADER_BYTES..HEADER_BYTES + 4);
        let code = code.and_then(|bytes| bytes.try_into().ok());
        match code.map(i32::from_ne_bytes) {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// A route of every address.
fn route(table: u8, scope: u8, kind: u8) -> Request {
    let family = libc::AF_INET as u8;
    Request {
        kind: libc::RTM_NEWROUTE,
        flags: NEW,
        body: vec![family, 0, 0, 0, table, RTPROT_BOOT, scope, kind, 0, 0, 0, 0],
    }
}
