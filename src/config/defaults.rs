//! Defaults that are computed from the machine or from other settings.

use std::path::PathBuf;

use tidefs_engine::types::ByteCount;

use super::cluster::Word;
use super::host::Host;
use super::instance::MountPlace;
use super::limits::CAPACITY_MIN;
use super::ssd::PathList;
use super::value::SettingValue;

pub(super) fn default_capacity(memory: ByteCount) -> ByteCount {
    let eighth = memory.get() / 8;
    ByteCount(eighth - eighth % ByteCount::mib(1).get()).max(CAPACITY_MIN)
}

pub(super) fn default_headroom(capacity: ByteCount) -> ByteCount {
    ByteCount(capacity.get() / 32).clamp(ByteCount::mib(16), ByteCount::gib(1))
}

/// All that is free of a small cache, and some seconds' worth of a large one.
pub(super) fn default_prefault(capacity: ByteCount) -> ByteCount {
    capacity.min(ByteCount::gib(4))
}

/// A sixteenth of the memory, within bounds.
pub(super) fn default_part(capacity: ByteCount, least: ByteCount, most: ByteCount) -> ByteCount {
    let part = capacity.get() / 16;
    ByteCount(part - part % ByteCount::mib(1).get()).clamp(least, most)
}

/// Beside the SSD tier's files; without one in the place for state.
pub(super) fn default_scratch_dirs(host: &Host, instance: &str, ssd: &PathList) -> PathList {
    let on_disks = scratch_beside(instance, ssd);
    if !on_disks.paths().is_empty() {
        return on_disks;
    }
    PathList::of(vec![lasting_dir(host, instance).join("scratch")])
}

/// Where what outlives a restart of the machine has its place.
pub(super) fn lasting_dir(host: &Host, instance: &str) -> PathBuf {
    let base = if host.is_root() { PathBuf::from("/var/lib") } else { host.state_home.clone() };
    base.join("tidefs").join(instance)
}

/// A directory in each of the SSD tier's directories: block devices have none.
fn scratch_beside(instance: &str, ssd: &PathList) -> PathList {
    let is_directory = |path: &&PathBuf| std::fs::metadata(path).map_or(true, |metadata| metadata.is_dir());
    let name = format!("scratch-{instance}");
    PathList::of(ssd.paths().iter().filter(is_directory).map(|path| path.join(&name)).collect())
}

/// Three quarters of what is free; an eighth on each disk of the SSD tier, which takes three quarters itself. Zero if that
/// cannot be learnt or the directory is in the mount, where nobody may look; `validate` turns both into errors.
pub(super) fn default_scratch_capacity(
    host: &Host,
    mount: &MountPlace,
    dirs: &PathList,
    ssd: &PathList,
) -> ByteCount {
    let is_beside = *dirs == scratch_beside(&mount.instance, ssd);
    let share = |dir: &PathBuf| {
        let free = if mount.contains(dir) { None } else { (host.free_space)(dir) };
        let free = free.unwrap_or(ByteCount::ZERO).get();
        let part = if is_beside { free / 8 } else { free / 4 * 3 };
        part - part % ByteCount::mib(1).get()
    };
    ByteCount(dirs.paths().iter().map(share).sum())
}

/// What the kernel calls this host.
pub(super) fn default_host_name() -> Word {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Word::read(&name).unwrap_or_default()
}

/// Where a user has no runtime directory this is never used: `validate` asks for the setting.
pub(super) fn default_state_dir(host: &Host) -> PathBuf {
    match &host.runtime_dir {
        Some(runtime_dir) if !host.is_root() => runtime_dir.join("tidefs"),
        _ => PathBuf::from("/run/tidefs"),
    }
}
