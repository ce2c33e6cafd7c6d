//! Memory of the cache that is registered with a device, as drivers do it: pinned, and for as long as it is mapped.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::{IoUring, opcode, squeue, types};
use tidefs_client::{Cache, Registration, Writer};

use crate::common::modes::in_fast_modes;
use crate::common::{Mode, kernel, pattern};
use crate::fastpath::{assert_object, open};
use crate::fixture::{MIB, kv, kv_with, offset};

in_fast_modes!(
    segments_are_registered_once_and_let_go_before_they_are_unmapped,
    a_device_reads_and_writes_objects_by_one_registration_while_all_else_is_evicted,
    of_a_closed_cache_only_what_is_viewed_stays_mapped_and_registered,
    the_last_view_of_a_closed_cache_tells_that_dropping_it_may_wait,
);

/// Pages that a registration keeps in memory, as a device would.
struct Pin {
    start: usize,
    length: usize,
    pins: Arc<AtomicUsize>,
}

impl Pin {
    fn new(start: NonNull<u8>, length: usize, pins: &Arc<AtomicUsize>) -> Self {
        // SAFETY: mlock(2) changes no byte, and fails for what is not mapped.
        let locked = unsafe { libc::mlock(start.as_ptr().cast(), length) };
        assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
        pins.fetch_add(1, Ordering::Relaxed);
        Self { start: start.as_ptr() as usize, length, pins: Arc::clone(pins) }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // SAFETY: munlock(2) changes no byte; it fails where nothing is mapped any more, which is what is looked for.
        let unlocked = unsafe { libc::munlock(self.start as *const _, self.length) };
        assert_eq!(unlocked, 0, "a segment was unmapped before its registration ended");
        self.pins.fetch_sub(1, Ordering::Relaxed);
    }
}

fn segments_are_registered_once_and_let_go_before_they_are_unmapped(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    let (pins, calls) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    cache.put("before", &pattern::object(1, MIB)).expect("put");
    let (of_hook, called) = (Arc::clone(&pins), Arc::clone(&calls));
    cache.register_with(move |start, length| {
        called.fetch_add(1, Ordering::Relaxed);
        Some(Box::new(Pin::new(start, length, &of_hook)))
    });
    cache.put("after", &pattern::object(2, MIB)).expect("put");
    for _ in 0..3 {
        for (key, seed) in [("before", 1), ("after", 2)] {
            let view = cache.get(key).expect("get").expect("a hit");
            assert_object(&view, seed);
            assert_eq!(view.is_registered(), cache.is_fast());
        }
    }
    let expected = if cache.is_fast() { 2 } else { 0 };
    assert_eq!(calls.load(Ordering::Relaxed), expected, "once for each segment");
    let last = cache.get("after").expect("get").expect("a hit");
    drop(cache);
    assert_object(&last, 2);
    assert_eq!(last.is_registered(), expected > 0, "while it is viewed");
    drop(last);
    assert_eq!(pins.load(Ordering::Relaxed), 0);
}

fn of_a_closed_cache_only_what_is_viewed_stays_mapped_and_registered(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    let pins = Arc::new(AtomicUsize::new(0));
    let of_hook = Arc::clone(&pins);
    cache.register_with(move |start, length| Some(Box::new(Pin::new(start, length, &of_hook))));
    let keys: Vec<String> = (0..8).map(|index| format!("k{index}")).collect();
    for (seed, key) in keys.iter().enumerate() {
        cache.put(key, &pattern::object(offset(seed), MIB)).expect("put");
    }
    drop(cache.lookup_many(&keys).expect("lookup"));
    let writer = cache.create("begun", MIB).expect("create");
    let view = cache.get("k3").expect("get").expect("a hit");
    let is_fast = cache.is_fast();
    assert_eq!(pins.load(Ordering::Relaxed), if is_fast { 9 } else { 0 });
    let clone = cache.clone();
    drop(cache);
    assert_eq!(clone.mapped_segments(), pins.load(Ordering::Relaxed), "it is not closed while a clone lives");
    drop(clone);
    assert_eq!(pins.load(Ordering::Relaxed), if is_fast { 2 } else { 0 }, "the view and the writer");
    if is_fast {
        assert_eq!(Arc::strong_count(&pins), 3, "the function is gone, but what it registered");
        let open = files_open_below(mount.path());
        assert_eq!(open.len(), 1, "to give references back takes one file: {open:?}");
    }
    assert_object(&view, 3);
    drop(view);
    writer.seal().expect("it may be sealed still");
    assert_eq!(pins.load(Ordering::Relaxed), 0);
    assert!(!is_fast || files_open_below(mount.path()).is_empty());
    assert!(fs::metadata(kv.join("begun")).expect("it is there").len() == offset(MIB));
}

