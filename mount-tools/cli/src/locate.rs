//! Which daemon a command means, and which key a path is.
//!
//! `--mount` decides; else the mount that the path is in, which the mount table tells; else the only daemon that
//! runs. That a daemon runs is read from its lock, never by looking at its mount.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use tidefs_control_api::KeyPath;
use tidefs_control_api::answer::Answer;
use tidefs_control_api::instance::{Instance, StateDir, state_dir_of_environment};
use tidefs_control_api::lock::{self, Daemon};
use tidefs_control_api::mounts::{Mount, MountTable};
use tidefs_control_api::shell::{self, quoted};
use tidefs_control_api::socket::SocketAddress;

use crate::args::{Common, Select, Spelling};
use crate::client::Client;
use crate::error::{CliError, Exit};

/// What means more than itself in a pattern; behind a backslash it does not.
const PATTERN_LETTERS: &str = "*?[]{}\\";

/// The state directory that `common` names, or the default one.
fn state_dir(common: &Common) -> Result<StateDir, CliError> {
    match common.state_dir() {
        Some(dir) => Ok(StateDir::new(dir)),
        None => StateDir::of_this_user().map_err(|error| CliError::new(Exit::Usage, error.to_string())),
    }
}

/// The same for a command about the mount on `meant`, or about any. Whoever has no place for a daemon of their own means
/// that of somebody else.
pub(crate) fn state_dir_of(
    common: &Common,
    table: &MountTable,
    meant: Option<&Path>,
) -> Result<StateDir, CliError> {
    state_dir(common).map_err(|error| without_place(error, table, meant, caller()))
}

/// Why `caller`, for whom `error` tells that there is no state directory, cannot reach the daemon that is meant.
fn without_place(error: CliError, table: &MountTable, meant: Option<&Path>, caller: u32) -> CliError {
    let is_meant = |mount: &&Mount| meant.is_none_or(|dir| mount.mount_point == dir);
    table.tidefs().filter(is_meant).find_map(|mount| of_other_user(mount, caller)).unwrap_or(error)
}

/// The mounts that this process sees.
pub(crate) fn mount_table() -> Result<MountTable, CliError> {
    MountTable::read().map_err(|error| CliError::system("cannot read the mount table", &error))
}

/// `path` without symbolic links and dots, see [`MountTable::resolve`].
pub(crate) fn resolve(table: &MountTable, path: &Path) -> Result<PathBuf, CliError> {
    table
        .resolve(path)
        .map_err(|error| CliError::system(format!("cannot resolve {}", path.display()), &error))
}

/// What the lock of `instance` says.
pub(crate) fn probe(instance: &Instance) -> Result<Daemon, CliError> {
    let path = instance.lock();
    lock::probe(&path).map_err(|error| CliError::system(format!("cannot read {}", path.display()), &error))
}

/// Who listens on the admin socket, by the number that the kernel gives it for this process: 0 when it has none here. `None`
/// where nobody listens, as while a daemon starts.
pub(crate) fn listener(instance: &Instance) -> Option<i32> {
    let address = SocketAddress::new(&instance.control_socket()).ok()?;
    let stream = UnixStream::connect(address.path()).ok()?;
    getsockopt(&stream, PeerCredentials).ok().map(|credentials| credentials.pid())
}

/// Why the daemon of `mount`, of which `state` has no record, cannot be reached by `caller`, a user id.
pub(crate) fn no_record(state: &StateDir, mount: &Mount, caller: u32) -> CliError {
    of_other_user(mount, caller).unwrap_or_else(|| {
        let (dir, state) = (mount.mount_point.display(), state.path().display());
        CliError::new(Exit::NoDaemon, format!("{dir} is mounted, but {state} knows nothing of its daemon"))
            .next_step("name the daemon's own state directory with --state-dir")
    })
}

