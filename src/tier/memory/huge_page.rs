//! A huge page of this process, touched without keeping others from the CPU.
//!
//! The kernel zeroes a huge page of a tmpfs in one go. Where it is not preempted in its own code, nothing else runs on that CPU
//! until then: for 2 to 5 ms where the page comes from the host of a virtual machine, whatever the priority of who touches it.
//! One of an anonymous mapping it zeroes page by page, and lets others run in between.
//!
//! Invariant: whoever is not let run in the middle of a touch holds no lock of this process but that of the mapping, which
//! nobody else uses.

use std::hint::black_box;
use std::io;

use memmap2::{Advice, MmapMut, UncheckedAdvice};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::utsname::uname;

/// Bytes of a huge page.
pub(super) const BYTES: usize = 2 << 20;
/// Bytes of a small one.
const SMALL: usize = 4 << 10;
/// The first Linux, by its two numbers, that locks the mapping alone when a page of it is touched, and not all of the process.
const LOCKS_MAPPINGS: (u32, u32) = (6, 4);

/// A place for a huge page, which has none until it is touched.
#[derive(Debug)]
pub struct HugePage {
    memory: MmapMut,
    /// Where in it the huge page begins.
    start: usize,
}

impl HugePage {
    /// A place for one; `None` where touching it would keep others from something.
    #[must_use]
    pub fn new() -> Option<Self> {
        let release = uname().ok()?.release().to_str().and_then(numbers_of)?;
        if release < LOCKS_MAPPINGS {
            return None;
        }
        let memory = MmapMut::map_anon(2 * BYTES).ok()?;
        memory.advise(Advice::HugePage).ok()?;
        let start = memory.as_ptr().align_offset(BYTES);
        let mut page = Self { memory, start };
        // The first touch prepares the mapping, which takes a lock of the process.
        page.touch();
        page.give_back().ok()?;
        Some(page)
    }

    /// Touches it. Returns whether the kernel gave a huge page, and not small ones.
    pub fn touch(&mut self) -> bool {
        let before = faults();
        for offset in (self.start..self.start + BYTES).step_by(SMALL) {
            *black_box(&mut self.memory[offset]) = 1;
        }
        faults() - before < i64::try_from(BYTES / SMALL / 2).unwrap_or(i64::MAX)
    }

    /// Gives it back to the kernel.
    ///
    /// # Errors
    /// What madvise(2) says.
    pub fn give_back(&mut self) -> io::Result<()> {
        // SAFETY: the range is within the mapping, to whose bytes, zeros from now on, there is no reference.
        unsafe { self.memory.unchecked_advise_range(UncheckedAdvice::DontNeed, self.start, BYTES) }
    }
}

/// Pages that this thread has got by touching them.
fn faults() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.minor_page_faults())
}

/// The first two numbers of the release of a kernel.
fn numbers_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_page_is_touched_whole_and_given_back_whole() {
        let Some(mut page) = HugePage::new() else {
            eprintln!(
                "skipped: this kernel locks the process when a page is touched, or knows no huge pages"
            );
            return;
        };
        for _ in 0..2 {
            page.touch();
            assert_eq!((page.memory[page.start], page.memory[page.start + BYTES - SMALL]), (1, 1));
            page.give_back().unwrap();
            assert!(page.memory[page.start..][..BYTES].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn kernels_are_told_apart_by_two_numbers() {
        assert_eq!(numbers_of("6.18.44-fc-v782"), Some((6, 18)));
        assert_eq!(numbers_of("5.4-rc1"), Some((5, 4)));
        assert!(numbers_of("6.3.0") < Some(LOCKS_MAPPINGS) && numbers_of("6.10") > Some(LOCKS_MAPPINGS));
        assert_eq!((numbers_of("6"), numbers_of("linux")), (None, None));
    }
}
