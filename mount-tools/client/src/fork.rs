//! Children of fork(2): they have all that their parent opened, and give none of it back.
//!
//! Invariants
//! - A child sends nothing by its parent's session, and ends no registration of its parent's.
//! - It takes no lock for that: another thread of its parent may have held one at the fork, and nobody ends that here.
//! - A parent that had children gives back by itself what else would end with the last descriptor of its session: the child has one.
//!
//! Limits: a child that clone(2) made without the C library is not told from its parent.

use crate::{Registration, ffi};

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    forks: u64,
    /// As many children as it had then.
    children: u64,
}

impl Owner {
    /// This process. `None` when its children could not be told from it.
    pub(crate) fn this_process() -> Option<Self> {
        ffi::count_forks().ok()?;
        Some(Self { forks: ffi::forks(), children: ffi::children() })
    }

    /// Whether it is the parent of this process, or one above.
    pub(crate) fn is_a_parent(self) -> bool {
        self.forks != ffi::forks()
    }

    /// Whether it had children since, which may have its files open for as long as they live.
    pub(crate) fn has_children(self) -> bool {
        self.children != ffi::children()
    }
}

/// A registration that ends in the process that made it.
pub(crate) struct Registered {
    pub(crate) registration: Option<Registration>,
    pub(crate) owner: Owner,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.owner.is_a_parent() {
            std::mem::forget(self.registration.take());
        }
    }
}
