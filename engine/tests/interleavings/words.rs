//! An owner that takes memory back, and gives the page of the word away, while the peer copies.

use shuttle::sync::Arc;
use shuttle::sync::atomic::AtomicBool;
use shuttle::thread;

use crate::sync::{AtomicU64, Ordering};
use crate::word;

const COPIES: usize = 3;

pub(crate) fn memory_that_was_taken_back_is_not_touched() {
    let shared = Arc::new((AtomicU64::new(0), AtomicBool::new(false)));
    word::grant(&shared.0);
    let copiers = [(); 2].map(|()| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (word, is_back) = &*shared;
            for _ in 0..COPIES {
                if word::enter(word) {
                    assert!(
                        !is_back.load(Ordering::SeqCst),
                        "copied to or from memory that is somebody else's"
                    );
                    word::leave(word);
                }
            }
        })
    });
    let (word, is_back) = &*shared;
    word::revoke(word);
    while word::copies(word) > 0 {
        thread::yield_now();
    }
    is_back.store(true, Ordering::SeqCst);
    // The page of the word is punched out of its file.
    word.store(0, Ordering::SeqCst);
    copiers.into_iter().for_each(|copier| copier.join().unwrap());
    assert_eq!(word.load(Ordering::SeqCst), 0, "nothing is undone in a page that was given away");
}
