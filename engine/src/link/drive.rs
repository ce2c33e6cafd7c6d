//! Hot path: the task of a link. It reads frames, hands them out, and sends what had to wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::Interest;

use super::frame::{Header, Kind};
use super::inbox::{Inbox, Received};
use super::{Answer, Link, LinkEvents, caught};
use crate::error::Error;
use crate::types::BoxFuture;

/// Time for the last frames of a link that is closed here.
const FAREWELL: Duration = Duration::from_millis(500);

/// Drives `link` until it is over; returns why.
pub(super) async fn drive(link: &Arc<Link>, events: &Arc<dyn LinkEvents>) -> Error {
    let cause = match exchange(link, events).await {
        Ok(()) => Error::Closed,
        Err(Error::System { cause, .. }) => link.gone(&cause),
        Err(error) => error,
    };
    link.end(cause);
    let cause = link.cause();
    if cause == Error::Closed {
        // A peer that does not read it in time sees the end of the stream instead.
        let _ = tokio::time::timeout(FAREWELL, say_goodbye(link)).await;
    }
    link.stream.shut_down();
    cause
}

async fn exchange(link: &Arc<Link>, events: &Arc<dyn LinkEvents>) -> Result<(), Error> {
    let body_bytes_max = usize::try_from(link.config.message_bytes_max.get()).unwrap_or(usize::MAX);
    let mut inbox = Inbox::default();
    let mut deliver = |header, body| deliver(link, events, &header, body);
    // Encryption may hold bytes that the socket does not show any more.
    let mut holds_more = false;
    while link.is_up() {
        if holds_more {
            tokio::task::yield_now().await;
            drain(link)?;
        } else {
            let interest = match link.outbox.lock().is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            let ready = tokio::select! {
                biased;
                ready = link.stream.ready(interest) => ready.map_err(|error| Error::system("poll", &error))?,
                () = link.wake.notified() => continue,
            };
            if ready.is_writable() {
                drain(link)?;
            }
            if !ready.is_readable() {
                continue;
            }
        }
        link.hear();
        holds_more = match inbox.receive(&link.stream, body_bytes_max, &mut deliver)? {
            Received::End => return Err(link.gone("it closed the connection")),
            Received::Nothing => false,
            Received::Bytes(_) => !link.stream.is_plain(),
        };
    }
    Ok(())
}

fn drain(link: &Link) -> Result<(), Error> {
    let drained = link.outbox.lock().drain(&link.stream);
    drained.map(drop).map_err(|error| Error::system("send", &error))
}

fn deliver(
    link: &Arc<Link>,
    events: &Arc<dyn LinkEvents>,
    header: &Header,
    body: Vec<u8>,
) -> Result<(), Error> {
    match header.kind {
        Kind::Request => match events.request(link, header.channel, body) {
            Answer::Now(result) => link.respond(header, result)?,
            Answer::Later(answer) => answer_later(link, *header, answer)?,
        },
        Kind::Response | Kind::Refusal | Kind::Overload => link.deliver_answer(header, body),
        Kind::Notification => events.notified(link, header.channel, body),
        Kind::Ping => match link.send(&Header::bare(Kind::Pong), Vec::new(), true) {
            // It hears the frames that fill the queue.
            Err(Error::Busy { .. }) => {}
            sent => sent?,
        },
        Kind::Pong => {}
        Kind::Goodbye => return Err(link.gone("it said goodbye")),
    }
    Ok(())
}

/// Lets a task of its own answer, unless there are too many.
fn answer_later(
    link: &Arc<Link>,
    header: Header,
    answer: BoxFuture<'static, Result<Vec<u8>, String>>,
) -> Result<(), Error> {
    if link.answering.fetch_add(1, Ordering::Relaxed) >= link.config.answers_max {
        link.answering.fetch_sub(1, Ordering::Relaxed);
        return link.respond_overload(&header);
    }
    let link = Arc::clone(link);
    let runtime = link.runtime.clone();
    runtime.spawn(async move {
        let mut over = link.over.subscribe();
        tokio::select! {
            answered = caught::awaited(answer) => {
                let result = answered.unwrap_or_else(|| Err(caught::PANICKED.to_owned()));
                if let Err(error) = link.respond(&header, result) {
                    link.end(error);
                }
            }
            _ = over.wait_for(|over| *over) => {}
        }
        link.answering.fetch_sub(1, Ordering::Relaxed);
    });
    Ok(())
}

/// Sends what waits, and that nothing follows.
async fn say_goodbye(link: &Link) -> Result<(), Error> {
    match link.send(&Header::bare(Kind::Goodbye), Vec::new(), true) {
        Err(Error::Busy { .. }) => return Ok(()),
        sent => sent?,
    }
    while !link.outbox.lock().is_empty() {
        let writable = link.stream.ready(Interest::WRITABLE).await;
        writable.map_err(|error| Error::system("poll", &error))?;
        drain(link)?;
    }
    Ok(())
}
