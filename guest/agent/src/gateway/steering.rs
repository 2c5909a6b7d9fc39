//! One listening socket that gets the connections to every address and every port of a network namespace.
//!
//! The kernel looks a socket up for the first packet of a connection, and asks a program of ours first (`sk_lookup`). The program
//! takes the socket out of a map of one entry.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};

use super::packet::Key;
use crate::sys::{self, check, owned};

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const MAP_TYPE_SOCKMAP: u32 = 15;
const PROG_TYPE_SK_LOOKUP: u32 = 30;
const ATTACH_SK_LOOKUP: u32 = 36;

const MAP_LOOKUP: i32 = 1;
const SK_RELEASE: i32 = 86;
const SK_ASSIGN: i32 = 124;

/// Buffers of each connection in the kernel, which doubles these sizes.
const RECEIVE_BYTES: libc::c_int = 512 * 1024;
const SEND_BYTES: libc::c_int = 128 * 1024;

/// The socket gets every connection while this is kept.
pub struct Steering {
    pub listener: OwnedFd,
    _program: OwnedFd,
    _map: OwnedFd,
    _link: OwnedFd,
}

impl Steering {
    /// A connection, and the addresses that its program sees. An error: there is none now.
    pub fn accept(&self) -> io::Result<(OwnedFd, Key)> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the addresses are ours and as long as we say, here and below.
        let (mut peer, mut own): (libc::sockaddr_in, libc::sockaddr_in) =
            unsafe { std::mem::zeroed() };
        let mut length = ADDRESS_BYTES;
        let pointer = std::ptr::from_mut(&mut peer).cast();
        let fd = owned(unsafe {
            libc::accept4(self.listener.as_raw_fd(), pointer, &mut length, flags)
        })?;
        let mut length = ADDRESS_BYTES;
        let pointer = std::ptr::from_mut(&mut own).cast();
        check(unsafe { libc::getsockname(fd.as_raw_fd(), pointer, &mut length) })?;
        let address = |it: libc::sockaddr_in| {
            let ip = u32::from_be(it.sin_addr.s_addr);
            SocketAddrV4::new(ip.into(), u16::from_be(it.sin_port))
        };
        let key = Key {
            source: address(peer),
            destination: address(own),
        };
        Ok((fd, key))
    }
}

const ADDRESS_BYTES: libc::socklen_t = std::mem::size_of::<libc::sockaddr_in>() as u32;

pub fn steer() -> io::Result<Steering> {
    let listener = listen()?;
    let map = bpf(BPF_MAP_CREATE, |attributes| {
        for (at, value) in [(0, MAP_TYPE_SOCKMAP), (4, 4), (8, 8), (12, 1)] {
            put32(attributes, at, value);
        }
    })?;
    let (key, value) = (0u32, listener.as_raw_fd() as u64);
    set(&map, &key, &value)?;
    let code = program(map.as_raw_fd());
    let license = c"Apache-2.0";
    let program = bpf(BPF_PROG_LOAD, |attributes| {
        put32(attributes, 0, PROG_TYPE_SK_LOOKUP);
        put32(attributes, 4, code.len() as u32);
        put64(attributes, 8, code.as_ptr() as u64);
        put64(attributes, 16, license.as_ptr() as u64);
        put32(attributes, 68, ATTACH_SK_LOOKUP);
    })?;
    let namespace = sys::open(c"/proc/self/ns/net", libc::O_RDONLY)?;
    let link = bpf(BPF_LINK_CREATE, |attributes| {
        put32(attributes, 0, program.as_raw_fd() as u32);
        put32(attributes, 4, namespace.as_raw_fd() as u32);
        put32(attributes, 8, ATTACH_SK_LOOKUP);
    })?;
    Ok(Steering {
        listener,
        _program: program,
        _map: map,
        _link: link,
    })
}

/// A socket whose connections may have addresses that are not this machine's.
fn listen() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain call.
    let socket = owned(unsafe { libc::socket(libc::AF_INET, kind, 0) })?;
    for (level, name, value) in [
        (libc::SOL_IP, libc::IP_TRANSPARENT, 1),
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BYTES),
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BYTES),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
    ] {
        let (pointer, bytes) = (std::ptr::from_ref(&value).cast(), 4);
        // SAFETY: the value is an int.
        check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, pointer, bytes) })?;
    }
    // SAFETY: plain call. The kernel picks a port of its own.
    check(unsafe { libc::listen(socket.as_raw_fd(), libc::SOMAXCONN) })?;
    Ok(socket)
}

/// In C: `sk = map[0]; if (sk) { assign(ctx, sk, 0); release(sk); } return SK_PASS;`
fn program(map: i32) -> [u64; 17] {
    let code = |operation: u8, to: u8, from: u8, offset: i16, value: i32| {
        u64::from(operation)
            | u64::from(to | from << 4) << 8
            | u64::from(offset as u16) << 16
            | u64::from(value as u32) << 32
    };
    let copy = |to: u8, from: u8| code(0xbf, to, from, 0, 0);
    let set = |to: u8, value: i32| code(0xb7, to, 0, 0, value);
    let call = |function: i32| code(0x85, 0, 0, 0, function);
    [
        copy(6, 1),
        code(0x62, 10, 0, -4, 0), // the key, on the stack
        copy(2, 10),
        code(0x07, 2, 0, 0, -4),
        code(0x18, 1, 1, 0, map), // of two words
        0,
        call(MAP_LOOKUP),
        code(0x15, 0, 0, 7, 0), // none: to the end
        copy(7, 0),
        copy(1, 6),
        copy(2, 7),
        set(3, 0),
        call(SK_ASSIGN),
        copy(1, 7),
        call(SK_RELEASE),
        set(0, 1),
        code(0x95, 0, 0, 0, 0),
    ]
}

/// `union bpf_attr`, up to the fields that are used.
type Attributes = [u8; 128];

fn put32(attributes: &mut Attributes, at: usize, value: u32) {
    attributes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn put64(attributes: &mut Attributes, at: usize, value: u64) {
    attributes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

fn set(map: &OwnedFd, key: &u32, value: &u64) -> io::Result<()> {
    let mut attributes = [0; 128];
    put32(&mut attributes, 0, map.as_raw_fd() as u32);
    put64(&mut attributes, 8, std::ptr::from_ref(key) as u64);
    put64(&mut attributes, 16, std::ptr::from_ref(value) as u64);
    call(BPF_MAP_UPDATE_ELEM, &attributes).map(drop)
}

fn bpf(command: libc::c_int, fill: impl FnOnce(&mut Attributes)) -> io::Result<OwnedFd> {
    let mut attributes = [0; 128];
    fill(&mut attributes);
    owned(call(command, &attributes)?)
}

fn call(command: libc::c_int, attributes: &Attributes) -> io::Result<libc::c_int> {
    let (pointer, bytes) = (attributes.as_ptr(), attributes.len());
    // SAFETY: the attributes are as long as we say, and what they point to outlives the call.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, pointer, bytes) as libc::c_int })
}
