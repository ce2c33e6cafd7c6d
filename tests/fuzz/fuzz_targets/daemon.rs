//! The parsers of the daemon; `TIDEFS_FUZZ_TARGET` names the one.

#![no_main]

#[path = "../daemon.rs"]
mod daemon;

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("TIDEFS_FUZZ_TARGET").expect("TIDEFS_FUZZ_TARGET names a target of the daemon");
    let mut targets = daemon::TARGETS.iter().chain(tidefs::fuzz::TARGETS);
    let found = targets.find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no target `{name}` in tests/fuzz/daemon.rs and src/fuzz.rs")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (*TARGET)(bytes));
