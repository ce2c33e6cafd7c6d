//! `packaging/install.sh`: what it puts where, what `--uninstall` takes away, and that mount(8) then knows the type.
//!
//! It installs the programs that were built for the tests, below temporary folders; over `/sbin` and `/usr/local` such folders
//! are mounted in a mount namespace of the test.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::common::program::{self, Finished};
use super::mount_and_umount::{USE_AND_UNMOUNT, Unmounted};
use super::tool::{argument, binary};

/// Longest time for a run of the script: it copies the programs, which tests have with their debug information.
const SCRIPT: Duration = Duration::from_secs(120);

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/install.sh")
}

/// The folder of the built programs.
fn built() -> PathBuf {
    binary().parent().expect("it lies in a folder").to_owned()
}

/// Runs the script for a tree of its own.
fn install(tree: &Path, arguments: &[&str]) -> Finished {
    let mut command = Command::new(script());
    command.args(["--destdir", argument(tree), "--prefix", "/opt/kv"]).args(arguments);
    program::run(&mut command, SCRIPT)
}

/// All below a directory but directories, as paths from there.
fn found_below(top: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a readable directory") {
            let entry = entry.expect("a readable entry");
            if entry.file_type().expect("a type").is_dir() {
                folders.push(entry.path());
            } else {
                let path = entry.path();
                found.insert(path.strip_prefix(top).expect("it lies below").to_owned());
            }
        }
    }
    found
}

#[test]
fn what_is_installed_stands_where_it_is_looked_for_and_is_removed_again() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let at = |path: &str| tree.path().join(path);
    let read = |path: &str| fs::read_to_string(at(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let foreign = "opt/kv/share/man/man1/tidefs-of-somebody-else.1";
    fs::create_dir_all(at(foreign).parent().expect("it has one")).expect("a folder");
    fs::write(at(foreign), "theirs").expect("a file");

    let from = built();
    let installed = install(tree.path(), &["--from", argument(&from)]).success("install.sh");
    for program in ["tidefsd", "tidefs"] {
        let there = fs::metadata(at("opt/kv/bin").join(program)).expect(program);
        assert_eq!(there.permissions().mode() & 0o7777, 0o755, "{program}");
        assert_eq!(there.len(), fs::metadata(from.join(program)).expect("it was built").len(), "{program}");
    }
    let unit = read("etc/systemd/system/tidefs@.service");
    let starts: Vec<&str> = unit.lines().filter(|line| line.starts_with("ExecStart=")).collect();
    assert_eq!(starts, ["ExecStart=/opt/kv/bin/tidefsd %f $TIDEFSD_OPTIONS"]);
    assert!(unit.lines().any(|line| line == "TimeoutStartSec=infinity"), "a start that reads much is ended");
    for (page, word) in
        [("man1/tidefs.1", "tidefs"), ("man8/tidefsd.8", "tidefsd"), ("man8/mount.tidefs.8", "fstab")]
    {
        assert!(read(&format!("opt/kv/share/man/{page}")).contains(word), "{page}");
    }
    for completions in [
        "bash-completion/completions/tidefs",
        "zsh/site-functions/_tidefs",
        "fish/vendor_completions.d/tidefs.fish",
    ] {
        assert!(read(&format!("opt/kv/share/{completions}")).contains("umount"), "{completions}");
    }
    let mut found = found_below(tree.path());
    // Whichever this system has as a folder.
    let helper = found.iter().find(|path| path.ends_with("sbin/mount.tidefs")).expect("the helper");
    let meant = fs::canonicalize(tree.path().join(helper)).expect("the link leads somewhere");
    assert_eq!(meant, fs::canonicalize(at("opt/kv/bin/tidefs")).expect("it is there"));
    assert!(found.remove(Path::new(foreign)));
    for path in &found {
        assert!(installed.output.contains(argument(&tree.path().join(path))), "{path:?} is not told of");
    }

    // An earlier version had a file more.
    let (list, earlier) = ("opt/kv/share/tidefs/installed", "opt/kv/share/earlier");
    fs::write(at(earlier), "").expect("a file");
    fs::write(at(list), format!("{}/{earlier}\n", read(list))).expect("the list");
    install(tree.path(), &["--from", argument(&from)]).success("install.sh once more");
    let theirs = BTreeSet::from([PathBuf::from(foreign)]);
    assert_eq!(found_below(tree.path()), &found | &theirs);

    install(tree.path(), &["--uninstall"]).success("install.sh --uninstall");
    assert_eq!(found_below(tree.path()), theirs);
    let again = install(tree.path(), &["--uninstall"]);
    assert!(!again.status.success() && again.errors.contains(list), "{again:?}");
}

#[test]
fn an_installation_that_breaks_off_is_removed_again() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new("sh");
    // It ends where it tells of its first file, which nobody can read.
    command.args(["-c", "exec \"$0\" --destdir \"$1\" --prefix /opt/kv --from \"$2\" >/dev/full"]);
    command.args([script().as_path(), tree.path(), built().as_path()]);
    let broken = program::run(&mut command, SCRIPT);
    assert!(!broken.status.success(), "{broken:?}");
    assert!(tree.path().join("opt/kv/bin/tidefsd").exists(), "{broken:?}");
    install(tree.path(), &["--uninstall"]).success("install.sh --uninstall");
    assert_eq!(found_below(tree.path()), BTreeSet::new());
}

