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
    let (client, path) = locate::connect_to(&args.select, &args.path, args.spelling)?;
    let request = PinRequest { path, pin: args.strength.pin(), ttl_s: args.ttl.map(|ttl| ttl.as_secs()) };
    request.validate()?;
    let value = client.post(routes::PIN, &request)?;
    let pinned: Pinned = client.read(value.clone())?;
    output.result(&value, || human(&pinned))
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
