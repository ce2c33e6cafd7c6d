//! What one process of the stress does: writes in all three shapes, reads anything, checks every byte.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::common::pattern::{bytes, object, verify_object};
use super::common::sys::{Mapping, errno};

/// Names that are published by rename, by everybody.
const SHARED_NAMES: u64 = 300;
/// Names that each process writes directly.
const OWN_NAMES: u64 = 20;
/// Sizes of objects.
const SIZES: std::ops::RangeInclusive<usize> = 4096..=8 << 20;

/// What a child is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// The namespace, with the folders that the test made.
    pub(crate) place: PathBuf,
    /// Which process this is: it writes below `own<number>`.
    pub(crate) number: u64,
    /// All processes that write.
    pub(crate) processes: u64,
    /// Seconds to go on at least.
    pub(crate) seconds: u64,
    /// Bytes to write at least.
    pub(crate) bytes_at_least: u64,
    /// How often a process of this number was replaced.
    pub(crate) life: u64,
}

/// What a child did.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Bytes that it wrote, slot files included.
    pub(crate) written_bytes: u64,
    /// Objects that it read and found whole.
    pub(crate) checked_objects: u64,
    /// Names that were absent when it looked.
    pub(crate) missed_objects: u64,
    /// What went wrong, at which it stopped.
    pub(crate) failure: Option<String>,
}

/// One process's work.
struct Worker<'a> {
    orders: &'a Orders,
    random: StdRng,
    report: Report,
    serial: u64,
}

/// What went wrong, in words.
type Failed = String;

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Failed {
    format!("{what} {}: {error}", path.display())
}

impl<'a> Worker<'a> {
    fn new(orders: &'a Orders) -> Self {
        let random = StdRng::seed_from_u64(orders.number << 20 | orders.life);
        Self { orders, random, report: Report::default(), serial: 0 }
    }

    fn shared_path(&self, name: u64) -> PathBuf {
        self.orders.place.join(format!("d{}/shared{name}", name % 8))
    }

    fn own_path(&self, process: u64, name: u64) -> PathBuf {
        self.orders.place.join(format!("own{process}/{name}"))
    }

    fn random_size(&mut self) -> usize {
        let magnitude = self.random.random_range(12..=23);
        self.random
            .random_range(1_usize << (magnitude - 1)..=1 << magnitude)
            .clamp(*SIZES.start(), *SIZES.end())
    }

    fn content(&mut self) -> Vec<u8> {
        self.serial += 1;
        let seed = self.orders.number << 48 | self.orders.life << 32 | self.serial;
        let size = self.random_size();
        object(seed, size)
    }

    fn step(&mut self) -> Result<(), Failed> {
        match self.random.random_range(0..10) {
            0..3 => self.publish()?,
            3..5 => self.write_directly()?,
            5 => self.use_a_slot_file()?,
            _ => {}
        }
        for _ in 0..2 {
            self.read_something()?;
        }
        Ok(())
    }

    /// Shape (a): a temporary name, some writes, a rename, half of the time with the descriptor still open.
    fn publish(&mut self) -> Result<(), Failed> {
        let content = self.content();
        let name = self.random.random_range(0..SHARED_NAMES);
        let path = self.shared_path(name);
        let Orders { number, life, .. } = self.orders;
        let tmp = path.with_extension(format!("{number}-{life}-{}.tmp", self.serial));
        let mut file = File::create_new(&tmp).map_err(|error| failed("create", &tmp, &error))?;
        let pieces = [content.len(), 65_536, 1 << 20][self.random.random_range(0..3)];
        for piece in content.chunks(pieces) {
            let count = file.write(piece).map_err(|error| failed("write", &tmp, &error))?;
            if count != piece.len() {
                return Err(format!("{}: a write of {} bytes stored {count}", tmp.display(), piece.len()));
            }
        }
        if self.random.random_bool(0.5) {
            drop(file);
            fs::rename(&tmp, &path).map_err(|error| failed("rename", &path, &error))?;
        } else {
            fs::rename(&tmp, &path).map_err(|error| failed("rename", &path, &error))?;
            drop(file);
        }
        self.report.written_bytes += at(content.len());
        Ok(())
    }

