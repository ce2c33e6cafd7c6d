//! Runs each test with the kernel serving the bytes and with the daemon serving them.

/// Who moves the bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The kernel, from the segment file (FUSE passthrough), where kernel and privileges allow it.
    Passthrough,
    /// The daemon, by direct I/O requests (`-o passthrough=never`).
    Direct,
}

impl Mode {
    /// The mount options that select this mode, followed by `more`.
    pub(crate) fn options<'a>(self, more: &[&'a str]) -> Vec<&'a str> {
        let mut options = match self {
            Self::Passthrough => Vec::new(),
            Self::Direct => vec!["passthrough=never"],
        };
        options.extend_from_slice(more);
        options
    }
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
