//! Starting a program, as cheaply as the kernel allows: `clone3` with shared memory, into the command's cgroup. Nothing
//! is copied, we stand still until the child has executed its program, and the reason of a failure is simply left in
//! our memory.
//!
//! The child runs on our memory and must touch nothing of ours but its own stack: no allocation, no locks, system calls
//! only. Everything it needs is prepared before.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

use crate::texts::Texts;

/// Who the child becomes, when it is not who we are.
pub struct Identity {
    pub uid: libc::uid_t,
    pub gid: libc::gid_t,
    pub groups: Vec<libc::gid_t>,
}

pub struct Program {
    /// Tried in this order.
    pub paths: Texts,
    pub argv: Texts,
    pub envp: Texts,
    /// Tried in this order; the last one must work.
    pub dirs: Texts,
    pub identity: Option<Identity>,
    /// Become 0, 1 and 2. All above 2.
    pub stdio: [RawFd; 3],
    pub has_terminal: bool,
}

/// What the child could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Clone,
    Terminal,
    Identity,
    Directory,
    Execute,
}

#[derive(Debug)]
pub struct SpawnError {
    pub step: Step,
    pub error: io::Error,
}

/// What `errno` says until the child has run: no error of the kernel's.
const HAS_NOT_RUN: i32 = -1;

const STACK_BYTES: usize = 32 * 1024;

/// What children run on until they execute their programs, one after the other: made once, because a piece of memory this
/// large has the allocator tidy up, at each command, whatever it had kept at hand.
pub struct Stack(Vec<u128>);

impl Default for Stack {
    fn default() -> Stack {
        Stack(Vec::with_capacity(STACK_BYTES / 16)) // aligned, and not cleared for nothing
    }
}

/// What the child works with. Pointers into `Program`, which outlives it.
struct Child<'a> {
    program: &'a Program,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    step: Step,
    errno: i32,
}

/// Starts the program in a session and process group of its own; `cgroup` is an open cgroup folder. The pid.
pub fn spawn(
    stack: &mut Stack,
    program: &Program,
    cgroup: Option<RawFd>,
) -> Result<libc::pid_t, SpawnError> {
    let mut child = Child {
        program,
        argv: program.argv.pointers(),
        envp: program.envp.pointers(),
        step: Step::Clone,
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
    // The child wrote into it behind the compiler's back.
    let (step, errno) = unsafe {
        (
            std::ptr::read_volatile(&child.step),
            std::ptr::read_volatile(&child.errno),
        )
    };
    if pid < 0 {
        let error = io::Error::from_raw_os_error(-pid as i32);
        return Err(SpawnError {
            step: Step::Clone,
            error,
        });
    }
    if errno != 0 {
        // Killed before its first step: so does a cgroup that was killed once.
        let known = if errno == HAS_NOT_RUN {
            libc::EBUSY
        } else {
            errno
        };
        let error = io::Error::from_raw_os_error(known);
        reap_failed(pid as libc::pid_t);
        return Err(SpawnError { step, error });
    }
    Ok(pid as libc::pid_t)
}

/// A child that never became its program is nobody's news.
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

/// `clone3` whose child calls `entry(argument)` on the new stack and never comes back. The pid, or minus an errno. A C
/// library's wrapper cannot do it: the child must not return through a frame that its parent still needs.
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
    // SAFETY: `spawn` passed its own `Child`, and stands still while we use it.
    let child = unsafe { &mut *argument.cast::<Child>() };
    unsafe { std::ptr::write_volatile(&mut child.errno, 0) };
    let (step, errno) = become_program(child);
    unsafe {
        std::ptr::write_volatile(&mut child.step, step);
        std::ptr::write_volatile(&mut child.errno, errno);
        libc::_exit(127)
    }
}

/// Returns only to tell what could not be done.
fn become_program(child: &Child) -> (Step, i32) {
    let program = child.program;
    // SAFETY: system calls on prepared memory.
    unsafe {
        libc::setsid();
        for (target, &fd) in program.stdio.iter().enumerate() {
            libc::dup2(fd, target as i32);
        }
        if program.has_terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return (Step::Terminal, errno());
        }
        if let Some(identity) = &program.identity {
            // The raw calls: glibc's would carry the change to our other threads.
            let groups = &identity.groups;
            if libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) < 0
                || libc::syscall(libc::SYS_setgid, identity.gid) < 0
                || libc::syscall(libc::SYS_setuid, identity.uid) < 0
            {
                return (Step::Identity, errno());
            }
        }
        if !program
            .dirs
            .iter()
            .any(|dir| libc::chdir(dir.as_ptr()) == 0)
        {
            return (Step::Directory, errno());
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        (Step::Execute, execute(program, child))
    }
}

/// `execvp`'s search, except that of several paths one where nothing is costs no attempt. The errno that says most.
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
