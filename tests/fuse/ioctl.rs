//! The fast path's ioctls as another client would make them, byte by byte, without the library.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nix::errno::Errno;
use tidefs_control_api::ioctl::{
    AreaGrant, Command, Create, Encoder, Entry, Features, Flags, Follow, Get, HEADER_BYTES, Name, Outcome,
    PIN_HARD, Pin, Put, Range, Record, Seal, Status, VersionReply, request_number, results,
};
use zerocopy::FromBytes as _;
use zerocopy::little_endian::U64;

use crate::common::sys::set_xattr;
use crate::common::{Mode, Mount, kernel, pattern, wait};
use crate::fixture::{MIB, kv, kv_with, offset, publish, publish_object};

/// An open control file.
pub(crate) struct Control {
    pub(crate) file: File,
    segments: std::path::PathBuf,
}

impl Control {
    pub(crate) fn open(mount: &Mount) -> Self {
        let path = mount.join(".tidefs/control");
        let file = File::options().read(true).write(true).open(path).expect("the control file opens");
        Self { file, segments: mount.join(".tidefs/segments") }
    }

    /// One that may not be written, as on a read-only mount.
    pub(crate) fn open_to_read(mount: &Mount) -> Self {
        let file = File::open(mount.join(".tidefs/control")).expect("the control file opens");
        Self { file, segments: mount.join(".tidefs/segments") }
    }

    fn number(&self, number: u32, payload: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: the number says how many bytes the kernel reads and writes, which is the length of the payload.
        let outcome =
            unsafe { libc::ioctl(self.file.as_raw_fd(), libc::Ioctl::from(number), payload.as_mut_ptr()) };
        Errno::result(outcome).map(drop)
    }

    pub(crate) fn call(&self, command: Command, mut payload: Vec<u8>) -> Result<Vec<u8>, Errno> {
        let number = request_number(command, payload.len());
        self.number(number, &mut payload).map(|()| payload)
    }

    /// Makes a request with one record and returns its one result, and the first reference.
    pub(crate) fn one<'a, T>(&self, command: Command, record: &impl Record<'a>) -> (u64, T)
    where
        T: zerocopy::FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned + Copy,
    {
        self.try_one(command, record).expect("a reply")
    }

    /// The same, for who is to go on without a reply.
    fn try_one<'a, T>(&self, command: Command, record: &impl Record<'a>) -> Result<(u64, T), Errno>
    where
        T: zerocopy::FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned + Copy,
    {
        let mut request = Encoder::new(Flags::NONE, 0, size_of::<T>());
        assert!(request.push(record));
        let reply = self.call(command, request.finish())?;
        let (header, found) = results::<T>(&reply).expect("a whole reply");
        Ok((header.scope.get(), found[0]))
    }

    /// Asks for an area.
    pub(crate) fn register(&self, length: u64) -> Result<AreaGrant, Errno> {
        let mut payload = Encoder::new(Flags::NONE, length, 0).finish();
        payload.resize(HEADER_BYTES + size_of::<AreaGrant>(), 0);
        let reply = self.call(Command::Register, payload)?;
        Ok(AreaGrant::read_from_prefix(&reply[HEADER_BYTES..]).expect("a grant").0)
    }

    /// Begins an object of a MiB. Returns its reference and its segment, open to be written.
    pub(crate) fn begin(&self, name: &[u8], mode: u32) -> (u64, u64, File) {
        let create = Create { size: offset(MIB), mode, name: Name(name) };
        let (reference, begun) = self.one::<Entry>(Command::Create, &create);
        assert_eq!(begun.status(), Status::Ok);
        let segment = begun.segment.get();
        let file = File::options().read(true).write(true).open(self.segment(segment));
        (reference, segment, file.expect("its segment opens"))
    }

    /// Seals what was begun, with all of its MiB.
    pub(crate) fn seal(&self, reference: u64) -> Status {
        let seal = Seal { reference, length: offset(MIB) };
        self.one::<Outcome>(Command::Seal, &seal).1.status()
    }

    pub(crate) fn area(&self, length: u64) -> (u64, File) {
        let grant = self.register(length).expect("an area");
        let segment = grant.segment.get();
        assert!(grant.length.get() >= length);
        let path = self.segments.join(segment.to_string());
        (segment, File::options().read(true).write(true).open(path).expect("the area opens"))
    }

    pub(crate) fn segment(&self, number: u64) -> std::path::PathBuf {
        self.segments.join(number.to_string())
    }
}

