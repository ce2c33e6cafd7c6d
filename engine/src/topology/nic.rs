//! Network devices: Ethernet by `class/net`, RDMA by `class/infiniband`.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::sysfs::{names, text};
use crate::types::NumaNode;

/// What a NIC is used through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NicKind {
    /// Sockets.
    Net,
    /// Verbs: InfiniBand, RoCE, EFA.
    Infiniband,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// Device name: `eth0`, `mlx5_0`.
    pub name: String,
    /// What it is used through.
    pub kind: NicKind,
    /// NUMA node that it hangs on.
    pub numa: Option<NumaNode>,
    /// Addresses on the way from the root complex to the device, that of the device last. Empty for a device that is on
    /// no PCI bus, or where the way is not visible.
    pub pci_path: Vec<String>,
    /// Rate that the device claims.
    pub bytes_per_second: Option<u64>,
    /// Whether its link is up.
    pub is_up: Option<bool>,
}

pub(super) fn read_all(root: &Path) -> Vec<Nic> {
    let net = root.join("class/net");
    let infiniband = root.join("class/infiniband");
    let is_device = |name: &String| name != "lo" && net.join(name).is_dir();
    let of_net = names(&net).into_iter().filter(is_device).map(|name| read_net(root, &net.join(&name), name));
    let of_infiniband =
        names(&infiniband).into_iter().map(|name| read_infiniband(root, &infiniband.join(&name), name));
    of_net.chain(of_infiniband).collect()
}

fn read_net(root: &Path, folder: &Path, name: String) -> Nic {
    let (numa, pci_path) = place(root, folder);
    // In Mbit/s; -1, or no answer, where the link is down or has no rate.
    let speed = text(&folder.join("speed")).and_then(|text| text.parse::<u64>().ok());
    let is_up = match text(&folder.join("operstate")).as_deref() {
        Some("up") => Some(true),
        Some("down" | "lowerlayerdown" | "notpresent") => Some(false),
        // `unknown`, which many virtual devices say, is what it says.
        _ => None,
    };
    let bytes_per_second = speed.filter(|speed| *speed > 0).and_then(|speed| speed.checked_mul(125_000));
    Nic { name, kind: NicKind::Net, numa, pci_path, bytes_per_second, is_up }
}

fn read_infiniband(root: &Path, folder: &Path, name: String) -> Nic {
    let (numa, pci_path) = place(root, folder);
    let ports = folder.join("ports");
    let mut rates = Vec::new();
    let mut states = Vec::new();
    for port in names(&ports) {
        rates.extend(text(&ports.join(&port).join("rate")).and_then(|text| rate_of(&text)));
        states.extend(text(&ports.join(&port).join("state")).map(|text| text.contains("ACTIVE")));
    }
    let is_up = (!states.is_empty()).then(|| states.contains(&true));
    let bytes_per_second = rates.into_iter().max();
    Nic { name, kind: NicKind::Infiniband, numa, pci_path, bytes_per_second, is_up }
}

/// The NUMA node of the device at this address of the PCI bus (`0000:3b:00.0`), below the sysfs at `root`.
#[must_use]
pub fn node_of_pci(root: &Path, address: &str) -> Option<NumaNode> {
    node_in(&root.join("bus/pci/devices").join(address))
}

/// PCIe links between the device at this address of the PCI bus and its root complex, below the sysfs at `root`.
#[must_use]
pub fn links_of_pci(root: &Path, address: &str) -> Option<u32> {
    let device = fs::canonicalize(root.join("bus/pci/devices").join(address)).ok()?;
    let inside = device.strip_prefix(fs::canonicalize(root).ok()?).ok()?;
    let names = inside.components().filter_map(|component| component.as_os_str().to_str());
    let bridges =
        names.skip_while(|name| !name.starts_with("pci")).skip(1).take_while(|name| is_address(name));
    u32::try_from(bridges.count()).ok().filter(|links| *links > 0)
}

/// What the folder of a device says of its NUMA node; -1 is "none".
fn node_in(folder: &Path) -> Option<NumaNode> {
    text(&folder.join("numa_node"))?.parse().ok().map(NumaNode)
}

/// `100 Gb/sec (4X EDR)` or `2.5 Gb/sec (1X SDR)`, in bytes per second.
fn rate_of(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ')?;
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let tenths = whole.parse::<u64>().ok()?.checked_mul(10)?.checked_add(tenth.parse().ok()?)?;
    (unit.starts_with("Gb/sec") && tenth.len() == 1).then(|| tenths.checked_mul(12_500_000)).flatten()
}

/// The NUMA node and the PCI way of a device's folder.
fn place(root: &Path, folder: &Path) -> (Option<NumaNode>, Vec<String>) {
    let (Ok(device), Ok(root)) = (fs::canonicalize(folder.join("device")), fs::canonicalize(root)) else {
        return (None, Vec::new());
    };
    let Ok(inside) = device.strip_prefix(&root) else { return (None, Vec::new()) };
    let components = inside.components().filter_map(|component| component.as_os_str().to_str());
    let mut pci_path: Vec<String> =
        components.filter(|name| name.starts_with("pci") || is_address(name)).map(str::to_owned).collect();
    if !pci_path.last().is_some_and(|last| is_address(last)) {
        pci_path.clear();
    }
    // Of a virtual function of a driver (virtio), only the device above it has the file.
    let above = device.ancestors().take_while(|above| above.starts_with(&root) && *above != root);
    (above.into_iter().find_map(node_in), pci_path)
}

/// Whether `name` is a PCI address: `0000:3b:00.0`.
fn is_address(name: &str) -> bool {
    let is_hex = |part: &str, length: usize| {
        part.len() >= length && part.chars().all(|digit| digit.is_ascii_hexdigit())
    };
    let mut parts = name.split([':', '.']);
    let (domain, bus, device, function) = (parts.next(), parts.next(), parts.next(), parts.next());
    parts.next().is_none()
        && domain.is_some_and(|part| is_hex(part, 4))
        && bus.is_some_and(|part| is_hex(part, 2))
        && device.is_some_and(|part| is_hex(part, 2))
        && function.is_some_and(|part| is_hex(part, 1))
}
