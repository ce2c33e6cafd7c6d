//! The signals that end the daemon: SIGHUP only where it was not told to ignore that one.

use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal};

use super::Failure;
use crate::config::ExitStatus;

/// SIGTERM, SIGINT and SIGHUP, as a flag and a sleeping thread's wake-up.
#[derive(Debug)]
pub(super) struct StopSignal;

static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note_signal(signal: i32) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

impl StopSignal {
    pub(super) fn install() -> Result<Self, Failure> {
        let action = SigAction::new(SigHandler::Handler(note_signal), SaFlags::empty(), SigSet::empty());
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            let install = |action: &SigAction| {
                crate::ffi::install(signal, action).map_err(|error| {
                    Failure::new(ExitStatus::Environment, format!("cannot catch {signal}: {error}"))
                })
            };
            let before = install(&action)?;
            if signal == Signal::SIGHUP && matches!(before.handler(), SigHandler::SigIgn) {
                // Started with nohup(1), to outlive its terminal.
                install(&before)?;
            }
        }
        Ok(Self)
    }

    pub(super) fn is_set(&self) -> bool {
        SIGNAL.load(Ordering::Relaxed) != 0
    }
}
