//! The command line of `tidefs`, with the help that people read.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use tidefs_control_api::instance::state_dir_of_environment;
use tidefs_engine::types::ByteCount;

use crate::bench::BenchArgs;
use crate::commands::disks::TierCommand;

pub(crate) use self::objects::{EvictArgs, ListArgs, PathArgs, PinArgs, VerifiedTier, VerifyArgs};
pub(crate) use self::spelling::Spelling;

/// Longest time to wait for a mount or its end: a year, which every clock can add.
const TIMEOUT_MAX_S: u64 = 31_536_000;

const EXIT_CODES: &str = "Exit codes: 0 it worked; 1 it failed; 2 wrong command line; 3 no such daemon or mount, or \
                          with `bench --check` a target that was missed; 4 no such object or \
                          directory in the cache.";

/// Looks into and steers the tidefs daemons of this host.
#[derive(Debug, Parser)]
#[command(name = "tidefs", version, propagate_version = true, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what a daemon holds, how it serves it, and what an operator should know
    #[command(after_help = "Examples:\n  tidefs status\n  tidefs status /mnt/kv --json | jq .used")]
    Status(StatusArgs),
    /// Look at the tiers that hold the objects
    #[command(subcommand)]
    Tier(TierCommand),
    /// Show the members of the cluster, how they are reached and what they serve
    #[command(after_help = "Examples:\n  tidefs members\n  tidefs members --json | jq -r '.members[].name'")]
    Members(StatusArgs),
    /// Look at the part of the catalog that a host serves
    #[command(subcommand)]
    Catalog(CatalogCommand),
    /// Show which members hold a key
    #[command(after_help = "Example:\n  tidefs where /mnt/kv/llama/0a1b.bin")]
    Where(PathArgs),
    /// Have a member leave the cluster with nothing lost: what only it holds is copied to others, the hottest first
    #[command(
        after_help = "Examples:\n  tidefs drain gpu-17\n  tidefs drain gpu-17 --deadline 10m\n  tidefs drain gpu-17 --stop\n\n\
                      It goes on when this command is interrupted; called again, it shows how far it is. When it is done, \
                      stop the daemon."
    )]
    Drain(DrainArgs),
    /// Try a cluster out on this machine
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// List objects, the ones that are evicted last first
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  tidefs list\n  tidefs list /mnt/kv/llama --sort=size --limit 20\n  \
                      tidefs list --all --json | jq -r '.entries[].path'"
    )]
    List(ListArgs),
    /// Show all that is known of one object
    #[command(after_help = "Example:\n  tidefs stat /mnt/kv/llama/0a1b.bin")]
    Stat(PathArgs),
    /// Tell what became of a key: never written, evicted when and for whom, expired, and so on
    #[command(after_help = "Example:\n  tidefs why /mnt/kv/llama/0a1b.bin")]
    Why(PathArgs),
    /// Evict an object, all objects below a directory, all that fit a pattern, or the coldest ones
    #[command(
        after_help = "Examples:\n  tidefs evict /mnt/kv/llama/0a1b.bin\n  tidefs evict /mnt/kv/old-model --force\n  \
                      tidefs evict --pattern 'llama/**/*.bin'\n  tidefs evict --bytes 4GiB\n\n\
                      It exits with 1 if the object that PATH names is kept. What is kept below a directory or of a pattern, \
                      and bytes that were not found, are told and no failure."
    )]
    Evict(EvictArgs),
    /// Order not to evict an object or what is below a directory
    #[command(after_help = "Examples:\n  tidefs pin /mnt/kv/system-prompts --hard\n  \
                      tidefs pin /mnt/kv/llama/0a1b.bin --soft --ttl 10m\n  tidefs pin /mnt/kv/system-prompts --none")]
    Pin(PinArgs),
    /// Read objects and compare them with their checksums; corrupt ones are dropped from the cache
    #[command(
        after_help = "Examples:\n  tidefs verify\n  tidefs verify /mnt/kv/llama\n  tidefs verify --tier ssd --rate 200MiB\n\n\
                      It exits with 1 if an object is corrupt, or could not be read."
    )]
    Verify(VerifyArgs),
    /// Look at the configuration of a daemon
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Mount a cache: start a daemon in the background and wait until its mount answers
    #[command(
        after_help = "Examples:\n  tidefs mount /mnt/kv --capacity 64GiB\n  tidefs mount /mnt/kv -o capacity=8GiB,on_stop=discard\n\n\
                      The same from fstab:\n  tidefs /mnt/kv tidefs capacity=64GiB 0 0\n\n\
                      Ctrl-C ends the waiting alone: the daemon goes on, and `tidefs umount DIR` ends it."
    )]
    Mount(MountArgs),
    /// Unmount: ask the daemon to stop and wait for it, or take away the mount of a dead one
    #[command(
        after_help = "Examples:\n  tidefs umount /mnt/kv            # objects stay in memory for the next mount\n  \
                            tidefs umount /mnt/kv --discard  # and give the memory back"
    )]
    Umount(UmountArgs),
    /// Show the NUMA nodes and NICs of this host, and how near they are to each other
    #[command(
        after_help = "Examples:\n  tidefs topology\n  tidefs topology --json | jq '.nics[] | {name, numa}'"
    )]
    Topology(TopologyArgs),
    /// Print the completions of a shell
    #[command(after_help = "Example:\n  tidefs completions bash > /etc/bash_completion.d/tidefs")]
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory
    #[command(after_help = "Example:\n  tidefs manpages /usr/local/share/man/man1")]
    Manpages(ManpagesArgs),
    /// Measure a mount against the machine it runs on
    Bench(BenchArgs),
}

