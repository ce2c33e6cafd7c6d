//! Children of a test: the test binary again, with a role to play, so that a whole process can be killed.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{fastpath, fault, invalidations, worker};

/// Tells the test binary which role it plays.
const ROLE: &str = "TIDEFS_TEST_ROLE";
/// What the role is to know, as JSON.
const ORDERS: &str = "TIDEFS_TEST_ORDERS";

/// Starts a child in `role`; it dies with the thread that started it. What it prints is piped to the caller.
pub(crate) fn spawn(role: &str, orders: &impl Serialize) -> Child {
    spawn_under(&[], role, orders)
}

/// As [`spawn`], by a command that starts the command that follows it.
pub(crate) fn spawn_under(under: &[String], role: &str, orders: &impl Serialize) -> Child {
    let program = env::current_exe().expect("the test binary knows its path");
    let mut command = match under.split_first() {
        None => Command::new(program),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    };
    command
        .args(["--exact", "child::a_child_plays_its_role", "--ignored", "--test-threads=1", "--nocapture"])
        .env(ROLE, role)
        .env(ORDERS, serde_json::to_string(orders).expect("orders are JSON"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    // SAFETY: between fork and exec the closure makes one async-signal-safe system call and allocates nothing.
    unsafe {
        command
            .pre_exec(|| nix::sys::prctl::set_pdeathsig(Some(Signal::SIGKILL)).map_err(std::io::Error::from));
    }
    command.spawn().expect("the test binary starts again")
}

/// The report of a child that played its role to the end: the last line that it printed.
pub(crate) fn report<T: DeserializeOwned>(printed: &str) -> Result<T, String> {
    let line =
        printed.lines().find_map(|line| line.strip_prefix("report: ")).ok_or("a child made no report")?;
    serde_json::from_str(line).map_err(|error| format!("a child's report is no JSON ({error}): {line}"))
}

fn orders<T: DeserializeOwned>() -> T {
    let text = env::var(ORDERS).expect("a child has orders");
    serde_json::from_str(&text).expect("orders are JSON")
}

fn tell(report: &impl Serialize) {
    println!("\nreport: {}", serde_json::to_string(report).expect("a report is JSON"));
}

#[test]
#[ignore = "the entry of child processes: the fast path, fault, stress and invalidation tests run it in each of theirs"]
fn a_child_plays_its_role() {
    match env::var(ROLE).as_deref() {
        Ok("fault writer") => tell(&fault::write_until_the_mount_dies(&orders())),
        Ok("invalidator") => tell(&invalidations::work_until_the_mount_dies(&orders())),
        Ok("fast holder") => fastpath::hold_until_killed(&orders()),
        Ok("fast churn") => tell(&fastpath::churn(&orders())),
        Ok("fast visitor") => tell(&fastpath::look_around(&orders())),
        Ok("stress") => tell(&worker::write_and_read(&orders())),
        Ok("mortal") => worker::write_until_killed(&orders()),
        Ok(role) => panic!("no such role: {role}"),
        Err(_) => eprintln!("nothing to do: other tests start this one with a role"),
    }
}
