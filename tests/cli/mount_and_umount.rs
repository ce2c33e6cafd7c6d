//! `tidefs mount`, `tidefs umount`, the helper `mount.tidefs`, mount(8) and a line of fstab.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidefs_control_api::instance::StateDir;
use tidefs_control_api::lock::{self, Daemon, InstanceLock};

use super::common::Mount;
use super::common::faulty_disk::FaultyDisk;
use super::common::mount::mounts_below;
use super::common::pattern::{assert_same, object};
use super::common::place::Place;
use super::common::program::{self, Finished};
use super::common::wait::{HANG, until};
use super::tool::{EXIT_NO_DAEMON, argument, binary, fails, parse};

/// Longest time for a command.
const COMMAND: Duration = Duration::from_secs(60);

/// A mount point that no daemon serves yet; what is left on it at the end is taken away.
pub(super) struct Unmounted(Place);

impl std::ops::Deref for Unmounted {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.0
    }
}

impl Unmounted {
    pub(super) fn new() -> Self {
        Self(Place::new())
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new(binary());
        command.args(arguments).arg("--state-dir").arg(&self.state);
        program::run(&mut command, COMMAND)
    }

    /// Options of a small cache that keeps all it makes in this place.
    pub(super) fn options(&self, more: &str) -> String {
        format!("capacity=64MiB,scratch.dir={}/scratch{more}", self.base.path().display())
    }

    /// Kills the daemon of a test that failed; its lock holds its process id.
    fn end_daemons(&self) {
        for instance in fs::read_dir(&self.state).into_iter().flatten().flatten() {
            let pid = fs::read_to_string(instance.path().join("lock")).unwrap_or_default();
            let Ok(pid) = pid.trim().parse::<i32>() else { continue };
            if fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "tidefsd") {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }

    /// Kills the daemon that serves, as a crash does.
    fn kill_daemon(&self) {
        let status = self.run(&["status", "--json"]).success("tidefs status");
        let pid = parse(&status.output)["pid"].as_i64().expect("a pid");
        let pid = Pid::from_raw(i32::try_from(pid).expect("a pid is an i32"));
        kill(pid, Signal::SIGKILL).expect("kill -9");
        let lock = StateDir::new(&self.state).instance(&self.point).lock();
        assert!(until(HANG, || lock::probe(&lock).is_ok_and(|daemon| daemon == Daemon::Gone)), "it is gone");
    }

    fn is_mounted(&self) -> bool {
        mounts_below(&self.point).contains(&self.point)
    }

    fn works(&self, name: &str) {
        fs::create_dir_all(self.point.join("ns")).expect("a namespace");
        let path = self.point.join("ns").join(name);
        fs::write(&path, object(1, 100_000)).expect("an object");
        assert_same(&fs::read(&path).expect("the object"), &object(1, 100_000), "a mounted cache");
    }
}

impl Drop for Unmounted {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = self.run(&["umount", argument(&self.point), "--discard"]);
        }
        self.end_daemons();
        for point in mounts_below(self.base.path()).iter().rev() {
            let _ = umount2(point.as_path(), MntFlags::MNT_DETACH);
        }
    }
}

#[test]
fn a_mount_names_the_disk_that_is_missing_and_what_to_do() {
    let place = Unmounted::new();
    let (disk, there) = (place.base.path().join("no-disk"), place.base.path().join("disk"));
    fs::create_dir(&there).expect("a directory");
    let dirs = format!(",ssd.dirs={}:{},ssd.capacity=64MiB,ssd.zone=8MiB", there.display(), disk.display());
    let options = place.options(&format!("{dirs},state_dir={}", place.state.display()));
    let helper = helper_folder(&place).join("mount.tidefs");
    let mut by_helper = Command::new(helper);
    by_helper.args(["tidefs", argument(&place.point), "-o", &options]);
    let mut by_command = Command::new(binary());
    by_command.args(["mount", argument(&place.point), "-o", &options]);
    for mut mount in [by_helper, by_command] {
        let mounted = program::run(&mut mount, COMMAND).success("a mount");
        let warned = &mounted.errors;
        assert!(
            warned.contains(argument(&disk)) && warned.contains("mount or attach it, or make"),
            "{mount:?}: {warned}"
        );
        assert!(!warned.contains(&format!("{} ", there.display())), "{warned}");
        place.works("a");
        place.run(&["umount", argument(&place.point)]).success("tidefs umount");
    }
}

