//! `tidefs topology`: what the transfer engine knows of this host's memory and NICs.

use std::fmt::Write as _;

use serde_json::json;
use tidefs_engine::topology::{Nic, NicKind, Node, Topology};

use crate::args::TopologyArgs;
use crate::error::{CliError, Exit};
use crate::output::Output;

pub(crate) fn run(args: &TopologyArgs, output: Output) -> Result<(), CliError> {
    let sys = args.sys.display();
    match std::fs::metadata(&args.sys) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(CliError::new(Exit::Failed, format!("{sys} is no directory"))),
        Err(error) => return Err(CliError::system(format!("cannot read {sys}"), &error)),
    }
    let topology = Topology::read(&args.sys);
    output.result(&json!(topology), || tree(&topology))
}

/// NUMA nodes with the NICs that hang on each, and then the NICs of which that is not known.
fn tree(topology: &Topology) -> String {
    let mut text = String::new();
    for node in &topology.nodes {
        text.push_str(&node_line(node));
        let here = topology.nics.iter().filter(|nic| nic.numa == Some(node.id));
        text.extend(here.map(nic_line));
    }
    let is_known = |nic: &&Nic| topology.nodes.iter().any(|node| nic.numa == Some(node.id));
    let mut elsewhere = topology.nics.iter().filter(|nic| !is_known(nic)).peekable();
    if elsewhere.peek().is_some() {
        text.push_str("NUMA node not known\n");
        text.extend(elsewhere.map(nic_line));
    }
    if text.is_empty() {
        text.push_str("sysfs tells of no NUMA node and no NIC here\n");
    }
    text
}

fn node_line(node: &Node) -> String {
    let mut line = format!("NUMA node {}  cpus {}", node.id, ranges(&node.cpus));
    // Writing to a string does not fail.
    if let Some(memory) = node.memory {
        let _ = write!(line, "  memory {memory}");
    }
    let farther: Vec<String> = node
        .distances
        .iter()
        .filter(|(to, _)| *to != node.id)
        .map(|(to, distance)| format!("{distance} to node {to}"))
        .collect();
    if !farther.is_empty() {
        let _ = write!(line, "  distance {}", farther.join(", "));
    }
    line + "\n"
}

fn nic_line(nic: &Nic) -> String {
    let kind = match nic.kind {
        NicKind::Net => "net",
        NicKind::Infiniband => "infiniband",
    };
    let rate = match nic.bytes_per_second {
        Some(rate) => format!("{} Gbit/s", rate as f64 / 125e6),
        None => "rate not known".to_owned(),
    };
    let state = match nic.is_up {
        Some(true) => "up",
        Some(false) => "down",
        None => "state not known",
    };
    let path = if nic.pci_path.is_empty() { "no pci".to_owned() } else { nic.pci_path.join(" > ") };
    format!("  {}  {kind}  {rate}  {state}  {path}\n", nic.name)
}

/// `0-2,8`; `none` for no number.
fn ranges(numbers: &[u32]) -> String {
    let mut found: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match found.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => found.push((*number, *number)),
        }
    }
    if found.is_empty() {
        return "none".to_owned();
    }
    let range = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    found.iter().map(range).collect::<Vec<String>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn numbers_are_shown_as_the_kernel_writes_them() {
        assert_eq!(ranges(&[0, 1, 2, 8]), "0-2,8");
        assert_eq!(ranges(&[]), "none");
        assert_eq!(ranges(&[u32::MAX]), "4294967295");
    }
}
