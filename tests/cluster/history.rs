//! Histories: what programs on all hosts saw of a few keys, compared with what they may have seen.
//!
//! A key is a register that may lose its value at any time (a cache), but never shows one that was replaced or removed
//! before the look began. What is certain of an operation is that it took effect between its call and its return, unless it
//! took as long as members are waited for, or failed: then it may take effect at any time after its call. What hosts did while
//! they were parted from each other nobody heard of before they met again.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::{pattern, wait};
use crate::fixture::Hosts;

/// Keys that all programs fight for.
const KEYS: usize = 6;
/// Programs on each host.
const PROGRAMS: usize = 2;
/// Names of each program for what only takes room, and the length of that.
const FILLERS: u32 = 16;
const FILLER: usize = 2 << 20;
/// A call of at least this length may have given up waiting for a member (`cluster.patience_ms` is 2000).
const CERTAIN: Duration = Duration::from_millis(1800);

/// What a call did, or saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Publish(u64),
    Unlink,
    /// The value that was read; none where there was nothing.
    Read(Option<u64>),
    /// A look that was told `ESTALE`, where a miss is due.
    Stale,
}

#[derive(Clone, Copy)]
struct Event {
    key: usize,
    host: usize,
    /// Which of the programs of that host.
    number: usize,
    did: Did,
    start: Duration,
    end: Duration,
    /// Whether it took effect before it returned.
    is_certain: bool,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, host, number, did, start, end, is_certain } = self;
        write!(
            f,
            "key {key} on host {host} by {number}: {did:?} from {start:?} to {end:?}, certain: {is_certain}"
        )
    }
}

/// A time in which some hosts did not reach others, to the moment at which all had heard of all again.
#[derive(Clone, Copy, Debug)]
struct Parting {
    from: Duration,
    until: Duration,
}

impl Parting {
    /// Whether who looked, or who did `origin`, need not have heard of `end`.
    fn explains(&self, read: &Event, origin: &Event, end: &Event) -> bool {
        let is_during = |event: &Event| event.start < self.until && self.from < event.end;
        let is_apart = || origin.host != end.host && is_during(origin);
        is_during(end) && (read.start < self.until || is_apart())
    }
}

/// What was done and seen, and when hosts were parted meanwhile.
#[derive(Default)]
pub(crate) struct History {
    events: Vec<Event>,
    partings: Vec<Parting>,
}

impl History {
    /// What is written straight to its name may lose that before it is closed, by an unlink on its host, as on any file system:
    /// then it was there for nobody.
    fn doubt_what_was_unlinked_while_written(&mut self) {
        let unlinks: Vec<Event> =
            self.events.iter().filter(|event| event.did == Did::Unlink).copied().collect();
        for event in &mut self.events {
            let takes_its_name = |unlink: &Event| {
                let is_same_file = (unlink.key, unlink.host) == (event.key, event.host);
                is_same_file && unlink.start < event.end && event.start < unlink.end
            };
            let is_copy = event.number == COPIES && matches!(event.did, Did::Publish(_));
            if is_copy && unlinks.iter().any(takes_its_name) {
                event.is_certain = false;
            }
        }
    }
}

/// The looks of a history that nothing explains, with what contradicts them.
fn contradictions(history: &History, may_lose: bool) -> Vec<String> {
    let History { events: history, partings } = history;
    let mut found = Vec::new();
    let mut changes = vec![Vec::new(); KEYS];
    for event in history.iter().filter(|event| matches!(event.did, Did::Publish(_) | Did::Unlink)) {
        changes[event.key].push(event);
    }
    for read in history {
        let seen = match read.did {
            Did::Read(seen) => seen,
            Did::Stale => {
                found.push(format!("{read:?} is no miss"));
                continue;
            }
            Did::Publish(_) | Did::Unlink => continue,
        };
        let of_key = || changes[read.key].iter().copied();
        if let Some(value) = seen {
            let Some(origin) = of_key().find(|event| event.did == Did::Publish(value)) else {
                found.push(format!("{read:?} is of nobody"));
                continue;
            };
            if origin.start > read.end {
                found.push(format!("{read:?} comes before {origin:?}"));
            }
            let ends_it = of_key().find(|event| {
                let is_between = origin.end < event.start && event.end < read.start;
                let is_heard = || !partings.iter().any(|parting| parting.explains(read, origin, event));
                is_between && event.is_certain && origin.is_certain && is_heard()
            });
            if let Some(end) = ends_it {
                let around = around(history, read);
                found.push(format!(
                    "{read:?} is of {origin:?}, which ended with {end:?}; around it:\n{around}"
                ));
            }
        } else if !may_lose {
            let overlaps = |event: &Event| event.start < read.end && read.start < event.end;
            if of_key().any(|event| matches!(event.did, Did::Publish(_)) && overlaps(event)) {
                // What is replaced while it is fetched may be a miss.
                continue;
            }
            let is_there = of_key().find(|event| {
                let is_before =
                    matches!(event.did, Did::Publish(_)) && event.is_certain && event.end < read.start;
                let mut unlinks = of_key().filter(|event| event.did == Did::Unlink);
                is_before && !unlinks.any(|unlink| unlink.end > event.start && unlink.start < read.end)
            });
            if let Some(there) = is_there {
                found.push(format!("{read:?} though {there:?}"));
            }
        }
    }
    found
}

