//! Memory that is registered with a NIC, and how it is let go.
//!
//! A NIC that has keys of its own touches nothing any more when a registration is closed. Where the processor stands in for
//! it ([`Nic::is_emulated`]), what peers have begun goes on: the endpoint is closed under it then, and opened again, which
//! costs all who use it a connection. Memory that nobody uses is let go without that.
//!
//! [`Nic::is_emulated`]: super::Nic::is_emulated

use tokio::sync::oneshot;

use super::super::registered::{Portion, Registered};
use super::super::wire::NO_KEY;
use super::Domain;
use crate::error::Error;
use crate::types::RegionId;

impl Domain {
    /// Registers what `portion` says. Returns its keys: [`NO_KEY`] where there is no endpoint, with which it is registered then
    /// when there is one.
    pub(super) fn register(&mut self, id: RegionId, portion: Portion) -> Result<Vec<u64>, Error> {
        let Some(port) = self.port.as_ref() else {
            let keys = vec![NO_KEY; portion.ranges.len()];
            self.unbound.push((id, portion));
            return Ok(keys);
        };
        let registered = Registered::new(port, portion, &mut self.fresh_keys)?;
        let keys = registered.keys();
        if self.nic.binds_memory() {
            self.keys.lock().insert(id, keys.clone());
        }
        self.regions.insert(id, registered);
        Ok(keys)
    }

    /// Withdraws a region, and drops `done` when nobody touches it any more. `is_in_use`: peers may have operations under
    /// way in it.
    pub(super) fn unregister(&mut self, id: RegionId, is_in_use: bool, done: oneshot::Sender<()>) {
        self.unbound.retain(|(unbound, _)| *unbound != id);
        self.keys.lock().remove(&id);
        if let Some(registered) = self.regions.remove(&id) {
            if is_in_use {
                self.fresh_keys.retire(registered.keys());
            }
            registered.withdraw_then(done, is_in_use);
        }
    }

    /// Sees to it that nobody touches what was withdrawn, and lets it go then: all that has gathered, at once.
    pub(super) fn drain(&mut self) {
        let withdrawn = self.nic.take_withdrawn();
        if !withdrawn.is_empty() && self.has_met_peers {
            self.reopen("peers may have operations under way in memory that was withdrawn");
        }
        self.withdrawn.extend(withdrawn);
        if self.graves.is_empty() {
            self.withdrawn.clear();
        }
    }
}
