//! `tidefs drain`.

use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::Value;
use tidefs_control_api::{DrainOrder, DrainPhase, DrainRequest, DrainStatus, routes};

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
    while status.phase == DrainPhase::Copying {
        show(&bar, &status);
        std::thread::sleep(PAUSE);
        (status, value) = ask(&client, &request)?;
    }
    bar.finish_and_clear();
    output.result(&value, || match args.stop && status.phase == DrainPhase::Late {
        true => format!("{} is still a member: its drain was stopped", args.host),
        false => human(&args.host, &status),
    })?;
    Ok(if status.phase == DrainPhase::Left || args.stop { ExitCode::SUCCESS } else { Exit::Failed.into() })
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
    match status.phase {
        DrainPhase::Left => format!(
            "{host} has left: other members hold the {} objects with {} that it held\nstop its daemon now",
            grouped(status.objects),
            status.bytes
        ),
        DrainPhase::Late => format!(
            "{host} is still a member: the time was over with {left} to go\n\
             run it again with another --deadline; what was copied need not be copied again"
        ),
        DrainPhase::Stuck => format!(
            "{host} is still a member: nobody takes {left}\n\
             look at the room and the log of the other members, then run it again"
        ),
        DrainPhase::Idle => format!("{host} is a member, and does not drain"),
        phase @ (DrainPhase::Copying | DrainPhase::Other) => format!("{host}: {phase}, {left} to go"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidefs_engine::types::ByteCount;

    #[test]
    fn each_end_says_what_is_left_and_what_to_do_next() {
        let status = |phase| DrainStatus {
            phase,
            objects: 2000,
            bytes: ByteCount::gib(4),
            objects_left: 12,
            bytes_left: ByteCount::mib(3),
            ..DrainStatus::default()
        };
        let text = |phase| human("gpu-3", &status(phase));
        let [left, late, stuck] = [DrainPhase::Left, DrainPhase::Late, DrainPhase::Stuck].map(text);
        assert!(left.contains("2,000 objects") && left.contains("stop its daemon"));
        assert!(late.contains("12 objects") && late.contains("--deadline"));
        assert!(stuck.contains("nobody takes") && stuck.contains("run it again"));
        assert!(text(DrainPhase::Idle).contains("does not drain"));
    }
}
