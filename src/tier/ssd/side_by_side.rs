//! The same for each of several disks, all at once: those that hang cost as long as one.
//!
//! Invariant: want of threads costs time and no disk. What finds none is done by the thread that asks, when the others have begun.
//!
//! Threads: the one that asks, and one for each disk meanwhile.

use std::thread;

/// What `work` says of each item, in their order.
pub(super) fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    on_threads(thread::Builder::new, items, work)
}

fn on_threads<T: Sync, R: Send>(
    builder: impl Fn() -> thread::Builder,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let work = &work;
    thread::scope(|scope| {
        let begin = |item| (item, builder().spawn_scoped(scope, move || work(item)));
        let begun: Vec<_> = items.iter().map(begin).collect();
        let or_here = |(item, thread): (_, Result<_, _>)| {
            thread.map_err(|error| {
                tracing::warn!(%error, "there is no thread for a disk of the SSD tier, which is looked at by itself");
                work(item)
            })
        };
        let begun: Vec<_> = begun.into_iter().map(or_here).collect();
        let end = |begun: Result<thread::ScopedJoinHandle<'_, R>, R>| match begun {
            Ok(thread) => thread.join().expect("what is asked of a disk does not panic"),
            Err(done) => done,
        };
        begun.into_iter().map(end).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_thread_is_done_by_the_one_that_asks() {
        // No process has so much room for a stack.
        let none = || thread::Builder::new().stack_size(1 << 60);
        assert!(none().spawn(|| ()).is_err());
        let asks = thread::current().id();
        let done = on_threads(none, &[1, 2, 3], |number| (2 * number, thread::current().id()));
        assert_eq!(done, [(2, asks), (4, asks), (6, asks)]);
        let others = side_by_side(&[1, 2, 3], |number| (2 * number, thread::current().id() == asks));
        assert_eq!(others, [(2, false), (4, false), (6, false)]);
    }
}
