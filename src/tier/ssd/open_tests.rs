//! Shows what disks of different size hold when nobody says how much, and how long a start waits for them.

use std::path::Path;
use std::time::Instant;

use nix::mount::MsFlags;
use tidefs_engine::types::{ByteCount, Version};

use super::testing::*;
use super::*;

#[path = "../../../tests/common/small_disk.rs"]
mod small_disk;

const LENGTH: usize = 9000;
/// Larger than a zone of a disk of 64 MiB.
const LARGE: usize = 6 << 20;

fn opened(places: &[&Path]) -> SsdTier {
    let places = places.iter().map(|place| place.to_path_buf()).collect();
    let config =
        SsdConfig { places, capacity: ByteCount::ZERO, zone_bytes: ByteCount::mib(8), ..config(0, 0) };
    SsdTier::open(&config).unwrap()
}

#[test]
fn without_a_capacity_a_disk_that_is_small_or_full_takes_nothing_from_the_others() {
    let large = tempfile::tempdir_in("/var/tmp").unwrap();
    let small = small_disk::SmallDisk::new("64m", MsFlags::empty());
    let places = [large.path(), small.path()];
    let tier = opened(&places);
    recover(&tier);
    tier.start(Arc::new(Told::default())).unwrap();
    let devices = tier.status().devices;
    assert!(devices[1].capacity > ByteCount::ZERO && devices[1].zone_bytes < devices[0].zone_bytes);
    assert!(devices[0].capacity > ByteCount(2 * devices[1].capacity.get()), "{devices:?}");
    let keys = || (0..40_u8).map(|number| [number]);
    keys().for_each(|key| assert_eq!(store(&tier, &key, 1, LENGTH), Stored::Yes));
    let on = |number: u8, key: &[u8]| tier.shared.disks_of(tier.shared.hash(key)) == [number];
    for number in 0..3_u8 {
        let key = [b'l', number];
        assert_eq!(store(&tier, &key, 1, LARGE), Stored::Yes);
        assert!(on(0, &key));
    }
    let on_large: Vec<[u8; 1]> = keys().filter(|key| on(0, key)).collect();
    assert!(!on_large.is_empty());
    drop(tier);
    let filled = std::fs::write(small.path().join("of another program"), vec![7; 64 << 20]);
    assert!(filled.is_err(), "it is not full");
    let tier = opened(&places);
    recover(&tier);
    assert!(on_large.iter().all(|key| is_right(&tier, key, 1, LENGTH)));
    assert!((0..3_u8).all(|number| tier.holds(&[b'l', number]) == Some(Version(1))));
}

/// A daemon that was killed lets go of its disks late, and there may be many.
#[test]
fn places_that_another_daemon_has_are_waited_for_all_at_once() {
    let directories: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let _held: Vec<_> = directories.iter().map(|place| identity::open_file(place.path()).unwrap()).collect();
    let places = directories.iter().map(|place| place.path().to_owned()).collect();
    let started = Instant::now();
    let found = open::open_places(&SsdConfig { places, ..config(4, 8) }).unwrap();
    let is_held = |(_, reason): &(String, Unusable)| matches!(reason, Unusable::Foreign(_));
    assert!(found.candidates.is_empty() && found.unusable.iter().filter(|place| is_held(place)).count() == 4);
    // For one it is three seconds.
    assert!(started.elapsed() < Duration::from_secs(9), "{:?}: each was waited for", started.elapsed());
}