/// What else became of a key shortly before and during a look.
fn around(history: &[Event], read: &Event) -> String {
    let from = read.start.saturating_sub(Duration::from_millis(60));
    let mut events: Vec<&Event> = history
        .iter()
        .filter(|event| event.key == read.key && event.end >= from && event.start <= read.end)
        .collect();
    events.sort_by_key(|event| event.start);
    events.iter().map(|event| format!("    {event:?}\n")).collect()
}

/// What programs do, and the history of it.
pub(crate) struct Programs {
    epoch: Instant,
    seeds: AtomicU64,
    is_over: AtomicBool,
    history: Mutex<History>,
    /// How they publish.
    publish: Publish,
    /// Of a hundred things that each does, so many are an object of [`FILLER`] bytes that nobody looks at.
    fillers: u32,
}

/// The one that writes straight to names, where one does.
const COPIES: usize = 0;

/// Has the program with a number publish a value as an object of a length. Returns whether that was done.
type Publish = fn(usize, &Path, u64, usize) -> bool;

/// As most clients do.
const BY_RENAME: Publish = |_, path, value, length| publish(path, value, length);

impl Programs {
    fn new(publish: Publish) -> Self {
        Self {
            epoch: Instant::now(),
            seeds: AtomicU64::new(1),
            is_over: AtomicBool::new(false),
            history: Mutex::default(),
            publish,
            fillers: 0,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.history.lock().expect("nobody panics with it").events.len()
    }

    /// Waits until so much more was done and seen.
    pub(crate) fn wait_for(&self, more: usize) {
        let wanted = self.count() + more;
        assert!(wait::until(wait::HANG, || self.count() >= wanted), "the programs stand still");
    }

    /// Parts hosts while `parted` runs, which returns when all have heard of all again.
    pub(crate) fn part(&self, parted: impl FnOnce()) {
        let from = self.epoch.elapsed();
        parted();
        let parting = Parting { from, until: self.epoch.elapsed() };
        self.history.lock().expect("nobody panics with it").partings.push(parting);
    }

    /// The program with a number on a host, until the run is over.
    fn run(&self, (host, number): (usize, usize), folder: &Path) {
        let mut random = StdRng::seed_from_u64((host * PROGRAMS + number) as u64);
        while !self.is_over.load(Ordering::Relaxed) {
            let key = random.random_range(0..KEYS);
            let path = folder.join(format!("key-{key}"));
            if random.random_range(0..100) < self.fillers {
                let name = format!("filler-{host}-{number}-{}", random.random_range(0..FILLERS));
                publish(&folder.join(name), 0, FILLER);
            }
            let start = self.epoch.elapsed();
            let (did, is_done) = match random.random_range(0..100) {
                0..35 => {
                    let value = self.seeds.fetch_add(1, Ordering::Relaxed);
                    let length = random.random_range(pattern::HEAD_BYTES..120_000);
                    (Did::Publish(value), (self.publish)(number, &path, value, length))
                }
                35..45 => (Did::Unlink, fs::remove_file(&path).is_ok()),
                _ => match read(&path) {
                    Some(seen) => (seen, true),
                    None => continue,
                },
            };
            let end = self.epoch.elapsed();
            // What failed may have happened all the same. An unlink that found nothing ended nothing.
            let is_certain = is_done && end - start < CERTAIN;
            let event = Event { key, host, number, did, start, end, is_certain };
            self.history.lock().expect("nobody panics with it").events.push(event);
            thread::sleep(Duration::from_millis(random.random_range(0..4)));
        }
    }
}

fn publish(path: &Path, value: u64, length: usize) -> bool {
    let temporary = path.with_extension(format!("{value}.tmp"));
    let written = fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(&pattern::object(value, length)))
        .and_then(|()| fs::rename(&temporary, path));
    written.is_ok()
}

