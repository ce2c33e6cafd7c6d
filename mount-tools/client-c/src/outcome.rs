//! What functions return, and the message behind it.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidefs_client::Error;

/// Done.
pub const TIDEFS_OK: c_int = 0;

/// What was asked for is not in the cache. No failure.
pub const TIDEFS_MISS: c_int = 1;

/// Why a function fails.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What the library says.
    Client(Error),
    /// An argument makes no sense.
    Argument(&'static str),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

fn note(message: String) {
    // A message with a NUL in it is cut there.
    let message = CString::new(message).unwrap_or_else(|error| {
        let end = error.nul_position();
        let mut bytes = error.into_vec();
        bytes.truncate(end);
        CString::new(bytes).unwrap_or_default()
    });
    // A thread that ends has lost its text already when the destructors of a program's own data run there: the number has to do.
    let _ = MESSAGE.try_with(|last| last.replace(message));
}

/// The number of a failure, whose message is noted.
pub(crate) fn note_failure(error: &Error) -> c_int {
    note(error.to_string());
    -error.errno()
}

/// Runs the inside of a function of the interface and makes a number of what it says.
pub(crate) fn guard(inside: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // What a panic left half done belongs to the call; the library's own locks are not poisoned.
    match catch_unwind(AssertUnwindSafe(inside)) {
        Ok(Ok(code)) => code,
        Ok(Err(Failure::Client(error))) => note_failure(&error),
        Ok(Err(Failure::Argument(what))) => {
            note(what.to_owned());
            -libc::EINVAL
        }
        Err(_) => {
            note("the library panicked, which is a bug in it".to_owned());
            -libc::ENOTRECOVERABLE
        }
    }
}

/// As [`guard`], for functions that return no number.
pub(crate) fn guard_value<T>(otherwise: T, inside: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(inside)).unwrap_or(otherwise)
}

/// Why the last function of this thread that failed did so. The text stays until the next one fails; it is empty when
/// none did yet. Not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn tidefs_error_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The version of the library, for example "0.1.0". Not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn tidefs_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: the text of this thread, which nobody changes meanwhile.
        unsafe { CStr::from_ptr(tidefs_error_message()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_a_number_and_a_message() {
        assert_eq!(guard(|| panic!("a test")), -libc::ENOTRECOVERABLE);
        assert!(message().contains("panicked"), "{}", message());
        assert_eq!(guard_value(7, || panic!("a test")), 7);
    }

    fn bad_key() -> Error {
        Error::BadKey { key: "../x".to_owned() }
    }

    #[test]
    fn a_failure_says_its_number_and_why() {
        assert_eq!(guard(|| Err(bad_key().into())), -libc::EINVAL);
        assert!(message().starts_with("\"../x\" is no key"), "{}", message());
        assert_eq!(guard(|| Ok(TIDEFS_MISS)), TIDEFS_MISS);
        assert!(message().starts_with("\"../x\" is no key"), "what succeeds leaves the message");
        note("cut\0here".to_owned());
        assert_eq!(message(), "cut");
    }
}
