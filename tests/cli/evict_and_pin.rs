//! `tidefs evict` and `tidefs pin`.

use std::fs;
use std::time::Duration;

use serde_json::json;

use super::common::pattern::{assert_same, object};
use super::common::sys::{Mapping, get_xattr_text};
use super::common::wait::{HANG, until};
use super::common::{Mount, Peer};
use super::tool::{
    EXIT_NOT_FOUND, EXIT_USAGE, argument, fails, json as run_json, parse, text, tidefs, wrong_usage,
};

#[test]
fn evict_takes_an_object_a_directory_a_pattern_or_bytes() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    fs::create_dir_all(place.join("deep/er")).expect("directories");
    for name in ["a", "b", "deep/c", "deep/er/d", "deep/er/e.bin"] {
        fs::write(place.join(name), object(1, 100_000)).expect("an object");
    }
    mount.wait_until_closed(["a", "b", "deep/c", "deep/er/d", "deep/er/e.bin"].map(|name| place.join(name)));
    let before = mount.usage().used;
    let evicted = run_json(&mount, &["evict", argument(&place.join("a"))]);
    assert_eq!(evicted["objects"], json!(1), "{evicted}");
    assert!(!place.join("a").exists() && place.join("b").exists());
    assert!(mount.usage().used < before, "the bytes are free at once");
    for pattern in ["*.bin", "ns/*.bin", "ns/?eep/*.bin", "ns/[!a]eep*"] {
        let evicted = run_json(&mount, &["evict", "--pattern", pattern]);
        assert_eq!(evicted["objects"], json!(0), "{pattern} stays within one name: {evicted}");
    }
    let evicted = run_json(&mount, &["evict", "--pattern", "ns/**/*.bin"]);
    assert_eq!(evicted["objects"], json!(1), "{evicted}");
    assert!(!place.join("deep/er/e.bin").exists() && place.join("deep/er/d").exists());
    let evicted = run_json(&mount, &["evict", argument(&place.join("deep"))]);
    assert_eq!(evicted["objects"], json!(2), "{evicted}");
    assert!(place.join("deep/er").is_dir(), "directories stay");
    let human = text(&mount, &["evict", "--bytes", "1KiB"]);
    assert!(human.contains('1'), "{human}");
    // The kernel, which knew it, is told of an eviction a moment after it.
    assert!(until(HANG, || !place.join("b").exists()));
    fails(&mount, &["evict", argument(&place.join("a"))], EXIT_NOT_FOUND, "ns/a");
    wrong_usage(&mount, &["evict", "--bytes", "lots"], "lots");
}

#[test]
fn evict_leaves_what_is_pinned_unless_forced_and_keeps_open_bytes_readable() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    for name in ["pinned", "open"] {
        fs::write(place.join(name), object(1, 100_000)).expect("an object");
    }
    mount.wait_until_closed(["pinned", "open"].map(|name| place.join(name)));
    run_json(&mount, &["pin", argument(&place.join("pinned")), "--hard"]);
    let mut peer = Peer::spawn();
    let handle = peer.open(&place.join("open"), libc::O_RDONLY).expect("open");
    let evicted = run_json(&mount, &["evict", argument(&place)]);
    let skipped = evicted["skipped"].to_string();
    assert!(skipped.contains("ns/pinned") && skipped.contains("pinned"), "{evicted}");
    assert!(place.join("pinned").exists());
    assert_same(&peer.read_at(handle, 0, 100_000).expect("read"), &object(1, 100_000), "an open object");
    run_json(&mount, &["evict", argument(&place.join("pinned")), "--force"]);
    assert!(until(HANG, || !place.join("pinned").exists()));
}

#[test]
fn bytes_of_an_evicted_object_count_as_free_when_nobody_has_it_open_or_mapped() {
    const SIZE: u64 = 1 << 20;
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    let names = ["open", "mapped", "read", "unread"];
    for name in names {
        fs::write(place.join(name), object(1, 1 << 20)).expect("an object");
    }
    mount.wait_until_closed(names.map(|name| place.join(name)));
    let mut peer = Peer::spawn();
    let handle = peer.open(&place.join("open"), libc::O_RDONLY).expect("open");
    let mapping = {
        let file = fs::File::open(place.join("mapped")).expect("open");
        Mapping::shared(&file, 1 << 20).expect("mmap")
    };
    fs::read(place.join("read")).expect("the object");
    mount.wait_until_closed(["mapped", "read"].map(|name| place.join(name)));
    let evicted = run_json(&mount, &["evict", argument(&place), "--force"]);
    assert_eq!(evicted["objects"], json!(4), "{evicted}");
    let (free, held) = (evicted["bytes"].as_u64(), evicted["held_bytes"].as_u64());
    assert_eq!(free.zip(held).map(|(free, held)| free + held), Some(4 * SIZE), "{evicted}");
    // A kernel that does not drop inodes at our word says nothing of what was only read.
    assert!(held.is_some_and(|held| (2 * SIZE..=3 * SIZE).contains(&held)), "{evicted}");
    let held_now = || run_json(&mount, &["status"])["memory"]["held"].as_u64().expect("bytes");
    assert!(held_now() >= 2 * SIZE);
    let human = text(&mount, &["status"]);
    assert!(human.contains("of objects that are gone, and that programs have open or mapped"), "{human}");
    peer.close(handle).expect("close");
    assert!(until(HANG, || held_now() <= 2 * SIZE));
    assert_same(&mapping.bytes(), &object(1, 1 << 20), "what is mapped stays");
}

