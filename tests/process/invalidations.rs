//! kill -9 of the daemon in the middle of what makes it tell the kernel to forget something. Its clients get errors and
//! not hangs, it dies without help, and the next daemon takes its place.
//!
//! A message that took a lock which a client holds while it waits for the daemon would break all three.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::child;
use super::common::Mount;
use super::common::mount::wait_for;
use super::common::sys::errno;
use super::common::wait::{HANG, until};

/// Clients at once, of which each has two threads.
const CLIENTS: u64 = 3;
/// Names of the one directory that all of them use.
const NAMES: u64 = 64;
/// Names that are made and removed so that the kernel holds more inodes than it may.
const MANY_NAMES: u64 = 3000;

/// What a client does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Load {
    /// More names than the kernel may hold inodes.
    ManyInodes,
    /// Sealed objects are written again where they are.
    Reopen,
    /// Names are replaced while somebody rewrites what stands there.
    RenameOver,
}

/// What a client is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    place: PathBuf,
    load: Load,
    number: u64,
}

/// How a client ended: the errno of each thread.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    errors: Vec<i32>,
}

fn look(place: &Path, name: &str) -> std::io::Result<()> {
    match fs::metadata(place.join(name)) {
        Err(error) if errno(&error) == Errno::ENOENT => Ok(()),
        other => other.map(drop),
    }
}

/// What a write into a dying mount says: EIO when its bytes were on their way at that moment, and then the mount says what it
/// is. From one that lives EIO is an error like any other.
fn write(place: &Path, write: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
    write().or_else(|error| match errno(&error) {
        // The kernel asks the daemon this each time.
        Errno::EIO => statvfs(place).map_err(std::io::Error::from).and(Err(error)),
        _ => Err(error),
    })
}

/// One round of a load.
fn round(orders: &Orders, random: &mut StdRng) -> std::io::Result<()> {
    let place = &orders.place;
    let name = format!("k{}", random.random_range(0..NAMES));
    match orders.load {
        Load::ManyInodes => {
            let name = format!("many{}", random.random_range(0..MANY_NAMES));
            drop(File::create(place.join(&name))?);
            look(place, &format!("many{}", random.random_range(0..MANY_NAMES)))
        }
        Load::Reopen => {
            match OpenOptions::new().read(true).write(true).open(place.join(&name)) {
                Ok(file) => write(place, || file.write_all_at(b"again", 5))?,
                // Others rewrite it, and hide it meanwhile.
                Err(error) if errno(&error) == Errno::ENOENT => {
                    write(place, || fs::write(place.join(&name), [1; 40_000]))?;
                }
                Err(error) => return Err(error),
            }
            look(place, &name)
        }
        Load::RenameOver => {
            let own = format!("own{}-{:?}", orders.number, thread::current().id());
            if random.random_bool(0.5) {
                let rewritten =
                    OpenOptions::new().write(true).create(true).truncate(true).open(place.join(&name));
                let mut rewritten = rewritten?;
                write(place, || rewritten.write_all(&[2; 40_000]))?;
            } else {
                write(place, || fs::write(place.join(&own), [3; 40_000]))?;
                fs::rename(place.join(&own), place.join(&name))?;
            }
            look(place, &name)
        }
    }
}

/// The child: works until a call says that the mount is dead.
pub(crate) fn work_until_the_mount_dies(orders: &Orders) -> Report {
    println!("\nworking");
    std::io::stdout().flush().expect("the test listens");
    let work = |seed: u64| {
        let mut random = StdRng::seed_from_u64(orders.number << 8 | seed);
        loop {
            if let Err(error) = round(orders, &mut random)
                && !matches!(errno(&error), Errno::ENOENT | Errno::ESTALE)
            {
                return errno(&error) as i32;
            }
        }
    };
    thread::scope(|scope| {
        let threads = [0, 1].map(|seed| scope.spawn(move || work(seed)));
        Report { errors: threads.map(|thread| thread.join().expect("a client does not panic")).to_vec() }
    })
}

