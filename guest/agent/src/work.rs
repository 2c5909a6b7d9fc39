//! What may block for long: the file system (a cold disk, a writer that the kernel slows down, a dead network mount)
//! must not freeze terminals. So file verbs and the list of processes are jobs, done in bounded steps by a few threads;
//! between steps a job is with the loop, which decides whether it may go on: while its data waits for the host, it may
//! not.
//!
//! Steps rather than a thread for each job: nothing ever waits for the network while it holds a thread, a cancelled job
//! is dropped between two steps, and the loop remains the only one who speaks to the host. Threads rather than steps in
//! the loop: one slow `write` would hold up everybody. They start when first needed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::protocol::Failure;
use crate::sys;

const MAX_THREADS: usize = 4;
const STACK_BYTES: usize = 256 * 1024;

/// What the host sends to a job.
pub enum Input {
    Data(Vec<u8>),
    Target(Vec<u8>),
    /// With the number of bytes sent.
    End(u64),
}

/// What a step came to.
pub struct Progress {
    /// Before any data, once.
    pub event: Option<Vec<u8>>,
    pub data: Vec<u8>,
    /// Bytes of input that are dealt with.
    pub consumed: usize,
    pub next: Next,
}

impl Progress {
    pub fn next(next: Next) -> Progress {
        Progress {
            event: None,
            data: Vec::new(),
            consumed: 0,
            next,
        }
    }

    pub fn data(data: Vec<u8>, next: Next) -> Progress {
        Progress {
            data,
            ..Progress::next(next)
        }
    }
}

pub enum Next {
    /// As soon as there is room for more data.
    Continue,
    /// As soon as there is input.
    Await,
    Done {
        /// The data gets an END.
        has_end: bool,
        result: Vec<u8>,
    },
    Failed(Failure),
}

/// A step takes a bounded part of the work. Dropping a job undoes what is not finished.
pub trait Job: Send {
    fn step(&mut self, inputs: Vec<Input>) -> Progress;
}

/// Which job of which stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub stream: u32,
    pub serial: u64,
}

enum Order {
    Step(Ticket, Box<dyn Job>, Vec<Input>),
    Drop(Box<dyn Job>),
}

pub struct Report {
    pub ticket: Ticket,
    pub job: Box<dyn Job>,
    pub progress: Progress,
}

#[derive(Default)]
struct Queue {
    orders: VecDeque<Order>,
    reports: Vec<Report>,
    idle: usize,
}

struct Shared {
    queue: Mutex<Queue>,
    has_orders: Condvar,
    /// Written whenever there is a report.
    eventfd: OwnedFd,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

pub struct Workers {
    shared: Arc<Shared>,
    threads: usize,
}

impl Workers {
    pub fn new() -> io::Result<Workers> {
        // SAFETY: plain call.
        let eventfd =
            sys::owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let shared = Shared {
            queue: Mutex::default(),
            has_orders: Condvar::new(),
            eventfd,
        };
        Ok(Workers {
            shared: Arc::new(shared),
            threads: 0,
        })
    }

    /// Rings when there are reports.
    pub fn eventfd(&self) -> RawFd {
        self.shared.eventfd.as_raw_fd()
    }

    pub fn step(&mut self, ticket: Ticket, job: Box<dyn Job>, inputs: Vec<Input>) {
        self.order(Order::Step(ticket, job, inputs));
    }

    /// Undoing may take as long as doing.
    pub fn drop_job(&mut self, job: Box<dyn Job>) {
        self.order(Order::Drop(job));
    }

    pub fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut self.shared.queue().reports)
    }

    fn order(&mut self, order: Order) {
        let mut queue = self.shared.queue();
        queue.orders.push_back(order);
        let needs_thread = queue.idle < queue.orders.len() && self.threads < MAX_THREADS;
        drop(queue);
        self.shared.has_orders.notify_one();
        if needs_thread {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            match thread.spawn(move || work(&shared)) {
                Ok(_) => self.threads += 1,
                // Without any thread the loop itself has to do it.
                Err(_) if self.threads == 0 => do_one(&self.shared),
                Err(_) => {}
            }
        }
    }
}

fn work(shared: &Shared) {
    loop {
        do_one(shared);
    }
}

fn do_one(shared: &Shared) {
    let mut queue = shared.queue();
    let order = loop {
        if let Some(order) = queue.orders.pop_front() {
            break order;
        }
        queue.idle += 1;
        queue = shared
            .has_orders
            .wait(queue)
            .unwrap_or_else(|poison| poison.into_inner());
        queue.idle -= 1;
    };
    drop(queue);
    match order {
        Order::Drop(job) => drop(job),
        Order::Step(ticket, mut job, inputs) => {
            let progress = job.step(inputs);
            let report = Report {
                ticket,
                job,
                progress,
            };
            shared.queue().reports.push(report);
            let _ = sys::write(shared.eventfd.as_raw_fd(), &1u64.to_ne_bytes());
        }
    }
}
