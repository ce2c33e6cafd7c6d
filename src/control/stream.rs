//! Answers that take long: the operation tells lines while it goes on, and ends when nobody reads them any more.
//!
//! Limits: [`Turns`] at once of each kind; who comes beyond waits for [`PATIENCE`] or not at all, and is refused.
//! [`LINES_MAX`] lines wait for a slow reader. One that reads all is told something every [`SILENCE_MAX`], also where the operation
//! waits for a disk and has nothing to tell: it would take the daemon for stuck, and leave.
//! Threads: an operation has a blocking thread until its end; so many are left to quick ones that `status` never waits.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use serde::Serialize;
use tidefs_control_api::event::ALIVE;
use tidefs_control_api::{ApiError, ErrorCode, Event};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep};
use tracing::debug;

/// Lines on their way to a slow reader.
const LINES_MAX: usize = 64;

/// How long an answer waits for its first line: a refusal that comes by then is told by the status of the reply.
const FIRST_LINE: Duration = Duration::from_secs(1);

/// How long a reader is left without a line. `tidefs` gives up after a minute.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// How long what may be over soon is waited for: most lists and evictions are of a few objects.
const PATIENCE: Duration = Duration::from_secs(10);

const LISTS_MAX: usize = 8;
const EVICTIONS_MAX: usize = 4;
const VERIFICATIONS_MAX: usize = 1;
const DRAINS_MAX: usize = 2;

/// Operations that take long, all kinds together.
pub(super) const STREAMS_MAX: usize = LISTS_MAX + EVICTIONS_MAX + VERIFICATIONS_MAX + DRAINS_MAX;

/// Those of one kind that may go on at once.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    permits: Arc<Semaphore>,
    /// How long the next one waits for its turn before it is refused.
    patience: Duration,
    /// What goes on already, for who is refused.
    busy: &'static str,
}

impl Turn {
    fn new(max: usize, patience: Duration, busy: &'static str) -> Self {
        Self { permits: Arc::new(Semaphore::new(max)), patience, busy }
    }

    /// `None` when it does not come in time.
    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).acquire_owned();
        // The semaphore is never closed.
        tokio::time::timeout(self.patience, permit).await.ok()?.ok()
    }

    fn refusal(&self) -> ApiError {
        ApiError::new(ErrorCode::Conflict, self.busy)
            .next_step("wait until it is done, or end it by ending the command that asked for it")
    }
}

/// The kinds of operations that take long.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// One that is read by a pager lasts as long as its reader does.
    pub(super) list: Turn,
    /// More would wait for the same disks.
    pub(super) evict: Turn,
    /// Two would only slow each other and the mount.
    pub(super) verify: Turn,
    /// Disks are emptied one by one, or two at once.
    pub(super) drain: Turn,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            list: Turn::new(LISTS_MAX, PATIENCE, "as many lists are being read as may be at once"),
            evict: Turn::new(EVICTIONS_MAX, PATIENCE, "as many evictions are going on as may at once"),
            verify: Turn::new(VERIFICATIONS_MAX, Duration::ZERO, "another verification is going on"),
            drain: Turn::new(DRAINS_MAX, Duration::ZERO, "two other disks are being emptied"),
        }
    }
}

/// Where an operation tells how far it is. `Break`: nobody reads it any more.
#[derive(Debug)]
pub(super) struct Lines {
    sender: mpsc::Sender<Result<Bytes, ApiError>>,
}

impl Lines {
    /// Tells progress, which is left out where the reader is slow: the operation waits for nobody.
    pub(super) fn offer<P: Serialize>(&self, progress: P) -> ControlFlow<()> {
        match self.sender.try_send(Ok(line(&Event::<P, ()>::Progress(progress)))) {
            Err(mpsc::error::TrySendError::Closed(_)) => ControlFlow::Break(()),
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => ControlFlow::Continue(()),
        }
    }

