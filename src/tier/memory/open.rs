//! Opens the tier: adopts the tmpfs of an earlier life, mounts a new one, or makes do with a directory.
//!
//! Every way that gives less than was asked for (no mount of its own, an option refused, base pages, a shrink that
//! must wait) is said in the log and stands in the [`MemoryReport`].

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use tidefs_engine::types::{ByteCount, PAGE, SegmentId};
use tracing::{info, warn};

use super::attribute::Attribute;
use super::clock::NamesClock;
use super::packed::PackedPool;
use super::prefault::{CHUNK, Prefault};
use super::space::Space;
use super::{MemoryError, MemoryTier, mount, probe, recover};

/// Smallest capacity: a few grains of packed objects and one large one.
const CAPACITY_MIN: ByteCount = ByteCount::mib(1);

/// Name of the file that extended attributes are tried on.
const ATTRIBUTE_PROBE: &str = "attribute-probe";

/// Whether segments ask for huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Huge where a file is long enough (`huge=within_size`), base pages elsewhere.
    #[default]
    Auto,
    /// Base pages only.
    Never,
}

impl HugePages {
    /// The tmpfs option, if it takes one.
    pub(super) fn option(self) -> Option<&'static str> {
        match self {
            Self::Auto => Some("huge=within_size"),
            Self::Never => None,
        }
    }
}

/// Where the tier is and how large.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Directory to mount on; made if it is missing.
    pub directory: PathBuf,
    /// Bytes that may be used, at least 1 MiB; rounded down to pages.
    pub capacity: ByteCount,
    /// Whether to ask for huge pages.
    pub huge_pages: HugePages,
    /// Most bytes of free memory to touch ahead, beside those in use. Without the right to mount, or with none, nothing is.
    pub prefault_max: ByteCount,
}

/// What the tier really got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// The directory.
    pub directory: PathBuf,
    /// Whether it is a tmpfs of its own. If not, another user of that tmpfs can take its space.
    pub private_mount: bool,
    /// Whether the tmpfs was there already, as after a restart.
    pub adopted: bool,
    /// Page size that a segment of at least 2 MiB gets; `None` when it could not be probed, as in a full tmpfs.
    pub page_size: Option<ByteCount>,
    /// Why it could not, if so.
    pub page_size_unknown: Option<String>,
    /// Mount options that the kernel does not know.
    pub refused_options: Vec<String>,
    /// Whether the tmpfs is still larger than the capacity; see [`MemoryTier::retry_resize`].
    pub shrink_pending: bool,
    /// Extended attribute that holds the records.
    pub record_attribute: String,
}

/// How a directory became the tier's.
#[derive(Debug)]
struct Placement {
    space: Space,
    private_mount: bool,
    adopted: bool,
    refused_options: Vec<String>,
}

impl MemoryTier {
    /// Opens the tier in `config.directory`: adopts its tmpfs if that is mounted there, else mounts it.
    ///
    /// An adopted tmpfs gets the configured capacity. If more is in use, it keeps its size for now: `usage` tells
    /// the configured capacity, reservations are refused, and [`Self::retry_resize`] ends that state.
    ///
    /// # Errors
    /// [`MemoryError::CapacityTooSmall`], [`MemoryError::Mount`], [`MemoryError::NotOnTmpfs`],
    /// [`MemoryError::NoAttributes`], [`MemoryError::Io`].
    pub fn open(config: &MemoryConfig) -> Result<Self, MemoryError> {
        Self::open_with(config, mount::mount_private)
    }

    /// Opens the tier as a process without the right to mount would.
    #[cfg(test)]
    pub(crate) fn open_unprivileged(config: &MemoryConfig) -> Result<Self, MemoryError> {
        Self::open_with(config, |_, _, _| Err(io::ErrorKind::PermissionDenied.into()))
    }