/// Makes sure that nobody serves `mount`, though the daemon of `instance`, which has a record of it, is gone.
///
/// # Errors
/// A daemon of another state directory serves it, or nobody can say that none does.
pub(crate) fn refuse_served(instance: &Instance, mount: &Mount) -> Result<(), CliError> {
    let dir = mount.mount_point.display();
    match mount.ask() {
        Answer::Gone => Ok(()),
        Answer::Served => {
            let message = format!(
                "a daemon of another state directory serves {dir}; that of {} is gone",
                instance.dir().display()
            );
            Err(CliError::new(Exit::NoDaemon, message)
                .next_step("name the daemon's own state directory with --state-dir"))
        }
        Answer::Unknown => {
            let message = format!("{dir} does not answer, so its daemon may be stopped and not gone");
            Err(CliError::new(Exit::Failed, message).next_step(format!(
                "let it go on (kill -CONT), or take the mount away whatever it is with `umount -l {}`",
                quoted(&mount.mount_point)
            )))
        }
    }
}

/// That `caller`, an ordinary user, has no right to ask the daemon of `mount`, if another user runs that.
fn of_other_user(mount: &Mount, caller: u32) -> Option<CliError> {
    let owner = mount.user_id.filter(|owner| *owner != caller && caller != 0)?;
    let dir = &mount.mount_point;
    let message =
        format!("{} is mounted, but its daemon runs as uid {owner}, and you are {caller}", dir.display());
    // Root's mount is for all users unless an option says otherwise.
    let next_step = match owner {
        0 => format!("run this with sudo; every user may read {}", quoted(&dir.join(".tidefs/status"))),
        _ => "run this as that user, or as root with --state-dir".to_owned(),
    };
    Some(CliError::new(Exit::NoDaemon, message).next_step(next_step))
}

/// The user who runs this command.
pub(crate) fn caller() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// A way to the daemon of the command.
pub(crate) fn connect(select: &Select) -> Result<Client, CliError> {
    Locator::new(select, None)?.instance().and_then(|instance| client(&instance, select))
}

/// A way to the daemon of `path`, and the key that `path` is.
pub(crate) fn connect_to(
    select: &Select,
    path: &Path,
    spelling: Spelling,
) -> Result<(Client, KeyPath), CliError> {
    let path = spelling.read(path)?;
    let locator = Locator::new(select, Some(&path))?;
    let (instance, key) = locator.instance_of(&path)?;
    let words = locator.words_for(&instance, &key) + &locator.state_dir_option;
    Ok((client(&instance, select)?.about(words), key))
}

/// A way to the daemon of `pattern`, and the pattern over its keys: an absolute one loses the mount point.
pub(crate) fn connect_to_pattern(select: &Select, pattern: &str) -> Result<(Client, String), CliError> {
    let path = Some(Path::new(pattern)).filter(|path| path.is_absolute());
    let (instance, pattern) = Locator::new(select, path)?.instance_of_pattern(pattern)?;
    Ok((client(&instance, select)?, pattern))
}

/// The option for another command to look in `dir`, which was named to this one, unless its environment says so already.
pub(crate) fn state_dir_option(dir: Option<&Path>) -> String {
    match dir {
        Some(dir) if state_dir_of_environment().as_deref() != Some(dir) => shell::state_dir_option(dir),
        _ => String::new(),
    }
}

/// The options for another command to mean the daemon that `select` does.
pub(crate) fn same_daemon(select: &Select) -> String {
    let mount = select.mount.as_ref().map(|dir| format!(" --mount {}", quoted(dir))).unwrap_or_default();
    mount + &state_dir_option(select.common.state_dir().as_deref())
}

fn client(instance: &Instance, select: &Select) -> Result<Client, CliError> {
    Ok(Client::new(&instance.control_socket())?.found_by(same_daemon(select)))
}

/// What is known when a daemon is sought.
#[derive(Debug)]
struct Locator {
    state: StateDir,
    /// Whether somebody named it: then a daemon of another one is not meant.
    is_state_named: bool,
    table: MountTable,
    mount: Option<PathBuf>,
    /// The user who asks.
    caller: u32,
    /// For another command to look there, too.
    state_dir_option: String,
}