#[test]
fn mount_returns_when_the_mount_answers_and_umount_when_it_is_gone() {
    let place = Unmounted::new();
    let mount = ["mount", argument(&place.point), "-o", &place.options("")];
    place.run(&mount).success("tidefs mount");
    assert!(place.is_mounted());
    place.works("kept");
    place.run(&["umount", argument(&place.point)]).success("tidefs umount");
    assert!(!place.is_mounted());
    assert_eq!(fs::read_dir(&place.point).expect("a plain directory").count(), 0);
    // the objects stay for the next mount
    place.run(&mount).success("tidefs mount again");
    assert_same(&fs::read(place.point.join("ns/kept")).expect("it was kept"), &object(1, 100_000), "kept");
    place.run(&["umount", argument(&place.point), "--discard"]).success("tidefs umount --discard");
    assert_eq!(
        mounts_below(place.base.path()),
        Vec::<PathBuf>::new(),
        "nothing is mounted, no memory is held"
    );
}

#[test]
fn what_frees_the_memory_that_a_stop_keeps_can_be_typed_as_its_log_has_it() {
    let place = Unmounted::new();
    let point = place.base.path().join("it's");
    fs::create_dir(&point).expect("a mount point");
    place.run(&["mount", argument(&point), "-o", &place.options("")]).success("tidefs mount");
    fs::create_dir(point.join("ns")).expect("a namespace");
    fs::write(point.join("ns/kept"), object(1, 100_000)).expect("an object");
    let unmounted = place.run(&["umount", argument(&point), "--json"]).success("tidefs umount");
    assert_eq!(parse(&unmounted.output)["kept"], true, "{unmounted:?}");
    let log = fs::read_to_string(StateDir::new(&place.state).instance(&point).log()).expect("its log");
    let command = log.split("free them with `").nth(1).and_then(|rest| rest.split('`').next());
    let command = command.expect("a next step").replacen("tidefs", argument(&binary()), 1);
    program::run(Command::new("sh").args(["-c", &command]), COMMAND).success(&command);
    assert_eq!(mounts_below(place.base.path()), Vec::<PathBuf>::new(), "{command}");
}

#[test]
fn umount_frees_the_memory_by_whatever_path_its_state_directory_is_named() {
    let place = Unmounted::new();
    let link = place.base.path().join("link");
    std::os::unix::fs::symlink(&place.state, &link).expect("a link");
    for state in [argument(&link), "state", "./link"] {
        place.run(&["mount", argument(&place.point), "-o", &place.options("")]).success("tidefs mount");
        place.works("a");
        let mut command = Command::new(binary());
        command.args(["umount", argument(&place.point), "--discard", "--state-dir", state]);
        program::run(command.current_dir(place.base.path()), COMMAND).success(state);
        assert_eq!(mounts_below(place.base.path()), Vec::<PathBuf>::new(), "{state}");
    }
}

#[test]
fn umount_takes_away_the_mount_of_a_dead_daemon() {
    let place = Unmounted::new();
    place.run(&["mount", argument(&place.point), "-o", &place.options("")]).success("tidefs mount");
    place.works("a");
    place.kill_daemon();
    place.run(&["umount", argument(&place.point)]).success("tidefs umount of a dead mount");
    assert!(!place.is_mounted());
}

