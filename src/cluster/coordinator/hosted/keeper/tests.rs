//! What the keeper does when a follower, or its own disk, does not do what it should.

use std::sync::mpsc;
use std::thread;

use super::*;
use crate::cluster::coordinator::conformance::{sets, shows, soon, started};

fn settings(directory: &tempfile::TempDir) -> HostedSettings {
    HostedSettings {
        address: "127.0.0.1:0".to_owned(),
        cluster: "test".to_owned(),
        key: None,
        tls: None,
        file: directory.path().join("coordinator.json"),
        lease: Duration::from_millis(100),
        call_timeout: Duration::from_secs(2),
    }
}

fn keeper(directory: &tempfile::TempDir) -> Keeper {
    Keeper::start(settings(directory), ([127, 0, 0, 1], 0).into(), &Handle::current()).unwrap()
}

#[tokio::test]
async fn who_is_registered_when_its_link_has_ended_stays_for_no_longer_than_a_lease() {
    let directory = tempfile::tempdir().unwrap();
    let keeper = keeper(&directory);
    // As that of a follower that was lost after it asked and before that was looked at.
    let handle = Arc::new(keeper.kept.own.another());
    let start = handle.begin(MemberId(2), Instant::now()).await.unwrap();
    let (cluster, member) = (keeper.kept.own.cluster(), Box::new(started(2, start.incarnation)));
    let answered = Arc::clone(&keeper.kept).answer(handle, Ask::Register { cluster, member }).await;
    assert_eq!(answered, Ok(Answered::Done));
    shows(&mut keeper.views(), "the end of its lease", |view| view.members().is_empty()).await;
}

/// A follower that notes all that it is told.
#[derive(Debug)]
struct Notes(watch::Sender<Vec<Told>>);

impl LinkEvents for Notes {
    fn connected(&self, _link: &Arc<Link>) {}

    fn disconnected(&self, _peer: PeerId, _cause: &Error) {}

    fn request(&self, _link: &Arc<Link>, _channel: Channel, _body: Vec<u8>) -> Answer {
        Answer::Now(Err("nobody asks a follower".to_owned()))
    }

    fn notified(&self, _link: &Arc<Link>, _channel: Channel, body: Vec<u8>) {
        self.0.send_modify(|all| all.push(decode(&body).unwrap()));
    }
}

#[tokio::test]
async fn what_the_file_holds_is_not_written_again_and_nobody_is_told_of_it_once_more() {
    let directory = tempfile::tempdir().unwrap();
    let keeper = keeper(&directory);
    let notes = Arc::new(Notes(watch::Sender::new(Vec::new())));
    let (link, events) = (settings(&directory).link(Vec::new()), Arc::clone(&notes) as Arc<dyn LinkEvents>);
    let me = PeerId { member: MemberId(2), incarnation: Incarnation(1) };
    let links = Links::start(Handle::current(), link, me, events).unwrap();
    let _link = links.connect(KEEPER, &keeper._links.addresses(), soon()).await.unwrap();
    let mut told = notes.0.subscribe();
    let first = shows(&mut told, "what there is", |told| !told.is_empty()).await[0].revision;
    let change =
        async |quota: &str| keeper.change_namespace("a", sets("quota", quota), soon()).await.unwrap();
    let changed = change("1GiB").await;
    assert_eq!(change("1GiB").await, changed, "it is so already");
    assert_eq!(keeper.kept.write(), Ok(false));
    // Whatever was told before is heard before this.
    let last = change("2GiB").await;
    let is_last = |told: &Vec<Told>| told.last().is_some_and(|told| told.revision == last);
    let told = shows(&mut told, "the last change", is_last).await;
    let revisions: Vec<u64> = told.iter().map(|told| told.revision).collect();
    assert_eq!(revisions, [first, changed, last]);
}

