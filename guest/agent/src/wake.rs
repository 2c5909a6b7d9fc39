//! WAKE: gives a VM that was restored, or cloned from a template, the current time, fresh randomness and its own identity.
//! Commands run only after the THAW that follows, so that none sees the past or the random numbers of another capsule.

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::identity;
use crate::options::Mode;
use crate::protocol::{Code, Failure};
use crate::record::{Malformed, Reader};
use crate::sys::{check, context};

const MIN_ENTROPY_BYTES: usize = 32;
const MAX_ENTROPY_BYTES: usize = 4_096;

pub struct Wake {
    realtime_ns: u64,
    entropy: Vec<u8>,
    hostname: String,
    machine_id: String,
}

impl Wake {
    /// Checks the encoding only, not the values.
    pub fn read(fields: &mut Reader) -> Result<Wake, Malformed> {
        Ok(Wake {
            realtime_ns: fields.u64()?,
            entropy: fields.str()?.to_vec(),
            hostname: String::from_utf8_lossy(fields.str()?).into_owned(),
            machine_id: String::from_utf8_lossy(fields.str()?).into_owned(),
        })
    }

    fn check(&self) -> Result<(), &'static str> {
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
        let is_id_byte = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if !(MIN_ENTROPY_BYTES..=MAX_ENTROPY_BYTES).contains(&self.entropy.len()) {
            return Err("entropy is 32 to 4096 bytes");
        }
        if !(1..=64).contains(&self.hostname.len()) || !self.hostname.bytes().all(is_name_byte) {
            return Err("a host name is 1 to 64 letters, digits, hyphens and dots");
        }
        if self.machine_id.len() != 32 || !self.machine_id.bytes().all(is_id_byte) {
            return Err("a machine id is 32 lower-case hex digits");
        }
        Ok(())
    }

    pub fn apply(&self, mode: &Mode) -> Result<(), Failure> {
        self.check()
            .map_err(|message| Failure::new(Code::Invalid, message))?;
        let result = match mode {
            Mode::Machine => self.apply_to_machine(),
            Mode::Socket { root, .. } => match root {
                Some(root) => identity::write(root, &self.hostname, &self.machine_id),
                None => Ok(()),
            },
        };
        result.map_err(|message| Failure::new(Code::Internal, message))
    }

    fn apply_to_machine(&self) -> Result<(), String> {
        // The clock first: the host read its own when it sent WAKE, and the rest takes time.
        context(set_clock(self.realtime_ns), "the clock cannot be set")?;
        context(
            reseed(&self.entropy),
            "the random generator cannot be reseeded",
        )?;
        let name = self.hostname.as_bytes();
        // SAFETY: `name` is as long as we say.
        let named = check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) });
        context(named, "the host name cannot be set")?;
        identity::write(Path::new("/"), &self.hostname, &self.machine_id)
    }
}

fn set_clock(realtime_ns: u64) -> io::Result<()> {
    let time = libc::timespec {
        tv_sec: (realtime_ns / 1_000_000_000) as i64,
        tv_nsec: (realtime_ns % 1_000_000_000) as i64,
    };
    // SAFETY: `time` is ours.
    check(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &time) }).map(drop)
}

/// The kernel's `struct rand_pool_info` with room for its bytes.
#[repr(C)]
struct RandPoolInfo {
    entropy_bits: c_int,
    size_bytes: c_int,
    bytes: [u8; MAX_ENTROPY_BYTES],
}

/// Adds the bytes with credit, and reseeds every generator of the kernel.
fn reseed(entropy: &[u8]) -> io::Result<()> {
    const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
    const RNDRESEEDCRNG: libc::c_ulong = 0x5207;
    let mut pool = RandPoolInfo {
        entropy_bits: 8 * entropy.len() as c_int,
        size_bytes: entropy.len() as c_int,
        bytes: [0; MAX_ENTROPY_BYTES],
    };
    pool.bytes[..entropy.len()].copy_from_slice(entropy);
    let random = OpenOptions::new().write(true).open("/dev/random")?;
    // SAFETY: `pool` is what the request reads.
    check(unsafe { libc::ioctl(random.as_raw_fd(), RNDADDENTROPY as _, &pool) })?;
    // SAFETY: the request has no argument.
    check(unsafe { libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG as _) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wake() -> Wake {
        Wake {
            realtime_ns: 0,
            entropy: vec![7; 32],
            hostname: "cl-new".into(),
            machine_id: "0123456789abcdef0123456789abcdef".into(),
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        assert!(wake().check().is_ok());
        assert!(Wake {
            entropy: vec![0; 31],
            ..wake()
        }
        .check()
        .is_err());
        assert!(Wake {
            hostname: "a b".into(),
            ..wake()
        }
        .check()
        .is_err());
        assert!(Wake {
            hostname: String::new(),
            ..wake()
        }
        .check()
        .is_err());
        assert!(Wake {
            machine_id: "X".repeat(32),
            ..wake()
        }
        .check()
        .is_err());
    }
}
