//! A message as versioned bytes: what is common to all kinds.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::{OLDEST, VERSION};

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// It is of a version that this member does not speak.
    #[error("version {found}, this member reads versions {OLDEST} to {VERSION}")]
    Version {
        /// Which one.
        found: u8,
    },
    /// The other end's version has no such message.
    #[error("a {what} is known from version {since} on, the other member speaks version {version}")]
    TooNew {
        /// Which message.
        what: &'static str,
        /// From which version on there is one.
        since: u8,
        /// Which version the other end speaks.
        version: u8,
    },
    /// It is not what was expected.
    #[error("not a {what}: {cause}")]
    Malformed {
        /// What was expected.
        what: &'static str,
        /// What is wrong.
        cause: String,
    },
    /// It has more items, or longer ones, than allowed.
    #[error("a {what} with {found} {of}, {limit} are allowed")]
    TooMuch {
        /// Which message.
        what: &'static str,
        /// What there is too much of.
        of: &'static str,
        /// How much.
        found: usize,
        /// How much is allowed.
        limit: usize,
    },
}

/// A message as versioned bytes.
pub trait Message: Serialize + DeserializeOwned {
    /// What it is called in errors.
    const NAME: &'static str;

    /// From which version on there is such a message.
    const SINCE: u8;

    /// Whether what was read is within its bounds.
    ///
    /// # Errors
    /// [`WireError::TooMuch`].
    fn check(&self) -> Result<(), WireError>;

    /// The same without what members of `version` do not know.
    #[must_use]
    fn older(self, version: u8) -> Self;

    /// The bytes in the version of this build.
    fn encode(&self) -> Vec<u8> {
        write(self, VERSION)
    }

    /// The bytes in `version`, without what that does not know.
    ///
    /// # Errors
    /// [`WireError::TooNew`] where it has no such message, [`WireError::Version`] where this build does not speak it.
    fn encode_for(self, version: u8) -> Result<Vec<u8>, WireError> {
        match version {
            VERSION => Ok(self.encode()),
            OLDEST if Self::SINCE > version => {
                Err(WireError::TooNew { what: Self::NAME, since: Self::SINCE, version })
            }
            OLDEST => Ok(write(&self.older(version), version)),
            found => Err(WireError::Version { found }),
        }
    }

    /// Reads what [`Self::encode`] or [`Self::encode_for`] wrote. What is newer than the version of the message is read
    /// too.
    ///
    /// # Errors
    /// [`WireError`] with what is wrong.
    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let malformed = |cause: String| WireError::Malformed { what: Self::NAME, cause };
        match bytes {
            [OLDEST..=VERSION, rest @ ..] => match postcard::take_from_bytes::<Self>(rest) {
                Ok((message, [])) => message.check().map(|()| message),
                Ok((_, left)) => Err(malformed(format!("{} bytes follow it", left.len()))),
                Err(error) => Err(malformed(error.to_string())),
            },
            [found, ..] => Err(WireError::Version { found: *found }),
            [] => Err(malformed("no bytes".to_owned())),
        }
    }
}

fn write<M: Message>(message: &M, version: u8) -> Vec<u8> {
    // Writing numbers, strings and lists to memory cannot fail.
    postcard::to_extend(message, vec![version]).unwrap_or_default()
}

/// Lists of names, each written and read as a whole: byte by byte a name costs more than its look-up.
pub(super) mod names {
    use serde::{Deserialize, Deserializer, Serializer};
    use serde_bytes::{ByteBuf, Bytes};

    pub(in super::super) fn serialize<S: Serializer>(names: &[Vec<u8>], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(names.iter().map(|name| Bytes::new(name)))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Vec<u8>>, D::Error> {
        let names = Vec::<ByteBuf>::deserialize(from)?;
        Ok(names.into_iter().map(ByteBuf::into_vec).collect())
    }
}

pub(super) fn at_most(
    what: &'static str,
    of: &'static str,
    found: usize,
    limit: usize,
) -> Result<(), WireError> {
    if found > limit { Err(WireError::TooMuch { what, of, found, limit }) } else { Ok(()) }
}

/// For each message its bounds, the version that brought it (1 if none is named), and the method that leaves out of it what
/// came with the newest version, where something did.
macro_rules! messages {
    ($($name:ident($message:ident) $(since $since:literal)? $(older $older:ident)?: $check:expr;)*) => {
        $(impl Message for $name {
            const NAME: &'static str = stringify!($name);
            const SINCE: u8 = { let since = [1 $(, $since)?]; since[since.len() - 1] };

            fn check(&self) -> Result<(), WireError> {
                let $message = self;
                $check
            }

            fn older(self, version: u8) -> Self {
                let this = self;
                $(let this = if version < $crate::cluster::catalog::wire::VERSION { this.$older() } else { this };)?
                let _ = version;
                this
            }
        })*

        /// The kinds of messages in this module.
        #[cfg(test)]
        pub(super) const KINDS: &[&str] = &[$(stringify!($name)),*];
    };
}
