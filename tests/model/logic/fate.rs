//! What is told of keys that are gone.

use tidefs::datapath::Fate;
use tidefs_control_api::EvictionCause;
use tidefs_engine::types::ByteCount;

use super::counting::write;
use super::{Logic, Setup};
use crate::system::System;

/// More objects than the cache holds.
const MANY: usize = 25;

/// For whom `old` was evicted.
fn for_whom(logic: &Logic) -> Option<String> {
    match logic.datapath().fate(b"old") {
        Fate::Evicted { for_whom, cause: EvictionCause::Room, .. } => for_whom,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_eviction_names_the_directory_that_grew_as_long_as_that_is_there() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    write(&mut logic, "old");
    logic.mkdir(0, "new").expect("mkdir");
    let names: Vec<String> = (0..MANY).map(|number| format!("new/{number}")).collect();
    names.iter().for_each(|name| write(&mut logic, name));
    assert_eq!(for_whom(&logic).as_deref(), Some("new"));
    for name in &names {
        // It may have been evicted.
        let _ = logic.unlink(0, name);
    }
    logic.rmdir(0, "new").expect("rmdir");
    assert_eq!(for_whom(&logic), None);
    logic.drop_caches();
    // One of them may get its slot.
    (0..MANY).for_each(|number| logic.mkdir(0, &format!("other{number}")).expect("mkdir"));
    assert_eq!(for_whom(&logic), None);
}

#[test]
fn an_eviction_for_the_root_names_no_directory() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    write(&mut logic, "old");
    (0..MANY).for_each(|number| write(&mut logic, &number.to_string()));
    assert_eq!(for_whom(&logic), None);
}
