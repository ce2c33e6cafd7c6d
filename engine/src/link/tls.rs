//! Encryption of one stream: TLS 1.3 with certificates of both ends.
//!
//! The session keeps its own buffers and is driven by the same calls as a plain socket, so that everything above is
//! written once. Plain bytes wait in it at most for [`BUFFER_BYTES`].

mod authorities;
mod members;

use std::fmt;
use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use self::authorities::Authorities;
use self::members::Members;
use super::TlsConfig;
use super::stream::Nonblocking;
use crate::error::Error;

/// Plain bytes that a session takes before it has sent the last.
const BUFFER_BYTES: usize = 256 << 10;

/// What makes sessions: the files of [`TlsConfig`], read once.
pub(super) struct Encryption {
    authorities: Authorities,
    /// At least one; the first is ours, and bears `name`.
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    name: ServerName<'static>,
    /// What sessions are made with until another authority counts. Held to make it.
    current: Mutex<Option<Current>>,
}

/// How sessions are made while these authorities count.
struct Current {
    authorities: Vec<usize>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encryption").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Encryption {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the file and what is wrong with it.
    pub(super) fn open(config: &TlsConfig) -> Result<Self, Error> {
        let authorities = Authorities::new(certificates(&config.authority)?)
            .map_err(|error| unusable(&config.authority, &error))?;
        authorities.in_date(UnixTime::now()).map_err(|error| unusable(&config.authority, &error))?;
        let encryption = Self {
            authorities,
            chain: certificates(&config.certificate)?,
            key: PrivateKeyDer::from_pem_file(&config.key).map_err(|error| unusable(&config.key, &error))?,
            name: ServerName::try_from(config.name.clone())
                .map_err(|error| unusable(Path::new(&config.name), &error))?,
            current: Mutex::default(),
        };
        members::check_name(&encryption.chain[0], &encryption.name)
            .map_err(|error| unusable(&config.certificate, &error))?;
        encryption.configs().map_err(|error| unusable(&config.certificate, &error))?;
        Ok(encryption)
    }

    /// How sessions are made now.
    fn configs(&self) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), rustls::Error> {
        let authorities = self.authorities.in_date(UnixTime::now())?;
        let mut current = self.current.lock();
        let found = match current.take().filter(|current| current.authorities == authorities) {
            Some(found) => found,
            None => self.make(authorities)?,
        };
        let Current { client, server, .. } = current.insert(found);
        Ok((Arc::clone(client), Arc::clone(server)))
    }

    fn make(&self, authorities: Vec<usize>) -> Result<Current, rustls::Error> {
        let roots = Arc::new(self.authorities.store(&authorities)?);
        let provider = Arc::new(authorities::provider());
        let versions = [&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        let members = Members::new(roots, Arc::clone(&provider), self.name.clone())?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)?
            .with_client_cert_verifier(Arc::new(members))
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        // Connections live long, so nothing is gained by resuming one.
        server.send_tls13_tickets = 0;
        Ok(Current { authorities, client: Arc::new(client), server: Arc::new(server) })
    }

    /// The session of the end that dialled.
    pub(super) fn dialled(&self) -> io::Result<Session> {
        let (client, _) = self.configs().map_err(io::Error::other)?;
        let connection = ClientConnection::new(client, self.name.clone());
        Ok(Session::new(connection.map_err(io::Error::other)?.into()))
    }

    /// The session of the end that accepted.
    pub(super) fn accepted(&self) -> io::Result<Session> {
        let (_, server) = self.configs().map_err(io::Error::other)?;
        Ok(Session::new(ServerConnection::new(server).map_err(io::Error::other)?.into()))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let text = fs::read(path).map_err(|error| unusable(path, &error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unusable(path, &"there is no certificate in it")),
        Err(error) => Err(unusable(path, &error)),
    }
}

fn unusable(path: &Path, cause: &dyn fmt::Display) -> Error {
    let looked_for = path.display().to_string().into();
    Error::Unavailable { transport: "tls", looked_for, cause: cause.to_string().into() }
}

/// One encrypted stream.
pub(super) struct Session {
    /// Guards the state of the encryption; held for system calls that do not wait.
    connection: Mutex<Connection>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session(..)")
    }
}

/// The socket, for the encryption to use.
struct Raw<'a>(&'a dyn Nonblocking);

impl Read for Raw<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(target)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        self.0.try_write(&[IoSlice::new(source)])
    }

    fn write_vectored(&mut self, sources: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write(sources)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Session {
    fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(BUFFER_BYTES));
        Self { connection: Mutex::new(connection) }
    }

    pub(super) fn wants_write(&self) -> bool {
        self.connection.lock().wants_write()
    }

    /// Goes on with the handshake; `WouldBlock` until it is done.
    pub(super) fn shake_hands(&self, socket: &dyn Nonblocking) -> io::Result<()> {
        let mut connection = self.connection.lock();
        while connection.is_handshaking() {
            flush(&mut connection, socket)?;
            // A session that is not over yet goes on after the end of what it reads as if nothing had happened.
            if connection.is_handshaking()
                && receive(&mut connection, socket)? == 0
                && connection.is_handshaking()
            {
                let cause = "the connection ended in the handshake";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, cause));
            }
        }
        flush(&mut connection, socket)
    }

    pub(super) fn try_read(&self, socket: &dyn Nonblocking, target: &mut [u8]) -> io::Result<usize> {
        let mut connection = self.connection.lock();
        loop {
            match connection.reader().read(target) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A peer that was killed says no farewell: the end of the stream, as on a plain socket.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            // Nothing received is the end, which the next look shows.
            receive(&mut connection, socket)?;
        }
    }

    pub(super) fn try_write(&self, socket: &dyn Nonblocking, sources: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut connection = self.connection.lock();
        flush(&mut connection, socket)?;
        let count = connection.writer().write_vectored(sources)?;
        match flush(&mut connection, socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }

    pub(super) fn try_flush(&self, socket: &dyn Nonblocking) -> io::Result<()> {
        flush(&mut self.connection.lock(), socket)
    }
}

/// Sends what is encrypted; `WouldBlock` when some is left.
fn flush(connection: &mut Connection, socket: &dyn Nonblocking) -> io::Result<()> {
    while connection.wants_write() {
        connection.write_tls(&mut Raw(socket))?;
    }
    Ok(())
}

/// Receives once and decrypts. Returns the encrypted bytes that came: 0 at the end of the stream.
fn receive(connection: &mut Connection, socket: &dyn Nonblocking) -> io::Result<usize> {
    let count = connection.read_tls(&mut Raw(socket))?;
    let outcome = connection.process_new_packets();
    if outcome.is_err() {
        // The alert that tells the peer why.
        let _ = flush(connection, socket);
    }
    outcome.map(|_| count).map_err(io::Error::other)
}