    fn open_with(
        config: &MemoryConfig,
        mount: impl FnOnce(&Path, ByteCount, HugePages) -> io::Result<Vec<String>>,
    ) -> Result<Self, MemoryError> {
        let capacity = ByteCount(config.capacity.get() / PAGE.get() * PAGE.get());
        if capacity < CAPACITY_MIN {
            return Err(MemoryError::CapacityTooSmall { capacity: config.capacity, minimum: CAPACITY_MIN });
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&config.directory)
            .map_err(|error| MemoryError::io("make", &config.directory, error))?;
        let directory = config
            .directory
            .canonicalize()
            .map_err(|error| MemoryError::io("resolve", &config.directory, error))?;
        let placement = Self::place(&directory, capacity, config.huge_pages, mount)?;
        let space = Arc::new(Self::with_prefault(placement.space, config));
        let listing = recover::list(&space)?;
        for entry in listing.entries() {
            space.count_here(&entry.to_string())?;
        }
        let attribute = Self::probe_attribute(&space)?;
        let (page_size, page_size_unknown) = match config.huge_pages {
            HugePages::Never => (Some(PAGE), None),
            HugePages::Auto => match probe::page_size(&space) {
                Ok(size) => (Some(size), None),
                Err(error) => (None, Some(error.to_string())),
            },
        };
        let report = MemoryReport {
            directory,
            private_mount: placement.private_mount,
            adopted: placement.adopted,
            page_size,
            page_size_unknown,
            refused_options: placement.refused_options,
            shrink_pending: space.shrink_pending(),
            record_attribute: attribute.name(),
        };
        info!(
            directory = %report.directory.display(), %capacity, private_mount = report.private_mount,
            adopted = report.adopted, page_size = report.page_size.map(tracing::field::display), "memory tier opened"
        );
        let first_segment = listing.next_segment().max(segment_seed());
        let clock = Arc::new(NamesClock::start(&space, SegmentId(first_segment))?);
        Ok(Self {
            packed: PackedPool::new(Arc::clone(&space), listing.next_packed()),
            next_segment: AtomicU64::new(first_segment.saturating_add(1)),
            clock,
            space,
            attribute,
            report,
        })
    }

    fn with_prefault(space: Space, config: &MemoryConfig) -> Space {
        if config.prefault_max < CHUNK {
            return space;
        }
        match Prefault::open(config.prefault_max, config.huge_pages) {
            Ok(prefault) => space.with_prefault(prefault),
            Err(error) => {
                info!(%error, "no memory is touched ahead of its use");
                space
            }
        }
    }

    fn place(
        directory: &Path,
        capacity: ByteCount,
        huge_pages: HugePages,
        mount: impl FnOnce(&Path, ByteCount, HugePages) -> io::Result<Vec<String>>,
    ) -> Result<Placement, MemoryError> {
        let own = mount::options_of_own(directory)
            .map_err(|error| MemoryError::io("read the mount table for", directory, error))?;
        if let Some(options) = own {
            let space = Space::private(directory, capacity)?;
            resize(&space, &options)?;
            if let Err(error) = mount::set_huge_pages(directory, huge_pages, &options) {
                warn!(error = %error, "the tmpfs keeps its policy for huge pages");
            }
            return Ok(Placement { space, private_mount: true, adopted: true, refused_options: Vec::new() });
        }
        match mount(directory, Space::size_for(capacity), huge_pages) {
            Ok(refused_options) => Ok(Placement {
                space: Space::private(directory, capacity)?,
                private_mount: true,
                adopted: false,
                refused_options,
            }),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let fits = mount::on_tmpfs(directory)
                    .map_err(|error| MemoryError::io("ask the filesystem of", directory, error))?;
                if !fits {
                    return Err(MemoryError::NotOnTmpfs { path: directory.to_owned(), source: error });
                }
                warn!(
                    directory = %directory.display(), error = %error,
                    "no right to mount a private tmpfs; using the directory itself, whose space others share"
                );
                let space = Space::shared(directory, capacity)?;
                Ok(Placement { space, private_mount: false, adopted: false, refused_options: Vec::new() })
            }
            Err(source) => Err(MemoryError::Mount { path: directory.to_owned(), source }),
        }
    }

    fn probe_attribute(space: &Space) -> Result<Attribute, MemoryError> {
        space.unlink(ATTRIBUTE_PROBE)?;
        let file = space.create(ATTRIBUTE_PROBE)?;
        let attribute = Attribute::probe(&file);
        space.unlink(ATTRIBUTE_PROBE)?;
        attribute.map_err(|source| MemoryError::NoAttributes { path: space.path().to_owned(), source })
    }
}

/// Gives the tmpfs the capacity, or notes that it cannot have it yet.
pub(super) fn resize(space: &Space, options: &str) -> Result<(), MemoryError> {
    match mount::resize(space.path(), Space::size_for(space.capacity()), options) {
        Ok(()) => space.set_shrink_pending(false),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            warn!(
                directory = %space.path().display(), capacity = %space.capacity(),
                "more than the capacity is in use; the tmpfs keeps its size until enough is evicted"
            );
            space.set_shrink_pending(true);
        }
        Err(error) => return Err(MemoryError::io("resize the tmpfs on", space.path(), error)),
    }
    Ok(())
}

/// A start for segment ids that lies above those of earlier lives whose files are gone: 2^20 ids per second.
pub(super) fn segment_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() << 20)
}
