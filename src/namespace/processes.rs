//! Who asks: from the thread id of a request to its process, and how a writer ended.
//!
//! FUSE gives the id of the calling *thread*. A hidden file is visible to the process that writes it, so the
//! process is needed, but only on that rare path; answers are kept for a moment because /proc is slow.
//!
//! Limits: `KNOWN_MAX` remembered threads, the oldest forgotten; ids may be reused by the kernel, so an answer is
//! believed for `BELIEF` only.

use std::fs;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;

const KNOWN_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("4096 is not zero");
const BELIEF: Duration = Duration::from_secs(2);

/// Exit flag of a task in `/proc/PID/stat`, from the kernel's `include/linux/sched.h` (`PF_EXITING`).
const TASK_IS_EXITING: u64 = 0x4;

/// A thread as FUSE names it; 0 when the caller is not visible from the daemon's pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId(pub u32);

impl ThreadId {
    /// Whether it is told from all others.
    #[must_use]
    pub fn is_known(self) -> bool {
        self.0 != 0
    }
}

/// A process, named by its thread-group id. The caller's thread stands for it when /proc does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(pub u32);

impl ProcessId {
    /// Any process that is not visible from the daemon's pid namespace.
    pub const UNKNOWN: Self = Self(0);

    /// Whether it is told from all others. The daemon in a container of its own sees none of those that use the mount.
    #[must_use]
    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }
}

/// How a process that closes a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterFate {
    /// It lives, or exits by its own will: what it wrote is what it meant to write.
    Sound,
    /// A signal kills it: what it wrote may be half of what it meant to write.
    Killed,
}

/// Remembers which process a thread belongs to.
#[derive(Debug)]
pub struct Processes {
    known: LruCache<ThreadId, (ProcessId, Duration)>,
}

impl Default for Processes {
    fn default() -> Self {
        Self { known: LruCache::new(KNOWN_MAX) }
    }
}

impl Processes {
    /// The process of `thread` at monotonic time `now`.
    pub fn process_of(&mut self, thread: ThreadId, now: Duration) -> ProcessId {
        if !thread.is_known() {
            return ProcessId::UNKNOWN;
        }
        if let Some(&(process, asked)) = self.known.get(&thread)
            && now.saturating_sub(asked) < BELIEF
        {
            return process;
        }
        let process = read_process(thread).unwrap_or(ProcessId(thread.0));
        self.known.put(thread, (process, now));
        process
    }
}

/// The supplementary groups of `thread`; none when it cannot be looked at, which gives it fewer rights and not more.
#[must_use]
pub fn supplementary_groups(thread: ThreadId) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{}/status", thread.0)).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|group| group.parse().ok()).collect()
}

fn read_process(thread: ThreadId) -> Option<ProcessId> {
    let status = fs::read_to_string(format!("/proc/{}/status", thread.0)).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok().map(ProcessId)
}

/// Whether `thread`, which is closing a file, is being killed by a signal.
///
/// Linux closes the files of an exiting task after it gave up its memory, and stores the exit code before that
/// (`do_exit` in `kernel/exit.c`), so at that moment `/proc/PID/stat` tells both. A task that cannot be looked at
/// is taken to be sound: the miss is a kept object, not a lost one.
#[must_use]
pub fn writer_fate(thread: ThreadId) -> WriterFate {
    if has_memory(thread) {
        return WriterFate::Sound;
    }
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", thread.0)) else { return WriterFate::Sound };
    fate_in(&stat)
}

/// Whether the task still has its memory: an exiting one gave it up before its files are closed.
///
/// Neither way takes a lock of the task. Nearly everything else in /proc and process_vm_readv(2) wait for an exec(2) of
/// the task to end, and that exec may be waiting for this very answer: it closes files, too.
///
/// Hot path: asked at each close of a writer, and of those that are waited for.
pub fn has_memory(thread: ThreadId) -> bool {
    if !thread.is_known() {
        return false; // a task of another pid namespace; nothing is known of it
    }
    crate::ffi::has_memory(thread.0).unwrap_or_else(|| {
        let mut start = [0; 2];
        let statm = fs::File::open(format!("/proc/{}/statm", thread.0));
        let read = statm.and_then(|mut file| file.read(&mut start));
        tells_of_memory(read.map(|count| &start[..count]))
    })
}

