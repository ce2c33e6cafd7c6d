//! Keeps the process's signals its own: providers of libfabric (psm's, through its library) install handlers that end the
//! process on SIGTERM and print a backtrace on SIGSEGV, whoever loaded them.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Signals whose dispositions are kept: all of signal(7) that have one.
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=31;

/// Held by the one thread that has signals kept: another would take a library's handlers, which are there for a moment, for the
/// process's, and put them back.
static KEPT: Mutex<()> = Mutex::new(());

/// The dispositions of all signals as they were. Dropping it puts back those that changed since. A thread has one at a time, and
/// waits for that of another.
///
/// Limit: what another thread changes meanwhile is put back too.
pub(crate) struct KeptSignals {
    dispositions: Vec<(libc::c_int, libc::sigaction)>,
    _kept: MutexGuard<'static, ()>,
}

fn disposition(signal: libc::c_int) -> Option<libc::sigaction> {
    let mut current = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null second argument changes nothing; the third is room for one disposition.
    let told = unsafe { libc::sigaction(signal, ptr::null(), current.as_mut_ptr()) } == 0;
    // SAFETY: zeroed memory is a valid disposition, and sigaction(2) wrote one.
    told.then(|| unsafe { current.assume_init() })
}

impl KeptSignals {
    /// Notes the dispositions of now.
    pub(crate) fn now() -> Self {
        // It guards no data that a panic could have left half changed.
        let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let changeable = SIGNALS.filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal));
        let dispositions = changeable.filter_map(|signal| Some((signal, disposition(signal)?))).collect();
        Self { dispositions, _kept: kept }
    }
}

impl Drop for KeptSignals {
    fn drop(&mut self) {
        for (signal, kept) in &self.dispositions {
            let is_changed = disposition(*signal).is_some_and(|now| now.sa_sigaction != kept.sa_sigaction);
            if is_changed {
                // SAFETY: the disposition was this process's before; its handler is still there. It is a valid signal, so
                // the call cannot fail.
                unsafe { libc::sigaction(*signal, kept, ptr::null_mut()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn foreign(_: libc::c_int) {}

    #[test]
    fn a_handler_that_a_library_installs_is_taken_away_again() {
        let before = disposition(libc::SIGUSR2).unwrap().sa_sigaction;
        {
            let _kept = KeptSignals::now();
            // SAFETY: the handler does nothing.
            unsafe { libc::signal(libc::SIGUSR2, foreign as *const () as libc::sighandler_t) };
            assert_ne!(disposition(libc::SIGUSR2).unwrap().sa_sigaction, before);
        }
        assert_eq!(disposition(libc::SIGUSR2).unwrap().sa_sigaction, before);
    }
}
