//! Opening a cache, and finding objects in it.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use tidefs_client::{Cache, Error, Pin, View};

use crate::outcome::{Failure, TIDEFS_MISS, TIDEFS_OK, guard, guard_value, note_failure};
use crate::{TidefsView, ffi};

/// An open cache: a directory of a tidefs mount, or any directory.
#[derive(Debug)]
pub struct TidefsCache(pub(crate) Cache);

const NO_CACHE: &str = "cache is NULL";
const NO_VIEW: &str = "view is NULL";

/// Opens the cache at `directory`: a mount of tidefs, or a directory below it, for keys relative to that. On another
/// filesystem, and where the daemon or the kernel lacks something, all functions do the same by file.
///
/// `cache`: where it goes; NULL on a failure.
///
/// # Safety
/// `directory` is NULL or a text; `cache` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_open(directory: *const c_char, cache: *mut *mut TidefsCache) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let target = unsafe { ffi::exclusive(cache, NO_CACHE)? };
        *target = std::ptr::null_mut();
        // SAFETY: as the caller promises.
        let directory = unsafe { ffi::text(directory, "directory is NULL")? };
        let cache = Cache::open(Path::new(OsStr::from_bytes(directory)))?;
        *target = ffi::give(TidefsCache(cache));
        Ok(TIDEFS_OK)
    })
}

/// Closes a cache. Its views and writers may outlive it. NULL is passed over.
///
/// # Safety
/// `cache` is NULL or an open cache that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_close(cache: *mut TidefsCache) {
    // SAFETY: as the caller promises.
    let cache = unsafe { ffi::take_back(cache) };
    guard_value((), || drop(cache));
}

/// Whether objects are mapped; else all is done by file. When the daemon is started again they are not, from the call that finds
/// the last one gone to the one that finds the next; this is no such call.
///
/// # Safety
/// `cache` is NULL or an open cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_is_fast(cache: *const TidefsCache) -> bool {
    // SAFETY: as the caller promises.
    let cache = unsafe { cache.as_ref() };
    guard_value(false, || cache.is_some_and(|cache| cache.0.is_fast()))
}

/// The bytes of an object. `view`: where they go; NULL of a miss or a failure.
///
/// # Safety
/// `cache` is NULL or an open cache, `key` NULL or a text; `view` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_get(
    cache: *const TidefsCache,
    key: *const c_char,
    view: *mut *mut TidefsView,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { give_view(cache, key, view, |cache, key| cache.get(key)) }
}

/// The bytes of `count` objects, with one request for many. `views`: room for so many pointers; each that is NULL
/// afterwards is a miss. On a failure all are NULL.
///
/// # Safety
/// `cache` is NULL or an open cache; `keys` has `count` texts; `views` has room for `count` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_lookup_many(
    cache: *const TidefsCache,
    keys: *const *const c_char,
    count: usize,
    views: *mut *mut TidefsView,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let targets = unsafe { ffi::values_mut(views, count, "views is NULL")? };
        targets.fill(std::ptr::null_mut());
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        // SAFETY: as the caller promises.
        let keys = unsafe { ffi::texts(keys, count)? };
        for (target, found) in targets.iter_mut().zip(cache.0.lookup_many(&keys)?) {
            *target = found.map_or(std::ptr::null_mut(), |view| ffi::give(TidefsView(view)));
        }
        Ok(TIDEFS_OK)
    })
}

/// As tidefs_lookup_many. `outcomes`: where goes what became of each key, TIDEFS_OK, TIDEFS_MISS or a negative number of errno. An
/// object that may not be read fails neither the others nor the function, which returns TIDEFS_OK. Where an argument makes no
/// sense, all of them are what the function returns.
///
/// # Safety
/// As of tidefs_lookup_many; `outcomes` has room for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_lookup_each(
    cache: *const TidefsCache,
    keys: *const *const c_char,
    count: usize,
    views: *mut *mut TidefsView,
    outcomes: *mut c_int,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let targets = unsafe { ffi::values_mut(views, count, "views is NULL")? };
        targets.fill(std::ptr::null_mut());
        // SAFETY: as the caller promises.
        let outcomes = unsafe { ffi::values_mut(outcomes, count, "outcomes is NULL")? };
        outcomes.fill(-libc::EINVAL);
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        // SAFETY: as the caller promises.
        let keys = unsafe { ffi::texts(keys, count)? };
        let found = cache.0.lookup_each(&keys).inspect_err(|error| outcomes.fill(-error.errno()))?;
        for ((target, outcome), found) in targets.iter_mut().zip(outcomes).zip(found) {
            *outcome = match found {
                Ok(Some(view)) => {
                    *target = ffi::give(TidefsView(view));
                    TIDEFS_OK
                }
                Ok(None) => TIDEFS_MISS,
                Err(error) => note_failure(&error),
            };
        }
        Ok(TIDEFS_OK)
    })
}

