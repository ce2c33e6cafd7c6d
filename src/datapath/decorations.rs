//! Attributes of applications (`user.*` but for [`PREFIX`]) on the file that keeps them.
//!
//! Under their own names, where its file system has such attributes; tmpfs before Linux 6.6 has none, and there they stand under
//! [`ASIDE`], which needs `CAP_SYS_ADMIN` as the private tmpfs itself does.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use xattr::FileExt as _;

use super::Error;
use super::xattrs::PREFIX;

/// What names of applications begin with.
pub(super) const USER: &str = "user.";
/// How many one file may have.
pub(super) const COUNT_MAX: usize = 128;
/// Bytes of the names and values of one file: the longest value that Linux takes, and as much beside it.
pub(super) const BYTES_MAX: usize = 128 << 10;
/// What stands in place of [`USER`] on a file system without such attributes.
const ASIDE: &str = "trusted.tidefs.user.";

/// Does something under a name, or under the one that stands in its place.
fn under<T>(name: &str, act: impl Fn(&str) -> io::Result<T>) -> io::Result<T> {
    match act(name) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            act(&format!("{ASIDE}{}", name.strip_prefix(USER).unwrap_or(name)))
        }
        outcome => outcome,
    }
}

/// What the kernel says of an attribute, as the program is told it.
pub(super) fn told(source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::ENODATA) => Error::NoAttribute,
        Some(libc::EINVAL | libc::ERANGE) => Error::Invalid("no attribute has such a name"),
        // ext4 keeps a block of them, other file systems bound the bytes of one.
        Some(libc::ENOSPC | libc::EDQUOT | libc::E2BIG) => Error::AttributesFull,
        Some(libc::EOPNOTSUPP) => Error::Unsupported("attributes on the file system of slot files"),
        _ => Error::io("attribute of an object")(source),
    }
}

/// The value of `name`, if it has one.
pub(super) fn get(file: &File, name: &str) -> io::Result<Option<Vec<u8>>> {
    under(name, |name| file.get_xattr(name))
}

pub(super) fn set(file: &File, name: &str, value: &[u8]) -> io::Result<()> {
    under(name, |name| file.set_xattr(name, value))
}

/// Whether a value fits beside what is there: the kernel keeps them outside of what the cache counts, and tmpfs has no bound.
pub(super) fn has_room(file: &File, name: &str, value: &[u8]) -> io::Result<bool> {
    let (mut count, mut bytes) = (1, name.len() + value.len());
    for other in names(file)? {
        let Ok(other) = OsString::from_vec(other).into_string() else { continue };
        if other != name {
            count += 1;
            bytes += other.len() + get(file, &other)?.map_or(0, |value| value.len());
        }
    }
    Ok(count <= COUNT_MAX && bytes <= BYTES_MAX)
}

/// Removes it; `ENODATA` when there is none.
pub(super) fn remove(file: &File, name: &str) -> io::Result<()> {
    under(name, |name| file.remove_xattr(name))
}

/// The names that applications gave.
pub(super) fn names(file: &File) -> io::Result<Vec<Vec<u8>>> {
    Ok(file.list_xattr()?.filter_map(|name| named(name.as_bytes())).collect())
}

/// The name that an application gave to what stands under `found`.
fn named(found: &[u8]) -> Option<Vec<u8>> {
    if let Some(rest) = found.strip_prefix(ASIDE.as_bytes()) {
        return Some([USER.as_bytes(), rest].concat());
    }
    (found.starts_with(USER.as_bytes()) && !found.starts_with(PREFIX.as_bytes())).then(|| found.to_vec())
}

/// Copies them from one file to another, which may be on another file system.
pub(super) fn copy(source: &File, target: &File) -> io::Result<()> {
    for name in names(source)? {
        // A name that is not text was given by no request.
        let Ok(name) = OsString::from_vec(name).into_string() else { continue };
        if let Some(value) = get(source, &name)? {
            set(target, &name, &value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> io::Error {
        io::Error::from_raw_os_error(libc::EOPNOTSUPP)
    }

    #[test]
    fn where_there_are_no_such_attributes_another_name_stands_in_their_place() {
        let tried = |name: &str| if name.starts_with(USER) { Err(refused()) } else { Ok(name.to_owned()) };
        let stands = under("user.a.b", tried).unwrap();
        assert_eq!(stands, "trusted.tidefs.user.a.b");
        assert_eq!(named(stands.as_bytes()).unwrap(), b"user.a.b");
        assert_eq!(under("user.a", |name| Ok(name.to_owned())).unwrap(), "user.a");
    }

    #[test]
    fn records_and_what_is_not_of_applications_are_not_named() {
        assert_eq!(named(b"user.tidefs.record"), None);
        assert_eq!(named(b"trusted.tidefs.record"), None);
        assert_eq!(named(b"security.selinux"), None);
        assert_eq!(named(b"user.own").unwrap(), b"user.own");
    }

    #[test]
    fn what_the_file_system_has_no_room_for_or_does_not_take_is_no_failure_of_the_daemon() {
        let of = |errno| told(io::Error::from_raw_os_error(errno));
        assert!(matches!(of(libc::EINVAL), Error::Invalid(_)));
        assert!(matches!(of(libc::ENOSPC), Error::AttributesFull));
        assert!(matches!(of(libc::E2BIG), Error::AttributesFull));
        assert!(matches!(of(libc::ENODATA), Error::NoAttribute));
        assert!(matches!(of(libc::EBADF), Error::Io { .. }));
    }

    #[test]
    fn they_are_copied_from_file_to_file() {
        let [source, target] = [(), ()].map(|()| tempfile::tempfile_in("/dev/shm").unwrap());
        set(&source, "user.own", b"1").unwrap();
        copy(&source, &target).unwrap();
        assert_eq!(
            (names(&target).unwrap(), get(&target, "user.own").unwrap()),
            (vec![b"user.own".to_vec()], Some(b"1".to_vec()))
        );
        remove(&target, "user.own").unwrap();
        assert_eq!(remove(&target, "user.own").unwrap_err().raw_os_error(), Some(libc::ENODATA));
    }
}
