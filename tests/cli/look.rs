//! `tidefs status`, `list` and `stat`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tidefs_client::Cache;

use super::common::pattern::object;
use super::common::program;
use super::common::sys::{checksum_of, set_xattr};
use super::common::{Mount, kernel, wait};
use super::tool::{
    EXIT_NO_DAEMON, EXIT_NOT_FOUND, argument, binary, fails, json as run_json, text, tidefs, wrong_usage,
};

fn names(list: &Value) -> Vec<&str> {
    let entries = list["entries"].as_array().expect("entries");
    entries.iter().map(|entry| entry["path"].as_str().expect("a path")).collect()
}

#[test]
fn status_tells_what_the_daemon_holds() {
    let mount = Mount::start(&["capacity=64MiB"]);
    let place = mount.namespace("ns");
    for number in 0..5 {
        fs::write(place.join(number.to_string()), object(number, 200_000)).expect("an object");
    }
    mount.wait_until_closed((0..5).map(|number| place.join(number.to_string())));
    let status = run_json(&mount, &["status"]);
    assert_eq!(status["capacity"], json!(64 << 20), "{status}");
    assert_eq!(status["objects"], json!(5), "{status}");
    assert_eq!(status["sealed_bytes"], json!(1_000_000), "{status}");
    assert_eq!(status["mount_point"], json!(argument(mount.path())), "{status}");
    assert_eq!(status["pid"], json!(mount.pid().as_raw()), "{status}");
    assert_eq!(status["used"], json!(mount.usage().used), "{status}");
    assert_eq!(status["namespaces"][0]["name"], json!("ns"), "{status}");
    assert_eq!(status, run_json(&mount, &["status", "--mount", argument(mount.path())]).with_now(&status));
    let human = text(&mount, &["status"]);
    for word in [argument(mount.path()), "64", "MiB", "ns", "passthrough"] {
        assert!(human.contains(word), "`{word}` is not in:\n{human}");
    }
    // the same facts stand in the mount itself
    let inside: Value =
        serde_json::from_slice(&fs::read(mount.join(".tidefs/status")).expect("readable")).expect("JSON");
    assert_eq!(inside["capacity"], status["capacity"]);
    assert_eq!(inside["objects"], status["objects"]);
    fails(&mount, &["status", "--mount", "/no/such/mount"], EXIT_NO_DAEMON, "/no/such/mount");
    assert_eq!(status, run_json(&mount, &["status", argument(mount.path())]).with_now(&status));
    let settings = run_json(&mount, &["config", "show", "--effective", argument(mount.path())]);
    assert_eq!(settings, run_json(&mount, &["config", "show", "--effective"]));
}

#[test]
fn no_name_of_a_namespace_steers_the_terminal_of_who_looks() {
    let mount = Mount::start(&["capacity=64MiB"]);
    for name in [&b"\x1b]0;owned\x07\x1b[2J"[..], b"a\nwarning: a line of its own", b"b\xff", b"b\xfe"] {
        fs::create_dir(mount.join(OsStr::from_bytes(name))).expect("a namespace");
    }
    let status = run_json(&mount, &["status"]);
    let names =
        status["namespaces"].as_array().expect("namespaces").iter().filter_map(|of| of["name"].as_str());
    let names: HashSet<&str> = names.collect();
    let escaped = [r"\x1b]0;owned\x07\x1b[2J", r"a\x0awarning: a line of its own", r"b\xff", r"b\xfe"];
    assert_eq!(names, HashSet::from(escaped), "{status}");
    let human = text(&mount, &["status"]);
    assert!(escaped.iter().all(|name| human.contains(name)), "{human}");
    assert!(
        !human.contains('\x1b') && !human.lines().any(|line| line.starts_with("warning: a line")),
        "{human}"
    );
}

#[test]
fn status_tells_what_unfinished_files_take_of_a_quota() {
    let mount = Mount::start(&["capacity=64MiB"]);
    let place = mount.namespace("ns");
    set_xattr(&place, "user.tidefs.quota", b"32MiB").expect("a quota");
    let mut writer = File::create(place.join("a")).expect("a file");
    writer.write_all(&object(1, 3 << 20)).expect("there is room");
    let unsealed = || {
        let status = run_json(&mount, &["status"]);
        [&status["unsealed_bytes"], &status["namespaces"][0]["unsealed_bytes"]].map(|bytes| bytes.as_u64())
    };
    // What the kernel writes is counted a moment later.
    let is_counted = || unsealed().iter().all(|bytes| bytes.is_some_and(|bytes| bytes >= 3 << 20));
    assert!(wait::until(wait::HANG, is_counted), "{:?}", unsealed());
    let human = text(&mount, &["status"]);
    assert!(human.contains("MiB unsealed") && human.contains("UNSEALED"), "{human}");
    let metrics = fs::read_to_string(mount.join(".tidefs/metrics")).expect("readable");
    let metric = metrics.lines().find_map(|line| line.strip_prefix("tidefs_unsealed_bytes "));
    assert!(metric.is_some_and(|bytes| bytes != "0"), "{metric:?}");
    drop(writer);
    assert!(wait::until(wait::HANG, || unsealed() == [Some(0), Some(0)]), "{:?}", unsealed());
}

