//! The cache as a program sees it.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_control_api::ioctl::{Name, Status};

use crate::batch;
#[cfg(feature = "tokio")]
use crate::batch::Answer;
use crate::file::Files;
use crate::sessions::{Opened, Sessions};
use crate::statistics::Counters;
use crate::{Error, Registration, Statistics, View};

/// How long [`Cache::wait_ready`] and [`Cache::wait_range`] pause at first and at most between two looks.
pub(crate) const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// A directory of a tidefs mount, or any directory.
#[derive(Clone, Debug)]
pub struct Cache {
    /// These three are shared by all clones.
    pub(crate) files: Arc<Files>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) counters: Arc<Counters>,
}

impl Cache {
    /// Opens a cache: a mount of tidefs, or a directory below it, for keys relative to that. A mount that comes to be there later is
    /// found, too; where one was and is no more, all is a miss and nothing is stored.
    ///
    /// # Errors
    /// [`Error::Io`] when there is no such directory.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, Error> {
        let named = directory.as_ref();
        let refused = || Error::at("open the cache", named);
        let directory = named.canonicalize().map_err(refused())?;
        // Searching it is enough to use it, so it is not opened to be listed.
        if !directory.metadata().map_err(refused())?.is_dir() {
            return Err(refused()(std::io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        let files = Arc::new(Files::below(directory));
        let sessions = Arc::new(Sessions::open(&files));
        Ok(Self { files, sessions, counters: Arc::default() })
    }

    /// The session to ask; `None` while all is done by file.
    pub(crate) fn opened(&self) -> Option<Arc<Opened>> {
        self.sessions.find(&self.files)
    }

    /// Whether objects are mapped; else all is done by file. When the daemon is started again, or another directory is at the path
    /// of the cache, they are not, from the call that finds the last one gone to the one that finds the next; this is no such call.
    #[must_use]
    pub fn is_fast(&self) -> bool {
        self.sessions.is_live()
    }

    /// Segments that are mapped now.
    #[must_use]
    pub fn mapped_segments(&self) -> usize {
        self.sessions.live().map_or(0, |opened| opened.session.segments.len())
    }

    /// Registered segments that nobody views or writes: how many registrations end when the cache is dropped. `None` when another
    /// thread may change that right now, for it waits for none; for who is called while others stand still.
    #[must_use]
    pub fn idle_registrations(&self) -> Option<usize> {
        self.sessions.idle_registrations()
    }

    /// What was shown and what was copied so far, by this value and its clones.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.counters.now()
    }

    /// The bytes of an object; `None` is a miss.
    ///
    /// # Errors
    /// [`Error::BadKey`]; [`Error::Io`] when it may not be read.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<View>, Error> {
        Ok(self.lookup_many(&[key])?.pop().flatten())
    }

    /// The bytes of many objects; `None` is a miss. Those that are below memory are brought into it side by side, as by
    /// [`Cache::prefetch`].
    ///
    /// # Errors
    /// As [`Cache::get`], of any of them.
    pub fn lookup_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<View>>, Error> {
        let views = self.find_all(&batch::names_of(keys)?, Ok)??;
        self.counters.count(views.iter().flatten());
        Ok(views)
    }

    /// As [`Cache::lookup_many`]. One that may not be read does not fail the others.
    ///
    /// # Errors
    /// [`Error::BadKey`].
    pub fn lookup_each<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<Option<View>, Error>>, Error> {
        let found: Vec<Result<Option<View>, Error>> =
            self.find_all(&batch::names_of(keys)?, |views| views.into_iter().map(Ok).collect())?;
        self.counters.count(found.iter().flatten().flatten());
        Ok(found)
    }

    /// The same as far as it can be said without a file: `None` when that takes one.
    #[cfg(feature = "tokio")]
    pub(crate) fn lookup_at_once<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Option<Vec<Option<View>>>, Error> {
        let names = batch::names_of(keys)?;
        // Without an answer the daemon is gone: to look for the next one takes files, too.
        let Some(opened) = self.sessions.live() else { return Ok(None) };
        let Ok(answers) = self.ask(&opened, &names, false) else { return Ok(None) };
        let known = answers.into_iter().map(|answer| match answer {
            Answer::View(view) => Some(Some(view)),
            // To look whether the directory is still there takes a file.
            Answer::Absent => (!opened.session.is_to_compare()).then_some(None),
            Answer::ByFile | Answer::Loadable => None,
        });
        let Some(views) = known.collect::<Option<Vec<_>>>() else { return Ok(None) };
        self.counters.count(views.iter().flatten());
        Ok(Some(views))
    }

    /// How many of the keys, from the first on, are there: the longest prefix of a chain that the cache has.
    ///
    /// # Errors
    /// As [`Cache::get`].
    pub fn prefix<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<usize, Error> {
        let names = batch::names_of(keys)?;
        let Some(opened) = self.opened() else { return self.prefix_by_file(&names) };
        let mut present = if opened.keeps() { opened.kept.run(&names) } else { 0 };
        while present < names.len() {
            let asked = batch::prefix(&opened.session, &names[present..]);
            let (more, end) = asked.unwrap_or((0, Some(Status::AskByFile)));
            present += more;
            match end {
                None => break,
                Some(_) if self.has_moved(&opened) => return self.prefix_by_file(&names),
                Some(Status::Absent) => return Ok(present),
                Some(_) if self.files.has(names[present].0)? => present += 1,
                Some(_) => return Ok(present),
            }
        }
        Ok(present)
    }

