//! The parsers of the engine; `TIDEFS_FUZZ_TARGET` names the one.

#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("TIDEFS_FUZZ_TARGET").expect("TIDEFS_FUZZ_TARGET names a target of engine/src/fuzz.rs");
    let found = tidefs_engine::fuzz::TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no target `{name}` in engine/src/fuzz.rs")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (*TARGET)(bytes));
