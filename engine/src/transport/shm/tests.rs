//! The suite on shared memory, and what it alone must keep: who is let in, and what a killed peer leaves.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::message::Host;
use super::{ShmOptions, ShmTransport};
use crate::error::Error;
use crate::transport::conformance::{Pair, Scene, conformance};

fn pair(options: ShmOptions) -> Pair {
    let open = || ShmTransport::open(options, &Handle::current()).unwrap();
    let (a, b) = (open(), open());
    let pools = [Arc::clone(&a.pool), Arc::clone(&b.pool)];
    let stall = Box::new(move |is_stalled| pools.iter().for_each(|pool| pool.pause(is_stalled)));
    Pair { stall: Some(stall), ..Pair::new(a, b) }
}

conformance!(usual, || super::pair(super::ShmOptions::default()));
conformance!(in_small_parts_by_three_threads, || {
    super::pair(super::ShmOptions {
        copy_threads: 3,
        part_bytes: crate::types::ByteCount::kib(16),
        inline_bytes: crate::types::ByteCount::ZERO,
    })
});

#[test]
fn a_peer_of_another_boot_is_unavailable() {
    let scene = Scene::new(|| {
        let open = |host: &str| {
            ShmTransport::open_on(Host(host.to_owned()), ShmOptions::default(), &Handle::current()).unwrap()
        };
        Pair::new(open("boot one"), open("boot two"))
    });
    let connecting = scene.pair.a.transport.connect(scene.pair.b.peer, &scene.to_b);
    let refused = scene.runtime.block_on(connecting).map(|_| ()).unwrap_err();
    assert!(matches!(&refused, Error::Unavailable { transport: "shm", .. }), "{refused:?}");
    let text = refused.to_string();
    assert!(text.contains("boot one") && text.contains("boot two"), "{text}");
}