#[test]
fn what_a_daemon_of_another_state_directory_serves_is_neither_taken_away_nor_replaced() {
    let place = Unmounted::new();
    place.run(&["mount", argument(&place.point), "-o", &place.options("")]).success("tidefs mount");
    place.works("served");
    let other = place.base.path().join("other-state");
    let instance = StateDir::new(&other).instance(&place.point);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        program::run(command.args(arguments).arg("--state-dir").arg(&other), COMMAND)
    };
    let mount = ["mount", argument(&place.point), "-o", &place.options("")];
    // It leaves no record by which the next start would take the mount for its own.
    for attempt in 0..2 {
        let refused = run(&mount);
        assert!(refused.errors.contains("of another state directory"), "{attempt}: {refused:?}");
        assert_eq!(lock::probe(&instance.lock()).expect("the state"), Daemon::NoRecord, "{attempt}");
    }
    // As a start leaves that failed when nothing was mounted yet.
    drop(InstanceLock::acquire(&instance.lock()).expect("a lock"));
    for arguments in
        [&mount[..], &["umount", mount[1]], &["umount", mount[1], "--discard"], &["status", mount[1]]]
    {
        let refused = run(arguments);
        assert!(!refused.status.success(), "{arguments:?}: {refused:?}");
        assert!(refused.errors.contains("a daemon of another state directory"), "{arguments:?}: {refused:?}");
    }
    assert!(place.is_mounted());
    place.works("still");
    place.run(&["umount", argument(&place.point)]).success("tidefs umount");
}

#[test]
fn umount_signals_no_process_that_has_the_number_of_a_daemon_in_a_container() {
    let mut mount = Mount::prepare(&[]);
    mount.start_daemon_apart();
    fails(&mount, &["umount", argument(mount.path())], 1, "another pid namespace");
    fs::write(mount.namespace("ns").join("a"), object(1, 100_000)).expect("it serves on");
}

#[test]
fn umount_signals_no_such_process_where_that_daemon_does_not_listen_yet_or_any_more() {
    let mut mount = Mount::prepare(&[]);
    mount.start_daemon_apart();
    let instance = mount.instance_dir();
    let (socket, away) = (instance.join("control.sock"), instance.join("control.away"));
    fs::rename(&socket, &away).expect("a socket");
    let mut stranger = Command::new("sleep").arg("600").spawn().expect("sleep is installed");
    fs::write(instance.join("lock"), format!("{}\n", stranger.id())).expect("a number of its container");
    fails(&mount, &["umount", argument(mount.path())], 1, "another pid namespace");
    let ended = stranger.try_wait().expect("a child can be waited for");
    let _ = stranger.kill();
    let _ = stranger.wait();
    assert_eq!(ended, None, "the other process goes on");
    fs::rename(&away, &socket).expect("a socket");
    fs::write(mount.namespace("ns").join("a"), object(1, 100_000)).expect("it serves on");
}

#[test]
fn umount_in_the_container_of_a_daemon_stops_it_though_it_is_the_first_process_there() {
    let mut mount = Mount::prepare(&[]);
    mount.start_daemon_apart();
    // As by `docker exec`: the numbers of processes are those of the container. The end of that is the command's, too.
    let script =
        "mount -t proc proc /proc && umount -i -l \"$1\" && exec \"$0\" umount \"$1\" --state-dir \"$2\"";
    let mut command = Command::new("nsenter");
    command.args(["--target", &mount.pid().to_string(), "--pid", "unshare", "--mount", "sh", "-c", script]);
    command.arg(binary()).arg(mount.path()).arg(mount.state_dir());
    let finished = program::run(&mut command, COMMAND);
    // How the command ended says nothing: the end of the container is its own.
    assert!(finished.errors.is_empty(), "{finished:?}");
    assert!(mount.wait_for_end().success(), "{finished:?}");
}

