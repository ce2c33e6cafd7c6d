//! The system calls of the daemon's frame that need `unsafe`.

use nix::sys::signal::{SigAction, Signal, sigaction};

/// Installs a signal handler that only stores to an atomic.
pub(crate) fn install(signal: Signal, action: &SigAction) -> nix::Result<()> {
    // SAFETY: the handlers given here store to an atomic and nothing else, which signal-safety(7) allows.
    unsafe { sigaction(signal, action) }.map(drop)
}

/// Lets the calling thread run only when nothing else wants its CPU.
pub(crate) fn lower_priority() {
    schedule(libc::SCHED_IDLE, 0);
}

/// Lets the calling thread run before ordinary ones as soon as it wakes.
pub(crate) fn raise_priority() {
    schedule(libc::SCHED_FIFO, 1);
}

fn schedule(policy: libc::c_int, priority: libc::c_int) {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameters` is a valid sched_param that outlives the call; pid 0 is the calling thread
    // (sched_setscheduler(2)).
    let status = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if status != 0 {
        let thread = std::thread::current();
        tracing::info!(
            thread = thread.name(),
            error = %std::io::Error::last_os_error(),
            "a thread keeps ordinary priority"
        );
    }
}
