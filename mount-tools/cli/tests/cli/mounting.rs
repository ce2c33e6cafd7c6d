//! `tidefs mount` and `mount.tidefs`, with a script as the daemon.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidefs_control_api::instance::STATE_DIR_VARIABLE;
use tidefs_control_api::lock::{self, Daemon};
use tidefs_control_api::log::refused_log;

use crate::host::{Ended, Host};

/// A daemon that mounts at once and serves until it is told to stop.
pub(crate) const GOOD: &str = r#"
    exec 9>>"$FAKE_LOCK"; flock -n 9 || exit 1; echo $$ >"$FAKE_LOCK"
    trap 'echo stopped >>"$FAKE_NOTES"; exit 0' TERM
    echo "a line for the log" >&2
    echo "tidefs: mounted on $1"
    exec 1>&-
    i=0; while [ $i -lt 600 ]; do sleep 0.05 9>&-; i=$((i+1)); done"#;

fn stop(host: &Host, program: &std::path::Path) {
    let ended = host.run_program(program, "umount MNT");
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn mount_waits_for_the_mount_and_leaves_the_daemon_alone_in_its_session() {
    let host = Host::new();
    let program = host.install("tidefs", GOOD);
    let ended = host.run_program(&program, "mount MNT --capacity 8GiB -o on_stop=discard,noexec --json");
    assert_eq!(ended.code, 0, "{ended:?}");
    let json = ended.json();
    assert_eq!(json["mount_point"], host.mount_dir().to_str().unwrap());
    assert_eq!(json["log"], host.instance().log().to_str().unwrap());
    let notes = host.notes();
    let (dir, state) = (host.mount_dir(), host.state());
    let args = format!(
        "args: {} --capacity 8589934592 -o runtime.state_dir={} -o on_stop=discard,noexec\n",
        dir.display(),
        state.path().display()
    );
    assert!(notes.contains(&args), "{notes}");
    assert!(notes.contains("cwd: /\n") && notes.contains("leads its session"), "{notes}");
    assert_eq!(std::fs::read_to_string(host.instance().log()).unwrap(), "a line for the log\n");
    stop(&host, &program);
}

#[test]
fn a_daemon_has_nothing_that_its_starter_had_open_nor_its_place_with_a_service_manager() {
    let host = Host::new();
    let notes = "test -e /proc/$$/fd/7 && echo 'has 7' >>\"$FAKE_NOTES\"\n\
                 echo \"notifies <$NOTIFY_SOCKET>\" >>\"$FAKE_NOTES\"";
    let program = host.install("tidefs", &format!("{notes}\n{GOOD}"));
    let script = "exec 7<\"$0\"; test -e /proc/$$/fd/7 && exec \"$0\" mount \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&program).arg(host.mount_dir());
    command.env(STATE_DIR_VARIABLE, host.state().path()).env("NOTIFY_SOCKET", "/of/the/starter");
    command.env("FAKE_LOCK", host.instance().lock()).env("FAKE_NOTES", host.path().join("notes"));
    let ended = Ended::from(command.output().unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
    let notes = host.notes();
    assert!(notes.contains("notifies <>\n") && !notes.contains("has 7"), "{notes}");
    stop(&host, &program);
}

#[test]
fn a_mount_waits_for_a_daemon_whose_mount_is_gone_and_names_it_when_it_takes_too_long() {
    let host = Host::new();
    // The script shows no mount, like a daemon that stops after umount(8).
    let program = host.install("tidefs", GOOD);
    assert_eq!(host.run_program(&program, "mount MNT").code, 0);
    let Daemon::Alive { pid: Some(pid) } = lock::probe(&host.instance().lock()).unwrap() else {
        panic!("the script holds its lock")
    };
    let too_long = host.run_program(&program, "mount MNT --timeout 1");
    assert!(too_long.code == 1 && too_long.stderr.contains("still stopping"), "{too_long:?}");
    assert!(too_long.stderr.contains(&format!("process {pid} ")), "{too_long:?}");
    let again = std::thread::scope(|scope| {
        let waits = scope.spawn(|| host.run_program(&program, "mount MNT"));
        std::thread::sleep(Duration::from_millis(300));
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGTERM).unwrap();
        waits.join().unwrap()
    });
    assert_eq!(again.code, 0, "{again:?}");
    stop(&host, &program);
}

#[test]
fn a_daemon_that_still_starts_keeps_its_log_when_a_further_mount_is_refused() {
    // As where a configuration file names the state directory, the command does not find the lock.
    let starts = r#"
        case "$*" in *capcity*) echo 'unknown option capcity' >&2; exit 2;; esac
        exec 9>>"$FAKE_NOTES.lock"; flock -n 9 || { echo 'in use' >&2; exit 3; }
        echo 'it starts' >&2
        i=0; while [ $i -lt 600 ] && [ ! -e "$FAKE_NOTES.end" ]; do sleep 0.05 9>&-; i=$((i+1)); done
        exit 1"#;
    let host = Host::new();
    let program = host.install("tidefs", starts);
    let log = host.instance().log();
    let inode = || std::fs::metadata(&log).unwrap().ino();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| host.run_program(&program, "mount MNT"));
        let deadline = Instant::now() + Duration::from_secs(30);
        while !std::fs::read_to_string(&log).unwrap_or_default().contains("it starts") {
            assert!(Instant::now() < deadline, "no daemon is started");
            std::thread::sleep(Duration::from_millis(10));
        }
        let before = inode();
        for (line, code, why) in [("mount MNT", 1, "in use"), ("mount MNT -o capcity=1", 2, "capcity")] {
            let further = host.run_program(&program, line);
            assert!(further.code == code && further.stderr.contains(why), "{further:?}");
            assert_eq!(inode(), before, "{line}");
            let refused = std::fs::read_to_string(refused_log(&log)).unwrap();
            assert!(refused.contains(why), "{refused}");
        }
        std::fs::write(host.path().join("notes.end"), "").unwrap();
        let first = first.join().unwrap();
        assert!(first.code == 1 && first.stderr.contains("it starts"), "{first:?}");
    });
}

