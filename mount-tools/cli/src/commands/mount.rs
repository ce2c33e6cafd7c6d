//! `tidefs mount`.

use std::time::Duration;

use serde_json::json;
use tidefs_control_api::instance::Instance;
use tidefs_control_api::{Status, routes};

use crate::args::MountArgs;
use crate::client::Client;
use crate::error::{CliError, Exit};
use crate::launch::{Launch, LaunchError};
use crate::locate;
use crate::output::Output;
use crate::shell::quoted;

pub(crate) fn run(args: MountArgs, output: Output) -> Result<(), CliError> {
    let dir = locate::resolve(&locate::mount_table()?, &args.dir)?;
    let launch = Launch {
        dir,
        options: args.options,
        capacity: args.capacity,
        config: args.config,
        state_dir: args.common.state_dir,
        timeout: Duration::from_secs(args.timeout),
    };
    let started = launch.start().map_err(|error| failure(&error))?;
    let dir = launch.dir.display();
    if started.replaced_stale {
        output.note(&format!("replaced the mount of a dead daemon on {dir}"));
    }
    let disks = missing_disks(&started.instance);
    for disk in &disks {
        output.note(&format!(
            "warning: the disk {disk} of the SSD tier is missing, and the mount works without it: attach it, or make the \
             directory, and mount {dir} again"
        ));
    }
    let value = json!({
        "mount_point": launch.dir,
        "pid": started.pid,
        "log": started.instance.log(),
        "replaced_stale": started.replaced_stale,
        "missing_disks": disks,
    });
    output.result(&value, || {
        format!(
            "mounted on {dir}, served by process {}, log in {}",
            started.pid,
            started.instance.log().display()
        )
    })
}

/// The disks of the SSD tier that the new mount does not find; none when it cannot be asked, since it is mounted all the same.
fn missing_disks(instance: &Instance) -> Vec<String> {
    let asked = Client::new(&instance.control_socket())
        .and_then(|client| client.get(routes::STATUS, &()).and_then(|value| client.read::<Status>(value)));
    let devices = asked.ok().and_then(|status| status.ssd).map(|tier| tier.devices).unwrap_or_default();
    devices.into_iter().filter(|device| device.state == "missing").map(|device| device.path).collect()
}

fn failure(error: &LaunchError) -> CliError {
    let exit = if error.is_usage() { Exit::Usage } else { Exit::Failed };
    let failure = CliError::new(exit, error.to_string());
    match error {
        LaunchError::AlreadyServed { dir, .. } => {
            failure.next_step(format!("`tidefs status {}` shows it", quoted(dir)))
        }
        LaunchError::NoDaemon { .. } => failure.next_step("install tidefsd beside this program, or in PATH"),
        _ => failure,
    }
}