/// Two answers of one daemon differ in what changes by the second.
trait WithNow {
    fn with_now(self, other: &Value) -> Value;
}

impl WithNow for Value {
    fn with_now(mut self, other: &Value) -> Value {
        for key in ["uptime_s", "counters"] {
            self[key] = other[key].clone();
        }
        self
    }
}

#[test]
fn list_is_in_the_order_that_is_asked_for() {
    let mount = Mount::start(&["capacity=64MiB", "policy=lru"]);
    let place = mount.namespace("ns");
    let sizes = [("a", 300_000), ("b", 100_000), ("c", 200_000), ("d", 5_000)];
    for (name, size) in sizes {
        fs::write(place.join(name), object(1, size)).expect("an object");
        // Sealed before the next one is.
        mount.wait_until_closed([place.join(name)]);
    }
    for _ in 0..3 {
        fs::read(place.join("b")).expect("an object");
    }
    let by_heat = run_json(&mount, &["list", "--sort=heat"]);
    assert_eq!(names(&by_heat)[0], "ns/b", "the one that is evicted last comes first: {by_heat}");
    assert_eq!(by_heat["total"], json!(4), "{by_heat}");
    assert_eq!(names(&run_json(&mount, &["list", "--sort=name"])), ["ns/a", "ns/b", "ns/c", "ns/d"]);
    assert_eq!(names(&run_json(&mount, &["list", "--sort=size"])), ["ns/a", "ns/c", "ns/b", "ns/d"]);
    assert_eq!(names(&run_json(&mount, &["list", "--sort=age"])), ["ns/a", "ns/b", "ns/c", "ns/d"]);
    assert_eq!(names(&run_json(&mount, &["list", "--sort=size", "--limit", "2"])), ["ns/a", "ns/c"]);
    let other = mount.namespace("other");
    fs::write(other.join("e"), object(1, 50_000)).expect("an object");
    mount.wait_until_closed([other.join("e")]);
    assert_eq!(names(&run_json(&mount, &["list", argument(&other)])), ["other/e"]);
    let human = text(&mount, &["list", "--sort=name"]);
    let place_of = |name: &str| human.find(name).unwrap_or_else(|| panic!("{name} is not in:\n{human}"));
    assert!(place_of("ns/a") < place_of("ns/b") && place_of("ns/b") < place_of("other/e"), "{human}");
    fails(&mount, &["list", "no-such-folder"], EXIT_NOT_FOUND, "no-such-folder");
    wrong_usage(&mount, &["list", "--sort=colour"], "colour");
}

#[test]
fn a_list_by_heat_is_the_order_of_eviction_backwards() {
    let mount = Mount::start(&["policy=lru"]);
    let paths = ["low", "high", "normal"].map(|name| mount.namespace(name).join("a"));
    for (path, priority) in paths.iter().zip(["-5", "5", "0"]) {
        let directory = path.parent().expect("its directory");
        set_xattr(directory, "user.tidefs.priority", priority.as_bytes()).expect("a priority");
        fs::write(path, object(1, 100_000)).expect("an object");
    }
    mount.wait_until_closed(&paths);
    // What was used last is not what stays longest.
    fs::read(&paths[0]).expect("the object");
    mount.wait_until_closed(&paths);
    assert_eq!(names(&run_json(&mount, &["list", "--sort=heat"])), ["high/a", "normal/a", "low/a"]);
    for evicted in ["low", "normal", "high"] {
        run_json(&mount, &["evict", "--bytes", "1KiB"]);
        let left = run_json(&mount, &["list", "--sort=heat"]);
        assert!(!names(&left).contains(&format!("{evicted}/a").as_str()), "{evicted} leaves next: {left}");
    }
}

#[test]
fn list_all_names_every_object_once() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    for number in 0..1500 {
        fs::write(place.join(format!("{number:04}")), object(number, 100)).expect("an object");
    }
    assert!(wait::until(wait::HANG, || run_json(&mount, &["status"])["objects"] == json!(1500)));
    let list = run_json(&mount, &["list", "--all", "--sort=name"]);
    let wanted: Vec<String> = (0..1500).map(|number| format!("ns/{number:04}")).collect();
    assert_eq!(names(&list), wanted);
    assert_eq!(names(&run_json(&mount, &["list"])).len(), 100, "the default limit");
}