#[test]
fn a_daemon_that_fails_is_quoted_with_its_exit_code() {
    let host = Host::new();
    let program = host.install("tidefs", "echo 'no /dev/fuse: load the module' >&2; exit 4");
    let ended = host.run_program(&program, "mount MNT");
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("exit status: 4") && ended.stderr.contains("no /dev/fuse"), "{ended:?}");
}

#[test]
fn a_configuration_file_that_the_environment_names_is_sought_from_where_the_command_runs() {
    let host = Host::new();
    let program = host.install("tidefs", "echo \"reads $TIDEFS_CONFIG\" >&2; exit 4");
    let mut command = std::process::Command::new(&program);
    command.arg("mount").arg(host.mount_dir()).arg("--state-dir").arg(host.state().path());
    command.current_dir(host.path()).env("FAKE_NOTES", "/dev/null").env("TIDEFS_CONFIG", "kv.toml");
    let stderr = String::from_utf8(command.output().unwrap().stderr).unwrap();
    let reads = format!("reads {}/kv.toml", host.path().display());
    assert!(stderr.contains(&reads), "{stderr}");
}

#[test]
fn a_wrong_option_is_a_wrong_command_line() {
    let host = Host::new();
    let program = host.install("tidefs", "echo 'unknown option capcity' >&2; exit 2");
    assert_eq!(host.run_program(&program, "mount MNT -o capcity=1").code, 2);
    let program = host.install("mount.tidefs", "echo 'unknown option capcity' >&2; exit 2");
    let ended = host.run_program(&program, "tidefs MNT -o rw,capcity=1");
    assert!(ended.code == 1 && ended.stderr.contains("capcity"), "mount(8) says 1: {ended:?}");
}

#[test]
fn a_mount_point_that_is_not_utf8_is_told_as_well_as_it_can_be() {
    let host = Host::new();
    let program = host.install("tidefs", GOOD);
    let dir = host.path().join(OsStr::from_bytes(b"m\xff"));
    std::fs::create_dir(&dir).unwrap();
    let run = |verb: &str| {
        let mut command = Command::new(&program);
        command.arg(verb).arg(&dir).arg("--json").env(STATE_DIR_VARIABLE, host.state().path());
        command.env("FAKE_LOCK", host.state().instance(&dir).lock());
        command.env("FAKE_NOTES", host.path().join("notes"));
        Ended::from(command.output().unwrap())
    };
    for verb in ["mount", "umount"] {
        let ended = run(verb);
        assert_eq!(ended.code, 0, "{verb}: {ended:?}");
        assert_eq!(ended.json()["mount_point"], &*dir.to_string_lossy(), "{verb}");
    }
}

#[test]
fn a_relative_state_directory_is_refused_by_the_daemon_and_not_made() {
    let host = Host::new();
    let program = host.install("tidefs", "echo 'this is not an absolute path' >&2; exit 2");
    let ended = host.run_program(&program, "mount MNT -o state_dir=relative");
    assert!(ended.code == 2 && ended.stderr.contains("not an absolute path"), "{ended:?}");
    assert!(!host.path().join("relative").exists());
}

