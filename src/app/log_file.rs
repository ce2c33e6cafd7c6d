//! The log of a daemon in the background: a file in the folder of its mount, which whoever started the daemon made and gave it as
//! its standard error. It lies in memory as a rule (`/run`), so it is not to grow for as long as the daemon lives.
//!
//! Invariants
//! - No other file is touched: where standard error leads otherwise is the matter of who gave it.
//! - No line is lost on the way from one file to the next; what is lost is the file before.
//!
//! Limits: [`BYTES_MAX`], and what is written between two looks; as much beside it, as `log.1`.
//! Threads: the first one of the process looks; all may write meanwhile.

use std::fs::{self, File};
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::sys::stat::{fstat, lstat};
use nix::unistd::dup2_stderr;
use tidefs_control_api::instance::Instance;
use tidefs_control_api::log::{create_log, earlier_log, refused_log};
use tidefs_engine::types::ByteCount;

/// A log that has more is begun anew.
const BYTES_MAX: ByteCount = ByteCount::mib(16);

/// The file, which is standard error.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    has_failed: bool,
}

impl LogFile {
    /// Standard error, if that is the log of `instance`. It may stand in another state directory than the rest: who started the
    /// daemon reads no configuration file.
    pub(super) fn of(instance: &str) -> Option<Self> {
        let path = log_of(instance, &fs::read_link("/proc/self/fd/2").ok()?)?;
        Some(Self { path, has_failed: false })
    }

    /// Begins it anew when it has become long. That this fails is told once.
    pub(super) fn bound(&mut self) {
        let begun = begin_anew(io::stderr(), &self.path, BYTES_MAX).and_then(|next| {
            let Some(next) = next else { return Ok(()) };
            dup2_stderr(next)?;
            tracing::info!("the log is begun anew; what was in it stands beside it as `log.1`");
            Ok(())
        });
        if let Err(error) = begun
            && !mem::replace(&mut self.has_failed, true)
        {
            tracing::warn!(%error, "the log has become long, and cannot be begun anew");
        }
    }
}

/// Where the log of `instance` stands, if `file` is that: while further starts are refused it has another name beside it.
fn log_of(instance: &str, file: &Path) -> Option<PathBuf> {
    let log = Instance::of_folder(instance).log();
    let names = [earlier_log(&log), refused_log(&log), log];
    names.iter().any(|name| file.ends_with(name)).then(|| file.with_extension(""))
}

/// An empty file at `path`, when `current` stands there and has more than `most`; that stays beside it then.
fn begin_anew(current: impl AsFd, path: &Path, most: ByteCount) -> io::Result<Option<File>> {
    let held = fstat(current)?;
    if u64::try_from(held.st_size).unwrap_or(0) <= most.get() {
        return Ok(None);
    }
    let named = lstat(path)?;
    if (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino) {
        return Ok(None);
    }
    let earlier = earlier_log(path);
    fs::rename(path, &earlier)?;
    match create_log(path) {
        Ok(next) => Ok(Some(next)),
        Err(error) => {
            // It goes on as it is, and is known for the log the next time.
            fs::rename(&earlier, path)?;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tidefs_control_api::log::has_writer;

    use super::*;

    #[test]
    fn a_log_is_begun_anew_when_it_is_long_and_stands_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let most = ByteCount(8);
        let mut log = File::create(&path).unwrap();
        log.write_all(b"8 bytes\n").unwrap();
        assert!(begin_anew(&log, &path, most).unwrap().is_none(), "it is not too long");
        log.write_all(b"more\n").unwrap();
        let mut next = begin_anew(&log, &path, most).unwrap().expect("it is");
        // What others write meanwhile is there, too.
        log.write_all(b"late\n").unwrap();
        next.write_all(b"the next of 9\n").unwrap();
        assert_eq!(fs::read_to_string(earlier_log(&path)).unwrap(), "8 bytes\nmore\nlate\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "the next of 9\n");
        assert!(begin_anew(&log, &path, most).unwrap().is_none(), "that one stands elsewhere");
        assert!(has_writer(&path).unwrap(), "it is held as who starts a daemon holds the first");
        assert!(begin_anew(&next, &path, most).unwrap().is_some());
        assert_eq!(fs::read_to_string(earlier_log(&path)).unwrap(), "the next of 9\n");
    }

    #[test]
    fn a_log_is_known_also_while_a_further_start_has_its_name() {
        let log_of = |file: &str| log_of("mnt-kv-0", Path::new(file));
        let log = PathBuf::from("/run/tidefs/mnt-kv-0/log");
        assert_eq!(log_of("/run/tidefs/mnt-kv-0/log"), Some(log.clone()));
        assert_eq!(log_of("/run/tidefs/mnt-kv-0/log.1"), Some(log.clone()));
        assert_eq!(log_of("/run/tidefs/mnt-kv-0/log.refused"), Some(log));
        for other in ["/run/tidefs/mnt-kv-0/log.2", "/run/tidefs/mnt-kv-1/log", "pipe:[7]"] {
            assert_eq!(log_of(other), None, "{other}");
        }
    }
}
