//! `tidefs mount`.

use std::io;
use std::time::Duration;

use serde_json::json;
use tidefs_control_api::shell::quoted;

use crate::args::MountArgs;
use crate::error::{CliError, Exit};
use crate::launch::{Launch, LaunchError};
use crate::locate;
use crate::output::{Output, shown};

pub(crate) fn run(args: MountArgs, output: Output) -> Result<(), CliError> {
    let dir = locate::resolve(&locate::mount_table()?, &args.dir)?;
    let launch = Launch {
        dir,
        options: args.options,
        capacity: args.capacity,
        config: args.config,
        state_dir: args.common.state_dir(),
        is_trial: false,
        timeout: Duration::from_secs(args.timeout),
    };
    let started = launch.start().map_err(|error| failure(&error, &launch))?;
    let dir = launch.dir.display();
    let missing_disks = started.missing_disks();
    started.notes(&launch.dir, &missing_disks).iter().for_each(|note| output.note(note));
    let value = json!({
        "mount_point": shown(&launch.dir),
        "pid": started.pid,
        "log": shown(&started.instance.log()),
        "replaced_stale": started.replaced_stale,
        "missing_disks": missing_disks,
    });
    output.result(&value, || {
        format!(
            "mounted on {dir}, served by process {}, log in {}",
            started.pid,
            started.instance.log().display()
        )
    })
}

fn failure(error: &LaunchError, launch: &Launch) -> CliError {
    let exit = if error.is_usage() { Exit::Usage } else { Exit::Failed };
    let failure = CliError::new(exit, error.to_string());
    match error {
        LaunchError::AlreadyServed { dir, .. } => {
            let option = locate::state_dir_option(launch.named_state_dir().as_deref());
            failure.next_step(format!("`tidefs status {}{option}` shows it", quoted(dir)))
        }
        LaunchError::StillStopping { dir, .. } => failure.next_step(format!(
            "mount again when it has ended; it waits for programs that have files of {} open",
            dir.display()
        )),
        LaunchError::Io { step, source, .. }
            if *step != "start" && source.kind() == io::ErrorKind::PermissionDenied =>
        {
            failure.next_step("run it as root, or name a state directory of your own with --state-dir")
        }
        LaunchError::StateDirNotUtf8 { .. } => {
            failure.next_step("name it by another path, for example a link to it")
        }
        LaunchError::NoDaemon { .. } => failure.next_step("install tidefsd beside this program, or in PATH"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_use_a_state_directory_is_told_to_name_another() {
        let launch = Launch {
            dir: "/mnt/kv".into(),
            options: Vec::new(),
            capacity: None,
            config: None,
            state_dir: Some("/run/tidefs".into()),
            is_trial: false,
            timeout: Duration::ZERO,
        };
        let told = |step, kind: io::ErrorKind| {
            let path = "/run/tidefs/mnt-kv-0/log".into();
            failure(&LaunchError::Io { step, path, source: kind.into() }, &launch).next_step
        };
        let refused = told("write", io::ErrorKind::PermissionDenied);
        assert!(refused.is_some_and(|next_step| next_step.contains("--state-dir")));
        assert_eq!(told("write", io::ErrorKind::StorageFull), None);
        assert_eq!(told("start", io::ErrorKind::PermissionDenied), None, "that is of the program");
    }
}
