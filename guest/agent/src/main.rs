//! The entry point. It is a C `main`: Rust's start-up code aborts when descriptors 0, 1 and 2 are closed and there is no
//! /dev/null yet, which can be the case for process 1. It also ignores SIGPIPE, which the started programs would inherit.

#![no_main]

use std::ffi::{c_char, c_int, CStr, OsString};
use std::os::unix::ffi::OsStringExt;

use capsule_agent::agent::Agent;
use capsule_agent::boot;
use capsule_agent::gateway::{self, process, process::GatewayProcess};
use capsule_agent::halt;
use capsule_agent::memory::Guarded;
use capsule_agent::options::{Mode, Options, HELP};
use capsule_agent::sys::{listen, reason};

#[global_allocator]
static ALLOCATOR: Guarded = Guarded;

/// # Safety
///
/// Called by the C library, with `count` strings.
#[no_mangle]
pub unsafe extern "C" fn main(count: c_int, values: *const *const c_char) -> c_int {
    // One arena: the loop can reuse memory that worker threads have freed.
    libc::mallopt(libc::M_ARENA_MAX, 1);
    let args = (1..count as usize).map(|index| {
        // SAFETY: the C library passes `count` strings.
        let text = unsafe { CStr::from_ptr(*values.add(index)) };
        OsString::from_vec(text.to_bytes().to_vec())
    });
    let args: Vec<OsString> = args.collect();
    if std::process::id() == 1 {
        if count > 1 {
            // The kernel passes options of its own command line that it does not know on to process 1, and `ps` would show them.
            let end = *values.add(1);
            libc::prctl(libc::PR_SET_MM, libc::PR_SET_MM_ARG_END, end, 0, 0);
        }
        serve_machine()
    }
    if let [argument, port, turn] = &args[..] {
        if argument == process::ARGUMENT {
            return gateway::main(port, turn == process::AGAIN);
        }
    }
    match Options::parse(args) {
        Some(options) => serve_socket(options),
        None => {
            eprint!("{HELP}");
            2
        }
    }
}

fn serve_machine() -> ! {
    let ports = boot::boot();
    match Agent::new(Options::machine(), Some(ports.agent), None) {
        Ok(mut agent) => {
            if let Some(port) = ports.network {
                agent.keep(GatewayProcess::start(port));
            }
            halt::halt(agent.run())
        }
        Err(error) => boot::give_up(&reason(&error)),
    }
}

fn serve_socket(options: Options) -> c_int {
    // SAFETY: plain calls.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::umask(0o022);
    }
    let Mode::Socket { path, .. } = &options.mode else {
        return 2;
    };
    let path = path.clone();
    let agent = listen(&path).and_then(|listener| Agent::new(options, None, Some(listener)));
    match agent {
        Ok(agent) => {
            agent.run();
            let _ = std::fs::remove_file(&path);
            0
        }
        Err(error) => {
            eprintln!("capsule-agent: {}: {}", path.display(), reason(&error));
            1
        }
    }
}
