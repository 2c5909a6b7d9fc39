//! Coverage-guided fuzzing of the code that reads a host's bytes: the parser, every record, and the counters of streams.
//! An input that reaches a new branch, or reaches a branch more often, is mutated further. A finding is a panic, which
//! includes overflows; its input is left in a file whose name is printed.
//!
//! The coverage counters come from the compiler. Without them the fuzzer runs unguided, and prints so:
//!
//! ```text
//! RUSTFLAGS="-C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=3 \
//!   -C llvm-args=-sanitizer-coverage-inline-8bit-counters" CARGO_TARGET_DIR=target/guided \
//!   ./build run --target x86_64-unknown-linux-gnu --example guided -- 5000000
//! ```

use std::collections::HashSet;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::Mutex;

use capsule_agent::command::{check_tag, prepare};
use capsule_agent::frames::*;
use capsule_agent::protocol::*;
use capsule_agent::record::{Malformed, Reader};
use capsule_agent::request::{Exec, Request};
use capsule_agent::stream::Role;
use capsule_agent::streams::Streams;

static COUNTERS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The current input, for the panic hook.
static INPUT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Called by instrumented code before `main`, once for each module; the linker has made the counters one array.
#[no_mangle]
pub extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, end: *mut u8) {
    COUNTERS.store(start, Ordering::Relaxed);
    COUNT.store(end as usize - start as usize, Ordering::Relaxed);
}

fn counters() -> &'static mut [u8] {
    let start = COUNTERS.load(Ordering::Relaxed);
    if start.is_null() {
        return &mut [];
    }
    // SAFETY: the compiler's array; there is one thread.
    unsafe { std::slice::from_raw_parts_mut(start, COUNT.load(Ordering::Relaxed)) }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// The golden frames, each alone.
fn seeds() -> Vec<Vec<u8>> {
    let text = include_str!("../golden/frames.txt");
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    let unhex = |hex: &str| -> Option<Vec<u8>> {
        let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        (0..hex.len()).step_by(2).map(byte).collect()
    };
    lines
        .filter(|(name, _)| !name.starts_with('#'))
        .filter_map(|(_, hex)| unhex(hex.trim()))
        .collect()
}

/// Decodes an OPEN as the agent does, and whatever it does before it acts. True: it opens a terminal.
fn read_request(request: &[u8]) -> Result<bool, Malformed> {
    let mut fields = Reader::new(request);
    let verb = Verb::from_number(fields.u16()?).ok_or(Malformed)?;
    match Request::read(verb, fields)? {
        Request::Exec(Exec { command, .. }) => {
            let _ = command.tag.map(check_tag);
            let _ = prepare(&command, false);
        }
        Request::Pty { command, .. } => {
            let _ = command.tag.map(check_tag);
            let _ = prepare(&command, true);
            return Ok(true);
        }
        Request::File(request) => drop(request.job()),
        Request::Connect { .. } => return Ok(true),
        _ => {}
    }
    Ok(false)
}

/// Parses all of the input, in pieces of a size that the input chooses. Returns the number of frames.
fn parse(input: &[u8]) -> usize {
    let Some((&first, mut rest)) = input.split_first() else {
        return 0;
    };
    let mut parser = Parser::default();
    let mut streams = Streams::default();
    streams.begin_epoch(1);
    let mut frames = 0;
    while !rest.is_empty() {
        let space = parser.space();
        let length = (1 + usize::from(first) * 16)
            .min(rest.len())
            .min(space.len());
        space[..length].copy_from_slice(&rest[..length]);
        parser.filled(length);
        rest = &rest[length..];
        while let Some(frame) = parser.next() {
            frames += 1;
            receive(&mut streams, &frame);
            streams.pump();
            if frame.flags & 0x80 != 0 {
                streams.outbox().clear(); // as if the pipe had taken all
            }
        }
    }
    streams.begin_epoch(2);
    frames
}

