//! `tidefs verify`: finds bytes that changed under their checksum, drops them, and says so.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use serde_json::json;

use super::common::Mount;
use super::common::pattern::{assert_same, object};
use super::common::place::files_below;
use super::common::sys::checksum_of;
use super::common::wait::{HANG, until};
use super::tool::{argument, fails, json as run_json, parse, text, tidefs};

#[test]
fn verify_passes_what_is_whole() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    for number in 0..20 {
        let size = if number % 2 == 0 { 1_000 } else { 300_000 };
        fs::write(place.join(number.to_string()), object(number, size)).expect("an object");
    }
    mount.wait_until_closed((0..20).map(|number| place.join(number.to_string())));
    let summary = run_json(&mount, &["verify"]);
    assert_eq!((&summary["checked"], &summary["corrupt"]), (&json!(20), &json!(0)), "{summary}");
    assert_eq!(summary["checked_bytes"], json!(10 * 301_000), "{summary}");
    let one = run_json(&mount, &["verify", argument(&place.join("3"))]);
    assert_eq!(one["checked"], json!(1), "{one}");
    let human = text(&mount, &["verify"]);
    assert!(human.contains("20"), "{human}");
}

#[test]
fn verify_drops_a_corrupt_object_and_names_it() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    for number in 0..4 {
        fs::write(place.join(number.to_string()), object(number, 300_000)).expect("an object");
    }
    mount.wait_until_closed((0..4).map(|number| place.join(number.to_string())));
    // Checksums are taken when the machine is idle, or when one is asked for.
    assert!(checksum_of(&place.join("2")).starts_with("xxh3-64:"));
    let wanted = object(2, 300_000);
    let segments = files_below(&mount.instance_dir().join("memory"));
    let segment = segments.iter().find(|path| fs::read(path).is_ok_and(|found| found == wanted));
    let segment =
        File::options().write(true).open(segment.expect("a segment of object 2")).expect("root may");
    segment.write_all_at(b"another byte", 150_000).expect("memory that fails");
    let finished = tidefs(&mount, &["verify", "--json"]);
    assert_eq!(finished.status.code(), Some(1), "corruption is a failure: {finished:?}");
    let summary = parse(&finished.output);
    assert_eq!((&summary["corrupt"], &summary["corrupt_paths"]), (&json!(1), &json!(["ns/2"])), "{summary}");
    let error = fs::read(place.join("2")).expect_err("a corrupt object is a miss");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
    assert_eq!(run_json(&mount, &["why", "ns/2"])["verdict"]["kind"], json!("corrupt"));
    for number in [0, 1, 3] {
        let found = fs::read(place.join(number.to_string())).expect("the others are there");
        assert_same(&found, &object(number, 300_000), "an object that is whole");
    }
    assert_eq!(run_json(&mount, &["verify"])["corrupt"], json!(0), "the second time nothing is corrupt");
}

#[test]
fn a_small_object_whose_bytes_changed_is_dropped_and_opened_by_nobody_more() {
    for options in [&[][..], &["passthrough=never"]] {
        let mount = Mount::start(options);
        let path = mount.namespace("ns").join("small");
        let wanted = object(7, 5_000);
        fs::write(&path, &wanted).expect("an object");
        mount.wait_until_closed([path.clone()]);
        assert_eq!(run_json(&mount, &["verify"])["corrupt"], json!(0));
        let holder = File::open(&path).expect("a reader");
        let packed = files_below(&mount.instance_dir().join("memory")).into_iter().find_map(|file| {
            let bytes = fs::read(&file).ok()?;
            let at = bytes.windows(wanted.len()).position(|window| window == wanted)?;
            Some((file, at as u64))
        });
        let (file, at) = packed.expect("it is packed");
        let file = File::options().write(true).open(file).expect("root may");
        file.write_all_at(b"another byte", at + 1_000).expect("memory that fails");
        let summary = parse(&tidefs(&mount, &["verify", "--json"]).output);
        assert_eq!(
            (&summary["corrupt"], &summary["corrupt_paths"]),
            (&json!(1), &json!(["ns/small"])),
            "{summary}"
        );
        let error = fs::read(&path).expect_err("a corrupt object is a miss");
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{options:?}: {error}");
        drop(holder);
    }
}

