//! What a client of a KV cache does with a request: probe its blocks, read the prefix that is there, write the
//! rest.
//!
//! A block that vanishes between its probe and its read ends the prefix: the client computes it and all that
//! follow, and writes them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use serde::Serialize;

use super::trace::Request;
use crate::bench::error::Error;
use crate::bench::local::write_object;

/// How a client looks for the blocks of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClientKind {
    /// Probes all blocks before it reads the first.
    Batch,
    /// Probes block by block until one is absent.
    Step,
}

/// What a replay counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Outcome {
    /// Blocks of all requests.
    pub(super) lookups: u64,
    /// Blocks read: those before the first absent one of their request.
    pub(super) hits: u64,
    /// Blocks that were there behind an absent one. Only a client that probes all blocks sees them.
    pub(super) holes: Option<u64>,
    /// Blocks that were there when probed and gone when read.
    pub(super) vanished: u64,
    /// Blocks written.
    pub(super) writes: u64,
    /// Time from the first probe to the last write.
    pub(super) wall: Duration,
}

impl Outcome {
    /// Strict-prefix hit ratio.
    pub(super) fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.lookups.max(1) as f64
    }

    /// Present blocks behind an absent one, over all look-ups.
    pub(super) fn hole_rate(&self) -> Option<f64> {
        self.holes.map(|holes| holes as f64 / self.lookups.max(1) as f64)
    }
}

/// A client with its buffers.
#[derive(Debug)]
pub(super) struct Client {
    /// One for each host: they serve the requests in turn.
    directories: Vec<PathBuf>,
    /// Whose turn it is.
    turn: usize,
    kind: ClientKind,
    verify: bool,
    content: Vec<u8>,
    read: Vec<u8>,
    outcome: Outcome,
}

impl Client {
    /// A client of objects of `size` bytes below each of `directories`, which show the same. With `verify` it checks each byte
    /// it reads.
    pub(super) fn new(directories: &[impl AsRef<Path>], kind: ClientKind, size: usize, verify: bool) -> Self {
        let holes = (kind == ClientKind::Batch).then_some(0);
        Self {
            directories: directories.iter().map(|directory| directory.as_ref().to_owned()).collect(),
            turn: 0,
            kind,
            verify,
            content: vec![0; size],
            read: vec![0; size],
            outcome: Outcome { holes, ..Outcome::default() },
        }
    }

    /// Sends all requests and calls `after_each` after each.
    ///
    /// # Errors
    /// Anything but presence and absence: a failed write, a short read, wrong bytes.
    pub(super) fn replay(
        mut self,
        requests: &[Request],
        mut after_each: impl FnMut(),
    ) -> Result<Outcome, Error> {
        let start = Instant::now();
        for request in requests {
            self.serve(request)?;
            self.turn = (self.turn + 1) % self.directories.len();
            after_each();
        }
        self.outcome.wall = start.elapsed();
        Ok(self.outcome)
    }

    fn serve(&mut self, Request { blocks }: &Request) -> Result<(), Error> {
        let mut prefix = self.probe(blocks)?;
        for (index, block) in blocks[..prefix].iter().enumerate() {
            if !self.read(*block)? {
                self.outcome.vanished += 1;
                prefix = index;
                break;
            }
        }
        for block in &blocks[prefix..] {
            self.write(*block)?;
        }
        self.outcome.lookups += blocks.len() as u64;
        self.outcome.hits += prefix as u64;
        self.outcome.writes += (blocks.len() - prefix) as u64;
        Ok(())
    }

    /// Number of blocks before the first absent one.
    fn probe(&mut self, blocks: &[u64]) -> Result<usize, Error> {
        match self.kind {
            ClientKind::Step => {
                for (index, block) in blocks.iter().enumerate() {
                    if !is_present(&self.path(*block))? {
                        return Ok(index);
                    }
                }
                Ok(blocks.len())
            }
            ClientKind::Batch => {
                let present = blocks.iter().map(|block| is_present(&self.path(*block))).collect::<Result<
                    Vec<_>,
                    Error,
                >>(
                )?;
                let prefix = present.iter().take_while(|present| **present).count();
                let behind = present[prefix..].iter().filter(|present| **present).count();
                self.outcome.holes = self.outcome.holes.map(|holes| holes + behind as u64);
                Ok(prefix)
            }
        }
    }

    /// Reads a block; false when it is gone.
    fn read(&mut self, block: u64) -> Result<bool, Error> {
        let path = self.path(block);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Error::file("open", &path)(error)),
        };
        let moved = file.read_at(&mut self.read, 0).map_err(Error::file("read", &path))?;
        if moved != self.read.len() {
            return Err(Error::Short { path, moved, expected: self.read.len() });
        }
        if self.verify {
            fill(&mut self.content, block);
            if let Some(offset) = first_difference(&self.read, &self.content) {
                return Err(Error::WrongBytes { path, offset });
            }
        }
        Ok(true)
    }

    fn write(&mut self, block: u64) -> Result<(), Error> {
        fill(&mut self.content, block);
        let path = self.path(block);
        write_object(&path, &path.with_extension("tmp"), &self.content)
    }

    fn path(&self, block: u64) -> PathBuf {
        self.directories[self.turn].join(format!("{block:016x}"))
    }
}

