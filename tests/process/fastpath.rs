//! Clients of the fast path as processes of their own: killed at any point, of other users, in other namespaces.
//!
//! Shown: what a killed client held is free; no client that lives on ever sees a byte of a view change, however hard the
//! cache is pushed; a user maps what it may read and nothing else; a process that shares nothing with the daemon's
//! namespaces but the mount maps it all the same.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use tidefs_client::{Cache, View, Writer};

use super::child;
use super::common::mount::wait_for;
use super::common::pattern::{object, verify_object};
use super::common::wait::{HANG, until};
use super::common::{Mount, kernel, pattern};

const MIB: usize = 1 << 20;
const USER: u32 = 54_321;
const STRANGER: u32 = 54_322;

/// What a client is to do.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Orders {
    directory: PathBuf,
    seed: u64,
    /// Objects that are viewed, and begun, by one that waits to be killed.
    count: usize,
    /// The user to become.
    uid: Option<u32>,
    /// A directory to make the root of all, with nothing but the mount in it.
    root: Option<PathBuf>,
    /// Numbers of segments to try to open.
    segments: Vec<u64>,
    /// Milliseconds to go on for.
    for_ms: u64,
}

impl Orders {
    fn new(directory: &Path) -> Self {
        let directory = directory.to_owned();
        Self { directory, seed: 1, count: 0, uid: None, root: None, segments: Vec::new(), for_ms: 0 }
    }
}

/// What a client found.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Found {
    is_fast: bool,
    /// Keys that were read, each with its bytes as they should be, and whether from the cache's own memory.
    read: Vec<(String, bool)>,
    /// Keys that were refused, each with the number of the error.
    refused: Vec<(String, i32)>,
    /// Views that were checked.
    checked: u64,
}

/// Holds views and writers until it is killed.
pub(crate) fn hold_until_killed(orders: &Orders) {
    let cache = Cache::open(&orders.directory).expect("the cache opens");
    let held = |index: usize| cache.get(format!("held{index}")).expect("get").expect("a hit");
    let views: Vec<View> = (0..orders.count).map(held).collect();
    let mut writers: Vec<Writer> =
        (0..orders.count).map(|index| cache.create(format!("begun{index}"), MIB).expect("create")).collect();
    writers.iter_mut().for_each(|writer| writer.fill(7));
    println!("holding {} {}", views.len(), writers.iter().filter(|writer| writer.is_mapped()).count());
    loop {
        std::thread::sleep(HANG);
    }
}

/// Puts and views objects as fast as it can, and checks each view when it lets go of it.
pub(crate) fn churn(orders: &Orders) -> Found {
    let cache = Cache::open(&orders.directory).expect("the cache opens");
    let mut random = StdRng::seed_from_u64(orders.seed);
    let (mut views, mut checked): (Vec<(u64, View)>, u64) = (Vec::new(), 0);
    let end = Instant::now() + Duration::from_millis(orders.for_ms);
    let key = |seed: u64| format!("k{seed}");
    let check =
        |seed: u64, view: &View| assert_eq!(verify_object(view), Ok(seed), "a view changed its bytes");
    while Instant::now() < end || checked <= 50 {
        let seed = random.random_range(0..120_u64);
        let length = [MIB, MIB, 300_000, 9000][usize::try_from(seed % 4).unwrap_or(0)];
        match random.random_range(0..4) {
            0 => cache.put(key(seed), &object(seed, length)).expect("put"),
            // Dropped in the middle, as a client that changes its mind.
            1 => cache.create(key(seed), length).expect("create")[..9].copy_from_slice(b"unfinishe"),
            _ => {
                let keys: Vec<String> = (seed..seed + 4).map(key).collect();
                let found = cache.lookup_many(&keys).expect("lookup");
                let found = found.into_iter().zip(seed..).filter_map(|(view, seed)| Some((seed, view?)));
                views.extend(found);
            }
        }
        while views.len() > 12 {
            let (seed, view) = views.swap_remove(random.random_range(0..views.len()));
            check(seed, &view);
            checked += 1;
        }
    }
    views.iter().for_each(|(seed, view)| check(*seed, view));
    Found { is_fast: cache.is_fast(), read: Vec::new(), refused: Vec::new(), checked }
}

