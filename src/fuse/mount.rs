//! Opening the device and mounting it, with errors that say what to do.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{major, minor};

use tidefs_control_api::mounts::FSTYPE;

use super::session::SessionSettings;

const DEVICE: &str = "/dev/fuse";
/// Major and minor number of the device (Documentation/admin-guide/devices.txt).
const DEVICE_NUMBER: (u64, u64) = (10, 229);

/// Why a mount did not come up.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The device is missing or closed to us.
    #[error(
        "cannot open {DEVICE}: {source}; load the fuse module (`modprobe fuse`), or pass the device into the container (`--device {DEVICE}`)"
    )]
    NoDevice {
        /// What open(2) said.
        #[source]
        source: io::Error,
    },
    /// The kernel refused to mount.
    #[error("cannot mount on `{}`: {source}; {hint}", directory.display())]
    Refused {
        /// The mount point.
        directory: PathBuf,
        /// What mount(2) said.
        #[source]
        source: io::Error,
        /// What to do about it.
        hint: &'static str,
    },
    /// This process may not mount, and the set-uid helper of fuse3 did not do it in its place.
    #[error(
        "cannot mount on `{}`: this process has no right to (CAP_SYS_ADMIN), and fusermount3 did not do it: {why}; start it as \
         root, in a container with `--cap-add SYS_ADMIN --security-opt apparmor=unconfined`{}",
        directory.display(),
        if source.kind() == io::ErrorKind::NotFound { ", or install fuse3" } else { "" },
        why = source.to_string().trim_end().to_owned()
    )]
    NoRight {
        /// The mount point.
        directory: PathBuf,
        /// What fusermount3 said, or why it cannot be run.
        #[source]
        source: io::Error,
    },
    /// The kernel and the daemon did not agree on the protocol.
    #[error("the FUSE handshake on `{}` failed: {source}; tidefs needs Linux 5.15 or later", directory.display())]
    Handshake {
        /// The mount point.
        directory: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// Passthrough was demanded and is not to be had.
    #[error(
        "fuse.passthrough=always, but {reason}; use fuse.passthrough=auto to be served by the daemon instead"
    )]
    NoPassthrough {
        /// Why not.
        reason: String,
    },
    /// A thread could not be started.
    #[error("cannot start a session thread: {0}")]
    Thread(#[source] io::Error),
}

/// Opens the device.
pub(super) fn open_device() -> Result<File, MountError> {
    let no_device = |source| MountError::NoDevice { source };
    let device = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(no_device)?;
    let number = device.metadata().map_err(no_device)?.rdev();
    if (major(number), minor(number)) != DEVICE_NUMBER {
        return Err(no_device(io::Error::other(
            "it is not the FUSE device, which is character device 10, 229",
        )));
    }
    Ok(device)
}

/// Mounts the open device on `directory` with mount(2), which needs the right to mount.
pub(super) fn mount_device(device: &File, settings: &SessionSettings) -> Result<(), Errno> {
    let uid = nix::unistd::geteuid();
    let gid = nix::unistd::getegid();
    let others = if settings.allow_other { ",allow_other" } else { "" };
    let options = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions{others}",
        device.as_raw_fd()
    );
    let no_exec = if settings.exec { MsFlags::empty() } else { MsFlags::MS_NOEXEC };
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | no_exec;
    mount(Some(settings.source.as_str()), &settings.directory, Some(FSTYPE), flags, Some(options.as_str()))
}

/// What became of a mount that fusermount3 was asked for: it did not mount, for the reason that it gave, or the kernel did not agree
/// on the protocol.
pub(super) fn not_mounted(directory: PathBuf, source: io::Error) -> MountError {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::Other => {
            MountError::NoRight { directory, source }
        }
        _ => MountError::Handshake { directory, source },
    }
}

/// What to do about a refused mount.
pub(super) fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES) => {
            "AppArmor or SELinux forbids it (in a container: `--security-opt apparmor=unconfined`), or this user may not enter it"
        }
        Some(Errno::EBUSY) => "something is mounted or used there: choose another directory or unmount it",
        Some(Errno::ENODEV) => "this kernel has no fuse: load the module with `modprobe fuse`",
        _ => "see the kernel log (`dmesg`) for details",
    }
}

/// The device as the session takes it.
pub(super) fn into_descriptor(device: File) -> OwnedFd {
    device.into()
}
