//! One write(2) that is larger than anything its namespace has seen, into a full cache: it succeeds whole.

use std::fs::{self, File};

use super::common::modes::in_both_modes;
use super::common::pattern::{assert_same, object};
use super::common::{Mode, Mount};

/// Size of the surprise.
const BIG: usize = 160 << 20;

fn a_surprise_of_160_mib_is_written_whole(mode: Mode) {
    let mount = Mount::start(&mode.options(&["capacity=512MiB"]));
    let place = mount.namespace("ns");
    for number in 0..600 {
        fs::write(place.join(format!("small{number}")), object(number, 1 << 20)).expect("a small object");
    }
    let full = mount.usage();
    assert!(full.used <= full.capacity && full.used > full.capacity / 2, "the cache is full: {full:?}");
    let big = object(1_000_000, BIG);
    let tmp = place.join("big.tmp");
    let file = File::create(&tmp).expect("a new file");
    // One system call, as a block writer makes it; write(2) moves up to 2 GiB at once.
    let written = nix::unistd::write(&file, &big).expect("one write(2)");
    assert_eq!(written, BIG, "a short write");
    let after = mount.usage();
    assert!(after.used <= after.capacity, "{after:?}");
    drop(file);
    fs::rename(&tmp, place.join("big")).expect("rename");
    let found = fs::read(place.join("big")).expect("the object is there");
    assert_same(&found, &big, "the surprise");
    // and straight to a final name, while the first is still there
    let second = object(1_000_001, BIG);
    let file = File::create(place.join("second")).expect("a new file");
    assert_eq!(nix::unistd::write(&file, &second).expect("one write(2)"), BIG, "a short write");
    drop(file);
    assert_same(
        &fs::read(place.join("second")).expect("the object is there"),
        &second,
        "the second surprise",
    );
    let end = mount.usage();
    assert!(end.used <= end.capacity, "{end:?}");
}

in_both_modes!(a_surprise_of_160_mib_is_written_whole);
