//! What is asked of the owner of memory, and what it says: which regions may be mapped, and which not any more.
//!
//! Invariants
//! - What the owner says is received also while a question waits for room: it may wait for room itself before it reads.
//! - A region that cannot be had ends what waits for it alone; where no more can be granted, the connection ends.
//! - The socket is closed behind the last copy: its end tells the owner that its memory is touched no more.
//!
//! Threads: one task of the runtime for each connection.

use std::io;
use std::sync::Arc;

use nix::sys::socket::Shutdown;
use tokio::sync::mpsc;

use super::super::NAME;
use super::super::wire::{PACKET, Packet};
use super::{Copy, Entry, Mapped, ShmEndpoint};
use crate::error::Error;
use crate::memory::{Access, Region};
use crate::transport::EndpointState;
use crate::types::RegionId;

impl ShmEndpoint {
    /// Asks the owner for the regions that are `asked` for until the connection ends, and ends it behind the last copy.
    pub(super) async fn talk(self: Arc<Self>, mut asked: mpsc::UnboundedReceiver<RegionId>) {
        let ended = tokio::select! {
            ended = self.listen(&mut asked) => ended,
            // Also while the owner does not take what is sent to it.
            () = self.stop.notified() => Ok(()),
        };
        let cause = match ended {
            Ok(()) => "the peer closed its end".to_owned(),
            Err(error) => error.to_string(),
        };
        // Whether the peer is gone its link tells: it may have cut off a connection that took too little of what was sent.
        self.fail(EndpointState::Failed(Error::transport(NAME, cause)));
        self.until_idle().await;
        self.socket.shut_down(Shutdown::Both);
    }

    async fn listen(&self, asked: &mut mpsc::UnboundedReceiver<RegionId>) -> io::Result<()> {
        let mut packet = [0; PACKET];
        let mut question: Option<[u8; PACKET]> = None;
        loop {
            // Dropped before it has sent, it has sent nothing.
            let send = async move {
                match question {
                    Some(question) => self.socket.send(&question, None).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(id) = asked.recv(), if question.is_none() => {
                    question = Some(Packet::Map { id }.encode());
                }
                sent = send => {
                    sent?;
                    question = None;
                }
                received = self.socket.receive(&mut packet) => {
                    let (count, descriptor) = received?;
                    if count == 0 {
                        return Ok(());
                    }
                    match (Packet::decode(&packet[..count]), descriptor) {
                        (Some(Packet::Mapped { id, length, is_writable, word }), Some(descriptor)) => {
                            let access = if is_writable { Access::ReadWrite } else { Access::Read };
                            let word = usize::try_from(word).map_err(|_| io::ErrorKind::InvalidData)?;
                            match Region::of_descriptor(descriptor, length, access) {
                                Ok(region) => {
                                    self.mapped(id, Mapped { region: Arc::new(region), is_writable, word });
                                }
                                Err(error) => self.unmapped(id, &Error::transport(NAME, error.to_string())),
                            }
                        }
                        (Some(Packet::Unknown { id } | Packet::Revoked { id }), None) => {
                            self.unmapped(id, &Error::NoSuchRegion { region: id });
                        }
                        // Others may be had, and another transport has this one.
                        (Some(Packet::Refused { id }), None) => {
                            self.unmapped(id, &Error::transport(NAME, "the peer cannot pass its region now"));
                        }
                        (Some(Packet::Mapped { id, .. }), None) => {
                            let cause = "no descriptor came with a region; may this process open no more files?";
                            self.unmapped(id, &Error::transport(NAME, cause));
                        }
                        (Some(Packet::Exhausted { .. }), None) => {
                            let cause = "this connection has granted as many regions as it can; a new one is made";
                            self.fail(EndpointState::Failed(Error::transport(NAME, cause)));
                            return Ok(());
                        }
                        _ => return Err(io::ErrorKind::InvalidData.into()),
                    }
                }
            }
        }
    }

    fn mapped(&self, id: RegionId, mapped: Mapped) {
        let mapped = Arc::new(mapped);
        let waiting = {
            let mut state = self.state.lock();
            if state.end.is_some() {
                return;
            }
            match state.regions.insert(id, Entry::Mapped(Arc::clone(&mapped))) {
                Some(Entry::Asked(waiting)) => waiting,
                Some(Entry::Mapped(_)) | None => Vec::new(),
            }
        };
        let Some(endpoint) = self.me.upgrade() else { return };
        self.copiers.push(waiting.into_iter().map(|operation| Copy {
            operation,
            theirs: Arc::clone(&mapped),
            endpoint: Arc::clone(&endpoint),
        }));
    }

    /// The owner has no such region, any more, or it cannot be mapped: `why` for what waits. Dropping the mapping gives the memory
    /// back.
    fn unmapped(&self, id: RegionId, why: &Error) {
        let entry = self.state.lock().regions.remove(&id);
        if let Some(Entry::Asked(waiting)) = entry {
            waiting.into_iter().for_each(|operation| self.end(operation, Err(why.clone())));
        }
    }
}
