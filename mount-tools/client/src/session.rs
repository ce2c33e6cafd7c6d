//! An open control file: requests, and references on their way back.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_control_api::ioctl::{
    BATCH_MAX, CONTROL_FILE, Command, Encoder, Entry, Features, Flags, Header, Range, Record,
    SEGMENT_DIRECTORY, VersionReply, results,
};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::Error;
use crate::area::Place;
use crate::directories::Directories;
use crate::file::Files;
use crate::fork::Owner;
use crate::segments::{Hook, Segments};

/// References that go back to the daemon together.
pub const RELEASE_BATCH: usize = 512;

/// How often it is looked whether the directory of a session is at the path of the cache still, where nothing is stored by file.
const COMPARED_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct Returning {
    references: Vec<u64>,
    /// Those that answered look-ups which the daemon knows nothing of.
    used: Vec<u64>,
    bytes: usize,
}

impl Returning {
    fn push(&mut self, reference: u64, length: usize, is_used: bool) {
        let references = if is_used { &mut self.used } else { &mut self.references };
        references.push(reference);
        self.bytes += length;
    }

    fn count(&self) -> usize {
        self.references.len() + self.used.len()
    }
}

/// A session with the daemon.
#[derive(Debug)]
pub(crate) struct Session {
    /// Whose references it has. A child that inherits it shares the file, and must give nothing back.
    owner: Owner,
    control: File,
    /// Whether objects may be made and changed by it; not where its mount is read-only: files say then what open(2) says.
    pub(crate) may_write: bool,
    /// Whether its mount is known to be dead. Then nobody is asked any more.
    is_dead: AtomicBool,
    /// Whether its directory is known to be no more, or not at the path of the cache any more. What it gave goes back, and what it began is
    /// sealed, but it looks nothing up for new calls.
    is_left: AtomicBool,
    pub(crate) segments: Segments,
    pub(crate) facts: VersionReply,
    /// Inode number of the directory to which keys are relative.
    pub(crate) scope: u64,
    /// The device that the mount is.
    device: u64,
    /// When it was looked last whether that directory is at the path still.
    compared_at: Mutex<Instant>,
    returning: Mutex<Returning>,
    /// Memory for large batches, and for views of small objects. Held for one request.
    pub(crate) area: Mutex<Place>,
    /// Memory for objects that are copied in and out. Whoever finds it held goes on without it.
    pub(crate) copies: Mutex<Place>,
    /// Directories in which objects were stored.
    pub(crate) directories: Directories,
}

impl Session {
    /// Opens a session of `owner`, this process, for keys of `files`. `None` when there is no fast path there.
    ///
    /// `hook` registers what it maps.
    pub(crate) fn open(owner: Owner, files: &Files, hook: &Arc<Hook>) -> Option<Self> {
        let tidefs = files.find_mount()?.join(".tidefs");
        let (control, may_write) = open_control(&tidefs.join(CONTROL_FILE)).ok()?;
        let segments = Segments::open(&tidefs.join(SEGMENT_DIRECTORY), hook).ok()?;
        // One mount may end, and another begin, between any two of these. While the control file is open no other mount is the
        // same device.
        let (device, scope) = (control.metadata().ok()?.dev(), files.directory().metadata().ok()?);
        if scope.dev() != device || segments.device().ok()? != device {
            return None;
        }
        let mut session = Self {
            owner,
            control,
            may_write,
            is_dead: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            segments,
            facts: VersionReply::default(),
            scope: scope.ino(),
            device,
            compared_at: Mutex::new(Instant::now()),
            returning: Mutex::default(),
            area: Mutex::default(),
            copies: Mutex::default(),
            directories: Directories::default(),
        };
        let payload = session.call(Command::Version, Encoder::with_room(Flags::NONE, 0, 0, 64), 64).ok()?;
        session.facts = results::<U64>(&payload)
            .and_then(|_| payload.get(size_of::<Header>()..))
            .and_then(|bytes| VersionReply::read_from_prefix(bytes).ok())?
            .0;
        session.offers(Features::MAPPING).then_some(session)
    }

    /// The process that opened it.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Whether this process inherited it.
    pub(crate) fn is_inherited(&self) -> bool {
        self.owner.is_a_parent()
    }

    /// Whether new calls need the next one: its mount was found to be dead, or its directory to be gone from the path.
    pub(crate) fn is_over(&self) -> bool {
        self.is_dead() || self.is_left()
    }

    fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Whether its directory was found to be gone, or another to be at the path, with its mount alive.
    pub(crate) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }

    /// Whether it is time to look whether its directory is at the path still.
    pub(crate) fn is_to_compare(&self) -> bool {
        !self.is_over() && self.compared_at.lock().elapsed() >= COMPARED_EVERY
    }

    /// Looks whether its directory is at the path still. It is over when another one is there. Not to be asked of one that a
    /// child of fork(2) inherited.
    pub(crate) fn compare(&self, directory: &Path) {
        *self.compared_at.lock() = Instant::now();
        // A path that leads nowhere says nothing: its process may have another root by now (chroot(2)), and goes on here.
        let is_another = |found: Metadata| (found.dev(), found.ino()) != (self.device, self.scope);
        if directory.metadata().is_ok_and(is_another) {
            self.is_left.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the daemon waits for this process to give references back.
    fn gives_back(&self) -> bool {
        !self.is_inherited() && !self.is_dead()
    }

    /// Unmaps what nobody views, once nothing is looked up by it any more, and gives back what the daemon still has for it.
    pub(crate) fn let_go(&self) {
        let areas = [self.area.lock().take(), self.copies.lock().take()];
        for area in areas.into_iter().flatten().filter(|_| self.gives_back()) {
            self.unregister(area.segment);
        }
        self.segments.close();
        self.give_back_all();
    }

    /// Registered segments that nobody views or writes. `None` when another thread holds a lock.
    pub(crate) fn idle_registrations(&self) -> Option<usize> {
        self.segments.idle_registrations()
    }

    pub(crate) fn offers(&self, features: Features) -> bool {
        Features(self.facts.features.get()).has(features)
    }

    /// An empty GET_INTO, for what was looked up: that has counted a use.
    pub(crate) fn copying(&self) -> Encoder {
        let flags = if self.offers(Features::PROBE) { Flags::PROBE } else { Flags::NONE };
        Encoder::new(flags, self.scope, size_of::<Entry>())
    }

    /// Makes a request whose reply has at least `room` bytes.
    ///
    /// # Errors
    /// What the daemon says to the request as a whole.
    pub(crate) fn call(&self, command: Command, request: Encoder, room: usize) -> Result<Vec<u8>, Error> {
        let mut payload = request.finish();
        payload.resize(payload.len().max(room), 0);
        self.exchange(command, &mut payload)?;
        Ok(payload)
    }

    /// Makes a request with a payload that is built already.
    pub(crate) fn exchange(&self, command: Command, payload: &mut [u8]) -> Result<(), Error> {
        let asked = if self.is_inherited() {
            Err(io::Error::other("the cache was opened before a fork; the child opens its own"))
        } else if self.is_dead() {
            Err(io::Error::from_raw_os_error(libc::ENOTCONN))
        } else {
            crate::ffi::request(&self.control, command, payload).inspect_err(|error| {
                if is_of_dead_mount(error) {
                    self.is_dead.store(true, Ordering::Relaxed);
                } else if error.raw_os_error() == Some(libc::ESTALE) {
                    // The daemon lives, but the directory does not.
                    self.is_left.store(true, Ordering::Relaxed);
                }
            })
        };
        asked.map_err(Error::io("a request of the fast path"))?;
        let header = Header::read_from_prefix(payload).map_err(|_| Error::BadReply)?.0;
        if Flags(header.flags.get()).has(Flags::RETIRED) && command != Command::Retired {
            self.unmap_retired();
        }
        Ok(())
    }

    /// Unmaps what the daemon has given up; else its memory stays in use.
    fn unmap_retired(&self) {
        loop {
            let request = Encoder::new(Flags::NONE, 0, 0);
            let Ok(reply) = self.call(Command::Retired, request, 16 + 1024 * 8) else { return };
            let Some((header, numbers)) = results::<U64>(&reply) else { return };
            if header.scope.get() > 0 {
                // Any of those that are mapped may be one whose number the daemon has forgotten.
                self.segments.forget_all();
            }
            self.segments.forget(numbers.iter().map(|number| number.get()));
            if numbers.is_empty() {
                return;
            }
        }
    }

    /// Whether references that wait go back along with one more, to an object of `length` bytes.
    pub(crate) fn is_full_with(&self, length: usize) -> bool {
        self.gives_back() && self.is_full(&self.returning.lock(), 1, length)
    }

    /// Whether its end is told to the daemon by a request: see its `Drop`.
    pub(crate) fn asks_when_it_ends(&self) -> bool {
        self.gives_back() && self.owner.has_children()
    }

    /// Bytes of objects that may be kept from being evicted without a use for them.
    pub(crate) fn kept_back_max(&self) -> usize {
        usize::try_from(self.facts.kept_back_max.get()).unwrap_or(usize::MAX)
    }

    fn is_full(&self, returning: &Returning, more: usize, length: usize) -> bool {
        let bytes_max = self.kept_back_max();
        let (count, bytes) = (returning.count() + more, returning.bytes + length);
        // Of a session that was left none come to go along with.
        count >= RELEASE_BATCH || bytes >= bytes_max || self.is_left() && count > 0
    }

    /// Gives the reference to an object of `length` bytes back, along with others. `is_used`: the object was used since it was
    /// looked up.
    pub(crate) fn give_back(&self, reference: u64, length: usize, is_used: bool) {
        if !self.gives_back() {
            return;
        }
        let full = {
            let mut returning = self.returning.lock();
            returning.push(reference, length, is_used);
            self.is_full(&returning, 0, 0).then(|| std::mem::take(&mut *returning))
        };
        if let Some(full) = full {
            self.send_back(full);
        }
    }

    /// The same without a request, also when that makes more than are to wait.
    pub(crate) fn keep_back(&self, reference: u64, length: usize, is_used: bool) {
        if self.gives_back() {
            self.returning.lock().push(reference, length, is_used);
        }
    }

    /// Gives back what waits.
    pub(crate) fn give_back_all(&self) {
        if !self.gives_back() {
            return;
        }
        let waiting = std::mem::take(&mut *self.returning.lock());
        self.send_back(waiting);
    }

    fn send_back(&self, waiting: Returning) {
        self.send_references(Flags::NONE, waiting.references);
        self.send_references(Flags::USED, waiting.used);
    }

    fn send_references(&self, flags: Flags, mut references: Vec<u64>) {
        references.sort_unstable();
        let mut ranges: Vec<Range> = Vec::new();
        for reference in references {
            match ranges.last_mut() {
                Some(last) if last.first + last.count == reference => last.count += 1,
                _ => ranges.push(Range { first: reference, count: 1 }),
            }
        }
        self.send_ranges(Command::Release, flags, &ranges);
    }

    /// Sends ranges of references; that the daemon is gone means that it holds none any more.
    pub(crate) fn send_ranges(&self, command: Command, flags: Flags, ranges: &[Range]) {
        let mut rest = ranges;
        while !rest.is_empty() {
            let mut request = Encoder::new(flags, 0, 0);
            let taken = rest.iter().take_while(|range| request.push(*range)).count();
            let _ = self.call(command, request, 0);
            rest = &rest[taken.max(1)..];
        }
    }

    /// The results of a request with records of one kind: as many ioctls as they need, or one through the area when they are
    /// many. `each` gets the first reference of each part, the index of its first record, and its results.
    ///
    /// # Errors
    /// What the daemon says to a request as a whole.
    pub(crate) fn each<'a, R: Record<'a>, T: FromBytes + KnownLayout + Immutable + Unaligned + Copy>(
        &self,
        command: Command,
        flags: Flags,
        records: &[R],
        mut each: impl FnMut(u64, usize, &[T]),
    ) -> Result<(), Error> {
        let mut start = 0;
        while start < records.len() {
            let rest = &records[start..];
            if rest.len() > BATCH_MAX
                && let Some((taken, first, results)) = self.call_in_area::<R, T>(command, flags, rest)?
            {
                each(first, start, &results);
                start += taken;
                continue;
            }
            let mut request = Encoder::new(flags, self.scope, size_of::<T>());
            let sizes = rest.iter().take(BATCH_MAX).map(|record| record.length().max(size_of::<T>()));
            request.reserve(sizes.sum());
            let taken = rest.iter().take_while(|record| request.push(*record)).count();
            if taken == 0 {
                return Err(Error::too_long_for_a_request());
            }
            let reply = self.call(command, request, 0)?;
            let (header, results) = results::<T>(&reply).ok_or(Error::BadReply)?;
            if results.len() != taken {
                return Err(Error::BadReply);
            }
            each(header.scope.get(), start, results);
            start += taken;
        }
        Ok(())
    }
}

impl Drop for Session {
    /// The daemon ends a session with its last descriptor, of which a child of fork(2) may have one.
    fn drop(&mut self) {
        if !self.is_inherited() && self.owner.has_children() {
            self.let_go();
        }
    }
}

/// Opens a control file, to read alone where nothing may be written. Returns whether it may be.
fn open_control(path: &Path) -> io::Result<(File, bool)> {
    let is_refused =
        |kind| matches!(kind, io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied);
    match File::options().read(true).write(true).open(path) {
        Err(error) if is_refused(error.kind()) => Ok((File::open(path)?, false)),
        opened => Ok((opened?, true)),
    }
}

/// Whether a request failed because the connection of the mount to its daemon has ended.
///
/// Linux 6.18, fs/fuse/dev.c: a request that is made after that fails with ENOTCONN (`fuse_dev_queue_req`), one that was under way
/// with ECONNABORTED (`end_requests`). No daemon answers so.
fn is_of_dead_mount(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}
