//! The settings: each one declared once.
//!
//! `name: Type { default: expression, "how"; range: Range::any(); alias: "short"; example: "8GiB"; }`: how the default is computed is
//! said only if it depends on the host, an alias is for `-o`. Changing one changes `docs/CONFIGURATION.md`; a test says so. A
//! value out of its range is an error before any mount.

use std::path::PathBuf;

use serde::Serialize;
use tidefs_engine::types::ByteCount;

use super::choice::{EvictionPolicy, HugePages, LogFormat, OnStop, Passthrough, ZeroCopy};
use super::cluster::{Addresses, Endpoints, Labels, OptionalAddress, OptionalFile, Transports, Word};
use super::defaults::{
    default_capacity, default_headroom, default_host_name, default_part, default_prefault,
    default_scratch_capacity, default_scratch_dirs, default_state_dir,
};
use super::host::Host;
use super::instance::MountPlace;
use super::limits::{CAPACITY_MIN, ID_MAX, SCRATCH_MIN_MIN, TTL_S_MAX};
use super::log_filter::LogFilter;
use super::merge::Given;
use super::mode::FileMode;
use super::patterns::NamePatterns;
use super::schema::{Range, Setting, read_within, settings};
use super::ssd::PathList;
use super::value::SettingValue;

settings! {
    |host, mount|

    /// Shared memory that holds the objects.
    memory: MemorySettings {
        /// Bytes of shared memory that the cache may hold, file contents and their page rounding included. The cache
        /// evicts to stay below. Raise it to cache more; the memory is taken as it is used, or ahead of that
        /// (`memory.prefault_max`), never swapped, and not available to other programs.
        capacity: ByteCount {
            default: default_capacity(host.memory_usable),
                "1/8 of the memory of the machine, or of the limit of its control group if that is less";
            range: Range::at_least(CAPACITY_MIN); alias: "capacity"; example: "64GiB";
        }

        /// Objects below this size are packed many to a segment and served by the daemon through the page cache of
        /// the kernel; others have a segment each and are served by passthrough. `0` packs nothing. Raise it when
        /// millions of small files waste memory by rounding up to whole pages.
        packed_max: ByteCount {
            default: ByteCount::kib(32);
            range: Range::between(ByteCount::ZERO, ByteCount::mib(1)); alias: "packed_max"; example: "64KiB";
        }

        /// Free bytes that are kept ahead of writers whose final size is not known yet. Raise it when many fast writers
        /// start at once and wait for room; lower it to use more of a small cache. At most half of `memory.capacity`.
        write_headroom: ByteCount {
            default: default_headroom(capacity), "`memory.capacity` / 32, within `16MiB` and `1GiB`";
            range: Range::at_least(ByteCount::mib(1)); example: "256MiB";
        }

        /// Whether segments ask the kernel for huge pages, which make mapping and pinning 30 to 50 times
        /// cheaper. `never` is for hosts on which huge pages are scarce and needed elsewhere.
        huge_pages: HugePages {
            default: HugePages::Auto;
            range: Range::any(); example: "never";
        }

        /// Free memory that is touched before objects need it, and held until they take it, where the first touch is slow: a
        /// virtual machine gets pages from its host when it touches them, some milliseconds for each MiB. Elsewhere nothing is,
        /// nor while the machine has little memory left, and little while its processors have work. It is within
        /// `memory.capacity`; `0` never touches any.
        prefault_max: ByteCount {
            default: default_prefault(capacity), "`memory.capacity`, at most `4GiB`";
            range: Range::any(); example: "16GiB";
        }
    }

    /// How the mount talks to the kernel.
    fuse: FuseSettings {
        /// Whether the kernel serves large objects without asking the daemon (Linux 6.9, CAP_SYS_ADMIN of the host).
        /// `auto` uses it where it can and warns where it cannot, `always` refuses to start without it. `never` asks the daemon
        /// for each read and write; `cached` goes through the page cache, as `auto` does before Linux 6.6 for shared mappings.
        passthrough: Passthrough {
            default: Passthrough::Auto;
            range: Range::any(); alias: "passthrough"; example: "always";
        }

        /// Threads that answer the kernel. Lower it to leave CPUs to the inference engine.
        threads: usize {
            default: host.cpus.clamp(1, 64), "number of CPUs of the daemon, at most `64`";
            range: Range::between(1, 64); alias: "threads"; example: "8";
        }

        /// Whether other users than the one who runs the daemon may use the mount. Without root it also needs
        /// `user_allow_other` in `/etc/fuse.conf`.
        allow_other: bool {
            default: host.is_root(), "`true` as root, else `false`";
            range: Range::any(); alias: "allow_other"; example: "true";
        }

        /// Whether programs in the mount may be executed; `-o noexec` is the same as `false`, for a mount of several users.
        exec: bool {
            default: true;
            range: Range::any(); example: "false";
        }

        /// What stands for the device where mounts are listed. `mount.tidefs` sets it to what a line of fstab names, by which
        /// `mount -a` knows that the line is mounted already.
        source: Word { default: Word("tidefs".to_owned()); range: Range::any(); example: "kv"; }

        /// Seconds for which the kernel may answer from a name or attribute it has seen. The daemon withdraws
        /// what it changes itself, so this bounds the memory of idle entries, not the age of answers.
        entry_ttl_s: u64 {
            default: 3600;
            range: Range::between(0, TTL_S_MAX); example: "600";
        }

        /// Seconds for which the kernel may remember that a name does not exist. A name that appears is withdrawn
        /// at once. `0` sends each probe to the daemon, which costs microseconds instead of half of one.
        negative_ttl_s: u64 {
            default: 3600;
            range: Range::between(0, TTL_S_MAX); example: "60";
        }

        /// Asynchronous requests that the kernel may have waiting at once. Raise it for clients that keep many
        /// io_uring or libaio requests in flight without passthrough.
        max_background: u16 {
            default: 256;
            range: Range::between(1, u16::MAX); example: "1024";
        }

        /// Inodes of this mount that the kernel may hold, at about 1.1 KiB of kernel memory each. Above it the
        /// daemon asks the kernel to drop idle ones, which Linux does from 6.18 on; before, it drops them by itself when
        /// memory is short. Lower it on hosts with little memory beside the cache.
        cached_inodes_max: u64 {
            default: 4_000_000;
            range: Range::between(1024, 1_000_000_000); example: "1000000";
        }
    }

    /// What names mean.
    names: NamesSettings {
        /// Shell patterns (`*`, `?`, `[a-z]`) of temporary names: files that their writer will rename. They are
        /// matched against the last part of the path. Add the pattern of a client that the defaults do not know.
        /// A list: an array in a file, elsewhere one text with `:` between the patterns.
        temporary: NamePatterns {
            default: NamePatterns::temporary();
            range: Range::any(); example: "*.tmp:*.partial";
        }
    }

    /// Which objects leave when the cache is full.
    eviction: EvictionSettings {
        /// The order in which objects leave. `leaf_bonus` evicts the end of a chain before its start and keeps
        /// what was used often; `lru` and `s3fifo` are for workloads without chains. The attribute
        /// `user.tidefs.policy` sets it for one namespace.
        policy: EvictionPolicy {
            default: EvictionPolicy::LeafBonus;
            range: Range::any(); alias: "policy"; example: "lru";
        }

        /// How many times the number of cached objects the cache remembers by key after they left, so that one
        /// that returns counts as used before. About 24 bytes each. `0` remembers none.
        ghost_factor: u32 {
            default: 8;
            range: Range::between(0, 64); example: "4";
        }

        /// How much one use extends the life of an object under `leaf_bonus`, as a part of the cache's turnover.
        /// `0` is plain recency. Raise it when the same prompts return all day.
        bonus: f64 {
            default: 1.0;
            range: Range::between(0.0, 8.0); example: "0.5";
        }

        /// Uses beyond this number extend the life of an object no further, so that what was popular once can leave.
        bonus_hits_max: u32 {
            default: 2;
            range: Range::between(1, 255); example: "4";
        }
    }

    /// Local disks that keep what leaves memory.
    ssd: SsdSettings {
        /// Directories on local disks, or block devices, that keep objects evicted from memory, striped over all of them;
        /// with none there is no tier until `tidefs tier add`. A directory must exist: an unmounted disk is not written
        /// to. A list: an array in a file, elsewhere one text with `:` between the paths.
        dirs: PathList {
            default: PathList::default();
            range: Range::any(); alias: "ssd"; example: "/mnt/nvme0/tidefs:/mnt/nvme1/tidefs";
        }

        /// Bytes of disk that the tier may hold, on all of `ssd.dirs` together, in equal parts; with none, on each disk
        /// added. `0` takes three quarters of what is free on each, what it holds included. Lower it when others need room.
        capacity: ByteCount {
            default: ByteCount::ZERO;
            range: Range::any(); alias: "ssd_capacity"; example: "2TiB";
        }

        /// Bytes a second that may be written, so that a disk lasts; what is evicted beyond is dropped. `0` is no limit.
        write_bytes_per_second: ByteCount {
            default: ByteCount::ZERO; range: Range::any(); example: "500MiB";
        }

        /// Bytes a day that may be written, on all disks together, what is written again included; `0` is without limit.
        /// Nothing is held back while the day stays within it at the present rate; then what is left is spread over
        /// what is left of the day. Days are counted from the daemon's first start; a restart goes on with the day.
        write_bytes_per_day: ByteCount { default: ByteCount::ZERO; range: Range::any(); example: "10TiB"; }

        /// Milliseconds that an evicted object may wait for its disk; what would wait longer is dropped. Raise it when
        /// evictions come in bursts.
        queue_ms: u64 { default: 500; range: Range::between(1, 60_000); example: "2000"; }

        /// Bytes of memory that objects may hold while they wait for their disk: each counts in whole blocks of 4 KiB, and
        /// one more.
        queue_max: ByteCount {
            default: default_part(memory.capacity, ByteCount::mib(8), ByteCount::gib(1)),
                "`memory.capacity` / 16, within `8MiB` and `1GiB`";
            range: Range::at_least(ByteCount::mib(1)); example: "256MiB";
        }

        /// Free bytes of memory that are kept, beyond `memory.write_headroom`, by sending what is coldest to the disks
        /// before room is needed. Raise it when writers come in bursts faster than the disks.
        free_ahead: ByteCount {
            default: default_part(memory.capacity, ByteCount::mib(2), ByteCount::gib(4)),
                "`memory.capacity` / 16, within `2MiB` and `4GiB`";
            range: Range::any(); example: "1GiB";
        }

        /// Bytes of a zone, the unit in which old objects are dropped; less is used on small disks. An object larger
        /// than a zone is not kept. Only for disks that are new to the tier.
        zone: ByteCount {
            default: ByteCount::mib(256);
            range: Range::between(ByteCount::mib(1), ByteCount::gib(4)); example: "1GiB";
        }

        /// Milliseconds that one request of a disk may take. An open whose load takes longer is a miss.
        deadline_ms: u64 { default: 5000; range: Range::between(10, 600_000); example: "1000"; }

        /// Objects of a chain that are brought back while the one before them is read; `0` waits for each open. Chains
        /// are learnt from the order in which a client uses keys. What stands nowhere else leaves neither memory nor a
        /// quota for them.
        prefetch_objects: usize {
            default: 8; range: Range::between(0, 256);
            example: "32";
        }

        /// Most bytes in memory, or on their way there, that were brought so, by PREFETCH, or after a LOOKUP, and that nobody
        /// used yet.
        prefetch_max: ByteCount {
            default: default_part(memory.capacity, ByteCount::mib(8), ByteCount::gib(1)),
                "`memory.capacity` / 16, within `8MiB` and `1GiB`";
            range: Range::any();
            example: "256MiB";
        }

        /// Objects that are brought back at once.
        loads: usize { default: 16; range: Range::between(1, 256); example: "32"; }

        /// Whether io_uring is used where the kernel allows it. `false` is for tests and comparisons.
        io_uring: bool { default: true; range: Range::any(); example: "false"; }
    }

    /// Files that are rewritten in place for hours: they live on disk and are never shared or sealed.
    scratch: ScratchSettings {
        /// A file becomes scratch when it is given this size before it is written, or written up to it where the daemon serves it.
        /// Raise it when objects of that size are to be cached; lower it when a client's slot files are smaller.
        min: ByteCount {
            default: ByteCount::gib(1);
            range: Range::at_least(SCRATCH_MIN_MIN); alias: "scratch_min"; example: "4GiB";
        }

        /// Directories for scratch files, one for each mount; a new file goes to where most is free. Point it at fast
        /// disks. Where a disk was mounted at an earlier start and none is, no file is made. A list: an array in a
        /// file, elsewhere one text with `:` between the paths.
        dir: PathList {
            default: default_scratch_dirs(host, &mount.instance, &ssd.dirs),
                "`scratch-<instance>` in each directory of `ssd.dirs`; without one `/var/lib/tidefs/<instance>/scratch` as root, else `$XDG_STATE_HOME/tidefs/<instance>/scratch`";
            range: Range::any(); example: "/mnt/nvme/tidefs";
        }

        /// Bytes of disk that scratch files may hold together. Lower it when other programs need the disk.
        capacity: ByteCount {
            default: default_scratch_capacity(host, mount, &dir, &ssd.dirs),
                "3/4 of the free space of that disk at start; beside the SSD tier 1/8 of that of each disk";
            range: Range::any(); example: "500GiB";
        }
    }

    /// Other hosts that form one filesystem with this one.
    cluster: ClusterSettings {
        /// Where etcd answers, which the members of a cluster find each other by. Empty, see `cluster.coordinator`.
        etcd: Endpoints {
            default: Endpoints::default();
            range: Range::any(); alias: "etcd"; example: "http://10.0.0.1:2379 http://10.0.0.2:2379";
        }

        /// Where members find each other without etcd: an address of one host, the same on all. The daemon that can listen there
        /// coordinates; while it is away nobody joins and no policy changes. Empty, and without etcd, the host is alone.
        coordinator: OptionalAddress {
            default: OptionalAddress::default(); range: Range::any(); alias: "coordinator"; example: "10.0.0.1:7401";
        }

        /// Name of the cluster: several may share one etcd.
        name: Word {
            default: Word("tidefs".to_owned()); range: Range::any(); alias: "cluster"; example: "kv-prod";
        }

        /// What other members and operators call this host.
        host: Word { default: default_host_name(), "the host name"; range: Range::any(); example: "gpu-17"; }

        /// Number of this member, at each of its starts and no other member's. `0` takes a hash of the machine's id, the
        /// host's name and the mount point. Set it where machines are cloned.
        member: u64 { default: 0; range: Range::any(); example: "17"; }

        /// Where other members reach this one: addresses that it listens on. Port `0` takes a free one; others are told.
        listen: Addresses {
            default: Addresses::default(), "every address of the host, on a free port";
            range: Range::any(); alias: "listen"; example: "10.0.0.17:7400";
        }

        /// Addresses that other members are told instead, where they do not reach those that are listened on.
        advertise: Addresses {
            default: Addresses::default(); range: Range::any(); example: "192.0.2.17:7400";
        }

        /// File with the cluster's secret, 16 bytes or more. Who does not prove that it knows it learns nothing. Without
        /// one, whoever reaches the port and knows the cluster's name is a member.
        key_file: OptionalFile {
            default: OptionalFile::default(); range: Range::any(); alias: "cluster_key"; example: "/etc/tidefs/cluster.key";
        }

        /// File with the certificate of who signed those of all members, as PEM: connections between them are encrypted.
        tls_authority: OptionalFile {
            default: OptionalFile::default(); range: Range::any(); example: "/etc/tidefs/cluster-ca.pem";
        }

        /// File with this host's certificate and its key, as PEM, for connections between members.
        tls_identity: OptionalFile {
            default: OptionalFile::default(); range: Range::any(); example: "/etc/tidefs/host.pem";
        }

        /// Name that the certificate of every member holds.
        tls_name: Word { default: Word("tidefs".to_owned()); range: Range::any(); example: "kv.example.org"; }

        /// Where this host stands: copies go to distinct `topology.rack`s, and come from hosts that share most `topology.*`.
        labels: Labels { default: Labels::default(); range: Range::any(); example: "topology.rack=r1"; }

        /// What moves bytes between hosts. `auto` uses the best that both have.
        transports: Transports { default: Transports::default(); range: Range::any(); example: "tcp"; }

        /// Whether tcp sends large payload from where it lies (`MSG_ZEROCOPY`), without a copy in the kernel. With `auto` each
        /// connection tries it once, and leaves it where the kernel copies all the same, as on the loopback. `on` keeps it
        /// there too. Encrypted connections copy always.
        zerocopy: ZeroCopy { default: ZeroCopy::Auto; range: Range::any(); example: "off"; }

        /// Bytes a second that this host reads from other hosts at most, by each of its transports. What they read from here
        /// they limit themselves. `0` is no limit. Lower it where the network is shared.
        transfer_rate: ByteCount { default: ByteCount::ZERO; range: Range::any(); example: "2GiB"; }

        /// Whether both ends compare checksums after each transfer, beside the one that each object has: for a fabric that is
        /// not trusted. It reads all bytes twice more. The same on all members, or they read nothing from each other.
        transfer_check: bool { default: false; range: Range::any(); example: "true"; }

        /// Longest piece in which NICs of libfabric register a segment, of at most 16 pieces. `0` is no limit.
        registration_max: ByteCount { default: ByteCount::ZERO; range: Range::any(); example: "64GiB"; }

        /// Pages that each NIC of libfabric translates at a time, for NICs that get slow or refuse beyond so many. A segment
        /// that has no place at each NIC is shared out among them, and goes by another transport when all are full. `0` is
        /// no limit.
        registration_pages: u64 { default: 0; range: Range::any(); example: "2097152"; }

        /// Milliseconds that a look-up, a rename, a close or an unlink waits for other members.
        patience_ms: u64 { default: 2000; range: Range::between(10, 600_000); example: "500"; }

        /// Milliseconds that an open waits for the bytes of an object of another member; then it is a miss. Larger ones than
        /// `cluster.fetch_whole_max` may take so long for each part of that size.
        fetch_ms: u64 { default: 10_000; range: Range::between(10, 600_000); example: "2000"; }

        /// Objects of other members up to this size are whole here before an open returns, and cannot fail afterwards. Larger
        /// ones are read while they arrive, through the daemon; when no member gives the rest, such a read says EIO.
        fetch_whole_max: ByteCount {
            default: ByteCount::mib(64);
            range: Range::between(ByteCount::mib(1), ByteCount::gib(1024)); example: "256MiB";
        }

        /// Objects that are fetched from other members at once. One member keeps three quarters of them at most.
        fetches: usize { default: 32; range: Range::between(1, 1024); example: "64"; }

        /// Opens after which a copy that was fetched from another member leaves after those that were opened less. All of
        /// them leave before what no other member has. `1` makes no difference between them.
        soft_after: u64 { default: 2; range: Range::between(1, 65_535); example: "3"; }

        /// Bytes a second of copies that this host has made anew when another member is lost (`user.tidefs.replicas`).
        repair_rate: ByteCount {
            default: ByteCount::mib(256);
            range: Range::between(ByteCount::kib(64), ByteCount::gib(1024)); example: "64MiB";
        }

        /// Bytes a second that others may have this host keep. A tenth just after its start, all of it after a minute.
        ingest_rate: ByteCount {
            default: ByteCount::gib(1);
            range: Range::between(ByteCount::kib(64), ByteCount::gib(1024)); example: "256MiB";
        }

        /// Seconds that a member which is not heard of keeps its place. Its objects are the last to be asked for
        /// meanwhile, and gone afterwards.
        grace_s: u64 { default: 60; range: Range::between(1, 86_400); example: "300"; }

        /// File with `NAME:PASSWORD` of the user that etcd knows this host as.
        etcd_user_file: OptionalFile {
            default: OptionalFile::default(); range: Range::any(); example: "/etc/tidefs/etcd.user";
        }

        /// File with the certificate of who signed etcd's, as PEM, for `https` endpoints.
        etcd_authority: OptionalFile {
            default: OptionalFile::default(); range: Range::any(); example: "/etc/tidefs/etcd-ca.pem";
        }

        /// File with this host's certificate and its key, as PEM, where etcd asks for one.
        etcd_identity: OptionalFile {
            default: OptionalFile::default(); range: Range::any(); example: "/etc/tidefs/host.pem";
        }
    }

    /// The daemon itself.
    runtime: RuntimeSettings {
        /// Directory for the state of mounts: lock, admin socket and the memory that outlives the daemon, each in
        /// a subdirectory `<instance>`. Tools must be told when it is not the default.
        state_dir: PathBuf {
            default: default_state_dir(host),
                "`/run/tidefs` as root, else `$XDG_RUNTIME_DIR/tidefs`";
            range: Range::any(); alias: "state_dir"; example: "/run/tidefs";
        }

        /// What a clean stop does with the cached objects. `keep` leaves them in memory, where the next start
        /// finds them; `discard` gives the memory back.
        on_stop: OnStop { default: OnStop::Keep; range: Range::any(); alias: "on_stop"; example: "discard"; }

        /// Milliseconds that a request may wait for room before it is told that there is none, and rename and fsync
        /// for a disk where `user.tidefs.durability` asks for it. Raise it when writers would rather wait than skip a
        /// store.
        deadline_ms: u64 { default: 5000; range: Range::between(10, 600_000); example: "1000"; }
    }

    /// The top directory of the mount.
    root: RootSettings {
        /// Its permissions, in octal. `1777` lets each user make namespaces of their own; `0755` leaves that to the owner.
        mode: FileMode {
            default: FileMode(if host.is_root() { 0o1777 } else { 0o700 }), "`1777` as root, else `0700`";
            range: Range::between(FileMode(0), FileMode::ALL_BITS); example: "0755";
        }

        /// Its owner, a numeric user id. Set it to the user of the inference engine when only that one may make namespaces.
        uid: u32 {
            default: host.uid, "user id of the daemon"; range: Range::between(0, ID_MAX); example: "1000";
        }

        /// Its group, a numeric group id.
        gid: u32 {
            default: host.gid, "group id of the daemon"; range: Range::between(0, ID_MAX); example: "1000";
        }
    }

    /// What the daemon writes to its standard error.
    log: LogSettings {
        /// What is logged: `error`, `warn`, `info`, `debug` or `trace`, or a filter per part of the program such
        /// as `info,tidefs::fuse=debug`.
        level: LogFilter { default: LogFilter::info(); range: Range::any(); alias: "log"; example: "debug"; }

        /// `text` for people, `json` for collectors.
        format: LogFormat { default: LogFormat::Text; range: Range::any(); example: "json"; }
    }
}