#[tokio::test]
async fn a_follower_of_an_earlier_build_removes_whichever_record_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let keeper = keeper(&directory);
    keeper.change_namespace("a", sets("quota", "1GiB"), soon()).await.unwrap();
    let ask = decode(br#"{"remove":{"name":"a"}}"#).unwrap();
    let handle = Arc::new(keeper.kept.own.another());
    let answered = Arc::clone(&keeper.kept).answer(handle, ask).await;
    assert!(matches!(answered, Ok(Answered::Agreed { .. })), "{answered:?}");
    assert!(keeper.namespaces().borrow().records.is_empty());
}

/// Has nothing written until what is returned is dropped, as a disk that hangs.
fn hang(kept: &Arc<Kept>) -> mpsc::Sender<()> {
    let (go_on, held) = mpsc::channel::<()>();
    let (tell, is_held) = mpsc::channel();
    let kept = Arc::clone(kept);
    thread::spawn(move || {
        let _written = kept.written.lock();
        tell.send(()).unwrap();
        let _ = held.recv();
    });
    is_held.recv().unwrap();
    go_on
}

#[test]
fn a_disk_that_hangs_is_waited_for_until_the_deadline_and_on_one_thread() {
    // One more than waits for the disk.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let keeper = keeper(&directory);
        let go_on = hang(&keeper.kept);
        for name in ["a", "b", "c"] {
            let shortly = Instant::now() + Duration::from_millis(20);
            let refused = keeper.change_namespace(name, sets("quota", "1GiB"), shortly).await.unwrap_err();
            assert!(refused.is_away() && refused.to_string().contains("coordinator.json"), "{refused}");
        }
        let other = tokio::time::timeout(Duration::from_secs(20), tokio::task::spawn_blocking(|| ()));
        other.await.expect("the disk has one thread, and this the other").unwrap();
        drop(go_on);
        keeper.change_namespace("d", sets("quota", "1GiB"), soon()).await.unwrap();
        let kept = std::fs::read_to_string(directory.path().join("coordinator.json")).unwrap();
        assert!(["a", "b", "c", "d"].iter().all(|name| kept.contains(&format!("\"{name}\": {{"))), "{kept}");
    });
}

#[tokio::test]
async fn the_keeper_goes_by_nothing_itself_that_its_disk_has_not_taken() {
    let directory = tempfile::tempdir().unwrap();
    let keeper = keeper(&directory);
    let go_on = hang(&keeper.kept);
    let shortly = || Instant::now() + Duration::from_millis(20);
    let refused = keeper.register(started(1, Incarnation(1)), shortly()).await.unwrap_err();
    assert!(refused.is_away(), "{refused}");
    keeper.change_namespace("a", sets("quota", "1GiB"), shortly()).await.unwrap_err();
    assert!(keeper.views().borrow().members().is_empty());
    assert!(keeper.namespaces().borrow().records.is_empty());
    drop(go_on);
    shows(&mut keeper.views(), "itself", |view| view.members().len() == 1).await;
    shows(&mut keeper.namespaces(), "the record", |agreed| agreed.records.len() == 1).await;
}

#[tokio::test]
async fn what_the_disk_has_refused_is_in_force_when_it_takes_it_though_nobody_asks_again() {
    let directory = tempfile::tempdir().unwrap();
    let (keeper, file) = (keeper(&directory), directory.path().join("coordinator.json"));
    // No file takes its place.
    std::fs::create_dir(&file).unwrap();
    let refused = keeper.change_namespace("a", sets("quota", "1GiB"), soon()).await.unwrap_err();
    assert!(refused.to_string().contains("cannot write"), "{refused}");
    // It is refused more than once.
    tokio::time::sleep(keeper.kept.lease * 3).await;
    assert!(keeper.namespaces().borrow().records.is_empty());
    std::fs::remove_dir(&file).unwrap();
    shows(&mut keeper.namespaces(), "the record", |agreed| agreed.records.len() == 1).await;
}
