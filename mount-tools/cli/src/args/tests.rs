//! Which command lines are taken, and which are refused.

use super::*;
use clap::CommandFactory as _;
use tidefs_control_api::Pin;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split(' '))
}

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn an_eviction_and_a_pin_want_exactly_one_choice() {
    assert!(parse("tidefs evict").is_err());
    assert!(parse("tidefs evict a --bytes 1GiB").is_err());
    assert!(parse("tidefs pin a").is_err());
    assert!(parse("tidefs pin a --hard --soft").is_err());
    assert!(parse("tidefs pin a --none --ttl 5m").is_err());
    let Command::Pin(pin) = parse("tidefs pin a --soft --ttl 5m").unwrap().command else { panic!() };
    assert_eq!((pin.strength.pin(), pin.ttl.map(|ttl| ttl.as_secs())), (Pin::Soft, Some(300)));
}

#[test]
fn a_size_without_a_number_is_refused_with_an_example() {
    let error = parse("tidefs evict --bytes lots").unwrap_err().to_string();
    assert!(error.contains("64GiB"), "{error}");
}

#[test]
fn a_wait_is_no_longer_than_a_clock_can_tell() {
    for command in ["mount", "umount"] {
        let with = |seconds: &str| parse(&format!("tidefs {command} /mnt/kv --timeout {seconds}"));
        assert!(with("1").is_ok() && with("31536000").is_ok(), "{command}");
        for seconds in ["0", "31536001", "18446744073709551615"] {
            assert!(with(seconds).is_err(), "{command} {seconds}");
        }
    }
}

#[test]
fn every_command_but_bench_takes_json() {
    for command in Cli::command().get_subcommands().filter(|c| !["bench", "help"].contains(&c.get_name())) {
        let leaves: Vec<_> =
            if command.has_subcommands() { command.get_subcommands().collect() } else { vec![command] };
        for leaf in leaves {
            let has = leaf.get_arguments().any(|argument| argument.get_long() == Some("json"));
            assert!(has || leaf.get_name() == "help", "{}", leaf.get_name());
        }
    }
}
