//! Which daemon and which key a path means, on a host of two mounts.

use super::*;
use tidefs_control_api::lock::InstanceLock;

/// A host with tidefs on the folders `a` and `b` of a temporary directory; `lives` have a daemon.
struct Host {
    folder: tempfile::TempDir,
    locks: Vec<InstanceLock>,
}

impl Host {
    fn new(lives: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut host = Self { folder, locks: Vec::new() };
        for name in lives {
            let lock = host.lock(name);
            host.locks.push(lock);
        }
        host
    }

    fn root(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    fn lock(&self, name: &str) -> InstanceLock {
        let instance = StateDir::new(self.root().join("state")).instance(&self.root().join(name));
        std::fs::create_dir_all(instance.dir()).unwrap();
        InstanceLock::acquire(&instance.lock()).unwrap()
    }

    fn locator(&self, mount: Option<&str>) -> Locator {
        let root = self.root();
        let line = |name| format!("40 27 0:50 / {}/{name} rw - fuse.tidefs tidefs rw\n", root.display());
        Locator {
            state: StateDir::new(root.join("state")),
            table: MountTable::parse((line("a") + &line("b")).as_bytes()),
            is_state_named: false,
            mount: mount.map(|name| root.join(name)),
            caller: 0,
            state_dir_option: String::new(),
        }
    }

    fn find(&self, mount: Option<&str>, path: &str) -> Result<(Instance, String), CliError> {
        let path = if path.starts_with('/') {
            self.root().join(path.trim_start_matches('/'))
        } else {
            PathBuf::from(path)
        };
        let (instance, key) = self.locator(mount).instance_of(&path)?;
        Ok((instance, key.as_str().to_owned()))
    }

    fn instance(&self, name: &str) -> Instance {
        StateDir::new(self.root().join("state")).instance(&self.root().join(name))
    }
}

#[test]
fn a_path_finds_the_daemon_of_its_mount() {
    let host = Host::new(&["a", "b"]);
    assert_eq!(host.find(None, "/b/ns/./key").unwrap(), (host.instance("b"), "ns/key".to_owned()));
    assert_eq!(host.find(None, "/a").unwrap(), (host.instance("a"), String::new()));
    assert_eq!(host.find(None, "/elsewhere/x").unwrap_err().exit, Exit::NoDaemon);
}

#[test]
fn a_relative_path_outside_of_mounts_is_a_key_of_the_chosen_or_only_daemon() {
    let host = Host::new(&["a", "b"]);
    assert_eq!(host.find(Some("a"), "ns/key").unwrap(), (host.instance("a"), "ns/key".to_owned()));
    let error = host.find(None, "ns/key").unwrap_err();
    assert_eq!(error.exit, Exit::Usage);
    assert!(error.message.contains("/a") && error.message.contains("/b"), "{error}");
    let host = Host::new(&["b"]);
    assert_eq!(host.find(None, "./ns/key").unwrap(), (host.instance("b"), "ns/key".to_owned()));
    assert_eq!(host.find(None, "../x").unwrap_err().exit, Exit::Usage);
}

#[test]
fn a_path_outside_of_the_chosen_mount_is_a_wrong_command_line() {
    let host = Host::new(&["a", "b"]);
    assert_eq!(host.find(Some("a"), "/b/key").unwrap_err().exit, Exit::Usage);
}

#[test]
fn an_absolute_pattern_loses_its_mount_point() {
    let host = Host::new(&["a", "b"]);
    let find = |mount, pattern: &str| {
        let pattern = format!("{}/{pattern}", host.root().display());
        host.locator(mount).instance_of_pattern(&pattern)
    };
    assert_eq!(find(None, "b/ns/*.bin").unwrap(), (host.instance("b"), "ns/*.bin".to_owned()));
    assert_eq!(find(None, "b/**").unwrap(), (host.instance("b"), "**".to_owned()));
    assert_eq!(find(None, "b/ns/key").unwrap(), (host.instance("b"), "ns/key".to_owned()));
    assert_eq!(find(Some("a"), "a/ns/[0-9]/x").unwrap(), (host.instance("a"), "ns/[0-9]/x".to_owned()));
    for (mount, pattern, says) in [
        (None, "elsewhere/*", "is not below a tidefs mount"),
        (Some("a"), "b/*", "is not below"),
        (None, "b", "names no key"),
    ] {
        let error = find(mount, pattern).unwrap_err();
        assert!(error.exit == Exit::Usage && error.message.contains(says), "{pattern}: {error}");
    }
    let only = Host::new(&["b"]);
    let relative = only.locator(None).instance_of_pattern("ns/*").unwrap();
    assert_eq!(relative, (only.instance("b"), "ns/*".to_owned()));
}

#[test]
fn where_a_link_leads_is_no_pattern_whatever_its_name_is() {
    let host = Host::new(&["a"]);
    std::os::unix::fs::symlink(r"a/run[1]/{x,y}\*?", host.root().join("link")).unwrap();
    let pattern = format!("{}/link/[0-9]/**", host.root().display());
    let found = host.locator(None).instance_of_pattern(&pattern).unwrap();
    assert_eq!(found, (host.instance("a"), r"run\[1\]/\{x,y\}\\\*\?/[0-9]/**".to_owned()));
}

#[test]
fn a_key_is_named_by_its_full_path_and_quoted() {
    let host = Host::new(&["a", "c"]);
    let words = |mount, name: &str, key: &[u8]| {
        host.locator(mount).words_for(&host.instance(name), &KeyPath::from_bytes(key))
    };
    let root = host.root();
    assert_eq!(words(None, "a", b"ns/small"), format!("{}/a/ns/small", root.display()));
    assert_eq!(words(None, "a", b"ns/a b"), format!("'{}/a/ns/a b'", root.display()));
    // Mounted where this host does not show it.
    let c = root.join("c").display().to_string();
    assert_eq!(words(Some("c"), "c", b"ns/small"), format!("{c}/ns/small --mount {c}"));
    assert_eq!(words(None, "c", b"ns/small"), "ns/small");
}

#[test]
fn a_dead_mount_is_told_apart_from_an_unknown_one() {
    let host = Host::new(&[]);
    let error = host.find(None, "/a/key").unwrap_err();
    assert!(error.next_step.unwrap().contains("--state-dir"));
    // What is there is no mount, so that it says nothing of a daemon.
    drop(host.lock("a"));
    let error = host.find(None, "/a/key").unwrap_err();
    assert!(error.exit == Exit::Failed && error.message.contains("does not answer"), "{error}");
    assert_eq!(host.locator(Some("c")).instance().unwrap_err().exit, Exit::NoDaemon);
    assert_eq!(host.locator(None).instance().unwrap_err().exit, Exit::NoDaemon);
}

#[test]
fn another_users_mount_is_told_with_its_user_and_what_to_do() {
    let host = Host::new(&[]);
    let a = host.root().join("a");
    let locator = |owner: u32, caller, mount| {
        let line = format!("40 27 0:50 / {} rw - fuse.tidefs tidefs rw,user_id={owner}\n", a.display());
        Locator { table: MountTable::parse(line.as_bytes()), caller, ..host.locator(mount) }
    };
    for mount in [Some("a"), None] {
        let error = locator(0, 1000, mount).instance().unwrap_err();
        assert_eq!(error.exit, Exit::NoDaemon);
        assert!(error.message.contains("its daemon runs as uid 0"), "{error}");
        let advice = format!("run this with sudo; every user may read {}/.tidefs/status", a.display());
        assert_eq!(error.next_step.unwrap(), advice);
    }
    // Who named a state directory means none of another one.
    let named = Locator { is_state_named: true, ..locator(0, 1000, None) };
    assert!(named.instance().unwrap_err().message.contains("no daemon runs (looked in"));
    let error = locator(1001, 1000, Some("a")).instance().unwrap_err();
    assert!(error.next_step.unwrap().starts_with("run this as that user"));
    // Root may ask, and one's own daemon is elsewhere.
    for (owner, caller) in [(1000, 0), (1000, 1000)] {
        let error = locator(owner, caller, Some("a")).instance().unwrap_err();
        assert!(error.next_step.as_ref().unwrap().contains("--state-dir"), "{error}");
    }
}

#[test]
fn who_has_no_place_for_a_daemon_is_told_of_the_mount_that_was_named_and_not_of_another() {
    let host = Host::new(&[]);
    let line = |name: &str| {
        let dir = host.root().join(name);
        format!("40 27 0:50 / {} rw - fuse.tidefs tidefs rw,user_id=0\n", dir.display())
    };
    let table = MountTable::parse((line("a") + &line("b")).as_bytes());
    let told = |meant: Option<&str>, caller| {
        let meant = meant.map(|name| host.root().join(name));
        let error = CliError::new(Exit::Usage, "no place");
        without_place(error, &table, meant.as_deref(), caller).message
    };
    let b = host.root().join("b").display().to_string();
    assert!(told(Some("b"), 1000).starts_with(&format!("{b} is mounted, but its daemon runs as uid 0")));
    assert!(told(None, 1000).contains("its daemon runs as uid 0"));
    assert_eq!((told(Some("c"), 1000), told(None, 0)), ("no place".to_owned(), "no place".to_owned()));
}
