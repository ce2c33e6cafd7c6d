//! What others meet while something goes through a directory with many objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidefs::datapath::Datapath;
use tidefs::namespace::Ino;
use tidefs_engine::types::ByteCount;

use super::{Logic, Setup, caller};

pub(super) const SETUP: Setup = Setup::of(ByteCount::mib(512));

/// A directory `ns` with `count` empty objects, and one below it with a tenth of them.
pub(super) fn filled(count: usize) -> (Logic, Ino) {
    let logic = Logic::new(SETUP);
    let datapath = logic.datapath();
    let top = datapath.make_directory(&caller(0), Ino::ROOT, b"ns", 0o755).expect("mkdir").ino;
    let below = datapath.make_directory(&caller(0), top, b"below", 0o755).expect("mkdir").ino;
    for (directory, count) in [(top, count), (below, count / 10)] {
        for index in 0..count {
            let name = format!("k{index}");
            datapath.make_file(&caller(0), directory, name.as_bytes(), 0o644).expect("an object");
        }
    }
    (logic, top)
}

/// What somebody else who asks again and again meets while something is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meanwhile {
    pub(super) took: Duration,
    pub(super) answers: u64,
    pub(super) longest: Duration,
}

/// Does `action` while somebody else asks for the attributes of `top`.
pub(super) fn meanwhile(datapath: &Arc<Datapath>, top: Ino, action: impl FnOnce()) -> Meanwhile {
    let (is_over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                datapath.getattr(top).expect("attributes");
                answers.fetch_add(1, Ordering::Relaxed);
                longest = longest.max(asked.elapsed());
            }
            longest
        });
        // It is asking when the action begins.
        while answers.load(Ordering::Relaxed) < 10 {
            thread::yield_now();
        }
        let (began, before) = (Instant::now(), answers.load(Ordering::Relaxed));
        action();
        let (took, answers) = (began.elapsed(), answers.load(Ordering::Relaxed) - before);
        is_over.store(true, Ordering::Relaxed);
        Meanwhile { took, answers, longest: other.join().expect("the other thread") }
    })
}
