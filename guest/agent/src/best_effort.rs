//! The best-effort part of WAKE: the identity files and the clock chip. It runs on a thread of its own, for which WAKE waits
//! at most 2 s, since a file that root has put in their place may block for ever.

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
    given: u64,
    done: u64,
    problems: Vec<String>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
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
    pub fn start(files: IdentityFiles, chip: Option<ClockChip>) -> std::io::Result<BestEffort> {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let own = shared.clone();
        thread.spawn(move || work(&own, files, chip.as_ref()))?;
        Ok(BestEffort { shared })
    }

    /// Returns a sentence for each thing that could not be done, or not in time.
    pub fn run(&self, names: Names) -> Vec<String> {
        let mut state = self.shared.state();
        state.given += 1;
        state.order = Some(names);
        let number = state.given;
        self.shared.changed.notify_all();
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
}

fn work(shared: &Shared, mut files: IdentityFiles, chip: Option<&ClockChip>) {
    let mut state = shared.state();
    loop {
        let Some(names) = state.order.take() else {
            state = shared
                .changed
                .wait(state)
                .unwrap_or_else(|poison| poison.into_inner());
            continue;
        };
        let number = state.given;
        drop(state);
        let mut problems = Vec::new();
        if let Some(Err(error)) = chip.map(ClockChip::set) {
            let why = reason(&error);
            problems.push(format!("the clock chip cannot be set: {why}"));
        }
        problems.extend(files.update(&names));
        state = shared.state();
        state.done = number;
        state.problems = problems;
        shared.changed.notify_all();
    }
}