#[test]
fn list_all_names_what_stays_once_while_other_objects_come_and_go() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    // More than any part of an answer.
    const STAY: usize = 12_000;
    for number in 0..STAY {
        fs::write(place.join(format!("k{number:05}")), b"x").expect("an object");
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = |number| place.join(format!("a{number}"));
            while !is_over.load(Ordering::Relaxed) {
                (0..200).for_each(|number| fs::write(other(number), b"y").expect("an object"));
                (0..200).for_each(|number| fs::remove_file(other(number)).expect("unlink"));
            }
        });
        for sort in ["--sort=name", "--sort=heat", "--sort=age"] {
            let list = run_json(&mount, &["list", "--all", sort]);
            let stayed: Vec<&str> =
                names(&list).into_iter().filter(|name| name.starts_with("ns/k")).collect();
            let once: HashSet<&str> = stayed.iter().copied().collect();
            assert_eq!(
                (stayed.len(), once.len()),
                (STAY, STAY),
                "{sort}: listed, and of them different ones"
            );
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn status_counts_what_programs_open_and_nothing_else() {
    let mount = Mount::start(&[]);
    let path = mount.namespace("ns").join("k");
    fs::write(&path, object(1, 300_000)).expect("an object");
    mount.wait_until_closed([&path]);
    fs::read(&path).expect("the object");
    mount.wait_until_closed([&path]);
    nix::unistd::truncate(&path, 100_000).expect("another length");
    let counters = run_json(&mount, &["status"])["counters"].clone();
    assert_eq!((&counters["opens"], &counters["creates"]), (&json!(2), &json!(1)), "{counters}");
}

#[test]
fn stat_counts_views_of_the_client_library_beside_open_files() {
    if !kernel::has_fast_path() {
        return;
    }
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    let path = place.join("k");
    fs::write(&path, object(1, 300_000)).expect("an object");
    mount.wait_until_closed([&path]);
    let references = || run_json(&mount, &["stat", argument(&path)])["references"].clone();
    let cache = Cache::open(&place).expect("the cache opens");
    let view = cache.get("k").expect("get").expect("a hit");
    assert_eq!(references(), json!(1));
    let file = File::open(&path).expect("open");
    assert_eq!(references(), json!(2));
    drop(view);
    cache.flush();
    assert_eq!(references(), json!(1));
    drop(file);
    mount.wait_until_closed([&path]);
}

#[test]
fn stat_tells_all_of_one_object() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    let (large, small) = (place.join("large"), place.join("small"));
    fs::write(&large, object(1, 1 << 20)).expect("an object");
    fs::write(&small, object(2, 1000)).expect("an object");
    mount.wait_until_closed([&large, &small]);
    for _ in 0..3 {
        fs::read(&large).expect("an object");
    }
    // Asked for it is taken at once; else when the machine is idle.
    let checksum = checksum_of(&large);
    let stat = run_json(&mount, &["stat", argument(&large)]);
    assert_eq!(stat["path"], json!("ns/large"), "{stat}");
    assert_eq!(stat["size"], json!(1 << 20), "{stat}");
    assert_eq!(stat["tier"], json!("memory"), "{stat}");
    assert_eq!(stat["pin"], json!("none"), "{stat}");
    assert!(stat["hits"].as_u64() >= Some(3), "{stat}");
    assert!(checksum.contains(stat["checksum"].as_str().expect("a checksum")), "{checksum} and {stat}");
    assert_eq!(run_json(&mount, &["stat", argument(&small)])["tier"], json!("packed"));
    let directory = run_json(&mount, &["stat", "ns"]);
    assert_eq!(directory["kind"], json!("directory"), "{directory}");
    assert_eq!(directory["size"], json!((1 << 20) + 4096), "{directory}");
    assert!(directory["hits"].as_u64() >= Some(3), "{directory}");
    assert_eq!(run_json(&mount, &["stat", "ns/large"])["size"], stat["size"], "a key relative to the mount");
    let human = text(&mount, &["stat", argument(&large)]);
    for word in ["ns/large", "1 MiB", stat["checksum"].as_str().expect("a checksum")] {
        assert!(human.replace("1.0 MiB", "1 MiB").contains(word), "`{word}` is not in:\n{human}");
    }
    fails(&mount, &["stat", argument(&place.join("missing"))], EXIT_NOT_FOUND, "ns/missing");
    fails(&mount, &["stat", "/usr/bin"], EXIT_NO_DAEMON, "/usr/bin");
}

