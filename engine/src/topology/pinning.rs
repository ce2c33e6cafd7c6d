//! Which processors a thread that serves a NIC stays on: those of the NIC's node.
//!
//! Away from it, each completion and each header crosses to the other node and back. On a host of one node, or where it
//! is not known what hangs where, the kernel's scheduler decides.

use std::collections::BTreeSet;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::{NicKind, Topology};
use crate::types::NumaNode;

/// The processors beside what hangs on `node`; `None` where a thread should not be kept to any.
#[must_use]
pub fn processors_beside(host: &Topology, node: Option<NumaNode>) -> Option<Vec<u32>> {
    let is_choice = host.nodes.iter().filter(|node| !node.cpus.is_empty()).count() > 1;
    let beside = host.nodes.iter().find(|known| Some(known.id) == node)?;
    (is_choice && !beside.cpus.is_empty()).then(|| beside.cpus.clone())
}

/// The nodes that NICs for sockets hang on which are not down. Empty where the node of one of them is not known: what
/// goes by that one cannot be told from the rest.
#[must_use]
pub fn nodes_of_nics(host: &Topology) -> Vec<NumaNode> {
    let nics = host.nics.iter().filter(|nic| nic.kind == NicKind::Net && nic.is_up == Some(true));
    let nodes: Option<BTreeSet<NumaNode>> = nics.map(|nic| nic.numa).collect();
    nodes.unwrap_or_default().into_iter().collect()
}

/// Keeps this thread on those of `processors` that it may use; `None` leaves it where it is.
pub fn stay_on(processors: Option<&[u32]>) {
    let Some(processors) = processors else {
        tracing::debug!(
            "a thread that moves bytes is kept to no NUMA node: there is one, or it is not known which"
        );
        return;
    };
    let this_thread = Pid::from_raw(0);
    let chosen = sched_getaffinity(this_thread).and_then(|allowed| {
        let mut chosen = CpuSet::new();
        for cpu in processors.iter().filter_map(|cpu| usize::try_from(*cpu).ok()) {
            if allowed.is_set(cpu).unwrap_or(false) {
                chosen.set(cpu)?;
            }
        }
        sched_setaffinity(this_thread, &chosen)
    });
    if let Err(error) = chosen {
        // As where the process may use no processor of that node.
        tracing::warn!(%error, ?processors, "a thread that moves bytes is not kept to the NUMA node of its NIC");
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Nic, Node};
    use super::*;

    fn node(id: u32, cpus: &[u32]) -> Node {
        Node { id: NumaNode(id), cpus: cpus.to_vec(), memory: None, distances: Vec::new() }
    }

    fn nic(kind: NicKind, numa: Option<u32>, is_up: bool) -> Nic {
        let (name, numa, is_up) = ("nic".to_owned(), numa.map(NumaNode), Some(is_up));
        Nic { name, kind, numa, pci_path: Vec::new(), bytes_per_second: None, is_up }
    }

    #[test]
    fn a_thread_stays_beside_its_nic_where_there_is_a_choice() {
        let two = Topology { nodes: vec![node(0, &[0, 2]), node(1, &[1, 3])], nics: Vec::new() };
        let beside = |host: &Topology, node: u32| processors_beside(host, Some(NumaNode(node)));
        assert_eq!(beside(&two, 0), Some(vec![0, 2]));
        assert_eq!(beside(&two, 1), Some(vec![1, 3]));
        assert_eq!(beside(&two, 2), None, "a node that is not there");
        assert_eq!(processors_beside(&two, None), None, "a NIC that hangs on none");
        let one = Topology { nodes: vec![node(0, &[0, 1])], nics: Vec::new() };
        assert_eq!(beside(&one, 0), None);
        // Memory that is far away, as of CXL, is a node without processors.
        let expanded = Topology { nodes: vec![node(0, &[0, 1]), node(1, &[])], nics: Vec::new() };
        assert_eq!((beside(&expanded, 0), beside(&expanded, 1)), (None, None));
        assert_eq!(beside(&Topology::default(), 0), None);
    }

    #[test]
    fn nodes_of_nics_are_those_of_all_that_are_up_or_none() {
        let host = |nics| nodes_of_nics(&Topology { nodes: Vec::new(), nics });
        let net = |numa, is_up| nic(NicKind::Net, numa, is_up);
        let nics = vec![net(Some(1), true), net(Some(0), true), net(Some(1), true), net(Some(5), false)];
        assert_eq!(host(nics), [NumaNode(0), NumaNode(1)]);
        assert_eq!(host(vec![net(Some(1), true), nic(NicKind::Infiniband, Some(0), true)]), [NumaNode(1)]);
        assert_eq!(host(vec![net(Some(1), true), net(None, true)]), []);
        assert_eq!(host(Vec::new()), []);
    }

    #[test]
    fn a_thread_stays_on_what_it_is_told_and_may_use() {
        std::thread::spawn(|| {
            let here = Pid::from_raw(0);
            let allowed = sched_getaffinity(here).unwrap();
            let usable = |cpu: &usize| allowed.is_set(*cpu).unwrap_or(false);
            let first = (0..CpuSet::count()).find(usable).unwrap();
            // One that is not there beside one that is.
            stay_on(Some(&[u32::try_from(first).unwrap(), u32::MAX]));
            let now = sched_getaffinity(here).unwrap();
            let left: Vec<usize> = (0..CpuSet::count()).filter(|cpu| now.is_set(*cpu).unwrap()).collect();
            assert_eq!(left, [first]);
            stay_on(None);
            stay_on(Some(&[]));
            assert_eq!(sched_getaffinity(here).unwrap(), now, "what cannot be is left as it was");
        })
        .join()
        .unwrap();
    }
}
