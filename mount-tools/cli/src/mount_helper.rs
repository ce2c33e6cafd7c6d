//! `mount.tidefs SOURCE DIR -o OPTIONS`: what mount(8) runs for `mount -t tidefs` and for a line of fstab.
//!
//! All options go to the daemon as they are: it knows which ones every filesystem takes, obeys `noexec`, ignores
//! the likes of `nofail`, and refuses `ro` and `x-systemd.automount` with a reason. One table, in one place. SOURCE is a setting of
//! it like any other.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::error::ErrorKind;
use tidefs_control_api::instance::state_dir_of_environment;
use tidefs_control_api::mount_options;
use tidefs_control_api::mounts::MountTable;

use crate::launch::{Launch, LaunchError};
use crate::output::tell;

/// Exit code of mount(8): wrong invocation.
const EXIT_USAGE: u8 = 1;
/// Exit code of mount(8): the mount failed.
const EXIT_FAILURE: u8 = 32;

/// Time to wait for the mount, or for a sign that the daemon gets on; systemd gives a mount unit 90 s in all, unless its line says
/// `x-systemd.mount-timeout=`.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Mounts a tidefs cache; called by mount(8) for `mount -t tidefs tidefs DIR -o capacity=64GiB`.
#[derive(Debug, Parser)]
#[command(
    name = "mount.tidefs",
    version,
    after_help = "Exit codes: 0 mounted; 1 wrong command line or options; 32 the mount failed.\n\n\
                  A line of fstab:\n  tidefs /mnt/kv tidefs capacity=64GiB,nofail 0 0"
)]
pub(crate) struct HelperArgs {
    /// What mounts are listed with as their device; only a name, usually `tidefs`
    source: String,
    /// Directory to mount on
    dir: PathBuf,
    /// Settings and mount options
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Check the options and mount nothing
    #[arg(short = 'f')]
    fake: bool,
    /// Accepted for mount(8): there is no mtab to leave alone
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Accepted for mount(8): an unknown option is an error all the same
    #[arg(short = 's')]
    sloppy: bool,
    /// Tell what is done
    #[arg(short = 'v')]
    verbose: bool,
    /// The same as `-o ro`, which the daemon refuses
    #[arg(short = 'r')]
    read_only: bool,
    /// Accepted for mount(8): a mount always is writable
    #[arg(short = 'w')]
    writable: bool,
    /// Accepted for mount(8)
    #[arg(short = 't', value_name = "TYPE")]
    fstype: Option<String>,
    /// Mount in another namespace; not supported
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,
}

/// Runs as mount(8) wants it.
pub(crate) fn run() -> ExitCode {
    let args = match HelperArgs::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Nothing can be told if the terminal is gone; the exit code still says it.
            let _ = error.print();
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) };
        }
    };
    match mount(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            tell(format_args!("mount.tidefs: {message}"));
            ExitCode::from(code)
        }
    }
}

fn mount(args: HelperArgs) -> Result<(), (u8, String)> {
    if let Some(namespace) = args.namespace {
        let message =
            format!("-N {} is not supported: enter it with nsenter(1) and mount there", namespace.display());
        return Err((EXIT_USAGE, message));
    }
    let resolved = MountTable::read().and_then(|table| table.resolve(&args.dir));
    let dir = resolved.map_err(|error| (EXIT_FAILURE, format!("{}: {error}", args.dir.display())))?;
    let mut options = source_option(&args.source);
    options.extend(args.options);
    if args.read_only {
        options.push("ro".to_owned());
    }
    if args.verbose {
        let (source, options) = (&args.source, options.join(","));
        tell(format_args!("mount.tidefs: {source} on {} with options `{options}`", dir.display()));
    }
    let state_dir = state_dir_of_environment();
    let launch =
        Launch { dir, options, capacity: None, config: None, state_dir, is_trial: false, timeout: TIMEOUT };
    let failure =
        |error: LaunchError| (if error.is_usage() { EXIT_USAGE } else { EXIT_FAILURE }, error.to_string());
    if args.fake {
        return launch.check().map_err(failure);
    }
    let started = launch.start().map_err(failure)?;
    let notes = started.notes(&launch.dir, &started.missing_disks());
    notes.iter().for_each(|note| tell(format_args!("mount.tidefs: {note}")));
    if args.verbose {
        let log = started.instance.log();
        tell(format_args!("mount.tidefs: process {} serves it and logs to {}", started.pid, log.display()));
    }
    Ok(())
}

/// What has the daemon mount under the name `source`. What the options say of that comes later and counts.
fn source_option(source: &str) -> Vec<String> {
    let is_named = !matches!(source, "" | "tidefs");
    is_named.then(|| format!("fuse.source={}", mount_options::escaped(source))).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        HelperArgs::command().debug_assert();
    }

    #[test]
    fn a_source_is_a_setting_whatever_is_in_it() {
        assert!(["tidefs", ""].iter().all(|source| source_option(source).is_empty()));
        assert_eq!(source_option("kv,0"), [r"fuse.source=kv\,0"]);
    }

    #[test]
    fn what_mount_8_sends_is_understood() {
        let line =
            "mount.tidefs tidefs /mnt/kv -s -f -n -v -t fuse.tidefs -o rw,noatime,capacity=8GiB -o threads=2";
        let args = HelperArgs::try_parse_from(line.split(' ')).unwrap();
        assert_eq!(args.options, ["rw,noatime,capacity=8GiB", "threads=2"]);
        assert!(args.fake && args.sloppy && args.no_mtab && args.verbose);
        assert!(HelperArgs::try_parse_from(["mount.tidefs", "tidefs"]).is_err());
    }
}
