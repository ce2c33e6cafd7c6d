//! `tidefs verify`.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde_json::Value;
use tidefs_control_api::{ApiError, Tier, VerifyEvent, VerifyProgress, VerifyRequest, VerifySummary, routes};

use crate::args::{VerifiedTier, VerifyArgs};
use crate::error::{CliError, Exit};
use crate::locate;
use crate::output::{Output, grouped};

/// Exits with 1 if something is corrupt.
pub(crate) fn run(args: &VerifyArgs, output: Output) -> Result<ExitCode, CliError> {
    let (client, path) = match &args.path {
        Some(path) => {
            let (client, path) = locate::connect_to(&args.select, path)?;
            (client, Some(path))
        }
        None => (locate::connect(&args.select)?, None),
    };
    // indicatif draws on stderr, and only if that is a terminal.
    let bar = if output.is_json() { ProgressBar::hidden() } else { progress_bar() };
    let mut last: Option<Result<(VerifySummary, Value), ApiError>> = None;
    let tier = args.tier.map(|VerifiedTier::Ssd| Tier::Ssd);
    let request = VerifyRequest { path, tier, bytes_per_second: args.rate };
    let asked = client.post_for_events(routes::VERIFY, &request, |event, value| match event {
        VerifyEvent::Progress(progress) => show(&bar, &progress),
        VerifyEvent::Summary(summary) => last = Some(Ok((summary, value))),
        VerifyEvent::Error(error) => last = Some(Err(error)),
        VerifyEvent::Other => {}
    });
    bar.finish_and_clear();
    asked?;
    let Some(last) = last else {
        return Err(CliError::new(Exit::Failed, "the daemon broke off the verification")
            .next_step("it may have stopped: look at `tidefs status` and at its log"));
    };
    let (summary, mut value) = last?;
    if let Some(fields) = value.as_object_mut() {
        fields.remove("event");
    }
    output.result(&value, || human(&summary))?;
    Ok(if summary.corrupt.0 > 0 { Exit::Failed.into() } else { ExitCode::SUCCESS })
}

fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} objects, {msg}, {eta} left");
    ProgressBar::new(0).with_style(style.expect("the template is a constant and well formed"))
}

fn show(bar: &ProgressBar, progress: &VerifyProgress) {
    bar.set_length(progress.total.0);
    bar.set_position(progress.checked.0);
    bar.set_message(HumanBytes(progress.checked_bytes.get()).to_string());
}

fn human(summary: &VerifySummary) -> String {
    let took = Duration::from_millis(summary.elapsed_ms).as_secs_f64();
    let (checked, bytes) = (grouped(summary.checked.0), summary.checked_bytes);
    let mut text = format!("checked {checked} objects, {bytes}, in {took:.1} s: ");
    if summary.corrupt.0 == 0 {
        text += "all intact\n";
    } else {
        writeln!(text, "{} corrupt, dropped from the cache", grouped(summary.corrupt.0))
            .expect("writing to a String cannot fail");
    }
    if summary.gone.0 > 0 {
        writeln!(text, "{} went away meanwhile", grouped(summary.gone.0))
            .expect("writing to a String cannot fail");
    }
    for path in &summary.corrupt_paths {
        writeln!(text, "corrupt: {path}").expect("writing to a String cannot fail");
    }
    text
}
