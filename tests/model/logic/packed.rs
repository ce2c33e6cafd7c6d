//! Objects that lie among others, in a cache that is full.

use tidefs::datapath::Error;
use tidefs_engine::types::ByteCount;

use super::resent::CREATE;
use super::{Logic, Setup};
use crate::common::pattern::bytes;
use crate::system::{Open, System, Token};

const LENGTH: usize = 800 << 10;

/// Stores objects from number `next` on until there is no room for another one.
fn fill(logic: &mut Logic, next: &mut u32) {
    loop {
        let token = logic.open(0, &format!("k{next}"), CREATE).expect("create");
        logic.write(0, token, 0, &bytes(1, LENGTH)).expect("write");
        logic.close(0, token);
        *next += 1;
        let free = logic.datapath().tier().usage().expect("the tier answers").free;
        if free < ByteCount(LENGTH as u64) {
            return;
        }
    }
}

/// Its bytes are written again with its record, so it takes as much room as another one.
#[test]
fn what_changes_of_a_packed_object_finds_room_for_all_of_it_and_does_not_evict_it() {
    let setup = Setup { packed_max: ByteCount::mib(1), ..Setup::of(ByteCount::mib(8)) };
    let mut logic = Logic::new(setup);
    let mut next = 0;
    for change in ["rename", "chmod", "setfattr"] {
        fill(&mut logic, &mut next);
        let coldest = (0..next).map(|number| format!("k{number}")).find(|name| logic.stat(1, name).is_ok());
        let name = coldest.expect("the cache is full");
        assert_eq!(logic.tier_of(&name), "packed");
        match change {
            "rename" => logic.rename(0, &name, "renamed", false).expect(change),
            "chmod" => logic.chmod(0, &name, 0o600).expect(change),
            _ => logic.policy(0, &name, "pin", Some("soft")).expect(change),
        }
        let name = if change == "rename" { "renamed" } else { name.as_str() };
        assert!(logic.stat(1, name).is_ok(), "{change}");
    }
}

/// It gets a segment of its own for that, beside the bytes that it has until then. It is the coldest, and all others are open.
#[test]
fn the_first_attribute_of_a_packed_object_is_refused_where_nothing_but_that_object_could_leave_for_it() {
    let setup = Setup { packed_max: ByteCount::mib(1), ..Setup::of(ByteCount::mib(8)) };
    let mut logic = Logic::new(setup);
    let mut next = 0;
    fill(&mut logic, &mut next);
    let names: Vec<String> = (0..next).map(|number| format!("k{number}")).collect();
    let there: Vec<&String> = names.iter().filter(|name| logic.stat(1, name).is_ok()).collect();
    let (coldest, others) = there.split_first().expect("the cache is full");
    let read = Open { read: true, ..Open::default() };
    let readers: Vec<Token> =
        others.iter().map(|name| logic.open(1, name, read).expect("it is there")).collect();
    let ino = logic.resolve(0, coldest).expect("it is there");
    let set = |logic: &Logic| logic.datapath().set_attribute(ino, b"user.note", b"of a program", None);
    let refused = set(&logic);
    assert!(matches!(refused, Err(Error::NothingEvictable { .. })), "{refused:?}");
    assert_eq!(logic.tier_of(coldest), "packed");
    readers.into_iter().for_each(|reader| logic.close(1, reader));
    set(&logic).expect("others leave for it");
    assert_eq!(logic.tier_of(coldest), "memory");
}
