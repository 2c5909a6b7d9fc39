//! The command line. Process 1 of a VM ignores it: the kernel passes on every word that it did not understand itself.

use std::ffi::OsString;
use std::path::PathBuf;

pub const HELP: &str = "\
The program inside a capsule. As process 1 of a VM it boots the guest and serves the host on the virtio-serial port
named capsule.agent. Elsewhere, for tests:

  capsule-agent --socket PATH [--cgroup DIR] [--root DIR]

  --socket PATH  serve on a UNIX socket; a new connection replaces the old one
  --cgroup DIR   make a cgroup for each command below DIR, which lies in a cgroup version 2 tree; without it FREEZE
                 answers that nothing is frozen
  --root DIR     WAKE writes etc/hostname, etc/hosts and etc/machine-id below DIR; without it WAKE writes nothing.
                 Here WAKE never touches the clock, the random generator or the host name.
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
}

pub const MACHINE_CGROUP: &str = "/sys/fs/cgroup/capsule";

impl Options {
    pub fn machine() -> Options {
        Options {
            mode: Mode::Machine,
            cgroup: Some(MACHINE_CGROUP.into()),
        }
    }

    /// `None`: the arguments are invalid, or ask for help.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Option<Options> {
        let (mut path, mut root, mut cgroup) = (None, None, None);
        let mut args = args.into_iter();
        while let Some(name) = args.next() {
            let value = args.next()?;
            match name.to_str()? {
                "--socket" => path = Some(PathBuf::from(value)),
                "--root" => root = Some(PathBuf::from(value)),
                "--cgroup" => cgroup = Some(value.into_string().ok()?),
                _ => return None,
            }
        }
        Some(Options {
            mode: Mode::Socket { path: path?, root },
            cgroup,
        })
    }
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
    }
}
