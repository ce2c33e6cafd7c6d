//! One file, random operations, one model in memory: every byte that comes back must be the model's.
//!
//! Operations: pwrite, pread, read and write through shared mappings, ftruncate up and down, fallocate with and
//! without FALLOC_FL_KEEP_SIZE, fsync, a look by another descriptor, close and reopen. The file is a normal one, or a
//! scratch one (above 1 GiB, of which the last part is exercised). A failure prints its seed and the operations before
//! it; `TIDEFS_TEST_SEED` replays one seed.

use std::env;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::common::modes::in_both_modes;
use super::common::pattern::{assert_same, bytes};
use super::common::sys::Mapping;
use super::common::{Mode, Mount};

/// Largest size of the exercised part; above one huge page.
const SIZE_MAX: usize = 3 << 20;
/// Operations for each seed.
const OPERATIONS: u32 = 2_000;
/// Where the exercised part of a scratch file starts.
const SCRATCH_BASE: u64 = 1 << 30;

/// The file under test beside what it must hold.
struct Exerciser {
    path: PathBuf,
    file: File,
    /// Offset of the exercised part; all before it is a hole.
    base: u64,
    /// What the file holds from `base` on.
    model: Vec<u8>,
    random: StdRng,
    seed: u64,
    history: Vec<String>,
}

impl Exerciser {
    fn new(path: PathBuf, base: u64, seed: u64) -> Self {
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a new file");
        file.set_len(base).expect("a file can be sized");
        Self {
            path,
            file,
            base,
            model: Vec::new(),
            random: StdRng::seed_from_u64(seed),
            seed,
            history: Vec::new(),
        }
    }

    fn run(&mut self) {
        for number in 0..OPERATIONS {
            match self.random.random_range(0..100) {
                0..30 => self.write(number),
                30..55 => self.read(),
                55..68 => self.map_read(),
                68..80 => self.map_write(number),
                80..86 => self.truncate(),
                86..90 => self.allocate(),
                90..93 => self.look_from_elsewhere(),
                93..95 => self.file.sync_all().expect("fsync"),
                _ => self.reopen(),
            }
        }
        self.reopen();
    }

    /// A range of at most 256 KiB that starts at or before `limit`; mostly small, now and then aligned.
    fn range(&mut self, limit: usize) -> (usize, usize) {
        let mut start = self.random.random_range(0..=limit);
        let longest = [100_usize, 5_000, 70_000, 262_144][self.random.random_range(0..4)];
        let mut length = self.random.random_range(1..=longest);
        if self.random.random_ratio(1, 4) {
            (start, length) = (start / 4096 * 4096, length.next_multiple_of(4096));
        }
        (start, length.min(SIZE_MAX - start.min(SIZE_MAX)))
    }

    fn write(&mut self, number: u32) {
        let (start, length) = self.range((self.model.len() + 20_000).min(SIZE_MAX - 1));
        self.note(format!("write {start}+{length}"));
        let data = bytes(self.seed ^ (u64::from(number) << 20), length);
        let written = self.file.write_at(&data, self.base + at(start)).expect("pwrite");
        assert_eq!(written, length, "a short write at {start}");
        self.put(start, &data);
    }

    fn read(&mut self) {
        let (start, length) = self.range(self.model.len());
        self.note(format!("read {start}+{length}"));
        let mut found = vec![0xA5; length];
        let count = self.file.read_at(&mut found, self.base + at(start)).expect("pread");
        let end = (start + length).min(self.model.len()).max(start);
        assert_eq!(count, end - start, "a short or long read at {start}; {}", self.story());
        assert_same(&found[..count], &self.model[start..end], &format!("read at {start}; {}", self.story()));
    }

    fn map_read(&mut self) {
        let Some((start, length)) = self.range_inside() else { return };
        self.note(format!("map and read {start}+{length}"));
        let whole = self.mapped_length();
        let map = Mapping::shared(&self.file, whole).expect("mmap");
        let base = usize::try_from(self.base).expect("a 64-bit machine");
        let found = map.read(base + start, length);
        assert_same(
            &found,
            &self.model[start..start + length],
            &format!("mapped at {start}; {}", self.story()),
        );
        let tail = whole.next_multiple_of(4096) - whole;
        if tail > 0 {
            let padded = Mapping::shared(&self.file, whole + tail).expect("mmap");
            let zeros = padded.read(whole, tail);
            assert_same(&zeros, &vec![0; tail], &format!("after the end in the last page; {}", self.story()));
        }
    }

    fn map_write(&mut self, number: u32) {
        let Some((start, length)) = self.range_inside() else { return };
        self.note(format!("map and write {start}+{length}"));
        let data = bytes(self.seed ^ (u64::from(number) << 21), length);
        let map = Mapping::shared_writable(&self.file, self.mapped_length()).expect("mmap");
        map.write(usize::try_from(self.base).expect("a 64-bit machine") + start, &data);
        if self.random.random_bool(0.5) {
            map.sync().expect("msync");
        }
        self.put(start, &data);
    }

