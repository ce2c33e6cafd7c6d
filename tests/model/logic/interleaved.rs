//! Programs whose calls come between each other's steps: a path is looked up in one step and opened in another, so
//! that what the look-up found may be another version's, or nobody's, by then.

use std::sync::mpsc;
use std::thread;

use nix::unistd::gettid;
use proptest::prelude::*;
use tidefs::datapath::{Caller, Error, HandleId, OpenOptions, SizeChange};
use tidefs::namespace::{Ino, ThreadId};
use tidefs_engine::types::ByteCount;

use super::{Logic, Setup};
use crate::common::pattern;
use crate::system::{Open, System};

const NAME: &str = "log";
/// Places among the programs of [`Logic`], processes of their own: they miss the file while others write it.
const READER: usize = 0;
const STRANGER: usize = 1;
/// Threads of this process, which append.
const WRITERS: usize = 3;
/// Bytes that one opening of a writer adds.
const RECORD: usize = 64;
/// How often each opens the file.
const OPENINGS: usize = 3;
/// All records.
const LENGTH: usize = WRITERS * OPENINGS * RECORD;

/// What a program does with the file, again and again.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Writes a record from this offset on.
    Append(u64),
    /// truncate(2) by name, to the length that the file has in the end.
    Grow,
    Read,
    /// Opens it to write, and writes nothing.
    Touch,
}

/// How far a program is with its open(2), and with what it opened.
#[derive(Clone, Copy, Debug)]
enum Step {
    LookUp,
    Open(Ino),
    /// It was told that what it had found is stale: it looks once more, and then gives up.
    LookUpAgain,
    OpenAgain(Ino),
    Use(HandleId),
    Close(HandleId),
}

#[derive(Debug)]
struct Program {
    caller: Caller,
    step: Step,
    openings: usize,
    work: Work,
    /// Whether another process may hide the file from it.
    may_miss: bool,
    /// Offsets of the records that it wrote.
    written: Vec<u64>,
}

/// Threads that do nothing: their ids are those of this process.
struct Threads {
    ids: Vec<ThreadId>,
    _stop: Vec<mpsc::Sender<()>>,
}

fn threads() -> Threads {
    let (mut ids, mut stop) = (Vec::new(), Vec::new());
    for _ in 0..=WRITERS {
        let (tell, told) = mpsc::channel();
        let (sender, waits) = mpsc::channel::<()>();
        thread::spawn(move || {
            tell.send(gettid()).expect("the test waits");
            let _ = waits.recv();
        });
        let id = told.recv().expect("the thread starts").as_raw();
        ids.push(ThreadId(u32::try_from(id).expect("a thread has an id")));
        stop.push(sender);
    }
    Threads { ids, _stop: stop }
}

impl Program {
    fn is_done(&self) -> bool {
        self.openings == OPENINGS
    }

    fn holds_nothing(&self) -> bool {
        matches!(self.step, Step::LookUp | Step::LookUpAgain)
    }

    fn look_up(&self, logic: &mut Logic) -> Option<Ino> {
        let found = logic.look_up_as(&self.caller, Ino::ROOT, NAME).map(|(ino, _, _)| ino);
        if !self.may_miss {
            return Some(found.expect("a process sees what it writes"));
        }
        found.ok()
    }

    /// Opens the file; `None` when that was all.
    fn open(&self, logic: &Logic, ino: Ino) -> Result<Option<HandleId>, Error> {
        if matches!(self.work, Work::Grow) {
            let change = SizeChange::Set(ByteCount(LENGTH as u64));
            return logic.datapath().change_size(&self.caller, ino, None, change).map(|()| None);
        }
        let write = !matches!(self.work, Work::Read);
        let options = OpenOptions { read: !write, write, ..OpenOptions::default() };
        logic.load(ino);
        logic.datapath().open(&self.caller, ino, options).map(|opened| Some(opened.handle))
    }