fn receive(streams: &mut Streams, frame: &Frame) {
    // Few streams, so that numbers are used again.
    let (id, payload) = (frame.stream % 4, frame.payload);
    let mut fields = Reader::new(payload);
    match frame.kind {
        HELLO if read_hello(payload).is_ok() => drop(streams.begin_epoch(frame.epoch)),
        OPEN if !streams.is_open(id) && !streams.is_full() => {
            if let Ok(is_terminal) = read_request(payload) {
                streams.open(id);
                let role = if is_terminal {
                    Role::Terminal(id)
                } else {
                    Role::Call
                };
                streams.set_role(id, role);
                streams.data(id, channel::MAIN, &vec![b'x'; 50_000 + payload.len()]);
            }
        }
        DATA if streams.receive(id, payload.len()) => {
            streams.data(id, channel::MAIN, payload);
            streams.consumed(id, payload.len());
        }
        WINDOW => drop(fields.u32().map(|credit| streams.credit(id, credit))),
        EVENT => {
            let total = fields.u16().and_then(|_| fields.u64());
            drop(total.map(|total| streams.taken(id, total)));
        }
        END => streams.end_with_result(id, empty()),
        CANCEL => drop(streams.cancel(id)),
        _ => {}
    }
}

fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    const NUMBERS: [u32; 8] = [0, 1, 5, 255, 65_535, 65_536, 262_144, u32::MAX];
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(5) {
        let at = random.below(input.len() + 1);
        match random.below(8) {
            0 => input.truncate(at),
            1 => input.insert(at, random.next() as u8),
            2 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                input.splice(at..at, other[from..].iter().copied());
            }
            3 if at + 4 <= input.len() => {
                let number = NUMBERS[random.below(NUMBERS.len())];
                input[at..at + 4].copy_from_slice(&number.to_le_bytes());
            }
            4 => input.extend_from_slice(&corpus[random.below(corpus.len())]),
            5 if at < input.len() => drop(input.remove(at)),
            _ if at < input.len() => input[at] = random.next() as u8,
            _ => {}
        }
        input.truncate(4_096);
    }
    input
}

/// The branches reached, and the logarithms of how often. Clears the counters.
fn reached() -> impl Iterator<Item = (usize, u32)> {
    let counts = counters().iter_mut().map(std::mem::take).enumerate();
    let found: Vec<_> = counts
        .filter(|&(_, count)| count > 0)
        .map(|(branch, count)| (branch, count.ilog2()))
        .collect();
    found.into_iter()
}

fn main() {
    let number = |at| std::env::args().nth(at).and_then(|arg| arg.parse().ok());
    let inputs: u64 = number(1).unwrap_or(100_000);
    let seed: u64 = number(2).unwrap_or_else(|| u64::from_ne_bytes(capsule_agent::sys::random()));
    let mut random = Random(seed | 1);
    println!("seed {seed}");
    std::panic::set_hook(Box::new(|panic| {
        let file = std::env::temp_dir().join(format!("capsule-guided-{}", std::process::id()));
        let input = INPUT.lock().unwrap_or_else(|poison| poison.into_inner());
        let _ = std::fs::write(&file, &*input);
        eprintln!("{panic}\nthe input is in {}", file.display());
    }));
    let mut corpus = vec![vec![0]];
    corpus.extend(seeds().into_iter().map(|frame| [vec![255], frame].concat()));
    let mut seen = HashSet::new();
    let mut frames = 0;
    for i in 0..inputs {
        let input = match corpus.get(i as usize) {
            Some(seed) if (i as usize) < 64 => seed.clone(),
            _ => mutate(&corpus, &mut random),
        };
        if let Ok(mut tried) = INPUT.lock() {
            tried.clone_from(&input);
        }
        counters().fill(0);
        frames += parse(&input);
        if reached().filter(|&branch| seen.insert(branch)).count() > 0 {
            corpus.push(input);
        }
    }
    let branches: HashSet<usize> = seen.iter().map(|&(branch, _)| branch).collect();
    let guidance = if counters().is_empty() {
        "unguided: built without counters".to_string()
    } else {
        format!("{} of {} branches", branches.len(), counters().len())
    };
    let kept = corpus.len();
    println!("{inputs} inputs, {frames} frames, {kept} kept; {guidance}");
}
