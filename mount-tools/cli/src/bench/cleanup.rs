//! What goes away with the bench also when Ctrl-C, SIGTERM or the end of its terminal ends it: its directories, the programs
//! that it started, and what it changed of what is not its own.
//!
//! Invariants
//! - A directory, program or change is known here from the moment it exists until it is gone.
//! - Once a signal came, nothing else is made, changed or taken away, and the bench ends by that signal's exit code.
//! - Changes are undone first, the last one first: a daemon that is stopped can then be told to end.
//!
//! Limits: SIGKILL leaves all of it, but for programs, which end with their parent.
//!
//! Threads: one waits for the signals from the start of the bench on. It stays in the mount namespace in which the bench
//! was started, where what the bench mounts privately covers no directory of it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::signal::unix::{self as signals, SignalKind};

use super::error::Error;
use crate::trial::ignores_hangup;

/// How long programs may take to end, all together.
const PATIENCE: Duration = Duration::from_secs(30);
/// A shell's exit code for a program that a signal ended is this and the signal's number.
const EXIT_BY_SIGNAL: i32 = 128;

/// What is there to take away. A mutex, held to the end by who takes it away.
static LEFT: Mutex<Left> = Mutex::new(Left::new());

/// What undoes a change.
type Undo = Box<dyn FnOnce() + Send>;

struct Left {
    /// With a number each, in the order in which they were made.
    changes: Vec<(u64, Undo)>,
    /// Of the next change.
    number: u64,
    directories: Vec<PathBuf>,
    programs: Vec<Pid>,
}

fn left() -> MutexGuard<'static, Left> {
    // Its lists are whole also when who held it panicked.
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new directory, which is removed with this value or with the bench.
#[derive(Debug)]
pub(crate) struct Directory(Option<TempDir>);

impl Directory {
    /// Makes it below that of the system for temporary files.
    ///
    /// # Errors
    /// What mkdir(2) says.
    pub(crate) fn new(prefix: &str) -> io::Result<Self> {
        Self::new_in(prefix, &std::env::temp_dir())
    }

    /// Makes it below `place`.
    ///
    /// # Errors
    /// What mkdir(2) says.
    pub(crate) fn new_in(prefix: &str, place: &Path) -> io::Result<Self> {
        let mut left = left();
        let made = TempDir::with_prefix_in(prefix, place)?;
        left.directories.push(made.path().to_owned());
        Ok(Self(Some(made)))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.as_ref().expect("it is there until it is dropped").path()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let mut left = left();
        let path = self.path().to_owned();
        drop(self.0.take());
        left.directories.retain(|other| *other != path);
    }
}

/// A program that the bench started and will end is known by this value.
#[derive(Debug)]
pub(crate) struct Program(Pid);

impl Program {
    /// `child` is told to end when the bench has to.
    pub(crate) fn of(child: &Child) -> Self {
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid of Linux is below 2^22"));
        left().programs.push(pid);
        Self(pid)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        left().programs.retain(|other| *other != self.0);
    }
}

/// A change of what is not the bench's own, which is undone with this value or with the bench.
#[derive(Debug)]
pub(crate) struct Change(u64);

impl Change {
    /// Makes a change. `undo` takes back what there is of it, also when `make` fails. Neither makes, changes or takes away what
    /// is known here.
    ///
    /// # Errors
    /// What `make` says.
    pub(crate) fn make<E>(
        make: impl FnOnce() -> Result<(), E>,
        undo: impl FnOnce() + Send + 'static,
    ) -> Result<Self, E> {
        let mut left = left();
        match make() {
            Ok(()) => Ok(Self(left.remember(Box::new(undo)))),
            Err(error) => {
                undo();
                Err(error)
            }
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        left().undo(self.0);
    }
}

impl Left {
    const fn new() -> Self {
        Self { changes: Vec::new(), number: 0, directories: Vec::new(), programs: Vec::new() }
    }

    /// The number by which the change is known.
    fn remember(&mut self, undo: Undo) -> u64 {
        let number = self.number;
        self.number += 1;
        self.changes.push((number, undo));
        number
    }

    fn undo(&mut self, number: u64) {
        if let Some(at) = self.changes.iter().position(|(other, _)| *other == number) {
            let (_, undo) = self.changes.remove(at);
            undo();
        }
    }