#[test]
fn an_eviction_of_a_pinned_object_fails_and_names_force() {
    let mount = Mount::start(&[]);
    let pinned = mount.namespace("ns").join("pinned");
    fs::write(&pinned, object(1, 100_000)).expect("an object");
    mount.wait_until_closed([&pinned]);
    run_json(&mount, &["pin", argument(&pinned), "--hard"]);
    let kept = tidefs(&mount, &["evict", argument(&pinned)]);
    assert_eq!(kept.status.code(), Some(1), "{kept:?}");
    assert!(kept.output.contains("kept ns/pinned: pinned") && kept.output.contains("--force"), "{kept:?}");
    let kept = tidefs(&mount, &["evict", argument(&pinned), "--json"]);
    assert_eq!(
        (kept.status.code(), &parse(&kept.output)["skipped_objects"]),
        (Some(1), &json!(1)),
        "{kept:?}"
    );
    let human = text(&mount, &["evict", "--bytes", "1MiB"]);
    assert!(human.contains("1.0 MiB less than asked") && human.contains("pinned"), "{human}");
    assert_eq!(run_json(&mount, &["evict", "--bytes", "1MiB"])["missing_bytes"], json!(1 << 20));
    // What is coldest of all is taken by its order, in which no pinned one stands.
    wrong_usage(&mount, &["evict", "--bytes", "1MiB", "--force"], "cannot be used with");
    assert!(pinned.exists());
    assert_eq!(run_json(&mount, &["evict", argument(&pinned), "--force"])["objects"], json!(1));
}

#[test]
fn a_pattern_may_start_with_the_mount_point() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    for name in ["a", "b", "c"] {
        fs::write(place.join(name), object(1, 100_000)).expect("an object");
    }
    mount.wait_until_closed(["a", "b", "c"].map(|name| place.join(name)));
    let pattern = |end: &str| format!("{}/{end}", mount.path().display());
    assert_eq!(run_json(&mount, &["evict", "--pattern", &pattern("ns/[ab]")])["objects"], json!(2));
    assert_eq!(run_json(&mount, &["evict", "--pattern", &pattern("**")])["objects"], json!(1));
    fails(&mount, &["evict", "--pattern", "/usr/*"], EXIT_USAGE, "/usr/*");
    let api = mount.control("POST", "/v1/evict", Some(r#"{"pattern":"/usr/*"}"#));
    assert!(api.status == 400 && api.text().contains("no slash"), "{}", api.text());
}

#[test]
fn a_hard_pin_takes_no_time() {
    let mount = Mount::start(&[]);
    let path = mount.namespace("ns").join("a");
    fs::write(&path, object(1, 100_000)).expect("an object");
    mount.wait_until_closed([&path]);
    fails(&mount, &["pin", argument(&path), "--hard", "--ttl", "3s"], EXIT_USAGE, "only a soft pin");
    let api = mount.control("POST", "/v1/pin", Some(r#"{"path":"ns/a","pin":"hard","ttl_s":3}"#));
    assert!(api.status == 400 && api.text().contains("only a soft pin"), "{}", api.text());
    assert_eq!(run_json(&mount, &["stat", argument(&path)])["pin"], json!("none"));
    let human = text(&mount, &["pin", argument(mount.path()), "--soft"]);
    assert!(human.starts_with("the mount's root is evicted last"), "{human}");
}

#[test]
fn a_hard_pin_outlives_pressure_and_none_takes_it_away() {
    let mount = Mount::start(&["capacity=64MiB", "policy=lru"]);
    let place = mount.namespace("ns");
    let press = || {
        for number in 0..80 {
            fs::write(place.join(format!("press{number}")), object(number, 1 << 20)).expect("an object");
        }
    };
    let pinned = place.join("pinned");
    fs::write(&pinned, object(7, 1 << 20)).expect("an object");
    mount.wait_until_closed([&pinned]);
    let answer = run_json(&mount, &["pin", argument(&pinned), "--hard"]);
    assert_eq!(answer["pin"], json!("hard"), "{answer}");
    assert_eq!(get_xattr_text(&pinned, "user.tidefs.pin"), "hard", "the attribute and the command are one");
    press();
    assert_same(&fs::read(&pinned).expect("it is pinned"), &object(7, 1 << 20), "a pinned object");
    assert_eq!(run_json(&mount, &["stat", argument(&pinned)])["pin"], json!("hard"));
    run_json(&mount, &["pin", argument(&pinned), "--none"]);
    press();
    press();
    assert!(until(HANG, || !pinned.exists()), "an object without a pin leaves like any other");
    fails(&mount, &["pin", argument(&pinned), "--hard"], EXIT_NOT_FOUND, "ns/pinned");
}

#[test]
fn a_pin_ends_with_its_time() {
    let mount = Mount::start(&[]);
    let path = mount.namespace("ns").join("a");
    fs::write(&path, object(1, 100_000)).expect("an object");
    mount.wait_until_closed([&path]);
    run_json(&mount, &["pin", argument(&path), "--soft", "--ttl", "1h"]);
    let stat = || run_json(&mount, &["stat", argument(&path)]);
    let first = stat();
    assert_eq!(first["pin"], json!("soft"));
    assert!((3540..=3600).contains(&first["pin_ttl_left_s"].as_u64().unwrap_or_default()), "{first}");
    assert!(text(&mount, &["stat", argument(&path)]).contains("soft, for 59m "), "{first}");
    run_json(&mount, &["pin", argument(&path), "--soft", "--ttl", "2s"]);
    assert!(until(HANG, || stat()["pin"] == json!("none")), "{}", stat());
    assert_eq!(stat()["pin_ttl_left_s"], json!(null));
    std::thread::sleep(Duration::from_millis(10));
    assert!(path.exists(), "the object stays when its pin ends");
}
