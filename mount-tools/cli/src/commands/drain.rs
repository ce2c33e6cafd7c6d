//! `tidefs drain`.

use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::Value;
use tidefs_control_api::{DrainOrder, DrainRequest, DrainStatus, routes};

use crate::args::DrainArgs;
use crate::client::Client;
use crate::error::{CliError, Exit};
use crate::locate;
use crate::output::{Output, grouped};

/// Pause between two questions how far it is.
const PAUSE: Duration = Duration::from_millis(250);

/// Exits with 1 if the member is still one at the end.
pub(crate) fn run(args: &DrainArgs, output: Output) -> Result<ExitCode, CliError> {
    let client = locate::connect(&args.select)?;
    let within_ms = args.deadline.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let order = if args.stop { DrainOrder::Stop } else { DrainOrder::Begin };
    let mut request = DrainRequest { member: args.host.clone(), order, within_ms };
    let (mut status, mut value) = ask(&client, &request)?;
    let bar =
        output.progress_bar("{wide_bar} {binary_bytes}/{binary_total_bytes}, {msg} objects left, {eta} left");
    // Its name is gone from the list of members once it has left.
    request = DrainRequest { member: status.member.clone(), order: DrainOrder::Ask, within_ms: None };
    while status.phase == "copying" {
        show(&bar, &status);
        std::thread::sleep(PAUSE);
        (status, value) = ask(&client, &request)?;
    }
    bar.finish_and_clear();
    output.result(&value, || match args.stop && status.phase == "late" {
        true => format!("{} is still a member: its drain was stopped", args.host),
        false => human(&args.host, &status),
    })?;
    Ok(if status.phase == "left" || args.stop { ExitCode::SUCCESS } else { Exit::Failed.into() })
}

fn ask(client: &Client, request: &DrainRequest) -> Result<(DrainStatus, Value), CliError> {
    let value = client.post(routes::DRAIN, request)?;
    Ok((client.read(value.clone())?, value))
}

fn show(bar: &ProgressBar, status: &DrainStatus) {
    bar.set_length(status.bytes.get());
    bar.set_position(status.bytes.get().saturating_sub(status.bytes_left.get()));
    bar.set_message(grouped(status.objects_left));
}

fn human(host: &str, status: &DrainStatus) -> String {
    let left = format!("{} objects with {}", grouped(status.objects_left), status.bytes_left);
    match status.phase.as_str() {
        "left" => format!(
            "{host} has left: other members hold the {} objects with {} that it held\nstop its daemon now",
            grouped(status.objects),
            status.bytes
        ),
        "late" => format!(
            "{host} is still a member: the time was over with {left} to go\n\
             run it again with another --deadline; what was copied need not be copied again"
        ),
        "stuck" => format!(
            "{host} is still a member: nobody takes {left}\n\
             look at the room and the log of the other members, then run it again"
        ),
        "idle" => format!("{host} is a member, and does not drain"),
        phase => format!("{host}: {phase}, {left} to go"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidefs_engine::types::ByteCount;

    #[test]
    fn each_end_says_what_is_left_and_what_to_do_next() {
        let status = |phase: &str| DrainStatus {
            phase: phase.to_owned(),
            objects: 2000,
            bytes: ByteCount::gib(4),
            objects_left: 12,
            bytes_left: ByteCount::mib(3),
            ..DrainStatus::default()
        };
        let text = |phase: &str| human("gpu-3", &status(phase));
        assert!(text("left").contains("2,000 objects") && text("left").contains("stop its daemon"));
        assert!(text("late").contains("12 objects") && text("late").contains("--deadline"));
        assert!(text("stuck").contains("nobody takes") && text("stuck").contains("run it again"));
        assert!(text("idle").contains("does not drain"));
    }
}
