//! Gathers what is sent to one member, so that many callers share messages.
//!
//! A message leaves as soon as there is something to send that somebody waits for, and no more than [`UNDER_WAY`] at a time:
//! what comes while they are under way shares the next one. What nobody waits for is gathered for [`GATHERED_FOR`] first, as a
//! message costs both ends more than what is in it. Messages leave in the order in which their items came. What nobody waits for
//! has a queue of its own where some of it may be answered late: a message is answered as late as the last of its items.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::types::BoxFuture;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use super::catalog::wire::MESSAGE_BYTES;

/// Messages that are under way to one member at once.
const UNDER_WAY: usize = 8;
/// Items in one message.
const ITEMS_MAX: usize = 1024;
/// How long what nobody waits for is gathered: some reads of what other members hold.
pub(super) const GATHERED_FOR: Duration = Duration::from_millis(2);

/// How soon something is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Haste {
    /// Somebody waits for it.
    Now,
    /// With what comes next.
    Soon,
}

/// Something that is sent.
pub(super) trait Item: Send + 'static {
    /// About how many bytes it takes in a message.
    fn weight(&self) -> usize;
}

struct Queued<T, R> {
    item: T,
    awaiter: Awaiter<R>,
}

/// Who waits for what becomes of an item.
enum Awaiter<R> {
    /// For its answer.
    Answer(oneshot::Sender<R>),
    /// For the end of it and of others, however they end: the last of them takes the channel along.
    End(Arc<oneshot::Sender<R>>),
}

impl<R> Awaiter<R> {
    fn tell(self, answer: R) {
        match self {
            Self::Answer(done) => {
                // Who has given up does not listen.
                let _ = done.send(answer);
            }
            Self::End(end) => drop(end),
        }
    }
}

/// What waits and what is under way.
struct State<T, R> {
    queue: VecDeque<Queued<T, R>>,
    /// Whether somebody waits for some of it.
    is_urgent: bool,
    /// Messages that were cut and are not answered.
    under_way: usize,
    is_closed: bool,
}

/// What is to be done about a queue.
enum Next<T> {
    /// Nothing any more.
    End,
    /// Nothing yet.
    Wait,
    /// Nothing, unless it has been gathered for long enough.
    Gather,
    /// A message is sent.
    Send(Vec<T>),
}

/// Items on their way to one member, and who waits for what becomes of them.
pub(super) struct Batcher<T, R> {
    /// Held for a push and for a cut.
    state: Mutex<State<T, R>>,
    wake: Notify,
    limit: usize,
}

impl<T, R> fmt::Debug for Batcher<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("queued", &self.state.lock().queue.len()).finish_non_exhaustive()
    }
}

/// What sends a message: an answer for each item in their order, or none when nothing came back.
pub(super) type Sender<T, R> = Box<dyn Fn(Vec<T>) -> BoxFuture<'static, Option<Vec<R>>> + Send + Sync>;

