//! Which of the library's offers to use. Plain data in, plain data out.
//!
//! libfabric offers every way it knows to every network, most of them several times: by address family, by fabric, by
//! a layer in between. One offer for each NIC is wanted, all of one provider, because peers pair their NICs by number.

use std::net::IpAddr;

use libfabric_sys as fi;

use crate::memory::Access;

/// What is asked of the library.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// Version of the interface, as [`fi::version`] packs it.
    pub(super) api: u32,
    /// Exactly this provider.
    pub(super) provider: Option<String>,
    /// The NIC that has this address.
    pub(super) source: Option<IpAddr>,
    /// What a write's completion shall mean: a completion level, or 0.
    pub(super) write_flags: u64,
}

/// What an offer says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) provider: String,
    pub(super) fabric: String,
    /// Name of the NIC.
    pub(super) domain: String,
    pub(super) address_format: u32,
    /// Our address, in that format.
    pub(super) source: Vec<u8>,
    pub(super) mr_mode: i32,
    /// Length of a key.
    pub(super) key_bytes: usize,
    /// Operations that an endpoint holds at once.
    pub(super) tx_size: usize,
    pub(super) message_bytes_max: u64,
    /// Whether the target of an operation must poll for it to go on.
    pub(super) is_target_progress_manual: bool,
    /// 0 where unknown.
    pub(super) bytes_per_second: u64,
    /// Address on the PCI bus, as sysfs writes it.
    pub(super) pci: Option<String>,
}

impl Facts {
    /// Whether the processor of this host does what peers may do with memory of this `access`. It looks a key up when an
    /// operation begins, so what has begun goes on when the key is gone; a NIC that has keys of its own stops at once. EFA,
    /// but for its direct path, writes so on NICs that can only read.
    pub(super) fn is_emulated(&self, access: Access) -> bool {
        let is_direct = self.provider != "efa" || self.fabric == "efa-direct";
        self.mr_mode & fi::FI_MR_PROV_KEY == 0 || (access == Access::ReadWrite && !is_direct)
    }
}

/// Providers that move bytes with the processor. The engine's own sockets and shared memory are faster, so these are
/// used only when named.
const SOFTWARE: &[&str] = &["tcp", "net", "sockets", "udp", "shm", "sm2", "lnx"];

/// Whether the address of an offer is one that only this link knows (fe80::/10) or only this host.
fn reach(facts: &Facts) -> u8 {
    const LINK_LOCAL: u8 = 1;
    const LOOPBACK: u8 = 2;
    match (facts.address_format, facts.source.as_slice()) {
        // sockaddr_in: the address stands at 4.
        (fi::FI_SOCKADDR_IN, [_, _, _, _, 127, ..]) => LOOPBACK,
        // sockaddr_in6: the address stands at 8.
        (fi::FI_SOCKADDR_IN6, bytes) if bytes.len() >= 24 => {
            if bytes[8] == 0xfe && bytes[9] & 0xc0 == 0x80 {
                LINK_LOCAL
            } else if bytes[8..23] == [0; 15] && bytes[23] == 1 {
                LOOPBACK
            } else {
                0
            }
        }
        _ => 0,
    }
}

/// Indices of the offers to open, one for each NIC, in the order of their names; empty when none will do.
pub(super) fn choose(offers: &[Facts], wish: &Wish) -> Vec<usize> {
    let is_wanted = |facts: &Facts| match &wish.provider {
        Some(name) => facts.provider == *name,
        None => !SOFTWARE.contains(&facts.provider.split(';').next().unwrap_or_default()),
    };
    // The direct path of EFA first; then the order of the library, which is by speed.
    let mut ranked: Vec<usize> = (0..offers.len()).filter(|&index| is_wanted(&offers[index])).collect();
    ranked.sort_by_key(|&index| (offers[index].fabric != "efa-direct", reach(&offers[index]), index));
    let Some(&best) = ranked.first() else { return Vec::new() };
    let best = &offers[best];
    let mut chosen: Vec<usize> = Vec::new();
    for index in ranked {
        let facts = &offers[index];
        let is_same_kind = facts.provider == best.provider
            && (facts.fabric == "efa-direct") == (best.fabric == "efa-direct")
            && facts.address_format == best.address_format
            && reach(facts) == reach(best);
        if is_same_kind && chosen.iter().all(|&other| offers[other].domain != facts.domain) {
            chosen.push(index);
        }
    }
    chosen.sort_by(|&a, &b| offers[a].domain.cmp(&offers[b].domain));
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Wish = Wish { api: 0, provider: None, source: None, write_flags: 0 };

    fn offer(provider: &str, fabric: &str, domain: &str) -> Facts {
        Facts {
            provider: provider.to_owned(),
            fabric: fabric.to_owned(),
            domain: domain.to_owned(),
            ..Facts::default()
        }
    }

    fn sockaddr_in(last: [u8; 4]) -> Vec<u8> {
        [&[2, 0, 0, 0][..], &last, &[0; 8]].concat()
    }

    #[test]
    fn software_is_used_only_when_it_is_named() {
        let offers = [offer("tcp;ofi_rxm", "a", "eth0"), offer("verbs;ofi_rxm", "b", "mlx5_0")];
        assert_eq!(choose(&offers, &ANY), [1]);
        assert_eq!(choose(&offers[..1], &ANY), [] as [usize; 0]);
        let named = Wish { provider: Some("tcp;ofi_rxm".to_owned()), ..ANY };
        assert_eq!(choose(&offers, &named), [0]);
    }

    #[test]
    fn each_nic_is_used_once_by_the_direct_path_of_efa() {
        let offers = [
            offer("efa", "efa", "rdmap1-rdm"),
            offer("efa", "efa-direct", "rdmap2-rdm"),
            offer("efa", "efa-direct", "rdmap1-rdm"),
            offer("efa", "efa", "rdmap2-rdm"),
        ];
        assert_eq!(choose(&offers, &ANY), [2, 1]);
    }

    #[test]
    fn what_has_no_keys_of_its_own_is_done_by_the_processor() {
        let hardware = |offer: Facts| Facts { mr_mode: fi::FI_MR_PROV_KEY, ..offer };
        let emulated =
            |facts: Facts| [Access::Read, Access::ReadWrite].map(|access| facts.is_emulated(access));
        assert_eq!(emulated(offer("tcp;ofi_rxm", "a", "eth0")), [true, true]);
        assert_eq!(emulated(hardware(offer("verbs;ofi_rxm", "b", "mlx5_0"))), [false, false]);
        assert_eq!(emulated(hardware(offer("efa", "efa", "rdmap1-rdm"))), [false, true]);
        assert_eq!(emulated(hardware(offer("efa", "efa-direct", "rdmap1-rdm"))), [false, false]);
    }

    #[test]
    fn an_address_of_the_network_comes_before_one_of_the_host() {
        let with = |domain, address_format, source: Vec<u8>| Facts {
            address_format,
            source,
            ..offer("tcp;ofi_rxm", "f", domain)
        };
        let link_local = [&[10, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0x80][..], &[0; 18]].concat();
        let offers = [
            with("lo", fi::FI_SOCKADDR_IN, sockaddr_in([127, 0, 0, 1])),
            with("eth0", fi::FI_SOCKADDR_IN6, link_local),
            with("eth0", fi::FI_SOCKADDR_IN, sockaddr_in([10, 0, 0, 1])),
        ];
        let named = Wish { provider: Some("tcp;ofi_rxm".to_owned()), ..ANY };
        assert_eq!(choose(&offers, &named), [2]);
        assert_eq!(choose(&offers[..1], &named), [0]);
    }
}
