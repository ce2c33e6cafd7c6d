//! The metrics of a daemon: what it counts, and how full it is now.

use crate::datapath::{Datapath, Error};
use crate::telemetry::Family;

/// All of them.
///
/// # Errors
/// [`Error::Io`] when the memory tier cannot be asked.
pub(super) fn families(datapath: &Datapath) -> Result<Vec<Family>, Error> {
    let overview = datapath.overview()?;
    let mut families: Vec<_> = datapath.telemetry().families().collect();
    let gauges = [
        ("tidefs_capacity_bytes", "Most bytes of the memory tier.", overview.usage.capacity.get()),
        ("tidefs_used_bytes", "Bytes of real pages in use.", overview.usage.used.get()),
        ("tidefs_free_bytes", "Bytes that can still be reserved.", overview.usage.free.get()),
        (
            "tidefs_prefaulted_bytes",
            "Free memory that is touched and held ahead of objects, beside the bytes in use.",
            overview.prefaulted.get(),
        ),
        ("tidefs_objects", "Sealed objects.", overview.objects),
        ("tidefs_object_bytes", "Bytes of sealed objects.", overview.sealed_bytes.get()),
        ("tidefs_unsealed_files", "Files that are being written.", overview.unsealed_files),
        (
            "tidefs_unsealed_bytes",
            "Bytes of unfinished files, which quotas count too.",
            overview.unsealed_bytes.get(),
        ),
        ("tidefs_kernel_inodes", "Inodes that the kernel holds.", overview.kernel_inodes),
        ("tidefs_packed_objects", "Objects in packed segments.", overview.packed.objects.0),
        ("tidefs_packed_allocated_bytes", "Bytes of packed segments.", overview.packed.bytes_allocated.get()),
        ("tidefs_scratch_used_bytes", "Bytes of scratch files.", overview.scratch_used.get()),
        ("tidefs_soft_copies", "Objects that another member has too, and that leave first.", overview.soft.0),
        ("tidefs_soft_copy_bytes", "Their bytes.", overview.soft.1),
        ("tidefs_eviction_memory_bytes", "Heap bytes of the eviction orders.", overview.policy_memory as u64),
    ];
    families.extend(gauges.map(|(name, help, value)| Family::gauge(name, help, value)));
    families.push(Family::counter(
        "tidefs_scratch_closed_without_thread_total",
        "Scratch files closed by whoever let go of them, which may have waited for the disk, for want of a thread.",
        overview.scratch_closed_without_thread,
    ));
    let side = datapath.cluster();
    if datapath.is_in_cluster() {
        let (name, help) =
            ("tidefs_cluster_joined", "Whether this host takes part in its cluster: 1 when it does.");
        families.push(Family::gauge(name, help, u64::from(side.is_some())));
        if side.is_none() {
            // It was away when this host started, and this host does not go by it yet.
            families.push(super::cluster::coordinator_away(true));
        }
    }
    families.extend(side.into_iter().flat_map(|side| super::cluster::metrics(side.cluster())));
    families.extend(datapath.ssd().into_iter().flat_map(|tier| super::ssd::metrics(&tier.status())));
    Ok(families)
}
