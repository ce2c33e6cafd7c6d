//! Routes to operations: decode, check, call on a blocking thread, encode.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Query as AxumQuery, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidefs_control_api::{
    AddDiskRequest, ApiError, DrainDiskRequest, DrainRequest, ErrorBody, ErrorCode, EvictRequest, KeyPath,
    ListQuery, PathQuery, PinRequest, RemoveDiskRequest, VerifyRequest, routes,
};
use tokio::task::JoinSet;
use tracing::{debug, error, info};

use super::Operations;
use super::caller::Caller;
use super::stream::{self, Lines, Turn, Turns};

/// Longest request body; the longest request names one path of 4096 bytes, each escaped to four.
pub(super) const BODY_MAX: usize = 64 << 10;

/// Time for a whole answer; one that is streamed only has to start in it.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);

/// What each handler of a connection has at hand.
#[derive(Clone, Debug)]
pub(super) struct Control {
    operations: Arc<dyn Operations>,
    turns: Turns,
    caller: Caller,
}

/// All routes; a [`Control`] answers them.
pub(super) fn router() -> Router<Control> {
    Router::new()
        .route(routes::STATUS, get(status))
        .route(routes::LIST, get(list))
        .route(routes::STAT, get(stat))
        .route(routes::WHY, get(why))
        .route(routes::WHERE, get(locate))
        .route(routes::DRAIN, post(drain))
        .route(routes::EVICT, post(evict))
        .route(routes::PIN, post(pin))
        .route(routes::VERIFY, post(verify))
        .route(routes::TIER_ADD, post(add_disk))
        .route(routes::TIER_REMOVE, post(remove_disk))
        .route(routes::TIER_DRAIN, post(drain_disk))
        .route(routes::CONFIG, get(config))
        .route(routes::METRICS, get(metrics))
        .route(routes::HEALTH, get(health))
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn(within_deadline))
}

/// The router for callers that are not answered.
pub(super) fn refusing_router() -> Router {
    Router::new().fallback(async || {
        Refusal::from(
            ApiError::new(ErrorCode::Forbidden, "only root and the daemon's own user are answered")
                .next_step("run the command with sudo"),
        )
    })
}

async fn status(State(control): State<Control>, _: Query<NoQuery>) -> Reply {
    control.call(|operations| operations.status()).await
}

async fn list(State(control): State<Control>, Query(query): Query<ListQuery>) -> Reply {
    check_path(&query.path)?;
    let work = move |operations: &dyn Operations, lines: &Lines| {
        operations.list(&query, &mut |part| lines.send(part))
    };
    control.stream(&control.turns.list, work).await
}

async fn stat(State(control): State<Control>, Query(query): Query<PathQuery>) -> Reply {
    check_path(&query.path)?;
    control.call(move |operations| operations.stat(&query.path)).await
}

async fn why(State(control): State<Control>, Query(query): Query<PathQuery>) -> Reply {
    check_path(&query.path)?;
    control.call(move |operations| operations.why(&query.path)).await
}

async fn locate(State(control): State<Control>, Query(query): Query<PathQuery>) -> Reply {
    check_path(&query.path)?;
    control.call(move |operations| operations.locate(&query.path)).await
}

async fn drain(
    State(control): State<Control>,
    _: Query<NoQuery>,
    Json(request): Json<DrainRequest>,
) -> Reply {
    control.call(move |operations| operations.drain(&request)).await
}

/// Streams how much is evicted.
async fn evict(
    State(control): State<Control>,
    _: Query<NoQuery>,
    Json(request): Json<EvictRequest>,
) -> Reply {
    let target = request.target()?;
    if let Some(path) = &request.path {
        check_path(path)?;
    }
    let work = move |operations: &dyn Operations, lines: &Lines| {
        let force = request.force;
        let evicted = operations.evict(&target, force, &mut |progress| lines.offer(progress))?;
        info!(?target, force, objects = evicted.objects.0, bytes = evicted.bytes.0, "evicted");
        Ok(evicted)
    };
    control.stream(&control.turns.evict, work).await
}

async fn pin(State(control): State<Control>, _: Query<NoQuery>, Json(request): Json<PinRequest>) -> Reply {
    check_path(&request.path)?;
    request.validate()?;
    let reply = control.call(move |operations| {
        let pinned = operations.pin(&request)?;
        info!(object = %request.path, pin = %request.pin, ttl_s = request.ttl_s, "pinned");
        Ok(pinned)
    });
    reply.await
}

async fn config(State(control): State<Control>, _: Query<NoQuery>) -> Reply {
    control.call(|operations| operations.config()).await
}

async fn metrics(State(control): State<Control>, _: Query<NoQuery>) -> Reply {
    let text = control.run(|operations| operations.metrics()).await?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}

async fn health(_: Query<NoQuery>) -> Response {
    "ok\n".into_response()
}

/// Streams the verification.
async fn verify(
    State(control): State<Control>,
    _: Query<NoQuery>,
    Json(request): Json<VerifyRequest>,
) -> Reply {
    if let Some(path) = &request.path {
        check_path(path)?;
    }
    let work = move |operations: &dyn Operations, lines: &Lines| {
        operations.verify(&request, &mut |progress| lines.offer(progress))
    };
    control.stream(&control.turns.verify, work).await
}

