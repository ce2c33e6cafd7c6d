//! A follower whose keeper is of an earlier build, which did not tell records apart.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;
use tidefs_engine::error::Error;
use tidefs_engine::link::{Answer, Channel, Link, LinkEvents, Links};
use tidefs_engine::types::PeerId;

use super::super::wire::{CHANNEL, KEEPER};
use super::*;
use crate::cluster::coordinator::Made;

/// What such a keeper may be asked, as far as this is about it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    Remove { name: String },
}

/// What it was asked to remove.
#[derive(Debug, Default)]
struct OlderKeeper(Mutex<Vec<String>>);

impl LinkEvents for OlderKeeper {
    fn connected(&self, link: &Arc<Link>) {
        let told = br#"{"cluster":7,"view":0,"members":[],"revision":4,"namespaces":{"kv":{"policy":{}}}}"#;
        link.notify(CHANNEL, told.to_vec()).unwrap();
    }

    fn disconnected(&self, _peer: PeerId, _cause: &Error) {}

    fn request(&self, _link: &Arc<Link>, _channel: Channel, body: Vec<u8>) -> Answer {
        let asked =
            serde_json::from_slice(&body).map_err(|error| format!("not a message of a coordinator: {error}"));
        Answer::Now(asked.map(|Ask::Remove { name }| {
            self.0.lock().push(name);
            br#"{"agreed":{"revision":5}}"#.to_vec()
        }))
    }

    fn notified(&self, _link: &Arc<Link>, _channel: Channel, _body: Vec<u8>) {}
}

#[tokio::test]
async fn a_keeper_of_an_earlier_build_removes_whichever_record_there_is() {
    let (_directory, settings) = place();
    let older = Arc::new(OlderKeeper::default());
    let listens = settings.link(vec![settings.address.parse().unwrap()]);
    let events = Arc::clone(&older) as Arc<dyn LinkEvents>;
    let _links = Links::start(Handle::current(), listens, KEEPER, events).unwrap();
    let follower = handle(&settings);
    let made = follower.find_namespace("kv", soon()).await.unwrap();
    assert_eq!(made, Made::ANY);
    assert_eq!(follower.remove_namespace("kv", made, soon()).await.unwrap(), 5);
    assert_eq!(*older.0.lock(), ["kv"]);
}
