//! Bytes of objects, while somebody looks at them.

use std::ffi::c_void;

use tidefs_client::View;

use crate::ffi;
use crate::outcome::guard_value;

/// The bytes of one object. They do not change, and do not leave the cache, until the view is released.
#[derive(Debug)]
pub struct TidefsView(pub(crate) View);

/// The first byte. It stays where it is until the view is released. NULL of a view that is NULL.
///
/// # Safety
/// `view` is NULL or a view that was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_view_bytes(view: *const TidefsView) -> *const c_void {
    // SAFETY: as the caller promises.
    let view = unsafe { view.as_ref() };
    guard_value(std::ptr::null(), || view.map_or(std::ptr::null(), |view| view.0.as_ptr().cast()))
}

/// How many bytes there are.
///
/// # Safety
/// `view` is NULL or a view that was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_view_length(view: *const TidefsView) -> usize {
    // SAFETY: as the caller promises.
    let view = unsafe { view.as_ref() };
    guard_value(0, || view.map_or(0, |view| view.0.len()))
}

/// Which version of the object it is; 0 when only its file knows.
///
/// # Safety
/// `view` is NULL or a view that was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_view_version(view: *const TidefsView) -> u64 {
    // SAFETY: as the caller promises.
    let view = unsafe { view.as_ref() };
    guard_value(0, || view.map_or(0, |view| view.0.version()))
}

/// Whether these are the bytes of the cache themselves, not a copy of them.
///
/// # Safety
/// `view` is NULL or a view that was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_view_is_mapped(view: *const TidefsView) -> bool {
    // SAFETY: as the caller promises.
    let view = unsafe { view.as_ref() };
    guard_value(false, || view.is_some_and(|view| view.0.is_mapped()))
}

/// Whether a device may read them where they are: see tidefs_register_with.
///
/// # Safety
/// `view` is NULL or a view that was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_view_is_registered(view: *const TidefsView) -> bool {
    // SAFETY: as the caller promises.
    let view = unsafe { view.as_ref() };
    guard_value(false, || view.is_some_and(|view| view.0.is_registered()))
}

/// Ends a view. NULL is passed over.
///
/// # Safety
/// `view` is NULL or a view that was not released; nobody uses it or its bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_view_release(view: *mut TidefsView) {
    // SAFETY: as the caller promises.
    let view = unsafe { ffi::take_back(view) };
    guard_value((), || drop(view));
}

/// Ends `count` views. Those that are NULL are passed over, and so is an array that is NULL.
///
/// # Safety
/// As of tidefs_view_release, for each of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_views_release(views: *const *mut TidefsView, count: usize) {
    // SAFETY: as the caller promises.
    let Ok(views) = (unsafe { ffi::values(views, count, "views is NULL") }) else { return };
    for &view in views {
        // SAFETY: as the caller promises.
        unsafe { tidefs_view_release(view) };
    }
}
