//! Leaves a data connection that is dead while others to the same peer are not, as where one of several paths is. The kernel
//! would take as long to notice that as for a peer that is gone, and what stands still behind it is never noticed by the kernel.
//!
//! Invariants
//! - A look counts only if another connection has heard the peer since the one before. One that waits for nothing is made to.
//!   Where none hears it, the silence of the link decides.
//! - Only reads are taken from it: of a write, bytes may still arrive when another connection has done it. Such a one keeps
//!   its time.
//! - A process that stood still, or is slow, takes no connection for dead: looks are counted, not time, and none at which
//!   something waits to be read.
//!
//! Limits: a connection is left after [`SILENT_LOOKS`] looks that count, [`LOOK`] apart. Where a path acknowledges and does not
//! deliver, it keeps our end from the peer, too: that keeps the connections that were left, and takes no more than twice as
//! many as it granted.
//!
//! Threads: those of the runtime of the links, one task for each endpoint, which sleeps while nothing is posted.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::super::NAME;
use super::super::lane::Lane;
use super::{Signals, TcpEndpoint};
use crate::error::Error;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Looks in a row at which nothing has come by a connection that has something under way, after which it is left: longer than a
/// few lost packets hold it up, and a quarter of what the kernel takes. The first may come just after something was posted.
const SILENT_LOOKS: u32 = 5;

/// Looks after the connections of `endpoint` for as long as it stands.
pub(super) async fn watch(endpoint: Weak<TcpEndpoint>, signals: Arc<Signals>) {
    let mut is_idle = true;
    loop {
        let stop = signals.stop.notified();
        if endpoint.upgrade().is_none_or(|endpoint| endpoint.over().is_some()) {
            return;
        }
        let look = async {
            if is_idle {
                signals.busy.notified().await;
            }
            tokio::time::sleep(LOOK).await;
        };
        tokio::select! {
            () = look => {}
            () = stop => return,
        }
        let Some(endpoint) = endpoint.upgrade() else { return };
        is_idle = endpoint.leave_dead_lanes();
    }
}

impl TcpEndpoint {
    /// Leaves connections that are dead while others are not; returns whether nothing is under way.
    fn leave_dead_lanes(&self) -> bool {
        let lanes: Vec<Arc<Lane>> = self.lanes.read().iter().flatten().cloned().collect();
        let looks: Vec<_> = lanes.iter().map(|lane| lane.look()).collect();
        let is_one_silent = looks.iter().any(|look| look.is_silent());
        let is_peer_heard = looks.iter().any(|look| look.is_heard);
        for (lane, look) in lanes.iter().zip(&looks) {
            let counts = look.is_silent() && is_peer_heard && !lane.has_unread();
            if counts && lane.count_silent_look() >= SILENT_LOOKS {
                self.leave(lane);
            } else if is_one_silent && !look.is_waiting {
                lane.probe(self.next_operation.fetch_add(1, Ordering::Relaxed));
            }
        }
        looks.iter().all(|look| !look.is_waiting)
    }

    fn leave(&self, lane: &Lane) {
        if lane.leave(&Error::transport(NAME, "a data connection is dead, and another is not")) {
            tracing::warn!(peer = %self.peer, "a data connection is dead while another is not; it is made again");
        }
    }
}
