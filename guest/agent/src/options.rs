//! The command line. Process 1 of a VM ignores it: the kernel passes on every word that it did not understand itself.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::protocol::{Versions, VERSIONS};

pub const HELP: &str = "\
The program inside a capsule. As process 1 of a VM it boots the guest and serves the host on the virtio-serial port
named capsule.agent. Elsewhere, for tests:

  capsule-agent --socket PATH [--cgroup DIR] [--root DIR] [--protocols MIN-MAX] [--kept BYTES]

  --socket PATH  serve on a UNIX socket; a new connection replaces the old one
  --cgroup DIR   make a cgroup for each command below DIR, which lies in a cgroup version 2 tree; without it FREEZE
                 answers that nothing is frozen
  --root DIR     WAKE writes etc/hostname, etc/hosts and etc/machine-id below DIR; without it WAKE writes nothing.
                 Here WAKE never touches the clock, the random generator or the host name.
  --protocols MIN-MAX
                 answer HELLO as an agent that speaks these versions of the protocol
  --kept BYTES   memory for the kept output of all commands; without it an eighth of this machine's
";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Process 1 of a VM.
    Machine,
    Socket {
        path: PathBuf,
        root: Option<PathBuf>,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub mode: Mode,
    /// Where cgroups of commands are made.
    pub cgroup: Option<String>,
    pub versions: Versions,
    /// Memory for the kept output of all commands; otherwise a share of the machine's.
    pub kept_bytes: Option<usize>,
}

pub const MACHINE_CGROUP: &str = "/sys/fs/cgroup/capsule";

impl Options {
    pub fn machine() -> Options {
        Options {
            mode: Mode::Machine,
            cgroup: Some(MACHINE_CGROUP.into()),
            versions: VERSIONS,
            kept_bytes: None,
        }
    }

    /// `None`: the arguments are invalid, or ask for help.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Option<Options> {
        let (mut path, mut root, mut cgroup) = (None, None, None);
        let (mut versions, mut kept_bytes) = (VERSIONS, None);
        let mut args = args.into_iter();
        while let Some(name) = args.next() {
            let value = args.next()?;
            match name.to_str()? {
                "--socket" => path = Some(PathBuf::from(value)),
                "--root" => root = Some(PathBuf::from(value)),
                "--cgroup" => cgroup = Some(value.into_string().ok()?),
                "--protocols" => versions = parse_versions(value.to_str()?)?,
                "--kept" => kept_bytes = Some(value.to_str()?.parse().ok()?),
                _ => return None,
            }
        }
        Some(Options {
            mode: Mode::Socket { path: path?, root },
            cgroup,
            versions,
            kept_bytes,
        })
    }
}

fn parse_versions(range: &str) -> Option<Versions> {
    let (min, max) = range.split_once('-')?;
    let (min, max) = (min.parse().ok()?, max.parse().ok()?);
    (min <= max).then_some(Versions { min, max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_needed_and_the_rest_is_not() {
        let parse = |words: &[&str]| Options::parse(words.iter().map(OsString::from));
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&["--help"]), None);
        assert_eq!(parse(&["--socket"]), None);
        assert_eq!(parse(&["--socket", "/s", "--what", "x"]), None);
        let options = parse(&["--cgroup", "/c", "--socket", "/s"]).unwrap();
        assert_eq!(options.cgroup.as_deref(), Some("/c"));
        assert_eq!(options.versions, VERSIONS);
    }

    #[test]
    fn a_range_of_versions_is_two_numbers_in_order() {
        let parse = |range: &str| {
            Options::parse(["--socket", "/s", "--protocols", range].map(OsString::from))
        };
        assert_eq!(parse("2-3").unwrap().versions, Versions { min: 2, max: 3 });
        for range in ["", "2", "3-2", "2-", "-2", "1-65536", "a-b"] {
            assert_eq!(parse(range), None, "{range}");
        }
    }
}
