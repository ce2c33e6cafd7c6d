//! Memory that is touched ahead of objects where its first touch is slow, as in a virtual machine whose host gives memory
//! when it is touched. Skipped with a message where a daemon finds that it is not.

use std::fs;
use std::time::Duration;

use super::common::Mount;
use super::common::pattern::{assert_same, object};
use super::common::wait::{HANG, until};

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 256 * MIB;
/// Nearly all that is free of an empty cache, less what is kept ahead of writers, twice.
const HELD: u64 = 220 * MIB;
/// How long a daemon takes at most to find out.
const LOOKS: Duration = Duration::from_secs(3);

/// Bytes that objects have, and bytes that are held ready for them.
fn used_and_held(mount: &Mount) -> (u64, u64) {
    let status = mount.control_get("/v1/status").json();
    let bytes = |value: &serde_json::Value| value.as_u64().expect("a number");
    (bytes(&status["used"]), bytes(&status["memory"]["prefaulted"]))
}

fn held(mount: &Mount) -> u64 {
    used_and_held(mount).1
}

/// Waits until as much is held as an empty cache may hold, as long as that becomes more: at idle priority it takes as long as
/// others let it.
#[track_caller]
fn assert_fills(mount: &Mount) {
    loop {
        let before = held(mount);
        if before >= HELD {
            return;
        }
        assert!(until(HANG, || held(mount) > before), "no more than {before} are held by an empty cache");
    }
}

#[test]
fn what_is_held_ready_and_what_is_used_stay_within_the_capacity() {
    let mount = Mount::start(&["capacity=256MiB"]);
    let none = Mount::start(&["capacity=256MiB", "memory.prefault_max=0"]);
    if !until(LOOKS, || held(&mount) > 0) {
        return println!("skipped: the first touch of memory is not slow on this machine");
    }
    assert_fills(&mount);
    assert_eq!(held(&none), 0);
    let place = mount.namespace("kv");
    let path = |number: u64| place.join(format!("key{number}"));
    for number in 0..100 {
        fs::write(path(number), object(number, 4 << 20)).expect("a file");
        let (used, held) = used_and_held(&mount);
        assert!(used + held <= CAPACITY, "{used} are used and {held} held after {number} objects");
        assert_same(
            &fs::read(path(number)).expect("read"),
            &object(number, 4 << 20),
            "an object in such memory",
        );
    }
    assert!(until(HANG, || held(&mount) == 0), "{} are held by a full cache", held(&mount));
    (0..100).for_each(|number| drop(fs::remove_file(path(number))));
    assert_fills(&mount);
}
