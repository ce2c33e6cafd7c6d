//! Storing objects.

use std::ffi::{c_char, c_int, c_void};

use tidefs_client::Writer;

use crate::outcome::{Failure, TIDEFS_OK, guard, guard_value};
use crate::{TidefsCache, ffi};

/// The bytes of an object that nobody sees yet. It becomes visible, whole, when it is sealed. What it holds at first means
/// nothing: zeros, or bytes of an object that was there before.
#[derive(Debug)]
pub struct TidefsWriter(Writer);

/// An object to store: its key and its bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TidefsObject {
    /// The key.
    pub key: *const c_char,
    /// The bytes; may be NULL when there are none.
    pub bytes: *const c_void,
    /// How many.
    pub length: usize,
}

const NO_CACHE: &str = "cache is NULL";
const NO_WRITER: &str = "writer is NULL";

/// Begins an object of `size` bytes. `writer`: where it goes; NULL on a failure.
///
/// # Safety
/// `cache` is NULL or an open cache, `key` NULL or a text; `writer` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_create(
    cache: *const TidefsCache,
    key: *const c_char,
    size: usize,
    writer: *mut *mut TidefsWriter,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let target = unsafe { ffi::exclusive(writer, NO_WRITER)? };
        *target = std::ptr::null_mut();
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        // SAFETY: as the caller promises.
        let key = unsafe { ffi::text(key, "key is NULL")? };
        *target = ffi::give(TidefsWriter(cache.0.create(key, size)?));
        Ok(TIDEFS_OK)
    })
}

/// Begins `count` objects with one request for many. `writers`: room for so many pointers. On a failure none is begun, and
/// all are NULL.
///
/// # Safety
/// `cache` is NULL or an open cache; `keys` has `count` texts and `sizes` as many numbers; `writers` has room for `count`
/// pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_create_many(
    cache: *const TidefsCache,
    keys: *const *const c_char,
    sizes: *const usize,
    count: usize,
    writers: *mut *mut TidefsWriter,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let targets = unsafe { ffi::values_mut(writers, count, "writers is NULL")? };
        targets.fill(std::ptr::null_mut());
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        // SAFETY: as the caller promises.
        let keys = unsafe { ffi::texts(keys, count)? };
        // SAFETY: as the caller promises.
        let sizes = unsafe { ffi::values(sizes, count, "sizes is NULL")? };
        let objects: Vec<(&[u8], usize)> = keys.into_iter().zip(sizes.iter().copied()).collect();
        for (target, writer) in targets.iter_mut().zip(cache.0.create_many(&objects)?) {
            *target = ffi::give(TidefsWriter(writer));
        }
        Ok(TIDEFS_OK)
    })
}

/// The first byte, to be written. It stays where it is until the writer ends. NULL of a writer that is NULL.
///
/// # Safety
/// `writer` is NULL or a writer that has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_writer_bytes(writer: *mut TidefsWriter) -> *mut c_void {
    // SAFETY: as the caller promises.
    let writer = unsafe { writer.as_mut() };
    guard_value(std::ptr::null_mut(), || {
        writer.map_or(std::ptr::null_mut(), |writer| writer.0.as_mut_ptr().cast())
    })
}

/// How many bytes there are.
///
/// # Safety
/// `writer` is NULL or a writer that has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_writer_length(writer: *const TidefsWriter) -> usize {
    // SAFETY: as the caller promises.
    let writer = unsafe { writer.as_ref() };
    guard_value(0, || writer.map_or(0, |writer| writer.0.len()))
}

/// Whether these are bytes of the cache themselves, which sealing does not copy.
///
/// # Safety
/// `writer` is NULL or a writer that has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_writer_is_mapped(writer: *const TidefsWriter) -> bool {
    // SAFETY: as the caller promises.
    let writer = unsafe { writer.as_ref() };
    guard_value(false, || writer.is_some_and(|writer| writer.0.is_mapped()))
}

/// Says that `length` bytes from `offset` on are as they will stay, and shows them to who waits for them (tidefs_wait_range)
/// before the object is sealed. From then on they are not written, and the object is not sealed without them.
///
/// # Safety
/// `writer` is NULL or a writer that has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_writer_ready(
    writer: *mut TidefsWriter,
    offset: usize,
    length: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let writer = unsafe { ffi::exclusive(writer, NO_WRITER)? };
        writer.0.ready(offset..offset.saturating_add(length))?;
        Ok(TIDEFS_OK)
    })
}

/// Makes the object visible with its first `length` bytes, in place of what stood under its key, and ends the writer, also
/// when it fails: then nothing changed.
///
/// # Safety
/// `writer` is NULL or a writer that has not ended; nobody uses it or its bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_writer_seal_first(writer: *mut TidefsWriter, length: usize) -> c_int {
    // SAFETY: as the caller promises.
    let writer = unsafe { ffi::take_back(writer) };
    guard(|| {
        writer.ok_or(Failure::Argument(NO_WRITER))?.0.seal_first(length)?;
        Ok(TIDEFS_OK)
    })
}

