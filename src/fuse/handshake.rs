//! What is asked of the kernel when a session begins, and what was agreed then.
//!
//! Invariant: what the kernel refuses is done without. Only passthrough can be demanded ([`SessionSettings::passthrough_required`]).
//!
//! Threads: that which opens the session; nothing here is asked afterwards.

use std::os::fd::AsFd;

use fuser::{BackingId, InitFlags, KernelConfig};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::session::SessionSettings;

/// Largest request of a read or write that the daemon serves itself.
const REQUEST_MAX: u32 = 1 << 20;

/// Flags asked for where the kernel offers them.
const WANTED: [InitFlags; 4] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    // Without it the kernel asks for a security attribute before each write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
];

/// Listings with attributes.
const LISTS_ATTRIBUTES: InitFlags = InitFlags::FUSE_DO_READDIRPLUS.union(InitFlags::FUSE_READDIRPLUS_AUTO);

/// What was agreed with the kernel.
#[derive(Clone, Debug)]
pub struct SessionFacts {
    /// Whether the kernel serves files itself.
    pub passthrough: bool,
    /// Why not, if not.
    pub passthrough_reason: Option<String>,
    /// Whether what the daemon serves goes through the page cache.
    pub page_cache: bool,
    /// Protocol version of the kernel.
    pub kernel_abi: String,
    /// Names of the capabilities in force.
    pub flags: Vec<String>,
    /// Session threads.
    pub threads: usize,
}

/// Outcome of INIT.
#[derive(Debug)]
pub(super) struct Handshake {
    passthrough: Result<(), String>,
    page_cache: bool,
    kernel_abi: String,
    flags: Vec<String>,
}

impl Handshake {
    /// Asks for what we want of what the kernel offers.
    pub(super) fn negotiate(
        config: &mut KernelConfig,
        max_background: u16,
        wants_passthrough: bool,
        wants_page_cache: Option<bool>,
        lists_attributes: bool,
    ) -> Self {
        let mut flags = Vec::new();
        let mut take = |config: &mut KernelConfig, flag: InitFlags| {
            let taken = config.add_capabilities(flag).is_ok();
            if taken {
                flags.extend(flag.iter_names().map(|(name, _)| name.to_owned()));
            }
            taken
        };
        for flag in WANTED.into_iter().chain(lists_attributes.then_some(LISTS_ATTRIBUTES)) {
            take(config, flag);
        }
        // Without it a file that bypasses the page cache has no shared mappings (Linux 6.6).
        let maps_direct =
            wants_page_cache != Some(true) && take(config, InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        let passthrough = if !wants_passthrough {
            let chosen = if wants_page_cache == Some(true) { "cached" } else { "never" };
            Err(format!("fuse.passthrough={chosen}"))
        } else if !take(config, InitFlags::FUSE_PASSTHROUGH) {
            Err("this kernel has no FUSE passthrough; it came with Linux 6.9".to_owned())
        } else if let Err(most) = config.set_max_stack_depth(1) {
            Err(format!("the kernel stacks at most {most} filesystems"))
        } else {
            Ok(())
        };
        // Both have a documented range that our constants are in; what is refused stays at the default.
        let _ = config.set_max_write(REQUEST_MAX);
        let _ = config.set_max_background(max_background.max(1));
        let version = config.kernel_abi();
        let page_cache = passthrough.is_err() && wants_page_cache.unwrap_or(!maps_direct);
        Self { passthrough, page_cache, kernel_abi: format!("{}.{}", version.0, version.1), flags }
    }
}

/// What is told of the handshake, whose outcome is there unless the kernel did not ask for it. `session`: the device, once the
/// kernel has our answer.
pub(super) fn facts_of(
    handshake: Option<&Handshake>,
    settings: &SessionSettings,
    may_register: bool,
    session: impl AsFd,
) -> SessionFacts {
    let reason = match handshake {
        _ if settings.passthrough && !may_register => {
            Some("registering backing files needs CAP_SYS_ADMIN, which the daemon does not have".to_owned())
        }
        Some(handshake) => handshake.passthrough.clone().and_then(|()| try_backing(session)).err(),
        None => Some("the kernel did not shake hands".to_owned()),
    };
    SessionFacts {
        passthrough: reason.is_none(),
        passthrough_reason: reason,
        page_cache: handshake.is_some_and(|handshake| handshake.page_cache),
        kernel_abi: handshake.map(|handshake| handshake.kernel_abi.clone()).unwrap_or_default(),
        flags: handshake.map(|handshake| handshake.flags.clone()).unwrap_or_default(),
        threads: settings.threads,
    }
}

/// Registers an empty file, which stays registered until the session ends. Says why, where the kernel takes none.
///
/// Whoever is root in a user namespace alone has the capability there, may mount, and is offered passthrough: the kernel asks
/// for the capability in the initial namespace when it is given a file (`fuse_backing_open` of fs/fuse/backing.c).
fn try_backing(session: impl AsFd) -> Result<(), String> {
    // As `vm.memfd_noexec` may demand, and every kernel with passthrough knows.
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);
    let file = memfd_create(c"tidefs-backing", flags)
        .map_err(|error| format!("there is no file to try a registration with: {error}"))?;
    match BackingId::create_raw(session, file) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let need = "registering backing files needs CAP_SYS_ADMIN of the host: that of a user namespace, as in a \
                        rootless container, is not enough";
            Err(need.to_owned())
        }
        Err(error) => Err(format!("the kernel refuses backing files: {error}")),
    }
}

/// Whether the process may try to register backing files: CAP_SYS_ADMIN, bit 21 of the effective set (capabilities(7)).
pub(super) fn may_register_backings() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .is_some_and(|set| set & 1 << CAP_SYS_ADMIN != 0)
}
