//! `tidefs verify`.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar};
use tidefs_control_api::{Tier, VerifyProgress, VerifyRequest, VerifySummary, routes};
use tidefs_engine::types::ObjectCount;

use crate::args::{VerifiedTier, VerifyArgs};
use crate::error::{CliError, Exit};
use crate::locate;
use crate::output::{Output, grouped};

const TEMPLATE: &str = "{wide_bar} {human_pos}/{human_len} objects, {msg}, {eta} left";

/// Exits with 1 if something is corrupt, or could not be read.
pub(crate) fn run(args: &VerifyArgs, output: Output) -> Result<ExitCode, CliError> {
    let (client, path) = match &args.path {
        Some(path) => {
            let (client, path) = locate::connect_to(&args.select, path, args.spelling)?;
            (client, Some(path))
        }
        None => (locate::connect(&args.select)?, None),
    };
    let bar = output.progress_bar(TEMPLATE);
    let tier = args.tier.map(|VerifiedTier::Ssd| Tier::Ssd);
    let request = VerifyRequest { path, tier, bytes_per_second: args.rate };
    let followed = client.follow(routes::VERIFY, &request, |progress| show(&bar, &progress));
    bar.finish_and_clear();
    let (summary, value): (VerifySummary, _) = followed?;
    output.result(&value, || human(&summary, &locate::same_daemon(&args.select)))?;
    let is_sound = summary.corrupt.0 + summary.unreadable.0 == 0;
    Ok(if is_sound { ExitCode::SUCCESS } else { Exit::Failed.into() })
}

fn show(bar: &ProgressBar, progress: &VerifyProgress) {
    bar.set_length(progress.total.0);
    bar.set_position(progress.checked.0 + progress.passed_by.0);
    bar.set_message(HumanBytes(progress.checked_bytes.get()).to_string());
}

/// `same_daemon`: options by which another command asks the same one.
fn human(summary: &VerifySummary, same_daemon: &str) -> String {
    let took = Duration::from_millis(summary.elapsed_ms).as_secs_f64();
    let (checked, bytes) = (grouped(summary.checked.0), summary.checked_bytes);
    let mut text = format!("checked {checked} objects, {bytes}, in {took:.1} s");
    match (summary.checked.0, summary.corrupt.0) {
        // Nothing was read, so nothing is known.
        (0, _) => text += "\n",
        (_, 0) => text += ": all intact\n",
        (_, corrupt) => writeln!(text, ": {} corrupt, dropped from the cache", grouped(corrupt))
            .expect("writing to a String cannot fail"),
    }
    let mut unread = |count: ObjectCount, what: &str| {
        if count.0 > 0 {
            writeln!(text, "not read: {} {what}", grouped(count.0)).expect("writing to a String cannot fail");
        }
    };
    unread(summary.only_on_disk, "are on disk only: --tier ssd reads them");
    unread(summary.only_in_memory, "are in memory only: a verification without --tier reads them");
    unread(summary.only_elsewhere, "are on other members only: verify them there");
    unread(summary.being_written, "are being written: programs have them open");
    let disks =
        format!("could not be read: see the daemon's log, and `tidefs tier status{same_daemon}` for disks");
    unread(summary.unreadable, &disks);
    unread(summary.gone, "went away meanwhile");
    for path in &summary.corrupt_paths {
        writeln!(text, "corrupt: {path}").expect("writing to a String cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_read_is_not_called_intact() {
        let nothing = human(&VerifySummary { only_on_disk: ObjectCount(2), ..VerifySummary::default() }, "");
        assert!(!nothing.contains("intact"), "{nothing}");
        assert!(nothing.contains("not read: 2 are on disk only: --tier ssd reads them"), "{nothing}");
        let some = VerifySummary {
            checked: ObjectCount(1),
            only_in_memory: ObjectCount(3),
            unreadable: ObjectCount(4),
            being_written: ObjectCount(5),
            ..VerifySummary::default()
        };
        let some = human(&some, "");
        assert!(some.contains("all intact") && some.contains("not read: 3 are in memory only"), "{some}");
        assert!(some.contains("not read: 4 could not be read"), "{some}");
        assert!(some.contains("not read: 5 are being written"), "{some}");
    }
}
