//! A child between its start and the execution of its program. It shares our memory, and must not change it beyond its own
//! stack and `Child`: no allocation, no locks, no function of the C library, whose `errno` is that of our thread; system
//! calls only. Everything it needs is prepared before.

use std::ffi::CStr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::Arc;

use super::{Identity, Program, Stage};
use crate::c_strings::CStrings;

/// `Child::errno` until the child has run; not an errno of the kernel.
pub const HAS_NOT_RUN: i32 = -1;

const STAGES: [Stage; 5] = [
    Stage::Clone,
    Stage::Terminal,
    Stage::Identity,
    Stage::Directory,
    Stage::Execute,
];

/// Shared with the child.
pub struct Child {
    program: Arc<Program>,
    /// Pointers into `program`.
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    /// An index of `STAGES`.
    stage: AtomicU32,
    pub errno: AtomicI32,
    /// 1 until the child is done with our memory; then the kernel sets it to 0 and wakes who waits for it.
    pub running: AtomicU32,
}

impl Child {
    pub fn new(program: Arc<Program>) -> Child {
        Child {
            argv: program.argv.pointers(),
            envp: program.envp.pointers(),
            program,
            stage: AtomicU32::new(0),
            errno: AtomicI32::new(HAS_NOT_RUN),
            running: AtomicU32::new(1),
        }
    }

    /// The step that failed, once `errno` is that of a failure.
    pub fn stage(&self) -> Stage {
        STAGES[self.stage.load(Ordering::SeqCst) as usize % STAGES.len()]
    }
}

pub extern "C" fn run_child(argument: *mut libc::c_void) -> ! {
    // SAFETY: `spawn` passed a `Child` that is kept until we are done with it.
    let child = unsafe { &*argument.cast::<Child>() };
    child.errno.store(0, Ordering::SeqCst);
    let (stage, errno) = become_program(child);
    child.stage.store(stage as u32, Ordering::SeqCst);
    child.errno.store(errno, Ordering::SeqCst);
    loop {
        // SAFETY: it ends this process.
        let _ = unsafe { call(libc::SYS_exit_group, [127, 0, 0, 0]) };
    }
}

/// Returns only on failure.
fn become_program(child: &Child) -> (Stage, i32) {
    let program = &*child.program;
    // SAFETY: system calls on prepared memory.
    unsafe {
        let _ = call(libc::SYS_setsid, [0; 4]);
        for (target, &fd) in program.stdio.iter().enumerate() {
            let _ = call(libc::SYS_dup2, [fd as usize, target, 0, 0]);
        }
        // Another command's pipe that it held would seem to be in use as long as this child does not get further.
        let _ = call(libc::SYS_close_range, [3, u32::MAX as usize, 0, 0]);
        if program.has_terminal {
            if let Err(errno) = call(libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0]) {
                return (Stage::Terminal, errno);
            }
        }
        if let Some(Err(errno)) = program.identity.as_ref().map(|it| assume(it)) {
            return (Stage::Identity, errno);
        }
        if let Err(errno) = change_directory(&program.dirs) {
            return (Stage::Directory, errno);
        }
        let none = 0u64;
        let mask = [libc::SIG_SETMASK as usize, (&raw const none) as usize, 0, 8];
        let _ = call(libc::SYS_rt_sigprocmask, mask);
        (Stage::Execute, execute(program, child))
    }
}

unsafe fn assume(identity: &Identity) -> Result<(), i32> {
    let groups = &identity.groups;
    let list = [groups.len(), groups.as_ptr() as usize, 0, 0];
    call(libc::SYS_setgroups, list)?;
    call(libc::SYS_setgid, [identity.gid as usize, 0, 0, 0])?;
    call(libc::SYS_setuid, [identity.uid as usize, 0, 0, 0]).map(drop)
}

unsafe fn change_directory(dirs: &CStrings) -> Result<(), i32> {
    let mut result = Err(libc::ENOENT);
    for dir in dirs.iter() {
        result = call(libc::SYS_chdir, [dir.as_ptr() as usize, 0, 0, 0]).map(drop);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// The search of `execvp`, but with `access` first where there are several paths, which costs less than a failed
/// `execve`. Returns the most telling errno.
unsafe fn execute(program: &Program, child: &Child) -> i32 {
    let mut most_telling = libc::ENOENT;
    let is_alone = program.paths.len() == 1;
    let (argv, envp) = (child.argv.as_ptr() as usize, child.envp.as_ptr() as usize);
    for path in program.paths.iter() {
        let path: &CStr = path;
        let path = path.as_ptr() as usize;
        let mut result = Ok(0);
        if !is_alone {
            result = call(libc::SYS_access, [path, libc::F_OK as usize, 0, 0]);
        }
        if result.is_ok() {
            result = call(libc::SYS_execve, [path, argv, envp, 0]);
        }
        match result {
            Ok(_) | Err(libc::ENOENT | libc::ENOTDIR) => {}
            Err(libc::EACCES) => most_telling = libc::EACCES,
            Err(other) => return other,
        }
    }
    most_telling
}

/// A system call without the C library.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: libc::c_long, [a, b, c, d]: [usize; 4]) -> Result<usize, i32> {
    let result: i64;
    std::arch::asm!(
        "syscall",
        inlateout("rax") number => result,
        in("rdi") a,
        in("rsi") b,
        in("rdx") c,
        in("r10") d,
        lateout("rcx") _,
        lateout("r11") _,
    );
    if result < 0 {
        Err(-result as i32)
    } else {
        Ok(result as usize)
    }
}
