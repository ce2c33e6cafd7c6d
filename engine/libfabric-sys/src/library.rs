//! The library in this process, and the functions that it exports for applications.

use std::env;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::{self, NonNull};

use crate::attributes::{fi_fabric_attr, fi_info};
use crate::objects::fid_fabric;
use crate::signals::KeptSignals;

/// Environment variable that names the library's file, or the folder that holds it, before any other place.
pub const SEARCH_VARIABLE: &str = "TIDEFS_LIBFABRIC";

/// The oldest release whose structures and flags these are.
const OLDEST: u32 = crate::version(1, 17);

const FILE_NAME: &str = "libfabric.so.1";
/// Where the installer of the EFA driver puts its own build, which alone knows new cards.
const EFA_FOLDER: &str = "/opt/amazon/efa/lib";
const EFA_FOLDER_64: &str = "/opt/amazon/efa/lib64";

/// Why there is no libfabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryError {
    /// Files that were tried, in order.
    pub tried: Vec<String>,
    /// Why those that were found are not used; where none was, what the loader said about the last.
    pub cause: String,
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no libfabric (tried {}): {}", self.tried.join(", "), self.cause)
    }
}

impl std::error::Error for LibraryError {}

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type Fabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;
type Version = unsafe extern "C" fn() -> u32;

/// libfabric, loaded. It stays loaded until the process ends, once it is used: providers start threads that outlive every object.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    fi_getinfo: GetInfo,
    fi_freeinfo: FreeInfo,
    fi_dupinfo: DupInfo,
    fi_fabric: Fabric,
    fi_strerror: StrError,
    fi_version: Version,
}

impl Library {
    /// Loads the library from the first place that has one of a release that is known here: what [`SEARCH_VARIABLE`] names,
    /// the folder of the EFA driver, the loader's own path.
    ///
    /// When the variable is set, nothing else is tried: a choice that fails is told, not replaced.
    ///
    /// # Errors
    /// [`LibraryError`] with every file that was tried.
    pub fn open() -> Result<Self, LibraryError> {
        Self::open_first(&candidates(env::var_os(SEARCH_VARIABLE)))
    }

    fn open_first(files: &[OsString]) -> Result<Self, LibraryError> {
        let (mut unusable, mut not_loaded) = (Vec::new(), String::new());
        for file in files {
            match load(file) {
                Ok(handle) => match Self::from_handle(handle) {
                    Ok(library) => return Ok(library),
                    Err(cause) => {
                        unusable.push(format!("{} {cause}", file.to_string_lossy()));
                        close(handle);
                    }
                },
                Err(said) => not_loaded = said,
            }
        }
        let tried = files.iter().map(|file| file.to_string_lossy().into_owned()).collect();
        let cause = if unusable.is_empty() { not_loaded } else { unusable.join("; ") };
        Err(LibraryError { tried, cause })
    }

