//! Listings, verifications and evictions of directories with many objects: done in parts, between which others are served.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tidefs::datapath::{Datapath, EvictionProgress, NodeFacts, OperatorEviction, Order};
use tidefs::namespace::Ino;
use tidefs_engine::types::ByteCount;

use super::caller;
use super::meanwhile::{filled, meanwhile};

/// Goes through everything below `ns`. Returns how many objects it met.
type Through = fn(&Datapath) -> usize;

const LIST: Through = |datapath| listed(datapath, Order::Heat).len();
const VERIFY: Through = |datapath| datapath.sealed_below(b"ns").expect("it is there").len();
const EVICT: Through = |datapath| usize::try_from(evict(datapath, false).stayed).expect("few");
const EVICT_ALL: Through = |datapath| usize::try_from(evict(datapath, true).objects).expect("few");

fn evict(datapath: &Datapath, force: bool) -> OperatorEviction {
    let to_the_end = |_: &EvictionProgress| ControlFlow::Continue(());
    datapath.evict_below(b"ns", |_| true, force, to_the_end).expect("it is there")
}

fn listed(datapath: &Datapath, order: Order) -> Vec<NodeFacts> {
    let mut files = Vec::new();
    let total = datapath.list_below(b"ns", order, |facts| {
        files.push(facts);
        ControlFlow::Continue(())
    });
    assert!(total.expect("it is there") >= files.len() as u64);
    files
}

#[test]
fn nobody_waits_for_what_goes_through_a_directory_longer_than_for_a_part_of_it() {
    // As for a change of policy: without parts others get as many answers as fit into half a millisecond.
    let (logic, top) = filled(100_000);
    let datapath = logic.datapath();
    // Who evicts comes to all of them, again and again.
    datapath.set_attribute(top, b"user.tidefs.pin", b"hard", None).expect("a pin");
    for (name, through) in [("list", LIST), ("verify", VERIFY), ("evict", EVICT)] {
        let is_shared = (0..10).any(|_| {
            let mut met = 0;
            let others = meanwhile(datapath, top, || met = through(datapath));
            assert_eq!(met, 110_000, "{name}");
            others.answers >= 1000
        });
        assert!(is_shared, "others wait for all of it: {name}");
    }
}

#[test]
#[ignore = "measures, and asserts nothing: run by hand, as docs/BENCHMARKING.md says under Longer runs"]
fn how_long_what_goes_through_a_directory_lets_others_wait() {
    let (logic, top) = filled(500_000);
    let datapath = logic.datapath();
    for (name, through) in
        [("list", LIST), ("list", LIST), ("verify", VERIFY), ("verify", VERIFY), ("evict", EVICT_ALL)]
    {
        let mut met = 0;
        let others = meanwhile(datapath, top, || met = through(datapath));
        println!("{name}: {met} objects took {:?}, others waited {:?} at most", others.took, others.longest);
    }
}

/// Gives objects other names, and a directory another place, until it is over.
fn rename_without_end(datapath: &Arc<Datapath>, top: Ino, below: Ino, is_over: &AtomicBool) {
    let to_and_fro = |from: (Ino, &[u8]), to: (Ino, &[u8])| {
        datapath.rename(&caller(1), from, to, false).expect("there");
        datapath.rename(&caller(1), to, from, false).expect("and back");
    };
    let mut index = 0;
    while !is_over.load(Ordering::Relaxed) {
        // Names that are even are left alone.
        let name = format!("k{}", index * 2 + 1);
        to_and_fro((top, name.as_bytes()), (below, b"moved"));
        to_and_fro((top, name.as_bytes()), (top, b"another"));
        to_and_fro((top, b"below"), (Ino::ROOT, b"away"));
        index = (index + 1) % 2000;
    }
}

