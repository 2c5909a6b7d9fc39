//! Memory where the guest has none left to give. Root inside may forbid overcommitment or take everything, and an allocation
//! that fails would end this program and with it the guest.
//!
//! ```text
//!   allocation ─► C library ─ failed ─► reserve, for up to 512 KiB ─ full ─► the program ends
//! ```
//!
//! So large allocations ask first (`require`, `try_reserve`) and fail their request, and small ones take from the reserve.
//! While a quarter of that is in use, no other request is accepted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use crate::protocol::{Code, Failure};

const RESERVE_BYTES: usize = 8 * 1024 * 1024;
const GRANULE_BYTES: usize = 256;
const GRANULES: usize = RESERVE_BYTES / GRANULE_BYTES;
/// A larger allocation is not made from the reserve.
const LARGE_BYTES: usize = 512 * 1024;
const LOW_BYTES: usize = RESERVE_BYTES / 4;

/// The global allocator.
pub struct Guarded;

static RESERVE: Reserve = Reserve::new();

/// Whether the reserve is in use so much that other requests must wait.
pub fn is_low() -> bool {
    RESERVE.used_bytes.load(Ordering::Relaxed) > LOW_BYTES
}

pub fn exhausted() -> Failure {
    let message = "the capsule has no memory left for this";
    Failure::new(Code::TooMany, message)
}

/// Fails unless that much can be allocated now.
pub fn require(bytes: usize) -> Result<(), Failure> {
    let mut probe = Vec::<u8>::new();
    let result = probe.try_reserve_exact(bytes).map_err(|_| exhausted());
    std::hint::black_box(&probe); // or the compiler may leave the allocation out
    result
}

/// Fails if a request that needs that much must wait.
pub fn admit(bytes: usize) -> Result<(), Failure> {
    if is_low() {
        return Err(exhausted());
    }
    require(bytes)
}

/// Appends, or fails without memory.
pub fn extend(target: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Failure> {
    target.try_reserve(bytes.len()).map_err(|_| exhausted())?;
    target.extend_from_slice(bytes);
    Ok(())
}

// SAFETY: every block is the C library's or the reserve's, and its address tells which.
unsafe impl GlobalAlloc for Guarded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = System.alloc(layout);
        if block.is_null() {
            return RESERVE.take(layout);
        }
        block
    }

    /// Pages that the C library has just mapped are zero, and take memory when they are first written.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = System.alloc_zeroed(layout);
        if !block.is_null() {
            return block;
        }
        let taken = RESERVE.take(layout);
        if !taken.is_null() {
            taken.write_bytes(0, layout.size());
        }
        taken
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if RESERVE.contains(block) {
            RESERVE.give_back(block, layout);
        } else {
            System.dealloc(block, layout);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !RESERVE.contains(block) {
            let grown = System.realloc(block, layout, new_size);
            if !grown.is_null() {
                return grown;
            }
        }
        let Ok(new_layout) = Layout::from_size_align(new_size, layout.align()) else {
            return std::ptr::null_mut();
        };
        let moved = self.alloc(new_layout);
        if !moved.is_null() {
            std::ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size));
            self.dealloc(block, layout);
        }
        moved
    }
}

#[repr(align(4096))]
struct Region(UnsafeCell<[u8; RESERVE_BYTES]>);

/// Blocks of whole granules. Its pages belong to the program from its start, so that the kernel has counted them, and take
/// no memory before they are used.
struct Reserve {
    region: Region,
    /// A bit for each granule: whether it is in use.
    used: Mutex<[u64; GRANULES / 64]>,
    used_bytes: AtomicUsize,
}

// SAFETY: no two blocks overlap, and only the owner of a block touches its bytes.
unsafe impl Sync for Reserve {}

impl Reserve {
    const fn new() -> Reserve {
        Reserve {
            region: Region(UnsafeCell::new([0; RESERVE_BYTES])),
            used: Mutex::new([0; GRANULES / 64]),
            used_bytes: AtomicUsize::new(0),
        }
    }

    fn start(&self) -> usize {
        self.region.0.get() as usize
    }