pub(crate) fn metric(mount: &Mount, name: &str) -> u64 {
    let text = fs::read_to_string(mount.join(".tidefs/metrics")).expect("the metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.expect("the metric is there")
}

#[test]
fn what_is_large_enough_for_a_slot_file_is_sent_to_its_file() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, _kv) = kv_with(Mode::Passthrough, &["capacity=64MiB", "scratch.min=32MiB"]);
    let control = Control::open(&mount);
    let begin = |mib: usize| {
        let create = Create { size: offset(mib * MIB), mode: 0o644, name: Name(b"kv/key") };
        control.one::<Entry>(Command::Create, &create).1.status()
    };
    // However large: the disk has room for it.
    assert_eq!([31, 32, 1 << 20].map(begin), [Status::Ok, Status::AskByFile, Status::AskByFile]);
}

#[test]
fn what_a_client_says_that_is_not_known_is_refused_whole() {
    let (mount, kv) = kv(Mode::Passthrough);
    publish_object(&kv.join("key"), 1, MIB);
    let control = Control::open(&mount);
    let request = || {
        let mut request = Encoder::new(Flags::NONE, 0, size_of::<Entry>());
        assert!(request.push(&Name(b"kv/key")));
        request.finish()
    };
    for (at, byte) in [(0, 9), (2, 0x40), (3, 0x80), (5, 0xff), (16, 0xff)] {
        let mut payload = request();
        payload[at] = byte;
        assert_eq!(control.call(Command::Lookup, payload).err(), Some(Errno::EINVAL), "byte {at}");
    }
    assert_eq!(metric(&mount, "tidefs_fast_refusals_total"), 5);
    assert_eq!(metric(&mount, "tidefs_fast_hits_total"), 0, "nothing of them was done");
    let mut payload = request();
    let unknown = request_number(Command::Lookup, payload.len()) + 100;
    assert_eq!(control.number(unknown, &mut payload), Err(Errno::ENOTTY));
    assert_eq!(control.call(Command::Lookup, vec![0; 8]).err(), Some(Errno::EINVAL));
    // An ordinary file and a directory have no such requests.
    for path in [kv.join("key"), kv.clone(), mount.join(".tidefs/status")] {
        let other = Control { file: File::open(path).expect("open"), segments: control.segments.clone() };
        assert_eq!(other.call(Command::Lookup, request()).err(), Some(Errno::ENOTTY));
    }
    assert!(control.call(Command::Lookup, request()).is_ok());
    assert_eq!(mount.log().matches("a request of the fast path is refused").count(), 1, "said once");
}

#[test]
fn version_tells_what_is_offered() {
    if !kernel::has_fast_path() {
        return;
    }
    for (mode, mapping) in [(Mode::Passthrough, true), (Mode::Direct, false)] {
        let (mount, _) = kv(mode);
        let mut payload = Encoder::new(Flags::NONE, 0, 0).finish();
        payload.resize(HEADER_BYTES + size_of::<VersionReply>(), 0);
        let reply = Control::open(&mount).call(Command::Version, payload).expect("a reply");
        let facts = VersionReply::read_from_prefix(&reply[HEADER_BYTES..]).expect("facts").0;
        assert_eq!((facts.oldest.get(), facts.newest.get()), (1, 1));
        assert_eq!(Features(facts.features.get()).has(Features::MAPPING), mapping);
        assert_eq!(facts.packed_max.get(), 32 << 10);
    }
}