impl Command {
    /// Whether the result is for a program.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Status(args) => args.of.select.common.json,
            Self::Tier(command) => command.wants_json(),
            Self::Members(args) => args.of.select.common.json,
            Self::Catalog(CatalogCommand::Stats(args)) => args.of.select.common.json,
            Self::Where(args) => args.select.common.json,
            Self::Drain(args) => args.select.common.json,
            Self::Cluster(ClusterCommand::Dev(args)) => args.json,
            Self::List(args) => args.select.common.json,
            Self::Stat(args) | Self::Why(args) => args.select.common.json,
            Self::Evict(args) => args.select.common.json,
            Self::Pin(args) => args.select.common.json,
            Self::Verify(args) => args.select.common.json,
            Self::Config(ConfigCommand::Show(args)) => args.of.select.common.json,
            Self::Mount(args) => args.common.json,
            Self::Umount(args) => args.common.json,
            Self::Topology(args) => args.json,
            Self::Completions(args) => args.json,
            Self::Manpages(args) => args.json,
            Self::Bench(args) => args.wants_json(),
        }
    }
}

/// What each command that meets a daemon takes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Common {
    /// Print one JSON document instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// Where daemons keep their runtime state; default: what TIDEFS_RUNTIME_STATE_DIR names, else /run/tidefs for root and
    /// $XDG_RUNTIME_DIR/tidefs for others
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    state_dir: Option<PathBuf>,
}

impl Common {
    /// The state directory that is named, by the option or else by the environment.
    pub(crate) fn state_dir(&self) -> Option<PathBuf> {
        self.state_dir.clone().or_else(state_dir_of_environment)
    }
}

/// Which daemon is meant.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Select {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The mount whose daemon is meant; default: the one that PATH is in, else the only one that runs
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) mount: Option<PathBuf>,
}

/// Which daemon is meant, of a command about a daemon as a whole: its mount may be named without an option, too.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Daemon {
    /// The mount whose daemon is meant, as with --mount
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "mount")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    select: Select,
}

impl Daemon {
    /// The same as `--mount` says it.
    pub(crate) fn select(&self) -> Select {
        let mount = self.dir.clone().or_else(|| self.select.mount.clone());
        Select { mount, ..self.select.clone() }
    }
}

