//! Addresses of unix sockets whose path is longer than the kernel's 107 bytes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Longest path that fits `sockaddr_un`, its NUL left out; `unix(7)`.
pub const PATH_MAX: usize = 107;

/// A path by which to bind or connect a unix socket, good for as long as this lives.
///
/// A long path is reached through its open folder: `/proc/self/fd/N/name`.
#[derive(Debug)]
pub struct SocketAddress {
    path: PathBuf,
    _folder: Option<File>,
}

impl SocketAddress {
    /// The address of the socket at `path`; its folder exists.
    ///
    /// # Errors
    /// The path is long and its folder cannot be opened, or it has no file name.
    pub fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= PATH_MAX {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        let flags = nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_DIRECTORY;
        let folder = OpenOptions::new().read(true).custom_flags(flags.bits()).open(folder)?;
        let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Self { path: short, _folder: Some(folder) })
    }

    /// The path to bind or connect.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_socket_below_a_long_path_is_bound_and_reached() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("d".repeat(120));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("control.sock");
        assert!(UnixListener::bind(&path).is_err(), "the path is not too long; the test shows nothing");
        let _listener = UnixListener::bind(SocketAddress::new(&path).unwrap().path()).unwrap();
        assert!(path.exists());
        UnixStream::connect(SocketAddress::new(&path).unwrap().path()).unwrap();
    }
}