#[test]
fn objects_are_made_of_an_area_and_copied_into_it() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let control = Control::open(&mount);
    let (area, file) = control.area(8 << 20);
    for length in [1, 5000, 40_000, 3 * MIB] {
        let bytes = pattern::bytes(4, length);
        file.write_all_at(&bytes, 4096).expect("write the area");
        let name = Name(b"kv/made");
        let put = Put { area, source: 4096, length: offset(length), mode: 0o640, name };
        let (_, outcome) = control.one::<Outcome>(Command::PutFrom, &put);
        assert_eq!(outcome.status(), Status::Ok, "{length}");
        assert_eq!(fs::read(kv.join("made")).expect("read"), bytes);
        let part = Get { offset: 1, length: offset(length), area, target: 4 << 20, name };
        let (_, copied) = control.one::<Entry>(Command::GetInto, &part);
        assert_eq!((copied.status(), copied.length.get()), (Status::Ok, offset(length) - 1));
        assert_eq!(copied.version.get(), outcome.version.get());
        let mut found = vec![0; length - 1];
        file.read_exact_at(&mut found, 4 << 20).expect("read the area");
        assert_eq!(found, bytes[1..]);
    }
    assert_eq!(fs::metadata(kv.join("made")).expect("stat").permissions().mode() & 0o777, 0o640);
    let beyond = Put { area, source: 8 << 20, length: 1, mode: 0o640, name: Name(b"kv/made") };
    assert_eq!(control.one::<Outcome>(Command::PutFrom, &beyond).1.status(), Status::Invalid);
    // Another session has no part in it.
    let other = Control::open(&mount);
    let theirs = Put { area, source: 0, length: 1, mode: 0o640, name: Name(b"kv/theirs") };
    assert_eq!(other.one::<Outcome>(Command::PutFrom, &theirs).1.status(), Status::Invalid);
    drop(control);
    assert!(wait::until(wait::HANG, || !Path::new(&other.segment(area)).exists()));
}

#[test]
fn what_is_larger_than_its_quota_is_not_made_of_an_area_and_takes_nothing_out() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv_with(Mode::Passthrough, &["capacity=512MiB"]);
    set_xattr(&kv, "user.tidefs.quota", b"8MiB").expect("a quota");
    let key = kv.join("key");
    publish_object(&key, 1, 6 * MIB);
    mount.wait_until_closed([&key]);
    let control = Control::open(&mount);
    let (area, _file) = control.area(offset(9 * MIB));
    let put = Put { area, source: 0, length: offset(9 * MIB), mode: 0o640, name: Name(b"kv/key") };
    assert_eq!(control.one::<Outcome>(Command::PutFrom, &put).1.status(), Status::OverQuota);
    assert_eq!(pattern::verify_object(&fs::read(&key).expect("it is there still")), Ok(1));
    mount.wait_until_closed([&key]);
    let put = Put { length: offset(8 * MIB), ..put };
    assert_eq!(control.one::<Outcome>(Command::PutFrom, &put).1.status(), Status::Ok);
    assert_eq!(fs::metadata(&key).expect("stat").len(), offset(8 * MIB));
}

/// Two clients put an object each, again and again at one time. The quota has room for one of them.
#[test]
fn what_is_put_at_once_passes_no_quota() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv_with(Mode::Passthrough, &["capacity=512MiB"]);
    set_xattr(&kv, "user.tidefs.quota", b"8MiB").expect("a quota");
    let both = Barrier::new(2);
    let bytes = || -> io::Result<u64> {
        let entries = fs::read_dir(&kv)?.filter_map(Result::ok);
        Ok(entries.filter_map(|entry| entry.metadata().ok()).map(|facts| facts.len()).sum())
    };
    // What fails is told after the last round: who ended before would leave the other one waiting for ever.
    let put_all = |client: usize, control: &Control, area: u64| {
        let put = |round: usize| {
            let name = format!("kv/{client}-{round}");
            let put =
                Put { area, source: 0, length: offset(5 * MIB), mode: 0o640, name: Name(name.as_bytes()) };
            both.wait();
            let put = control.try_one::<Outcome>(Command::PutFrom, &put);
            both.wait();
            // One of them looks, and the other one waits until it has.
            (put.map(|(_, outcome)| outcome.status()), if client == 0 { bytes() } else { Ok(0) })
        };
        (0..8).map(put).collect::<Vec<(Result<Status, Errno>, io::Result<u64>)>>()
    };
    let clients = [0, 1].map(|client| {
        let control = Control::open(&mount);
        let area = control.area(offset(5 * MIB));
        (client, control, area)
    });
    let put_all = &put_all;
    thread::scope(|scope| {
        let putting =
            clients.map(|(client, control, (area, _))| scope.spawn(move || put_all(client, &control, area)));
        for (status, bytes) in putting.into_iter().flat_map(|one| one.join().expect("each is answered")) {
            assert!(matches!(status, Ok(Status::Ok | Status::OverQuota)), "{status:?}");
            let bytes = bytes.expect("it is listed");
            assert!(bytes <= offset(8 * MIB), "{bytes} bytes in a quota of 8 MiB");
        }
    });
}

