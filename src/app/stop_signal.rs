//! The signals that end the daemon: SIGHUP only where it tells of the end of a terminal, and was not to be ignored from the start.

use std::fs::File;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use nix::poll::{PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal};
use nix::unistd::{getpid, getsid};

use super::Failure;
use crate::config::ExitStatus;

/// SIGTERM, SIGINT and SIGHUP, as a flag that is set, and the end of [`StopSignal::wait`].
#[derive(Debug)]
pub(super) struct StopSignal;

static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note_signal(signal: i32) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

impl StopSignal {
    pub(super) fn install() -> Result<Self, Failure> {
        let acting = |handler| SigAction::new(handler, SaFlags::empty(), SigSet::empty());
        let action = acting(SigHandler::Handler(note_signal));
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            let install = |action: &SigAction| {
                crate::ffi::install(signal, action).map_err(|error| {
                    Failure::new(ExitStatus::Environment, format!("cannot catch {signal}: {error}"))
                })
            };
            let before = install(&action)?;
            // Ignored from the start: by nohup(1), to outlive its terminal.
            let is_ignored = matches!(before.handler(), SigHandler::SigIgn);
            if signal == Signal::SIGHUP && (is_ignored || has_no_terminal_to_lose()) {
                install(&acting(SigHandler::SigIgn))?;
            }
        }
        Ok(Self)
    }

    pub(super) fn is_set(&self) -> bool {
        SIGNAL.load(Ordering::Relaxed) != 0
    }

    /// Waits for `limit`, or until a signal comes. It is for the first thread of the process, to which Linux gives the signals
    /// of all: another one is not woken. One that came just before this is not noticed before `limit` is over.
    pub(super) fn wait(&self, limit: Duration) {
        nap(limit);
    }
}

/// Whether this process leads a session that has no terminal, as one of a service manager or of `tidefs mount` does. The kernel tells
/// it of no hang-up, so that whoever sends it SIGHUP means what that means to most such programs, to read their configuration
/// again, and not the end of a mount. One that does not lead its session may be told by the shell that does.
fn has_no_terminal_to_lose() -> bool {
    getsid(None).is_ok_and(|session| session == getpid()) && File::open("/dev/tty").is_err()
}

/// Sleeps for `limit`, or until this thread has handled a signal, after which `thread::sleep` goes on.
fn nap(limit: Duration) {
    // Nothing is looked at, so there is no other error than that.
    let _ = poll(&mut [], PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Instant;

    use nix::sys::signal::kill;
    use nix::unistd::gettid;

    use super::*;

    extern "C" fn pass_by(_signal: i32) {}

    #[test]
    fn a_signal_wakes_who_naps() {
        let action = SigAction::new(SigHandler::Handler(pass_by), SaFlags::SA_RESTART, SigSet::empty());
        crate::ffi::install(Signal::SIGUSR2, &action).unwrap();
        let (tell, told) = channel();
        let sleeper = thread::spawn(move || {
            tell.send(gettid()).unwrap();
            nap(Duration::from_secs(60));
        });
        let (number, began) = (told.recv().unwrap(), Instant::now());
        while !sleeper.is_finished() {
            assert!(began.elapsed() < Duration::from_secs(30), "it sleeps on");
            // Of a process that is named by the number of a thread, that thread gets it first. It may have ended by now.
            let _ = kill(number, Signal::SIGUSR2);
            thread::sleep(Duration::from_millis(1));
        }
    }
}
