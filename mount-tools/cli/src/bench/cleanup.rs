//! What goes away with the bench also when Ctrl-C or SIGTERM ends it: its directories, and the programs that it started.
//!
//! Invariants
//! - A directory or program is known here from the moment it exists until it is gone.
//! - Once a signal came, nothing else is made or taken away, and the bench ends by that signal's exit code.
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
use tokio::signal::unix::{SignalKind, signal};

use super::error::Error;

/// How long programs may take to end, all together.
const PATIENCE: Duration = Duration::from_secs(30);
/// A shell's exit code for a program that a signal ended is this and the signal's number.
const EXIT_BY_SIGNAL: i32 = 128;

/// What is there to take away. A mutex, held to the end by who takes it away.
static LEFT: Mutex<Left> = Mutex::new(Left { directories: Vec::new(), programs: Vec::new() });

struct Left {
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

impl Left {
    fn take_away(&mut self) {
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
            if let Err(error) = std::fs::remove_dir_all(directory) {
                eprintln!("tidefs bench: {} stays: {error}", directory.display());
            }
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

/// From here on Ctrl-C and SIGTERM take away what the bench made before they end it.
///
/// # Errors
/// Without a thread or a handler for it.
pub(crate) fn watch_for_signals() -> Result<(), Error> {
    let failed = || Error::system::<io::Error>("wait for signals");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed())?;
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        runtime.block_on(async {
            let handlers = signal(SignalKind::interrupt()).and_then(|interrupt| {
                signal(SignalKind::terminate()).map(|terminate| (interrupt, terminate))
            });
            let (mut interrupt, mut terminate) = match handlers {
                Ok(handlers) => handlers,
                Err(error) => return drop(tell.send(Err(error))),
            };
            // The bench waits for it.
            let _ = tell.send(Ok(()));
            let came = tokio::select! {
                _ = interrupt.recv() => Signal::SIGINT,
                _ = terminate.recv() => Signal::SIGTERM,
            };
            let mut left = left();
            left.take_away();
            std::process::exit(EXIT_BY_SIGNAL + came as i32);
        });
    });
    told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())).map_err(failed())
}

/// The bench is over: waits without end when a signal is about to end it.
pub(crate) fn let_signals_end() {
    drop(left());
}