    /// Tells a part of what was asked for, and waits for a reader that is slow.
    pub(super) fn send<P: Serialize>(&self, part: P) -> ControlFlow<()> {
        match self.sender.blocking_send(Ok(line(&Event::<P, ()>::Progress(part)))) {
            Err(_) => ControlFlow::Break(()),
            Ok(()) => ControlFlow::Continue(()),
        }
    }
}

/// The answer of `work`, which runs on a blocking thread, when it is its `turn`.
///
/// # Errors
/// It is not its turn; what `work` refuses within [`FIRST_LINE`] before it told anything.
pub(super) async fn answer<S: Serialize>(
    turn: &Turn,
    work: impl FnOnce(&Lines) -> Result<S, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let Some(permit) = turn.take().await else { return Err(turn.refusal()) };
    let (sender, mut receiver) = mpsc::channel(LINES_MAX);
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let lines = Lines { sender };
        let last = work(&lines).map(|summary| line(&Event::<(), S>::Summary(summary)));
        if lines.sender.blocking_send(last).is_err() {
            debug!("the reader of an answer left before its end");
        }
    });
    let first = match tokio::time::timeout(FIRST_LINE, receiver.recv()).await {
        Ok(Some(line)) => Some(line?),
        Ok(None) => return Err(failed()),
        Err(_) => None,
    };
    let body = Body::new(LinesBody::new(first, receiver));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// An operation that panicked.
pub(super) fn failed() -> ApiError {
    ApiError::new(ErrorCode::Internal, "the operation failed inside the daemon")
        .next_step("look at the daemon's log")
}

fn line<T: Serialize>(event: &T) -> Bytes {
    // Numbers, text and lists: there is nothing in an event that JSON cannot say.
    let mut line = serde_json::to_vec(event).expect("an event has a JSON form");
    line.push(b'\n');
    line.into()
}

/// A body that is what comes out of a channel, and a sign of life where nothing does for long.
struct LinesBody {
    first: Option<Bytes>,
    receiver: mpsc::Receiver<Result<Bytes, ApiError>>,
    /// Ends when the reader has heard nothing for too long.
    silence: Pin<Box<Sleep>>,
}

impl LinesBody {
    /// Needs a runtime around it.
    fn new(first: Option<Bytes>, receiver: mpsc::Receiver<Result<Bytes, ApiError>>) -> Self {
        Self { first, receiver, silence: Box::pin(tokio::time::sleep(SILENCE_MAX)) }
    }

    /// The next line, `None` after the last one.
    fn poll_line(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        match self.receiver.poll_recv(context) {
            Poll::Ready(told) => Poll::Ready(
                told.map(|told| told.unwrap_or_else(|error| line(&Event::<(), ()>::Error(error)))),
            ),
            Poll::Pending => {
                self.silence.as_mut().poll(context).map(|()| Some(Bytes::from_static(ALIVE.as_bytes())))
            }
        }
    }
}

impl HttpBody for LinesBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.poll_line(context).map(|line| {
            self.silence.as_mut().reset(Instant::now() + SILENCE_MAX);
            line.map(|line| Ok(Frame::data(line)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn next(body: &mut LinesBody) -> Option<Bytes> {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        frame.unwrap().into_data().ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_is_told_that_it_goes_on_where_nothing_else_is_told_for_long() {
        let (sender, receiver) = mpsc::channel(LINES_MAX);
        let mut body = LinesBody::new(Some(Bytes::from_static(b"first\n")), receiver);
        let began = Instant::now();
        assert_eq!(next(&mut body).await.unwrap(), "first\n");
        for seconds in [10, 20] {
            assert_eq!(next(&mut body).await.unwrap(), ALIVE);
            assert_eq!(began.elapsed().as_secs(), seconds);
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        sender.send(Ok(Bytes::from_static(b"part\n"))).await.unwrap();
        assert_eq!(next(&mut body).await.unwrap(), "part\n");
        assert_eq!(began.elapsed().as_secs(), 25, "at once");
        assert_eq!(next(&mut body).await.unwrap(), ALIVE);
        assert_eq!(began.elapsed().as_secs(), 35, "ten seconds after the last line");
        drop(sender);
        assert!(next(&mut body).await.is_none());
    }
}