#[test]
fn a_state_directory_that_no_daemon_can_be_told_is_refused_and_no_other_is_made() {
    let host = Host::new();
    let program = host.install("tidefs", GOOD);
    let mut command = Command::new(&program);
    command.arg("mount").arg(host.mount_dir()).arg("--state-dir").arg(OsStr::from_bytes(b"s\xff"));
    command.current_dir(host.path()).env("FAKE_LOCK", host.instance().lock());
    let ended = Ended::from(command.env("FAKE_NOTES", host.path().join("notes")).output().unwrap());
    assert!(ended.code == 2 && ended.stderr.contains("state directory is UTF-8"), "{ended:?}");
    assert!(ended.stderr.contains("next step: name it by another path"), "{ended:?}");
    assert_eq!(host.notes(), "", "a daemon was started");
    let mut made: Vec<_> =
        std::fs::read_dir(host.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    made.sort();
    assert_eq!(made, ["bin", "mnt"]);
}

#[test]
fn a_daemon_that_never_mounts_is_stopped() {
    let host = Host::new();
    let script = "trap 'echo stopped >>\"$FAKE_NOTES\"; exit 0' TERM\n echo 'recovering' >&2; \
                  i=0; while [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done";
    let program = host.install("tidefs", script);
    let ended = host.run_program(&program, "mount MNT --timeout 3");
    assert!(ended.code == 1 && ended.stderr.contains("within 3 s"), "{ended:?}");
    assert!(
        ended.stderr.contains("recovering") && host.notes().ends_with("stopped\n"),
        "{ended:?} {}",
        host.notes()
    );
}

#[test]
fn a_daemon_whose_mount_is_no_longer_waited_for_goes_on_until_umount_ends_it() {
    let starts = r#"
        exec 9>>"$FAKE_LOCK"; flock -n 9 || exit 1; echo $$ >"$FAKE_LOCK"
        trap 'echo stopped >>"$FAKE_NOTES"; exit 0' TERM
        i=0; while [ $i -lt 600 ]; do sleep 0.05 9>&-; i=$((i+1)); done"#;
    let host = Host::new();
    let program = host.install("tidefs", starts);
    let mut command = Command::new(&program);
    command.arg("mount").arg(host.mount_dir()).env(STATE_DIR_VARIABLE, host.state().path());
    command.env("FAKE_LOCK", host.instance().lock()).env("FAKE_NOTES", host.path().join("notes"));
    let mut mount = command.spawn().unwrap();
    let is_alive = || matches!(lock::probe(&host.instance().lock()), Ok(Daemon::Alive { pid: Some(_) }));
    let deadline = Instant::now() + Duration::from_secs(30);
    // To look at the lock itself would keep the script from it.
    while std::fs::read_to_string(host.instance().lock()).unwrap_or_default().is_empty() {
        assert!(Instant::now() < deadline, "no daemon is started");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill(Pid::from_raw(i32::try_from(mount.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert!(!mount.wait().unwrap().success());
    assert!(is_alive() && !host.notes().contains("stopped"), "{}", host.notes());
    stop(&host, &program);
    assert!(host.notes().ends_with("stopped\n"), "{}", host.notes());
}

#[test]
fn a_daemon_that_has_much_to_take_over_is_waited_for_while_its_log_grows() {
    let host = Host::new();
    let takes_over = "i=0; while [ $i -lt 15 ]; do echo \"object $i\" >&2; sleep 0.3; i=$((i+1)); done";
    let program = host.install("tidefs", &format!("{takes_over}\n{GOOD}"));
    let started = Instant::now();
    let ended = host.run_program(&program, "mount MNT --timeout 2");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(started.elapsed() > Duration::from_secs(4), "{:?}", started.elapsed());
    stop(&host, &program);
}

#[test]
fn a_daemon_that_says_that_it_starts_is_waited_for_though_its_log_is_silent() {
    let host = Host::new();
    let starts =
        "i=0; while [ $i -lt 10 ]; do echo \"tidefs: starting, $i s so far\"; sleep 0.3; i=$((i+1)); done";
    let program = host.install("tidefs", &format!("{starts}\n{GOOD}"));
    let started = Instant::now();
    let ended = host.run_program(&program, "mount MNT --timeout 2");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(started.elapsed() > Duration::from_millis(2500), "{:?}", started.elapsed());
    stop(&host, &program);
}

#[test]
fn the_mount_helper_speaks_as_mount_8_expects() {
    let host = Host::new();
    let program = host.install("mount.tidefs", GOOD);
    let ended = host.run_program(&program, "tidefs MNT -s -n -o rw,nofail,capacity=1GiB");
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (0, "", ""));
    assert!(host.notes().contains("-o rw,nofail,capacity=1GiB\n"), "{}", host.notes());
    assert_eq!(host.run_program(&program, "tidefs").code, 1, "wrong invocation");
    assert_eq!(host.run_program(&program, "--help").code, 0);
    stop(&host, std::path::Path::new(env!("CARGO_BIN_EXE_tidefs")));
}

#[test]
fn a_fake_mount_only_checks_the_options() {
    let host = Host::new();
    let program = host.install("mount.tidefs", "case \"$*\" in *--check-config*) exit 0;; esac; exit 4");
    assert_eq!(host.run_program(&program, "tidefs MNT -f -o capacity=1GiB").code, 0);
    let program = host.install("mount.tidefs", "echo bad >&2; exit 2");
    let ended = host.run_program(&program, "tidefs MNT -f -o capcity=1GiB");
    assert!(ended.code == 1 && ended.stderr.contains("bad"), "{ended:?}");
}

#[test]
fn without_tidefsd_the_message_says_where_it_was_sought() {
    let host = Host::new();
    let program = host.install("tidefs", "");
    std::fs::remove_file(host.path().join("bin/tidefsd")).unwrap();
    let output = std::process::Command::new(&program)
        .args(["mount", "/nowhere", "--state-dir"])
        .arg(host.state().path())
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("bin/tidefsd") && stderr.contains("PATH"), "{stderr}");
}
