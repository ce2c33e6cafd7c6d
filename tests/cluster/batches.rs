//! Many names of other hosts at once, by the ioctls of the fast path.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use tidefs_client::{AsyncCache, Cache, Pin};
use tidefs_control_api::ioctl::{Command, Encoder, Entry, Flags, Name, Status, request_number, results};

use crate::common::sys::get_xattr_text;
use crate::common::{Mount, kernel, wait};
use crate::fixture::{Hosts, object, publish};

const NAMES: usize = 300;
/// Objects that a host brought ahead of their use.
const LOADED_AHEAD: &str = "tidefs_ssd_prefetches_total";

fn names(directory: &str) -> Vec<String> {
    (0..NAMES).map(|number| format!("{directory}/{number}")).collect()
}

/// Messages by which host 1 asked for names.
fn messages(hosts: &Hosts) -> u64 {
    hosts.metric(1, "tidefs_cluster_find_messages_total")
}

#[test]
fn names_of_another_host_are_asked_for_with_one_message_for_each_level_of_directories() {
    if !kernel::has_fast_path() {
        return;
    }
    let hosts = Hosts::start(2, &[]);
    let deep = hosts.mounts[0].join("whole-0/a/b");
    fs::create_dir_all(&deep).expect("directories");
    for (number, name) in (0..).zip(names("whole-0/a/b")) {
        publish(&hosts.mounts[0].join(name), &object(number, 60_000));
    }
    let cache = Cache::open(hosts.mounts[1].path()).expect("the cache opens");
    assert!(cache.is_fast());
    let before = messages(&hosts);
    assert_eq!(cache.prefix(&names("whole-0/a/b")).expect("an answer"), NAMES);
    let asked = messages(&hosts) - before;
    assert!(asked <= 6, "{asked} messages for {NAMES} names");
    for (number, view) in (0..).zip(cache.lookup_many(&names("whole-0/a/b")).expect("an answer")) {
        assert!(view.is_some_and(|view| view[..] == object(number, 60_000)), "object {number}");
    }
}

#[test]
fn names_behind_a_directory_of_another_host_are_found_beside_others() {
    if !kernel::has_fast_path() {
        return;
    }
    let hosts = Hosts::start(2, &[]);
    fs::create_dir(hosts.mounts[0].join("whole-0/inner")).expect("a directory");
    let name = |number: u64| match number % 3 {
        0 => format!("whole-0/inner/{number}"),
        _ => format!("whole-0/{number}"),
    };
    let mixed: Vec<String> = (0..100).map(name).collect();
    for (number, name) in (0..).zip(&mixed) {
        publish(&hosts.mounts[0].join(name), &object(number, 60_000));
    }
    let cache = Cache::open(hosts.mounts[1].path()).expect("the cache opens");
    assert_eq!(cache.prefix(&mixed).expect("an answer"), mixed.len());
    for (number, view) in (0..).zip(cache.lookup_many(&mixed).expect("an answer")) {
        assert!(view.is_some_and(|view| view[..] == object(number, 60_000)), "object {number}");
    }
}

#[test]
fn absence_is_asked_for_at_once_and_remembered_until_somebody_publishes() {
    let hosts = Hosts::start(2, &[]);
    let cache = Cache::open(hosts.mounts[1].path()).expect("the cache opens");
    let (before, absent) = (messages(&hosts), names("whole-0"));
    let none = |cache: &Cache| {
        let found = cache.lookup_many(&absent).expect("an answer");
        found.iter().all(Option::is_none)
    };
    assert!(none(&cache));
    let asked = messages(&hosts) - before;
    assert!(asked <= 4, "{asked} messages for {NAMES} names");
    assert!(none(&cache));
    assert_eq!(messages(&hosts) - before, asked, "it is remembered");
    assert_eq!(cache.prefix(&names("whole-0/no/such/directory")).expect("an answer"), 0);
    publish(&hosts.mounts[0].join(&absent[7]), &object(7, 60_000));
    let found = cache.lookup_many(&absent).expect("an answer");
    let there: Vec<usize> =
        found.iter().enumerate().filter(|(_, view)| view.is_some()).map(|(at, _)| at).collect();
    assert_eq!(there, [7]);
}

#[test]
fn an_object_of_another_host_is_on_its_way_before_who_looked_it_up_opens_its_file() {
    if !kernel::has_fast_path() {
        return;
    }
    let hosts = Hosts::start(2, &[]);
    let cache = Cache::open(hosts.mounts[1].path()).expect("the cache opens");
    for (number, name) in (0..).zip(["whole-0/probed", "whole-0/wanted"]) {
        publish(&hosts.mounts[0].join(name), &object(number, 60_000));
    }
    assert_eq!(cache.prefix(&["whole-0/probed"]).expect("an answer"), 1);
    assert_eq!(hosts.metric(1, LOADED_AHEAD), 0, "whether it is there is all that was asked");
    let mut bytes = vec![0; 60_000];
    assert_eq!(cache.get_into("whole-0/wanted", &mut bytes).expect("an answer"), Some(bytes.len()));
    assert!(bytes == object(1, 60_000));
    // Counted when the load has ended, a moment after its object is here.
    assert_eq!(hosts.metric_at_rest(1, LOADED_AHEAD, 1), 1, "its file was opened first");
}

