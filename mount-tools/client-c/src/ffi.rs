//! Looking at what a caller in C gives, before it is used.

use std::ffi::{CStr, c_char, c_void};

use crate::Failure;

/// What `pointer` points to.
///
/// # Safety
/// NULL, or a value that lives and is not changed while the reference does.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &'static str) -> Result<&'a T, Failure> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or(Failure::Argument(name))
}

/// What `pointer` points to, to be changed.
///
/// # Safety
/// NULL, or a value that lives and that nobody else looks at while the reference does.
pub(crate) unsafe fn exclusive<'a, T>(pointer: *mut T, name: &'static str) -> Result<&'a mut T, Failure> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_mut() }.ok_or(Failure::Argument(name))
}

/// The `count` values from `pointer` on, which may be NULL when there are none.
///
/// # Safety
/// NULL, or so many values that live and are not changed while the slice does.
pub(crate) unsafe fn values<'a, T>(
    pointer: *const T,
    count: usize,
    name: &'static str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check_array(pointer, count, name)?;
    // SAFETY: neither NULL nor longer than any array; the rest is as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// As [`values`], to be changed.
///
/// # Safety
/// As of [`values`], and nobody else looks at them.
pub(crate) unsafe fn values_mut<'a, T>(
    pointer: *mut T,
    count: usize,
    name: &'static str,
) -> Result<&'a mut [T], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    check_array(pointer, count, name)?;
    // SAFETY: neither NULL nor longer than any array; the rest is as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

fn check_array<T>(pointer: *const T, count: usize, name: &'static str) -> Result<(), Failure> {
    let bytes = count.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
    if pointer.is_null() || bytes.is_none() { Err(Failure::Argument(name)) } else { Ok(()) }
}

/// A key, or a path: a text that ends with a NUL.
///
/// # Safety
/// NULL, or such a text that lives and is not changed while the slice does.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &'static str) -> Result<&'a [u8], Failure> {
    if pointer.is_null() {
        return Err(Failure::Argument(name));
    }
    // SAFETY: not NULL; the rest is as the caller promises.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// Keys.
///
/// # Safety
/// NULL, or so many texts as [`text`] wants them.
pub(crate) unsafe fn texts<'a>(
    pointer: *const *const c_char,
    count: usize,
) -> Result<Vec<&'a [u8]>, Failure> {
    // SAFETY: as the caller promises.
    let pointers = unsafe { values(pointer, count, "keys is NULL")? };
    // SAFETY: as the caller promises.
    pointers.iter().map(|&pointer| unsafe { text(pointer, "a key is NULL") }).collect()
}

/// Gives a value to the caller.
pub(crate) fn give<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes a value back.
///
/// # Safety
/// NULL, or what [`give`] returned, once.
pub(crate) unsafe fn take_back<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: as the caller promises.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

/// The bytes from `pointer` on.
///
/// # Safety
/// As of [`values`].
pub(crate) unsafe fn bytes<'a>(
    pointer: *const c_void,
    length: usize,
    name: &'static str,
) -> Result<&'a [u8], Failure> {
    // SAFETY: as the caller promises.
    unsafe { values(pointer.cast(), length, name) }
}