#[test]
fn mount_tells_why_it_did_not_work() {
    let place = Unmounted::new();
    let missing = place.base.path().join("missing");
    let finished = place.run(&["mount", argument(&missing)]);
    assert!(!finished.status.success() && finished.errors.contains("missing"), "{finished:?}");
    let finished = place.run(&["mount", argument(&place.point), "-o", "capcity=64MiB"]);
    assert!(!finished.status.success(), "{finished:?}");
    assert!(finished.errors.contains("memory.capacity"), "the daemon's reason is passed on: {finished:?}");
    assert!(!place.is_mounted());
    let finished = place.run(&["umount", argument(&place.point)]);
    assert_eq!(finished.status.code(), Some(EXIT_NO_DAEMON), "{finished:?}");
}

/// A folder that holds `mount.tidefs`, which is the command line tool by another name.
fn helper_folder(place: &Unmounted) -> PathBuf {
    let folder = place.base.path().join("sbin");
    fs::create_dir(&folder).expect("a directory");
    std::os::unix::fs::symlink(binary(), folder.join("mount.tidefs")).expect("a link");
    folder
}

#[test]
fn the_helper_mounts_in_the_background() {
    let place = Unmounted::new();
    let helper = helper_folder(&place).join("mount.tidefs");
    let state = format!(",state_dir={}", place.state.display());
    let mut command = Command::new(&helper);
    // as mount(8) calls it: mount.TYPE SOURCE DIR [-sfnv] -o OPTIONS
    command.args(["tidefs", argument(&place.point), "-o", &format!("rw,{}", place.options(&state))]);
    program::run(&mut command, COMMAND).success("mount.tidefs");
    assert!(place.is_mounted());
    place.works("a");
    let mut again = Command::new(&helper);
    again.args(["tidefs", argument(&place.point), "-o", &format!("rw,remount,{}", place.options(&state))]);
    let refused = program::run(&mut again, COMMAND);
    assert!(!refused.status.success() && refused.errors.contains("unmount and mount again"), "{refused:?}");
    place.run(&["umount", argument(&place.point), "--discard"]).success("tidefs umount");
    let mut wrong = Command::new(&helper);
    wrong.args(["tidefs", argument(&place.point), "-o", &format!("rw,capcity=1GiB{state}")]);
    let finished = program::run(&mut wrong, COMMAND);
    assert!(!finished.status.success() && finished.errors.contains("memory.capacity"), "{finished:?}");
    assert!(!place.is_mounted());
}

#[test]
fn a_mount_right_after_umount_8_waits_for_the_end_of_the_daemon_before() {
    let place = Unmounted::new();
    let helper = helper_folder(&place).join("mount.tidefs");
    let options = place.options(&format!(",state_dir={}", place.state.display()));
    let mount = || {
        program::run(Command::new(&helper).args(["tidefs", argument(&place.point), "-o", &options]), COMMAND)
    };
    mount().success("mount.tidefs");
    place.works("kept");
    assert!(until(HANG, || umount2(place.point.as_path(), MntFlags::empty()).is_ok()), "nobody uses it");
    mount().success("mount.tidefs at once after an unmount");
    assert_same(&fs::read(place.point.join("ns/kept")).expect("kept"), &object(1, 100_000), "kept");
}