/// What can be asked of the catalog.
#[derive(Debug, Subcommand)]
pub(crate) enum CatalogCommand {
    /// Show how much a host serves of the catalog, and what it remembers
    #[command(after_help = "Examples:\n  tidefs catalog stats\n  tidefs catalog stats --json | jq .entries")]
    Stats(StatusArgs),
}

/// What can be done with a cluster on one machine.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Start etcd and several daemons, each with a mount of its own, and take them down on Ctrl-C
    #[command(
        after_help = "Examples:\n  tidefs cluster dev\n  tidefs cluster dev --hosts 5 --dir /mnt/try --capacity 1GiB\n  \
                      tidefs cluster dev --without-etcd\n\n\
                      Then, in another shell:\n  mkdir /tmp/tidefs-cluster/host-1/kv\n  \
                      cp file /tmp/tidefs-cluster/host-1/kv/key\n  cat /tmp/tidefs-cluster/host-2/kv/key"
    )]
    Dev(ClusterDevArgs),
}

/// A cluster on one machine.
#[derive(Debug, Args)]
pub(crate) struct ClusterDevArgs {
    /// Daemons, each as a host of its own
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) hosts: u16,
    /// Where the mounts are: DIR/host-1 and so on. Made when it is missing; what is in it stays
    #[arg(long, value_name = "DIR", default_value = "/tmp/tidefs-cluster", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Most memory of each daemon
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub(crate) capacity: ByteCount,
    /// The etcd program; default: the one that the shell finds
    #[arg(long, value_name = "FILE", default_value = "etcd", value_hint = ValueHint::FilePath)]
    pub(crate) etcd: PathBuf,
    /// Have the first host coordinate, as `-o coordinator=HOST:PORT` does, instead of an etcd
    #[arg(long, conflicts_with = "etcd")]
    pub(crate) without_etcd: bool,
    /// A further option for each daemon, as its `-o` takes them. Files in /etc/tidefs and variables do not count for it
    #[arg(short = 'o', value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Print one JSON document with the mounts when they answer, instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) of: Daemon,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The member, by its name or its identity; `tidefs members` shows both
    pub(crate) host: String,
    /// Stay a member if it takes longer than this, for example 10m; what was copied until then need not be copied again
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "stop")]
    pub(crate) deadline: Option<Duration>,
    /// Stop a drain: the member stays
    #[arg(long)]
    pub(crate) stop: bool,
    #[command(flatten)]
    pub(crate) select: Select,
}

/// Commands about the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show the settings that a daemon runs with and where each came from
    #[command(after_help = "Examples:\n  tidefs config show              # what somebody set\n  \
                            tidefs config show --effective  # all settings, defaults too")]
    Show(ConfigShowArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ConfigShowArgs {
    /// Show the settings that nobody set, too
    #[arg(long)]
    pub(crate) effective: bool,
    #[command(flatten)]
    pub(crate) of: Daemon,
}

#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// Directory to mount on
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Settings and mount options, as in fstab
    #[arg(short = 'o', value_name = "KEY=VALUE,...")]
    pub(crate) options: Vec<String>,
    /// Memory the cache may hold, for example 64GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<ByteCount>,
    /// Configuration file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Seconds to wait for the mount, or for a sign that its daemon gets on
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=TIMEOUT_MAX_S))]
    pub(crate) timeout: u64,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// Mount point
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Drop the objects too and give their memory back, also when no daemon runs any more
    #[arg(long)]
    pub(crate) discard: bool,
    /// Seconds to wait for the daemon's end
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=TIMEOUT_MAX_S))]
    pub(crate) timeout: u64,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Debug, Args)]
pub(crate) struct TopologyArgs {
    /// Where sysfs is, for example a copy of another host's
    #[arg(long, value_name = "DIR", default_value = "/sys", value_hint = ValueHint::DirPath)]
    pub(crate) sys: PathBuf,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
    /// Print one JSON document instead of the script itself
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ManpagesArgs {
    /// Directory to write to; it is made if need be
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

mod objects;
mod spelling;

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;