/// As tidefs_writer_seal_first, with all bytes.
///
/// # Safety
/// As of tidefs_writer_seal_first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_writer_seal(writer: *mut TidefsWriter) -> c_int {
    // SAFETY: as the caller promises.
    let writer = unsafe { ffi::take_back(writer) };
    guard(|| {
        writer.ok_or(Failure::Argument(NO_WRITER))?.0.seal()?;
        Ok(TIDEFS_OK)
    })
}

/// Seals `count` writers with one request for many, and ends them, also when it fails; then it says the first failure
/// after all were tried. Those that are NULL are passed over. Where one is given twice nothing is done, and none has ended.
///
/// # Safety
/// `cache` is NULL or the open cache that they are of; each writer as of tidefs_writer_seal_first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_seal_many(
    cache: *const TidefsCache,
    writers: *const *mut TidefsWriter,
    count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let pointers = unsafe { ffi::values(writers, count, "writers is NULL")? };
        let mut given: Vec<_> = pointers.iter().filter(|writer| !writer.is_null()).collect();
        given.sort_unstable();
        if given.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Failure::Argument("a writer is given twice"));
        }
        // SAFETY: as the caller promises.
        let taken = pointers.iter().filter_map(|&writer| unsafe { ffi::take_back(writer) });
        let writers = taken.map(|writer| writer.0).collect();
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        cache.0.seal_many(writers)?;
        Ok(TIDEFS_OK)
    })
}

/// Ends a writer without a trace of its object. NULL is passed over.
///
/// # Safety
/// `writer` is NULL or a writer that has not ended; nobody uses it or its bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_writer_abort(writer: *mut TidefsWriter) {
    // SAFETY: as the caller promises.
    let writer = unsafe { ffi::take_back(writer) };
    guard_value((), || drop(writer));
}

/// Stores `count` objects, the first ones first, each in place of what stood under its key. Each becomes visible whole. They may be
/// more than the cache holds: then it has the last of them. After a failure the others are tried all the same; the first one is
/// told. With a key that no file can have, nothing is stored.
///
/// # Safety
/// `cache` is NULL or an open cache; `objects` has `count` of them, each with a text and with bytes that may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_put_many(
    cache: *const TidefsCache,
    objects: *const TidefsObject,
    count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        // SAFETY: as the caller promises.
        let objects = unsafe { ffi::values(objects, count, "objects is NULL")? };
        // SAFETY: as the caller promises.
        let object = |object| unsafe { object_of(object) };
        let objects = objects.iter().map(object).collect::<Result<Vec<_>, Failure>>()?;
        cache.0.put_many(&objects)?;
        Ok(TIDEFS_OK)
    })
}

/// As tidefs_put_many: the first failure is what it returns. `outcomes`: where goes what became of each object, TIDEFS_OK or a
/// negative number of errno. Where an argument makes no sense nothing is stored, and all of them are what the function returns.
///
/// # Safety
/// As of tidefs_put_many; `outcomes` has room for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_put_each(
    cache: *const TidefsCache,
    objects: *const TidefsObject,
    count: usize,
    outcomes: *mut c_int,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let outcomes = unsafe { ffi::values_mut(outcomes, count, "outcomes is NULL")? };
        outcomes.fill(-libc::EINVAL);
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, NO_CACHE)? };
        // SAFETY: as the caller promises.
        let objects = unsafe { ffi::values(objects, count, "objects is NULL")? };
        // SAFETY: as the caller promises.
        let object = |object| unsafe { object_of(object) };
        let objects = objects.iter().map(object).collect::<Result<Vec<_>, Failure>>()?;
        let stored = cache.0.put_each(&objects).inspect_err(|error| outcomes.fill(-error.errno()))?;
        let mut failure = None;
        for (outcome, stored) in outcomes.iter_mut().zip(stored) {
            *outcome = stored.as_ref().map_or_else(|error| -error.errno(), |()| TIDEFS_OK);
            failure = failure.or(stored.err());
        }
        failure.map_or(Ok(TIDEFS_OK), |error| Err(error.into()))
    })
}

/// The key and the bytes of an object to store.
///
/// # Safety
/// As of tidefs_put_many.
unsafe fn object_of(object: &TidefsObject) -> Result<(&[u8], &[u8]), Failure> {
    // SAFETY: as the caller promises.
    let key = unsafe { ffi::text(object.key, "a key is NULL")? };
    // SAFETY: as the caller promises.
    let bytes = unsafe { ffi::bytes(object.bytes, object.length, "the bytes of an object are NULL")? };
    Ok((key, bytes))
}

/// Stores one object. See tidefs_put_many.
///
/// # Safety
/// As of tidefs_put_many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_put(
    cache: *const TidefsCache,
    key: *const c_char,
    bytes: *const c_void,
    length: usize,
) -> c_int {
    let object = TidefsObject { key, bytes, length };
    // SAFETY: as the caller promises; the object lives until the call returns.
    unsafe { tidefs_put_many(cache, &raw const object, 1) }
}