#[test]
fn until_a_daemon_of_the_helper_mounts_programs_meet_the_dead_mount_and_after_a_wrong_option_too() {
    let disk = FaultyDisk::new();
    let place = Unmounted::new();
    let helper = helper_folder(&place).join("mount.tidefs");
    let (state, dir) = (place.state.display(), disk.path().display());
    let options = place.options(&format!(
        ",state_dir={state},ssd.dirs={dir},ssd.io_uring=false,ssd.capacity=256MiB,ssd.zone=8MiB"
    ));
    let mount = |options: &str| {
        program::run(Command::new(&helper).args(["tidefs", argument(&place.point), "-o", options]), COMMAND)
    };
    mount(&options).success("mount.tidefs");
    place.works("kept");
    place.kill_daemon();
    let written = || fs::create_dir_all(place.point.join("ns/lost")).expect_err("nobody serves it");
    let wrong = mount(&format!("{options},capcity=1GiB"));
    assert!(!wrong.status.success() && wrong.errors.contains("memory.capacity"), "{wrong:?}");
    assert_eq!(written().raw_os_error(), Some(libc::ENOTCONN), "after a wrong option");
    disk.set(|faults| faults.holds_reads = true);
    std::thread::scope(|scope| {
        let met = scope.spawn(|| {
            let waits = until(HANG, || disk.held() > 0);
            let error = waits.then(written);
            disk.set(|faults| faults.holds_reads = false);
            error
        });
        let mounted = mount(&options).success("mount.tidefs on the dead mount");
        assert!(mounted.errors.contains("replaced the mount of a dead daemon"), "{mounted:?}");
        let error = met.join().expect("it tries").expect("the start reads its disk");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "while it starts");
    });
    assert_same(&fs::read(place.point.join("ns/kept")).expect("kept"), &object(1, 100_000), "kept");
    assert!(!place.point.join("ns/lost").exists());
}

/// Runs a script as root of a mount namespace in which /sbin holds the helper and nothing else.
///
/// `$POINT`, `$OPTIONS`, `$STATE`, `$TIDEFS` are set; the script ends its mount itself.
fn in_a_namespace_with_the_helper(place: &Unmounted, script: &str) -> Finished {
    let folder = helper_folder(place);
    let tools = format!("mount --bind {} \"$(readlink -f /sbin)\"\n{script}", folder.display());
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-euc", &tools]);
    command.env("POINT", &place.point).env("STATE", &place.state).env("TIDEFS", binary());
    command.env("OPTIONS", place.options(&format!(",state_dir={}", place.state.display())));
    command.env("PATH", "/usr/bin:/bin");
    program::run(&mut command, COMMAND)
}

/// Uses a mount on `$POINT` of a fresh namespace, and ends it.
pub(super) const USE_AND_UNMOUNT: &str = r#"
test "$(findmnt -n -o FSTYPE "$POINT")" = fuse.tidefs
mkdir "$POINT/ns"
echo content > "$POINT/ns/file"
test "$(cat "$POINT/ns/file")" = content
"$TIDEFS" umount "$POINT" --discard --state-dir "$STATE"
! findmnt -n "$POINT"
"#;

#[test]
fn mount_8_finds_the_helper_by_the_type() {
    let place = Unmounted::new();
    let script = format!("mount -t tidefs tidefs \"$POINT\" -o \"$OPTIONS\"\n{USE_AND_UNMOUNT}");
    in_a_namespace_with_the_helper(&place, &script).success("mount -t tidefs");
}

#[test]
fn a_line_of_fstab_that_is_mounted_is_not_mounted_again_whatever_it_names_as_its_device() {
    let place = Unmounted::new();
    let script = format!(
        "fstab=\"$STATE/../fstab\"\necho \"kv-0 $POINT tidefs defaults,$OPTIONS 0 0\" > \"$fstab\"\n\
         mount -T \"$fstab\" -a\ntest \"$(findmnt -n -o SOURCE \"$POINT\")\" = kv-0\nmount -T \"$fstab\" -a\n{USE_AND_UNMOUNT}"
    );
    in_a_namespace_with_the_helper(&place, &script).success("`mount -a`, twice");
}

#[test]
fn a_line_of_fstab_mounts() {
    let place = Unmounted::new();
    let script = format!(
        "fstab=\"$STATE/../fstab\"\necho \"tidefs $POINT tidefs defaults,nofail,$OPTIONS 0 0\" > \"$fstab\"\n\
         mount -T \"$fstab\" \"$POINT\"\n{USE_AND_UNMOUNT}"
    );
    in_a_namespace_with_the_helper(&place, &script).success("a mount from fstab");
}
