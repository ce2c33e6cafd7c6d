//! Topologies from made trees, from part of one, and from none.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

/// A link at `path`, to `target` below the root.
fn link(root: &Path, path: &str, target: &str) {
    fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
    fs::create_dir_all(root.join(target)).unwrap();
    symlink(root.join(target), root.join(path)).unwrap();
}

/// Two nodes; `near0` on the first, `far1` and `mlx5_0` on the second, a virtio device, a bridge and a loopback.
fn host() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (node, cpus, distance) in [(0, "0-2,8", "10 21"), (1, "4", "21 10")] {
        let path = format!("devices/system/node/node{node}");
        write(root, &format!("{path}/cpulist"), cpus);
        write(root, &format!("{path}/distance"), distance);
        write(
            root,
            &format!("{path}/meminfo"),
            &format!("Node {node} MemTotal:  1024 kB\nNode {node} MemFree: 1 kB"),
        );
    }
    write(root, "devices/system/node/online", "0-1");
    for (name, class, device, numa) in [
        ("near0", "net", "devices/pci0000:00/0000:00:01.0/0000:01:00.0", "0"),
        ("far1", "net", "devices/pci0000:80/0000:80:01.0/0000:81:00.0", "1"),
        ("mlx5_0", "infiniband", "devices/pci0000:80/0000:80:01.0/0000:81:00.1", "1"),
    ] {
        link(root, &format!("class/{class}/{name}/device"), device);
        write(root, &format!("{device}/numa_node"), numa);
    }
    for (name, speed, state) in
        [("near0", "10000", "up"), ("far1", "100000", "up"), ("veth", "-1", "unknown")]
    {
        write(root, &format!("class/net/{name}/speed"), speed);
        write(root, &format!("class/net/{name}/operstate"), state);
    }
    write(root, "class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)");
    write(root, "class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
    link(root, "class/net/virt/device", "devices/pci0000:00/0000:00:03.0/virtio0");
    write(root, "devices/pci0000:00/0000:00:03.0/numa_node", "-1");
    write(root, "class/net/virt/operstate", "down");
    write(root, "class/net/lo/operstate", "unknown");
    write(root, "class/net/bonding_masters", "");
    folder
}

fn nic<'a>(topology: &'a Topology, name: &str) -> &'a Nic {
    topology.nics.iter().find(|nic| nic.name == name).unwrap()
}

#[test]
fn nodes_and_devices_are_read_with_their_places() {
    let folder = host();
    let topology = Topology::read(folder.path());
    assert_eq!(topology.nodes[0].cpus, [0, 1, 2, 8]);
    assert_eq!(topology.nodes[1].distances, [(NumaNode(0), 21), (NumaNode(1), 10)]);
    assert_eq!(topology.nodes[1].memory, Some(ByteCount::mib(1)));
    let names: Vec<&str> = topology.nics.iter().map(|nic| nic.name.as_str()).collect();
    assert_eq!(names, ["far1", "near0", "veth", "virt", "mlx5_0"]);
    let mlx5 = nic(&topology, "mlx5_0");
    assert_eq!((mlx5.kind, mlx5.numa, mlx5.is_up), (NicKind::Infiniband, Some(NumaNode(1)), Some(true)));
    assert_eq!(mlx5.bytes_per_second, Some(12_500_000_000));
    assert_eq!(mlx5.pci_path, ["pci0000:80", "0000:80:01.0", "0000:81:00.1"]);
    assert_eq!(nic(&topology, "near0").bytes_per_second, Some(1_250_000_000));
    let virt = nic(&topology, "virt");
    assert_eq!((virt.numa, virt.is_up, virt.bytes_per_second), (None, Some(false), None));
    assert_eq!(virt.pci_path, ["pci0000:00", "0000:00:03.0"]);
    let veth = nic(&topology, "veth");
    assert_eq!((veth.numa, veth.is_up, veth.bytes_per_second, veth.pci_path.len()), (None, None, None, 0));
}

