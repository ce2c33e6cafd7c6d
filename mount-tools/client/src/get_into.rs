//! Hot path: copying an object out.
//!
//! A segment that this process has not mapped is mapped when an object in it is copied out for the second time. The first time
//! the daemon copies it into the area (GET_INTO): to open and map a segment costs several requests of the kernel's, which one
//! copy of it is not worth. What is small lies in no segment of its own and is always copied so.
//!
//! Limits: up to [`COPY_BYTES`]; longer ones are mapped at once. Where references are kept, and where segments are registered with a
//! device, all are.

use tidefs_control_api::ioctl::{Command, Entry, Features, Flags, Get, Name, Status, results};

use crate::area::{Area, COPY_BYTES};
use crate::batch::{self, Answer};
use crate::session::Session;
use crate::sessions::Opened;
use crate::{Cache, Error, file};

/// What became of an object to copy out.
enum Got {
    /// All that fits is copied. The length of the object.
    Copied(usize),
    Absent,
    ByFile,
}

impl Cache {
    /// Copies the first bytes of an object into `target`, as many as fit. Returns the length of the object; `None` is a miss.
    ///
    /// # Errors
    /// As [`Cache::get`].
    pub fn get_into(&self, key: impl AsRef<[u8]>, target: &mut [u8]) -> Result<Option<usize>, Error> {
        let key = file::check(key.as_ref())?;
        if let Some(opened) = self.opened() {
            match self.copy_out(&opened, Name(key), target) {
                Ok(Got::Copied(length)) => return Ok(Some(length)),
                Ok(Got::Absent) if !self.has_moved(&opened) => return Ok(None),
                Ok(Got::Absent | Got::ByFile) | Err(_) => {}
            }
        }
        self.files.read_into(key, target)
    }

    fn copy_out(&self, opened: &Opened, name: Name<'_>, target: &mut [u8]) -> Result<Got, Error> {
        let session = &opened.session;
        let answer = if opened.keeps() || session.segments.are_registered() {
            self.ask(opened, &[name], true)?.pop()
        } else {
            let (entry, reference) = find(session, name)?;
            match entry.status() {
                Status::Ok => {
                    let mapped = session.segments.mapped(std::iter::once(end_of(&entry))).pop().flatten();
                    let is_to_copy = mapped.is_none()
                        && session.offers(Features::PROBE)
                        && target.len().min(length_of(&entry)) <= COPY_BYTES
                        && session.segments.is_new(entry.segment.get());
                    if is_to_copy
                        && let Some(area) = session.copy_area(false)
                        && copy(session, &area, name, &entry, target).is_some()
                    {
                        let length = length_of(&entry);
                        session.give_back(reference, length, false);
                        return Ok(Got::Copied(length));
                    }
                    Some(batch::map(session, &entry, mapped, reference))
                }
                Status::CopyOnly => {
                    let area = session.copy_area(true).or_else(|| session.area(true));
                    let copied = area.and_then(|area| copy(session, &area, name, &entry, target));
                    return Ok(copied.map_or(Got::ByFile, |()| Got::Copied(length_of(&entry))));
                }
                Status::Absent => Some(Answer::Absent),
                _ => None,
            }
        };
        Ok(match answer {
            Some(Answer::View(view)) => {
                let count = view.len().min(target.len());
                target[..count].copy_from_slice(&view[..count]);
                Got::Copied(view.len())
            }
            Some(Answer::Absent) => Got::Absent,
            Some(Answer::ByFile | Answer::Loadable) | None => Got::ByFile,
        })
    }
}

fn length_of(entry: &Entry) -> usize {
    usize::try_from(entry.length.get()).unwrap_or(usize::MAX)
}

/// The segment that an object was found in, and where it ends there.
fn end_of(entry: &Entry) -> (u64, usize) {
    let end = entry.offset_bytes().saturating_add(entry.length.get());
    (entry.segment.get(), usize::try_from(end).unwrap_or(usize::MAX))
}

/// What the daemon says of a name, and the reference to what it found.
fn find(session: &Session, name: Name<'_>) -> Result<(Entry, u64), Error> {
    let mut found = None;
    session.each(Command::Lookup, Flags::NONE, &[name], |first, _, entries: &[Entry]| {
        found = entries.first().map(|entry| (*entry, first));
    })?;
    found.ok_or(Error::BadReply)
}

/// Copies an object that was found through an area, as much as fits into `target`. `None` when nothing is copied: it is another
/// version by now.
fn copy(session: &Session, area: &Area, name: Name<'_>, found: &Entry, target: &mut [u8]) -> Option<()> {
    let count = length_of(found).min(target.len());
    if count == 0 {
        return Some(());
    }
    let length = count as u64;
    let mut request = session.copying();
    let is_asked = request.push(&Get { offset: 0, length, area: area.segment, target: 0, name });
    let reply = is_asked.then(|| session.call(Command::GetInto, request, 0).ok()).flatten()?;
    let (_, entries) = results::<Entry>(&reply)?;
    let copied = entries.first().filter(|copied| copied.status() == Status::Ok)?;
    // Of another version that stands there by now this may be a part.
    let is_same = copied.version == found.version && copied.length.get() == length;
    (is_same && area.mapping.copy_out(0, &mut target[..count])).then_some(())
}
