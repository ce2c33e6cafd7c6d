//! What reads bytes from outside (from disk, from users, from programs) refuses them or takes them, and does nothing worse.
//!
//! Each target replays its corpus and mutates it, in the normal tests and without a fuzzer. The same targets, those of
//! what is on disk (`src/fuzz.rs`) and those of the engine (`engine/src/fuzz.rs`) run under libFuzzer with a nightly toolchain:
//! `TIDEFS_FUZZ_TARGET=records cargo +nightly fuzz run --fuzz-dir tests/fuzz daemon tests/fuzz/corpus/records`.

mod daemon;
mod replay;

use replay::replayed;

replayed!(
    daemon::TARGETS =>
    records: seeds::records;
    mount_options: seeds::mount_options;
    config_file: seeds::config_file;
    environment: seeds::environment;
    name_patterns: seeds::name_patterns;
    key_paths: seeds::key_paths;
    admin_requests: seeds::admin_requests;
    mount_table: seeds::mount_table;
    fast_path_requests: seeds::fast_path_requests;
    catalog_messages: seeds::catalog_messages;
);

mod seeds {
    use tidefs::cluster::catalog::wire::{
        Answered, Answers, Change, Changes, Find, Known, Lending, Message, Replicate, Revocation, Revoke,
    };
    use tidefs::cluster::{Copy, Facts, FileFacts, Medium, Stamp};
    use tidefs::tier::memory::{DirectoryRecord, ObjectRecord, Pin, PolicyRecord};
    use tidefs_engine::types::{ByteCount, DirectoryId, Version};

    pub(crate) fn catalog_messages() -> Vec<Vec<u8>> {
        let path = b"kv/0123".to_vec();
        let stamp = Stamp(1_700_000_000_000_000_000);
        let facts = Facts::File(FileFacts {
            size: ByteCount::mib(4),
            mtime_ns: -1,
            mode: 0o644,
            uid: 1000,
            gid: 1000,
            checksum: Some(7),
            replicas: 2,
        });
        let copies = vec![Copy { member: tidefs_engine::types::MemberId(3), medium: Medium::Ssd }];
        let present = Answered::Present { stamp, facts, copies: copies.clone() };
        let answers = vec![present, Answered::Absent { is_watched: true }, Answered::Moved];
        let changes = vec![
            Change::Publish { number: 1, path: path.clone(), proposed: stamp, facts },
            Change::Remove { path: path.clone(), at: stamp },
            Change::Announced { view: 3 },
        ];
        let known = Known::Present { stamp, facts, copies };
        let removed = Known::Removed { stamp, age_ms: 5 };
        let keys = vec![(u128::MAX, known), (1, removed)];
        let horizon_age_ms = Some(9);
        let items = vec![
            Revocation::Withdraw { path: path.clone(), through: stamp, seen: 4 },
            Revocation::Forget { shards: vec![1, 4095], view: 2 },
        ];
        vec![
            Find { view: 3, paths: vec![path.clone(), Vec::new()] }.encode(),
            Answers { view: 3, answers }.encode(),
            Changes { view: 3, wait_ms: 2000, changes }.encode(),
            Replicate {
                view: 3,
                is_decided: true,
                keys,
                complete: vec![5],
                horizon_age_ms,
                away_ms: Vec::new(),
            }
            .encode(),
            Revoke { items }.encode(),
            Lending::Inline { bytes: path, checksum: 8 }.encode(),
        ]
    }

    pub(crate) fn records() -> Vec<Vec<u8>> {
        let policy = PolicyRecord {
            quota: Some(ByteCount::gib(1)),
            pin: Some(Pin::Soft { ttl_s: Some(60) }),
            eviction: Some("lru".to_owned()),
            ..PolicyRecord::default()
        };
        let object = ObjectRecord {
            parent: DirectoryId(2),
            name: b"block-0001.safetensors".to_vec(),
            version: Version(77),
            size: ByteCount(123_456),
            checksum: None,
            mode: 0o100_644,
            uid: 1000,
            gid: 1000,
            mtime_ns: 1,
            atime_ns: 2,
            ctime_ns: 3,
            sealed_at_ns: 4,
            predecessor: Some(Version(76)),
            policy: policy.clone(),
        };
        let directory = DirectoryRecord {
            id: DirectoryId(2),
            parent: DirectoryId(1),
            name: b"kv".to_vec(),
            mode: 0o40_755,
            uid: 0,
            gid: 0,
            mtime_ns: 1,
            ctime_ns: 2,
            policy,
        };
        vec![object.encode().unwrap(), directory.encode().unwrap()]
    }

    fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    pub(crate) fn mount_options() -> Vec<Vec<u8>> {
        texts(&[
            "capacity=8GiB,on_stop=keep",
            "rw,nodev,config=/etc/x.toml,log.level=debug",
            "names.temporary=*.tmp:.x*",
        ])
    }

    pub(crate) fn config_file() -> Vec<Vec<u8>> {
        texts(&[
            "[memory]\ncapacity = \"8GiB\"\nhuge_pages = \"auto\"\n",
            "[names]\ntemporary = [\"*.tmp\", \".tmp*\"]\n[log]\nlevel = \"info\"\n[root]\nmode = 1777\n",
        ])
    }

    pub(crate) fn environment() -> Vec<Vec<u8>> {
        texts(&["TIDEFS_MEMORY_CAPACITY=8GiB\0TIDEFS_LOG_LEVEL=debug", "TIDEFS_NAMES_TEMPORARY=*.tmp:*.x"])
    }

    pub(crate) fn name_patterns() -> Vec<Vec<u8>> {
        texts(&["*.tmp", "[a-z]?{b,c}*\\*", "*.tmp????????"])
    }

    pub(crate) fn key_paths() -> Vec<Vec<u8>> {
        texts(&["a/b/c.safetensors", "a\\x5cb/\\xff", "/"])
    }

    pub(crate) fn admin_requests() -> Vec<Vec<u8>> {
        texts(&[
            r#"{"path":"a/b","pin":"soft","ttl_s":5}"#,
            r#"{"path":"a","recursive":true}"#,
            "path=a%2Fb&limit=10&sort=size",
            r#"{"verify":true,"path":"x"}"#,
        ])
    }

    pub(crate) fn mount_table() -> Vec<Vec<u8>> {
        texts(&[
            "36 35 98:0 / /mnt/a\\040b rw,noatime shared:1 - fuse.tidefs tidefs rw,user_id=0\n",
            "22 1 0:21 / /proc rw - proc proc rw\n36 35 0:5 / /x rw master:1 - tmpfs tidefs rw,size=8g\n",
        ])
    }

    pub(crate) fn fast_path_requests() -> Vec<Vec<u8>> {
        use tidefs_control_api::ioctl::{
            Command, Create, Encoder, Flags, Get, Name, Put, Range, Record, Seal,
        };

        fn seed<'a>(command: Command, flags: Flags, record: &impl Record<'a>) -> Vec<u8> {
            let mut encoder = Encoder::new(flags, 1, 32);
            assert!(encoder.push(record) && encoder.push(record));
            let number = Command::ALL.iter().position(|known| *known == command).unwrap();
            [&[u8::try_from(number).unwrap()][..], &encoder.finish()].concat()
        }
        let name = Name(b"kv/block-0001.safetensors");
        vec![
            seed(Command::Lookup, Flags::PROBE, &name),
            seed(Command::Prefix, Flags::NONE, &name),
            seed(Command::Release, Flags::NONE, &Range { first: 1 << 16, count: 7 }),
            seed(Command::Create, Flags::NONE, &Create { size: 1 << 20, mode: 0o644, name }),
            seed(Command::Seal, Flags::NONE, &Seal { reference: 1 << 16, length: 1 << 20 }),
            seed(Command::GetInto, Flags::NONE, &Get { offset: 0, length: 9, area: 3, target: 64, name }),
            seed(Command::PutFrom, Flags::NONE, &Put { area: 3, source: 0, length: 9, mode: 0o600, name }),
            seed(Command::Lookup, Flags::IN_AREA, &Range { first: 3, count: 4096 }),
        ]
    }
}
