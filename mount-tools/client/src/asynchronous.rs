//! The cache for programs that run on tokio.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use tokio::task;
use tokio::time::Instant;

use crate::cache::PAUSES;
use crate::{Cache, Error, Pin, View, Writer};

/// Keys that are looked up on the caller's thread at most: so many take less time than a change of threads.
const AT_ONCE_MAX: usize = 64;

/// How long a thread for blocking work waits for a part of an object without a look at whether anybody still awaits it.
const WAIT_PIECE: Duration = Duration::from_millis(250);

/// A [`Cache`] whose calls do not hold up the thread that awaits them. What is in memory is answered at once; what needs a disk,
/// another host or room is done on tokio's threads for blocking work.
///
/// A call that is given up, by dropping its future, goes on by itself: what it would have returned is given back, and what it
/// was to store is stored.
///
/// ```no_run
/// # async fn example() -> Result<(), tidefs_client::Error> {
/// let cache = tidefs_client::AsyncCache::open("/mnt/kv").await?;
/// cache.put("model/block-7", b"keys and values".to_vec()).await?;
/// if let Some(view) = cache.get("model/block-7").await? {
///     assert_eq!(&*view, b"keys and values");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncCache {
    cache: Cache,
}

impl AsyncCache {
    /// Opens a directory of a mount, or any other, as [`Cache::open`].
    ///
    /// # Errors
    /// As [`Cache::open`].
    pub async fn open(directory: impl Into<PathBuf>) -> Result<Self, Error> {
        let directory = directory.into();
        let cache = blocking(move || Cache::open(directory)).await?;
        Ok(Self { cache })
    }

    /// The same cache for calls that may wait, and for all that never does: [`Cache::register_with`], [`Cache::statistics`] and
    /// the like. [`Cache::get_into`] is there alone, as what a call that was given up copies to has to outlive it.
    #[must_use]
    pub fn blocking(&self) -> &Cache {
        &self.cache
    }

    /// The bytes of an object; `None` is a miss.
    ///
    /// # Errors
    /// As [`Cache::get`].
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<View>, Error> {
        Ok(self.lookup_many(&[key]).await?.pop().flatten())
    }

    /// The bytes of many objects; `None` is a miss.
    ///
    /// # Errors
    /// As [`Cache::get`], of any of them.
    pub async fn lookup_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<View>>, Error> {
        if keys.len() <= AT_ONCE_MAX
            && let Some(views) = self.cache.lookup_at_once(keys)?
        {
            return Ok(views);
        }
        let keys = owned(keys);
        self.with(move |cache| cache.lookup_many(&keys)).await
    }

    /// As [`AsyncCache::lookup_many`]. One that may not be read does not fail the others.
    ///
    /// # Errors
    /// As [`Cache::lookup_each`].
    pub async fn lookup_each<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Result<Option<View>, Error>>, Error> {
        let keys = owned(keys);
        self.with(move |cache| cache.lookup_each(&keys)).await
    }

    /// How many of the keys, from the first on, are there.
    ///
    /// # Errors
    /// As [`Cache::prefix`].
    pub async fn prefix<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<usize, Error> {
        let keys = owned(keys);
        self.with(move |cache| cache.prefix(&keys)).await
    }

