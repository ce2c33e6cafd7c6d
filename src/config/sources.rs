//! Everything a configuration is made from, as it was written.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::args::DaemonArgs;
use super::host::Host;
use super::instance::instance_name;
use super::options::{Flag, read_options};

/// Where the files are that are read without being named.
const CONFIG_DIR: &str = "/etc/tidefs";

/// Variable that names the file to read instead.
const CONFIG_VARIABLE: &str = "TIDEFS_CONFIG";

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// Nowhere: the default holds.
    Default,
    /// In a configuration file.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1; absent if the problem is the file as a whole.
        line: Option<usize>,
    },
    /// In the environment.
    Environment {
        /// Name of the variable.
        variable: String,
    },
    /// On the command line.
    Flag {
        /// The flag with its value, for example `-o capacity=8GiB`.
        flag: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line: Some(line) } => write!(f, "{}:{line}", path.display()),
            Self::File { path, line: None } => write!(f, "{}", path.display()),
            Self::Environment { variable } => write!(f, "environment {}", super::error::excerpt(variable)),
            Self::Flag { flag } => f.write_str(&super::error::excerpt(flag)),
        }
    }
}

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Its path.
    pub path: PathBuf,
    /// Its text, or what the system says about why there is none.
    pub text: Result<String, String>,
}

impl ConfigFile {
    /// Reads the file at `path`. A failure is kept, to be reported with the other problems.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
        Self { path: path.to_owned(), text }
    }

    /// Reads the file at `path` if there is one.
    fn read_if_there(path: &Path) -> Option<Self> {
        match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some(Self { path: path.to_owned(), text: read.map_err(|error| error.to_string()) }),
        }
    }
}

/// Everything a configuration is made from.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The machine and user, for defaults.
    pub host: Host,
    /// Canonical path of the mount point (see `tidefs_control_api::mounts::MountTable::resolve`).
    pub mount_dir: PathBuf,
    /// Configuration files; later ones win.
    pub files: Vec<ConfigFile>,
    /// The environment. Only variables whose name starts with `TIDEFS_` are looked at.
    pub environment: Vec<(OsString, OsString)>,
    /// Texts of `-o`, each with options separated by commas; later ones win.
    pub options: Vec<String>,
    /// Named flags such as `--capacity`; they win over `options`.
    pub flags: Vec<Flag>,
}

impl Sources {
    /// Nothing but defaults for a mount at `mount_dir`.
    #[must_use]
    pub const fn new(host: Host, mount_dir: PathBuf) -> Self {
        Self {
            host,
            mount_dir,
            files: Vec::new(),
            environment: Vec::new(),
            options: Vec::new(),
            flags: Vec::new(),
        }
    }

    /// Collects what was written for this process: files, environment and command line.
    ///
    /// The files are the one that is named (by `--config`, else by the last `-o config=`, else by `TIDEFS_CONFIG`), which must
    /// exist; else, as root, those of `/etc/tidefs/tidefs.toml` and `/etc/tidefs/<instance>.toml` that exist.
    /// A file that cannot be read is reported by [`super::Config::load`].
    #[must_use]
    pub fn of_process(args: &DaemonArgs, mount_dir: PathBuf, host: Host) -> Self {
        let environment: Vec<_> = std::env::vars_os().collect();
        let files = match named_file(args, &environment) {
            Some(path) => vec![ConfigFile::read(&path)],
            None if host.is_root() => files_of_root(Path::new(CONFIG_DIR), &mount_dir),
            None => Vec::new(),
        };
        Self {
            files,
            environment,
            options: args.options.clone(),
            flags: args.flags(),
            ..Self::new(host, mount_dir)
        }
    }
}

/// The configuration file that is named. An empty variable names none.
fn named_file(args: &DaemonArgs, environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    let by_option = || args.options.iter().rev().find_map(|text| read_options(text).0.config_file);
    let by_environment = || {
        let mut values = environment.iter().filter(|(variable, _)| variable == CONFIG_VARIABLE);
        values.next().map(|(_, value)| PathBuf::from(value)).filter(|path| !path.as_os_str().is_empty())
    };
    args.config.clone().or_else(by_option).or_else(by_environment)
}

fn files_of_root(directory: &Path, mount_dir: &Path) -> Vec<ConfigFile> {
    let of_all = directory.join("tidefs.toml");
    let of_mount = directory.join(format!("{}.toml", instance_name(mount_dir)));
    [of_all, of_mount].iter().filter_map(|path| ConfigFile::read_if_there(path)).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn a_named_file_is_that_of_the_flag_before_the_last_option_before_the_environment() {
        let named = |words: &[&str], variable: &str| {
            let args = DaemonArgs::try_parse_from(["tidefsd", "/mnt/kv"].iter().chain(words)).unwrap();
            named_file(&args, &[("OTHER".into(), "/x".into()), (CONFIG_VARIABLE.into(), variable.into())])
        };
        let options = ["-o", "config=/first,rw", "-o", "capacity=1GiB,config=/last", "-o", "rw"];
        let all = [&options[..], &["--config", "flag.toml"]].concat();
        assert_eq!(named(&all, "/variable"), Some("flag.toml".into()));
        assert_eq!(named(&options, "/variable"), Some("/last".into()));
        assert_eq!(named(&["-o", "rw"], "/variable"), Some("/variable".into()));
        assert_eq!(named(&[], ""), None);
    }

    #[test]
    fn the_file_of_the_mount_comes_after_the_file_of_all_and_missing_ones_are_no_problem() {
        let directory = tempfile::tempdir().unwrap();
        let mount_dir = Path::new("/mnt/kv");
        assert_eq!(files_of_root(directory.path(), mount_dir), []);
        let of_mount = directory.path().join(format!("{}.toml", instance_name(mount_dir)));
        std::fs::write(&of_mount, "# mount").unwrap();
        std::fs::write(directory.path().join("tidefs.toml"), "# all").unwrap();
        let texts: Vec<_> =
            files_of_root(directory.path(), mount_dir).into_iter().map(|file| file.text).collect();
        assert_eq!(texts, [Ok("# all".to_owned()), Ok("# mount".to_owned())]);
    }

    #[test]
    fn a_default_file_that_exists_but_cannot_be_read_is_kept_as_a_problem() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("tidefs.toml")).unwrap();
        let files = files_of_root(directory.path(), Path::new("/mnt/kv"));
        assert!(files[0].text.is_err());
    }
}
