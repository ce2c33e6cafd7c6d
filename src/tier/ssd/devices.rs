//! The disks of a pool, which come and go while it is used. A number is given out once: places name it.

use std::sync::Arc;

use parking_lot::RwLock;

use super::device::Device;
use super::index::Place;

/// The disks in use, by their numbers.
#[derive(Debug)]
pub(super) struct Devices {
    /// Guards which disks there are; nothing waits under it.
    list: RwLock<Vec<Option<Arc<Device>>>>,
}

impl Devices {
    /// The disks of a start, numbered in order.
    pub(super) fn new(devices: Vec<Arc<Device>>) -> Self {
        Self { list: RwLock::new(devices.into_iter().map(Some).collect()) }
    }

    /// The disk with a number, while it is in use.
    pub(super) fn get(&self, number: u8) -> Option<Arc<Device>> {
        self.list.read().get(usize::from(number))?.clone()
    }

    /// The disk of a place, while it is in use.
    pub(super) fn of(&self, place: Place) -> Option<Arc<Device>> {
        self.get(place.zone.device())
    }

    /// All disks in use.
    pub(super) fn all(&self) -> Vec<Arc<Device>> {
        self.list.read().iter().flatten().cloned().collect()
    }

    /// How many disks are in use.
    pub(super) fn count(&self) -> usize {
        self.list.read().iter().flatten().count()
    }

    /// The numbers of some disks in use.
    pub(super) fn numbers(&self, is_meant: impl Fn(&Device) -> bool) -> Vec<u8> {
        let list = self.list.read();
        list.iter().flatten().filter(|device| is_meant(device)).map(|device| device.number).collect()
    }

    /// The disk at a place.
    pub(super) fn named(&self, name: &str) -> Option<Arc<Device>> {
        self.list.read().iter().flatten().find(|device| device.name == name).cloned()
    }

    /// The number that the next disk gets. `None` when all are used up.
    pub(super) fn next_number(&self) -> Option<u8> {
        u8::try_from(self.list.read().len()).ok().filter(|number| *number < u8::MAX)
    }

    /// Takes a disk with the next number into use.
    pub(super) fn push(&self, device: Arc<Device>) {
        let mut list = self.list.write();
        debug_assert_eq!(usize::from(device.number), list.len(), "numbers are given out in order");
        list.push(Some(device));
    }

    /// The disk is not used any more.
    pub(super) fn take(&self, number: u8) {
        if let Some(slot) = self.list.write().get_mut(usize::from(number)) {
            *slot = None;
        }
    }
}
