//! Directories below directories: what an operation far down costs.

use std::time::{Duration, Instant};

use tidefs::datapath::Datapath;
use tidefs::namespace::Ino;
use tidefs_engine::types::ByteCount;

use super::{Logic, Setup, caller};

const SETUP: Setup = Setup::of(ByteCount::mib(64));

/// The shortest of many renames of an object there and back.
fn rename_time(datapath: &Datapath, directory: Ino) -> Duration {
    datapath.make_file(&caller(0), directory, b"k0", 0o644).expect("an object");
    let names = [&b"k0"[..], b"k1"];
    let times = (0..60).map(|round| {
        let (from, to) = (names[round % 2], names[(round + 1) % 2]);
        let began = Instant::now();
        datapath.rename(&caller(0), (directory, from), (directory, to), false).expect("rename");
        began.elapsed()
    });
    times.min().unwrap_or_default()
}

#[test]
fn a_rename_far_down_costs_no_more_for_each_level_than_one_further_up() {
    let logic = Logic::new(SETUP);
    let datapath = logic.datapath();
    let (mut directory, mut times) = (Ino::ROOT, Vec::new());
    for level in 1..=2048 {
        directory = datapath.make_directory(&caller(0), directory, b"d", 0o755).expect("mkdir").ino;
        if [256, 2048].contains(&level) {
            times.push(rename_time(datapath, directory));
        }
    }
    // Eight times as far down. Where each level looks at all levels it is 64 times as long.
    assert!(times[1] < times[0] * 24, "{times:?}");
}
