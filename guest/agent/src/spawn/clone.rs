//! `clone3` with a stack for the child, which the C library does not offer.

/// The kernel's `struct clone_args`.
#[repr(C, align(8))]
#[derive(Default)]
pub struct Args {
    pub flags: u64,
    pub pidfd: u64,
    pub child_tid: u64,
    pub parent_tid: u64,
    pub exit_signal: u64,
    pub stack: u64,
    pub stack_size: u64,
    pub tls: u64,
    pub set_tid: u64,
    pub set_tid_size: u64,
    pub cgroup: u64,
}

/// `clone3` whose child calls `entry(argument)` on the new stack and never returns. Returns the pid, or minus an errno. The
/// C library's `syscall` cannot do it: the child would return through a stack frame that its parent still needs.
#[cfg(target_arch = "x86_64")]
pub unsafe fn clone_onto(
    args: &Args,
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
        in("rsi") std::mem::size_of::<Args>(),
        in("r12") entry,
        in("r13") argument,
        lateout("rcx") _,
        lateout("r11") _,
    );
    result
}
