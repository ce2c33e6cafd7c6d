//! The handshake over a stream: the messages of [`super::handshake`], in order, each awaited by a deadline of the caller.

use std::io;
use std::net::SocketAddr;

use super::handshake::{
    GREETING_BYTES, Greeting, Greetings, IDENTITY_BYTES_MAX, Identity, PROOF_BYTES, Prover, Role, VERSIONS,
    Verdict,
};
use super::stream::Stream;
use crate::error::Error;
use crate::types::PeerId;

/// Proves this engine to whoever accepted `stream`, and says who it is when that has proved itself too.
///
/// # Errors
/// [`Error::Unproven`], [`Error::VersionMismatch`], [`Error::Protocol`]; [`Error::PeerGone`] when it is not `wanted`.
pub(super) async fn introduce(
    stream: &Stream,
    prover: &Prover,
    me: &Identity,
    wanted: PeerId,
) -> Result<(Identity, Verdict), Error> {
    let remote = remote(stream)?;
    let ours = Greeting::fresh()?.bytes();
    stream.write_all(&ours).await.map_err(|error| broken(remote, &error))?;
    let mut theirs = [0; GREETING_BYTES];
    stream.read_exact(&mut theirs).await.map_err(|error| broken(remote, &error))?;
    VERSIONS.agree(Greeting::parse(&theirs)?.versions)?;
    let greetings = Greetings(ours, theirs);
    let proof = prover.prove(Role::Dialler, &greetings, b"");
    stream.write_all(&proof).await.map_err(|error| broken(remote, &error))?;
    let found = read_identity(stream, prover, Role::AcceptorIdentity, &greetings).await?;
    if found.peer != wanted {
        let cause = format!("{} answers at {remote}", found.peer).into();
        return Err(Error::PeerGone { peer: wanted, cause });
    }
    write_identity(stream, prover, Role::DiallerIdentity, &greetings, me).await?;
    let mut verdict = [0];
    stream.read_exact(&mut verdict).await.map_err(|error| broken(remote, &error))?;
    Ok((found, Verdict::parse(verdict[0])?))
}

/// Lets a dialler prove itself, says who this engine is, and returns who the dialler is. The verdict is the caller's.
///
/// # Errors
/// [`Error::Unproven`], [`Error::VersionMismatch`], [`Error::Protocol`].
pub(super) async fn receive(stream: &Stream, prover: &Prover, me: &Identity) -> Result<Identity, Error> {
    let remote = remote(stream)?;
    let mut theirs = [0; GREETING_BYTES];
    stream.read_exact(&mut theirs).await.map_err(|error| broken(remote, &error))?;
    let greeting = Greeting::parse(&theirs)?;
    let ours = Greeting::fresh()?.bytes();
    stream.write_all(&ours).await.map_err(|error| broken(remote, &error))?;
    VERSIONS.agree(greeting.versions)?;
    let greetings = Greetings(theirs, ours);
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await.map_err(|error| broken(remote, &error))?;
    if !prover.is_proof(Role::Dialler, &greetings, b"", &proof) {
        return Err(unproven(remote, "its proof is wrong"));
    }
    write_identity(stream, prover, Role::AcceptorIdentity, &greetings, me).await?;
    read_identity(stream, prover, Role::DiallerIdentity, &greetings).await
}

/// Sends the verdict of the acceptor.
pub(super) async fn answer(stream: &Stream, verdict: Verdict) -> io::Result<()> {
    stream.write_all(&[verdict as u8]).await
}

async fn write_identity(
    stream: &Stream,
    prover: &Prover,
    role: Role,
    greetings: &Greetings,
    identity: &Identity,
) -> Result<(), Error> {
    let body = identity.bytes()?;
    let Ok(length) = u16::try_from(body.len()) else {
        return Err(Error::protocol("an identity is too long to be sent"));
    };
    let mut message = length.to_le_bytes().to_vec();
    message.extend_from_slice(&body);
    message.extend_from_slice(&prover.prove(role, greetings, &body));
    let remote = remote(stream)?;
    stream.write_all(&message).await.map_err(|error| broken(remote, &error))
}

async fn read_identity(
    stream: &Stream,
    prover: &Prover,
    role: Role,
    greetings: &Greetings,
) -> Result<Identity, Error> {
    let remote = remote(stream)?;
    let closed = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            unproven(remote, "it closed the connection when it was shown our proof")
        }
        _ => broken(remote, &error),
    };
    let mut length = [0; 2];
    stream.read_exact(&mut length).await.map_err(closed)?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > IDENTITY_BYTES_MAX {
        return Err(Error::protocol(format!("an identity of {length} bytes is too long")));
    }
    let mut body = vec![0; length];
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut body).await.map_err(closed)?;
    stream.read_exact(&mut proof).await.map_err(closed)?;
    match prover.is_proof(role, greetings, &body, &proof) {
        true => Identity::parse(&body),
        false => Err(unproven(remote, "its proof is wrong")),
    }
}

fn remote(stream: &Stream) -> Result<SocketAddr, Error> {
    stream.remote().map_err(|error| Error::system("getpeername", &error))
}

fn unproven(remote: SocketAddr, cause: &str) -> Error {
    Error::Unproven { peer_address: remote.to_string().into(), cause: cause.into() }
}

/// The connection ended under the handshake.
fn broken(remote: SocketAddr, error: &io::Error) -> Error {
    Error::Unreachable { address: remote.to_string().into(), cause: error.to_string().into() }
}
