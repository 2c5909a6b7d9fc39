//! WAKE: gives a VM that was restored, or cloned from a template, the current time, fresh randomness and its own identity.
//! Commands run only after the THAW that follows, so that none sees the past or the random numbers of another capsule.
//!
//! Clock, randomness and the kernel's host name must succeed. The other parts are best-effort (best_effort.rs): their
//! failures are reported.

use std::io;
use std::path::Path;

use crate::best_effort::BestEffort;
use crate::devices::{ClockChip, Random, MAX_ENTROPY_BYTES};
use crate::identity::{IdentityFiles, Names};
use crate::options::Mode;
use crate::protocol::{Code, Failure};
use crate::record::{Malformed, Reader};
use crate::start_times::StartTimes;
use crate::sys::{check, context, reason};

const MIN_ENTROPY_BYTES: usize = 32;

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

    fn names(&self) -> Names {
        Names {
            hostname: self.hostname.clone(),
            machine_id: self.machine_id.clone(),
        }
    }
}

/// Descriptors and names that WAKE uses, held from boot on.
pub struct WakeState {
    /// In a VM.
    machine: Option<Machine>,
    best_effort: Option<BestEffort>,
    start_times: StartTimes,
}

struct Machine {
    random: Random,
    /// The kernel's host name as WAKE has set it; a different one is the user's.
    hostname: Option<String>,
}

impl WakeState {
    pub fn new(mode: &Mode) -> io::Result<WakeState> {
        let (machine, root, chip) = match mode {
            Mode::Machine => {
                let machine = Machine {
                    random: Random::open()?,
                    hostname: None,
                };
                (Some(machine), Some(Path::new("/")), find_chip())
            }
            Mode::Socket { root, .. } => (None, root.as_deref(), None),
        };
        let best_effort = root.map(|root| BestEffort::new(IdentityFiles::below(root), chip));
        Ok(WakeState {
            machine,
            best_effort,
            start_times: StartTimes::new(),
        })
    }

    pub fn start_times(&self) -> &StartTimes {
        &self.start_times
    }

    /// Returns a sentence for each thing that could not be done and does not have to be.
    pub fn wake(&mut self, wake: &Wake) -> Result<Vec<String>, Failure> {
        wake.check()
            .map_err(|message| Failure::new(Code::Invalid, message))?;
        if let Some(machine) = &mut self.machine {
            let result = machine.wake(wake);
            self.start_times.note();
            result.map_err(|message| Failure::new(Code::Internal, message))?;
        }
        let best_effort = self.best_effort.as_ref();
        Ok(best_effort.map_or_else(Vec::new, |best_effort| best_effort.run(wake.names())))
    }
}

/// A guest works without it.
fn find_chip() -> Option<ClockChip> {
    ClockChip::find().unwrap_or_else(|error| {
        eprintln!(
            "capsule-agent: the clock chip cannot be used: {}",
            reason(&error)
        );
        None
    })
}

impl Machine {
    fn wake(&mut self, wake: &Wake) -> Result<(), String> {
        // The clock first: the host read its own when it sent WAKE, and the rest takes time.
        context(set_clock(wake.realtime_ns), "the clock cannot be set")?;
        context(
            self.random.reseed(&wake.entropy),
            "the random generator cannot be reseeded",
        )?;
        context(self.name(&wake.hostname), "the host name cannot be set")
    }

    fn name(&mut self, name: &str) -> io::Result<()> {
        if let Some(given) = &self.hostname {
            if hostname()? != given.as_bytes() {
                return Ok(());
            }
        }
        // SAFETY: `name` is as long as we say.
        check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) })?;
        self.hostname = Some(name.into());
        Ok(())
    }
}

fn hostname() -> io::Result<Vec<u8>> {
    let mut name = [0u8; 65];
    // SAFETY: `name` is as long as we say.
    check(unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) })?;
    let name = name.split(|&byte| byte == 0).next();
    Ok(name.unwrap_or_default().to_vec())
}

fn set_clock(realtime_ns: u64) -> io::Result<()> {
    let time = libc::timespec {
        tv_sec: (realtime_ns / 1_000_000_000) as i64,
        tv_nsec: (realtime_ns % 1_000_000_000) as i64,
    };
    // SAFETY: `time` is ours.
    check(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &time) }).map(drop)
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