    fn next(&mut self, logic: &mut Logic) {
        self.step = match self.step {
            Step::LookUp => self.look_up(logic).map_or_else(|| self.ended(), Step::Open),
            Step::LookUpAgain => self.look_up(logic).map_or_else(|| self.ended(), Step::OpenAgain),
            Step::Open(ino) => match self.open(logic, ino) {
                Ok(opened) => self.has(opened),
                Err(Error::Stale) => Step::LookUpAgain,
                Err(Error::NoObject) if self.may_miss => self.ended(),
                Err(error) => panic!("{self:?}: {error}"),
            },
            Step::OpenAgain(ino) => match self.open(logic, ino) {
                Ok(opened) => self.has(opened),
                Err(Error::NoObject) if self.may_miss => self.ended(),
                // A program would see ESTALE.
                Err(error) => panic!("{self:?}: {error}"),
            },
            Step::Use(handle) => {
                self.use_it(logic, handle);
                Step::Close(handle)
            }
            Step::Close(handle) => {
                logic.datapath().flush(&self.caller, handle).expect("there is room");
                logic.datapath().release(handle);
                self.openings += 1;
                Step::LookUp
            }
        };
    }

    fn use_it(&mut self, logic: &Logic, handle: HandleId) {
        match &mut self.work {
            Work::Append(at) => {
                let record = pattern::bytes(*at + 1, RECORD);
                logic.datapath().write(handle, *at, &record).expect("there is room");
                self.written.push(*at);
                *at += RECORD as u64;
            }
            Work::Read => {
                let mut bytes = vec![0; RECORD];
                logic.datapath().read(handle, 0, &mut bytes).expect("what is open can be read");
            }
            Work::Touch | Work::Grow => {}
        }
    }

    fn has(&mut self, opened: Option<HandleId>) -> Step {
        opened.map_or_else(|| self.ended(), Step::Use)
    }

    /// This opening is over.
    fn ended(&mut self) -> Step {
        self.openings += 1;
        Step::LookUp
    }
}

/// One process writes the file with several threads and another reads it; with `stranger`, a third opens it to write.
/// `schedule` says whose turn it is.
fn run(setup: Setup, stranger: bool, schedule: &[usize]) {
    let mut logic = Logic::new(setup);
    let token = logic.open(READER, NAME, CREATE).expect("it is made");
    logic.close(READER, token);

    let threads = threads();
    let program = |caller, work, may_miss| Program {
        caller,
        step: Step::LookUp,
        openings: 0,
        work,
        may_miss,
        written: vec![],
    };
    let share = (OPENINGS * RECORD) as u64;
    let works = (0..WRITERS as u64).map(|index| Work::Append(index * share)).chain([Work::Grow]);
    let owner = |(&thread, work)| program(Caller { uid: 0, gid: 0, thread }, work, stranger);
    let mut programs: Vec<Program> = threads.ids.iter().zip(works).map(owner).collect();
    programs.push(program(super::caller(READER), Work::Read, true));
    if stranger {
        programs.push(program(super::caller(STRANGER), Work::Touch, true));
    }
    let count = programs.len();
    for turn in schedule.iter().map(|turn| turn % count).chain((0..count).cycle()) {
        if programs.iter().all(Program::is_done) {
            break;
        }
        if !programs[turn].is_done() {
            programs[turn].next(&mut logic);
        }
        if setup.forgets_at_once && programs.iter().all(Program::holds_nothing) {
            logic.forget_closed();
        }
    }

    let read = Open { read: true, write: false, create: false, ..CREATE };
    let token = logic.open(READER, NAME, read).expect("it is there");
    let found = logic.read(READER, token, 0, LENGTH + 1).expect("it is read");
    let records: Vec<u64> = programs.into_iter().flat_map(|program| program.written).collect();
    assert!(stranger || records.len() == WRITERS * OPENINGS);
    for at in records {
        let record = usize::try_from(at).ok().and_then(|at| found.get(at..at + RECORD));
        assert_eq!(record, Some(&pattern::bytes(at + 1, RECORD)[..]), "what was written at {at} is lost");
    }
    logic.assert_all_is_accounted_for();
}

/// A case takes a millisecond, and few of the orders are the rare ones.
fn many() -> ProptestConfig {
    let config = crate::config();
    ProptestConfig { cases: config.cases * 8, max_shrink_iters: 4096, ..config }
}

fn setup(packed_max: ByteCount, forgets_at_once: bool) -> Setup {
    Setup { packed_max, forgets_at_once, ..Setup::of(ByteCount::mib(1)) }
}

