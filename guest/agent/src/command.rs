//! From a client's command to what the kernel needs: arguments, environment, directory, user, and the paths where the
//! program may be.

use std::io;

use crate::accounts::{self, Account};
use crate::c_strings::CStrings;
use crate::protocol::{Code, Command, Failure};
use crate::spawn::{Program, SpawnError, Spawned, Stage, Start};
use crate::sys::reason;

const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const MAX_TAG_BYTES: usize = 256;

/// Everything but the standard streams' descriptors.
pub fn prepare(command: &Command, has_terminal: bool) -> Result<Program, Failure> {
    if command.cmd.is_empty() {
        return Err(invalid("cmd is empty"));
    }
    let account = match command.user {
        None => accounts::own(),
        Some(user) => accounts::find(user)
            .ok_or_else(|| invalid(format!("no user {}", String::from_utf8_lossy(user))))?,
    };
    let envs = environment(command, &account, has_terminal)?;
    let path = value_of(&envs, b"PATH").unwrap_or(DEFAULT_PATH);
    let mut argv = CStrings::with_room_for(1 + command.args.len());
    argv.push(&[command.cmd], "cmd")?;
    for arg in &command.args {
        argv.push(&[arg], "an argument")?;
    }
    let mut envp = CStrings::with_room_for(envs.len());
    for (key, value) in &envs {
        envp.push(&[key, b"=", value], "the environment")?;
    }
    Ok(Program {
        paths: candidates(command.cmd, path)?,
        argv,
        envp,
        dirs: directories(command.cwd, &account)?,
        identity: command.user.map(|_| accounts::identity(&account)),
        stdio: [-1; 3],
        has_terminal,
    })
}

type Environment<'a> = Vec<(&'a [u8], &'a [u8])>;

fn environment<'a>(
    command: &Command<'a>,
    account: &'a Account,
    has_terminal: bool,
) -> Result<Environment<'a>, Failure> {
    let mut envs: Environment = vec![
        (b"PATH", DEFAULT_PATH),
        (b"HOME", &account.home),
        (b"USER", &account.name),
        (b"LOGNAME", &account.name),
        (b"LANG", b"C.UTF-8"),
    ];
    if has_terminal {
        envs.push((b"TERM", b"xterm-256color"));
    }
    for &(key, value) in &command.envs {
        if key.is_empty() || key.contains(&b'=') {
            return Err(invalid(
                "a name in the environment is empty or contains \"=\"",
            ));
        }
        envs.retain(|&(known, _)| known != key);
        envs.push((key, value));
    }
    Ok(envs)
}

fn value_of<'a>(envs: &Environment<'a>, name: &[u8]) -> Option<&'a [u8]> {
    envs.iter()
        .find(|&&(key, _)| key == name)
        .map(|&(_, value)| value)
}

/// The paths that `execvp` would try.
fn candidates(cmd: &[u8], path: &[u8]) -> Result<CStrings, Failure> {
    let mut paths = CStrings::with_room_for(1);
    if cmd.contains(&b'/') {
        paths.push(&[cmd], "cmd")?;
        return Ok(paths);
    }
    for dir in path.split(|&byte| byte == b':') {
        let dir = if dir.is_empty() { b"." } else { dir };
        paths.push(&[dir, b"/", cmd], "cmd")?;
    }
    Ok(paths)
}

fn directories(cwd: Option<&[u8]>, account: &Account) -> Result<CStrings, Failure> {
    let mut dirs = CStrings::with_room_for(2);
    match cwd {
        Some(cwd) => dirs.push(&[cwd], "cwd")?,
        None => {
            dirs.push(&[&account.home], "the home directory")?;
            dirs.push(&[b"/"], "the root")?;
        }
    }
    Ok(dirs)
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Code::Invalid, message)
}

/// A tag that a client chose. Digits alone would be read as a pid.
pub fn check_tag(tag: &[u8]) -> Result<String, Failure> {
    let text = std::str::from_utf8(tag).unwrap_or_default();
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number || text.len() > MAX_TAG_BYTES || text.chars().any(char::is_control) {
        return Err(invalid(
            "a tag is 1 to 256 bytes of UTF-8, without control characters and not a number",
        ));
    }
    Ok(text.to_string())
}