fn the_last_view_of_a_closed_cache_tells_that_dropping_it_may_wait(mode: Mode) {
    let (mount, kv) = kv(mode);
    // So small that its reference waits to go back along with others.
    fs::write(kv.join("key"), pattern::object(1, 100_000)).expect("an object");
    mount.wait_until_closed([kv.join("key")]);
    let viewed = |cache: &Cache| {
        let view = cache.get("key").expect("get").expect("a hit");
        assert!(!view.asks_when_dropped(), "while the cache is open");
        view
    };
    let cache = open(&mount, &kv, mode);
    let is_fast = cache.is_fast();
    cache.register_with(|_, _| Some(Box::new(())));
    let view = viewed(&cache);
    drop(cache);
    assert_eq!(view.asks_when_dropped(), is_fast, "the registration of its segment ends");
    drop(view);
    let cache = open(&mount, &kv, mode);
    let view = viewed(&cache);
    fork();
    drop(cache);
    assert_eq!(view.asks_when_dropped(), is_fast, "a child may have the file of its session");
}

/// Makes a child by fork(2), as the library of the standard does where something is to be done in it.
fn fork() {
    let mut command = Command::new("true");
    // SAFETY: between fork and exec the closure does nothing.
    unsafe { command.pre_exec(|| Ok(())) };
    assert!(command.status().expect("a child").success());
}

/// The files below a directory that this process has open.
fn files_open_below(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let descriptors =
        fs::read_dir("/proc/self/fd").expect("proc").map(|entry| entry.expect("an entry").path());
    descriptors
        .filter_map(|path| fs::read_link(path).ok())
        .filter(|path| path.starts_with(directory))
        .collect()
}

/// Buffers that a device can know at once.
const BUFFERS: u32 = 64;

/// A ring whose fixed buffers are segments: the kernel pins their pages for the life of a registration, and copies by
/// number, as a NIC or a GPU does by key.
struct Device {
    ring: IoUring,
    /// Start and length of what is registered under each number.
    buffers: Vec<Option<(usize, usize)>>,
}

/// A buffer that a device knows.
struct Buffer {
    device: Arc<Mutex<Device>>,
    number: usize,
}

impl Device {
    fn new() -> Self {
        let ring = IoUring::new(4).expect("io_uring_setup");
        ring.submitter().register_buffers_sparse(BUFFERS).expect("a table of buffers");
        Self { ring, buffers: vec![None; BUFFERS as usize] }
    }

    fn set(&mut self, number: usize, start: *mut u8, length: usize) -> std::io::Result<()> {
        let vector = libc::iovec { iov_base: start.cast(), iov_len: length };
        let number = u32::try_from(number).expect("a small number");
        // SAFETY: the segment stays mapped until its registration is dropped, which takes it out of the table.
        unsafe { self.ring.submitter().register_buffers_update(number, &[vector], None) }
    }

    /// Registers what a client may write; a mapping that is read-only cannot be pinned so.
    fn register(this: &Arc<Mutex<Self>>, start: NonNull<u8>, length: usize) -> Option<Registration> {
        let mut device = this.lock().unwrap_or_else(PoisonError::into_inner);
        let number = device.buffers.iter().position(Option::is_none).expect("a free buffer");
        device.set(number, start.as_ptr(), length).ok()?;
        device.buffers[number] = Some((start.as_ptr() as usize, length));
        Some(Box::new(Buffer { device: Arc::clone(this), number }))
    }

