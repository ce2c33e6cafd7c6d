//! Objects that are read while they are written, and objects that are to stay.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_control_api::ioctl::{
    Command, Entry, Features, Flags, Follow, Name, Outcome, PIN_HARD, PIN_NONE, PIN_SOFT, Pin as PinRecord,
    Status, results,
};

use crate::batch::{self, Answer};
use crate::cache::PAUSES;
use crate::session::Session;
use crate::{Cache, Error, View, file};

/// What took so long was a wait of the daemon: half of one, which is 0.2 s where there is as much left.
const WAITED_MIN: Duration = Duration::from_millis(100);

/// What keeps an object from being evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Nothing.
    None,
    /// It goes after all that are not pinned; for so many seconds, if that is said.
    Soft {
        /// Seconds from now on.
        ttl_s: Option<u64>,
    },
    /// It does not go.
    Hard,
}

impl Pin {
    /// As the ioctl says it: the pin and its seconds, 0 without an end.
    fn numbers(self) -> (u16, u64) {
        match self {
            Self::None => (PIN_NONE, 0),
            Self::Soft { ttl_s } => (PIN_SOFT, ttl_s.map_or(0, |ttl_s| ttl_s.max(1))),
            Self::Hard => (PIN_HARD, 0),
        }
    }

    /// As the attribute of its file says it.
    fn text(self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Soft { ttl_s: None } => "soft".to_owned(),
            Self::Soft { ttl_s: Some(ttl_s) } => format!("soft:{}s", ttl_s.max(1)),
            Self::Hard => "hard".to_owned(),
        }
    }
}

impl Cache {
    /// Waits until a part of an object may be read, at most for `limit`: of one that is there, or of one that is still written
    /// and of which that part is ready ([`Writer::ready`](crate::Writer::ready)). Returns those bytes, fewer where the object
    /// ends, or `None` when they did not come. What stands under the key already is found, not what is to replace it.
    ///
    /// # Errors
    /// As [`Cache::get`].
    pub fn wait_range(
        &self,
        key: impl AsRef<[u8]>,
        range: Range<usize>,
        limit: Duration,
    ) -> Result<Option<View>, Error> {
        let (key, started) = (file::check(key.as_ref())?, Instant::now());
        let (mut pause, longest) = PAUSES;
        loop {
            let (asked, left) = (Instant::now(), limit.saturating_sub(started.elapsed()));
            let answer = match self.opened().filter(|opened| opened.session.offers(Features::FOLLOW)) {
                Some(opened) => match follow(&opened.session, key, &range, left) {
                    Ok(Answer::Absent) if self.has_moved(&opened) => Answer::ByFile,
                    Ok(answer) => answer,
                    // The daemon may be gone: its files may tell.
                    Err(_) => Answer::ByFile,
                },
                None => Answer::ByFile,
            };
            match answer {
                Answer::View(view) => {
                    let view = view.part(range);
                    self.counters.count(std::iter::once(&view));
                    return Ok(Some(view));
                }
                Answer::Absent if has_waited(asked.elapsed(), left) => continue,
                Answer::Absent => {}
                Answer::ByFile | Answer::Loadable => {
                    if let Some(view) = self.get(key)? {
                        return Ok(Some(view.part(range)));
                    }
                }
            }
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(longest);
        }
    }

    /// Keeps an object from being evicted, or ends that. Returns whether it is there; a directory is no object. On another
    /// filesystem, which evicts nothing, that is all it does.
    ///
    /// # Errors
    /// [`Error::BadKey`]; [`Error::Io`] when the caller may not change the object.
    pub fn pin(&self, key: impl AsRef<[u8]>, pin: Pin) -> Result<bool, Error> {
        Ok(self.pin_many(&[key], pin)? == 1)
    }

    /// As [`Cache::pin`], for many. Returns how many of them are there.
    ///
    /// # Errors
    /// As [`Cache::pin`], the first after all were tried.
    pub fn pin_many<K: AsRef<[u8]>>(&self, keys: &[K], pin: Pin) -> Result<usize, Error> {
        let names = batch::names_of(keys)?;
        let (mut statuses, (number, ttl_s)) = (Vec::with_capacity(names.len()), pin.numbers());
        let can_pin = |session: &Session| session.may_write && session.offers(Features::FOLLOW);
        if let Some(opened) = self.opened().filter(|opened| can_pin(&opened.session)) {
            let records: Vec<PinRecord<'_>> =
                names.iter().map(|&name| PinRecord { ttl_s, pin: number, name }).collect();
            // What is not answered is done by file.
            let _ = opened.session.each(Command::Pin, Flags::NONE, &records, |_, _, outcomes: &[Outcome]| {
                statuses.extend(outcomes.iter().map(Outcome::status));
            });
            if statuses.contains(&Status::Absent) && self.has_moved(&opened) {
                statuses.clear();
            }
        }
        statuses.resize(names.len(), Status::AskByFile);
        let (mut present, mut failure) = (0, None);
        for (status, name) in statuses.into_iter().zip(&names) {
            let pinned = match status {
                Status::Ok => Ok(true),
                Status::Absent => Ok(false),
                Status::AskByFile => self.files.pin(name.0, &pin.text()),
                status => Err(Error::of("pin an object", &self.files.path_of(name.0), status)),
            };
            match pinned {
                Ok(is_there) => present += usize::from(is_there),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(present), Err)
    }
}

/// Whether the daemon waited before it answered after `elapsed`. Without room for one more who waits it answers at once, which
/// also takes its time where there is much to do.
fn has_waited(elapsed: Duration, left: Duration) -> bool {
    !left.is_zero() && elapsed >= left.min(WAITED_MIN)
}

/// One wait by the daemon, which may be shorter than `limit`.
fn follow(
    session: &Arc<Session>,
    key: &[u8],
    range: &Range<usize>,
    limit: Duration,
) -> Result<Answer, Error> {
    let mut request = tidefs_control_api::ioctl::Encoder::new(Flags::NONE, session.scope, size_of::<Entry>());
    let record = Follow {
        offset: range.start as u64,
        length: range.len() as u64,
        wait_ms: u32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(u32::MAX),
        name: Name(key),
    };
    if !request.push(&record) {
        return Err(Error::too_long_for_a_request());
    }
    let reply = session.call(Command::Follow, request, 0)?;
    let (header, entries) = results::<Entry>(&reply).ok_or(Error::BadReply)?;
    let [entry] = entries else { return Err(Error::BadReply) };
    Ok(match entry.status() {
        Status::Ok => batch::map(session, entry, None, header.scope.get()),
        Status::Absent => Answer::Absent,
        _ => Answer::ByFile,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_a_wait_is_followed_by_a_pause_however_slow_it_was() {
        let ms = Duration::from_millis;
        let (slow, longest) = (ms(20), PAUSES.1);
        assert!(slow > longest && !has_waited(slow, ms(1000)), "the daemon had no room");
        assert!(!has_waited(slow, ms(50)), "a piece of a wait in Python");
        assert!(has_waited(ms(200), ms(1000)) && has_waited(ms(50), ms(50)));
        assert!(!has_waited(ms(1), ms(0)), "it was not to wait");
    }
}
