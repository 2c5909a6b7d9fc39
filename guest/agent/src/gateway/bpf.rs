//! Programs and maps of the kernel, made by bpf(2).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::{check, owned};

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;

/// The helper that programs of every type may call.
pub const MAP_LOOKUP: i32 = 1;

/// `union bpf_attr`, up to the fields that are used.
type Attributes = [u8; 128];

/// One instruction.
pub const fn code(operation: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    operation as u64
        | ((to | from << 4) as u64) << 8
        | (offset as u16 as u64) << 16
        | (value as u32 as u64) << 32
}

pub const fn copy(to: u8, from: u8) -> u64 {
    code(0xbf, to, from, 0, 0)
}

pub const fn set(to: u8, value: i32) -> u64 {
    code(0xb7, to, 0, 0, value)
}

pub const fn call(helper: i32) -> u64 {
    code(0x85, 0, 0, 0, helper)
}

pub const EXIT: u64 = code(0x95, 0, 0, 0, 0);

/// Keys are `u32`.
pub fn make_map(kind: u32, value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    bpf(BPF_MAP_CREATE, |attributes| {
        for (at, value) in [(0, kind), (4, 4), (8, value_bytes), (12, entries)] {
            put32(attributes, at, value);
        }
    })
}

/// `attach`: the place that the program is for; 0 where its type says it.
pub fn load(kind: u32, attach: u32, program: &[u64]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    bpf(BPF_PROG_LOAD, |attributes| {
        put32(attributes, 0, kind);
        put32(attributes, 4, program.len() as u32);
        put64(attributes, 8, program.as_ptr() as u64);
        put64(attributes, 16, license.as_ptr() as u64);
        put32(attributes, 68, attach);
    })
}

pub fn link(program: &OwnedFd, target: &OwnedFd, attach: u32) -> io::Result<OwnedFd> {
    bpf(BPF_LINK_CREATE, |attributes| {
        put32(attributes, 0, program.as_raw_fd() as u32);
        put32(attributes, 4, target.as_raw_fd() as u32);
        put32(attributes, 8, attach);
    })
}

/// `value`: as long as the map says.
pub fn put<T>(map: &OwnedFd, key: u32, value: &T) -> io::Result<()> {
    element(
        BPF_MAP_UPDATE_ELEM,
        map,
        &key,
        std::ptr::from_ref(value) as u64,
    )
}

/// `value`: as long as the map says.
pub fn get<T>(map: &OwnedFd, key: u32, value: &mut T) -> io::Result<()> {
    element(
        BPF_MAP_LOOKUP_ELEM,
        map,
        &key,
        std::ptr::from_mut(value) as u64,
    )
}

fn element(command: libc::c_int, map: &OwnedFd, key: &u32, value: u64) -> io::Result<()> {
    let mut attributes = [0; 128];
    put32(&mut attributes, 0, map.as_raw_fd() as u32);
    put64(&mut attributes, 8, std::ptr::from_ref(key) as u64);
    put64(&mut attributes, 16, value);
    ask(command, &attributes).map(drop)
}

fn put32(attributes: &mut Attributes, at: usize, value: u32) {
    attributes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn put64(attributes: &mut Attributes, at: usize, value: u64) {
    attributes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

fn bpf(command: libc::c_int, fill: impl FnOnce(&mut Attributes)) -> io::Result<OwnedFd> {
    let mut attributes = [0; 128];
    fill(&mut attributes);
    owned(ask(command, &attributes)?)
}

fn ask(command: libc::c_int, attributes: &Attributes) -> io::Result<libc::c_int> {
    let (pointer, bytes) = (attributes.as_ptr(), attributes.len());
    // SAFETY: the attributes are as long as we say, and what they point to outlives the call.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, pointer, bytes) as libc::c_int })
}
