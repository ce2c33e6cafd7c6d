//! The parsers of the daemon and its tools, as functions for fuzzing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use tidefs::cluster::catalog::wire;
use tidefs::config::{Config, ConfigFile, Host, MountOptions, NamePatterns, Sources};
use tidefs::tier::memory::{DirectoryRecord, ObjectRecord};
use tidefs_control_api::ioctl::{AreaCall, Body, Command, Encoder, Flags, Record, Records, Request};
use tidefs_control_api::mounts::MountTable;
use tidefs_control_api::{EvictRequest, KeyPath, ListQuery, PathQuery, PinRequest};
use tidefs_engine::types::ByteCount;

/// A name, and what reads the bytes.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// The targets by name.
pub(crate) const TARGETS: &[Target] = &[
    ("records", records),
    ("mount_options", mount_options),
    ("config_file", config_file),
    ("environment", environment),
    ("name_patterns", name_patterns),
    ("key_paths", key_paths),
    ("admin_requests", admin_requests),
    ("mount_table", mount_table),
    ("fast_path_requests", fast_path_requests),
    ("catalog_messages", catalog_messages),
];

/// Records in the extended attributes of segments, as they are and with a checksum that holds.
pub(crate) fn records(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    if let Some((framed, trailer)) = mended.split_last_chunk_mut::<4>() {
        *trailer = crc32fast::hash(framed).to_le_bytes();
    }
    for bytes in [bytes, &mended] {
        if let Ok(record) = ObjectRecord::decode(bytes) {
            let again = record.encode().expect("what was read can be written");
            assert_eq!(ObjectRecord::decode(&again).as_ref(), Ok(&record));
            assert!(record.version.0 < u64::MAX, "what is new has a later one");
        }
        if let Ok(record) = DirectoryRecord::decode(bytes) {
            let again = record.encode().expect("what was read can be written");
            assert_eq!(DirectoryRecord::decode(&again).as_ref(), Ok(&record));
        }
    }
}

fn sources() -> Sources {
    let host = Host {
        memory: ByteCount::gib(64),
        memory_usable: ByteCount::gib(64),
        cpus: 4,
        uid: 0,
        gid: 0,
        runtime_dir: None,
        state_home: PathBuf::from("/var/lib/state"),
        free_space: |_: &Path| Some(ByteCount::gib(100)),
    };
    Sources::new(host, PathBuf::from("/mnt/kv"))
}

/// What `mount -o` takes.
pub(crate) fn mount_options(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(problems) = MountOptions::parse(&text) {
        let _ = problems.to_string();
    }
    if let Err(problems) = Config::load(&Sources { options: vec![text.into_owned()], ..sources() }) {
        assert!(!problems.to_string().is_empty());
    }
}

pub(crate) fn config_file(bytes: &[u8]) {
    let text = Ok(String::from_utf8_lossy(bytes).into_owned());
    let files = vec![ConfigFile { path: PathBuf::from("/etc/tidefs/tidefs.toml"), text }];
    if let Err(problems) = Config::load(&Sources { files, ..sources() }) {
        assert!(!problems.to_string().is_empty());
    }
}

/// Variables, separated by zeros as in /proc/PID/environ.
pub(crate) fn environment(bytes: &[u8]) {
    let pair = |text: &[u8]| {
        let at = text.iter().position(|&byte| byte == b'=').unwrap_or(text.len());
        let (name, value) = (&text[..at], text.get(at + 1..).unwrap_or_default());
        (OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec()))
    };
    let environment = bytes.split(|&byte| byte == 0).map(pair).collect();
    if let Err(problems) = Config::load(&Sources { environment, ..sources() }) {
        assert!(!problems.to_string().is_empty());
    }
}

/// Patterns, and a name to match with them.
pub(crate) fn name_patterns(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(patterns) = NamePatterns::new(text.lines()) {
        let _ = patterns.matches(std::ffi::OsStr::new("block.safetensors.tmp.1234"));
    }
}

