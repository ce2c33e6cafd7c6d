//! The log of a daemon in the background, which is its standard error and a file of its state directory: here one that is long
//! already when the daemon gets it.

use std::fs::{self, File};
use std::time::Duration;

use tidefs_control_api::instance::StateDir;
use tidefs_control_api::log::{earlier_log, has_writer};

use super::common::Mount;
use super::common::wait::{HANG, until};

/// Longest time from the start of the daemon to its mount.
const START: Duration = Duration::from_secs(20);
/// More than a log may have.
const LONG: u64 = 17 << 20;

#[test]
fn a_log_that_has_become_long_is_begun_anew_and_goes_on() {
    let mut mount = Mount::prepare(&["log=info"]);
    let log = StateDir::new(mount.state_dir()).instance(mount.path()).log();
    let earlier = earlier_log(&log);
    fs::create_dir_all(log.parent().expect("a folder")).expect("the folder of the mount");
    let given = File::options().create(true).append(true).open(&log).expect("a log");
    given.set_len(LONG).expect("a hole");
    mount.start_daemon_by(START, |command| command.stderr(given).spawn());
    let goes_on = || fs::read_to_string(&log).is_ok_and(|text| text.contains("the log is begun anew"));
    assert!(until(HANG, goes_on), "{:?}", fs::metadata(&log));
    assert!(fs::metadata(&log).is_ok_and(|facts| facts.len() < LONG));
    assert!(fs::metadata(&earlier).is_ok_and(|facts| facts.len() >= LONG), "the one before is beside it");
    assert!(has_writer(&log).expect("a look"), "a further start that is refused gives its name back");
    assert!(mount.stop().success());
    assert!(!has_writer(&log).expect("a look"));
}
