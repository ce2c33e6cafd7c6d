//! What directories are: a file for each, which has no bytes. Its record is an attribute, as of segments, and attributes of
//! applications stand beside it.
//!
//! Invariants
//! - A record is there as it was or as it is to be, whenever the daemon may be killed.
//! - Of two of which one takes the name of the other a start finds both or that one; whoever is killed in the moment between leaves
//!   neither under it, and the one that was to take it where it was.
//!
//! Threads: any; who moves a directory holds the owner's lock.

use std::fs::File;
use std::io;

use tidefs_engine::types::DirectoryId;

use super::name::Entry;
use super::{DirectoryRecord, MemoryError, MemoryTier};

impl MemoryTier {
    /// Keeps what a directory is; replaces an earlier record of the same id in one step.
    ///
    /// # Errors
    /// [`MemoryError::Record`], [`MemoryError::Io`].
    pub fn put_directory(&self, record: &DirectoryRecord) -> Result<(), MemoryError> {
        let (file, encoded) = self.open_to_put(record)?;
        self.set_record(&file, &encoded)
    }

    /// The same for one that takes the name of `replaced`, which is forgotten. All that is opened for it is so before.
    ///
    /// # Errors
    /// [`MemoryError::Record`], [`MemoryError::Io`]. Then both are as before.
    pub fn put_directory_over(
        &self,
        record: &DirectoryRecord,
        replaced: DirectoryId,
    ) -> Result<(), MemoryError> {
        let (file, encoded) = self.open_to_put(record)?;
        let Some(old) = self.open_directory(replaced)? else { return self.set_record(&file, &encoded) };
        let before =
            self.attribute.get(&old).map_err(|error| MemoryError::file("read the record of", &old, error))?;
        self.attribute
            .remove(&old)
            .map_err(|error| MemoryError::file("remove the record of", &old, error))?;
        if let Err(error) = self.set_record(&file, &encoded) {
            // There is room for it, where it just stood.
            if let Some(before) = before
                && let Err(error) = self.set_record(&old, before.bytes())
            {
                tracing::error!(directory = replaced.0, %error, "an empty directory is gone after a restart");
            }
            return Err(error);
        }
        if let Err(error) = self.remove_directory(replaced) {
            tracing::warn!(directory = replaced.0, %error, "a file without a record stays until the next start");
        }
        Ok(())
    }

    /// The file that stands for a directory, for attributes beside its record; `None` when it has no record.
    ///
    /// # Errors
    /// [`MemoryError::Io`].
    pub fn open_directory(&self, directory: DirectoryId) -> Result<Option<File>, MemoryError> {
        match self.space.open(&Entry::Directory(directory).to_string()) {
            Err(MemoryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Forgets a directory; that it is unknown is fine.
    ///
    /// # Errors
    /// [`MemoryError::Io`].
    pub fn remove_directory(&self, directory: DirectoryId) -> Result<(), MemoryError> {
        self.space.unlink(&Entry::Directory(directory).to_string())
    }

    /// The file for a record, which is made if it is missing, and what is to stand there.
    fn open_to_put(&self, record: &DirectoryRecord) -> Result<(File, Vec<u8>), MemoryError> {
        let name = Entry::Directory(record.id).to_string();
        let encoded = record
            .encode()
            .map_err(|source| MemoryError::Record { path: self.space.path().join(&name), source })?;
        let file = match self.space.create(&name) {
            Err(MemoryError::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                self.space.open(&name)?
            }
            outcome => outcome?,
        };
        Ok((file, encoded))
    }

    fn set_record(&self, file: &File, encoded: &[u8]) -> Result<(), MemoryError> {
        self.attribute
            .set(file, encoded)
            .map_err(|error| MemoryError::file("write the record of", file, error))
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use xattr::FileExt as _;

    use super::super::Recovered;
    use super::super::record::tests::directory;
    use super::super::testing::{Workplace, recovered};
    use super::super::tests::CAPACITY;
    use super::*;

    #[test]
    fn one_takes_the_name_of_another_or_both_are_as_before_with_what_applications_keep_there() {
        let place = Workplace::on_shared_tmpfs();
        let tier = place.open(CAPACITY);
        if !tier.report().record_attribute.starts_with("user.") {
            // Where records stand under other names a pipe takes them.
            return;
        }
        let (moved, replaced) = (directory(12, b"name"), directory(13, b"name"));
        tier.put_directory(&replaced).unwrap();
        let file = tier.open_directory(replaced.id).unwrap().unwrap();
        file.set_xattr("user.kept", b"value").unwrap();
        // That opens, and takes no record.
        let pipe = place.path().join(Entry::Directory(moved.id).to_string());
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        tier.put_directory_over(&moved, replaced.id).unwrap_err();
        let left = tier.open_directory(replaced.id).unwrap().unwrap();
        assert_eq!(tier.attribute.get(&left).unwrap().unwrap().bytes(), replaced.encode().unwrap());
        assert_eq!(left.get_xattr("user.kept").unwrap().unwrap(), b"value");

        std::fs::remove_file(&pipe).unwrap();
        tier.put_directory_over(&moved, replaced.id).unwrap();
        assert_eq!(recovered(&place.open(CAPACITY)).0, [Recovered::Directory(moved)]);
    }
}
