//! `tidefs evict`.

use std::fmt::Write as _;
use std::process::ExitCode;

use indicatif::ProgressBar;
use tidefs_control_api::{EvictProgress, EvictRequest, Evicted, KeyPath, SkipReason, routes};
use tidefs_engine::types::ByteCount;

use crate::args::EvictArgs;
use crate::error::{CliError, Exit};
use crate::locate;
use crate::output::{Output, grouped};

/// Of an eviction of so many bytes.
const BYTES: &str = "{wide_bar} {binary_bytes}/{binary_total_bytes}, {msg}, {eta} left";
/// Of one that goes through directories.
const OBJECTS: &str = "{wide_bar} {human_pos}/{human_len} objects, {msg}, {eta} left";

/// Exits with 1 if the object that was named stays. Of a directory or a pattern, some may stay.
pub(crate) fn run(args: &EvictArgs, output: Output) -> Result<ExitCode, CliError> {
    let mut request = EvictRequest { force: args.force, ..EvictRequest::default() };
    let client = match (&args.what.path, &args.what.pattern) {
        (Some(path), _) => {
            let (client, path) = locate::connect_to(&args.select, path, args.spelling)?;
            request.path = Some(path);
            client
        }
        (None, Some(pattern)) => {
            let (client, pattern) = locate::connect_to_pattern(&args.select, pattern)?;
            request.pattern = Some(pattern);
            client
        }
        (None, None) => locate::connect(&args.select)?,
    };
    request.bytes = args.what.bytes;
    let bar = output.progress_bar(if request.bytes.is_some() { BYTES } else { OBJECTS });
    let followed = client.follow(routes::EVICT, &request, |progress| show(&bar, request.bytes, &progress));
    bar.finish_and_clear();
    let (evicted, value): (Evicted, _) = followed?;
    output.result(&value, || human(&evicted, args.force, &locate::same_daemon(&args.select)))?;
    let stays = request.path.is_some_and(|path| stays(&path, &evicted));
    Ok(if stays { Exit::Failed.into() } else { ExitCode::SUCCESS })
}

fn show(bar: &ProgressBar, wanted: Option<ByteCount>, progress: &EvictProgress) {
    let (length, position) = match wanted {
        Some(wanted) => (wanted.get(), progress.bytes.get()),
        None => (progress.total.0, progress.looked_at.0),
    };
    bar.set_length(length.max(position));
    bar.set_position(position);
    bar.set_message(format!("{} evicted, {}", grouped(progress.objects.0), progress.bytes));
}

/// Whether `path` itself, and not something below it, was kept.
fn stays(path: &KeyPath, evicted: &Evicted) -> bool {
    evicted.skipped.iter().any(|skipped| skipped.path == *path)
}

/// `same_daemon`: options by which another command asks the same one.
fn human(evicted: &Evicted, force: bool, same_daemon: &str) -> String {
    let mut text = format!("evicted {} objects, {} are free now", grouped(evicted.objects.0), evicted.bytes);
    for (bytes, what) in [
        (evicted.held_bytes, "more when the programs that have them open or mapped let go"),
        (evicted.elsewhere_bytes, "were on disk or on another member alone"),
    ] {
        if bytes > ByteCount::ZERO {
            write!(text, "; {bytes} {what}").expect("writing to a String cannot fail");
        }
    }
    text.push('\n');
    if evicted.missing_bytes > ByteCount::ZERO {
        writeln!(
            text,
            "{} less than asked: what is still in memory is pinned, open, being written or below a floor; \
             `tidefs list{same_daemon}` shows pins",
            evicted.missing_bytes
        )
        .expect("writing to a String cannot fail");
    }
    for skipped in &evicted.skipped {
        writeln!(text, "kept {}: {}", skipped.path, skipped.reason).expect("writing to a String cannot fail");
    }
    let named = u64::try_from(evicted.skipped.len()).expect("a length fits 64 bits");
    let more = evicted.skipped_objects.0.saturating_sub(named);
    if more > 0 {
        writeln!(text, "kept {} more", grouped(more)).expect("writing to a String cannot fail");
    }
    let yields = |reason| matches!(reason, SkipReason::Pinned | SkipReason::Referenced);
    if !force && evicted.skipped.iter().any(|skipped| yields(skipped.reason)) {
        text += "--force evicts pinned and open ones too\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidefs_control_api::Skipped;
    use tidefs_engine::types::ObjectCount;

    fn key(path: &str) -> KeyPath {
        KeyPath::from_bytes(path.as_bytes())
    }

    /// Kept `ns/a` for `reason`.
    fn kept(reason: SkipReason) -> Evicted {
        Evicted {
            skipped_objects: ObjectCount(1),
            skipped: vec![Skipped { path: key("ns/a"), reason }],
            ..Evicted::default()
        }
    }

    #[test]
    fn a_named_object_that_stays_is_told_from_one_below_what_was_named() {
        assert!(stays(&key("ns/a"), &kept(SkipReason::Pinned)));
        assert!(!stays(&key("ns"), &kept(SkipReason::Pinned)));
        assert!(!stays(&key("ns"), &Evicted::default()), "an empty directory");
    }

    #[test]
    fn force_is_named_where_it_would_help() {
        assert!(human(&kept(SkipReason::Pinned), false, "").contains("--force"));
        assert!(human(&kept(SkipReason::Referenced), false, "").contains("--force"));
        assert!(!human(&kept(SkipReason::BeingWritten), false, "").contains("--force"));
        assert!(!human(&kept(SkipReason::Pinned), true, "").contains("--force"));
    }

    #[test]
    fn bytes_that_are_not_free_are_told_from_those_that_are() {
        let told = Evicted {
            objects: ObjectCount(3),
            bytes: ByteCount::mib(1),
            held_bytes: ByteCount::mib(2),
            elsewhere_bytes: ByteCount::mib(4),
            ..Evicted::default()
        };
        let told = human(&told, true, "");
        assert!(told.starts_with("evicted 3 objects, 1.0 MiB are free now; 2.0 MiB more when"), "{told}");
        assert!(told.contains("; 4.0 MiB were on disk"), "{told}");
    }

    #[test]
    fn bytes_that_found_nothing_to_evict_are_told() {
        let short = Evicted { missing_bytes: ByteCount::mib(3), ..Evicted::default() };
        assert!(human(&short, false, "").contains("3.0 MiB less than asked"), "{}", human(&short, false, ""));
    }
}