/// The same by a process of its own that writes straight to the name: only that one sees the file before it is closed.
fn copy(path: &Path, value: u64, length: usize) -> bool {
    let mut source = tempfile::NamedTempFile::new().expect("a file elsewhere");
    source.write_all(&pattern::object(value, length)).expect("its bytes");
    let copied = Command::new("cp").arg(source.path()).arg(path).stderr(Stdio::null()).status();
    copied.expect("cp").success()
}

/// What stands there; nothing when the host is dead.
fn read(path: &Path) -> Option<Did> {
    let error = match fs::read(path) {
        Ok(bytes) => {
            let value = pattern::verify_object(&bytes).expect("whole and of one version");
            return Some(Did::Read(Some(value)));
        }
        Err(error) => error,
    };
    match error.raw_os_error() {
        Some(libc::ENOENT) => Some(Did::Read(None)),
        Some(libc::ESTALE) => Some(Did::Stale),
        Some(libc::ENOTCONN | libc::ECONNABORTED) => None,
        _ => panic!("{}: {error}", path.display()),
    }
}

/// Ends a run when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Has programs on all hosts work while `disturb` runs. Returns what they did and saw.
pub(crate) fn history_of(hosts: &mut Hosts, disturb: impl FnOnce(&mut Hosts, &Programs)) -> History {
    history_by(Programs::new(BY_RENAME), hosts, disturb)
}

/// The same, where what they look at has to make room now and then.
pub(crate) fn history_among_fillers(
    hosts: &mut Hosts,
    disturb: impl FnOnce(&mut Hosts, &Programs),
) -> History {
    history_by(Programs { fillers: 20, ..Programs::new(BY_RENAME) }, hosts, disturb)
}

/// The same by these programs.
fn history_by(programs: Programs, hosts: &mut Hosts, disturb: impl FnOnce(&mut Hosts, &Programs)) -> History {
    let folders: Vec<PathBuf> = hosts.mounts.iter().map(|mount| mount.join("whole-0")).collect();
    thread::scope(|scope| {
        for (host, folder) in folders.iter().enumerate() {
            for number in 0..PROGRAMS {
                let programs = &programs;
                scope.spawn(move || programs.run((host, number), folder));
            }
        }
        // Also when it panics, or nobody would ever join the programs.
        let _over = Over(&programs.is_over);
        disturb(hosts, &programs);
    });
    programs.history.into_inner().expect("nobody panicked with it")
}

/// Time of a run.
pub(crate) fn length() -> Duration {
    let seconds =
        std::env::var("TIDEFS_TEST_SECONDS").map_or(8, |text| text.parse().expect("a number of seconds"));
    Duration::from_secs(seconds)
}

/// Of so many events one may be unexplained while hosts are disturbed: who is not waited for shows what was until it
/// hears of what is, and who looks up once more what it was sent for may be told late. `TIDEFS_TEST_STRICT=1` allows none.
pub(crate) const EVENTS_FOR_ONE: usize = 1000;

#[track_caller]
pub(crate) fn expect_explained(hosts: &Hosts, history: &History, may_lose: bool) {
    let events = history.events.len();
    let values = history.events.iter().filter(|event| matches!(event.did, Did::Read(Some(_)))).count();
    assert!(values > 100, "only {values} looks saw a value");
    let found = contradictions(history, may_lose);
    let is_strict = std::env::var_os("TIDEFS_TEST_STRICT").is_some();
    let allowed = if is_strict || !may_lose { 0 } else { events / EVENTS_FOR_ONE };
    let first = found[..found.len().min(10)].join("\n");
    let untold: Vec<u64> =
        (0..hosts.mounts.len()).map(|host| hosts.metric(host, "tidefs_cluster_owed_total")).collect();
    let count = found.len();
    assert!(count <= allowed, "{count} of {events} events, {untold:?} not told at once:\n{first}");
}