#[test]
fn a_device_is_placed_by_its_pci_address() {
    let folder = host();
    let root = folder.path();
    write(root, "bus/pci/devices/0000:81:00.1/numa_node", "1");
    write(root, "bus/pci/devices/0000:81:00.2/numa_node", "-1");
    assert_eq!(node_of_pci(root, "0000:81:00.1"), Some(NumaNode(1)));
    assert_eq!(node_of_pci(root, "0000:81:00.2"), None);
    assert_eq!(node_of_pci(root, "0000:81:00.3"), None);
    let behind_a_switch = "devices/pci0000:80/0000:80:01.0/0000:82:00.0/0000:83:00.0/0000:84:00.0";
    link(root, "bus/pci/devices/0000:84:00.0", behind_a_switch);
    link(root, "bus/pci/devices/0000:01:00.0", "devices/pci0000:00/0000:00:01.0/0000:01:00.0");
    assert_eq!(links_of_pci(root, "0000:84:00.0"), Some(4));
    assert_eq!(links_of_pci(root, "0000:01:00.0"), Some(2));
    assert_eq!(links_of_pci(root, "0000:81:00.1"), None, "a folder that is no link to the device");
    assert_eq!(links_of_pci(root, "0000:99:00.0"), None);
    let topology = Topology::read(root);
    assert_eq!(topology.between(NumaNode(0), NumaNode(1)), Some(21));
    assert_eq!(topology.between(NumaNode(7), NumaNode(7)), Some(DISTANCE_LOCAL));
    assert_eq!(topology.between(NumaNode(7), NumaNode(0)), None);
}

#[test]
fn the_best_nic_is_up_then_near_then_fast() {
    let folder = host();
    let topology = Topology::read(folder.path());
    let ranked = |node: Option<u32>| -> Vec<String> {
        topology.ranked(node.map(NumaNode)).iter().map(|nic| nic.name.clone()).collect()
    };
    assert_eq!(ranked(Some(0)), ["near0", "far1", "mlx5_0", "veth", "virt"]);
    assert_eq!(ranked(Some(1)), ["far1", "mlx5_0", "near0", "veth", "virt"]);
    assert_eq!(ranked(None), ["far1", "mlx5_0", "near0", "veth", "virt"]);
    let near0 = nic(&topology, "near0");
    assert_eq!(topology.distance(near0, NumaNode(0)), Some(DISTANCE_LOCAL));
    assert_eq!(topology.distance(near0, NumaNode(1)), Some(21));
    assert_eq!(topology.distance(near0, NumaNode(9)), None);
    assert_eq!(topology.distance(nic(&topology, "veth"), NumaNode(0)), None);
}

#[test]
fn what_is_missing_or_makes_no_sense_is_left_out() {
    assert_eq!(Topology::read(Path::new("/nonexistent")), Topology::default());
    let folder = host();
    let root = folder.path();
    write(root, "devices/system/node/node0/cpulist", "0-4294967295");
    write(root, "devices/system/node/node0/distance", "10");
    write(root, "devices/system/node/node0/meminfo", "MemTotal:");
    write(root, "devices/system/node/node1/cpulist", "three");
    write(root, "devices/pci0000:00/0000:00:01.0/0000:01:00.0/numa_node", "?");
    write(root, "class/infiniband/mlx5_0/ports/1/rate", "fast");
    fs::remove_file(root.join("class/net/near0/speed")).unwrap();
    fs::remove_file(root.join("class/net/far1/device")).unwrap();
    let topology = Topology::read(root);
    let node = &topology.nodes[0];
    assert_eq!((node.cpus.len(), node.memory, node.distances.len()), (0, None, 0));
    assert!(topology.nodes[1].cpus.is_empty());
    assert_eq!((nic(&topology, "near0").numa, nic(&topology, "near0").bytes_per_second), (None, None));
    assert_eq!(nic(&topology, "mlx5_0").bytes_per_second, None);
    assert!(nic(&topology, "far1").pci_path.is_empty());
    assert_eq!(topology.ranked(Some(NumaNode(1))).len(), 5);
}
