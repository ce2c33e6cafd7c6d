//! What the datapath refuses, as the admin API tells it: a fault of the daemon only where it is one.
//!
//! Invariants
//! - Every error of the datapath has its code here; a new one does not compile without.
//! - What of them is told as [`ErrorCode::Internal`] is in the log.

use tidefs_control_api::{ApiError, ErrorCode, KeyPath};

use crate::datapath::Error;

/// What room is made by, where nothing that is left may be evicted.
const MAKE_ROOM: &str = "unpin something (`tidefs pin PATH --none`), close what is open, or give the cache more memory \
                         (memory.capacity)";

/// A fault of the daemon, which is logged.
pub(super) fn internal(error: &Error) -> ApiError {
    tracing::error!(%error, "a request of the admin API failed");
    ApiError::new(ErrorCode::Internal, error.to_string())
}

/// Why what was asked of `path` is not done.
pub(super) fn refusal(path: &KeyPath, error: &Error) -> ApiError {
    let (code, next_step) = match error {
        Error::NoObject | Error::Stale => return ApiError::no_object(path),
        Error::Invalid(_)
        | Error::Unsupported(_)
        | Error::NotPermitted(_)
        | Error::NameTooLong
        | Error::TooDeep => (ErrorCode::BadRequest, None),
        Error::Denied => (ErrorCode::Forbidden, None),
        Error::Exists
        | Error::NotDirectory
        | Error::IsDirectory
        | Error::NotEmpty
        | Error::OtherPlace
        | Error::NoAttribute
        | Error::AttributesFull
        | Error::TooLong => (ErrorCode::Conflict, None),
        Error::NothingEvictable { .. } => (ErrorCode::Conflict, Some(MAKE_ROOM)),
        Error::OverQuota { .. } => (
            ErrorCode::Conflict,
            Some("unpin or remove something below that directory, or raise its user.tidefs.quota"),
        ),
        Error::ScratchFull(_) => {
            (ErrorCode::Conflict, Some("remove slot files, or give them more room (scratch.capacity)"))
        }
        Error::TooLarge { .. } => {
            (ErrorCode::Conflict, Some("only a cache with more memory (memory.capacity) can hold it"))
        }
        Error::AgreementsFull => (
            ErrorCode::Conflict,
            Some("remove directories that have one, or give fewer of them one of their own"),
        ),
        Error::NotAgreed => {
            (ErrorCode::Unavailable, Some("`tidefs members` tells why it is away; try again when it is back"))
        }
        Error::Unanswered => {
            (ErrorCode::Unavailable, Some("`tidefs members` shows who is not heard of; try again later"))
        }
        Error::Overloaded => (ErrorCode::Unavailable, Some("try again in a moment")),
        Error::BadHandle | Error::Io { .. } => return internal(error),
    };
    let refusal = ApiError::new(code, error.to_string());
    match next_step {
        Some(next_step) => refusal.next_step(next_step),
        None => refusal,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tidefs_engine::types::ByteCount;

    use super::*;
    use crate::namespace::Slot;

    fn refused(error: &Error) -> ApiError {
        refusal(&KeyPath::from_bytes(b"ns/key"), error)
    }

    #[test]
    fn what_the_state_of_the_cache_does_not_permit_is_no_fault_of_the_daemon() {
        let quota = Error::OverQuota { directory: "ns".to_owned(), slot: Slot(1), quota: ByteCount::mib(1) };
        let large = Error::TooLarge { size: ByteCount::mib(2), capacity: ByteCount::mib(1) };
        for error in [Error::NothingEvictable { needed: Some(ByteCount::mib(1)) }, quota, large] {
            let told = refused(&error);
            assert_eq!((told.code, &told.message), (ErrorCode::Conflict, &error.to_string()));
            assert!(told.next_step.is_some(), "{error}: nothing is said of what to do");
        }
        for error in [Error::NotAgreed, Error::Unanswered, Error::Overloaded] {
            let told = refused(&error);
            assert_eq!(told.code, ErrorCode::Unavailable, "{error}: it may do later");
            assert!(told.next_step.is_some(), "{error}: nothing is said of what to do");
        }
    }

    #[test]
    fn a_miss_a_mistake_and_a_fault_have_codes_of_their_own() {
        assert_eq!(refused(&Error::NoObject), ApiError::no_object(&KeyPath::from_bytes(b"ns/key")));
        assert_eq!(refused(&Error::Unsupported("no such policy")).code, ErrorCode::BadRequest);
        let failed = Error::Io { operation: "read the record", source: io::Error::other("the disk is gone") };
        assert_eq!(refused(&failed).code, ErrorCode::Internal);
    }
}