fn is_present(path: &Path) -> Result<bool, Error> {
    match access(path, AccessFlags::F_OK) {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(Error::file("probe", path)(errno.into())),
    }
}

/// Fills `content` with bytes that only `block` has, and that differ from word to word.
fn fill(content: &mut [u8], block: u64) {
    // Odd, so that the words of one block are all different.
    let step = block.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1;
    let mut word = block ^ 0x5851_f42d_4c95_7f2d;
    for part in content.chunks_mut(8) {
        word = word.wrapping_add(step);
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
}

fn first_difference(left: &[u8], right: &[u8]) -> Option<usize> {
    if left == right { None } else { left.iter().zip(right).position(|(left, right)| left != right) }
}

/// Number of objects below `directory`.
///
/// # Errors
/// What readdir says.
pub(super) fn count_objects(directory: &Path) -> Result<u64, Error> {
    let mut count = 0;
    for entry in fs::read_dir(directory).map_err(Error::file("list", directory))? {
        entry.map_err(Error::file("list", directory))?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use tempfile::TempDir;

    use super::super::reference::lru_hit_ratio;
    use super::*;

    fn requests() -> Vec<Request> {
        [&[1, 2, 3, 4][..], &[1, 2, 5], &[1, 2, 3, 4, 6]]
            .map(|blocks| Request { blocks: blocks.to_vec() })
            .to_vec()
    }

    #[test]
    fn without_eviction_either_client_hits_as_often_as_an_endless_cache() {
        for kind in [ClientKind::Batch, ClientKind::Step] {
            let directory = TempDir::new().unwrap();
            let outcome =
                Client::new(&[directory.path()], kind, 100, true).replay(&requests(), || ()).unwrap();
            assert_eq!((outcome.lookups, outcome.hits, outcome.writes), (12, 6, 6));
            assert_eq!(outcome.hit_ratio(), lru_hit_ratio(&requests(), NonZeroUsize::new(100).unwrap()));
            assert_eq!(count_objects(directory.path()).unwrap(), 6);
        }
    }

    #[test]
    fn requests_are_served_by_the_hosts_in_turn() {
        let hosts = [TempDir::new().unwrap(), TempDir::new().unwrap()];
        let directories = hosts.each_ref().map(TempDir::path);
        let outcome =
            Client::new(&directories, ClientKind::Batch, 100, true).replay(&requests(), || ()).unwrap();
        // The third request finds what the first one wrote; the second one finds nothing, for these hosts share nothing.
        assert_eq!((outcome.hits, outcome.writes), (4, 8));
        assert_eq!(directories.map(|directory| count_objects(directory).unwrap()), [5, 3]);
    }

    #[test]
    fn a_block_behind_an_absent_one_is_a_hole_for_a_client_that_probes_all() {
        for (kind, holes) in [(ClientKind::Batch, Some(2)), (ClientKind::Step, None)] {
            let directory = TempDir::new().unwrap();
            let request = [Request { blocks: vec![1, 2, 3, 4] }];
            Client::new(&[directory.path()], kind, 16, false).replay(&request, || ()).unwrap();
            fs::remove_file(directory.path().join(format!("{:016x}", 2))).unwrap();
            let outcome = Client::new(&[directory.path()], kind, 16, false).replay(&request, || ()).unwrap();
            assert_eq!((outcome.hits, outcome.writes, outcome.holes), (1, 3, holes));
        }
    }

    #[test]
    fn a_wrong_byte_is_found_and_named() {
        let directory = TempDir::new().unwrap();
        let request = [Request { blocks: vec![7] }];
        Client::new(&[directory.path()], ClientKind::Step, 64, true).replay(&request, || ()).unwrap();
        let path = directory.path().join(format!("{:016x}", 7));
        let mut bytes = fs::read(&path).unwrap();
        bytes[33] ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = Client::new(&[directory.path()], ClientKind::Step, 64, true).replay(&request, || ());
        assert!(matches!(error, Err(Error::WrongBytes { offset: 33, .. })), "{error:?}");
    }

    #[test]
    fn a_short_object_is_an_error_and_not_a_hit() {
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join(format!("{:016x}", 7)), b"short").unwrap();
        let request = [Request { blocks: vec![7] }];
        let error = Client::new(&[directory.path()], ClientKind::Batch, 64, false).replay(&request, || ());
        assert!(matches!(error, Err(Error::Short { moved: 5, expected: 64, .. })), "{error:?}");
    }
}
