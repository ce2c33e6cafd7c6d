//! Which NUMA node a page is on, as the kernel tells.

use std::io;

use crate::types::NumaNode;

/// The node of the page at `address`, which need not be mapped.
///
/// # Errors
/// What move_pages(2) says: `ENOENT` for a page that is not there, `EFAULT` for an address that is not mapped, `EPERM` where
/// a sandbox forbids the call, `ENOSYS` on a kernel that knows no nodes.
pub(crate) fn node_of(address: *const u8) -> io::Result<NumaNode> {
    let (of_this_process, count) = (0, 1_usize);
    let pages = [address.cast::<libc::c_void>()];
    let mut status = [0_i32];
    // SAFETY: both arrays have the one entry that is announced and outlive the call; without target nodes it moves
    // nothing, and the page at the address is looked up, never touched.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            of_this_process,
            count,
            pages.as_ptr(),
            std::ptr::null::<i32>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let [status] = status;
    u32::try_from(status).map(NumaNode).map_err(|_| io::Error::from_raw_os_error(-status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use crate::memory::{Access, PageKind, Region};
    use crate::types::ByteCount;

    #[test]
    fn a_page_is_on_a_node_of_this_host_once_it_was_touched() {
        let region = Region::anonymous(ByteCount::kib(64), PageKind::Base, Access::ReadWrite).unwrap();
        let untouched = node_of(region.base()).unwrap_err();
        if matches!(untouched.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
            println!("skipped: move_pages(2) says {untouched}");
            return;
        }
        assert_eq!(untouched.raw_os_error(), Some(libc::ENOENT));
        assert!(region.write_at(0, &[1]));
        let node = node_of(region.base()).unwrap();
        let known = Path::new("/sys/devices/system/node");
        assert!(!known.exists() || known.join(format!("node{}", node.0)).exists(), "{node:?}");
        assert!(node_of(std::ptr::dangling()).is_err());
    }
}
