//! The mount under test: objects that are written into its memory, sent to its disk and opened again.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidefs_control_api::instance::StateDir;
use tidefs_control_api::{
    EvictProgress, EvictRequest, Evicted, KeyPath, Pin, PinRequest, SsdStatus, Status, routes,
};
use tidefs_engine::types::{ByteCount, PAGE};

use crate::bench::buffer::Rotating;
use crate::bench::daemon::{self, Daemon};
use crate::bench::error::Error;
use crate::bench::local::write_object;
use crate::bench::mount::make_directory;
use crate::client::Client;
use crate::error::CliError;

/// Longest time that objects on disk are waited for to have their names.
const NAMES_LIMIT: Duration = Duration::from_secs(600);
/// How often it is asked.
const NAMES_LOOK: Duration = Duration::from_millis(20);

/// A daemon with an SSD tier, and the directory of the bench on its mount.
pub(super) struct Subject {
    daemon: Daemon,
    client: Client,
    directory: PathBuf,
}

fn told(error: &CliError) -> Error {
    Error::Invalid(format!("the daemon refused: {error}"))
}

impl Subject {
    /// Takes `daemon`.
    ///
    /// # Errors
    /// When its mount takes no directory.
    pub(super) fn new(daemon: Daemon) -> Result<Self, Error> {
        let instance = StateDir::new(daemon.state_dir()).instance(daemon.mount());
        let client = Client::new(&instance.control_socket()).map_err(|error| told(&error))?;
        let directory = make_directory(daemon.mount(), "bench")?;
        Ok(Self { daemon, client, directory })
    }

    /// Stops the daemon, which gives its memory up, and starts another on what is on disk. Returns how long that took.
    ///
    /// # Errors
    /// As of [`Daemon::restart`].
    pub(super) fn restart(
        self,
        binary: &Path,
        capacity: ByteCount,
        options: &[String],
    ) -> Result<(Self, Duration), Error> {
        let (daemon, taken) = self.daemon.restart(binary, capacity, options)?;
        Ok((Self::new(daemon)?, taken))
    }

    /// Waits until all objects on disk have their names. Returns how long that took.
    ///
    /// # Errors
    /// What the daemon says; [`Error::Invalid`] when it takes longer than anybody waits.
    pub(super) fn wait_for_names(&self) -> Result<Duration, Error> {
        let started = Instant::now();
        while self.ssd()?.naming.is_some() {
            if started.elapsed() > NAMES_LIMIT {
                return Err(Error::Invalid(format!("names are missing after {} s", NAMES_LIMIT.as_secs())));
            }
            std::thread::sleep(NAMES_LOOK);
        }
        Ok(started.elapsed())
    }