impl Locator {
    /// For a command about `path`, if it has one.
    fn new(select: &Select, path: Option<&Path>) -> Result<Self, CliError> {
        let table = mount_table()?;
        let mount = select.mount.as_ref().map(|dir| resolve(&table, dir)).transpose()?;
        let caller = caller();
        let path = path.map(|path| resolve(&table, path)).transpose()?;
        let its_mount = path.and_then(|path| table.tidefs_containing(&path));
        let meant = mount.as_deref().or(its_mount.map(|mount| mount.mount_point.as_path()));
        let state = state_dir_of(&select.common, &table, meant)?;
        let named = select.common.state_dir();
        let (is_state_named, state_dir_option) = (named.is_some(), state_dir_option(named.as_deref()));
        Ok(Self { state, is_state_named, table, mount, caller, state_dir_option })
    }

    /// The daemon of a command without a path.
    fn instance(&self) -> Result<Instance, CliError> {
        match &self.mount {
            Some(dir) => self.living(dir),
            None => self.only_one(),
        }
    }

    /// The daemon of a command with a path, and the key.
    fn instance_of(&self, path: &Path) -> Result<(Instance, KeyPath), CliError> {
        let resolved = resolve(&self.table, path)?;
        if let Some(dir) = &self.mount {
            return match resolved.strip_prefix(dir) {
                Ok(below) => Ok((self.living(dir)?, KeyPath::from_path(below))),
                Err(_) if path.is_relative() => Ok((self.living(dir)?, key(path)?)),
                Err(_) => {
                    let message = format!("{} is not below {}", path.display(), dir.display());
                    Err(CliError::new(Exit::Usage, message).next_step("leave out --mount"))
                }
            };
        }
        if let Some(mount) = self.table.tidefs_containing(&resolved) {
            let below = resolved.strip_prefix(&mount.mount_point).expect("a mount contains what is below it");
            return Ok((self.living(&mount.mount_point)?, KeyPath::from_path(below)));
        }
        if path.is_relative() {
            return Ok((self.only_one()?, key(path)?));
        }
        Err(CliError::new(Exit::NoDaemon, format!("{} is not below a tidefs mount", path.display()))
            .next_step("`findmnt -t fuse.tidefs` lists the mounts of this host"))
    }