/// Copies the first bytes of an object to `target`, `capacity` at most. `length`: where the length of the whole object
/// goes; 0 of a miss or a failure.
///
/// # Safety
/// `cache` is NULL or an open cache, `key` NULL or a text; `target` has room for `capacity` bytes; `length` is NULL or may
/// be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_get_into(
    cache: *const TidefsCache,
    key: *const c_char,
    target: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let length = unsafe { ffi::exclusive(length, "length is NULL")? };
        *length = 0;
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        // SAFETY: as the caller promises.
        let key = unsafe { ffi::text(key, "key is NULL")? };
        // SAFETY: as the caller promises.
        let target = unsafe { ffi::values_mut(target.cast::<u8>(), capacity, "target is NULL")? };
        let Some(whole) = cache.0.get_into(key, target)? else { return Ok(TIDEFS_MISS) };
        *length = whole;
        Ok(TIDEFS_OK)
    })
}

/// How many of the keys, from the first on, are there: the longest prefix of a chain that the cache has. `present`: where
/// the number goes.
///
/// # Safety
/// `cache` is NULL or an open cache; `keys` has `count` texts; `present` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_prefix(
    cache: *const TidefsCache,
    keys: *const *const c_char,
    count: usize,
    present: *mut usize,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { give_count(cache, (keys, count), present, |cache, keys| Ok(cache.prefix(keys)?)) }
}

/// Asks for objects that are below memory to be brought into it. Does not wait; what is not there is passed over.
///
/// # Safety
/// `cache` is NULL or an open cache; `keys` has `count` texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_prefetch(
    cache: *const TidefsCache,
    keys: *const *const c_char,
    count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        // SAFETY: as the caller promises.
        let keys = unsafe { ffi::texts(keys, count)? };
        cache.0.prefetch(&keys)?;
        Ok(TIDEFS_OK)
    })
}

/// Waits until an object is there, `limit_ms` milliseconds at most. `view`: where its bytes go; NULL when it did not come.
///
/// # Safety
/// As of tidefs_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_wait(
    cache: *const TidefsCache,
    key: *const c_char,
    limit_ms: u64,
    view: *mut *mut TidefsView,
) -> c_int {
    let limit = Duration::from_millis(limit_ms);
    // SAFETY: as the caller promises.
    unsafe { give_view(cache, key, view, |cache, key| cache.wait_ready(key, limit)) }
}

/// Keeps references to the objects that were looked up last, up to `bytes` bytes of them, when their views are released: who
/// looks the same keys up again is answered without the daemon. What is kept cannot be evicted; it is given back after some
/// seconds without use. 0 ends it. What is unlinked, replaced or forbidden is seen at once, as without it. TIDEFS_MISS when
/// nothing can be kept: without a fast path, or with a daemon that has no names clock.
///
/// # Safety
/// `cache` is NULL or an open cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_keep(cache: *const TidefsCache, bytes: usize) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        Ok(if cache.0.keep(bytes)? { TIDEFS_OK } else { TIDEFS_MISS })
    })
}

/// Has objects that are begun or stored from now on get the permissions `mode`, whatever the umask is; of its bits those of
/// 0777 count. With a negative number, as before the first call, they get what the umask of their moment leaves, as by open(2): to
/// ask for that takes some microseconds for each call that begins or stores by the fast path. What is begun without it gets what
/// holds when it is sealed. Directories are made as the umask says.
///
/// # Safety
/// `cache` is NULL or an open cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_set_mode(cache: *const TidefsCache, mode: c_int) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        cache.0.set_mode(u32::try_from(mode).ok());
        Ok(TIDEFS_OK)
    })
}

