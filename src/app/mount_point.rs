//! Whether a daemon may mount where it was told to: on a directory, and not over what another one serves.

use std::fs;
use std::io;
use std::path::Path;

use tidefs_control_api::answer::Answer;
use tidefs_control_api::lock::InstanceLock;
use tidefs_control_api::mounts::{self, Mount, MountTable};
use tidefs_control_api::shell::quoted;

use super::{Failure, tell};
use crate::config::ExitStatus;

/// That `directory` cannot be mounted on because of `error`, and what to do.
pub(super) fn mount_point_failure(directory: &Path, error: &io::Error) -> Failure {
    let (directory, word) = (directory.display(), quoted(directory));
    let hint = match error.kind() {
        io::ErrorKind::NotFound => format!("make it with `mkdir -p {word}`"),
        io::ErrorKind::NotADirectory => "a mount point is a directory: choose another".to_owned(),
        io::ErrorKind::PermissionDenied => "run as a user who may enter it".to_owned(),
        _ => "choose another directory".to_owned(),
    };
    Failure::new(ExitStatus::MountPoint, format!("cannot mount on `{directory}`: {error}; {hint}"))
}

/// The lock is ours, so the daemon that this directory knows of is gone. Another one may serve `mount` all the same.
pub(super) fn refuse_other_state(lock: &InstanceLock, mount: &Mount) -> Result<(), Failure> {
    if !lock.had_predecessor() {
        let text = format!(
            "`{}` is a tidefs mount of another state directory; unmount it there (`umount {}`), or start with its \
             -o state_dir=DIR",
            mount.mount_point.display(),
            quoted(&mount.mount_point)
        );
        return Err(Failure::new(ExitStatus::MountPoint, text));
    }
    refuse_served(mount)
}

/// Makes sure that `mount` is dead, which it says itself.
fn refuse_served(mount: &Mount) -> Result<(), Failure> {
    let (directory, word) = (mount.mount_point.display(), quoted(&mount.mount_point));
    let text = match mount.ask() {
        Answer::Gone => return Ok(()),
        Answer::Served => format!(
            "`{directory}` is served by a daemon of another state directory; stop that (`umount {word}`), or choose \
             another mount point"
        ),
        Answer::Unknown => format!(
            "`{directory}` is a tidefs mount that does not answer, so its daemon may be stopped and not gone; let that go \
             on (kill -CONT), or unmount it with `umount -l {word}`"
        ),
    };
    Err(Failure::new(ExitStatus::MountPoint, text))
}

/// Removes what a daemon that died left mounted. Right before the new mount: until then programs meet the dead one, and write
/// nothing into the directory below, where it would be lost to them.
pub(super) fn clear_stale_mount(mount_dir: &Path) -> Result<(), Failure> {
    while let Some(mount) = MountTable::read().ok().and_then(|table| table.tidefs_at(mount_dir).cloned()) {
        refuse_served(&mount)?;
        let directory = mount_dir.display();
        let line = format!("tidefsd: `{directory}` is the stale mount of a daemon that died; replacing it");
        tell(io::stderr(), line);
        mounts::detach(mount_dir).map_err(|error| {
            let word = quoted(mount_dir);
            let text = format!(
                "the stale mount on `{directory}` cannot be removed: {error}; unmount it with `umount -l {word}`"
            );
            Failure::new(ExitStatus::MountPoint, text)
        })?;
    }
    check_mount_point(mount_dir)
}

/// Makes sure that `mount_dir` is a directory that nothing is mounted on.
pub(super) fn check_mount_point(mount_dir: &Path) -> Result<(), Failure> {
    let other = MountTable::read().ok().and_then(|table| table.at(mount_dir).cloned());
    if let Some(other) = other.filter(|_| mount_dir != Path::new("/")) {
        let text = format!(
            "`{}` is in use: a filesystem of type {} is mounted there; unmount it or choose another directory",
            mount_dir.display(),
            other.fstype
        );
        return Err(Failure::new(ExitStatus::MountPoint, text));
    }
    match fs::metadata(mount_dir) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(mount_point_failure(mount_dir, &io::Error::from(io::ErrorKind::NotADirectory))),
        Err(error) => Err(mount_point_failure(mount_dir, &error)),
    }
}