    fn prefix_by_file(&self, names: &[Name<'_>]) -> Result<usize, Error> {
        for (present, name) in names.iter().enumerate() {
            if !self.files.has(name.0)? {
                return Ok(present);
            }
        }
        Ok(names.len())
    }

    /// Whether an object is there.
    ///
    /// # Errors
    /// As [`Cache::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(self.prefix(&[key])? == 1)
    }

    /// Asks for objects that are below memory to be brought into it. Does not wait; what is not there is passed over.
    ///
    /// # Errors
    /// [`Error::BadKey`].
    pub fn prefetch<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<(), Error> {
        let names = batch::names_of(keys)?;
        match self.opened() {
            // A hint that is not taken is no failure.
            Some(opened) => batch::prefetch(&opened.session, &names).or(Ok(())),
            None => Ok(()),
        }
    }

    /// Waits until an object is there, at most for `limit`. Returns its bytes, or `None` when it did not come.
    ///
    /// # Errors
    /// As [`Cache::get`].
    pub fn wait_ready(&self, key: impl AsRef<[u8]>, limit: Duration) -> Result<Option<View>, Error> {
        let (key, started) = (key.as_ref(), Instant::now());
        let (mut pause, longest) = PAUSES;
        loop {
            if let Some(view) = self.get(key)? {
                return Ok(Some(view));
            }
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(longest);
        }
    }

    /// Calls `register` for each segment that is mapped, now and from now on, with its start and its length: for
    /// `cudaHostRegister`, `ibv_reg_mr` and the like. What it returns is dropped right before the segment is unmapped, which
    /// is when the last view of it is dropped and the cache is, or the daemon has given the segment up. With `None` the
    /// segment stays unregistered; [`View::is_registered`] tells.
    ///
    /// While `register` runs no other segment is mapped, and it must not use the cache. Without a fast path it is never
    /// called. A second call replaces the first for segments that are mapped later. When the daemon is started again, the
    /// registrations of segments that nobody views end, and the next daemon's are registered as they are mapped.
    pub fn register_with(
        &self,
        register: impl Fn(NonNull<u8>, usize) -> Option<Registration> + Send + Sync + 'static,
    ) {
        self.sessions.register_with(Box::new(move |start, length, _| register(start, length)));
    }

    /// Registers each segment that is mapped, now and from now on, with an NVIDIA GPU, so that copies to and from it pass by
    /// no buffer of the driver: [`Cache::register_with`] with `cuMemHostRegister`, in the primary context of the device with
    /// that number and known to all contexts of the process. What the driver refuses stays as it was;
    /// [`View::is_registered`] tells, and the returned value counts.
    ///
    /// Without a fast path nothing is mapped, and nothing registered.
    ///
    /// # Errors
    /// [`Error::Cuda`] when there is no driver, no such device, or no context.
    #[cfg(feature = "cuda")]
    pub fn register_with_cuda(&self, device: u32) -> Result<Arc<crate::CudaDevice>, Error> {
        let device = crate::CudaDevice::open(device)?;
        let of_hook = Arc::clone(&device);
        self.sessions.register_with(Box::new(move |start, length, is_writable| {
            of_hook.register(start, length, is_writable)
        }));
        Ok(device)
    }

    /// Gives back the references of views that were dropped, kept ones included. Without it they go back along with later ones.
    pub fn flush(&self) {
        // What a child of fork(2) inherited is its parent's to give back, and it gets no session.
        if let Some(opened) = self.sessions.live() {
            opened.kept.clear();
            opened.session.give_back_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_another_filesystem_all_is_done_by_file() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path()).unwrap();
        assert!(!cache.is_fast());
        cache.put_many(&[("a/1", &b"one"[..]), ("a/2", b"two")]).unwrap();
        let found = cache.lookup_many(&["a/1", "a/2", "a/3", "b"]).unwrap();
        let found: Vec<Option<&[u8]>> = found.iter().map(Option::as_deref).collect();
        assert_eq!(found, [Some(&b"one"[..]), Some(b"two"), None, None]);
        assert_eq!(cache.prefix(&["a/1", "a/2", "a/3"]).unwrap(), 2);
        let mut writer = cache.create("a/3", 5).unwrap();
        writer.copy_from_slice(b"three");
        assert!(!cache.contains("a/3").unwrap());
        writer.seal_first(2).unwrap();
        assert_eq!(std::fs::read(directory.path().join("a/3")).unwrap(), b"th");
        assert!(cache.get("").is_err() && cache.put("../x", b"").is_err());
    }

    #[test]
    fn only_a_directory_is_a_cache() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert_eq!(Cache::open(&file).unwrap_err().errno(), libc::ENOTDIR);
        assert_eq!(Cache::open(directory.path().join("none")).unwrap_err().errno(), libc::ENOENT);
    }
}