#[test]
fn what_cannot_be_installed_is_refused_with_what_to_do() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let nothing = tree.path().join("nothing");
    let unbuilt = install(tree.path(), &["--from", argument(&nothing)]);
    assert!(!unbuilt.status.success() && unbuilt.errors.contains("cargo build --release"), "{unbuilt:?}");
    // To root, too, this says no.
    let mut command = Command::new("unshare");
    let in_namespace = "mount -t tmpfs -o ro none \"$1\"; exec \"$2\" --destdir \"$1\" --from \"$3\"";
    command.args(["--mount", "sh", "-euc", in_namespace, "sh"]);
    command.args([tree.path(), script().as_path(), built().as_path()]);
    let refused = program::run(&mut command, SCRIPT);
    assert!(!refused.status.success() && refused.errors.contains("as root (sudo)"), "{refused:?}");
    assert_eq!(refused.output, "", "nothing is begun");
    for (arguments, word) in [(["--prefix", "kv"], "`kv`"), (["--verbose", "1"], "--verbose")] {
        let wrong = install(tree.path(), &arguments);
        assert!(!wrong.status.success() && wrong.errors.contains(word), "{wrong:?}");
    }
    assert_eq!(found_below(tree.path()), BTreeSet::new());
}

#[test]
fn mount_8_knows_the_type_once_it_is_installed_and_no_more_when_it_is_removed() {
    let place = Unmounted::new();
    let [helpers, local] = ["sbin", "local"].map(|name| place.base.path().join(name));
    for folder in [&helpers, &local] {
        fs::create_dir(folder).expect("a directory");
    }
    let in_namespace = format!(
        r#"mount --bind "$HELPERS" "$(readlink -f /sbin)"
mount --bind "$LOCAL" /usr/local
"$INSTALL" --from "$FROM"
mount -t tidefs tidefs "$POINT" -o "$OPTIONS"
test "$(readlink "/proc/$(cat "$STATE"/*/lock)/exe")" = /usr/local/bin/tidefsd
{USE_AND_UNMOUNT}
"$INSTALL" --uninstall
test -z "$(find /sbin/ /usr/local ! -type d)"
if mount -t tidefs tidefs "$POINT" -o "$OPTIONS"; then exit 9; fi
"#
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-euc", &in_namespace]).env("PATH", "/usr/bin:/bin");
    command.env("HELPERS", &helpers).env("LOCAL", &local).env("INSTALL", script()).env("FROM", built());
    command.env("POINT", &place.point).env("STATE", &place.state).env("TIDEFS", "/usr/local/bin/tidefs");
    command.env("OPTIONS", place.options(&format!(",state_dir={}", place.state.display())));
    let finished = program::run(&mut command, SCRIPT).success("mount -t tidefs of what is installed");
    assert!(finished.errors.contains("unknown filesystem type"), "{finished:?}");
}
