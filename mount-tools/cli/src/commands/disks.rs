//! `tidefs tier add`, `tidefs tier drain` and `tidefs tier remove`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use indicatif::{HumanBytes, ProgressBar};
use tidefs_control_api::shell::quoted;
use tidefs_control_api::{
    AddDiskRequest, DisksChanged, DrainDiskRequest, DrainProgress, RemoveDiskRequest, routes,
};
use tidefs_engine::types::ByteCount;

use crate::args::{Select, StatusArgs};
use crate::error::{CliError, Exit};
use crate::locate;
use crate::output::{Output, grouped};

/// What can be asked of the tiers.
#[derive(Debug, Subcommand)]
pub(crate) enum TierCommand {
    /// Show how full memory and disks are, and the state of each disk
    #[command(
        after_help = "Examples:\n  tidefs tier status\n  tidefs tier status /mnt/kv --json | jq '.ssd.devices[].state'"
    )]
    Status(StatusArgs),
    /// Take a directory or block device into the SSD tier while it is used
    #[command(
        after_help = "Whatever the tier left there before is given up. The daemon need not have had a disk before. Slot \
                      files stay where they are. A restart of the daemon knows the disk; a restart of the machine does \
                      not, unless the configuration names it too.\n\nExample:\n  tidefs tier add /mnt/nvme2/tidefs \
                      --capacity 2TiB"
    )]
    Add(AddArgs),
    /// Move what a disk holds to the others; from then on it takes nothing
    #[command(
        after_help = "Ending the command ends the move; asking again goes on with it.\n\nExample:\n  tidefs tier drain \
                      /mnt/nvme0/tidefs --rate 500MiB"
    )]
    Drain(DrainArgs),
    /// Take a disk out of the SSD tier
    #[command(
        after_help = "Examples:\n  tidefs tier remove /mnt/nvme0/tidefs\n  tidefs tier remove --force /dev/nvme3n1"
    )]
    Remove(RemoveArgs),
}

impl TierCommand {
    /// Whether the result is for a program.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Status(args) => args.of.select().common.json,
            Self::Add(args) => args.select.common.json,
            Self::Drain(args) => args.select.common.json,
            Self::Remove(args) => args.select.common.json,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// A directory on the disk, which must exist, or a block device
    place: PathBuf,
    /// Most bytes of it; default: as much as the largest of the other disks may hold, at most three quarters of what is free;
    /// of the first one `ssd.capacity`, or three quarters of what is free where that is not set
    #[arg(long, value_name = "SIZE")]
    capacity: Option<ByteCount>,
    #[command(flatten)]
    pub(crate) select: Select,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The disk, as `tidefs tier status` shows it
    place: PathBuf,
    /// Most bytes to move a second, so that readers do not feel it; default: as fast as it goes
    #[arg(long, value_name = "SIZE")]
    rate: Option<ByteCount>,
    #[command(flatten)]
    pub(crate) select: Select,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// The disk, as `tidefs tier status` shows it
    place: PathBuf,
    /// Give up the objects that are on it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub(crate) select: Select,
}

/// The path as the daemon, which stands elsewhere, takes it: without the slash that a shell puts at its end.
fn absolute(place: &Path) -> Result<String, CliError> {
    let absolute = std::path::absolute(place)
        .map_err(|error| CliError::new(Exit::Failed, format!("`{}` is no path: {error}", place.display())))?;
    let path: PathBuf = absolute.components().collect();
    path.to_str().map(str::to_owned).ok_or_else(|| {
        CliError::new(Exit::Usage, format!("the path of a disk is UTF-8, and `{}` is not", path.display()))
            .next_step("name it by another path, for example a link to it")
    })
}

pub(crate) fn add(args: &AddArgs, output: Output) -> Result<(), CliError> {
    let client = locate::connect(&args.select)?;
    let request = AddDiskRequest { path: absolute(&args.place)?, capacity: args.capacity };
    let value = client.post(routes::TIER_ADD, &request)?;
    let now: DisksChanged = client.read(value.clone())?;
    let holds = now.capacity.map_or_else(String::new, |capacity| format!(", which may hold {capacity}"));
    output.result(&value, || format!("added {}{holds}\n{}", request.path, lasting(&now)))
}

pub(crate) fn remove(args: &RemoveArgs, output: Output) -> Result<(), CliError> {
    let client = locate::connect(&args.select)?;
    let request = RemoveDiskRequest { path: absolute(&args.place)?, force: args.force };
    let value = client.post(routes::TIER_REMOVE, &request)?;
    let now: DisksChanged = client.read(value.clone())?;
    output.result(&value, || format!("removed {}\n{}", request.path, lasting(&now)))
}

/// What is left to do for a change to last.
fn lasting(now: &DisksChanged) -> String {
    if now.as_configured {
        return "the configuration names the same disks\n".to_owned();
    }
    format!(
        "a restart of the daemon knows this, a restart of the machine does not; to keep it, set in the configuration:\n  \
         {}\n",
        now.setting
    )
}

const TEMPLATE: &str = "{wide_bar} {human_pos}/{human_len} objects, {msg}, {eta} left";

/// Exits with 1 when something is left on the disk.
pub(crate) fn drain(args: &DrainArgs, output: Output) -> Result<ExitCode, CliError> {
    let client = locate::connect(&args.select)?;
    let bar = output.progress_bar(TEMPLATE);
    let request = DrainDiskRequest { path: absolute(&args.place)?, bytes_per_second: args.rate };
    let followed = client.follow(routes::TIER_DRAIN, &request, |progress| show(&bar, &progress));
    bar.finish_and_clear();
    let (summary, value): (DrainProgress, _) = followed?;
    let words = quoted(Path::new(&request.path)) + &locate::same_daemon(&args.select);
    output.result(&value, || human(&request.path, &words, &summary))?;
    Ok(if summary.left.0 > 0 { Exit::Failed.into() } else { ExitCode::SUCCESS })
}

fn show(bar: &ProgressBar, progress: &DrainProgress) {
    let done = progress.moved.0 + progress.in_memory.0 + progress.lost.0;
    bar.set_length(done + progress.left.0);
    bar.set_position(done);
    bar.set_message(HumanBytes(progress.moved_bytes.get()).to_string());
}

/// `words` name the disk to another command.
fn human(path: &str, words: &str, summary: &DrainProgress) -> String {
    let DrainProgress { moved, moved_bytes, in_memory, lost, left } = *summary;
    let mut text = format!("{path}: {} objects moved to other disks, {moved_bytes}", grouped(moved.0));
    if in_memory.0 > 0 {
        text += &format!("; {} are in memory", grouped(in_memory.0));
    }
    if lost.0 > 0 {
        text += &format!("; {} are damaged or too large for the other disks, and are gone", grouped(lost.0));
    }
    if left.0 > 0 {
        return text + &format!("; {} are left\n", grouped(left.0));
    }
    text + &format!("\nit is empty and takes nothing: `tidefs tier remove {words}` takes it out\n")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn a_disk_has_one_name_however_it_is_typed_and_that_is_utf8() {
        for typed in ["/mnt/a", "/mnt/a/", "/mnt//a/."] {
            assert_eq!(absolute(Path::new(typed)).unwrap(), "/mnt/a", "{typed}");
        }
        let error = absolute(Path::new(OsStr::from_bytes(b"/mnt/\xff"))).unwrap_err();
        assert!(error.exit == Exit::Usage && error.message.contains("UTF-8"), "{error}");
    }
}