    /// The daemon that an absolute `pattern` means by the mount point it starts with, and the rest of the pattern; of a
    /// relative one the daemon of a command without a path.
    fn instance_of_pattern(&self, pattern: &str) -> Result<(Instance, String), CliError> {
        if !pattern.starts_with('/') {
            return Ok((self.instance()?, pattern.to_owned()));
        }
        let typed = Path::new(pattern);
        // Up to the first name that is more than letters.
        let is_literal = |part: &Component<'_>| {
            !part.as_os_str().as_bytes().iter().any(|byte| PATTERN_LETTERS.as_bytes().contains(byte))
        };
        let literal: PathBuf = typed.components().take_while(is_literal).collect();
        let resolved = resolve(&self.table, &literal)?;
        let mount = match &self.mount {
            Some(dir) => Some(dir.as_path()),
            None => self.table.tidefs_containing(&resolved).map(|mount| mount.mount_point.as_path()),
        };
        let below = mount.and_then(|dir| Some((dir, resolved.strip_prefix(dir).ok()?)));
        let Some((dir, below)) = below else {
            let place = self
                .mount
                .as_ref()
                .map_or_else(|| "a tidefs mount".to_owned(), |dir| dir.display().to_string());
            return Err(CliError::new(Exit::Usage, format!("the pattern {pattern} is not below {place}"))
                .next_step("write it as keys are, for example 'llama/**', or below a mount that `findmnt -t fuse.tidefs` lists"));
        };
        let rest = typed.strip_prefix(&literal).expect("a path starts with its first names");
        // What links led to is a name and no pattern, whatever is in it.
        let keys = below.to_str().map(|below| Path::new(&escaped(below)).join(rest));
        // Behind a name alone `join` leaves a slash, with which it fits nothing.
        let keys: Option<PathBuf> = keys.map(|keys| keys.components().collect());
        match keys.as_deref().and_then(Path::to_str) {
            Some(keys) if !keys.is_empty() => Ok((self.living(dir)?, keys.to_owned())),
            _ => Err(CliError::new(
                Exit::Usage,
                format!("the pattern {pattern} names no key below {}", dir.display()),
            )
            .next_step("'**' fits every key")),
        }
    }

    /// What names `key` after `tidefs why`, wherever it is typed: the path below the mount where this host shows it.
    fn words_for(&self, instance: &Instance, key: &KeyPath) -> String {
        let bytes = key.to_bytes().unwrap_or_else(|_| key.as_str().as_bytes().to_vec());
        let below = Path::new(OsStr::from_bytes(&bytes));
        let shown = self.table.tidefs().find(|mount| self.state.instance(&mount.mount_point) == *instance);
        match (shown, &self.mount) {
            (Some(mount), _) => quoted(&mount.mount_point.join(below)),
            (None, Some(dir)) => format!("{} --mount {}", quoted(&dir.join(below)), quoted(dir)),
            (None, None) => quoted(below),
        }
    }

    /// The instance on `dir`, if its daemon lives.
    fn living(&self, dir: &Path) -> Result<Instance, CliError> {
        let instance = self.state.instance(dir);
        let mount = self.table.tidefs_at(dir);
        let none = |message| CliError::new(Exit::NoDaemon, message);
        let words = quoted(dir) + &self.state_dir_option;
        match (probe(&instance)?, mount) {
            (Daemon::Alive { .. }, _) => Ok(instance),
            (Daemon::Gone, Some(mount)) => {
                refuse_served(&instance, mount)?;
                Err(none(format!("the daemon of {} is gone", dir.display()))
                    .next_step(format!("mount again, or `tidefs umount {words}` takes the dead mount away")))
            }
            (Daemon::NoRecord, Some(mount)) => Err(no_record(&self.state, mount, self.caller)),
            (_, None) => Err(none(format!("no daemon serves {}", dir.display()))
                .next_step(format!("`tidefs mount {words}` starts one"))),
        }
    }

    /// The only daemon that lives.
    fn only_one(&self) -> Result<Instance, CliError> {
        let state = self.state.path().display();
        let instances = self.state.instances();
        let instances =
            instances.map_err(|error| CliError::system(format!("cannot read {state}"), &error))?;
        let mut living = Vec::new();
        for instance in instances {
            if matches!(probe(&instance)?, Daemon::Alive { .. }) {
                living.push(instance);
            }
        }
        match living.len() {
            1 => Ok(living.remove(0)),
            0 => Err(self.of_others().unwrap_or_else(|| {
                let option = &self.state_dir_option;
                CliError::new(Exit::NoDaemon, format!("no daemon runs (looked in {state})")).next_step(
                    format!("`tidefs mount DIR{option}` starts one; --state-dir names another place to look"),
                )
            })),
            _ => {
                let names: Vec<String> = living.iter().map(|instance| self.name(instance)).collect();
                let message = format!("{} daemons run: {}", names.len(), names.join(", "));
                Err(CliError::new(Exit::Usage, message).next_step("choose one with --mount DIR"))
            }
        }
    }

    /// That another user has a daemon here, which this one has no right to ask.
    fn of_others(&self) -> Option<CliError> {
        let mut mounts = self.table.tidefs().filter(|_| !self.is_state_named);
        mounts.find_map(|mount| of_other_user(mount, self.caller))
    }

    /// The mount point of `instance` if it is in the table, else its name.
    fn name(&self, instance: &Instance) -> String {
        let mount = self.table.tidefs().find(|mount| self.state.instance(&mount.mount_point) == *instance);
        mount.map_or_else(|| instance.name(), |mount| mount.mount_point.display().to_string())
    }
}

/// The pattern that fits `name` and nothing else.
fn escaped(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    for letter in name.chars() {
        if PATTERN_LETTERS.contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

/// A relative path as a key of its own, by its letters.
fn key(path: &Path) -> Result<KeyPath, CliError> {
    let mut names = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            _ => {
                let message = format!("{} is not a key", path.display());
                return Err(CliError::new(Exit::Usage, message)
                    .next_step("write the key as a path below the mount, without `..`"));
            }
        }
    }
    Ok(KeyPath::from_path(&names))
}

#[cfg(test)]
mod tests;
