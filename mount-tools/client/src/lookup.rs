//! Hot path: looking keys up: by what is kept, by asking the daemon, by file.

use tidefs_control_api::ioctl::Name;

use crate::batch::{self, Answer};
use crate::kept::Moment;
use crate::session::Session;
use crate::sessions::Opened;
use crate::{Cache, Error, View};

/// Objects below memory that are asked for ahead of the one that is read, and how often that is done anew: what the daemon
/// loads ahead is bounded, and grows by what is read.
const AHEAD: usize = 256;
const ASKED_EVERY: usize = 64;

impl Cache {
    /// What is found of each name. `of_all` makes that of views of all of them, where there are.
    pub(crate) fn find_all<C: FromIterator<Result<Option<View>, Error>>>(
        &self,
        names: &[Name<'_>],
        of_all: impl FnOnce(Vec<Option<View>>) -> C,
    ) -> Result<C, Error> {
        let Some(opened) = self.opened() else {
            return Ok(names.iter().map(|name| self.read(name)).collect());
        };
        let asked = if opened.keeps() {
            let (views, moment) = self.find_kept(&opened, names);
            if views.iter().all(Option::is_some) {
                return Ok(of_all(views));
            }
            ask_rest(&opened, names, views, moment, true)
        } else {
            batch::look_up(&opened.session, names, true)
        };
        let is_found = |answers: &[Answer]| answers.iter().all(|answer| matches!(answer, Answer::View(_)));
        let answers = match asked {
            Ok(answers) if !is_found(&answers) && self.has_moved(&opened) => {
                names.iter().map(|_| Answer::ByFile).collect()
            }
            Ok(answers) => answers,
            // The daemon is gone, or another one is there: its files may be. Or a key is too long for any request.
            Err(Error::Io { .. }) => names.iter().map(|_| Answer::ByFile).collect(),
            Err(error) => return Err(error),
        };
        let loadable: Vec<Name<'_>> = answers
            .iter()
            .zip(names)
            .filter(|(answer, _)| matches!(answer, Answer::Loadable))
            .map(|(_, name)| *name)
            .collect();
        let mut loaded = 0;
        let whole = answers.into_iter().zip(names).map(|(answer, name)| match answer {
            Answer::View(view) => Ok(Some(view)),
            Answer::Absent => Ok(None),
            Answer::ByFile => self.read(name),
            Answer::Loadable => {
                ask_ahead(&opened.session, &loadable[loaded..], loaded);
                loaded += 1;
                self.read(name)
            }
        });
        Ok(whole.collect())
    }

    /// What can be said of all names without a file; unless it `may_wait`, without another host or thread, too.
    pub(crate) fn ask(
        &self,
        opened: &Opened,
        names: &[Name<'_>],
        may_wait: bool,
    ) -> Result<Vec<Answer>, Error> {
        if !opened.keeps() {
            return batch::look_up(&opened.session, names, may_wait);
        }
        let (views, moment) = self.find_kept(opened, names);
        ask_rest(opened, names, views, moment, may_wait)
    }

    /// Whether another directory than that of a session is known to be at the path of the cache: what the session says of names
    /// does not count. Looked at now and then, so it is asked where not all was found.
    pub(crate) fn has_moved(&self, opened: &Opened) -> bool {
        if opened.session.is_to_compare() {
            opened.session.compare(self.files.directory());
        }
        opened.session.is_left()
    }

    fn find_kept(&self, opened: &Opened, names: &[Name<'_>]) -> (Vec<Option<View>>, Option<Moment>) {
        let (views, moment) = opened.kept.find(names);
        self.counters.count_kept(views.iter().flatten().count());
        (views, moment)
    }

    fn read(&self, name: &Name<'_>) -> Result<Option<View>, Error> {
        let bytes = self.files.read(name.0)?;
        Ok(bytes.map(|bytes| View::owned(0, bytes)))
    }

    /// Keeps references to the objects that were looked up last, up to so many bytes of them, when their views are dropped: who
    /// looks the same keys up again is answered without the daemon, in a tenth of a microsecond. What is kept cannot be evicted,
    /// and is given back after some seconds without use, by a thread that dropping the last clone of the cache waits for. 0 ends it.
    ///
    /// Whatever is unlinked, replaced or forbidden is seen at once, as without it. Returns whether anything can be kept: not on
    /// another filesystem, nor with a daemon that has no names clock. When the daemon is started again, what was kept goes, and as
    /// much is kept of what the next one shows.
    ///
    /// # Errors
    /// [`Error::Io`] when the clock cannot be mapped, or no thread be started.
    pub fn keep(&self, bytes: usize) -> Result<bool, Error> {
        self.sessions.keep(&self.files, bytes).map_err(Error::io("map the names clock"))
    }
}

/// Asks for those of the names of which there is no view, and keeps what is found since `moment`.
fn ask_rest(
    opened: &Opened,
    names: &[Name<'_>],
    views: Vec<Option<View>>,
    moment: Option<Moment>,
    may_wait: bool,
) -> Result<Vec<Answer>, Error> {
    let missing: Vec<Name<'_>> =
        names.iter().zip(&views).filter(|(_, view)| view.is_none()).map(|(name, _)| *name).collect();
    let mut answers = batch::look_up(&opened.session, &missing, may_wait)?;
    if let Some(moment) = moment {
        let found = missing.iter().zip(&mut answers).filter_map(|(name, answer)| match answer {
            Answer::View(view) => Some((*name, view)),
            Answer::Absent | Answer::ByFile | Answer::Loadable => None,
        });
        opened.kept.keep(moment, found);
    }
    if missing.len() == names.len() {
        return Ok(answers);
    }
    let mut answers = answers.into_iter();
    let known = |view: Option<View>| view.map(Answer::View).or_else(|| answers.next());
    Ok(views.into_iter().map(known).map(|answer| answer.unwrap_or(Answer::ByFile)).collect())
}

/// Before an object is read that is below memory, the first of `left`: has those behind it loaded meanwhile.
fn ask_ahead(session: &Session, left: &[Name<'_>], loaded: usize) {
    if left.len() > 1 && loaded.is_multiple_of(ASKED_EVERY) {
        // A hint: without it one is loaded after the other.
        let _ = batch::prefetch(session, &left[..left.len().min(AHEAD)]);
    }
}
