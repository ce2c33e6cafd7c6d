//! Many keys with one request.

use std::sync::Arc;

use tidefs_control_api::ioctl::{
    BATCH_MAX, Command, ENTRY_LASTS, Encoder, Entry, Features, Flags, Get, Header, Name, Status, results,
};
use zerocopy::FromBytes as _;

use crate::area::{AREA_BYTES, Area};
use crate::memory::Mapping;
use crate::session::Session;
use crate::view::Held;
use crate::{Error, View, file};

/// Checked keys.
pub(crate) fn names_of<K: AsRef<[u8]>>(keys: &[K]) -> Result<Vec<Name<'_>>, Error> {
    keys.iter().map(|key| file::check(key.as_ref()).map(Name)).collect()
}

/// What the fast path says of one key.
#[derive(Debug)]
pub(crate) enum Answer {
    View(View),
    Absent,
    /// Its file can tell.
    ByFile,
    /// It is below memory, and its file brings it.
    Loadable,
}

/// Finds the objects of all keys and maps them. Unless it `may_wait`, for other hosts and for other threads that use the area,
/// what takes that is to be asked for by file.
pub(crate) fn look_up(
    session: &Arc<Session>,
    keys: &[Name<'_>],
    may_wait: bool,
) -> Result<Vec<Answer>, Error> {
    let flags = if !may_wait && session.offers(Features::HERE) { Flags::HERE } else { Flags::NONE };
    let mut answers = Vec::with_capacity(keys.len());
    let mut small = Vec::new();
    session.each(Command::Lookup, flags, keys, |first, start, entries: &[Entry]| {
        let wanted = entries.iter().map(|entry| {
            let end = entry.offset_bytes().saturating_add(entry.length.get());
            (entry.segment.get(), usize::try_from(end).unwrap_or(usize::MAX))
        });
        let mapped = session.segments.mapped(wanted);
        for (((entry, mapped), reference), index) in entries.iter().zip(mapped).zip(first..).zip(start..) {
            answers.push(match entry.status() {
                Status::Ok => map(session, entry, mapped, reference),
                Status::Absent => Answer::Absent,
                Status::Loadable => Answer::Loadable,
                Status::CopyOnly => {
                    small.push(Small { index, length: entry.length.get(), version: entry.version.get() });
                    Answer::ByFile
                }
                _ => Answer::ByFile,
            });
        }
    })?;
    let area = if small.is_empty() { None } else { session.area(may_wait) };
    if let Some(area) = area {
        copy_small(session, &area, keys, &small, &mut answers);
    }
    Ok(answers)
}

/// A view of what was found; its reference goes back when it cannot be mapped.
pub(crate) fn map(
    session: &Arc<Session>,
    entry: &Entry,
    mapped: Option<Arc<Mapping>>,
    reference: u64,
) -> Answer {
    let (Ok(offset), Ok(length)) =
        (usize::try_from(entry.offset_bytes()), usize::try_from(entry.length.get()))
    else {
        session.give_back(reference, 0, false);
        return Answer::ByFile;
    };
    let version = entry.version.get();
    if length == 0 {
        session.give_back(reference, 0, false);
        return Answer::View(View::owned(version, Vec::new()));
    }
    let mapping = mapped
        .or_else(|| session.segments.get(entry.segment.get(), offset.saturating_add(length), false).ok());
    let lasts = entry.marks.get() & ENTRY_LASTS != 0;
    let held = mapping
        .and_then(|mapping| Held::new(session, mapping, (offset, length), (reference, version), lasts));
    match held {
        Some(held) => Answer::View(View::mapped(held)),
        None => {
            session.give_back(reference, 0, false);
            Answer::ByFile
        }
    }
}

/// A small object that was found.
#[derive(Clone, Copy)]
struct Small {
    /// Of its key.
    index: usize,
    length: u64,
    version: u64,
}

/// Copies small objects through the area, many at once. What does not come stays to be asked for by file.
fn copy_small(session: &Session, area: &Area, keys: &[Name<'_>], small: &[Small], answers: &mut [Answer]) {
    let mut rest = small;
    while !rest.is_empty() {
        let mut request = session.copying();
        let mut at = 0;
        let taken = rest.iter().take(BATCH_MAX).take_while(|&&Small { index, length, .. }| {
            let get = Get { offset: 0, length, area: area.segment, target: at, name: keys[index] };
            let fits = at + length <= AREA_BYTES as u64 && request.push(&get);
            at += length;
            fits
        });
        let taken = taken.count();
        if taken == 0 {
            return;
        }
        let (these, later) = rest.split_at(taken);
        rest = later;
        let Ok(reply) = session.call(Command::GetInto, request, 0) else { return };
        let Some((_, entries)) = results::<Entry>(&reply) else { return };
        let mut at = 0;
        for (&Small { index, length, version }, entry) in these.iter().zip(entries) {
            // Of another version that stands there by now this may be a part: its file has it whole.
            let is_same = entry.version.get() == version && entry.length.get() == length;
            let length = usize::try_from(length).unwrap_or(0);
            let mut bytes = vec![0; length];
            if is_same && entry.status() == Status::Ok && area.mapping.copy_out(at, &mut bytes) {
                answers[index] = Answer::View(View::owned(version, bytes));
            }
            at += length;
        }
    }
}

/// How many of the keys are there, from the first on, and what ended the count, if anything did.
pub(crate) fn prefix(session: &Session, keys: &[Name<'_>]) -> Result<(usize, Option<Status>), Error> {
    let mut present = 0;
    while present < keys.len() {
        let mut request = Encoder::new(Flags::NONE, session.scope, 0);
        let taken = keys[present..].iter().take(BATCH_MAX).take_while(|key| request.push(*key)).count();
        if taken == 0 {
            return Err(Error::too_long_for_a_request());
        }
        let reply = session.call(Command::Prefix, request, 0)?;
        let header = Header::read_from_prefix(&reply).map_err(|_| Error::BadReply)?.0;
        present += header.records();
        if header.records() < taken {
            let status = u16::try_from(header.scope.get()).map_or(Status::AskByFile, Status::of);
            return Ok((present, Some(status)));
        }
    }
    Ok((present, None))
}

/// Asks for objects below memory.
pub(crate) fn prefetch(session: &Session, keys: &[Name<'_>]) -> Result<(), Error> {
    session.each(Command::Prefetch, Flags::NONE, keys, |_, _, _: &[Entry]| ())
}
