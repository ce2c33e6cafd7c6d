//! Pins that clients set on many objects with one request: the same as the attribute `user.tidefs.pin`.

use super::walk::Walk;
use super::{Located, Session};
use crate::datapath::Datapath;
use crate::datapath::rights::Right;
use crate::namespace::Ino;

impl Datapath {
    /// Sets the pin of an object, written as the attribute is.
    ///
    /// # Errors
    /// Why it was not set.
    pub fn pin_object(&self, session: &Session, scope: Ino, name: &[u8], pin: &str) -> Result<(), Located> {
        session.check_write()?;
        let ino = {
            let mut state = self.lock();
            let mut walk = Walk::new(&state, session.credentials(), scope);
            let (found, located) = self.find(&mut state, &mut walk, name, None);
            let slot = match (located, found) {
                (Located::Here { .. } | Located::Packed { .. }, Some(spot)) => spot.slot,
                // By its file it is brought into memory, where it has a record that keeps the pin.
                (Located::Below, _) => return Err(Located::AskByFile),
                _ => return Err(located),
            };
            // As setxattr(2) asks of attributes of users.
            if !session.credentials().may(&state.tree.node(slot).attributes, Right::WRITE) {
                return Err(Located::Denied);
            }
            state.tree.ino(slot)
        };
        self.change_policy(ino, "pin", Some(pin)).map_err(|error| Located::of(&error))
    }
}