    /// The library of that handle, or what is wrong with it.
    fn from_handle(handle: NonNull<c_void>) -> Result<Self, String> {
        let symbol = |name: &CStr| {
            // SAFETY: the handle is of a library that is not closed before this returns, and the name ends with a zero.
            NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) })
                .ok_or_else(|| format!("has no symbol {}", name.to_string_lossy()))
        };
        macro_rules! function {
            ($name:literal as $type:ty) => {
                // SAFETY: the library documents this signature for the symbol, in every version since 1.0.
                unsafe { std::mem::transmute::<NonNull<c_void>, $type>(symbol($name)?) }
            };
        }
        let library = Self {
            fi_getinfo: function!(c"fi_getinfo" as GetInfo),
            fi_freeinfo: function!(c"fi_freeinfo" as FreeInfo),
            fi_dupinfo: function!(c"fi_dupinfo" as DupInfo),
            fi_fabric: function!(c"fi_fabric" as Fabric),
            fi_strerror: function!(c"fi_strerror" as StrError),
            fi_version: function!(c"fi_version" as Version),
        };
        let version = library.version();
        if version < OLDEST {
            let (major, minor) = (version >> 16, version & 0xffff);
            return Err(format!("is version {major}.{minor}, and 1.17 or later is needed"));
        }
        Ok(library)
    }

    /// Version of the library, as [`crate::version`] packs it.
    #[must_use]
    pub fn version(&self) -> u32 {
        // SAFETY: fi_version(3) takes nothing and reads a constant.
        unsafe { (self.fi_version)() }
    }

    /// What an error number means, in libfabric's words. `code` is positive.
    #[must_use]
    pub fn describe(&self, code: i32) -> String {
        // SAFETY: fi_strerror(3) takes any number and returns a text that lives at least until this thread's next call.
        let text = unsafe { (self.fi_strerror)(code) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: not null, and a C string as fi_strerror(3) promises.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// An `fi_info` with all attributes, empty. Null when there is no memory. Freed by [`Self::free_info`].
    #[must_use]
    pub fn allocate_info(&self) -> *mut fi_info {
        // SAFETY: fi_dupinfo(3) of null is fi_allocinfo(3).
        unsafe { (self.fi_dupinfo)(ptr::null()) }
    }

    /// A copy of `info`. Null when there is no memory.
    ///
    /// # Safety
    /// `info` comes from this library and is not freed yet.
    #[must_use]
    pub unsafe fn duplicate_info(&self, info: *const fi_info) -> *mut fi_info {
        // SAFETY: the caller keeps it.
        unsafe { (self.fi_dupinfo)(info) }
    }

    /// fi_getinfo(3): offers that fit `hints`, as a list. Returns 0 or a negated error number.
    ///
    /// # Safety
    /// `hints` is null or comes from this library; strings in it were allocated with malloc(3).
    pub unsafe fn get_info(
        &self,
        api: u32,
        node: Option<&CStr>,
        flags: u64,
        hints: *const fi_info,
        offers: &mut *mut fi_info,
    ) -> c_int {
        let node = node.map_or(ptr::null(), CStr::as_ptr);
        // The first call loads the providers.
        let _kept = KeptSignals::now();
        // SAFETY: the caller keeps it for `hints`; the other pointers are borrowed for the call.
        unsafe { (self.fi_getinfo)(api, node, ptr::null(), flags, hints, offers) }
    }

    /// fi_freeinfo(3): frees a list.
    ///
    /// # Safety
    /// `info` comes from this library and is not used any more.
    pub unsafe fn free_info(&self, info: *mut fi_info) {
        // SAFETY: the caller keeps it.
        unsafe { (self.fi_freeinfo)(info) };
    }

    /// fi_fabric(3). Returns 0 or a negated error number.
    ///
    /// # Safety
    /// `attr` belongs to an offer of this library that is not freed yet.
    pub unsafe fn fabric(&self, attr: *mut fi_fabric_attr, fabric: &mut *mut fid_fabric) -> c_int {
        // SAFETY: the caller keeps it.
        unsafe { (self.fi_fabric)(attr, fabric, ptr::null_mut()) }
    }
}

/// Files to try, in order.
fn candidates(chosen: Option<OsString>) -> Vec<OsString> {
    if let Some(chosen) = chosen.filter(|chosen| !chosen.is_empty()) {
        let path = PathBuf::from(chosen);
        let file = if path.is_dir() { path.join(FILE_NAME) } else { path };
        return vec![file.into_os_string()];
    }
    let in_folder = |folder: &str| PathBuf::from(folder).join(FILE_NAME).into_os_string();
    vec![in_folder(EFA_FOLDER), in_folder(EFA_FOLDER_64), FILE_NAME.into()]
}

/// dlclose(3), of what nobody has a function of: for as long as it is loaded the loader takes it for every other of its name.
fn close(handle: NonNull<c_void>) {
    // SAFETY: the handle comes from `load` and is used no more. The library has run nothing but its initialisers and
    // `fi_version`, so no provider of it has started a thread.
    unsafe { libc::dlclose(handle.as_ptr()) };
}

/// dlopen(3), with the loader's words when it fails.
fn load(file: &OsStr) -> Result<NonNull<c_void>, String> {
    let name = CString::new(file.as_bytes()).map_err(|_| "the name contains a zero".to_owned())?;
    let _kept = KeptSignals::now();
    // SAFETY: the name ends with a zero. Initialisers of the library run here; libfabric's touch nothing of ours.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    NonNull::new(handle).ok_or_else(|| {
        // SAFETY: dlerror(3) returns null or the text of this thread's last failure.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return "dlopen failed".to_owned();
        }
        // SAFETY: not null, so a C string that is valid until this thread's next call of the loader.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_chosen_file_is_the_only_candidate() {
        assert_eq!(candidates(Some("/x/libfabric.so".into())), ["/x/libfabric.so"]);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(candidates(Some(folder.path().into())), [folder.path().join(FILE_NAME)]);
        for unset in [None, Some(OsString::new())] {
            assert_eq!(candidates(unset).last().unwrap(), FILE_NAME);
        }
    }

    #[test]
    fn a_missing_library_says_which_files_were_tried() {
        let error = Library::open_first(&["/nowhere/a.so".into(), "/nowhere/b.so".into()]).unwrap_err();
        assert_eq!(error.tried, ["/nowhere/a.so", "/nowhere/b.so"]);
        assert!(error.to_string().contains("/nowhere/b.so"), "{error}");
    }

    #[test]
    fn a_library_that_is_not_libfabric_names_the_missing_symbol() {
        let error = Library::open_first(&["libc.so.6".into()]).unwrap_err();
        assert_eq!(error.cause, "libc.so.6 has no symbol fi_getinfo", "{error}");
    }

    #[test]
    fn what_is_found_and_cannot_be_used_is_passed_over_and_told() {
        let files = ["libc.so.6", "/nowhere/b.so"].map(OsString::from);
        let error = Library::open_first(&files).unwrap_err();
        assert_eq!(error.tried, ["libc.so.6", "/nowhere/b.so"]);
        assert_eq!(error.cause, "libc.so.6 has no symbol fi_getinfo", "{error}");
        // The installed one, where there is one.
        let is_installed = load(OsStr::new(FILE_NAME)).is_ok();
        assert_eq!(Library::open_first(&["libc.so.6".into(), FILE_NAME.into()]).is_ok(), is_installed);
    }

    /// A library of that release, under the name by which the loader knows it.
    fn of_release_1_11(folder: &Path) -> Option<OsString> {
        let (source, file) = (folder.join("old.c"), folder.join(FILE_NAME));
        let others = ["getinfo", "freeinfo", "dupinfo", "fabric", "strerror"];
        let mut text = String::from("unsigned fi_version(void) { return 1 << 16 | 11; }\n");
        others.iter().for_each(|name| text += &format!("void fi_{name}(void) {{}}\n"));
        std::fs::write(&source, text).unwrap();
        let name = format!("-Wl,-soname,{FILE_NAME}");
        let compiled = Command::new("cc").args(["-shared", &name, "-o"]).args([&file, &source]).status();
        if let Err(error) = compiled {
            println!("skipped: no C compiler `cc` to build a library with: {error}");
            return None;
        }
        assert!(compiled.unwrap().success());
        Some(file.into_os_string())
    }

    #[test]
    fn one_that_is_too_old_hides_no_newer_one_of_the_same_name() {
        let folder = tempfile::tempdir().unwrap();
        let Some(old) = of_release_1_11(folder.path()) else { return };
        let error = Library::open_first(std::slice::from_ref(&old)).unwrap_err();
        assert!(error.cause.ends_with(" is version 1.11, and 1.17 or later is needed"), "{error}");
        if let Err(error) = Library::open_first(&[old, FILE_NAME.into()]) {
            let is_missing = load(OsStr::new(FILE_NAME)).is_err();
            assert!(is_missing, "the installed one is as good as not there: {error}");
            println!("skipped: no libfabric is installed that could be hidden");
        }
    }
}
