//! `tidefs verify`: finds bytes that changed under their checksum, drops them, and says so.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use serde_json::json;

use super::common::Mount;
use super::common::pattern::{assert_same, object};
use super::common::place::files_below;
use super::common::sys::checksum_of;
use super::tool::{argument, json as run_json, parse, text, tidefs};

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