    fn truncate(&mut self) {
        let size = self.random.random_range(0..=(self.model.len() * 5 / 4 + 5_000).min(SIZE_MAX));
        self.note(format!("truncate {size}"));
        self.file.set_len(self.base + at(size)).expect("ftruncate");
        self.model.resize(size, 0);
    }

    fn allocate(&mut self) {
        let (start, length) = self.range((self.model.len() + 20_000).min(SIZE_MAX - 1));
        let (offset, size) = (signed(self.base + at(start)), signed(at(length)));
        let keep = self.random.random_bool(0.5);
        self.note(format!("fallocate {start}+{length} {}", if keep { "keeping the size" } else { "" }));
        let flags = if keep { FallocateFlags::FALLOC_FL_KEEP_SIZE } else { FallocateFlags::empty() };
        fallocate(self.file.as_fd(), flags, offset, size).expect("fallocate");
        if !keep && start + length > self.model.len() {
            self.model.resize(start + length, 0);
        }
        self.punch();
    }

    /// Punching a hole may be refused, but then nothing may have changed.
    fn punch(&mut self) {
        let Some((start, length)) = self.range_inside() else { return };
        self.note(format!("punch {start}+{length}"));
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        match fallocate(self.file.as_fd(), flags, signed(self.base + at(start)), signed(at(length))) {
            Ok(()) => self.model[start..start + length].fill(0),
            Err(Errno::EOPNOTSUPP) => self.note("  refused".into()),
            Err(error) => panic!("fallocate to punch a hole: {error}; {}", self.story()),
        }
    }

    /// The same bytes by a second descriptor of the writing process.
    fn look_from_elsewhere(&mut self) {
        self.note("read all by another descriptor".into());
        let other = File::open(&self.path).expect("the writer finds its own file");
        self.compare_all(&other);
    }

    fn reopen(&mut self) {
        self.note("close and reopen".into());
        self.file = File::open("/dev/null").expect("a device");
        self.look_from_elsewhere();
        self.file = OpenOptions::new().read(true).write(true).open(&self.path).expect("a reopened file");
        let file = self.file.try_clone().expect("a descriptor");
        self.compare_all(&file);
    }

    fn compare_all(&self, file: &File) {
        let size = file.metadata().expect("fstat").len();
        assert_eq!(size, self.base + at(self.model.len()), "size; {}", self.story());
        let mut found = vec![0xA5; self.model.len() + 1];
        let mut filled = 0;
        loop {
            match file.read_at(&mut found[filled..], self.base + at(filled)).expect("pread") {
                0 => break,
                count => filled += count,
            }
        }
        assert_same(&found[..filled], &self.model, &format!("the whole file; {}", self.story()));
    }

    fn put(&mut self, start: usize, data: &[u8]) {
        let end = start + data.len();
        if end > self.model.len() {
            self.model.resize(end, 0);
        }
        self.model[start..end].copy_from_slice(data);
    }

    /// A range that lies inside the file, if it has bytes.
    fn range_inside(&mut self) -> Option<(usize, usize)> {
        let last = self.model.len().checked_sub(1)?;
        let (start, length) = self.range(last);
        Some((start, length.min(self.model.len() - start)))
    }

    fn mapped_length(&self) -> usize {
        usize::try_from(self.base).expect("a 64-bit machine") + self.model.len()
    }

    fn note(&mut self, operation: String) {
        self.history.push(operation);
    }

    fn story(&self) -> String {
        let last = &self.history[self.history.len().saturating_sub(25)..];
        format!("seed {}, operation {}, the last ones: {last:#?}", self.seed, self.history.len())
    }
}

fn at(position: usize) -> u64 {
    u64::try_from(position).expect("usize fits u64")
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).expect("a size of this test")
}

/// The seeds to run: one that was asked for, a fresh one and some fixed ones.
fn seeds() -> Vec<u64> {
    if let Ok(seed) = env::var("TIDEFS_TEST_SEED") {
        return vec![seed.parse().expect("TIDEFS_TEST_SEED is a number")];
    }
    let count = if env::var_os("TIDEFS_TEST_LONG").is_some() { 30 } else { 3 };
    let fresh = UNIX_EPOCH.elapsed().expect("a clock after 1970").subsec_nanos();
    (0..count).chain([fresh.into()]).collect()
}

fn exercise(place: &Path, base: u64) {
    for seed in seeds() {
        println!("seed {seed}");
        let path = place.join(format!("file{seed}"));
        Exerciser::new(path.clone(), base, seed).run();
        std::fs::remove_file(path).expect("the file can be removed");
    }
}

fn a_normal_file_holds_what_was_written(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    exercise(&mount.namespace("fsx"), 0);
}

fn a_scratch_file_holds_what_was_written(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    exercise(&mount.namespace("fsx"), SCRATCH_BASE);
}

in_both_modes!(a_normal_file_holds_what_was_written, a_scratch_file_holds_what_was_written);
