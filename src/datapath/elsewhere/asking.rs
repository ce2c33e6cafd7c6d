//! Asking the other members what names stand for, and entering what they answer into the tables.
//!
//! Limits: [`AT_ONCE`] names, or one directory, are entered under one hold of the lock.

use super::super::{Datapath, State};
use super::Paths;
use crate::cluster::shards::KeyId;
use crate::cluster::{Facts, Found};
use crate::namespace::{Attributes, Ino, Name};

/// How often a name that changes while it is asked for is asked for again.
const ASKED_MAX: u32 = 3;
/// Names that are noted or entered under one hold of the lock.
const AT_ONCE: usize = 64;

impl Datapath {
    /// Asks the other members what names in directories stand for, and shows what they hold: one message to each member that
    /// serves some of them. The look-up that follows finds them, or nothing. Returns whether all are settled: nobody answered for
    /// the others, or nobody tells when the answer changes.
    ///
    /// # Cancellation
    /// Dropping the future forgets the questions; what was learned until then stays.
    pub async fn ask(&self, mut names: Vec<(Ino, Name)>) -> bool {
        let Some(side) = self.cluster.get() else { return true };
        let mut are_settled = true;
        for _ in 0..ASKED_MAX {
            let (paths, questions) = self.begin_to_ask(names);
            if paths.is_empty() {
                return are_settled;
            }
            self.telemetry.catalog_lookups.add(paths.len() as u64);
            let found = side.cluster.find(paths, side.deadline()).await;
            let is_open =
                |found: &Found| matches!(found, Found::Unknown | Found::Absent { is_watched: false });
            are_settled &= !found.iter().any(is_open);
            // Answers first: a question to which there is none would be dropped, and ended, under the lock.
            names = self.learn(found.into_iter().zip(questions));
        }
        are_settled && names.is_empty()
    }

    /// Notes that names are asked for, but for those that stand for something here. Returns their paths, too.
    fn begin_to_ask(&self, names: Vec<(Ino, Name)>) -> (Vec<Vec<u8>>, Vec<Question<'_>>) {
        let (mut paths, mut questions) = (Vec::with_capacity(names.len()), Vec::with_capacity(names.len()));
        let mut names = names.into_iter().peekable();
        while names.peek().is_some() {
            let (mut state, mut known) = (self.lock(), Paths::new());
            for (parent, name) in names.by_ref().take(AT_ONCE) {
                let Ok(slot) = state.slot_of(parent) else { continue };
                if state.tree.child(slot, name.as_bytes()).is_some_and(|child| !state.is_first_here(child)) {
                    continue;
                }
                let path = known.of(&state, slot, name.as_bytes()).to_vec();
                let key = KeyId::of(&path);
                state.elsewhere.begin(key);
                paths.push(path);
                // Ends the question also when the asker goes away meanwhile.
                questions.push(Question { datapath: self, key, parent, name: Some(name) });
            }
        }
        (paths, questions)
    }

    /// Enters answers into the tables. Returns the names that were overtaken by a change.
    fn learn<'a>(&self, answers: impl Iterator<Item = (Found, Question<'a>)>) -> Vec<(Ino, Name)> {
        let (mut answers, mut overtaken) = (answers.peekable(), Vec::new());
        while answers.peek().is_some() {
            let mut state = self.lock();
            for (found, mut question) in answers.by_ref().take(AT_ONCE) {
                let (key, parent) = (question.key, question.parent);
                // Taken once, here: a question without it does not ask for the lock when it goes.
                let Some(name) = question.name.take() else { continue };
                if state.elsewhere.end(key) {
                    overtaken.push((parent, name));
                } else {
                    let is_file = !matches!(found, Found::Present { facts: Facts::Directory(_), .. });
                    self.enter(&mut state, parent, name, key, found);
                    if !is_file {
                        // A new directory takes as long as many names.
                        break;
                    }
                }
            }
        }
        overtaken
    }

    fn enter(&self, state: &mut State, parent: Ino, name: Name, key: KeyId, found: Found) {
        let Ok(parent) = state.living_directory(parent) else { return };
        let written = state.tree.child(parent, name.as_bytes());
        let is_taken = written.is_some_and(|written| !state.is_first_here(written));
        if state.tree.directory(parent).is_none() || is_taken {
            return;
        }
        let me = self.cluster.get().map(|side| side.cluster.me());
        match found {
            // What is written there was told to the catalog just now.
            Found::Present { copies, .. }
                if written.is_some() && copies.iter().all(|copy| Some(copy.member) == me) => {}
            // Of nothing here: what was it is gone, or what was written in its place is told to nobody.
            Found::Present { stamp, facts: Facts::File(_), copies }
                if !copies.is_empty() && copies.iter().all(|copy| Some(copy.member) == me) =>
            {
                if let Some(side) = self.cluster.get() {
                    side.cluster.let_go(&state.path_of_child(parent, name.as_bytes()), stamp);
                }
            }
            Found::Absent { is_watched: true } => {
                state.elsewhere.absent.put(key, ());
            }
            Found::Absent { is_watched: false } => {}
            Found::Unknown => self.telemetry.catalog_unknown.increment(),
            Found::Present { stamp, facts: Facts::File(_), copies }
                if state.elsewhere.unreached.hides(key, stamp, &copies, self.clock.monotonic()) => {}
            Found::Present { stamp, facts: Facts::File(facts), copies } => {
                state.show((parent, name), written, stamp, &facts, copies);
            }
            Found::Present { facts: Facts::Directory(facts), .. } => {
                let attributes = Attributes::new(facts.mode, facts.uid, facts.gid, self.now_ns());
                match self.enter_directory(state, parent, name, attributes) {
                    // It lives as long as anybody knows it.
                    Ok(slot) => {
                        self.adopt_for_new(state, slot);
                        state.hold_directory(slot);
                    }
                    Err(error) => tracing::warn!(%error, "a directory of another member cannot be shown"),
                }
            }
        }
    }
}

/// A question that is ended by its answer, or by being dropped.
struct Question<'a> {
    datapath: &'a Datapath,
    key: KeyId,
    parent: Ino,
    /// `None` once it is answered.
    name: Option<Name>,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if self.name.is_some() {
            self.datapath.lock().elsewhere.end(self.key);
        }
    }
}
