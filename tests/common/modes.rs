//! Runs each test with the kernel serving the bytes and with the daemon serving them.

/// Who moves the bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The kernel, from the segment file (FUSE passthrough), where kernel and privileges allow it.
    Passthrough,
    /// The daemon, by direct I/O requests (`-o passthrough=never`).
    Direct,
    /// The daemon, through the page cache, as before Linux 6.6 (`-o passthrough=cached`).
    Cached,
}

impl Mode {
    /// The mount options that select this mode, followed by `more`.
    pub(crate) fn options<'a>(self, more: &[&'a str]) -> Vec<&'a str> {
        let mut options = match self {
            Self::Passthrough => Vec::new(),
            Self::Direct if is_direct_cached() => vec!["passthrough=cached"],
            Self::Direct => vec!["passthrough=never"],
            Self::Cached => vec!["passthrough=cached"],
        };
        options.extend_from_slice(more);
        options
    }
}

/// Whether tests of [`Mode::Direct`] are to use the page cache: `TIDEFS_TEST_DIRECT=cached`, and where nothing else maps files
/// shared.
fn is_direct_cached() -> bool {
    std::env::var_os("TIDEFS_TEST_DIRECT").is_some_and(|value| value == "cached")
        || !super::kernel::is_at_least((6, 6), "a shared mapping with `passthrough=never`")
}

/// Turns functions `fn fact(mode: Mode)` of the calling module into the tests `passthrough::fact` and `direct::fact`.
///
/// A function that is left out of the list is unused, and the compiler says so.
macro_rules! in_both_modes {
    ($($fact:ident),+ $(,)?) => {
        mod passthrough {
            $(#[test] fn $fact() { super::$fact($crate::common::Mode::Passthrough) })+
        }
        mod direct {
            $(#[test] fn $fact() { super::$fact($crate::common::Mode::Direct) })+
        }
    };
}
pub(crate) use in_both_modes;

/// As [`in_both_modes`], with the fast path where the kernel has passthrough: where it has none, only `direct::fact` says
/// anything.
macro_rules! in_fast_modes {
    ($($fact:ident),+ $(,)?) => {
        mod passthrough {
            $(#[test] fn $fact() {
                if $crate::common::kernel::has_fast_path() {
                    super::$fact($crate::common::Mode::Passthrough)
                }
            })+
        }
        mod direct {
            $(#[test] fn $fact() { super::$fact($crate::common::Mode::Direct) })+
        }
    };
}
pub(crate) use in_fast_modes;

/// As [`in_both_modes`], and `cached::fact`: for what the page cache makes different.
macro_rules! in_all_modes {
    ($($fact:ident),+ $(,)?) => {
        $crate::common::modes::in_both_modes!($($fact),+);
        mod cached {
            $(#[test] fn $fact() { super::$fact($crate::common::Mode::Cached) })+
        }
    };
}
pub(crate) use in_all_modes;