#[test]
fn stat_tells_what_an_object_follows() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    // Who asks for them in this order and then makes them makes a chain, unless the machine pauses.
    let is_told = (0..10).any(|round| {
        let blocks: Vec<_> = (0..4).map(|block| place.join(format!("{round}-{block}"))).collect();
        assert!(!blocks.iter().any(|block| block.exists()));
        for (block, seed) in blocks.iter().zip(0..) {
            let temporary = block.with_extension("tmp");
            fs::write(&temporary, object(seed, 100_000)).expect("an object");
            fs::rename(&temporary, block).expect("its publish");
        }
        mount.wait_until_closed(&blocks);
        let [second, third] = [1, 2].map(|block| format!("ns/{round}-{block}"));
        let human = text(&mount, &["stat", &third]);
        let follows = human.lines().find(|line| line.starts_with("follows"));
        run_json(&mount, &["stat", &third])["predecessor"] == json!(second)
            && follows.is_some_and(|line| line.ends_with(&second))
    });
    assert!(is_told);
}

/// Wherever `stat` was typed, `why` is about the same key.
#[test]
fn the_next_step_of_a_missing_key_can_be_typed_as_it_stands() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("a ns");
    let small = place.join("it's small");
    fs::write(&small, object(1, 1000)).expect("an object");
    mount.wait_until_closed([&small]);
    run_json(&mount, &["evict", argument(&small)]);
    let mut command = Command::new(binary());
    command.args(["stat", "it's small", "--state-dir"]).arg(mount.state_dir()).current_dir(&place);
    let missing = program::run(&mut command, wait::HANG);
    assert_eq!(missing.status.code(), Some(EXIT_NOT_FOUND), "{missing:?}");
    let step = missing.errors.split("next step: `").nth(1).and_then(|rest| rest.split("` tells").next());
    let step = step.expect("a next step").replacen("tidefs", argument(&binary()), 1);
    for place in [place.as_path(), Path::new("/")] {
        let told = program::run(Command::new("sh").args(["-c", &step]).current_dir(place), wait::HANG);
        assert!(told.output.contains("`a ns/it's small` was evicted"), "{step}: {told:?}");
    }
}

#[test]
fn a_host_that_waits_for_its_cluster_says_so_and_why() {
    let mount = Mount::start(&["cluster.etcd=http://127.0.0.1:1", "cluster.listen=127.0.0.1:0"]);
    assert!(run_json(&mount, &["status"])["cluster_waits_for"].is_string());
    let metrics = mount.control_get("/v1/metrics").text();
    for line in ["tidefs_cluster_joined 0", "tidefs_coordinator_away 1"] {
        assert!(metrics.lines().any(|shown| shown == line), "`{line}` is not in:\n{metrics}");
    }
    let told = format!("{} has not joined its cluster yet: ", mount.path().display());
    for command in [&["members"][..], &["catalog", "stats"]] {
        let finished = tidefs(&mount, command);
        assert!(!finished.status.success() && finished.errors.contains(&told), "{finished:?}");
        assert!(finished.errors.contains("next step: it joins by itself"), "{finished:?}");
    }
}

#[test]
fn a_stopped_daemon_makes_commands_fail_and_not_hang() {
    let mut mount = Mount::start(&["on_stop=keep"]);
    fs::write(mount.namespace("ns").join("a"), object(1, 1000)).expect("an object");
    let sealed = || run_json(&mount, &["status"])["objects"] == json!(1);
    assert!(wait::until(wait::HANG, sealed));
    mount.kill9();
    fails(&mount, &["status", "--mount", argument(mount.path())], EXIT_NO_DAEMON, "gone");
    let key = mount.path().join("ns/a");
    fails(&mount, &["stat", argument(&key)], EXIT_NO_DAEMON, "gone");
    mount.start_daemon();
    assert_eq!(run_json(&mount, &["status"])["objects"], json!(1));
}

#[test]
fn a_name_as_a_list_shows_it_is_taken_with_escaped() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    let path = place.join(OsStr::from_bytes(b"a\xff\nb\\c"));
    fs::write(&path, object(1, 100_000)).expect("an object");
    let shown = r"ns/a\xff\x0ab\x5cc";
    assert!(wait::until(wait::HANG, || names(&run_json(&mount, &["list"])) == [shown]));
    let absolute = format!("{}/{shown}", mount.path().display());
    for spelled in [shown, &absolute] {
        let stat = run_json(&mount, &["stat", "--escaped", spelled]);
        assert_eq!((&stat["path"], &stat["size"]), (&json!(shown), &json!(100_000)), "{stat}");
    }
    fails(&mount, &["stat", shown], EXIT_NOT_FOUND, "no object");
    wrong_usage(&mount, &["stat", "--escaped", r"ns/a\q"], r"ns/a\q");
    assert_eq!(run_json(&mount, &["list", "--escaped", &absolute])["total"], json!(1));
    let is_closed = || run_json(&mount, &["stat", "--escaped", shown])["references"] == 0;
    assert!(wait::until(wait::HANG, is_closed));
    assert_eq!(run_json(&mount, &["evict", "--escaped", &absolute])["objects"], json!(1));
    assert_eq!(run_json(&mount, &["why", "--escaped", shown])["verdict"]["kind"], json!("evicted"));
}