fn rounds() -> u32 {
    if std::env::var_os("TIDEFS_TEST_LONG").is_some() { 60 } else { 12 }
}

fn kill_under(load: Load, options: &[&str], has_told: impl Fn(&Mount) -> bool) {
    let mut options = options.to_vec();
    options.push("on_stop=keep");
    let mut mount = Mount::start(&options);
    let place = mount.namespace("ns");
    for number in 0..NAMES {
        fs::write(place.join(format!("k{number}")), [0; 40_000]).expect("an object");
    }
    let mut random = StdRng::seed_from_u64(11);
    for turn in 0..rounds() {
        let clients = (0..CLIENTS)
            .map(|number| child::spawn("invalidator", &Orders { place: place.clone(), load, number }));
        let mut clients: Vec<_> = clients.collect();
        assert!(until(HANG, || has_told(&mount)), "turn {turn}: the kernel is told nothing");
        thread::sleep(Duration::from_millis(random.random_range(0..100)));
        // Fails the test when the daemon does not die of it.
        mount.kill9();
        for client in &mut clients {
            let ended = wait_for(client, HANG);
            if ended.is_none() {
                let _ = client.kill();
                panic!("turn {turn}: a client hangs {HANG:?} after the daemon died");
            }
            let mut printed = String::new();
            client.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("a readable pipe");
            let report: Report =
                child::report(&printed).unwrap_or_else(|wrong| panic!("turn {turn}: {wrong}"));
            for error in report.errors.into_iter().map(Errno::from_raw) {
                let is_death = matches!(error, Errno::ENOTCONN | Errno::ECONNABORTED);
                assert!(is_death, "turn {turn}: a client met {error}");
            }
        }
        mount.start_daemon();
        fs::write(place.join("k0"), [4; 40_000]).expect("the next daemon serves the mount");
    }
}

/// The value of a counter of the daemon.
fn counted(mount: &Mount, name: &str) -> u64 {
    let text = mount.control_get("/v1/metrics").text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_else(|| panic!("no {name} in:\n{text}"));
    line.trim().parse().expect("a number")
}

#[test]
fn a_daemon_killed_while_it_bounds_the_kernels_inodes_leaves_nobody_hanging() {
    let tells = |mount: &Mount| {
        // Where the kernel drops no inodes at our word, there is no such message.
        counted(mount, "tidefs_inode_prunes_total") > 0 || mount.log().contains("fuse.cached_inodes_max has")
    };
    kill_under(Load::ManyInodes, &["fuse.cached_inodes_max=1024"], tells);
}

#[test]
fn a_daemon_killed_while_objects_are_reopened_in_place_leaves_nobody_hanging() {
    kill_under(Load::Reopen, &[], |mount| counted(mount, "tidefs_unseals_total") > 20);
}

#[test]
fn a_daemon_killed_while_names_are_replaced_under_their_writers_leaves_nobody_hanging() {
    kill_under(Load::RenameOver, &[], |mount| counted(mount, "tidefs_replacements_total") > 20);
}

/// Inodes of tidefs that the kernel holds, by its own count of slab objects; `None` where it does not tell.
#[test]
fn the_kernel_holds_no_more_inodes_than_it_may() {
    let mount = Mount::start(&["fuse.cached_inodes_max=1024"]);
    let place = mount.namespace("ns");
    for number in 0..5000 {
        File::create(place.join(format!("k{number}"))).expect("create");
    }
    let held = || counted(&mount, "tidefs_kernel_inodes");
    let is_bounded = || held() <= 1024 || mount.log().contains("fuse.cached_inodes_max has");
    assert!(until(HANG, is_bounded), "{} inodes are held", held());
    for number in 0..5000 {
        assert!(fs::metadata(place.join(format!("k{number}"))).is_ok(), "k{number} is looked up again");
    }
}