    /// Shape (b): the final name, created or overwritten, in any order of pieces.
    fn write_directly(&mut self) -> Result<(), Failed> {
        let content = self.content();
        let name = self.random.random_range(0..OWN_NAMES);
        let path = self.own_path(self.orders.number, name);
        let file = File::options().write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(|error| failed("create", &path, &error))?;
        let backwards = self.random.random_bool(0.3);
        let piece = if backwards { 131_072 } else { content.len() };
        let mut offsets: Vec<usize> = (0..content.len()).step_by(piece).collect();
        if backwards {
            offsets.reverse();
        }
        for offset in offsets {
            let end = (offset + piece).min(content.len());
            let count = file.write_at(&content[offset..end], at(offset));
            let count = count.map_err(|error| failed("write", &path, &error))?;
            if count != end - offset {
                return Err(format!("{}: a write of {} bytes stored {count}", path.display(), end - offset));
            }
        }
        self.report.written_bytes += at(content.len());
        nix::unistd::close(file).map_err(|error| format!("close {}: {error}", path.display()))
    }

    /// Shape (c): preallocated, unlinked while open, rewritten in place.
    fn use_a_slot_file(&mut self) -> Result<(), Failed> {
        const SLOT: usize = 256 << 10;
        const SLOTS: usize = 16;
        self.serial += 1;
        let Orders { number, life, .. } = self.orders;
        let path = self.orders.place.join(format!("own{number}/slots{life}-{}", self.serial));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(|error| failed("create", &path, &error))?;
        let length = i64::try_from(SLOT * SLOTS).expect("it fits");
        fallocate(file.as_fd(), FallocateFlags::empty(), 0, length)
            .map_err(|error| format!("fallocate {}: {error}", path.display()))?;
        fs::remove_file(&path).map_err(|error| failed("unlink", &path, &error))?;
        let mut held: [Option<u64>; SLOTS] = [None; SLOTS];
        for _ in 0..24 {
            let (slot, look) = (self.random.random_range(0..SLOTS), self.random.random_range(0..SLOTS));
            let seed = self.random.random();
            file.write_all_at(&bytes(seed, SLOT), at(slot * SLOT))
                .map_err(|error| failed("write", &path, &error))?;
            held[slot] = Some(seed);
            let mut found = vec![0xA5; SLOT];
            file.read_exact_at(&mut found, at(look * SLOT)).map_err(|error| failed("read", &path, &error))?;
            let wanted = held[look].map_or_else(|| vec![0; SLOT], |seed| bytes(seed, SLOT));
            if found != wanted {
                return Err(format!("slot {look} of {} holds other bytes than were written", path.display()));
            }
            self.report.written_bytes += at(SLOT);
        }
        Ok(())
    }

    /// Any name of anybody: absent, or whole to the last byte.
    fn read_something(&mut self) -> Result<(), Failed> {
        let (shared, own) =
            (self.random.random_range(0..SHARED_NAMES), self.random.random_range(0..OWN_NAMES));
        let process = self.random.random_range(0..self.orders.processes);
        let path =
            if self.random.random_bool(0.6) { self.shared_path(shared) } else { self.own_path(process, own) };
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if errno(&error) == Errno::ENOENT => {
                self.report.missed_objects += 1;
                return Ok(());
            }
            Err(error) => return Err(failed("open", &path, &error)),
        };
        let size = file.metadata().map_err(|error| failed("fstat", &path, &error))?.len();
        let size = usize::try_from(size).expect("a 64-bit machine");
        let content = if self.random.random_bool(0.3) && size > 0 {
            Mapping::shared(&file, size).map_err(|error| format!("mmap {}: {error}", path.display()))?.bytes()
        } else {
            let mut content = vec![0; size];
            let count = file.read(&mut content).map_err(|error| failed("read", &path, &error))?;
            if count != size {
                return Err(format!("{}: one read gave {count} of {size} bytes", path.display()));
            }
            content
        };
        verify_object(&content).map_err(|wrong| format!("{}: {wrong}", path.display()))?;
        self.report.checked_objects += 1;
        Ok(())
    }
}

/// The child that lives: writes and reads until time and bytes are used up, or something is wrong.
pub(crate) fn write_and_read(orders: &Orders) -> Report {
    let mut worker = Worker::new(orders);
    let began = Instant::now();
    while began.elapsed().as_secs() < orders.seconds || worker.report.written_bytes < orders.bytes_at_least {
        if let Err(failure) = worker.step() {
            worker.report.failure = Some(failure);
            break;
        }
    }
    worker.report
}

/// The child that is killed: the same for ever; what goes wrong it prints and ends with.
pub(crate) fn write_until_killed(orders: &Orders) {
    let mut worker = Worker::new(orders);
    loop {
        if let Err(failure) = worker.step() {
            println!("\nfailure: {failure}");
            return;
        }
    }
}

fn at(position: usize) -> u64 {
    u64::try_from(position).expect("usize fits u64")
}