/// What one LOOKUP says of names. The library would open the files of those below memory next.
fn look_up(mount: &Mount, names: &[String]) -> Vec<Status> {
    let mut request = Encoder::new(Flags::NONE, 0, size_of::<Entry>());
    for name in names {
        assert!(request.push(&Name(name.as_bytes())), "all fit into one request");
    }
    let mut payload = request.finish();
    let control = File::options().read(true).write(true).open(mount.join(".tidefs/control"));
    let (control, number) = (control.expect("it opens"), request_number(Command::Lookup, payload.len()));
    // SAFETY: the number says how many bytes the kernel reads and writes, which is the length of the payload.
    let outcome =
        unsafe { libc::ioctl(control.as_raw_fd(), libc::Ioctl::from(number), payload.as_mut_ptr()) };
    Errno::result(outcome).expect("a reply");
    let (_, entries) = results::<Entry>(&payload).expect("a whole reply");
    entries.iter().map(Entry::status).collect()
}

#[test]
fn of_many_names_none_is_on_its_way_before_it_is_said_which_come_first() {
    if !kernel::has_fast_path() {
        return;
    }
    let hosts = Hosts::start(2, &[]);
    fs::create_dir(hosts.mounts[0].join("whole-0/new")).expect("a directory");
    for (number, name) in (0..).zip(names("whole-0/new")) {
        publish(&hosts.mounts[0].join(name), &object(number, 60_000));
    }
    // One name is unknown at first: the directory.
    let found = look_up(&hosts.mounts[1], &names("whole-0/new"));
    assert_eq!(found, vec![Status::Loadable; NAMES]);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(hosts.metric(1, LOADED_AHEAD), 0);
}

#[test]
fn only_what_others_were_asked_for_is_on_its_way() {
    if !kernel::has_fast_path() {
        return;
    }
    let hosts = Hosts::start(2, &[]);
    let cache = Cache::open(hosts.mounts[1].path()).expect("the cache opens");
    let names = &names("whole-0")[..10];
    for (number, name) in (0..).zip(names) {
        publish(&hosts.mounts[0].join(name), &object(number, 60_000));
    }
    let (known, new) = names.split_at(9);
    assert_eq!(cache.prefix(known).expect("an answer"), known.len());
    // The last one may be here when this is answered.
    assert_eq!(look_up(&hosts.mounts[1], names)[..known.len()], [Status::Loadable; 9]);
    let loaded_ahead = || hosts.metric(1, LOADED_AHEAD);
    assert!(wait::until(wait::HANG, || loaded_ahead() > 0), "{new:?} is not on its way");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(loaded_ahead(), 1);
}

/// A task looks names up while the host that serves half of them stands still.
#[test]
fn a_task_that_waits_for_another_host_does_not_hold_its_thread() {
    if !kernel::has_fast_path() {
        return;
    }
    let patience = Duration::from_secs(12);
    let hosts = Hosts::start(2, &["cluster.grace_s=60", "cluster.patience_ms=12000"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let cache = runtime.block_on(AsyncCache::open(hosts.mounts[1].path())).expect("the cache opens");
    assert!(cache.blocking().is_fast());
    let cold = names("whole-0");
    hosts.mounts[0].stand_still();
    let (ticks, longest) = runtime.block_on(async {
        let mut found = pin!(cache.lookup_many(&cold[..16]));
        let (mut ticks, mut longest) = (0, Duration::ZERO);
        while ticks < 20 {
            let at = Instant::now();
            let is_over = tokio::time::timeout(Duration::from_millis(10), found.as_mut()).await.is_ok();
            longest = longest.max(at.elapsed());
            if is_over {
                break;
            }
            ticks += 1;
        }
        (ticks, longest)
    });
    // What waits on other threads ends soon then.
    hosts.mounts[0].go_on();
    assert!(longest < patience / 2, "the thread stood still for {longest:?}");
    assert_eq!(ticks, 20, "nobody was waited for");
}

#[test]
fn what_a_client_pins_is_brought_to_its_host() {
    let hosts = Hosts::start(2, &[]);
    let name = "whole-0/key";
    publish(&hosts.mounts[0].join(name), &object(1, 1 << 20));
    let cache = Cache::open(hosts.mounts[1].path()).expect("the cache opens");
    assert_eq!(cache.prefix(&[name]).expect("an answer"), 1, "it is known here");
    assert!(cache.pin(name, Pin::Hard).expect("pin"));
    assert_eq!(get_xattr_text(&hosts.mounts[1].join(name), "user.tidefs.tier"), "memory");
}
