//! Hot path: small objects are stored by one copy more and one request, in place of two requests and a mapping.
//!
//! Their bytes are copied into an area of the session, and the daemon makes objects of them (PUT_FROM). A begun object costs a
//! CREATE and a SEAL, and a segment that this process does not know an open and a mapping besides, each with requests of the
//! kernel's to the daemon. What is not stored so, for whatever reason, is begun and sealed as if nothing had been tried.
//!
//! Invariant: of a batch all objects are stored so, or none is tried: what is large would be visible after all that is small.
//!
//! Limits: objects of up to [`TOGETHER_MAX`] bytes, one alone of [`ALONE_MAX`]; an area at once. Where segments are registered with a
//! device all are mapped.

use tidefs_control_api::ioctl::{BATCH_MAX, Command, Features, Flags, Name, Outcome, Put, Status};

use crate::area::{Area, COPY_BYTES};
use crate::{Cache, Error};

/// Length of the longest object that is stored by a copy, alone and along with others, which share the requests of what is begun.
/// From about there on a copy costs more than what it saves.
const ALONE_MAX: usize = COPY_BYTES;
const TOGETHER_MAX: usize = 256 << 10;

/// What became of an object that may be stored by a copy.
#[derive(Debug)]
pub(crate) enum Copied {
    Stored,
    /// There is no room for it.
    Failed(Error),
    /// It is to be begun, or stored by file.
    Not,
}

impl Cache {
    /// Stores objects, of checked keys, if all of them are small. Tells of each what became of it.
    pub(crate) fn store_copied<K: AsRef<[u8]>>(&self, objects: &[(K, &[u8])]) -> Vec<Copied> {
        let mut copied: Vec<Copied> = objects.iter().map(|_| Copied::Not).collect();
        let longest = if objects.len() == 1 { ALONE_MAX } else { TOGETHER_MAX };
        if !objects.iter().all(|(_, bytes)| (1..=longest).contains(&bytes.len())) {
            return copied;
        }
        let Some(opened) = self.opened().filter(|opened| !self.has_moved(opened)) else { return copied };
        let session = &opened.session;
        if !session.may_write || !session.offers(Features::CREATE) || session.segments.are_registered() {
            return copied;
        }
        let keys = || objects.iter().map(|(key, _)| key.as_ref());
        if !session.directories.may_share_request(keys()) {
            return copied;
        }
        let mode = self.files.mode_of_new();
        let mut start = 0;
        // Let go between requests: another thread may have it then, and this one goes on without.
        while start < objects.len()
            && let Some(area) = session.copy_area(false)
        {
            let records = copy_in(&area, &objects[start..], mode);
            let these = start..start + records.len();
            start = these.end;
            let became = &mut copied[these];
            let mut by_file = None;
            let asked =
                session.each(Command::PutFrom, Flags::NONE, &records, |_, first, outcomes: &[Outcome]| {
                    for (outcome, index) in outcomes.iter().zip(first..) {
                        let (key, status) = (records[index].name.0, outcome.status());
                        became[index] = self.became_of(key, status);
                        by_file = by_file.or((status == Status::AskByFile).then_some(key));
                    }
                });
            let is_stored = |became: &Copied| matches!(became, Copied::Stored);
            let stored = records.iter().zip(&*became).filter(|(_, became)| is_stored(became));
            session.directories.note_stored(stored.map(|(record, _)| record.name.0));
            if let Some(key) = by_file {
                session.directories.note_by_file(key);
            }
            // What comes behind one that is to be begun is begun along with it, and so is what comes behind a request for which there
            // was no room at all.
            let is_whole = asked.is_ok() && !became.iter().any(|became| matches!(became, Copied::Not));
            if !is_whole || !became.iter().any(is_stored) {
                break;
            }
        }
        copied
    }

    fn became_of(&self, key: &[u8], status: Status) -> Copied {
        match status {
            Status::Ok => Copied::Stored,
            // It would wait in vain once more.
            Status::NoRoom | Status::OverQuota => {
                Copied::Failed(Error::of("create an object", &self.files.path_of(key), status))
            }
            _ => Copied::Not,
        }
    }
}

/// Copies the first of these objects into the area, as many as it has room for and one request asks for. Returns the records to
/// make objects of them.
fn copy_in<'k, K: AsRef<[u8]>>(area: &Area, objects: &'k [(K, &[u8])], mode: u32) -> Vec<Put<'k>> {
    let (mut records, mut end) = (Vec::with_capacity(objects.len().min(BATCH_MAX)), 0);
    for (key, bytes) in objects.iter().take(BATCH_MAX) {
        if !area.mapping.copy_in(end, bytes) {
            break;
        }
        let (source, length) = (end as u64, bytes.len() as u64);
        records.push(Put { area: area.segment, source, length, mode, name: Name(key.as_ref()) });
        end += bytes.len();
    }
    records
}
