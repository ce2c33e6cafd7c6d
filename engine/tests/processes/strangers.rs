//! Who sends anything to any socket of an engine's process: it is dropped, the process lives, its memory stays bounded,
//! and its peers notice nothing.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tidefs_engine::rng::Rng;

use crate::peer::{Peer, load, next_id, setup};

/// Connections of a stranger.
const VISITS: u64 = 400;
/// What a process may grow by, whatever strangers send.
const GROWTH_MAX: u64 = 24 << 20;

/// A socket that a process listens on.
#[derive(Clone, Debug)]
struct Door {
    domain: Domain,
    kind: Type,
    address: SockAddr,
}

/// A copy of the descriptor `number` of `process`.
fn copy_descriptor(process: u32, number: i32) -> Option<OwnedFd> {
    let own = |number: libc::c_long| {
        // SAFETY: the kernel has just made this descriptor for us; nobody else has it.
        RawFd::try_from(number)
            .ok()
            .filter(|&number| number >= 0)
            .map(|number| unsafe { OwnedFd::from_raw_fd(number) })
    };
    // SAFETY: pidfd_open(2) and pidfd_getfd(2) take numbers and touch no memory of ours.
    let process = own(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
    let process = std::os::fd::AsRawFd::as_raw_fd(&process);
    // SAFETY: as above.
    own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, number, 0) })
}

/// Everything that a process listens on. The kernel's tables do not tell the names of abstract sockets byte by byte.
fn doors(process: u32) -> Vec<Door> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd")).unwrap() {
        let entry = entry.unwrap();
        let is_socket =
            fs::read_link(entry.path()).is_ok_and(|name| name.to_string_lossy().starts_with("socket:"));
        let number = entry.file_name().to_string_lossy().parse().unwrap();
        let Some(descriptor) = is_socket.then(|| copy_descriptor(process, number)).flatten() else {
            continue;
        };
        let socket = Socket::from(descriptor);
        if socket.is_listener().unwrap_or(false) {
            let (domain, kind) = (socket.domain().unwrap(), socket.r#type().unwrap());
            found.push(Door { domain, kind, address: socket.local_addr().unwrap() });
        }
    }
    found
}

fn connect(door: &Door) -> Socket {
    let socket = Socket::new(door.domain, door.kind, None).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    socket.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    socket.connect(&door.address).unwrap();
    socket
}

/// Sends `bytes`, and reads what it is told until it is dropped; how much that was.
fn visit(door: &Door, bytes: &[u8]) -> usize {
    let mut socket = connect(door);
    // It may be dropped while it writes; a long packet is not taken at all.
    let _ = socket.write_all(bytes);
    // Nothing more comes, so there is nothing to wait for.
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut told = 0;
    let mut buffer = [0; 4096];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return told,
            Ok(count) => told += count,
            Err(error) => {
                assert_ne!(error.kind(), ErrorKind::WouldBlock, "it is not dropped");
                return told;
            }
        }
    }
}

/// Random bytes; some begin as the protocol does, some claim to be long.
fn noise(rng: &mut Rng) -> Vec<u8> {
    let longest = [1, 8, 64, 4096, 1 << 20][usize::try_from(rng.below(5)).unwrap()];
    let mut bytes: Vec<u8> = (0..1 + rng.below(longest)).map(|_| rng.next_u64().to_le_bytes()[3]).collect();
    if rng.chance(0.4) {
        let word =
            [&b"TDLH\x01\0\x01\0"[..], &b"TDLH"[..], &[0xff; 16][..]][usize::try_from(rng.below(3)).unwrap()];
        let length = word.len().min(bytes.len());
        bytes[..length].copy_from_slice(&word[..length]);
    }
    bytes
}

#[test]
fn random_bytes_to_every_socket_end_their_connection_and_nothing_else() {
    let mut near = Peer::start(setup(next_id(), &["127.0.0.1:0"], "tcp"));
    let mut far = Peer::start(setup(next_id(), &["127.0.0.1:0", "[::1]:0"], "shm,tcp"));
    near.connect(&far);
    near.load(load(&[&far]));
    near.wait_for_success(20);
    let doors = doors(far.process_id());
    let domains = |domain| doors.iter().filter(|door| door.domain == domain).count();
    let found = [Domain::IPV4, Domain::IPV6, Domain::UNIX].map(domains);
    assert_eq!(found, [1, 1, 1], "tcp on both addresses, and shm: {doors:?}");
    let before = far.status();
    let mut rng = Rng::seeded(17);
    // More connections that say nothing than may be unproven at once.
    let door = doors.iter().find(|door| door.domain == Domain::IPV4).unwrap();
    drop((0..VISITS).map(|_| connect(door)).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (mut rng, doors) = (Rng::seeded(rng.next_u64() ^ part), doors.clone());
            scope.spawn(move || {
                for round in 0..VISITS / 4 {
                    let door = &doors[usize::try_from(round).unwrap() % doors.len()];
                    let told = visit(door, &noise(&mut rng));
                    assert!(told <= 64, "a stranger at {door:?} was told {told} bytes");
                }
            });
        }
    });
    assert!(far.is_alive());
    near.wait_for_success(20);
    let outcome = near.stop_load();
    outcome.expect_sound();
    assert_eq!(outcome.errors.len(), 0, "{outcome:?}");
    let after = far.status();
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    assert!(grown < GROWTH_MAX, "{grown} bytes more: {before:?} {after:?}");
    assert_eq!(after.descriptors, before.descriptors, "connections of strangers stay open");
    println!("{} more bytes, {:?}", grown, doors);
}