/// Whether a task has memory, by how its `statm` starts. Who cannot be looked at, for want of a descriptor say, is not taken to have
/// ended.
fn tells_of_memory(statm: io::Result<&[u8]>) -> bool {
    match statm {
        Ok(start) => !start.is_empty() && start != b"0 ",
        Err(error) => error.kind() != io::ErrorKind::NotFound && error.raw_os_error() != Some(libc::ESRCH),
    }
}

fn fate_in(stat: &str) -> WriterFate {
    // The second field is the command in parentheses and may hold anything; count fields after its last `)`.
    let Some((_, rest)) = stat.rsplit_once(')') else { return WriterFate::Sound };
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc_pid_stat(5): flags is field 9 and exit_code field 52; the first field after the command is field 3.
    let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let is_exiting = number(9) & TASK_IS_EXITING != 0;
    let killed_by_signal = number(52) & 0x7f != 0;
    if is_exiting && killed_by_signal { WriterFate::Killed } else { WriterFate::Sound }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(flags: u64, exit_code: u64) -> String {
        let mut fields = vec!["0".to_owned(); 50];
        fields[0] = "S".to_owned();
        fields[9 - 3] = flags.to_string();
        fields[52 - 3] = exit_code.to_string();
        format!("12 (a ) b) {}", fields.join(" "))
    }

    #[test]
    fn only_a_dying_task_with_a_signal_in_its_exit_code_was_killed() {
        assert_eq!(fate_in(&stat(TASK_IS_EXITING, 9)), WriterFate::Killed);
        assert_eq!(fate_in(&stat(TASK_IS_EXITING, 0x100)), WriterFate::Sound);
        assert_eq!(fate_in(&stat(0, 9)), WriterFate::Sound);
        assert_eq!(fate_in("garbage"), WriterFate::Sound);
    }

    #[test]
    fn a_task_that_ended_has_no_memory_and_its_fate_is_told_by_how_it_ended() {
        let me = nix::unistd::gettid().as_raw().unsigned_abs();
        assert!(has_memory(ThreadId(me)) && crate::ffi::has_memory(me) == Some(true));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let thread = ThreadId(child.id());
        assert_eq!(writer_fate(thread), WriterFate::Sound);
        child.kill().unwrap();
        // Until it is waited for it stays as a zombie, which is what a daemon meets that reads the last close.
        let killed = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            writer_fate(thread) == WriterFate::Killed
        });
        assert!(killed && !has_memory(thread));
        child.wait().unwrap();
        assert_eq!(writer_fate(thread), WriterFate::Sound, "nothing is known of what is gone");
    }

    #[test]
    fn a_task_that_cannot_be_looked_at_is_not_taken_to_have_ended() {
        assert!(tells_of_memory(Ok(b"17")) && !tells_of_memory(Ok(b"0 ")) && !tells_of_memory(Ok(b"")));
        let fails = |errno| tells_of_memory(Err(io::Error::from_raw_os_error(errno)));
        assert!(fails(libc::EMFILE) && fails(libc::ENOMEM) && !fails(libc::ENOENT) && !fails(libc::ESRCH));
    }

    #[test]
    fn a_thread_belongs_to_its_process() {
        let thread = std::thread::spawn(|| ThreadId(nix::unistd::gettid().as_raw().unsigned_abs()));
        let mut processes = Processes::default();
        let me = ThreadId(nix::unistd::gettid().as_raw().unsigned_abs());
        assert_eq!(processes.process_of(me, Duration::ZERO), ProcessId(std::process::id()));
        let other = thread.join().unwrap();
        // The thread is gone, so its own id stands for it.
        assert!(
            [ProcessId(other.0), ProcessId(std::process::id())]
                .contains(&processes.process_of(other, Duration::ZERO))
        );
    }
}
