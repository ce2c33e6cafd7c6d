//! The socket and its thread: bind, accept, serve, stop.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tidefs_control_api::socket::SocketAddress;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::Operations;
use super::caller::Caller;
use super::credentials::Peer;
use super::handlers::{self, Control};
use super::stream;

/// Connections served at once; further ones wait in the socket's queue.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// Time for a caller to send the head of a request.
pub(super) const HEADER_DEADLINE: Duration = Duration::from_secs(10);

/// Time that requests in flight have once the server is asked to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Quick operations in flight at once, whatever else goes on. Further ones wait their turn.
const QUICK_MAX: usize = 8;

/// Blocking threads. They are there when they are needed.
const BLOCKING_THREADS_MAX: usize = QUICK_MAX + stream::STREAMS_MAX;

/// Pause after an accept that failed for want of resources, so that the thread does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the admin socket does not open.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder belongs to somebody else, who could replace the socket.
    #[error("{} belongs to user {uid}; choose another state directory", path.display())]
    ForeignFolder {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Something that is not a socket stands in the way.
    #[error("{} is in the way and is not a socket; move it away", path.display())]
    InTheWay {
        /// The socket's path.
        path: PathBuf,
    },
    /// Another server answers there.
    #[error("another daemon answers at {}", path.display())]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// The kernel refuses a step.
    #[error("cannot {step} {}: {source}", path.display())]
    Io {
        /// The step.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The admin socket of a daemon. It stops when this is dropped; [`ControlServer::stop`] says so by name.
#[derive(Debug)]
pub struct ControlServer {
    socket_path: PathBuf,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Opens the socket at `socket_path` and answers with `operations` from a thread named `control`.
    ///
    /// The folder is made if it is not there, and closed to others. A socket that a dead daemon left is replaced.
    /// When this returns, callers are accepted.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was left behind.
    pub fn start(socket_path: &Path, operations: Arc<dyn Operations>) -> Result<Self, StartError> {
        let listener = bind(socket_path)?;
        let io_error = |step| {
            let path = socket_path.to_owned();
            move |source| StartError::Io { step, path, source }
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .thread_name("control-op")
            .build()
            .map_err(io_error("start a runtime for"))?;
        let (stop, stopping) = watch::channel(false);
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            runtime.block_on(serve(listener, &Control::new(operations), stopping));
            runtime.shutdown_timeout(STOP_PATIENCE);
        });
        let thread = thread.map_err(io_error("start a thread for"))?;
        info!(socket = %socket_path.display(), "admin socket is open");
        Ok(Self { socket_path: socket_path.to_owned(), stop, thread: Some(thread) })
    }

    /// Stops accepting, gives requests in flight two seconds, and removes the socket.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // Nobody listens only if the thread has ended already, and then there is nothing to stop.
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the thread of the admin socket panicked");
        }
        if let Err(error) = std::fs::remove_file(&self.socket_path) {
            debug!(%error, "the admin socket was removed by somebody else");
        }
    }
}

fn bind(socket_path: &Path) -> Result<StdListener, StartError> {
    let io_error = |step, path: &Path| {
        let path = path.to_owned();
        move |source| StartError::Io { step, path, source }
    };
    let folder = socket_path.parent().unwrap_or(Path::new("."));
    close_folder(folder)?;
    remove_stale_socket(socket_path)?;
    let address = SocketAddress::new(socket_path).map_err(io_error("reach the folder of", socket_path))?;
    let listener = StdListener::bind(address.path()).map_err(io_error("bind", socket_path))?;
    // The folder is closed to others, so nobody else connected in between.
    std::fs::set_permissions(socket_path, Permissions::from_mode(0o600))
        .map_err(io_error("set the mode of", socket_path))?;
    listener.set_nonblocking(true).map_err(io_error("prepare", socket_path))?;
    Ok(listener)
}

/// Makes `folder` if need be, and gives it mode 0700.
fn close_folder(folder: &Path) -> Result<(), StartError> {
    let io_error = |step| {
        let path = folder.to_owned();
        move |source| StartError::Io { step, path, source }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io_error("make"))?;
    let metadata = std::fs::metadata(folder).map_err(io_error("look at"))?;
    if metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Err(StartError::ForeignFolder { path: folder.to_owned(), uid: metadata.uid() });
    }
    if metadata.mode() & 0o077 != 0 {
        std::fs::set_permissions(folder, Permissions::from_mode(0o700)).map_err(io_error("close"))?;
    }
    Ok(())
}

fn remove_stale_socket(socket_path: &Path) -> Result<(), StartError> {
    let io_error = |step| {
        let path = socket_path.to_owned();
        move |source| StartError::Io { step, path, source }
    };
    match std::fs::symlink_metadata(socket_path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("look at")(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(StartError::InTheWay { path: socket_path.to_owned() });
        }
        Ok(_) => {}
    }
    let address = SocketAddress::new(socket_path).map_err(io_error("reach the folder of"))?;
    if StdStream::connect(address.path()).is_ok() {
        return Err(StartError::InUse { path: socket_path.to_owned() });
    }
    info!(socket = %socket_path.display(), "replacing the admin socket of a daemon that is gone");
    std::fs::remove_file(socket_path).map_err(io_error("remove"))
}

async fn serve(listener: StdListener, control: &Control, mut stopping: watch::Receiver<bool>) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the admin socket cannot be polled");
            return;
        }
    };
    let own_uid = nix::unistd::geteuid().as_raw();
    let (router, refusing_router) = (handlers::router(), handlers::refusing_router());
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = stop_is_wanted(&mut stopping) => break,
            next = next => next,
        };
        while connections.try_join_next().is_some() {}
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "cannot accept a caller on the admin socket");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let met = Peer::of(&stream).and_then(|peer| Ok((peer, Caller::of(&stream)?)));
        let (peer, (caller, connection)) = match met {
            Ok(met) => met,
            Err(error) => {
                debug!(%error, "a caller left at once");
                continue;
            }
        };
        let router = if peer.is_allowed(own_uid) {
            router.clone().with_state(control.for_caller(caller))
        } else {
            warn!(uid = peer.uid, pid = peer.pid, "a user without the right asked the admin socket");
            refusing_router.clone()
        };
        let stopping = stopping.clone();
        connections.spawn(async move {
            serve_connection(stream, router, stopping).await;
            drop((connection, permit));
        });
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_PATIENCE, all).await.is_err() {
        warn!("requests on the admin socket were cut off by the stop");
        // To the end, not only asked to: operations that stream learn that nobody listens when this is done.
        connections.shutdown().await;
    }
}

async fn serve_connection(stream: UnixStream, router: Router, mut stopping: watch::Receiver<bool>) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop_is_wanted(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        debug!(%error, "a caller of the admin socket broke off");
    }
}

/// Ends when the server is to stop, or when it was dropped.
async fn stop_is_wanted(stopping: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop as well.
    let _ = stopping.wait_for(|stop| *stop).await;
}