    fn take_away(&mut self) {
        while let Some((_, undo)) = self.changes.pop() {
            undo();
        }
        // Who was waited for is no child any more, and its number may be another's.
        self.programs.retain(|&program| is_running(program));
        for &program in &self.programs {
            // A stopped process takes no other signal.
            let _ = kill(program, Signal::SIGCONT);
            let _ = kill(program, Signal::SIGTERM);
        }
        let until = Instant::now() + PATIENCE;
        while self.programs.iter().any(|&program| is_running(program)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        for directory in &self.directories {
            if let Err(error) = remove(directory, until) {
                eprintln!("tidefs bench: {} stays: {error}", directory.display());
            }
        }
    }
}

/// Removes a directory, to which a bench that is under way may still write: once it is gone, that fails.
fn remove(directory: &Path, until: Instant) -> io::Result<()> {
    loop {
        match std::fs::remove_dir_all(directory) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && Instant::now() < until => {}
            outcome => return outcome,
        }
    }
}

/// Whether a child runs; who ended stays to be waited for.
fn is_running(child: Pid) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(child), flags) {
        Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => true,
        Ok(_) | Err(_) => false,
    }
}

/// From here on Ctrl-C, SIGTERM and SIGHUP take away what the bench made before they end it; SIGHUP not where the bench is to
/// outlive its terminal.
///
/// # Errors
/// Without a thread or a handler for it.
pub(crate) fn watch_for_signals() -> Result<(), Error> {
    let failed = || Error::system::<io::Error>("wait for signals");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed())?;
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        runtime.block_on(async {
            let mut ends = match Ends::watched() {
                Ok(ends) => ends,
                Err(error) => return drop(tell.send(Err(error))),
            };
            // The bench waits for it.
            let _ = tell.send(Ok(()));
            let came = ends.first().await;
            let mut left = left();
            left.take_away();
            std::process::exit(EXIT_BY_SIGNAL + came as i32);
        });
    });
    told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())).map_err(failed())
}

/// The signals that end the bench.
struct Ends {
    interrupt: signals::Signal,
    terminate: signals::Signal,
    /// `None` where it is ignored, by the programs that are started, too.
    hangup: Option<signals::Signal>,
}

impl Ends {
    fn watched() -> io::Result<Self> {
        let hangup = if ignores_hangup() { None } else { Some(signals::signal(SignalKind::hangup())?) };
        let [interrupt, terminate] = [SignalKind::interrupt(), SignalKind::terminate()].map(signals::signal);
        Ok(Self { interrupt: interrupt?, terminate: terminate?, hangup })
    }

    async fn first(&mut self) -> Signal {
        let Self { interrupt, terminate, hangup } = self;
        let hangup = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = hangup => Signal::SIGHUP,
            _ = interrupt.recv() => Signal::SIGINT,
            _ = terminate.recv() => Signal::SIGTERM,
        }
    }
}

/// The bench is over: waits without end when a signal is about to end it.
pub(crate) fn let_signals_end() {
    drop(left());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// What was undone, and what undoes a change by noting its name there.
    fn notes() -> (Arc<Mutex<Vec<&'static str>>>, impl Fn(&'static str) -> Undo) {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let of_undo = Arc::clone(&notes);
        let undo = move |name: &'static str| -> Undo {
            let notes = Arc::clone(&of_undo);
            Box::new(move || notes.lock().unwrap().push(name))
        };
        (notes, undo)
    }

    #[test]
    fn a_change_is_undone_with_its_value_and_one_that_failed_at_once() {
        let (notes, undo) = notes();
        let change = Change::make(|| Ok::<(), ()>(()), undo("made")).unwrap();
        assert!(notes.lock().unwrap().is_empty());
        drop(change);
        assert_eq!(*notes.lock().unwrap(), ["made"]);
        Change::make(|| Err("half of it was done"), undo("failed")).unwrap_err();
        assert_eq!(*notes.lock().unwrap(), ["made", "failed"]);
    }

    #[test]
    fn what_a_signal_finds_changed_is_undone_once_and_the_last_one_first() {
        let (notes, undo) = notes();
        let mut left = Left::new();
        let numbers = ["first", "ended", "last"].map(|name| left.remember(undo(name)));
        left.undo(numbers[1]);
        left.take_away();
        left.undo(numbers[2]);
        assert_eq!(*notes.lock().unwrap(), ["ended", "last", "first"]);
    }

    #[test]
    fn a_directory_that_is_still_written_to_is_removed() {
        let place = TempDir::new().unwrap();
        let directory = place.path().join("bench");
        std::fs::create_dir(&directory).unwrap();
        let written_to = directory.clone();
        let writer = thread::spawn(move || {
            let mut number = 0;
            while std::fs::write(written_to.join(format!("{number}")), b"").is_ok() {
                number += 1;
            }
        });
        while std::fs::read_dir(&directory).unwrap().next().is_none() {
            thread::yield_now();
        }
        remove(&directory, Instant::now() + PATIENCE).unwrap();
        writer.join().unwrap();
        assert!(!directory.exists());
    }
}
