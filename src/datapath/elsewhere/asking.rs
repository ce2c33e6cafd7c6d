//! Asking the other members what names stand for, and entering what they answer into the tables.

use super::super::{Datapath, State};
use crate::cluster::shards::KeyId;
use crate::cluster::{Facts, Found};
use crate::namespace::{Attributes, Ino, Name};

/// How often a name that changes while it is asked for is asked for again.
const ASKED_MAX: u32 = 3;

impl Datapath {
    /// Asks the other members what names in directories stand for, and shows what they hold: one message to each member that
    /// serves some of them. The look-up that follows finds them, or nothing.
    ///
    /// # Cancellation
    /// Dropping the future forgets the questions; what was learned until then stays.
    pub async fn ask(&self, mut names: Vec<(Ino, Name)>) {
        let Some(side) = self.cluster.get() else { return };
        for _ in 0..ASKED_MAX {
            let (paths, questions) = self.begin_to_ask(names);
            if paths.is_empty() {
                return;
            }
            self.telemetry.catalog_lookups.add(paths.len() as u64);
            let found = side.cluster.find(paths, side.deadline()).await;
            let overtaken = |(question, found): (Question<'_>, Found)| self.learn(question, found).err();
            names = questions.into_iter().zip(found).filter_map(overtaken).collect();
        }
    }

    /// Notes that names are asked for, but for those that stand for something here. Returns their paths, too.
    fn begin_to_ask(&self, names: Vec<(Ino, Name)>) -> (Vec<Vec<u8>>, Vec<Question<'_>>) {
        let (mut paths, mut questions) = (Vec::with_capacity(names.len()), Vec::with_capacity(names.len()));
        let mut state = self.lock();
        for (parent, name) in names {
            let Ok(slot) = state.slot_of(parent) else { continue };
            if state.tree.child(slot, name.as_bytes()).is_some_and(|child| !state.is_first_here(child)) {
                continue;
            }
            let path = state.path_of_child(slot, name.as_bytes());
            let key = KeyId::of(&path);
            state.elsewhere.begin(key);
            paths.push(path);
            // Ends the question also when the asker goes away meanwhile.
            questions.push(Question { datapath: self, key, parent, name: Some(name) });
        }
        (paths, questions)
    }

    /// Enters an answer into the tables. Returns the name when it was overtaken by a change.
    fn learn(&self, mut question: Question<'_>, found: Found) -> Result<(), (Ino, Name)> {
        let (key, parent) = (question.key, question.parent);
        // Taken once, here.
        let Some(name) = question.name.take() else { return Ok(()) };
        let mut state = self.lock();
        if state.elsewhere.end(key) {
            return Err((parent, name));
        }
        self.enter(&mut state, parent, name, key, found);
        Ok(())
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
                state.show(parent, name, stamp, &facts, copies);
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
