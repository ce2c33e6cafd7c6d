//! Objects that are read while they are written.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_control_api::ioctl::{Command, Entry, Features, Flags, Follow, Name, Status, results};

use crate::batch::{self, Answer};
use crate::cache::PAUSES;
use crate::session::Session;
use crate::{Cache, Error, View, file};

/// What took so long was a wait of the daemon: half of one, which is 0.2 s where there is as much left.
const WAITED_MIN: Duration = Duration::from_millis(100);

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