/// Gives back what views that were released held in the daemon, kept references included. Without it that goes back along with later ones.
///
/// # Safety
/// `cache` is NULL or an open cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_flush(cache: *const TidefsCache) {
    // SAFETY: as the caller promises.
    let cache = unsafe { cache.as_ref() };
    guard_value((), || {
        if let Some(cache) = cache {
            cache.0.flush();
        }
    });
}

/// Waits until a part of an object may be read, `limit_ms` milliseconds at most: of one that is there, or of one that is
/// still written and of which that part is ready (tidefs_writer_ready). `view`: where those bytes go, fewer where the
/// object ends; NULL when they did not come.
///
/// # Safety
/// As of tidefs_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_wait_range(
    cache: *const TidefsCache,
    key: *const c_char,
    offset: usize,
    length: usize,
    limit_ms: u64,
    view: *mut *mut TidefsView,
) -> c_int {
    let (range, limit) = (offset..offset.saturating_add(length), Duration::from_millis(limit_ms));
    // SAFETY: as the caller promises.
    unsafe { give_view(cache, key, view, |cache, key| cache.wait_range(key, range, limit)) }
}

/// Pin of tidefs_pin_many: none.
pub const TIDEFS_PIN_NONE: c_int = 0;

/// Pin of tidefs_pin_many: the object goes after all that are not pinned.
pub const TIDEFS_PIN_SOFT: c_int = 1;

/// Pin of tidefs_pin_many: the object does not go.
pub const TIDEFS_PIN_HARD: c_int = 2;

/// Keeps `count` objects from being evicted, or ends that. `pin`: TIDEFS_PIN_NONE, TIDEFS_PIN_SOFT or TIDEFS_PIN_HARD.
/// `ttl_s`: seconds for which a soft pin holds; 0 is without an end. `present`: where goes how many of them are there.
///
/// # Safety
/// `cache` is NULL or an open cache; `keys` has `count` texts; `present` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_pin_many(
    cache: *const TidefsCache,
    keys: *const *const c_char,
    count: usize,
    pin: c_int,
    ttl_s: u64,
    present: *mut usize,
) -> c_int {
    let pin_them = |cache: &Cache, keys: &[&[u8]]| {
        let pin = match (pin, ttl_s) {
            (TIDEFS_PIN_NONE, _) => Pin::None,
            (TIDEFS_PIN_SOFT, 0) => Pin::Soft { ttl_s: None },
            (TIDEFS_PIN_SOFT, ttl_s) => Pin::Soft { ttl_s: Some(ttl_s) },
            (TIDEFS_PIN_HARD, _) => Pin::Hard,
            _ => return Err(Failure::Argument("there is no such pin")),
        };
        Ok(cache.pin_many(keys, pin)?)
    };
    // SAFETY: as the caller promises.
    unsafe { give_count(cache, (keys, count), present, pin_them) }
}

/// Gives out the view that `find` comes back with, or NULL.
///
/// # Safety
/// As of tidefs_get.
unsafe fn give_view(
    cache: *const TidefsCache,
    key: *const c_char,
    view: *mut *mut TidefsView,
    find: impl FnOnce(&Cache, &[u8]) -> Result<Option<View>, Error>,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let target = unsafe { ffi::exclusive(view, NO_VIEW)? };
        *target = std::ptr::null_mut();
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        // SAFETY: as the caller promises.
        let key = unsafe { ffi::text(key, "key is NULL")? };
        let Some(found) = find(&cache.0, key)? else { return Ok(TIDEFS_MISS) };
        *target = ffi::give(TidefsView(found));
        Ok(TIDEFS_OK)
    })
}

/// Gives out how many of the keys `count_them` counts; 0 on a failure.
///
/// # Safety
/// As of tidefs_prefix.
unsafe fn give_count(
    cache: *const TidefsCache,
    (keys, count): (*const *const c_char, usize),
    present: *mut usize,
    count_them: impl FnOnce(&Cache, &[&[u8]]) -> Result<usize, Failure>,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let present = unsafe { ffi::exclusive(present, "present is NULL")? };
        *present = 0;
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        // SAFETY: as the caller promises.
        let keys = unsafe { ffi::texts(keys, count)? };
        *present = count_them(&cache.0, &keys)?;
        Ok(TIDEFS_OK)
    })
}