#[test]
fn what_is_written_over_an_object_that_is_found_to_be_corrupt_is_sealed_at_its_close() {
    let mount = Mount::start(&[]);
    let path = mount.namespace("ns").join("key");
    let old = object(1, 300_000);
    fs::write(&path, &old).expect("an object");
    mount.wait_until_closed([path.clone()]);
    assert!(checksum_of(&path).starts_with("xxh3-64:"));
    let segments = files_below(&mount.instance_dir().join("memory"));
    let segment = segments.iter().find(|path| fs::read(path).is_ok_and(|found| found == old));
    let segment =
        File::options().write(true).open(segment.expect("a segment of the object")).expect("root may");
    // Whoever reads it has it replaced instead of cut.
    let reader = File::open(&path).expect("a reader");
    let mut file = File::create(&path).expect("a new version");
    std::io::Write::write_all(&mut file, &object(2, 200_000)).expect("its bytes");
    segment.write_all_at(b"another byte", 150_000).expect("memory that fails");
    let summary = parse(&tidefs(&mount, &["verify", "--json"]).output);
    assert_eq!(summary["corrupt"], json!(1), "{summary}");
    drop(file);
    assert_same(&fs::read(&path).expect("it was written"), &object(2, 200_000), "what was written");
    drop(reader);
}

#[test]
fn verify_fails_for_what_memory_does_not_give() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    for number in 0..2 {
        fs::write(place.join(number.to_string()), object(number, 300_000)).expect("an object");
    }
    mount.wait_until_closed((0..2).map(|number| place.join(number.to_string())));
    let wanted = object(1, 300_000);
    let segments = files_below(&mount.instance_dir().join("memory"));
    let segment = segments.iter().find(|path| fs::read(path).is_ok_and(|found| found == wanted));
    fs::remove_file(segment.expect("a segment of object 1")).expect("root may");
    let finished = tidefs(&mount, &["verify", "--json"]);
    assert_eq!(finished.status.code(), Some(1), "nothing is known of it: {finished:?}");
    let summary = parse(&finished.output);
    let counts = ["checked", "corrupt", "unreadable", "gone"].map(|name| summary[name].clone());
    assert_eq!(counts, [json!(1), json!(0), json!(1), json!(0)], "{summary}");
    assert!(mount.log().contains("an object could not be read"), "{}", mount.log());
}

#[test]
fn verify_tells_of_what_is_being_written_and_does_not_call_it_gone() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    let file = File::create(place.join("key.tmp")).expect("a temporary file");
    file.write_all_at(&object(1, 300_000), 0).expect("its bytes");
    fs::rename(place.join("key.tmp"), place.join("key")).expect("its publish");
    let counts = |summary: &serde_json::Value| {
        ["checked", "being_written", "gone"].map(|name| summary[name].as_u64().expect("a number"))
    };
    assert_eq!(counts(&run_json(&mount, &["verify"])), [0, 1, 0]);
    drop(file);
    mount.wait_until_closed([place.join("key")]);
    assert_eq!(counts(&run_json(&mount, &["verify"])), [1, 0, 0]);
}

#[test]
fn verify_tells_what_it_did_not_read() {
    let disk =
        tempfile::Builder::new().prefix("tidefs-ssd").tempdir_in("/var/tmp").expect("a directory on a disk");
    let disks = format!("ssd={}", disk.path().display());
    let mount = Mount::start(&[
        "capacity=64MiB",
        "ssd.capacity=512MiB",
        "ssd.zone=8MiB",
        "ssd.queue_ms=60000",
        &disks,
    ]);
    let place = mount.namespace("ns");
    let write = |name: &str| {
        fs::write(place.join(name), object(1, 300_000)).expect("an object");
        mount.wait_until_closed([place.join(name)]);
    };
    write("on_disk");
    run_json(&mount, &["evict", "--bytes", "64MiB"]);
    let tier = |name: &str| run_json(&mount, &["stat", &format!("ns/{name}")])["tier"].clone();
    assert!(until(HANG, || tier("on_disk") == json!("ssd")), "{}", tier("on_disk"));
    write("in_memory");

    let counts = |summary: &serde_json::Value| {
        ["checked", "only_on_disk", "only_in_memory", "gone"]
            .map(|name| summary[name].as_u64().expect("a number"))
    };
    assert_eq!(counts(&run_json(&mount, &["verify"])), [1, 1, 0, 0]);
    assert_eq!(counts(&run_json(&mount, &["verify", "ns/on_disk"])), [0, 1, 0, 0]);
    let human = text(&mount, &["verify", "ns/on_disk"]);
    assert!(!human.contains("intact") && human.contains("--tier ssd reads them"), "{human}");
    assert_eq!(counts(&run_json(&mount, &["verify", "--tier", "ssd"])), [1, 0, 1, 0]);
    let human = text(&mount, &["verify", "ns/in_memory", "--tier", "ssd"]);
    assert!(!human.contains("intact") && human.contains("in memory only"), "{human}");
}

#[test]
fn verify_of_a_tier_that_is_not_there_fails() {
    let mount = Mount::start(&[]);
    fails(&mount, &["verify", "--tier", "ssd"], 1, "this daemon has no SSD tier");
}