    /// Number of the buffer that these bytes lie in.
    fn number_of(&self, bytes: &[u8]) -> u16 {
        let start = bytes.as_ptr() as usize;
        let holds = |buffer: &Option<(usize, usize)>| {
            buffer.is_some_and(|(from, length)| start >= from && start + bytes.len() <= from + length)
        };
        let number = self.buffers.iter().position(holds).expect("registered bytes");
        u16::try_from(number).expect("a small number")
    }

    fn run(&mut self, entry: &squeue::Entry, length: usize) {
        // SAFETY: the callers keep file and bytes until this returns, which is after the completion.
        unsafe { self.ring.submission().push(entry) }.expect("room in the queue");
        self.ring.submit_and_wait(1).expect("io_uring_enter");
        let done = self.ring.completion().next().expect("a completion").result();
        assert_eq!(usize::try_from(done), Ok(length), "bytes moved");
    }

    fn fill(&mut self, writer: &mut Writer, from: &File) {
        let (number, length) = (self.number_of(writer), writer.len());
        let bytes = u32::try_from(length).expect("a short object");
        let file = types::Fd(from.as_raw_fd());
        self.run(&opcode::ReadFixed::new(file, writer.as_mut_ptr(), bytes, number).build(), length);
    }

    fn store(&mut self, bytes: &[u8], to: &File) {
        let length = u32::try_from(bytes.len()).expect("a short object");
        let file = types::Fd(to.as_raw_fd());
        let number = self.number_of(bytes);
        self.run(&opcode::WriteFixed::new(file, bytes.as_ptr(), length, number).build(), bytes.len());
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        device.set(self.number, std::ptr::null_mut(), 0).expect("an empty place in the table");
        device.buffers[self.number] = None;
    }
}

fn a_device_reads_and_writes_objects_by_one_registration_while_all_else_is_evicted(mode: Mode) {
    if !kernel::is_at_least((5, 19), "a table of buffers in io_uring") {
        return;
    }
    let (mount, kv) = kv_with(mode, &["capacity=64MiB"]);
    let cache = open(&mount, &kv, mode);
    let device = Arc::new(Mutex::new(Device::new()));
    let of_hook = Arc::clone(&device);
    cache.register_with(move |start, length| Device::register(&of_hook, start, length));

    let disk = tempfile::tempdir().expect("a temporary directory");
    let (source, target) = (disk.path().join("source"), disk.path().join("target"));
    let mut kept = Vec::new();
    for seed in 0..4_usize {
        let bytes = pattern::object(offset(seed), MIB);
        fs::write(&source, &bytes).expect("write");
        let mut writer = cache.create(format!("k{seed}"), MIB).expect("create");
        if writer.is_mapped() {
            let from = File::open(&source).expect("open");
            device.lock().expect("no panic").fill(&mut writer, &from);
        } else {
            writer.copy_from_slice(&bytes);
        }
        writer.seal().expect("seal");
        let view = cache.get(format!("k{seed}")).expect("get").expect("a hit");
        assert_eq!(view.is_registered(), cache.is_fast());
        kept.push(view);
    }
    // What is pinned and referenced stays what it is, though the cache is written three times over.
    for seed in 100..300_usize {
        fs::write(kv.join(format!("k{seed}")), pattern::object(offset(seed), MIB)).expect("write");
    }
    for (seed, view) in kept.iter().enumerate() {
        assert_object(view, seed);
        if view.is_registered() {
            let to = File::create(&target).expect("create");
            device.lock().expect("no panic").store(view, &to);
            let found = fs::read(&target).expect("read");
            assert_eq!(pattern::verify_object(&found), Ok(offset(seed)), "what the device wrote");
        }
    }
    drop((kept, cache));
    assert_eq!(device.lock().expect("no panic").buffers.iter().flatten().count(), 0, "all were let go");
}