/// A child on the way to its program, and the names for a failure.
pub struct Stuck {
    pub spawned: Spawned,
    pub cmd: Vec<u8>,
    pub cwd: Option<Vec<u8>>,
}

impl Stuck {
    /// `None`: it is not known yet whether the start succeeds.
    pub fn outcome(&self) -> Option<Result<(), Failure>> {
        match self.spawned.start() {
            Start::Unknown => None,
            Start::Done => Some(Ok(())),
            Start::Failed(error) => {
                Some(Err(spawn_failure(&self.cmd, self.cwd.as_deref(), &error)))
            }
        }
    }
}

/// The failure that the client receives.
pub fn spawn_failure(
    cmd: &[u8],
    cwd: Option<&[u8]>,
    SpawnError { stage, error }: &SpawnError,
) -> Failure {
    let cmd = String::from_utf8_lossy(cmd);
    let why = reason(error);
    match (stage, error.raw_os_error()) {
        (Stage::Execute, Some(libc::ENOENT | libc::ENOTDIR)) => {
            Failure::new(Code::CommandNotFound, format!("{cmd}: command not found"))
        }
        (_, Some(libc::E2BIG)) => Failure::new(
            Code::TooLarge,
            "arguments and environment are longer than the system takes",
        ),
        (_, Some(libc::ENOMEM)) => out_of_resources(error),
        (Stage::Execute, _) => Failure::new(Code::CommandNotFound, format!("{cmd}: {why}")),
        (Stage::Directory, _) => {
            let cwd = cwd.unwrap_or(b"/");
            invalid(format!("cwd {}: {why}", String::from_utf8_lossy(cwd)))
        }
        (Stage::Clone, _) => out_of_resources(error),
        (Stage::Identity | Stage::Terminal, _) => {
            Failure::new(Code::Internal, format!("{cmd} cannot be started: {why}"))
        }
    }
}

/// The guest has no more descriptors, processes or memory.
pub fn out_of_resources(error: &io::Error) -> Failure {
    let code = match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOSPC) => {
            Code::TooMany
        }
        _ => Code::Internal,
    };
    Failure::new(
        code,
        format!("the capsule cannot start a process: {}", reason(error)),
    )
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn command(cmd: &str) -> Command<'_> {
        Command {
            cmd: cmd.as_bytes(),
            args: vec![],
            envs: vec![],
            cwd: None,
            user: None,
            tag: None,
        }
    }

    #[test]
    fn a_name_is_searched_in_the_childs_own_path() {
        let mut asked = command("tool");
        asked.envs.push((b"PATH", b"/a::/b"));
        let program = prepare(&asked, false).unwrap();
        let paths: Vec<_> = program.paths.iter().collect();
        assert_eq!(paths, [c"/a/tool", c"./tool", c"/b/tool"]);
        let is_path = |env: &&CStr| env.to_bytes().starts_with(b"PATH=");
        assert_eq!(program.envp.iter().filter(is_path).count(), 1);
        let program = prepare(&command("./x"), false).unwrap();
        assert_eq!(program.paths.iter().collect::<Vec<_>>(), [c"./x"]);
    }

    #[test]
    fn commands_that_cannot_run_are_refused() {
        assert!(prepare(&command(""), false).is_err());
        assert!(prepare(&command("a\0b"), false).is_err());
        let mut asked = command("x");
        asked.envs.push((b"A=B", b""));
        assert!(prepare(&asked, false).is_err());
        asked = command("x");
        asked.user = Some(b"no such user");
        assert_eq!(prepare(&asked, false).err().unwrap().code, Code::Invalid);
    }

    #[test]
    fn a_guest_without_memory_or_processes_has_too_many() {
        for errno in [libc::ENOMEM, libc::EAGAIN, libc::EMFILE, libc::ENOSPC] {
            let failure = out_of_resources(&io::Error::from_raw_os_error(errno));
            assert_eq!(failure.code, Code::TooMany, "{errno}");
        }
        let failure = out_of_resources(&io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(failure.code, Code::Internal);
    }

    #[test]
    fn tags_are_checked() {
        assert_eq!(check_tag(b"worker-1").unwrap(), "worker-1");
        for bad in [b"".as_slice(), b"123", b"a\nb", b"\xff", &[b'a'; 257]] {
            assert!(check_tag(bad).is_err());
        }
    }
}
