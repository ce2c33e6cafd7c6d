//! How much of the day's budget each disk used, kept for the next start: a restart begins no new day.
//!
//! A file of JSON: by the name of the place, since when its day counts, in seconds since 1970, and the bytes written
//! since. It is written every `KEPT_EVERY` and at the end; a daemon that is killed forgets what it wrote since. A disk that is
//! taken out and added again goes on with its day, too.
//! Without a budget of the day there is none.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Shared;
use super::device::Device;
use super::endurance::{DAY, Earlier};
use crate::replace::{read_whole, replace};

/// Longest file that is read: 256 places, each with a name of `PATH_MAX` (4096) bytes and 256 for what is beside it.
const FILE_BYTES_MAX: usize = 256 * (4096 + 256);

/// How often it is written.
pub(super) const KEPT_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Day {
    began_s: u64,
    written: u64,
}

/// What earlier lives wrote, and disks that were taken out, by the name of the place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Days(BTreeMap<String, Day>);

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Days {
    /// What an earlier life left; nothing when that cannot be read, which is said.
    pub(super) fn load(path: Option<&Path>) -> Self {
        let Some(path) = path else { return Self::default() };
        read_whole(path, FILE_BYTES_MAX).and_then(|text| Self::parse(&text)).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(file = %path.display(), %error, "the day of ssd.write_bytes_per_day begins anew");
            }
            Self::default()
        })
    }

    /// Reads the text of the file; arbitrary bytes are safe to pass.
    ///
    /// # Errors
    /// When it is not such a text.
    pub(super) fn parse(text: &[u8]) -> io::Result<Self> {
        Ok(serde_json::from_slice(text)?)
    }

    /// The day of a place, while it is not over.
    pub(super) fn of(&self, name: &str) -> Option<Earlier> {
        let day = self.0.get(name)?;
        // A clock that was put back makes it a day that begins now.
        let age = Duration::from_secs(now_s().saturating_sub(day.began_s));
        (age < DAY).then_some(Earlier { age, written: day.written })
    }

    fn note(&mut self, name: &str, day: Earlier) {
        let began_s = now_s().saturating_sub(day.age.as_secs());
        self.0.insert(name.to_owned(), Day { began_s, written: day.written });
    }
}

impl Shared {
    /// What a disk used of its day, when there is a budget.
    fn day_of(&self, device: &Device) -> Option<Earlier> {
        let written = device.work.written.total();
        device.admission.lock().used(written, self.uptime())
    }

    /// Notes what a disk that is taken out used of its day: it goes on with that when it is added again.
    pub(super) fn note_day(&self, device: &Device) {
        if let Some(day) = self.day_of(device) {
            self.earlier_days.lock().note(&device.name, day);
        }
    }

    /// Keeps how much of the day's budget is used.
    pub(super) fn keep_days(&self) {
        let Some(path) = &self.days else { return };
        // Another disk may be away for a while.
        let mut days = self.earlier_days.lock().clone();
        days.0.retain(|_, day| now_s().saturating_sub(day.began_s) < DAY.as_secs());
        for device in self.devices.all() {
            self.day_of(&device).into_iter().for_each(|day| days.note(&device.name, day));
        }
        if days == Days::default() {
            return;
        }
        let text = serde_json::to_vec(&days).map_err(io::Error::other);
        let stored = text.and_then(|text| replace(path, &text));
        if let Err(error) = stored {
            tracing::warn!(file = %path.display(), %error, "a restart would begin a new day of ssd.write_bytes_per_day");
        }
    }
}
