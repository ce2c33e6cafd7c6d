//! `tidefs umount`, with a script as the daemon.

use crate::host::Host;
use crate::mounting::GOOD;

#[test]
fn umount_stops_the_daemon_and_waits_for_its_end() {
    let host = Host::new();
    let program = host.install("tidefs", GOOD);
    assert_eq!(host.run_program(&program, "mount MNT").code, 0);
    let ended = host.run_program(&program, "umount MNT --json");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!((&ended.json()["daemon"], &ended.json()["kept"]), (&"stopped".into(), &false.into()));
    assert!(host.notes().ends_with("stopped\n"), "it had ended before umount returned: {}", host.notes());
    assert!(host.instance().lock().exists(), "without --discard the state stays");
    let again = host.run_program(&program, "umount MNT");
    assert_eq!(again.code, 3, "{again:?}");
}

#[test]
fn umount_discard_frees_the_state_with_and_without_a_daemon() {
    let host = Host::new();
    let program = host.install("tidefs", GOOD);
    for daemon in ["stopped", "none"] {
        assert_eq!(host.run_program(&program, "mount MNT").code, 0);
        if daemon == "none" {
            assert_eq!(host.run_program(&program, "umount MNT").code, 0);
        }
        std::fs::create_dir(host.instance().memory()).unwrap();
        std::fs::write(host.instance().memory().join("segment"), "bytes").unwrap();
        if daemon == "none" {
            let kept = host.run_program(&program, "umount MNT");
            assert!(kept.code == 3 && kept.stderr.contains("--discard frees"), "{kept:?}");
        }
        let ended = host.run_program(&program, "umount MNT --discard --json");
        assert_eq!((ended.code, &ended.json()["daemon"]), (0, &daemon.into()), "{ended:?}");
        assert_eq!(ended.json()["kept"], false, "{ended:?}");
        assert!(!host.instance().dir().exists());
    }
}

#[test]
fn umount_tells_programs_and_people_that_objects_stay_in_memory() {
    let host = Host::new();
    let program = host.install("tidefs", GOOD);
    for option in [" --json", ""] {
        assert_eq!(host.run_program(&program, "mount MNT").code, 0);
        std::fs::create_dir_all(host.instance().memory()).unwrap();
        let ended = host.run_program(&program, &format!("umount MNT{option}"));
        assert_eq!(ended.code, 0, "{ended:?}");
        if option.is_empty() {
            assert!(ended.stdout.contains("its objects stay in memory"), "{ended:?}");
        } else {
            assert_eq!((&ended.json()["kept"], &ended.json()["discarded"]), (&true.into(), &false.into()));
        }
    }
}

#[test]
fn umount_discard_keeps_what_later_starts_need_beside_objects() {
    let host = Host::new();
    let program = host.install("tidefs", GOOD);
    let instance = host.instance();
    let needed = [
        "coordinator.json",
        "scratch-mounts.json",
        "ssd-changes.json",
        "ssd-days.json",
        "ssd-epochs.json",
        "ssd-mounts.json",
        "ssd-removals",
    ];
    // Twice, so that there is a log of an earlier start.
    for daemon in ["stopped", "none"] {
        assert_eq!(host.run_program(&program, "mount MNT").code, 0);
        if daemon == "none" {
            assert_eq!(host.run_program(&program, "umount MNT").code, 0);
        }
        std::fs::create_dir(instance.memory()).unwrap();
        std::fs::write(instance.memory().join("segment"), "bytes").unwrap();
        for name in needed {
            std::fs::write(instance.dir().join(name), name).unwrap();
        }
        let ended = host.run_program(&program, "umount MNT --discard --json");
        assert_eq!((ended.code, &ended.json()["daemon"]), (0, &daemon.into()), "{ended:?}");
        let left = std::fs::read_dir(instance.dir()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, needed);
        for name in needed {
            assert_eq!(std::fs::read_to_string(instance.dir().join(name)).unwrap(), name);
        }
    }
}

#[test]
fn a_daemon_that_does_not_stop_is_named_with_what_to_do() {
    let host = Host::new();
    let stubborn = r#"
        exec 9>>"$FAKE_LOCK"; flock -n 9 || exit 1; echo $$ >"$FAKE_LOCK"
        trap '' TERM
        echo "tidefs: mounted on $1"; exec 1>&-
        i=0; while [ $i -lt 600 ] && [ ! -e "$FAKE_NOTES.over" ]; do sleep 0.05 9>&-; i=$((i+1)); done"#;
    let program = host.install("tidefs", stubborn);
    assert_eq!(host.run_program(&program, "mount MNT").code, 0);
    let ended = host.run_program(&program, "umount MNT --timeout 1");
    assert!(ended.code == 1 && ended.stderr.contains("did not stop within 1 s"), "{ended:?}");
    assert!(ended.stderr.contains("kill -9"), "{ended:?}");
    let over = host.path().join("notes.over");
    let end = std::thread::spawn(move || {
        // While it is waited for: one that has ended is no mount.
        std::thread::sleep(std::time::Duration::from_millis(500));
        std::fs::write(over, "").unwrap();
    });
    let ended = host.run_program(&program, "umount MNT --timeout 20");
    assert_eq!(ended.code, 0, "it ends by itself in the end: {ended:?}");
    end.join().unwrap();
}

#[test]
fn what_is_no_mount_is_left_alone() {
    let host = Host::new();
    let ended = host.run("umount MNT");
    assert!(ended.code == 3 && ended.stderr.contains("is not a tidefs mount"), "{ended:?}");
    assert_eq!(host.run("umount MNT --discard").code, 3);
    assert!(host.mount_dir().exists());
}
