//! What the kernel does once more: it looks a name up again when it was told that what it had found is stale.

use nix::errno::Errno;
use tidefs::datapath::{Datapath, Error, OpenOptions};
use tidefs::namespace::Ino;

use super::{Logic, caller, errno};
use crate::system::Token;

impl Logic {
    /// Does `action` on the inode at `path`; once more, after another look-up, when it says that this is stale.
    pub(super) fn retried<T>(
        &mut self,
        who: usize,
        path: &str,
        mut action: impl FnMut(&Datapath, Ino) -> Result<T, Error>,
    ) -> Result<T, Errno> {
        self.retried_on(who, path, true, &mut action)
    }

    /// The same. What cuts all, for which nothing needs to be in memory, has the object brought back only when it says so.
    pub(super) fn retried_on<T>(
        &mut self,
        who: usize,
        path: &str,
        needs_bytes: bool,
        mut action: impl FnMut(&Datapath, Ino) -> Result<T, Error>,
    ) -> Result<T, Errno> {
        for _ in 0..2 {
            let ino = self.resolve(who, path)?;
            if needs_bytes {
                self.load(ino);
            }
            let mut outcome = action(self.datapath(), ino);
            if !needs_bytes && matches!(outcome, Err(Error::NoObject)) && self.datapath().must_load(ino) {
                self.load(ino);
                outcome = action(self.datapath(), ino);
            }
            match outcome {
                Err(Error::Stale) => {}
                outcome => return outcome.map_err(errno),
            }
        }
        // The kernel gives up after the second try as well.
        Err(Errno::ESTALE)
    }

    /// Creates a file that a look-up did not find; when it is told that there is one, looks it up again and opens that.
    pub(super) fn create_or_open(
        &mut self,
        who: usize,
        parent: Ino,
        name: &str,
        options: OpenOptions,
    ) -> Result<Token, Errno> {
        match self.datapath().create(&caller(who), parent, name.as_bytes(), 0o644, options) {
            Ok((stat, opened)) => {
                assert_eq!(stat.ino, opened.ino);
                *self.references.entry(stat.ino).or_default() += 1;
                Ok(self.note(opened.handle, opened.ino))
            }
            Err(Error::Stale) => {
                let (ino, _, _) = self.lookup(who, parent, name)?;
                let opened = self.datapath().open(&caller(who), ino, options).map_err(errno)?;
                Ok(self.note(opened.handle, opened.ino))
            }
            Err(error) => Err(errno(error)),
        }
    }
}
