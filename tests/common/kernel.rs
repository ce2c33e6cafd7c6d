//! What only newer kernels have. A test of it says that it was skipped on others, and passes.

/// Whether this kernel is at least `wanted`; says that what needs it is skipped when it is not.
pub(crate) fn is_at_least(wanted: (u32, u32), what: &str) -> bool {
    let names = nix::sys::utsname::uname().expect("uname never fails");
    let release = names.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    let found: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < wanted {
        eprintln!("SKIPPED: {what} needs Linux {}.{}, this is {release}", wanted.0, wanted.1);
    }
    found >= wanted
}

/// Whether clients can read and write where the objects lie (docs/FASTPATH.md).
pub(crate) fn has_fast_path() -> bool {
    is_at_least((6, 16), "the fast path")
}
