//! `tidefs evict`.

use std::fmt::Write as _;

use tidefs_control_api::{EvictRequest, Evicted, routes};

use crate::args::EvictArgs;
use crate::error::CliError;
use crate::locate;
use crate::output::{Output, grouped};

pub(crate) fn run(args: &EvictArgs, output: Output) -> Result<(), CliError> {
    let mut request = EvictRequest { force: args.force, ..EvictRequest::default() };
    let client = match &args.what.path {
        Some(path) => {
            let (client, path) = locate::connect_to(&args.select, path)?;
            request.path = Some(path);
            client
        }
        None => locate::connect(&args.select)?,
    };
    request.pattern.clone_from(&args.what.pattern);
    request.bytes = args.what.bytes;
    let value = client.post(routes::EVICT, &request)?;
    let evicted: Evicted = client.read(value.clone())?;
    output.result(&value, || human(&evicted))
}

fn human(evicted: &Evicted) -> String {
    let mut text =
        format!("evicted {} objects, {} are free now\n", grouped(evicted.objects.0), evicted.bytes);
    for skipped in &evicted.skipped {
        writeln!(text, "kept {}: {}", skipped.path, skipped.reason).expect("writing to a String cannot fail");
    }
    let named = u64::try_from(evicted.skipped.len()).expect("a length fits 64 bits");
    let more = evicted.skipped_objects.0.saturating_sub(named);
    if more > 0 {
        writeln!(text, "kept {} more", grouped(more)).expect("writing to a String cannot fail");
    }
    text
}
