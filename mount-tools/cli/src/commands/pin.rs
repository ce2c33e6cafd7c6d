//! `tidefs pin`.

use std::time::Duration;

use tidefs_control_api::{KeyPath, Pin, PinRequest, Pinned, routes};

use crate::args::PinArgs;
use crate::error::{CliError, Exit};
use crate::locate;
use crate::output::{Output, duration};

pub(crate) fn run(args: &PinArgs, output: Output) -> Result<(), CliError> {
    if args.strength.pin() == Pin::Hard && args.ttl.is_some() {
        return Err(CliError::new(Exit::Usage, "only a soft pin takes --ttl")
            .next_step("use --soft, or leave out --ttl: a hard pin holds until --none takes it away"));
    }
    if args.ttl.is_some_and(|ttl| ttl.is_zero()) {
        return Err(CliError::new(Exit::Usage, "a pin of zero seconds pins nothing")
            .next_step("leave out --ttl for a pin without end; --none takes one away"));
    }
    let (client, path) = locate::connect_to(&args.select, &args.path, args.spelling)?;
    let request = PinRequest { path, pin: args.strength.pin(), ttl_s: args.ttl.map(whole_seconds) };
    request.validate()?;
    let value = client.post(routes::PIN, &request)?;
    let pinned: Pinned = client.read(value.clone())?;
    output.result(&value, || human(&pinned))
}

/// The daemon counts whole seconds; a pin lasts no shorter than was asked for.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

fn human(pinned: &Pinned) -> String {
    let path = if pinned.path.is_root() { KeyPath::ROOT_IN_WORDS } else { pinned.path.as_str() };
    let until = match pinned.ttl_left_s {
        Some(seconds) => format!("for {}", duration(Duration::from_secs(seconds))),
        None => "until the pin is taken away".to_owned(),
    };
    match pinned.pin {
        Pin::None => format!("{path} is not pinned"),
        Pin::Soft => format!("{path} is evicted last, {until}"),
        Pin::Hard => format!("{path} is not evicted, {until}"),
    }
}