    fn contains(&self, block: *mut u8) -> bool {
        (block as usize).wrapping_sub(self.start()) < RESERVE_BYTES
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        let count = layout.size().div_ceil(GRANULE_BYTES).max(1);
        if layout.size() > LARGE_BYTES || layout.align() > GRANULE_BYTES {
            return std::ptr::null_mut();
        }
        let mut used = self.used.lock().unwrap_or_else(|it| it.into_inner());
        let Some(first) = free_run(&*used, count) else {
            return std::ptr::null_mut();
        };
        mark(&mut *used, first, count, true);
        let bytes = count * GRANULE_BYTES;
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        (self.start() + first * GRANULE_BYTES) as *mut u8
    }

    fn give_back(&self, block: *mut u8, layout: Layout) {
        let count = layout.size().div_ceil(GRANULE_BYTES).max(1);
        let first = (block as usize - self.start()) / GRANULE_BYTES;
        let mut used = self.used.lock().unwrap_or_else(|it| it.into_inner());
        mark(&mut *used, first, count, false);
        let bytes = count * GRANULE_BYTES;
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The first of `count` free granules in a row.
fn free_run(used: &[u64], count: usize) -> Option<usize> {
    let mut length = 0;
    for at in 0..GRANULES {
        let is_used = used[at / 64] >> (at % 64) & 1 == 1;
        length = if is_used { 0 } else { length + 1 };
        if length == count {
            return Some(at + 1 - count);
        }
    }
    None
}

fn mark(used: &mut [u64], first: usize, count: usize, is_used: bool) {
    for at in first..first + count {
        let bit = 1 << (at % 64);
        if is_used {
            used[at / 64] |= bit;
        } else {
            used[at / 64] &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 8).unwrap()
    }

    #[test]
    fn blocks_of_the_reserve_are_used_again_and_never_overlap() {
        static RESERVE: Reserve = Reserve::new();
        let take = |bytes| RESERVE.take(layout(bytes));
        let (first, second, third) = (take(1), take(300), take(256));
        let distance = |from: *mut u8, to: *mut u8| to as usize - from as usize;
        assert_eq!(
            (distance(first, second), distance(second, third)),
            (256, 512)
        );
        assert!(RESERVE.contains(third) && !RESERVE.contains(std::ptr::null_mut()));
        RESERVE.give_back(second, layout(300));
        assert_eq!((take(600), take(512)), (third.wrapping_add(256), second));
        let used = RESERVE.used_bytes.load(Ordering::Relaxed);
        assert_eq!(used, 256 + 512 + 256 + 768);
        assert!(take(LARGE_BYTES + 1).is_null());
        let mut more = 0;
        while !take(LARGE_BYTES).is_null() {
            more += LARGE_BYTES;
        }
        assert!(more > RESERVE_BYTES - 2 * LARGE_BYTES && more < RESERVE_BYTES);
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        assert_eq!(require(1_000), Ok(()));
        assert_eq!(require(isize::MAX as usize), Err(exhausted()));
    }

    /// The C library always maps a block of this size anew, whatever has been freed before.
    #[test]
    fn zeroed_memory_takes_no_page_before_it_is_written() {
        const PAGE_BYTES: usize = 4_096;
        const PAGES: usize = 16_384;
        const HUGE_PAGE: usize = 512;
        let whole = layout(PAGES * PAGE_BYTES);
        // SAFETY: the block lives to the end, and `states` has a byte for each of its pages.
        unsafe {
            let block = Guarded.alloc_zeroed(whole);
            assert!(!block.is_null());
            let first_page = block.wrapping_sub(block as usize % PAGE_BYTES);
            let mut states = [0u8; PAGES];
            let seen = libc::mincore(first_page.cast(), whole.size(), states.as_mut_ptr());
            assert_eq!(seen, 0);
            let resident = states.iter().filter(|&&state| state & 1 != 0).count();
            // The first page has the C library's header, and the kernel may give a huge one.
            assert!(resident <= HUGE_PAGE, "{resident} pages are resident");
            Guarded.dealloc(block, whole);
        }
    }
}
