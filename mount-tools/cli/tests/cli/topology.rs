//! `tidefs topology`, on a made tree and on none.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::host::Host;

fn made_tree(host: &Host) -> String {
    let root = host.path().join("sys");
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("devices/system/node/node0/cpulist", "0-2,8\n");
    write("devices/system/node/node0/distance", "10 21\n");
    write("devices/system/node/node0/meminfo", "Node 0 MemTotal: 67108864 kB\n");
    write("devices/system/node/node1/cpulist", "\n");
    write("devices/system/node/node1/distance", "21 10\n");
    write("devices/pci0000:80/0000:80:01.0/0000:81:00.0/numa_node", "1\n");
    write("class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    let device = root.join("devices/pci0000:80/0000:80:01.0/0000:81:00.0");
    symlink(device, root.join("class/infiniband/mlx5_0/device")).unwrap();
    write("class/net/eth0/operstate", "unknown\n");
    root.to_str().unwrap().to_owned()
}

#[test]
fn topology_shows_nodes_and_what_hangs_on_them() {
    let host = Host::new();
    let tree = made_tree(&host);
    let human = host.run(&format!("topology --sys {tree}"));
    assert_eq!(human.code, 0, "{human:?}");
    insta::assert_snapshot!("topology_human", human.stdout);
    let json = host.run(&format!("topology --sys {tree} --json"));
    insta::assert_json_snapshot!("topology_json", json.json());
}

#[test]
fn topology_of_a_host_that_tells_nothing_is_empty_and_no_error() {
    let host = Host::new();
    let ended = host.run("topology --sys MNT --json");
    assert_eq!((ended.code, ended.json()), (0, json!({"nodes": [], "nics": []})));
}

#[test]
fn topology_of_a_directory_that_is_not_there_is_an_error_that_names_it() {
    let host = Host::new();
    let ended = host.run("topology --sys /nonexistent");
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{ended:?}");
    assert!(ended.stderr.contains("/nonexistent"), "{ended:?}");
    assert_eq!(host.run("topology --sys /dev/null").code, 1, "it is no directory");
}