impl<T: Item, R: Send + 'static> Batcher<T, R> {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let state = State { queue: VecDeque::new(), is_urgent: false, under_way: 0, is_closed: false };
        Arc::new(Self { state: Mutex::new(state), wake: Notify::new(), limit })
    }

    /// Queues `item`. What becomes of it comes over the channel, which ends without when it was not sent or not answered.
    /// `None`, and nothing queued, when the queue is full or closed.
    pub(super) fn push(&self, item: T, haste: Haste) -> Option<oneshot::Receiver<R>> {
        let (done, receiver) = oneshot::channel();
        let is_news = {
            let mut state = self.state.lock();
            if state.is_closed || state.queue.len() >= self.limit {
                return None;
            }
            state.queue.push_back(Queued { item, awaiter: Awaiter::Answer(done) });
            state.is_urgent |= haste == Haste::Now || state.queue.len() >= ITEMS_MAX;
            state.is_urgent || state.queue.len() == 1
        };
        if is_news {
            self.wake.notify_one();
        }
        Some(receiver)
    }

    /// Queues `items` in their order, as far as there is room, and returns those for which there is none. The channel, where any
    /// was queued, ends when none of these waits or is under way any more, and never gets a message.
    pub(super) fn push_all(&self, items: Vec<T>, haste: Haste) -> (Option<oneshot::Receiver<R>>, Vec<T>) {
        let (end, receiver) = oneshot::channel();
        let end = Arc::new(end);
        let mut items = items.into_iter();
        let is_news = {
            let mut state = self.state.lock();
            let before = state.queue.len();
            let room = if state.is_closed { 0 } else { self.limit.saturating_sub(before) };
            let fitting = items.by_ref().take(room);
            state.queue.extend(fitting.map(|item| Queued { item, awaiter: Awaiter::End(Arc::clone(&end)) }));
            if state.queue.len() == before {
                return (None, items.collect());
            }
            state.is_urgent |= haste == Haste::Now || state.queue.len() >= ITEMS_MAX;
            state.is_urgent || before == 0
        };
        if is_news {
            self.wake.notify_one();
        }
        (Some(receiver), items.collect())
    }

    /// What is to be done. `has_gathered`: whether what nobody waits for is to leave, too.
    fn next(&self, has_gathered: bool) -> Next<Queued<T, R>> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Next::End;
        }
        if state.queue.is_empty() {
            return Next::Wait;
        }
        if !state.is_urgent && !has_gathered {
            return Next::Gather;
        }
        let (mut count, mut bytes) = (0, 0);
        for queued in state.queue.iter().take(ITEMS_MAX) {
            bytes += queued.item.weight();
            if count > 0 && bytes > MESSAGE_BYTES {
                break;
            }
            count += 1;
        }
        state.under_way += 1;
        let cut = state.queue.drain(..count).collect();
        // What is left came together with it.
        state.is_urgent = !state.queue.is_empty();
        Next::Send(cut)
    }

    /// The next message; `None` when it is closed.
    async fn cut(&self) -> Option<Vec<Queued<T, R>>> {
        let mut gathered = None;
        loop {
            match self.next(gathered.is_some_and(|gathered| Instant::now() >= gathered)) {
                Next::End => return None,
                Next::Send(cut) => return Some(cut),
                Next::Wait => self.wake.notified().await,
                Next::Gather => {
                    let gathered = *gathered.get_or_insert_with(|| Instant::now() + GATHERED_FOR);
                    // Woken or not, it is looked again.
                    let _ = timeout_at(gathered, self.wake.notified()).await;
                }
            }
        }
    }

    /// Whether nothing waits, and no message is under way.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.queue.is_empty() && state.under_way == 0
    }

    /// Nothing is taken or sent any more. What is queued is given up.
    pub(super) fn close(&self) {
        let given_up = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.queue)
        };
        self.wake.notify_one();
        drop(given_up);
    }

    fn note_answered(&self) {
        self.state.lock().under_way -= 1;
    }

    /// Sends what is queued, until it is closed.
    pub(super) async fn run(self: Arc<Self>, send: Sender<T, R>) {
        let permits = Arc::new(Semaphore::new(UNDER_WAY));
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let Some(cut) = self.cut().await else { return };
            let (items, waiting): (Vec<T>, Vec<_>) =
                cut.into_iter().map(|queued| (queued.item, queued.awaiter)).unzip();
            let mut under_way = send(items);
            let batcher = Arc::clone(&self);
            let tell = move |answers: Option<Vec<R>>| {
                batcher.note_answered();
                for (awaiter, answer) in waiting.into_iter().zip(answers.into_iter().flatten()) {
                    awaiter.tell(answer);
                }
            };
            // Polled here once, so that messages leave in order.
            match poll_fn(|context| Poll::Ready(under_way.as_mut().poll(context))).await {
                Poll::Ready(answers) => tell(answers),
                Poll::Pending => {
                    tokio::spawn(async move {
                        tell(under_way.await);
                        drop(permit);
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Item for usize {
        fn weight(&self) -> usize {
            *self
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// A batcher that runs, its messages as they leave, and a gate of which each takes a permit before it is answered, with the
    /// double of each item.
    type Gated = (Arc<Batcher<usize, usize>>, Arc<Mutex<Vec<Vec<usize>>>>, Arc<Semaphore>);

    fn gated(limit: usize) -> Gated {
        let batcher = Batcher::<usize, usize>::new(limit);
        let messages = Arc::new(Mutex::new(Vec::new()));
        let gate = Arc::new(Semaphore::new(0));
        let (seen, opens) = (Arc::clone(&messages), Arc::clone(&gate));
        tokio::spawn(Arc::clone(&batcher).run(Box::new(move |items| {
            seen.lock().push(items.clone());
            let opens = Arc::clone(&opens);
            Box::pin(async move {
                opens.acquire().await.unwrap().forget();
                Some(items.iter().map(|item| item * 2).collect())
            })
        })));
        (batcher, messages, gate)
    }

    #[test]
    fn what_comes_while_messages_are_under_way_shares_the_next_one() {
        runtime().block_on(async {
            let (batcher, messages, gate) = gated(10_000);
            let mut answers = Vec::new();
            for item in 0..UNDER_WAY {
                answers.push(batcher.push(item, Haste::Now).unwrap());
                while messages.lock().len() <= item {
                    tokio::task::yield_now().await;
                }
            }
            answers.extend((100..200).map(|item| batcher.push(item, Haste::Now).unwrap()));
            gate.add_permits(1000);
            for (answer, item) in answers.into_iter().zip((0..UNDER_WAY).chain(100..200)) {
                assert_eq!(answer.await, Ok(item * 2));
            }
            let messages = messages.lock();
            assert_eq!(messages.len(), UNDER_WAY + 1);
            assert_eq!(messages.concat(), (0..UNDER_WAY).chain(100..200).collect::<Vec<_>>());
        });
    }

    #[test]
    fn what_nobody_waits_for_is_gathered_until_something_is_waited_for_or_its_time_is_over() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let batcher = Batcher::<usize, usize>::new(10);
            let messages = Arc::new(Mutex::new(Vec::new()));
            let (seen, began) = (Arc::clone(&messages), Instant::now());
            tokio::spawn(Arc::clone(&batcher).run(Box::new(move |items| {
                seen.lock().push((items.clone(), began.elapsed()));
                Box::pin(async { Some(items) })
            })));
            let half = GATHERED_FOR / 2;
            let first = batcher.push(1, Haste::Soon).unwrap();
            tokio::time::sleep(half).await;
            let second = batcher.push(2, Haste::Soon).unwrap();
            assert_eq!((first.await, second.await), (Ok(1), Ok(2)));
            let third = batcher.push(3, Haste::Soon).unwrap();
            tokio::time::sleep(half).await;
            let fourth = batcher.push(4, Haste::Now).unwrap();
            assert_eq!((third.await, fourth.await), (Ok(3), Ok(4)));
            let messages = messages.lock();
            let contents: Vec<&[usize]> = messages.iter().map(|(items, _)| items.as_slice()).collect();
            assert_eq!(contents, [[1, 2], [3, 4]]);
            let waited = messages[1].1 - messages[0].1;
            assert!(messages[0].1 >= GATHERED_FOR && waited < GATHERED_FOR, "{messages:?}");
        });
    }

    #[test]
    fn what_is_pushed_together_shares_messages_and_ends_with_the_last_of_them() {
        runtime().block_on(async {
            let (batcher, messages, gate) = gated(10);
            let (ends, rest) = batcher.push_all(vec![1, 2, MESSAGE_BYTES], Haste::Now);
            let mut ends = ends.unwrap();
            assert!(rest.is_empty());
            for _ in 0..2 {
                assert_eq!(ends.try_recv(), Err(oneshot::error::TryRecvError::Empty));
                gate.add_permits(1);
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            }
            assert!(ends.await.is_err() && batcher.is_idle());
            assert_eq!(*messages.lock(), [vec![1, 2], vec![MESSAGE_BYTES]]);
        });
    }

    #[test]
    fn what_is_pushed_together_is_taken_as_far_as_there_is_room() {
        runtime().block_on(async {
            let batcher = Batcher::<usize, usize>::new(3);
            let (ends, rest) = batcher.push_all(vec![1, 2, 3, 4, 5], Haste::Now);
            assert_eq!(rest, [4, 5]);
            let (none, rest) = batcher.push_all(vec![6], Haste::Now);
            assert!(none.is_none());
            assert_eq!(rest, [6]);
            batcher.close();
            assert!(ends.unwrap().await.is_err(), "they are given up");
            let (none, rest) = batcher.push_all(vec![7], Haste::Now);
            assert!(none.is_none() && rest == [7]);
        });
    }

    #[test]
    fn a_full_queue_takes_nothing_and_a_lost_message_ends_its_waiters() {
        runtime().block_on(async {
            let batcher = Batcher::<usize, usize>::new(2);
            let (first, second) =
                (batcher.push(MESSAGE_BYTES, Haste::Now).unwrap(), batcher.push(1, Haste::Now).unwrap());
            assert!(batcher.push(3, Haste::Now).is_none());
            let lengths = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&lengths);
            tokio::spawn(Arc::clone(&batcher).run(Box::new(move |items| {
                seen.lock().push(items.len());
                Box::pin(async { None })
            })));
            assert!(first.await.is_err() && second.await.is_err());
            assert_eq!(*lengths.lock(), [1, 1], "a heavy item travels alone");
        });
    }

    #[test]
    fn it_is_idle_while_nothing_waits_and_nothing_is_under_way_and_takes_nothing_once_it_is_closed() {
        runtime().block_on(async {
            let batcher = Batcher::<usize, usize>::new(10);
            let gate = Arc::new(Semaphore::new(0));
            let waiting = batcher.push(1, Haste::Now).unwrap();
            assert!(!batcher.is_idle(), "it waits");
            let opens = Arc::clone(&gate);
            let running = tokio::spawn(Arc::clone(&batcher).run(Box::new(move |items| {
                let opens = Arc::clone(&opens);
                Box::pin(async move {
                    let _permit = opens.acquire().await;
                    Some(items)
                })
            })));
            while !batcher.state.lock().queue.is_empty() {
                tokio::task::yield_now().await;
            }
            assert!(!batcher.is_idle(), "it is under way");
            gate.add_permits(1);
            assert_eq!(waiting.await, Ok(1));
            assert!(batcher.is_idle());
            batcher.close();
            assert!(batcher.push(2, Haste::Now).is_none(), "it takes nothing any more");
            running.await.unwrap();
        });
    }
}