#[test]
fn looks_on_all_hosts_are_explained_by_what_all_hosts_did() {
    let mut hosts = Hosts::start(3, &[]);
    let history = history_of(&mut hosts, |_, programs| {
        thread::sleep(length());
        programs.wait_for(1);
    });
    expect_explained(&hosts, &history, false);
}

#[test]
fn looks_on_all_hosts_are_explained_where_files_are_written_straight_to_their_names() {
    let mut hosts = Hosts::start(3, &[]);
    // One on each host: what two write to one file at once is of both, as on any file system.
    let both: Publish = |number, path, value, length| match number {
        COPIES => copy(path, value, length),
        _ => publish(path, value, length),
    };
    let mut history = history_by(Programs::new(both), &mut hosts, |_, programs| {
        thread::sleep(length());
        programs.wait_for(1);
    });
    history.doubt_what_was_unlinked_while_written();
    expect_explained(&hosts, &history, false);
}

#[test]
fn a_look_that_nothing_explains_is_found() {
    let at = |number: u64| Duration::from_secs(number);
    let event = |did, start: u64, end: u64| Event {
        key: 0,
        host: 0,
        number: COPIES,
        did,
        start: at(start),
        end: at(end),
        is_certain: true,
    };
    let written = event(Did::Publish(1), 1, 2);
    let stale_name = [written, event(Did::Stale, 3, 4)];
    let parted = |events: &[Event], from: u64, until: u64| {
        let partings = vec![Parting { from: at(from), until: at(until) }];
        contradictions(&History { events: events.to_vec(), partings }, true).len()
    };
    let count = |events: &[Event], may_lose| {
        let history = History { events: events.to_vec(), partings: Vec::new() };
        contradictions(&history, may_lose).len()
    };
    assert_eq!(count(&[written, event(Did::Read(Some(1)), 3, 4)], false), 0);
    assert_eq!(count(&[written, event(Did::Read(Some(9)), 3, 4)], true), 1, "a value of nobody");
    assert_eq!(count(&[event(Did::Publish(1), 5, 6), event(Did::Read(Some(1)), 3, 4)], true), 1, "too early");
    let stale = [written, event(Did::Publish(2), 3, 4), event(Did::Read(Some(1)), 5, 6)];
    assert_eq!(count(&stale, true), 1, "a value that was replaced");
    assert_eq!((count(&stale_name, true), count(&stale_name, false)), (1, 1), "an error in place of a miss");
    assert_eq!(parted(&stale, 3, 6), 0, "nobody heard of it");
    assert_eq!(parted(&stale, 3, 5), 1, "everybody had heard of it");
    let mut apart = stale;
    apart[1].host = 1;
    assert_eq!(parted(&apart, 1, 5), 0, "two hosts that did not hear of each other");
    assert_eq!(parted(&stale, 1, 5), 1, "one host knows what it did itself");
    assert_eq!(parted(&stale, 1, 3), 1, "it was done when all heard of all again");
    let back = [written, event(Did::Unlink, 3, 4), event(Did::Read(Some(1)), 5, 6)];
    assert_eq!(count(&back, true), 1, "a value that was removed");
    let unsure = Event { is_certain: false, ..event(Did::Unlink, 3, 4) };
    assert_eq!(count(&[written, unsure, event(Did::Read(Some(1)), 5, 6)], true), 0);
    let unlinked_on = |host| {
        let unlink = Event { host, ..event(Did::Unlink, 4, 6) };
        let events = vec![written, event(Did::Publish(2), 3, 5), unlink, event(Did::Read(Some(1)), 7, 8)];
        let mut history = History { events, partings: Vec::new() };
        history.events[2].end = at(9);
        history.doubt_what_was_unlinked_while_written();
        contradictions(&history, true).len()
    };
    assert_eq!((unlinked_on(0), unlinked_on(1)), (0, 1), "it may have lost its name on its own host alone");
    let lost = [written, event(Did::Read(None), 5, 6)];
    assert_eq!((count(&lost, true), count(&lost, false)), (0, 1), "a value that was lost");
    assert_eq!(count(&[written, event(Did::Unlink, 3, 6), event(Did::Read(None), 5, 6)], false), 0);
    let replaced = [written, event(Did::Publish(2), 4, 7), event(Did::Read(None), 5, 6)];
    assert_eq!(count(&replaced, false), 0, "a value that is just being replaced");
}
