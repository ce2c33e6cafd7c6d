//! Objects that are to stay.

use tidefs_control_api::ioctl::{
    Command, Features, Flags, Outcome, PIN_HARD, PIN_NONE, PIN_SOFT, Pin as PinRecord, Status,
};

use crate::session::Session;
use crate::{Cache, Error, batch};

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
