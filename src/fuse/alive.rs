//! Whether the threads that answer the kernel are there: one that ended, by a panic as much as by an error of the device,
//! leaves requests to the others that only it would have been woken for, and the last one leaves everybody waiting.
//!
//! fuser joins its threads one after another, so that it hears of the end of a later one only when all before it have
//! ended. So they are looked at from outside, by what /proc says of this process.
//!
//! Threads: the housekeeping looks.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long threads may take to appear.
const START: Duration = Duration::from_secs(10);
/// Between two looks for them.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Threads of this process that are to live as long as a session.
#[derive(Debug)]
pub(super) struct Alive(Vec<Task>);

#[derive(Debug)]
struct Task {
    id: u32,
    name: String,
}

impl Task {
    /// The name of a thread of this process; `None` when there is no such thread.
    fn name_of(id: u32) -> Option<String> {
        let name = fs::read_to_string(format!("/proc/self/task/{id}/comm")).ok()?;
        Some(name.trim_end().to_owned())
    }

    fn all_named(prefix: &str) -> io::Result<Vec<Self>> {
        let ids = fs::read_dir("/proc/self/task")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let named = ids.filter_map(|id| Some(Self { id, name: Self::name_of(id)? }));
        // A thread has the name of the one that started it until it takes its own.
        let is_numbered = |name: &str| name.strip_prefix(prefix)?.parse::<usize>().ok();
        Ok(named.filter(|task| is_numbered(&task.name).is_some()).collect())
    }
}

impl Alive {
    /// Waits until there are `count` threads whose names are `prefix` and a number, or it `is_over`.
    ///
    /// # Errors
    /// What reading /proc says; that they do not appear.
    pub(super) fn find(prefix: &str, count: usize, is_over: impl Fn() -> bool) -> io::Result<Self> {
        let deadline = Instant::now() + START;
        loop {
            let found = Task::all_named(prefix)?;
            if found.len() >= count || is_over() {
                return Ok(Self(found));
            }
            if Instant::now() >= deadline {
                return Err(io::Error::other(format!("{} of {count} threads started", found.len())));
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// The name of one that is gone.
    pub(super) fn lost(&self) -> Option<&str> {
        // That another one has its number within a moment would take millions of threads: they are given out in a circle.
        let is_gone = |task: &&Task| !Path::new(&format!("/proc/self/task/{}", task.id)).exists();
        self.0.iter().find(is_gone).map(|task| task.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_that_ended_is_missed_though_others_go_on() {
        let threads = ["alive-0", "alive-1"].map(|name| {
            let (end, ends) = channel::<()>();
            let waits = move || assert!(ends.recv().is_ok(), "a thread that panics");
            (end, thread::Builder::new().name(name.to_owned()).spawn(waits).unwrap())
        });
        let alive = Alive::find("alive-", 2, || false).unwrap();
        assert_eq!(alive.lost(), None);
        let [(first, running), (second, panics)] = threads;
        drop(second);
        panics.join().unwrap_err();
        // The kernel may show it for a moment longer.
        while alive.lost().is_none() {
            thread::sleep(LOOK_INTERVAL);
        }
        assert_eq!(alive.lost(), Some("alive-1"));
        first.send(()).unwrap();
        running.join().unwrap();
    }

    #[test]
    fn threads_that_do_not_come_are_not_waited_for_once_it_is_over() {
        assert_eq!(Alive::find("nobody-", 1, || true).unwrap().lost(), None);
    }
}
