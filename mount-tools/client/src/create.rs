//! Objects that are begun with the daemon, to be written where they will stay, and sealed.

use std::sync::Arc;

use tidefs_control_api::ioctl::{Command, Create, Entry, Features, Flags, Name, Range, Status};

use crate::session::Session;
use crate::{Cache, Error, Writer, writer};

/// What became of an object to begin.
pub(crate) enum Begun {
    /// It is written where it will stay.
    Writer(Writer),
    /// It is written by file.
    ByFile,
    Failed(Error),
}

impl Cache {
    /// Begins an object of `size` bytes.
    ///
    /// # Errors
    /// [`Error::BadKey`]; [`Error::Io`] when it may not be made, or there is no room.
    pub fn create(&self, key: impl AsRef<[u8]>, size: usize) -> Result<Writer, Error> {
        let created = self.create_many(&[(key.as_ref(), size)])?.pop();
        created.ok_or(Error::BadReply)
    }

    /// Begins many objects, each given by its key and its size. All of them need room at once.
    ///
    /// # Errors
    /// As [`Cache::create`], of any of them; then none is begun.
    pub fn create_many<K: AsRef<[u8]>>(&self, objects: &[(K, usize)]) -> Result<Vec<Writer>, Error> {
        objects.iter().try_for_each(|(key, _)| self.files.check_new(key.as_ref()))?;
        let begun = self.begin_all(objects).into_iter().zip(objects);
        let writers = begun.map(|(begun, (key, size))| match begun {
            Begun::Writer(writer) => Ok(writer),
            Begun::ByFile => Writer::owned(*size, self.files.path_of(key.as_ref()), &self.files),
            Begun::Failed(error) => Err(error),
        });
        writers.collect()
    }

    /// Makes many objects visible, each as [`Writer::seal`] does, whichever cache began them. Returns the first failure after
    /// all were tried.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn seal_many(&self, writers: Vec<Writer>) -> Result<(), Error> {
        match writer::seal_each(writers).into_iter().min_by_key(|(index, _)| *index) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// Begins objects of checked keys, with the directories that they need.
    pub(crate) fn begin_all<K: AsRef<[u8]>>(&self, objects: &[(K, usize)]) -> Vec<Begun> {
        let opened = self.opened();
        let has_moved = opened.as_ref().is_some_and(|opened| self.has_moved(opened));
        let opened = if has_moved { self.opened() } else { opened };
        let Some(session) = opened.as_ref().map(|opened| &opened.session) else {
            return objects.iter().map(|_| Begun::ByFile).collect();
        };
        let begun = if session.may_write && session.offers(Features::CREATE) {
            let answers = self.begin(session, objects);
            let whole = answers.into_iter().zip(objects).map(|(answer, object)| match answer {
                Ok(begun) => begun,
                Err(NoDirectory) => self.begin_with_directory(session, object),
            });
            whole.collect()
        } else {
            objects.iter().map(|_| Begun::ByFile).collect::<Vec<_>>()
        };
        if begun.iter().any(|begun| !matches!(begun, Begun::Writer(_))) {
            // What is stored by file stands at the path: whoever looks it up next is to find it there.
            session.compare(self.files.directory());
        }
        begun
    }

    /// Begins one whose directory is to be made.
    fn begin_with_directory<K: AsRef<[u8]>>(&self, session: &Arc<Session>, object: &(K, usize)) -> Begun {
        if let Err(error) = self.files.make_parent(&self.files.path_of(object.0.as_ref())) {
            return Begun::Failed(error);
        }
        let begun = self.begin(session, std::slice::from_ref(object)).pop();
        begun.and_then(Result::ok).unwrap_or(Begun::ByFile)
    }

    fn begin<K: AsRef<[u8]>>(
        &self,
        session: &Arc<Session>,
        objects: &[(K, usize)],
    ) -> Vec<Result<Begun, NoDirectory>> {
        let mode = self.files.mode_of_new();
        let records: Vec<Create<'_>> = objects
            .iter()
            .map(|(key, size)| Create { size: *size as u64, mode, name: Name(key.as_ref()) })
            .collect();
        let mut begun = Vec::with_capacity(objects.len());
        let asked =
            session.each(Command::Create, Flags::NONE, &records, |first, start, entries: &[Entry]| {
                for ((entry, reference), (key, size)) in entries.iter().zip(first..).zip(&objects[start..]) {
                    begun.push(match entry.status() {
                        Status::Ok => Ok(self.map_begun(session, entry, reference, (key.as_ref(), *size))),
                        Status::Absent => Err(NoDirectory),
                        Status::AskByFile | Status::Invalid => Ok(Begun::ByFile),
                        status => {
                            let path = self.files.path_of(key.as_ref());
                            Ok(Begun::Failed(Error::of("create an object", &path, status)))
                        }
                    });
                }
            });
        if asked.is_err() {
            // The daemon is gone, or another one is there.
            begun.clear();
            begun.extend(objects.iter().map(|_| Ok(Begun::ByFile)));
        }
        begun
    }

    /// The writer of an object that was begun.
    fn map_begun(
        &self,
        session: &Arc<Session>,
        entry: &Entry,
        reference: u64,
        (key, size): (&[u8], usize),
    ) -> Begun {
        match session.segments.get(entry.segment.get(), size, true) {
            Ok(mapping) => {
                let path = self.files.path_of(key);
                Begun::Writer(Writer::mapped((session, reference), mapping, size, path))
            }
            Err(_) => {
                let range = Range { first: reference, count: 1 };
                session.send_ranges(Command::Abort, Flags::NONE, &[range]);
                Begun::ByFile
            }
        }
    }
}

/// The directory of an object to begin is not there.
struct NoDirectory;