/// One thread replaces a small object while another one copies it.
#[test]
fn what_is_copied_of_an_object_that_is_replaced_is_one_version_of_it_whole() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let key = kv.join("key");
    publish(&key, &[1; 100]);
    let control = Control::open(&mount);
    let (area, file) = control.area(4096);
    let get = Get { offset: 0, length: 4096, area, target: 0, name: Name(b"kv/key") };
    let (is_over, copies) = (AtomicBool::new(false), AtomicU64::new(0));
    let copy_all = || {
        while !is_over.load(Ordering::Relaxed) {
            let (_, copied) = control.one::<Entry>(Command::GetInto, &get);
            if copied.status() == Status::AskByFile {
                continue;
            }
            assert_eq!(copied.status(), Status::Ok, "it is there all the time");
            let mut bytes = vec![0; usize::try_from(copied.length.get()).expect("a length")];
            file.read_exact_at(&mut bytes, 0).expect("read the area");
            assert!(bytes == [1_u8; 100] || bytes == [3_u8; 300], "{bytes:?}");
            copies.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let copying = scope.spawn(copy_all);
        for round in 0..20_000 {
            // Just after it was replaced only its file can tell: the other needs a processor in time.
            if round >= 1000 && (copies.load(Ordering::Relaxed) > 0 || copying.is_finished()) {
                break;
            }
            publish(&key, &[3; 300]);
            publish(&key, &[1; 100]);
        }
        is_over.store(true, Ordering::Relaxed);
        copying.join().expect("each copy is whole");
    });
    assert!(copies.into_inner() > 0, "nothing was copied");
}

#[test]
fn a_reference_is_given_back_once_and_strangers_give_back_nothing() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    publish_object(&kv.join("key"), 1, MIB);
    // While its writer has it open only its file can tell.
    mount.wait_until_closed([kv.join("key")]);
    let (control, other) = (Control::open(&mount), Control::open(&mount));
    let (first, found) = control.one::<Entry>(Command::Lookup, &Name(b"kv/key"));
    assert_eq!((found.status(), found.length.get()), (Status::Ok, offset(MIB)));
    let release = |control: &Control, first, count| {
        let mut request = Encoder::new(Flags::NONE, 0, 0);
        assert!(request.push(&Range { first, count }));
        control.call(Command::Release, request.finish()).expect("release");
    };
    let segment = control.segment(found.segment.get());
    fs::remove_file(kv.join("key")).expect("unlink");
    for strange in [(first, 1), (0, u64::MAX), (u64::MAX, u64::MAX)] {
        release(&other, strange.0, strange.1);
    }
    release(&control, first + 1, u64::MAX);
    assert_eq!(pattern::verify_object(&fs::read(&segment).expect("still there")), Ok(1));
    release(&control, first, u64::MAX);
    release(&control, first, 1);
    assert!(wait::until(wait::HANG, || fs::read(&segment).is_err()));
}

#[test]
fn a_begun_object_is_written_through_its_segment_and_sealed_once() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let control = Control::open(&mount);
    let (reference, segment, file) = control.begin(b"kv/key", 0o600);
    let path = control.segment(segment);
    file.write_all_at(&pattern::object(6, MIB), 0).expect("write");
    assert_eq!(control.seal(reference), Status::Ok);
    assert_eq!(control.seal(reference), Status::Invalid, "it is sealed");
    assert_eq!(pattern::verify_object(&fs::read(kv.join("key")).expect("read")), Ok(6));
    let refused =
        File::options().read(true).write(true).open(&path).expect_err("a sealed one is not written");
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    let bad = [&b"kv/../x"[..], b"", b"kv/", b"/kv/..", &[b'x'; 300]];
    for name in bad {
        let create = Create { size: 4096, mode: 0o600, name: Name(name) };
        let status = control.one::<Entry>(Command::Create, &create).1.status();
        assert!(
            matches!(status, Status::Invalid | Status::Absent | Status::AskByFile),
            "{name:?}: {status:?}"
        );
    }
}

