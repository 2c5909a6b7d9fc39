//! Starting a program at the lowest cost: `clone3` with CLONE_VM and CLONE_VFORK, into the command's cgroup. No memory is
//! copied; the calling thread stops until the child has executed its program, and the child writes the reason of a failure
//! into shared memory.
//!
//! The child must not change our memory beyond its own stack and `Child`: no allocation, no locks, system calls only.
//! Everything it needs is prepared before.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

use crate::c_strings::CStrings;

/// The user and groups of the child, if they are not ours.
pub struct Identity {
    pub uid: libc::uid_t,
    pub gid: libc::gid_t,
    pub groups: Vec<libc::gid_t>,
}

pub struct Program {
    /// Where the program may be, tried in this order.
    pub paths: CStrings,
    pub argv: CStrings,
    pub envp: CStrings,
    /// The working directory: the first one that exists.
    pub dirs: CStrings,
    pub identity: Option<Identity>,
    /// They become descriptors 0, 1 and 2. All are above 2.
    pub stdio: [RawFd; 3],
    pub has_terminal: bool,
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Clone,
    Terminal,
    Identity,
    Directory,
    Execute,
}

#[derive(Debug)]
pub struct SpawnError {
    pub stage: Stage,
    pub error: io::Error,
}

/// `Child::errno` until the child has run; not an errno of the kernel.
const HAS_NOT_RUN: i32 = -1;

const STACK_BYTES: usize = 32 * 1024;

/// The stack of children until they execute their programs, one after the other. It is allocated once: an allocation of
/// this size would make the allocator consolidate its free lists at each command.
pub struct Stack(Vec<u128>);

impl Default for Stack {
    fn default() -> Stack {
        Stack(Vec::with_capacity(STACK_BYTES / 16)) // aligned, and not cleared
    }
}

/// Shared with the child. The pointers are into `Program`, which outlives it.
struct Child<'a> {
    program: &'a Program,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    stage: Stage,
    errno: i32,
}

/// Starts the program in a new session and process group; `cgroup` is an open cgroup folder. Returns the pid.
pub fn spawn(
    stack: &mut Stack,
    program: &Program,
    cgroup: Option<RawFd>,
) -> Result<libc::pid_t, SpawnError> {
    let mut child = Child {
        program,
        argv: program.argv.pointers(),
        envp: program.envp.pointers(),
        stage: Stage::Clone,
        errno: HAS_NOT_RUN,
    };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let args = CloneArgs {
        flags: flags as u64
            | CLONE_CLEAR_SIGHAND
            | if cgroup.is_some() {
                CLONE_INTO_CGROUP
            } else {
                0
            },
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.0.as_mut_ptr() as u64,
        stack_size: STACK_BYTES as u64,
        cgroup: cgroup.unwrap_or(0) as u64,
        ..CloneArgs::default()
    };
    // SAFETY: `child`, `stack` and `args` outlive the child's use of our memory, which ends before the call returns.
    let pid = unsafe { clone_onto(&args, run_child, (&raw mut child).cast()) };
    // The compiler does not know that the child has written them.
    let (stage, errno) = unsafe {
        (
            std::ptr::read_volatile(&child.stage),
            std::ptr::read_volatile(&child.errno),
        )
    };
    if pid < 0 {
        let error = io::Error::from_raw_os_error(-pid as i32);
        return Err(SpawnError {
            stage: Stage::Clone,
            error,
        });
    }
    if errno != 0 {
        // Killed before it ran, as in a cgroup that has been killed.
        let errno = if errno == HAS_NOT_RUN {
            libc::EBUSY
        } else {
            errno
        };
        let error = io::Error::from_raw_os_error(errno);
        reap_failed(pid as libc::pid_t);
        return Err(SpawnError { stage, error });
    }
    Ok(pid as libc::pid_t)
}

/// A child that did not execute its program is reaped here and not reported.
fn reap_failed(pid: libc::pid_t) {
    // SAFETY: plain call; the child is dying, so it does not wait long.
    while unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) } < 0
        && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
    {}
}

/// The kernel's `struct clone_args`.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// `clone3` whose child calls `entry(argument)` on the new stack and never returns. Returns the pid, or minus an errno. The
/// C library's `syscall` cannot do it: the child would return through a stack frame that its parent still needs.
#[cfg(target_arch = "x86_64")]
unsafe fn clone_onto(
    args: &CloneArgs,
    entry: extern "C" fn(*mut libc::c_void) -> !,
    argument: *mut libc::c_void,
) -> i64 {
    let result: i64;
    std::arch::asm!(
        "syscall",
        "test rax, rax",
        "jnz 2f",
        "xor ebp, ebp",
        "mov rdi, r13",
        "call r12",
        "ud2",
        "2:",
        inlateout("rax") libc::SYS_clone3 => result,
        in("rdi") args,
        in("rsi") std::mem::size_of::<CloneArgs>(),
        in("r12") entry,
        in("r13") argument,
        lateout("rcx") _,
        lateout("r11") _,
    );
    result
}

extern "C" fn run_child(argument: *mut libc::c_void) -> ! {
    // SAFETY: `spawn` passed its own `Child`, and is stopped while we use it.
    let child = unsafe { &mut *argument.cast::<Child>() };
    unsafe { std::ptr::write_volatile(&mut child.errno, 0) };
    let (stage, errno) = become_program(child);
    unsafe {
        std::ptr::write_volatile(&mut child.stage, stage);
        std::ptr::write_volatile(&mut child.errno, errno);
        libc::_exit(127)
    }
}

/// Returns only on failure.
fn become_program(child: &Child) -> (Stage, i32) {
    let program = child.program;
    // SAFETY: system calls on prepared memory.
    unsafe {
        libc::setsid();
        for (target, &fd) in program.stdio.iter().enumerate() {
            libc::dup2(fd, target as i32);
        }
        if program.has_terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return (Stage::Terminal, errno());
        }
        if let Some(identity) = &program.identity {
            // The raw calls: glibc's would carry the change to our other threads.
            let groups = &identity.groups;
            if libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) < 0
                || libc::syscall(libc::SYS_setgid, identity.gid) < 0
                || libc::syscall(libc::SYS_setuid, identity.uid) < 0
            {
                return (Stage::Identity, errno());
            }
        }
        if !program
            .dirs
            .iter()
            .any(|dir| libc::chdir(dir.as_ptr()) == 0)
        {
            return (Stage::Directory, errno());
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        (Stage::Execute, execute(program, child))
    }
}

/// The search of `execvp`, but with `access` first where there are several paths, which costs less than a failed
/// `execve`. Returns the most telling errno.
unsafe fn execute(program: &Program, child: &Child) -> i32 {
    let mut most_telling = libc::ENOENT;
    let is_alone = program.paths.len() == 1;
    for path in program.paths.iter() {
        let path: &CStr = path;
        if is_alone || libc::access(path.as_ptr(), libc::F_OK) == 0 {
            libc::execve(path.as_ptr(), child.argv.as_ptr(), child.envp.as_ptr());
        }
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => most_telling = libc::EACCES,
            other => return other,
        }
    }
    most_telling
}

fn errno() -> i32 {
    // SAFETY: always valid for the calling thread.
    unsafe { *libc::__errno_location() }
}
