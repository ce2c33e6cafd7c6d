//! The system calls of the daemon's frame that need `unsafe`.

use std::marker::PhantomData;

use nix::sys::signal::{SigAction, Signal, sigaction};

/// Installs a signal handler that only stores to an atomic.
pub(crate) fn install(signal: Signal, action: &SigAction) -> nix::Result<()> {
    // SAFETY: the handlers given here store to an atomic and nothing else, which signal-safety(7) allows.
    unsafe { sigaction(signal, action) }.map(drop)
}

/// Bytes from which an allocation gets a mapping of its own: above the buffers that come and go with requests, below
/// tables that grow with the number of objects.
const MAPPED_MIN: libc::c_int = 4 << 20;

/// Makes the C allocator keep large tables in mappings of their own, which grow by moving page tables and go back to
/// the kernel when they are freed. Called once, before other threads start.
///
/// Left alone, glibc raises its threshold to the largest table freed so far; from then on each table that grows is
/// copied and leaves a hole of its old size, which with a million objects is a fifth of the daemon's memory
/// (mallopt(3), "dynamic mmap threshold").
pub(crate) fn keep_tables_in_mappings() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_MMAP_THRESHOLD, MAPPED_MIN), (libc::M_TRIM_THRESHOLD, 2 * MAPPED_MIN)]
    {
        // SAFETY: mallopt(3) takes any integers and says with 0 that it did nothing, which costs memory only; no
        // other thread of this process allocates yet.
        let _ = unsafe { libc::mallopt(parameter, value) };
    }
}

/// While it lives, the thread that made it runs only when nothing else wants its CPU.
#[derive(Debug)]
pub(crate) struct IdlePriority {
    /// Priorities belong to threads.
    _thread: PhantomData<*const ()>,
}

impl IdlePriority {
    /// Lowers the priority of the calling thread.
    pub(crate) fn enter() -> Self {
        schedule(libc::SCHED_IDLE, 0);
        Self { _thread: PhantomData }
    }

    /// Does `action` at ordinary priority: for what others wait for.
    pub(crate) fn suspended<T>(&self, action: impl FnOnce() -> T) -> T {
        schedule(libc::SCHED_OTHER, 0);
        let outcome = action();
        schedule(libc::SCHED_IDLE, 0);
        outcome
    }
}

impl Drop for IdlePriority {
    fn drop(&mut self) {
        schedule(libc::SCHED_OTHER, 0);
    }
}

/// Lets the calling thread run before ordinary ones as soon as it wakes.
pub(crate) fn raise_priority() {
    schedule(libc::SCHED_FIFO, 1);
}

/// Whether the task with thread id `thread` (not 0) has its memory still. `None`: this kernel does not let us ask so.
///
/// move_pages(2) of no pages looks the task's memory up and does nothing else, in a seventh of the time that a file of
/// /proc takes. It takes no lock of the task.
pub(crate) fn has_memory(thread: u32) -> Option<bool> {
    let no_pages = std::ptr::null::<libc::c_void>();
    // SAFETY: with a count of 0 none of the three arrays is read or written (move_pages(2)).
    let status = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            libc::c_ulong::from(thread),
            0_u64,
            no_pages,
            no_pages,
            no_pages,
            0,
        )
    };
    match std::io::Error::last_os_error().raw_os_error() {
        _ if status == 0 => Some(true),
        Some(libc::EINVAL | libc::ESRCH) => Some(false),
        _ => None,
    }
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
            policy,
            "a thread keeps the priority that it has"
        );
    }
}
