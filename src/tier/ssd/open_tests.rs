//! Shows what disks of different size hold when nobody says how much, how long a start waits for them, and that it writes nothing
//! where one of them was mounted.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Instant;

use nix::mount::{MntFlags, MsFlags, umount2};
use tidefs_engine::types::{ByteCount, Version};

use super::super::small_disk::SmallDisk;
use super::testing::*;
use super::*;

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
    let small = SmallDisk::new("64m", MsFlags::empty());
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

#[test]
fn nothing_is_begun_below_a_mount_point_whose_disk_is_not_there() {
    let state = tempfile::tempdir().unwrap();
    let disk = SmallDisk::new("64m", MsFlags::empty());
    let place = std::fs::canonicalize(disk.path()).unwrap();
    let config = SsdConfig {
        places: vec![place.clone()],
        roots: Some(state.path().join("below").join("mounts.json")),
        ..config(1, 8)
    };
    let trouble = || SsdTier::open(&config).unwrap().status().devices.remove(0).trouble;
    let files = || std::fs::read_dir(&place).unwrap().count();
    assert_eq!((trouble(), files()), (None, 1));
    umount2(&place, MntFlags::MNT_DETACH).unwrap();
    for _ in 0..2 {
        let said = trouble();
        assert_eq!((said.clone(), files()), (Some(Unusable::Unmounted(place.clone())), 0));
        assert!(said.unwrap().to_string().contains("make an empty file `tidefs.ssd`"));
    }
    // A disk that is new is used, as long as it is mounted there.
    nix::mount::mount(Some("new"), &place, Some("tmpfs"), MsFlags::empty(), Some("size=64m")).unwrap();
    assert_eq!((trouble(), files()), (None, 1));
    umount2(&place, MntFlags::MNT_DETACH).unwrap();
    // Who wants it to lie there says so.
    let file = place.join("tidefs.ssd");
    std::fs::write(&file, b"").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    assert_eq!((trouble(), files()), (None, 1));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "others may read it");
    // And who mounts a disk there later needs to say nothing.
    nix::mount::mount(Some("later"), &place, Some("tmpfs"), MsFlags::empty(), Some("size=64m")).unwrap();
    assert_eq!((trouble(), files()), (None, 1));
}

#[test]
fn a_link_that_leads_elsewhere_than_to_a_mount_point_is_followed() {
    let (state, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = SmallDisk::new("64m", MsFlags::empty());
    let place = state.path().join("disk");
    let roots = Some(state.path().join("mounts.json"));
    let config = SsdConfig { places: vec![place.clone()], roots, ..config(1, 8) };
    let trouble = || SsdTier::open(&config).unwrap().status().devices.remove(0).trouble;
    for directory in [disk.path(), other.path()] {
        let _ = std::fs::remove_file(&place);
        symlink(directory, &place).unwrap();
        assert_eq!(trouble(), None);
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 1);
    }
}
