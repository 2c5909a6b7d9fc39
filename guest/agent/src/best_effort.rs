//! The best-effort part of WAKE: the identity files and the clock chip. It runs on a thread of its own, for which WAKE waits
//! at most 2 s, since a file that root has put in their place may block for ever. The thread ends with its work: a thread
//! that waits holds 30 KiB of the guest's memory.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::devices::ClockChip;
use crate::identity::{IdentityFiles, Names};
use crate::sys::reason;

/// Far longer than a disk takes under emulation on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(2);
const STACK_BYTES: usize = 128 * 1024;

#[derive(Default)]
struct State {
    /// The latest; one that the thread has not begun is replaced.
    order: Option<Names>,
    /// The thread runs.
    is_working: bool,
    given: u64,
    done: u64,
    problems: Vec<String>,
}

struct Tools {
    files: IdentityFiles,
    chip: Option<ClockChip>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Held by the thread while it works.
    tools: Mutex<Tools>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

pub struct BestEffort {
    shared: Arc<Shared>,
}

impl BestEffort {
    pub fn new(files: IdentityFiles, chip: Option<ClockChip>) -> BestEffort {
        BestEffort {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                changed: Condvar::new(),
                tools: Mutex::new(Tools { files, chip }),
            }),
        }
    }

    /// Returns a sentence for each thing that could not be done, or not in time.
    pub fn run(&self, names: Names) -> Vec<String> {
        let mut state = self.shared.state();
        state.given += 1;
        state.order = Some(names);
        let number = state.given;
        if !state.is_working {
            if let Err(error) = self.start() {
                state.order = None;
                let why = reason(&error);
                return vec![format!("the files in /etc cannot be looked at: {why}")];
            }
            state.is_working = true;
        }
        let (mut state, timeout) = self
            .shared
            .changed
            .wait_timeout_while(state, TIMEOUT, |state| state.done < number)
            .unwrap_or_else(|poison| poison.into_inner());
        if timeout.timed_out() {
            let message = "the files in /etc could not be looked at within 2 s";
            return vec![message.into()];
        }
        std::mem::take(&mut state.problems)
    }

    fn start(&self) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let shared = self.shared.clone();
        thread.spawn(move || work(&shared)).map(drop)
    }
}

fn work(shared: &Shared) {
    let mut tools = shared
        .tools
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let mut state = shared.state();
    while let Some(names) = state.order.take() {
        let number = state.given;
        drop(state);
        let problems = tools.work(&names);
        state = shared.state();
        state.done = number;
        state.problems = problems;
        shared.changed.notify_all();
    }
    state.is_working = false;
}

impl Tools {
    fn work(&mut self, names: &Names) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(Err(error)) = self.chip.as_ref().map(ClockChip::set) {
            let why = reason(&error);
            problems.push(format!("the clock chip cannot be set: {why}"));
        }
        problems.extend(self.files.update(names));
        problems
    }
}