    /// The path of an object.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes `count` objects of `size` and returns their paths.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn write(
        &self,
        prefix: &str,
        count: usize,
        size: usize,
        source: &mut Rotating,
    ) -> Result<Vec<PathBuf>, Error> {
        let paths: Vec<_> = (0..count).map(|index| self.path(&format!("{prefix}-{index}"))).collect();
        for path in &paths {
            write_object(path, &path.with_extension("tmp"), source.next(size))?;
        }
        Ok(paths)
    }

    /// Has the daemon send what is coldest to its disk until `bytes` left memory. Returns the seconds it took.
    ///
    /// # Errors
    /// When it sends less.
    pub(super) fn evict(&self, bytes: ByteCount) -> Result<f64, Error> {
        let started = Instant::now();
        let request = EvictRequest { bytes: Some(bytes), ..EvictRequest::default() };
        let followed = self.client.follow(routes::EVICT, &request, |_: EvictProgress| ());
        let (evicted, _): (Evicted, _) = followed.map_err(|error| told(&error))?;
        if evicted.bytes < bytes {
            return Err(Error::Invalid(format!("{} of {bytes} could be evicted", evicted.bytes)));
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Keeps an object in memory.
    ///
    /// # Errors
    /// What the daemon says.
    pub(super) fn pin(&self, path: &Path) -> Result<(), Error> {
        self.set_pin(path, Pin::Hard)
    }

    /// Removes objects that were pinned.
    ///
    /// # Errors
    /// What the daemon says.
    pub(super) fn unpin_and_remove(&self, paths: &[PathBuf]) -> Result<(), Error> {
        paths.iter().try_for_each(|path| self.set_pin(path, Pin::None))?;
        remove_all(paths)
    }

    fn set_pin(&self, path: &Path, pin: Pin) -> Result<(), Error> {
        let below = path.strip_prefix(self.daemon.mount()).unwrap_or(path);
        let path = KeyPath::from_bytes(below.as_os_str().as_bytes());
        let request = PinRequest { path, pin, ttl_s: None };
        self.client.post(routes::PIN, &request).map(drop).map_err(|error| told(&error))
    }

    /// Counts what must not happen while the bench measures: objects that the disk did not take.
    ///
    /// # Errors
    /// When the metrics cannot be read.
    pub(super) fn lost(&self) -> Result<f64, Error> {
        let metric = |name| daemon::metric(self.daemon.mount(), name);
        let names =
            ["tidefs_ssd_refusals_total", "tidefs_ssd_refused_total", "tidefs_ssd_promotion_misses_total"];
        names.iter().try_fold(0.0, |sum, name| Ok(sum + metric(name)?.unwrap_or(0.0)))
    }

    /// What the SSD tier says of itself.
    ///
    /// # Errors
    /// When the status cannot be read.
    pub(super) fn ssd(&self) -> Result<SsdStatus, Error> {
        let path = self.daemon.mount().join(".tidefs/status");
        let text = fs::read_to_string(&path).map_err(Error::file("read the status", &path))?;
        let status: Status = serde_json::from_str(&text)
            .map_err(|error| Error::Invalid(format!("{} is not a status: {error}", path.display())))?;
        status.ssd.ok_or_else(|| Error::Invalid("the daemon has no SSD tier".to_owned()))
    }

    /// Memory of the daemon beyond the bytes of objects.
    ///
    /// # Errors
    /// When it is gone.
    pub(super) fn anonymous_memory(&self) -> Result<ByteCount, Error> {
        daemon::anonymous_memory(self.daemon.pid())
    }
}

/// Removes objects.
///
/// # Errors
/// What unlink(2) says.
pub(super) fn remove_all(paths: &[PathBuf]) -> Result<(), Error> {
    paths.iter().try_for_each(|path| fs::remove_file(path).map_err(Error::file("unlink", path)))
}

/// Opens each object once, `depth` at a time, in an order that no disk expects. Returns the seconds it took.
///
/// # Errors
/// What open(2) says.
pub(super) fn open_all(paths: &[PathBuf], depth: usize) -> Result<f64, Error> {
    let (next, barrier) = (AtomicUsize::new(0), Barrier::new(depth + 1));
    let order = scattered(paths.len());
    let work = || -> Result<(), Error> {
        barrier.wait();
        while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let path: &Path = &paths[*index];
            File::open(path).map_err(Error::file("open", path))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth).map(|_| scope.spawn(work)).collect();
        barrier.wait();
        let started = Instant::now();
        for thread in threads {
            thread.join().expect("an opener does not panic")?;
        }
        Ok(started.elapsed().as_secs_f64())
    })
}

/// Opens, reads whole and closes an object. Returns the microseconds it took.
///
/// # Errors
/// What the kernel says, and fewer bytes than the object has.
pub(super) fn read_whole(path: &Path, target: &mut [u8]) -> Result<f64, Error> {
    let started = Instant::now();
    let file = File::open(path).map_err(Error::file("open", path))?;
    let moved = file.read_at(target, 0).map_err(Error::file("read", path))?;
    drop(file);
    let elapsed = started.elapsed();
    if moved != target.len() {
        return Err(Error::Short { path: path.to_owned(), moved, expected: target.len() });
    }
    Ok(elapsed.as_secs_f64() * 1e6)
}

/// All numbers below `count`, neighbours far from each other.
fn scattered(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    // A multiplier that is odd and larger than any count spreads neighbours (Knuth, multiplicative hashing).
    order.sort_unstable_by_key(|index| (*index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    order
}

/// How many objects of `size` make up `sample`, and the bytes of one.
///
/// # Errors
/// For sizes that are no whole pages, or larger than the sample.
pub(super) fn objects_of(size: ByteCount, sample: ByteCount) -> Result<(usize, usize), Error> {
    let fits = size.get() > 0 && size.get().is_multiple_of(PAGE.get()) && size <= sample;
    let whole = |bytes: u64| usize::try_from(bytes).ok().filter(|_| fits);
    let refused =
        || Error::Argument(format!("--sizes: {size} is not a multiple of {PAGE} of at most {sample}"));
    let count = whole(sample.get() / size.get().max(1)).ok_or_else(refused)?;
    Ok((count, whole(size.get()).ok_or_else(refused)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_comes_once_and_few_come_after_their_neighbour() {
        let order = scattered(1000);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..1000));
        assert!(order.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count() < 100);
    }

    #[test]
    fn a_sample_is_made_of_whole_objects_of_whole_pages() {
        assert_eq!(objects_of(ByteCount::mib(4), ByteCount::mib(64)).unwrap(), (16, 4 << 20));
        for size in [ByteCount::ZERO, ByteCount(4097), ByteCount::mib(65)] {
            assert!(objects_of(size, ByteCount::mib(64)).is_err(), "{size}");
        }
    }
}