/// Every request with names, of a directory that is there, was removed, and was made again.
#[test]
fn a_request_whose_directory_was_removed_is_refused_whole() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let control = Control::open(&mount);
    let (area, _) = control.area(1 << 20);
    let ask = |scope: u64| {
        fn one<'a>(
            control: &Control,
            command: Command,
            (scope, result_bytes): (u64, usize),
            record: &impl Record<'a>,
        ) -> Option<Errno> {
            let mut request = Encoder::new(Flags::NONE, scope, result_bytes);
            assert!(request.push(record));
            control.call(command, request.finish()).err()
        }
        let name = Name(b"key");
        let (entry, outcome) = ((scope, size_of::<Entry>()), (scope, size_of::<Outcome>()));
        let put = Put { area, source: 0, length: 10, mode: 0o600, name };
        [
            one(&control, Command::PutFrom, outcome, &put),
            one(&control, Command::Lookup, entry, &name),
            one(&control, Command::Prefix, (scope, 0), &name),
            one(&control, Command::Create, entry, &Create { size: 4096, mode: 0o600, name }),
            one(&control, Command::Prefetch, entry, &name),
            one(&control, Command::GetInto, entry, &Get { offset: 0, length: 10, area, target: 0, name }),
            one(&control, Command::Pin, outcome, &Pin { ttl_s: 0, pin: PIN_HARD, name }),
            one(&control, Command::Follow, entry, &Follow { offset: 0, length: 10, wait_ms: 100, name }),
        ]
    };
    let directory = kv.join("directory");
    let made = || {
        fs::create_dir(&directory).expect("mkdir");
        fs::metadata(&directory).expect("stat").ino()
    };
    let first = made();
    assert_eq!(ask(first), [None; 8]);
    let held = File::open(&directory).expect("open");
    fs::remove_dir_all(&directory).expect("remove");
    assert_eq!(ask(first), [Some(Errno::ESTALE); 8], "it is removed, and known for as long as it is open");
    drop(held);
    let second = made();
    assert_ne!(first, second);
    assert_eq!(ask(first), [Some(Errno::ESTALE); 8], "another one stands there");
    assert_eq!(ask(second), [None; 8]);
    assert_eq!(fs::read(directory.join("key")).expect("what was put").len(), 10);
    let key = fs::metadata(directory.join("key")).expect("stat").ino();
    assert_eq!(ask(key), [Some(Errno::ESTALE); 8], "it is no directory");
}

#[test]
fn a_client_with_room_for_few_numbers_is_told_of_all_segments_that_are_no_more() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let control = Control::open(&mount);
    let meet = |seed: u64| {
        let (key, name) = (kv.join(format!("k{seed}")), format!("kv/k{seed}"));
        publish_object(&key, seed, MIB);
        mount.wait_until_closed([&key]);
        let (first, found) = control.one::<Entry>(Command::Lookup, &Name(name.as_bytes()));
        assert_eq!(found.status(), Status::Ok);
        let mut release = Encoder::new(Flags::NONE, 0, 0);
        assert!(release.push(&Range { first, count: 1 }));
        control.call(Command::Release, release.finish()).expect("release");
        fs::remove_file(key).expect("unlink");
        found.segment.get()
    };
    let mut met: Vec<u64> = (0..8).map(meet).collect();
    let are_gone = || met.iter().all(|&segment| !control.segment(segment).exists());
    assert!(wait::until(wait::HANG, are_gone));
    let without_room = Encoder::new(Flags::NONE, 0, 0).finish();
    assert_eq!(control.call(Command::Retired, without_room).err(), Some(Errno::EINVAL));
    let mut told = Vec::new();
    loop {
        let mut payload = Encoder::new(Flags::NONE, 0, 0).finish();
        payload.resize(HEADER_BYTES + 3 * size_of::<U64>(), 0);
        let reply = control.call(Command::Retired, payload).expect("a reply");
        let (_, numbers) = results::<U64>(&reply).expect("a whole reply");
        if numbers.is_empty() {
            break;
        }
        told.extend(numbers.iter().map(|number| number.get()));
    }
    met.sort_unstable();
    told.sort_unstable();
    assert_eq!(told, met);
}
