//! Which page size a segment really gets: the kernel falls back to 4 KiB pages without a word.

use std::fs::File;
use std::io;

use tidefs_engine::memory::Mapping;
use tidefs_engine::types::{ByteCount, FileOffset, PAGE};

use super::error::MemoryError;
use super::space::Space;

/// The huge page of the hosts that tidefs runs on.
const HUGE: ByteCount = ByteCount::mib(2);

/// Name of the file that is probed, unlinked before anything is allocated.
const NAME: &str = "probe";

/// Allocates one huge page's worth of `file`, maps and touches it, and asks the kernel how it is mapped.
///
/// Returns [`PAGE`] when the kernel gave base pages.
///
/// # Errors
/// [`MemoryError::Full`] when so much is not free.
pub(super) fn page_size(space: &Space) -> Result<ByteCount, MemoryError> {
    space.unlink(NAME)?;
    let file = space.create(NAME)?;
    let mapped = mapped_page_size(space, &file);
    // In this order so that a tier that counts here sees the pages go.
    space.trim(&file, ByteCount::ZERO)?;
    space.unlink(NAME)?;
    mapped
}

fn mapped_page_size(space: &Space, file: &File) -> Result<ByteCount, MemoryError> {
    file.set_len(HUGE.get()).map_err(|error| MemoryError::file("extend", file, error))?;
    space.reserve(file, FileOffset(0), HUGE)?;
    let mapping = Mapping::new(file, HUGE).map_err(|error| MemoryError::file("map", file, error))?;
    let mut offset = 0;
    while mapping.write_at(offset, &[1]) {
        offset += 4096;
    }
    let address = mapping.slice(0, 1).map_or(0, |first| first.as_ptr().addr());
    let table = std::fs::read_to_string("/proc/self/smaps")
        .map_err(|error| MemoryError::io("read", "/proc/self/smaps", error))?;
    let huge = huge_bytes_at(&table, address).ok_or_else(|| {
        MemoryError::io("find the probe in", "/proc/self/smaps", io::Error::from(io::ErrorKind::NotFound))
    })?;
    Ok(if huge >= HUGE { HUGE } else { PAGE })
}

/// `ShmemPmdMapped` of the mapping that covers `address`.
///
/// # Source
/// proc_pid_smaps(5): a line `start-end perms ...` in hexadecimal, then lines `Field: number kB`.
fn huge_bytes_at(table: &str, address: usize) -> Option<ByteCount> {
    let mut inside = false;
    for line in table.lines() {
        if let Some((start, end)) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')) {
            if let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)) {
                inside = (start..end).contains(&address);
            }
        } else if inside && let Some(value) = line.strip_prefix("ShmemPmdMapped:") {
            return value.trim().strip_suffix("kB")?.trim().parse().ok().map(ByteCount::kib);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
7f0000000000-7f0000200000 rw-s 00000000 00:39 5 /a-b/probe
Size:               2048 kB
ShmemPmdMapped:     2048 kB
7f0000200000-7f0000400000 rw-s 00000000 00:39 6 /other
ShmemPmdMapped:        0 kB
VmFlags: rd wr
";

    #[test]
    fn the_value_of_the_mapping_around_the_address_is_read() {
        assert_eq!(huge_bytes_at(TABLE, 0x7f00_0000_0000), Some(HUGE));
        assert_eq!(huge_bytes_at(TABLE, 0x7f00_003f_ffff), Some(ByteCount::ZERO));
        assert_eq!(huge_bytes_at(TABLE, 0x7f00_0040_0000), None);
    }
}
