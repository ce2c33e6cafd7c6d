//! The log: where it goes, and what of it is left out.
//!
//! A program that asks in vain ten thousand times a second is told of a hundred times a minute. What is counted is the place in
//! the program that warns, with all its lines; what is left out is counted, and told with the next line from there.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Config, LogFormat};

/// Time in which at most [`TOLD_MAX`] lines from one place are told.
const WINDOW: Duration = Duration::from_secs(60);
/// Warnings and errors from one place in that time.
const TOLD_MAX: u32 = 100;

/// Logs to standard error from now on.
pub(super) fn start(config: &Config) {
    // What cannot be written is left out: to tell of that on standard error, which it is, would be a panic.
    let lines = tracing_subscriber::fmt::layer().log_internal_errors(false).with_writer(io::stderr);
    let chosen =
        tracing_subscriber::registry().with(config.log.level.to_env_filter()).with(Seldom::default());
    // Failing means that somebody installed a logger before us, which then stays.
    let _ = match config.log.format {
        LogFormat::Text => chosen.with(lines.with_ansi(false).with_target(false)).try_init(),
        LogFormat::Json => chosen.with(lines.json()).try_init(),
    };
}

/// Leaves out warnings and errors that come too often.
#[derive(Debug, Default)]
struct Seldom {
    /// By the place that they come from, of which a program has a few hundred. Held to look one up.
    places: Mutex<HashMap<Identifier, Place>>,
}

/// Lines from one place.
#[derive(Debug)]
struct Place {
    /// When the first of this window came.
    began: Instant,
    told: u32,
    left_out: u64,
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is told, after so many that were left out.
    Told {
        left_out: u64,
    },
    /// It is told as the last one for a while.
    ToldLast,
    LeftOut,
}

impl Place {
    fn new(now: Instant) -> Self {
        Self { began: now, told: 0, left_out: 0 }
    }

    fn admit(&mut self, now: Instant) -> Fate {
        if now.saturating_duration_since(self.began) >= WINDOW {
            (self.began, self.told) = (now, 0);
        }
        if self.told == TOLD_MAX {
            self.left_out += 1;
            return Fate::LeftOut;
        }
        self.told += 1;
        match mem::take(&mut self.left_out) {
            0 if self.told == TOLD_MAX => Fate::ToldLast,
            left_out => Fate::Told { left_out },
        }
    }
}

// A layer and no filter of one: those keep books of the event that is looked at, which one more in between would spoil.
impl<S: Subscriber> Layer<S> for Seldom {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN {
            return true;
        }
        let now = Instant::now();
        let fate =
            self.places.lock().entry(metadata.callsite()).or_insert_with(|| Place::new(now)).admit(now);
        match fate {
            Fate::Told { left_out: 0 } => true,
            // These two come from places of their own, and seldom.
            Fate::Told { left_out } => {
                tracing::warn!(left_out, "lines like the next one were left out");
                true
            }
            Fate::ToldLast => {
                let seconds = WINDOW.as_secs();
                tracing::warn!(seconds, "lines like the next one are left out for up to so long");
                true
            }
            Fate::LeftOut => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_so_often_in_a_window_and_what_is_left_out_is_counted() {
        let start = Instant::now();
        let mut place = Place::new(start);
        for _ in 1..TOLD_MAX {
            assert_eq!(place.admit(start), Fate::Told { left_out: 0 });
        }
        assert_eq!(place.admit(start), Fate::ToldLast);
        let late = start + WINDOW - Duration::from_millis(1);
        assert_eq!([place.admit(late), place.admit(late)], [Fate::LeftOut; 2]);
        assert_eq!(place.admit(start + WINDOW), Fate::Told { left_out: 2 });
        assert_eq!(place.admit(start + WINDOW), Fate::Told { left_out: 0 });
        assert_eq!(place.told, 2);
    }
}