/// Reads all keys of the directory that it is told, as somebody else or from somewhere else.
pub(crate) fn look_around(orders: &Orders) -> Found {
    if let Some(root) = &orders.root {
        std::os::unix::fs::chroot(root).expect("chroot");
        std::env::set_current_dir("/").expect("chdir");
    }
    if let Some(uid) = orders.uid {
        nix::unistd::setgroups(&[]).expect("setgroups");
        nix::unistd::setgid(nix::unistd::Gid::from_raw(uid)).expect("setgid");
        nix::unistd::setuid(nix::unistd::Uid::from_raw(uid)).expect("setuid");
    }
    let cache = Cache::open(&orders.directory).expect("the cache opens");
    let mut found = Found { is_fast: cache.is_fast(), read: Vec::new(), refused: Vec::new(), checked: 0 };
    for key in ["kv/open", "kv/closed", "private/open"] {
        match cache.get(key) {
            Ok(Some(view)) => {
                assert_eq!(verify_object(&view), Ok(5), "{key}");
                found.read.push((key.to_owned(), view.is_mapped()));
            }
            Ok(None) => {}
            Err(error) => found.refused.push((key.to_owned(), error.errno())),
        }
        match cache.put(format!("{key}-new"), &object(6, MIB)) {
            Ok(()) => found.read.push((format!("{key}-new"), true)),
            Err(error) => found.refused.push((format!("{key}-new"), error.errno())),
        }
    }
    // Numbers of segments are no secret; what is in them is.
    for number in &orders.segments {
        let path = orders.directory.join(".tidefs/segments").join(number.to_string());
        if fs::File::open(&path).is_ok() {
            found.checked += 1;
        }
    }
    found
}

