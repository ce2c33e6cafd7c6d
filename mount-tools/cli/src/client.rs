//! Asks a daemon: HTTP over its admin socket, one connection a request.
//!
//! Answers come back as JSON values as they were sent, so that `--json` shows fields too that this version does
//! not know; commands read them into types only for people.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tidefs_control_api::socket::SocketAddress;
use tidefs_control_api::{ApiError, ErrorBody, ErrorCode, Event};
use tokio::net::UnixStream;

use crate::error::{CliError, Exit};
use crate::next_step::pointed;

/// Time for an answer; the daemon gives up after 30 s itself.
const ANSWER_DEADLINE: Duration = Duration::from_secs(40);

/// Time between two lines of a long answer; the daemon sends one every ten seconds at least, whatever it waits for.
const LINE_DEADLINE: Duration = Duration::from_secs(60);

/// Longest line of an answer: the summary of a verification names up to 1000 keys.
const LINE_MAX: usize = 64 << 20;

/// A way to one daemon.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
    /// Words after `tidefs why` for the object that is asked about.
    asked_about: Option<String>,
    /// Options by which another command means the same daemon.
    same_daemon: String,
}

impl Client {
    /// A way to the daemon whose socket is at `socket`. Connects with each request.
    pub(crate) fn new(socket: &Path) -> Result<Self, CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| CliError::system("cannot start a runtime", &error))?;
        Ok(Self { socket: socket.to_owned(), runtime, asked_about: None, same_daemon: String::new() })
    }

    /// The same for a daemon that another command finds by `options`.
    pub(crate) fn found_by(mut self, options: String) -> Self {
        self.same_daemon = options;
        self
    }

    /// The same for questions about one object; `words` after `tidefs why` name it wherever they are typed.
    pub(crate) fn about(mut self, words: String) -> Self {
        self.asked_about = Some(words);
        self
    }

    /// What the daemon refuses, with a next step that can be typed as it stands: the daemon knows neither where the
    /// caller is and how its shell quotes, nor by which options it was found.
    pub(crate) fn refused(&self, error: ApiError) -> CliError {
        match (&self.asked_about, error.code) {
            (Some(words), ErrorCode::NotFound) => {
                CliError::from(error).next_step(format!("`tidefs why {words}` tells what became of it"))
            }
            _ => {
                let failure = CliError::from(error);
                let next_step = failure.next_step.as_deref().map(|step| pointed(step, &self.same_daemon));
                CliError { next_step, ..failure }
            }
        }
    }

    /// The answer to `GET route?query`.
    pub(crate) fn get(&self, route: &str, query: &impl Serialize) -> Result<Value, CliError> {
        self.within_deadline(self.ask(Method::GET, &target(route, query), Bytes::new()))
    }

    /// The answer to `POST route` with `body`.
    pub(crate) fn post(&self, route: &str, body: &impl Serialize) -> Result<Value, CliError> {
        self.within_deadline(self.ask(Method::POST, route, to_json(body)))
    }

    /// The last line of the answer to `POST route` with `body`, which tells its progress until then.
    pub(crate) fn follow<P: DeserializeOwned, S: DeserializeOwned>(
        &self,
        route: &str,
        body: &impl Serialize,
        mut progress: impl FnMut(P),
    ) -> Result<(S, Value), CliError> {
        let followed = self.until_last(Method::POST, route, to_json(body), |so_far, _| {
            progress(so_far);
            ControlFlow::Continue(())
        });
        followed?.ok_or_else(|| self.cut_off())
    }

    /// Hands each part of the answer to `GET route?query` to `part`, with its line as it came, until that breaks it off. The
    /// last line, if it came to that.
    pub(crate) fn get_parts<P: DeserializeOwned, S: DeserializeOwned>(
        &self,
        route: &str,
        query: &impl Serialize,
        part: impl FnMut(P, Value) -> ControlFlow<()>,
    ) -> Result<Option<(S, Value)>, CliError> {
        self.until_last(Method::GET, &target(route, query), Bytes::new(), part)
    }

    /// The last line of an answer, unless `part`, which is handed all before it, breaks it off.
    fn until_last<P: DeserializeOwned, S: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
        mut part: impl FnMut(P, Value) -> ControlFlow<()>,
    ) -> Result<Option<(S, Value)>, CliError> {
        let (mut last, mut is_broken_off) = (None, false);
        self.events(method, target, body, |event, value| {
            match event {
                Event::Progress(next) => {
                    let goes_on = part(next, value);
                    is_broken_off = goes_on.is_break();
                    return goes_on;
                }
                Event::Summary(summary) => last = Some(Ok((summary, value))),
                Event::Error(error) => last = Some(Err(self.refused(error))),
                Event::Other => {}
            }
            ControlFlow::Continue(())
        })?;
        if is_broken_off {
            return Ok(None);
        }
        let (summary, mut value) = last.unwrap_or_else(|| Err(self.cut_off()))?;
        if let Some(fields) = value.as_object_mut() {
            fields.remove("event");
        }
        Ok(Some((summary, value)))
    }

    /// Sends a request and hands each line of the answer to `event`, with the line as it came, until that breaks it off.
    fn events<P: DeserializeOwned, S: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
        mut event: impl FnMut(Event<P, S>, Value) -> ControlFlow<()>,
    ) -> Result<(), CliError> {
        self.runtime.block_on(async {
            let send = self.send(method, target, body);
            let response = tokio::time::timeout(ANSWER_DEADLINE, send).await;
            let mut body = response.map_err(|_| self.silent())??.into_body();
            let mut rest = Vec::new();
            loop {
                let frame = tokio::time::timeout(LINE_DEADLINE, body.frame()).await;
                let data = match frame.map_err(|_| self.silent())? {
                    Some(frame) => frame.map_err(|error| self.interrupted(&error))?.into_data(),
                    None if rest.is_empty() => return Ok(()),
                    None => return Err(self.broken(&"its last line does not end")),
                };
                let Ok(data) = data else { continue };
                rest.extend_from_slice(&data);
                if rest.len() > LINE_MAX {
                    return Err(self.broken(&"a line of its answer does not end"));
                }
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    let value: Value = serde_json::from_slice(&line).map_err(|error| self.broken(&error))?;
                    if event(self.read(value.clone())?, value).is_break() {
                        return Ok(());
                    }
                }
            }
        })
    }

    /// Reads an answer into its type.
    pub(crate) fn read<T: DeserializeOwned>(&self, value: Value) -> Result<T, CliError> {
        serde_json::from_value(value).map_err(|error| self.broken(&error))
    }

    fn within_deadline(&self, ask: impl Future<Output = Result<Value, CliError>>) -> Result<Value, CliError> {
        self.runtime.block_on(async {
            tokio::time::timeout(ANSWER_DEADLINE, ask).await.unwrap_or_else(|_| Err(self.silent()))
        })
    }

    async fn ask(&self, method: Method, target: &str, body: Bytes) -> Result<Value, CliError> {
        let response = self.send(method, target, body).await?;
        let body = response.into_body().collect().await.map_err(|error| self.interrupted(&error))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|error| self.broken(&error))
    }

    /// The head of the answer, if it is a success.
    async fn send(&self, method: Method, target: &str, body: Bytes) -> Result<Response<Incoming>, CliError> {
        let stream = async { UnixStream::connect(SocketAddress::new(&self.socket)?.path()).await };
        let stream = stream.await.map_err(|error| self.unreachable(&error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.interrupted(&error))?;
        // Its errors come out of `send_request` and of the body as well.
        tokio::spawn(async move { connection.await.ok() });
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header(hyper::header::HOST, "tidefs")
            .header(hyper::header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| self.broken(&error))?;
        let response = sender.send_request(request).await.map_err(|error| self.interrupted(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(response).await)
    }

    async fn refusal(&self, response: Response<Incoming>) -> CliError {
        let status: StatusCode = response.status();
        let body = match response.into_body().collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return self.interrupted(&error),
        };
        match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(ErrorBody { error }) => self.refused(error),
            Err(_) => self.broken(&format!("it answers {status}")),
        }
    }

    fn unreachable(&self, error: &std::io::Error) -> CliError {
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            return CliError::system(format!("cannot reach {}", self.socket.display()), error);
        }
        CliError::new(Exit::NoDaemon, format!("no daemon answers at {}: {error}", self.socket.display()))
            .next_step("if it is just starting, try again; else look at its log")
    }

    fn silent(&self) -> CliError {
        CliError::new(
            Exit::Failed,
            format!("the daemon at {} does not answer in time", self.socket.display()),
        )
        .next_step("it may be stopped or stuck: look at its process and its log")
    }

    /// An answer that did not come to its end: the daemon went away, unless what it sends is no HTTP.
    fn interrupted(&self, error: &hyper::Error) -> CliError {
        if error.is_parse() { self.broken(error) } else { self.cut_off() }
    }

    /// An answer that ended before all of it was there.
    fn cut_off(&self) -> CliError {
        CliError::new(Exit::Failed, "the daemon broke off before it was done").next_step(format!(
            "it may have stopped: look at `tidefs status{}` and at its log",
            self.same_daemon
        ))
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> CliError {
        let socket = self.socket.display();
        CliError::new(Exit::Failed, format!("the answer of the daemon at {socket} is not usable: {error}"))
            .next_step("tools and daemon may be of different versions: compare `tidefs --version` and `tidefsd --version`")
    }
}

fn target(route: &str, query: &impl Serialize) -> String {
    let query = serde_urlencoded::to_string(query).expect("a query is a flat struct of texts and numbers");
    if query.is_empty() { route.to_owned() } else { format!("{route}?{query}") }
}

fn to_json(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body).expect("a request has string keys and whole numbers").into()
}