/// Paths of keys, as the tools send them.
pub(crate) fn key_paths(bytes: &[u8]) {
    let escaped = KeyPath::from_bytes(bytes);
    if let Ok(back) = escaped.to_bytes() {
        let trimmed = |bytes: &[u8]| KeyPath::from_bytes(bytes).as_str().to_owned();
        assert_eq!(trimmed(&back), escaped.as_str(), "a path means the same after a round");
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(path) = serde_json::from_value::<KeyPath>(text.into())
        && let Ok(back) = path.to_bytes()
    {
        assert_eq!(
            KeyPath::from_bytes(&back).to_bytes().as_ref(),
            Ok(&back),
            "one path, however it is written"
        );
    }
}

/// Bodies and queries of the admin socket.
pub(crate) fn admin_requests(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<EvictRequest>(bytes) {
        let _ = request.target();
    }
    if let Ok(request) = serde_json::from_slice::<PinRequest>(bytes) {
        let _ = request.validate();
    }
    let _ = serde_json::from_slice::<tidefs_control_api::VerifyRequest>(bytes);
    let _ = serde_urlencoded::from_bytes::<PathQuery>(bytes);
    let _ = serde_urlencoded::from_bytes::<ListQuery>(bytes);
}

/// /proc/self/mountinfo.
pub(crate) fn mount_table(bytes: &[u8]) {
    let table = MountTable::parse(bytes);
    let _ = table.tidefs().count();
    let _ = table.at(Path::new("/mnt/kv"));
    let _ = table.tidefs_containing(Path::new("/mnt/kv/a"));
    let _ = table.below(Path::new("/")).count();
}

/// Requests of the fast path: the first byte says which command.
pub(crate) fn fast_path_requests(bytes: &[u8]) {
    let Some((&first, payload)) = bytes.split_first() else { return };
    let command = Command::ALL[usize::from(first) % Command::ALL.len()];
    let _ = AreaCall::of_request(payload);
    let Ok(request) = Request::parse(command, payload) else { return };
    match request.body {
        Body::Lookup(records) | Body::Prefix(records) | Body::Prefetch(records) => round(&records),
        Body::Release(records) | Body::Abort(records) => round(&records),
        Body::Create(records) => round(&records),
        Body::Seal(records) => round(&records),
        Body::GetInto(records) => round(&records),
        Body::PutFrom(records) => round(&records),
        Body::Ready(records) => round(&records),
        Body::Follow(records) => round(&records),
        Body::Pin(records) => round(&records),
        Body::Version | Body::Register | Body::Unregister | Body::Retired => {}
    }
}

/// What was read is as many records as were said, and writes itself again.
fn round<'a, R: Record<'a>>(records: &Records<'a, R>) {
    let mut encoder = Encoder::with_room(Flags::IN_AREA, 0, 0, usize::MAX);
    assert_eq!(records.iter().filter(|record| encoder.push(record)).count(), records.len());
    let lengths: usize = records.iter().map(|record| record.length()).sum();
    assert_eq!(encoder.records().len(), lengths);
}

/// What members send each other about keys: each kind may refuse the bytes, and writes again what it has read.
pub(crate) fn catalog_messages(bytes: &[u8]) {
    fn round<M: wire::Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        if let Ok(message) = M::decode(bytes) {
            assert_eq!(M::decode(&message.encode()).as_ref(), Ok(&message));
            if let Ok(older) = message.encode_for(wire::OLDEST) {
                assert!(M::decode(&older).is_ok());
            }
        }
    }
    let versioned = [&[wire::VERSION], bytes].concat();
    for bytes in [bytes, &versioned] {
        round::<wire::Find>(bytes);
        round::<wire::Answers>(bytes);
        round::<wire::Changes>(bytes);
        round::<wire::Results>(bytes);
        round::<wire::Replicate>(bytes);
        round::<wire::Revoke>(bytes);
        round::<wire::Lend>(bytes);
        round::<wire::Lending>(bytes);
        round::<wire::Release>(bytes);
        round::<wire::List>(bytes);
        round::<wire::Listed>(bytes);
        round::<wire::Keep>(bytes);
        round::<wire::Kept>(bytes);
        round::<wire::Drain>(bytes);
        round::<wire::DrainReport>(bytes);
        round::<wire::Done>(bytes);
    }
}