fn metric(mount: &Mount, name: &str) -> u64 {
    let text = fs::read_to_string(mount.join(".tidefs/metrics")).expect("the metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.expect("the metric is there")
}

fn kill(mut child: Child) {
    child.kill().expect("kill");
    child.wait().expect("wait");
}

fn report_of(mut child: Child) -> Found {
    let status = wait_for(&mut child, 3 * HANG).expect("the child ends");
    let mut printed = String::new();
    child.stdout.take().expect("its output").read_to_string(&mut printed).expect("text");
    assert!(status.success(), "the child failed: {printed}");
    child::report(&printed).expect("a report")
}

#[test]
fn a_killed_client_frees_what_it_held() {
    if !kernel::has_fast_path() {
        return;
    }
    const COUNT: usize = 16;
    let mount = Mount::start(&["capacity=64MiB"]);
    let kv = mount.namespace("kv");
    let cache = Cache::open(&kv).expect("the cache opens");
    for index in 0..COUNT {
        cache.put(format!("held{index}"), &object(5, MIB)).expect("put");
    }
    let mut holder = child::spawn("fast holder", &Orders { count: COUNT, ..Orders::new(&kv) });
    let mut lines = BufReader::new(holder.stdout.take().expect("its output")).lines();
    let holding = format!("holding {COUNT} {COUNT}");
    assert!(
        lines.any(|line| line.is_ok_and(|line| line.ends_with(&holding))),
        "it holds what it was told to"
    );
    let fill = || {
        for index in 0..80 {
            cache.put(format!("k{index}"), &object(9, MIB)).expect("put");
        }
    };
    let held = || (0..COUNT).filter(|index| kv.join(format!("held{index}")).exists()).count();
    fill();
    assert_eq!(held(), COUNT, "what is viewed is not evicted");
    kill(holder);
    assert!(until(HANG, || metric(&mount, "tidefs_fast_abandoned_total") == COUNT as u64));
    fill();
    // The kernel, which knew them, is told of an eviction a moment after it.
    assert!(until(HANG, || held() == 0), "what a dead client viewed leaves like the rest");
    assert!((0..COUNT).all(|index| !kv.join(format!("begun{index}")).exists()));
    let usage = mount.usage();
    assert!(usage.used <= usage.capacity, "{usage:?}");
}

#[test]
fn no_view_changes_while_clients_are_killed_and_the_cache_is_pushed() {
    if !kernel::has_fast_path() {
        return;
    }
    const CLIENTS: u64 = 4;
    const FOR_MS: u64 = 6000;
    let mount = Mount::start(&["capacity=64MiB"]);
    let kv = mount.namespace("kv");
    let mut seed = 0;
    let mut spawn = |for_ms| {
        seed += 1;
        child::spawn("fast churn", &Orders { seed, for_ms, ..Orders::new(&kv) })
    };
    let steady = spawn(FOR_MS);
    let mut mortals: Vec<Child> = (1..CLIENTS).map(|_| spawn(100 * FOR_MS)).collect();
    let mut random = StdRng::seed_from_u64(3);
    let end = Instant::now() + Duration::from_millis(FOR_MS);
    let (mut killed, mut written) = (0, 0_u64);
    while Instant::now() < end || killed <= 5 {
        for _ in 0..20 {
            let (path, seed) = (kv.join(format!("k{}", written % 120)), written % 120);
            let temporary = kv.join("parent.tmp");
            fs::write(&temporary, object(seed, 700_000)).expect("write");
            fs::rename(&temporary, &path).expect("rename");
            written += 1;
        }
        let usage = mount.usage();
        assert!(usage.used <= usage.capacity, "{usage:?}");
        let victim = random.random_range(0..mortals.len());
        let mut child = std::mem::replace(&mut mortals[victim], spawn(100 * FOR_MS));
        assert!(child.try_wait().expect("wait").is_none(), "a client ended by itself");
        kill(child);
        killed += 1;
    }
    mortals.into_iter().for_each(kill);
    let found = report_of(steady);
    assert!(
        found.is_fast && found.checked > 50 && killed > 5,
        "{found:?}, {killed} killed, {written} written"
    );
    // Everything that was held is free: one object nearly as large as the cache finds room.
    let cache = Cache::open(&kv).expect("the cache opens");
    let large = 44 * MIB;
    assert!(
        until(HANG, || cache.put("large", &pattern::object(8, large)).is_ok()),
        "something is still held"
    );
    assert_eq!(verify_object(&cache.get("large").expect("get").expect("a hit")), Ok(8));
}

/// Numbers of all segments that hold an object of their own.
fn segments(mount: &Mount) -> Vec<u64> {
    let entries = fs::read_dir(mount.instance_dir().join("memory")).expect("the memory tier");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
    names.filter_map(|name| u64::from_str_radix(name.strip_prefix('s')?, 16).ok()).collect()
}

/// A mount with an object that all may read, one that its owner may, and one below a directory that its owner may enter.
fn three_objects() -> Mount {
    let mount = Mount::start(&[]);
    for (namespace, mode) in [("kv", 0o755), ("private", 0o700)] {
        let path = mount.namespace(namespace);
        let cache = Cache::open(&path).expect("the cache opens");
        let names: &[&str] = if namespace == "kv" { &["open", "closed"] } else { &["open"] };
        for name in names {
            cache.put(name, &object(5, MIB)).expect("put");
            let mode = if *name == "closed" { 0o600 } else { 0o644 };
            fs::set_permissions(path.join(name), Permissions::from_mode(mode)).expect("chmod");
            std::os::unix::fs::chown(path.join(name), Some(USER), Some(USER)).expect("chown");
            // Its segment is one that clients may be told of.
            drop(cache.get(name).expect("get").expect("a hit"));
        }
        std::os::unix::fs::chown(&path, Some(USER), Some(USER)).expect("chown");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("chmod");
    }
    mount
}

#[test]
fn a_user_maps_what_it_may_read_and_nothing_else() {
    if !kernel::has_fast_path() {
        return;
    }
    let mount = three_objects();
    let as_user = |uid| {
        let orders = Orders { uid: Some(uid), segments: segments(&mount), ..Orders::new(mount.path()) };
        report_of(child::spawn("fast visitor", &orders))
    };
    assert_eq!(segments(&mount).len(), 3);
    let stranger = as_user(STRANGER);
    assert!(stranger.is_fast);
    assert_eq!(stranger.read, [("kv/open".to_owned(), true)]);
    let refused: Vec<&str> = stranger.refused.iter().map(|(key, _)| &**key).collect();
    assert_eq!(refused, ["kv/open-new", "kv/closed", "kv/closed-new", "private/open", "private/open-new"]);
    assert!(stranger.refused.iter().all(|(_, number)| *number == libc::EACCES), "{stranger:?}");
    assert_eq!(stranger.checked, 1, "one segment can be opened by its number");
    let owner = as_user(USER);
    assert!(owner.refused.is_empty(), "{owner:?}");
    assert_eq!(owner.read.len(), 6);
    assert!(owner.read.iter().all(|(_, is_mapped)| *is_mapped), "{owner:?}");
    for key in ["kv/open-new", "kv/closed-new", "private/open-new"] {
        use std::os::unix::fs::MetadataExt as _;
        assert_eq!(fs::metadata(mount.join(key)).expect("stat").uid(), USER, "{key}");
    }
}

#[test]
fn a_process_that_shares_nothing_but_the_mount_maps_it_all_the_same() {
    if !kernel::has_fast_path() {
        return;
    }
    let mount = three_objects();
    let root = tempfile::tempdir().expect("a directory");
    let inside = root.path().join("cache");
    fs::create_dir(&inside).expect("mkdir");
    // A mount and a pid namespace of its own; in it the cache is bound into a root with nothing else.
    let script = "mount --make-rprivate / && mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    let under: Vec<String> = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, "sh"]
        .into_iter()
        .map(str::to_owned)
        .chain([mount.path(), &inside].map(|path| path.display().to_string()))
        .collect();
    let orders = Orders {
        root: Some(root.path().to_owned()),
        uid: Some(STRANGER),
        ..Orders::new(Path::new("/cache"))
    };
    let found = report_of(child::spawn_under(&under, "fast visitor", &orders));
    assert!(found.is_fast);
    assert_eq!(found.read, [("kv/open".to_owned(), true)], "{found:?}");
    assert!(Command::new("mountpoint").arg("-q").arg(&inside).status().is_ok_and(|status| !status.success()));
}