async fn add_disk(
    State(control): State<Control>,
    _: Query<NoQuery>,
    Json(request): Json<AddDiskRequest>,
) -> Reply {
    let reply = control.call(move |operations| {
        let changed = operations.add_disk(&request)?;
        info!(path = request.path, "a disk was added");
        Ok(changed)
    });
    reply.await
}

async fn remove_disk(
    State(control): State<Control>,
    _: Query<NoQuery>,
    Json(request): Json<RemoveDiskRequest>,
) -> Reply {
    let reply = control.call(move |operations| {
        let changed = operations.remove_disk(&request)?;
        info!(path = request.path, force = request.force, "a disk was removed");
        Ok(changed)
    });
    reply.await
}

/// Streams how a disk is emptied.
async fn drain_disk(
    State(control): State<Control>,
    _: Query<NoQuery>,
    Json(request): Json<DrainDiskRequest>,
) -> Reply {
    let work = move |operations: &dyn Operations, lines: &Lines| {
        operations.drain_disk(&request, &mut |progress| lines.offer(progress))
    };
    control.stream(&control.turns.drain, work).await
}

async fn no_route(request: Request) -> Refusal {
    ApiError::new(ErrorCode::NoRoute, format!("no route {}", request.uri().path()))
        .next_step("the tools and the daemon may be of different versions: compare `tidefs --version`")
        .into()
}

async fn wrong_method(request: Request) -> Refusal {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(ErrorCode::MethodNotAllowed, message).into()
}

async fn within_deadline(request: Request, next: Next) -> Response {
    let route = request.uri().path().to_owned();
    match tokio::time::timeout(DEADLINE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            error!(route, "no answer within the deadline");
            Refusal::from(
                ApiError::new(ErrorCode::Timeout, format!("no answer within {} s", DEADLINE.as_secs()))
                    .next_step("look at the daemon's log; it may be overloaded or stuck"),
            )
            .into_response()
        }
    }
}

impl Control {
    /// Answers with `operations`; nobody asks yet.
    pub(super) fn new(operations: Arc<dyn Operations>) -> Self {
        Self { operations, turns: Turns::new(), caller: Caller::default() }
    }

    /// The same for what `caller` asks.
    pub(super) fn for_caller(&self, caller: Caller) -> Self {
        Self { caller, ..self.clone() }
    }

    /// Runs `operation` on a blocking thread, unless its caller has left before its turn comes. A panic in it is an error of
    /// this one request.
    async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&dyn Operations) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (operations, caller) = (Arc::clone(&self.operations), self.caller.clone());
        // What has not begun when this future is dropped, as at the deadline, never does.
        let mut task = JoinSet::new();
        task.spawn_blocking(move || {
            caller.check()?;
            operation(operations.as_ref())
        });
        match task.join_next().await {
            Some(Ok(result)) => Ok(result?),
            Some(Err(join_error)) => {
                error!(error = %join_error, "an operation of the admin API did not end");
                Err(stream::failed().into())
            }
            None => Err(stream::failed().into()),
        }
    }

    /// Streams what `work` tells when it is its `turn`, unless its caller has left by then.
    async fn stream<S: Serialize>(
        &self,
        turn: &Turn,
        work: impl FnOnce(&dyn Operations, &Lines) -> Result<S, ApiError> + Send + 'static,
    ) -> Reply {
        let (operations, caller) = (Arc::clone(&self.operations), self.caller.clone());
        let work = move |lines: &Lines| {
            caller.check()?;
            work(operations.as_ref(), lines)
        };
        Ok(stream::answer(turn, work).await?)
    }

    async fn call<T: Serialize + Send + 'static>(
        &self,
        operation: impl FnOnce(&dyn Operations) -> Result<T, ApiError> + Send + 'static,
    ) -> Reply {
        let value = self.run(operation).await?;
        Ok(axum::Json(value).into_response())
    }
}

type Reply = Result<Response, Refusal>;

/// An error on its way out.
#[derive(Debug)]
struct Refusal(ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        debug!(%status, error = %self.0, "refused");
        (status, axum::Json(ErrorBody { error: self.0 })).into_response()
    }
}

fn check_path(path: &KeyPath) -> Result<(), Refusal> {
    match path.to_bytes() {
        Ok(_) => Ok(()),
        Err(error) => Err(ApiError::new(ErrorCode::BadRequest, error.to_string()).into()),
    }
}

/// The query of a route that takes none; each key in it is an error.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NoQuery {}

/// A query, whose faults are told in our own form.
struct Query<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        match AxumQuery::try_from_uri(&parts.uri) {
            Ok(AxumQuery(query)) => Ok(Self(query)),
            Err(rejection) => Err(ApiError::new(ErrorCode::BadRequest, rejection.body_text()).into()),
        }
    }
}

/// A body, whose faults are told in our own form. JSON whatever the content type says: nobody else can ask.
struct Json<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let body = Bytes::from_request(request, state).await.map_err(|rejection| {
            let code = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::TooLarge,
                _ => ErrorCode::BadRequest,
            };
            ApiError::new(code, rejection.body_text())
        })?;
        serde_json::from_slice(&body).map(Self).map_err(|error| {
            ApiError::new(ErrorCode::BadRequest, format!("the body is not what this route takes: {error}"))
                .into()
        })
    }
}