const CREATE: Open = Open { read: false, write: true, create: true, exclusive: false, truncate: false };

/// A program opens a temporary name to write that another one has just renamed: it finds none, and what was published stays
/// in sight.
#[test]
fn an_open_that_comes_after_the_rename_of_its_name_hides_nothing() {
    let mut logic = Logic::new(setup(ByteCount::ZERO, false));
    let token = logic.open(READER, "log.tmp", CREATE).expect("it is made");
    logic.write(READER, token, 0, &pattern::bytes(1, RECORD)).expect("there is room");
    logic.close(READER, token);
    let stranger = super::caller(STRANGER);
    let (ino, _, _) = logic.look_up_as(&stranger, Ino::ROOT, "log.tmp").expect("it is there");
    logic.rename(READER, "log.tmp", NAME, false).expect("the rename");
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let opened = logic.datapath().open(&stranger, ino, options);
    assert!(matches!(opened, Err(Error::Stale)), "{opened:?}");
    assert!(logic.look_up_as(&stranger, Ino::ROOT, "log.tmp").is_err());
    for who in [READER, STRANGER] {
        assert_eq!(logic.stat(who, NAME).expect("it is in sight").size, RECORD as u64);
    }
}

/// The kernel asks for the attributes of what it knows under a name before it opens it, and looks the name up again for one
/// answer within an open(2), whichever it was.
#[test]
fn a_writer_who_was_told_of_its_attributes_that_they_are_stale_opens_what_it_finds_then() {
    let mut logic = Logic::new(setup(ByteCount::ZERO, false));
    let token = logic.open(READER, NAME, CREATE).expect("it is made");
    logic.close(READER, token);
    let stranger = super::caller(STRANGER);
    let (old, _, _) = logic.look_up_as(&stranger, Ino::ROOT, NAME).expect("it is there");
    let token = logic.open(READER, NAME, Open { create: false, ..CREATE }).expect("it is rewritten");
    logic.write(READER, token, 0, &pattern::bytes(1, RECORD)).expect("there is room");
    logic.close(READER, token);

    let told = logic.datapath().getattr_by_name(&stranger, old);
    assert!(matches!(told, Err(Error::Stale)), "{told:?}");
    let (new, _, _) = logic.look_up_as(&stranger, Ino::ROOT, NAME).expect("it is there");
    let options = OpenOptions { write: true, truncate: true, ..OpenOptions::default() };
    let opened = logic.datapath().open(&stranger, new, options).expect("it was sent once already");
    logic.datapath().write(opened.handle, 0, b"new").expect("there is room");
    logic.datapath().flush(&stranger, opened.handle).expect("there is room");
    logic.datapath().release(opened.handle);
    assert_eq!(logic.stat(READER, NAME).expect("it is there").size, 3);
}

/// Both closes were answered, and neither RELEASE came before the daemon ended.
#[test]
fn what_two_descriptors_wrote_is_there_after_a_kill_that_follows_the_second_close() {
    let mut logic = Logic::new(setup(ByteCount::ZERO, false));
    let tokens = [CREATE, Open { create: false, ..CREATE }]
        .map(|options| logic.open(READER, NAME, options).expect("open"));
    for (token, offset) in tokens.into_iter().zip([0, RECORD as u64]) {
        logic.write(READER, token, offset, &pattern::bytes(1, RECORD)).expect("there is room");
    }
    tokens.into_iter().for_each(|token| logic.flush(READER, token));
    logic.restart();
    assert_eq!(logic.stat(READER, NAME).expect("it is there").size, 2 * RECORD as u64);
}

proptest! {
    #![proptest_config(many())]

    #[test]
    fn no_call_between_a_look_up_and_its_open_loses_a_write_or_makes_it_fail(
        packed_max in prop::sample::select(&[0_u64, 4][..]).prop_map(ByteCount::kib),
        forgets_at_once in any::<bool>(),
        stranger in any::<bool>(),
        schedule in prop::collection::vec(0..60_usize, 0..120),
    ) {
        run(setup(packed_max, forgets_at_once), stranger, &schedule);
    }
}
