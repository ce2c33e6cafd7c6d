//! The keys by which peers name memory: none that a peer may still know is that of other memory.
//!
//! Where the provider takes our keys, they count up from a number that differs from one start of a process to the next: a
//! peer may know the keys of one that has ended, and meet another at its address. Where the provider has its own, it may
//! give one again that was withdrawn while peers used it; such a registration is kept aside until there is another.
//!
//! Limits: the last [`RETIRED_MAX`] keys are remembered; [`ATTEMPTS_MAX`] registrations for one.

use std::collections::VecDeque;
use std::ops::Range;

use libfabric_sys as fi;

use super::nic::ffi::Failure;
use super::port::ffi::Port;
use super::registered::Portion;
use super::registration::ffi::Registration;

/// Withdrawn keys that are remembered. What was given back by those who knew it is not among them.
const RETIRED_MAX: usize = 4096;
/// Registrations that are made for one whose key nobody knows.
const ATTEMPTS_MAX: usize = 64;

/// Keys of one NIC.
#[derive(Debug)]
pub(super) struct Keys {
    last: u64,
    retired: VecDeque<u64>,
}

impl Keys {
    /// For a NIC whose keys have `key_bytes` bytes. `random` is any number, another for each start.
    pub(super) fn new(key_bytes: usize, random: u64) -> Self {
        Self { last: first_key(key_bytes, random), retired: VecDeque::new() }
    }

    /// Registers the bytes `range` of a region with `port`, by a key that no peer knows.
    pub(super) fn register(
        &mut self,
        port: &Port,
        portion: &Portion,
        range: Range<u64>,
    ) -> Result<Registration, Failure> {
        let mut aside = Vec::new();
        while aside.len() < ATTEMPTS_MAX {
            self.last += 1;
            let registration = Registration::new(port, portion, range.clone(), self.last)?;
            if !self.retired.contains(&registration.key()) {
                return Ok(registration);
            }
            aside.push(registration);
        }
        let text = "it has only keys that peers may still use".to_owned();
        Err(Failure { call: "fi_mr_regattr", code: fi::FI_ENOKEY, text })
    }

    /// These keys were withdrawn, and peers may know them.
    pub(super) fn retire(&mut self, keys: impl IntoIterator<Item = u64>) {
        self.retired.extend(keys);
        let surplus = self.retired.len().saturating_sub(RETIRED_MAX);
        self.retired.drain(..surplus);
    }
}

/// The number before the first key: its upper half is random, or all but the uppermost bits where that is all there is.
/// Bit 31 stays clear: rxm has keys with it for itself.
fn first_key(key_bytes: usize, random: u64) -> u64 {
    match key_bytes {
        8.. => random << 33 >> 1,
        4..8 => random >> 34,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_fit_and_leave_those_of_rxm_alone(random: u64, count in 0_u64..1 << 30) {
            for (key_bytes, bits) in [(8, 63), (4, 31), (2, 31)] {
                let key = first_key(key_bytes, random) + count;
                prop_assert!(key >> bits == 0 && key & 1 << 31 == 0, "{}", key);
            }
            prop_assert_eq!(first_key(2, random), 0);
        }
    }

    #[test]
    fn the_last_keys_that_were_withdrawn_are_remembered() {
        let mut keys = Keys::new(4, 0);
        keys.retire(0..RETIRED_MAX as u64);
        keys.retire([7 << 20, 8 << 20]);
        assert_eq!(keys.retired.len(), RETIRED_MAX);
        assert!(!keys.retired.contains(&1) && keys.retired.contains(&2) && keys.retired.contains(&(8 << 20)));
    }
}
