//! One listening socket that gets the connections to every address and every port of a network namespace.
//!
//! The kernel looks a socket up for the first packet of a connection, and asks a program of ours first (`sk_lookup`). The program
//! takes the socket out of a map of one entry.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};

use super::bpf::{self, call, code, copy, set, EXIT, MAP_LOOKUP};
use super::packet::Key;
use crate::sys::{self, check, owned};

const MAP_TYPE_SOCKMAP: u32 = 15;
const PROG_TYPE_SK_LOOKUP: u32 = 30;
const ATTACH_SK_LOOKUP: u32 = 36;

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
    let map = bpf::make_map(MAP_TYPE_SOCKMAP, 8, 1)?;
    bpf::put(&map, 0, &(listener.as_raw_fd() as u64))?;
    let program = program(map.as_raw_fd());
    let program = bpf::load(PROG_TYPE_SK_LOOKUP, ATTACH_SK_LOOKUP, &program)?;
    let namespace = sys::open(c"/proc/self/ns/net", libc::O_RDONLY)?;
    let link = bpf::link(&program, &namespace, ATTACH_SK_LOOKUP)?;
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
        EXIT,
    ]
}