#[test]
fn an_eviction_counts_what_stays_and_names_the_first_of_it() {
    let (logic, top) = filled(1000);
    let datapath = logic.datapath();
    datapath.set_attribute(top, b"user.tidefs.pin", b"hard", None).expect("a pin");
    let evicted = evict(datapath, false);
    assert_eq!((evicted.stayed, evicted.named.len()), (1100, 100));
    let names: HashSet<&Vec<u8>> = evicted.named.iter().map(|(path, _)| path).collect();
    assert_eq!(names.len(), 100, "none twice");
    assert_eq!(evict(datapath, true).stayed, 0);
}

#[test]
fn what_keeps_its_path_is_met_once_while_other_names_change() {
    let (logic, top) = filled(4000);
    let datapath = logic.datapath();
    let below = datapath.facts(b"ns/below").expect("it is there").ino;
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || rename_without_end(datapath, top, below, is_over));
        for _ in 0..50 {
            let files = listed(datapath, Order::Name);
            let of_top = files.iter().filter_map(|facts| facts.path.strip_prefix(b"ns/k"));
            let stayed = of_top.filter(|index| index.last().is_some_and(|digit| digit % 2 == 0)).count();
            assert_eq!(stayed, 2000);
            let inos: HashSet<Ino> = files.iter().map(|facts| facts.ino).collect();
            assert_eq!(inos.len(), files.len(), "an object is listed twice");
            assert!(files.iter().all(|facts| facts.path.starts_with(b"ns/")), "moved out, and listed");
            let sealed = datapath.sealed_below(b"ns").expect("it is there");
            assert!(sealed.len() >= 2000);
            assert_eq!(sealed.iter().collect::<HashSet<_>>().len(), sealed.len(), "met twice");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    evict(datapath, false);
    assert!(listed(datapath, Order::Name).is_empty());
}

#[test]
fn a_list_tells_of_what_keeps_its_path_once_though_others_go_and_come_while_it_is_read() {
    for order in [Order::Heat, Order::Name, Order::Size, Order::Age] {
        let (logic, top) = filled(2000);
        let datapath = logic.datapath();
        let mut told = Vec::new();
        let listed = datapath.list_below(b"ns", order, |facts| {
            // Those that are even stay; of the others one goes and one comes.
            let index = told.len();
            let gone = format!("k{}", index % 1000 * 2 + 1);
            let _ = datapath.unlink(&caller(0), top, gone.as_bytes());
            let come = format!("a{index}");
            datapath.make_file(&caller(0), top, come.as_bytes(), 0o644).expect("an object");
            told.push(facts.path);
            ControlFlow::Continue(())
        });
        assert_eq!(listed.expect("it is there"), 2200, "{order:?}");
        let even =
            |path: &&Vec<u8>| path.strip_prefix(b"ns/k").is_some_and(|index| index[index.len() - 1] % 2 == 0);
        assert_eq!(told.iter().filter(even).count(), 1000, "{order:?}");
        assert_eq!(told.iter().collect::<HashSet<_>>().len(), told.len(), "{order:?}: told twice");
    }
}

#[test]
fn an_eviction_tells_how_far_it_is_after_each_part_and_ends_when_nobody_listens() {
    let (logic, _) = filled(2000);
    let datapath = logic.datapath();
    let is_even = |path: &[u8]| path.last().is_some_and(|digit| digit % 2 == 0);
    let mut told = Vec::new();
    let evicted = datapath.evict_below(b"ns", is_even, false, |so_far| {
        told.push(*so_far);
        if so_far.looked_at < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let evicted = evicted.expect("it is there");
    let last = told.last().expect("it tells");
    assert!(told.len() > 10 && told.iter().all(|so_far| so_far.total == 2200), "{told:?}");
    assert!((1000..1100).contains(&last.looked_at), "{last:?}");
    assert!(evicted.objects == last.objects && (400..600).contains(&last.objects), "{last:?}");
    let left = listed(datapath, Order::Name);
    assert_eq!(left.len() as u64, 2200 - evicted.objects);
    let nothing = datapath.evict_coldest(ByteCount::mib(1), |_| ControlFlow::Break(()));
    assert_eq!(nothing.objects, 0);
}
