//! The system calls of the daemon's frame that need `unsafe`.

use std::io;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigAction, Signal, sigaction};

/// Installs a signal handler that stores to an atomic at most. Returns what was done with the signal before.
pub(crate) fn install(signal: Signal, action: &SigAction) -> nix::Result<SigAction> {
    // SAFETY: the handlers given here store to an atomic or do nothing, which signal-safety(7) allows; what the process started
    // with is to ignore a signal, or the default.
    unsafe { sigaction(signal, action) }
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

/// How long [`IdlePriority::rest_after`] sleeps for each piece: a small part of the pieces of work that it divides.
const REST: Duration = Duration::from_micros(50);

/// While it lives, the thread that made it runs only when nothing else wants its CPU, where it can come back from there.
#[derive(Debug)]
pub(crate) struct IdlePriority {
    is_lowered: bool,
    /// Priorities belong to threads.
    _thread: PhantomData<*const ()>,
}

impl IdlePriority {
    /// Lowers the priority of the calling thread.
    ///
    /// Without CAP_SYS_NICE the way back is closed (sched(7)): the thread would do at idle priority what others wait for. It
    /// keeps its priority then.
    pub(crate) fn enter() -> Self {
        static COMES_BACK: OnceLock<bool> = OnceLock::new();
        Self::enter_if(*COMES_BACK.get_or_init(|| {
            try_idle()
                .inspect_err(|error| {
                    tracing::info!(%error, "work in the background has the priority of all other work");
                })
                .is_ok()
        }))
    }

    fn enter_if(comes_back: bool) -> Self {
        let priority = Self { is_lowered: comes_back, _thread: PhantomData };
        priority.schedule(libc::SCHED_IDLE);
        priority
    }

    fn schedule(&self, policy: libc::c_int) {
        if self.is_lowered {
            schedule_or_tell(policy, 0);
        }
    }

    /// Sleeps for a moment for each of so many pieces of work, for which whoever waits gets the CPU. Called between pieces of long
    /// work.
    ///
    /// Where the kernel groups threads by their session, as it does by default (sched(7), autogroup), the priority counts among
    /// those of one session alone: a program of another one waits for several time slices, or until this thread sleeps.
    pub(crate) fn rest_after(&self, pieces: u32) {
        thread::sleep(REST * pieces);
    }

    /// Does `action` at ordinary priority: for what others wait for.
    pub(crate) fn suspended<T>(&self, action: impl FnOnce() -> T) -> T {
        self.schedule(libc::SCHED_OTHER);
        let outcome = action();
        self.schedule(libc::SCHED_IDLE);
        outcome
    }
}

impl Drop for IdlePriority {
    fn drop(&mut self) {
        self.schedule(libc::SCHED_OTHER);
    }
}

/// Whether a thread can lower its priority and have it back: tried by one that ends.
fn try_idle() -> io::Result<()> {
    let there_and_back = || schedule(libc::SCHED_IDLE, 0).and_then(|()| schedule(libc::SCHED_OTHER, 0));
    let trial = thread::Builder::new().name("priority".to_owned()).spawn(there_and_back)?;
    trial.join().unwrap_or_else(|_| Err(io::Error::other("the trial panicked")))
}

/// Lets the calling thread run before ordinary ones as soon as it wakes.
pub(crate) fn raise_priority() {
    schedule_or_tell(libc::SCHED_FIFO, 1);
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
    match io::Error::last_os_error().raw_os_error() {
        _ if status == 0 => Some(true),
        Some(libc::EINVAL | libc::ESRCH) => Some(false),
        _ => None,
    }
}

fn schedule_or_tell(policy: libc::c_int, priority: libc::c_int) {
    if let Err(error) = schedule(policy, priority) {
        let thread = thread::current();
        tracing::info!(thread = thread.name(), %error, policy, "a thread keeps the priority that it has");
    }
}

fn schedule(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameters` is a valid sched_param that outlives the call; pid 0 is the calling thread
    // (sched_setscheduler(2)).
    let status = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes CAP_SYS_NICE, bit 23, from the calling thread, and the limit that would stand in for it from the process.
    fn give_up_nice() {
        const VERSION_3: u32 = 0x2008_0522;
        let mut header = [VERSION_3, 0];
        // Effective, permitted and inheritable capabilities, their lower halves and then their upper ones.
        let mut sets = [0_u32; 6];
        // SAFETY: both arrays have the layout of capget(2), version 3, with its two parts; they outlive the calls, and pid 0 is
        // the calling thread.
        let status = unsafe {
            if libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) == 0 {
                sets[..3].iter_mut().for_each(|set| *set &= !(1 << 23));
                libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_mut_ptr())
            } else {
                -1
            }
        };
        assert_eq!(status, 0, "{}", io::Error::last_os_error());
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `none` is a valid rlimit that outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NICE, &raw const none) }, 0);
    }

    fn policy() -> libc::c_int {
        // SAFETY: it takes no pointers; pid 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn who_could_not_have_its_priority_back_keeps_it() {
        let outcome = thread::spawn(|| {
            give_up_nice();
            let outcome = try_idle();
            let _idle = IdlePriority::enter_if(outcome.is_ok());
            assert_eq!(policy(), libc::SCHED_OTHER);
            outcome
        });
        let error = outcome.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
    }

    #[test]
    fn idle_priority_is_left_for_what_others_wait_for_and_at_the_end() {
        if let Err(error) = try_idle() {
            eprintln!("SKIPPED: this user may not change priorities: {error}");
            return;
        }
        let idle = IdlePriority::enter_if(true);
        assert_eq!(policy(), libc::SCHED_IDLE);
        assert_eq!(idle.suspended(policy), libc::SCHED_OTHER);
        assert_eq!(policy(), libc::SCHED_IDLE);
        drop(idle);
        assert_eq!(policy(), libc::SCHED_OTHER);
    }
}
