//! Threads of the daemon beside those of its session: they keep room free, take checksums, end clients that hold much, free what
//! requests left, make segments ready, give names back, and serve the SSD tier.
//!
//! Invariant: who is to be joined ends soon after [`Background::ask_to_stop`]. Load threads are not joined: they end when the
//! session closes their line, and with the process when it cannot. Nor is who ends clients: it may be cutting gigabytes for a request.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};

use parking_lot::Mutex;

use crate::datapath::Datapath;
use crate::tier::ssd::Unnamed;

type Body = Box<dyn FnOnce() + Send>;

/// The threads, and the word that ends them.
#[derive(Debug, Default)]
pub(super) struct Background {
    is_stopping: AtomicBool,
    /// Guards the threads that are joined at the end: some come while the daemon runs.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Who ends clients, once it is there. It is told of the end.
    ender: OnceLock<Thread>,
}

impl Background {
    /// Starts what a daemon has from its start on. `unnamed`: the objects on disk that are to get their names.
    ///
    /// # Errors
    /// What starting a thread says.
    pub(super) fn start(
        self: &Arc<Self>,
        datapath: &Arc<Datapath>,
        unnamed: Option<Unnamed>,
    ) -> io::Result<()> {
        let (keeper, keeps) = (Arc::clone(datapath), Arc::clone(self));
        let (checker, checks) = (Arc::clone(datapath), Arc::clone(self));
        let headroom = spawn(
            "headroom",
            Box::new(move || {
                crate::ffi::raise_priority();
                keeper.keep_headroom(|| keeps.is_stopping());
            }),
        )?;
        datapath.set_keeper(headroom.thread().clone());
        let mut threads = self.threads.lock();
        threads.push(headroom);
        let checks = move || checker.check_in_background(|| checks.is_stopping());
        threads.push(spawn("checksums", Box::new(checks))?);
        let (ender, ends) = (Arc::clone(datapath), Arc::clone(self));
        let ends = move || ender.end_sessions(|| ends.is_stopping());
        let _ = self.ender.set(spawn("client-ends", Box::new(ends))?.thread().clone());
        let (maker, makes) = (Arc::clone(datapath), Arc::clone(self));
        let makes = move || maker.make_blanks(|| makes.is_stopping());
        threads.push(spawn("blanks", Box::new(makes))?);
        if let Some(unnamed) = unnamed {
            let (namer, names) = (Arc::clone(datapath), Arc::clone(self));
            let names = move || namer.name_objects(unnamed, || names.is_stopping());
            threads.push(spawn("ssd-names", Box::new(names))?);
        }
        if datapath.ssd().is_some() {
            threads.push(spawn("demoter", self.demoter(datapath))?);
        }
        Ok(())
    }

    fn demoter(self: &Arc<Self>, datapath: &Arc<Datapath>) -> Body {
        let (demoter, demotes) = (Arc::clone(datapath), Arc::clone(self));
        Box::new(move || demoter.demote_in_background(|| demotes.is_stopping()))
    }

    /// Makes the threads that a daemon with an SSD tier has beside those that it started with: the demoter, and as many more
    /// as there are to be `loads`. They wait for [`Crew::begin`].
    ///
    /// # Errors
    /// What starting a thread says; then there is none of them.
    pub(super) fn crew_for_disks(
        self: &Arc<Self>,
        datapath: &Arc<Datapath>,
        loads: usize,
    ) -> io::Result<Crew> {
        let mut crew = Crew { background: Arc::clone(self), gates: Vec::new(), joined: Vec::new() };
        let demoter = crew.wait("demoter", self.demoter(datapath))?;
        crew.joined.push(demoter);
        for index in datapath.loader().threads()..loads {
            let datapath = Arc::clone(datapath);
            crew.wait(&format!("load-{index}"), Box::new(move || datapath.run_loads()))?;
        }
        Ok(crew)
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// From now on the threads end.
    pub(super) fn ask_to_stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        // The keeper of the headroom sleeps until a writer comes.
        self.threads.lock().iter().for_each(|thread| thread.thread().unpark());
        if let Some(ender) = self.ender.get() {
            ender.unpark();
        }
    }

    /// Waits for their end.
    pub(super) fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a background thread had panicked");
            }
        }
    }
}

/// Threads that are there and wait, so that all of them begin or none. Dropped before that, they end.
#[derive(Debug)]
pub(super) struct Crew {
    background: Arc<Background>,
    gates: Vec<Sender<()>>,
    /// Those that are joined at the end of the daemon.
    joined: Vec<JoinHandle<()>>,
}

impl Crew {
    fn wait(&mut self, name: &str, body: Body) -> io::Result<JoinHandle<()>> {
        let (gate, opened) = channel();
        self.gates.push(gate);
        let waits = move || {
            // An error is a gate that was dropped.
            if opened.recv().is_ok() {
                body();
            }
        };
        spawn(name, Box::new(waits))
    }

    /// Lets them begin.
    pub(super) fn begin(self) {
        for gate in &self.gates {
            // Who waits at a gate does so until it opens, or is dropped.
            let _ = gate.send(());
        }
        self.background.threads.lock().extend(self.joined);
    }
}

fn spawn(name: &str, body: Body) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(body)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Has three threads wait, and returns how many began once `end` is done with them and all have ended.
    fn begun(end: impl FnOnce(Crew)) -> usize {
        let background = Arc::new(Background::default());
        let begun = Arc::new(AtomicUsize::new(0));
        let mut crew = Crew { background: Arc::clone(&background), gates: Vec::new(), joined: Vec::new() };
        for number in 0..3 {
            let begun = Arc::clone(&begun);
            let body = Box::new(move || {
                begun.fetch_add(1, Ordering::Relaxed);
            });
            let thread = crew.wait(&format!("test-{number}"), body).unwrap();
            background.threads.lock().push(thread);
        }
        end(crew);
        background.join();
        begun.load(Ordering::Relaxed)
    }

    #[test]
    fn all_of_a_crew_begin_or_none() {
        assert_eq!(begun(Crew::begin), 3);
        assert_eq!(begun(drop), 0);
    }
}
