//! Worker threads for jobs. The file system may block for long: a cold disk, a writer that the kernel throttles, a dead
//! network mount. That must not delay terminals, so jobs do not run in the loop.
//!
//! Jobs are done in steps, not in a thread for each: so a job that waits for the host holds no thread, a cancelled job is
//! dropped between two steps, and only the loop talks to the host. Threads start when first needed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::job::{Input, Job, Progress};
use crate::sys;

const MAX_THREADS: usize = 4;
const STACK_BYTES: usize = 256 * 1024;

/// Identifies a job; a stream number may be used again.
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
    /// `None`: it is over.
    pub job: Option<Box<dyn Job>>,
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
    /// Written after each report.
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

    /// Readable when there are reports.
    pub fn eventfd(&self) -> RawFd {
        self.shared.eventfd.as_raw_fd()
    }

    pub fn step(&mut self, ticket: Ticket, job: Box<dyn Job>, inputs: Vec<Input>) {
        self.order(Order::Step(ticket, job, inputs));
    }

    /// Drops the job on a thread, since undoing may take as long as doing.
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
                // Without any thread it is done here.
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
            // Its files are closed, and what it has not finished is undone, before its answer is sent.
            let job = Some(job).filter(|_| !progress.next.is_last());
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