    /// Whether an object is there.
    ///
    /// # Errors
    /// As [`Cache::contains`].
    pub async fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(self.prefix(&[key]).await? == 1)
    }

    /// Asks for objects that are below memory to be brought into it, as [`Cache::prefetch`].
    ///
    /// # Errors
    /// As [`Cache::prefetch`].
    pub async fn prefetch<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<(), Error> {
        let keys = owned(keys);
        self.with(move |cache| cache.prefetch(&keys)).await
    }

    /// Waits until an object is there, at most for `limit`. Returns its bytes, or `None` when it did not come. Given up, it
    /// asks no more.
    ///
    /// # Errors
    /// As [`Cache::get`].
    pub async fn wait_ready(&self, key: impl AsRef<[u8]>, limit: Duration) -> Result<Option<View>, Error> {
        let (key, started) = (key.as_ref(), Instant::now());
        let (mut pause, longest) = PAUSES;
        loop {
            if let Some(view) = self.get(key).await? {
                return Ok(Some(view));
            }
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Waits until a part of an object may be read, as [`Cache::wait_range`]. Given up, it asks no more after a quarter of a
    /// second.
    ///
    /// # Errors
    /// As [`Cache::wait_range`].
    pub async fn wait_range(
        &self,
        key: impl AsRef<[u8]>,
        range: Range<usize>,
        limit: Duration,
    ) -> Result<Option<View>, Error> {
        let (key, started) = (key.as_ref().to_vec(), Instant::now());
        loop {
            let left = limit.saturating_sub(started.elapsed());
            let (key, range, piece) = (key.clone(), range.clone(), left.min(WAIT_PIECE));
            let found = self.with(move |cache| cache.wait_range(key, range, piece)).await?;
            if found.is_some() || piece == left {
                return Ok(found);
            }
        }
    }

    /// Keeps an object from being evicted, or ends that, as [`Cache::pin`].
    ///
    /// # Errors
    /// As [`Cache::pin`].
    pub async fn pin(&self, key: impl AsRef<[u8]>, pin: Pin) -> Result<bool, Error> {
        Ok(self.pin_many(&[key], pin).await? == 1)
    }

    /// The same for many. Returns how many of them are there.
    ///
    /// # Errors
    /// As [`Cache::pin_many`].
    pub async fn pin_many<K: AsRef<[u8]>>(&self, keys: &[K], pin: Pin) -> Result<usize, Error> {
        let keys = owned(keys);
        self.with(move |cache| cache.pin_many(&keys, pin)).await
    }

    /// Keeps references to what was looked up last, as [`Cache::keep`].
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub async fn keep(&self, bytes: usize) -> Result<bool, Error> {
        self.with(move |cache| cache.keep(bytes)).await
    }

    /// Gives back the references of views that were dropped, as [`Cache::flush`].
    ///
    /// # Errors
    /// [`Error::Io`] when the runtime ends.
    pub async fn flush(&self) -> Result<(), Error> {
        self.with(|cache| {
            cache.flush();
            Ok(())
        })
        .await
    }

    /// Begins an object of `size` bytes. Its writer is filled and sealed as ever; [`AsyncCache::seal`] seals it without waiting
    /// on this thread.
    ///
    /// # Errors
    /// As [`Cache::create`].
    pub async fn create(&self, key: impl AsRef<[u8]>, size: usize) -> Result<Writer, Error> {
        let key = key.as_ref().to_vec();
        self.with(move |cache| cache.create(key, size)).await
    }

    /// Makes an object visible, whole.
    ///
    /// # Errors
    /// As [`Writer::seal`].
    pub async fn seal(&self, writer: Writer) -> Result<(), Error> {
        blocking(move || writer.seal()).await
    }

    /// Begins many objects, each given by its key and its size, as [`Cache::create_many`].
    ///
    /// # Errors
    /// As [`Cache::create_many`].
    pub async fn create_many<K: AsRef<[u8]>>(&self, objects: &[(K, usize)]) -> Result<Vec<Writer>, Error> {
        let objects: Vec<(Vec<u8>, usize)> =
            objects.iter().map(|(key, size)| (key.as_ref().to_vec(), *size)).collect();
        self.with(move |cache| cache.create_many(&objects)).await
    }

    /// Makes many objects visible, each whole.
    ///
    /// # Errors
    /// As [`Cache::seal_many`].
    pub async fn seal_many(&self, writers: Vec<Writer>) -> Result<(), Error> {
        self.with(move |cache| cache.seal_many(writers)).await
    }

    /// Stores an object, in place of what stood under its key.
    ///
    /// # Errors
    /// As [`Cache::put`].
    pub async fn put(
        &self,
        key: impl AsRef<[u8]>,
        bytes: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<(), Error> {
        let key = key.as_ref().to_vec();
        self.with(move |cache| cache.put(key, bytes.as_ref())).await
    }

    /// Stores many objects. Each becomes visible whole; on a failure others of them may be stored.
    ///
    /// # Errors
    /// As [`Cache::put_many`].
    pub async fn put_many<K, B>(&self, objects: Vec<(K, B)>) -> Result<(), Error>
    where
        K: AsRef<[u8]> + Send + 'static,
        B: AsRef<[u8]> + Send + 'static,
    {
        self.with(move |cache| cache.put_many(&borrowed(&objects))).await
    }

    /// As [`AsyncCache::put_many`]. Returns what became of each.
    ///
    /// # Errors
    /// As [`Cache::put_each`].
    pub async fn put_each<K, B>(&self, objects: Vec<(K, B)>) -> Result<Vec<Result<(), Error>>, Error>
    where
        K: AsRef<[u8]> + Send + 'static,
        B: AsRef<[u8]> + Send + 'static,
    {
        self.with(move |cache| cache.put_each(&borrowed(&objects))).await
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cache) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let cache = self.cache.clone();
        blocking(move || work(&cache)).await
    }
}

fn owned<K: AsRef<[u8]>>(keys: &[K]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.as_ref().to_vec()).collect()
}

fn borrowed<K: AsRef<[u8]>, B: AsRef<[u8]>>(objects: &[(K, B)]) -> Vec<(&[u8], &[u8])> {
    objects.iter().map(|(key, bytes)| (key.as_ref(), bytes.as_ref())).collect()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::io("run on tokio")(std::io::Error::other(error))),
        },
    }
}
