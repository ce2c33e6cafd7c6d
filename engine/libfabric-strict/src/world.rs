//! The network: endpoints, registered memory, operations in flight, and the rules.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use libfabric_sys as fi;

/// Operations that an endpoint holds.
pub(crate) const TX_SIZE: usize = 4;
/// Longest operation.
pub(crate) const BYTES_MAX: usize = 64 << 10;

/// Which way an operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// An operation in flight.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) kind: Kind,
    /// Local address.
    pub(crate) local: usize,
    pub(crate) length: usize,
    /// Number of the local region, from its descriptor.
    pub(crate) descriptor: usize,
    /// Place in the address vector.
    pub(crate) slot: u64,
    pub(crate) remote: u64,
    pub(crate) key: u64,
    pub(crate) context: usize,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) context: usize,
    pub(crate) length: usize,
    /// 0, or a positive error number.
    pub(crate) error: i32,
}

/// An endpoint, its vector and its queue.
#[derive(Debug, Default)]
pub(crate) struct Endpoint {
    pub(crate) domain: usize,
    pub(crate) cq: usize,
    pub(crate) av: usize,
    pub(crate) is_silent: bool,
    /// Targets to which a refused key has broken the way.
    pub(crate) broken: Vec<usize>,
    in_flight: Vec<Transfer>,
    /// Attempts that are still refused without a reason.
    burst: u32,
}

impl Endpoint {
    pub(crate) fn new(domain: usize) -> Self {
        Self { domain, ..Self::default() }
    }
}

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) domain: usize,
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) access: u64,
    pub(crate) key: u64,
    pub(crate) binding: Binding,
}

/// Through which endpoints memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// All of its domain.
    Any,
    /// None yet.
    Open,
    /// This one, once it is enabled.
    Bound { endpoint: usize, is_enabled: bool },
}

/// Everything.
#[derive(Debug)]
pub(crate) struct World {
    random: u64,
    last_id: usize,
    pub(crate) endpoints: BTreeMap<usize, Endpoint>,
    pub(crate) memories: BTreeMap<usize, Memory>,
    /// Address vectors: the endpoints they name, by place.
    pub(crate) vectors: BTreeMap<usize, Vec<Option<usize>>>,
    pub(crate) queues: BTreeMap<usize, VecDeque<Done>>,
    pub(crate) violations: Vec<String>,
    /// Whether a refused key breaks the way to its target, as it does a queue pair of verbs.
    pub(crate) is_fragile: bool,
    /// Longest memory that is registered; 0 for any.
    pub(crate) memory_max: usize,
    /// Whether memory is registered with the endpoint.
    pub(crate) is_bound: bool,
    /// Whether keys of withdrawn memory come again.
    pub(crate) is_reusing: bool,
    /// Whether endpoints refuse to be closed.
    pub(crate) is_stuck: bool,
    /// Whether registered memory does.
    pub(crate) is_held: bool,
    /// Whether queues have a descriptor that cannot be waited for, and how often somebody wanted to.
    pub(crate) is_mute: bool,
    pub(crate) asked: usize,
    /// Operations that endpoints say they hold, where that is more than they do; then they refuse none without a
    /// reason.
    pub(crate) announced: Option<usize>,
    /// Operations that were refused for want of room.
    pub(crate) refusals: usize,
    /// Until when nobody reads a queue.
    pub(crate) halted_until: Option<Instant>,
    /// Whether the second NIC cannot be opened.
    pub(crate) is_dead: bool,
    /// Whether endpoints of the second NIC cannot be opened.
    pub(crate) is_shut: bool,
    /// Domains of the second NIC, whether operations over them fail, and how many have.
    pub(crate) second: BTreeSet<usize>,
    pub(crate) is_failing: bool,
    pub(crate) failures: usize,
}

static WORLD: Mutex<World> = Mutex::new(World {
    random: 0x5851_F42D_4C95_7F2D,
    last_id: 0,
    endpoints: BTreeMap::new(),
    memories: BTreeMap::new(),
    vectors: BTreeMap::new(),
    queues: BTreeMap::new(),
    violations: Vec::new(),
    is_fragile: false,
    memory_max: 0,
    is_bound: false,
    is_reusing: false,
    is_stuck: false,
    is_held: false,
    is_mute: false,
    asked: 0,
    announced: None,
    refusals: 0,
    halted_until: None,
    is_dead: false,
    is_shut: false,
    second: BTreeSet::new(),
    is_failing: false,
    failures: 0,
});

/// The one network of this process.
pub(crate) fn world() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// A number that was never given before.
    pub(crate) fn new_id(&mut self) -> usize {
        self.last_id += 1;
        self.last_id
    }

    /// A random number below `bound`.
    pub(crate) fn random(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % (bound.max(1) as u64)).unwrap_or(0)
    }

    /// A key for memory `id` of a domain, of 32 bits as those of EFA: never one that was there before, or the lowest that is
    /// free.
    pub(crate) fn new_key(&mut self, domain: usize, id: usize) -> u64 {
        if !self.is_reusing {
            return (id as u64) << 12 | self.random(1 << 12) as u64;
        }
        let is_free =
            |key: &u64| !self.memories.values().any(|memory| memory.domain == domain && memory.key == *key);
        (1..).find(is_free).unwrap_or_default()
    }

    /// Notes a broken rule; returns what the call answers.
    pub(crate) fn violation(&mut self, rule: impl Into<String>) -> i32 {
        let rule = rule.into();
        eprintln!("libfabric-strict: {rule}");
        self.violations.push(rule);
        fi::FI_EINVAL
    }

    /// Takes an operation, or says why not: a positive error number.
    pub(crate) fn post(&mut self, id: usize, transfer: Transfer) -> Result<(), i32> {
        let is_context_busy = self
            .endpoints
            .values()
            .flat_map(|endpoint| &endpoint.in_flight)
            .any(|other| other.context == transfer.context);
        if is_context_busy || transfer.context == 0 || !transfer.context.is_multiple_of(8) {
            return Err(self.violation("a context is null, not aligned, or in flight already"));
        }
        if transfer.length == 0 || transfer.length > BYTES_MAX {
            return Err(self.violation(format!("an operation of {} bytes", transfer.length)));
        }
        if let Err(rule) = self.check_local(id, &transfer) {
            return Err(self.violation(rule));
        }
        let refusal = if self.announced.is_some() { 1 } else { self.random(6) };
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return Err(fi::FI_EOPBADSTATE) };
        if endpoint.burst > 0 {
            endpoint.burst -= 1;
            return Err(fi::FI_EAGAIN);
        }
        if refusal == 0 {
            endpoint.burst = 3;
        }
        if endpoint.in_flight.len() >= TX_SIZE {
            self.refusals += 1;
            return Err(fi::FI_EAGAIN);
        }
        endpoint.in_flight.push(transfer);
        Ok(())
    }

    fn check_local(&self, id: usize, transfer: &Transfer) -> Result<(), String> {
        let memory = self.memories.get(&transfer.descriptor).ok_or("local memory without a descriptor")?;
        let right = if transfer.kind == Kind::Read { fi::FI_READ } else { fi::FI_WRITE };
        let domain = self.endpoints.get(&id).map(|endpoint| endpoint.domain);
        if Some(memory.domain) != domain {
            return Err("a descriptor of another domain".to_owned());
        }
        if memory.access & right == 0 {
            return Err("local memory is not registered for this kind of operation".to_owned());
        }
        if !memory.holds(transfer.local, transfer.length) {
            return Err("local memory lies outside the region of its descriptor".to_owned());
        }
        Ok(())
    }

    /// Completes some of the operations of the endpoints of a queue, in any order.
    pub(crate) fn progress(&mut self, queue: usize) {
        let ids: Vec<usize> =
            self.endpoints.iter().filter(|(_, endpoint)| endpoint.cq == queue).map(|(&id, _)| id).collect();
        for id in ids {
            for _ in 0..TX_SIZE {
                let count = self.endpoints.get(&id).map_or(0, |endpoint| endpoint.in_flight.len());
                if count == 0 || self.random(3) == 0 {
                    break;
                }
                let chosen = self.random(count);
                self.complete(id, chosen);
            }
        }
    }

    fn complete(&mut self, id: usize, index: usize) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        let transfer = endpoint.in_flight.swap_remove(index);
        let (av, cq, domain) = (endpoint.av, endpoint.cq, endpoint.domain);
        let target =
            self.vectors.get(&av).and_then(|slots| *slots.get(usize::try_from(transfer.slot).ok()?)?);
        let is_silent =
            target.and_then(|target| self.endpoints.get(&target)).is_some_and(|target| target.is_silent);
        if is_silent {
            if let Some(endpoint) = self.endpoints.get_mut(&id) {
                endpoint.in_flight.push(transfer);
            }
            return;
        }
        let is_failing = self.is_failing && self.second.contains(&domain);
        self.failures += usize::from(is_failing);
        let error = match target {
            _ if is_failing => fi::FI_EIO,
            None => self.violation("an operation on an address that was not inserted, or was removed"),
            Some(target) => self.apply(id, target, &transfer),
        };
        if let Some(queue) = self.queues.get_mut(&cq) {
            queue.push_back(Done { context: transfer.context, length: transfer.length, error });
        }
    }

    /// Moves the bytes. Returns 0 or a positive error number.
    fn apply(&mut self, id: usize, target: usize, transfer: &Transfer) -> i32 {
        let Some(peer) = self.endpoints.get(&target) else { return fi::FI_EHOSTUNREACH };
        let peer_domain = peer.domain;
        let is_known = self.vectors.get(&peer.av).is_some_and(|slots| slots.contains(&Some(id)));
        if !is_known {
            return self.violation("the target has not inserted the address of the initiator");
        }
        if self.endpoints.get(&id).is_some_and(|endpoint| endpoint.broken.contains(&target)) {
            return fi::FI_ECANCELED;
        }
        let right = if transfer.kind == Kind::Read { fi::FI_REMOTE_READ } else { fi::FI_REMOTE_WRITE };
        let Ok(remote) = usize::try_from(transfer.remote) else { return fi::FI_EACCES };
        let is_granted = self.memories.values().any(|memory| {
            memory.key == transfer.key
                && memory.domain == peer_domain
                && memory.access & right != 0
                && memory.binding.admits(target)
                && memory.holds(remote, transfer.length)
        });
        if !is_granted {
            let is_fragile = self.is_fragile;
            if let Some(endpoint) = self.endpoints.get_mut(&id).filter(|_| is_fragile) {
                endpoint.broken.push(target);
            }
            return fi::FI_EKEYREJECTED;
        }
        let (source, copy_to) = match transfer.kind {
            Kind::Read => (remote, transfer.local),
            Kind::Write => (transfer.local, remote),
        };
        // SAFETY: both ranges lie in memory that is registered now, so its owner keeps it mapped until it closes the
        // region, which takes the lock that is held here. `copy` allows overlap.
        unsafe { std::ptr::copy(source as *const u8, copy_to as *mut u8, transfer.length) };
        0
    }

    /// Withdraws memory, unless it refuses.
    pub(crate) fn withdraw(&mut self, number: usize) -> bool {
        if self.is_held {
            return false;
        }
        let is_used = self
            .endpoints
            .values()
            .flat_map(|endpoint| &endpoint.in_flight)
            .any(|transfer| transfer.descriptor == number);
        let memory = self.memories.remove(&number);
        let is_bound = memory.is_some_and(|memory| memory.binding != Binding::Any);
        if is_used && !is_bound {
            self.violation("memory is withdrawn while an operation in flight uses it");
        }
        // Bound memory goes before its endpoint, and with it what the endpoint would still do there.
        for endpoint in self.endpoints.values_mut().filter(|_| is_bound) {
            endpoint.in_flight.retain(|transfer| transfer.descriptor != number);
        }
        true
    }
}

impl Binding {
    /// Whether it is bound to this endpoint, enabled or not.
    pub(crate) fn is_to(self, target: usize) -> bool {
        matches!(self, Self::Bound { endpoint, .. } if endpoint == target)
    }

    fn admits(self, target: usize) -> bool {
        match self {
            Self::Any => true,
            Self::Open => false,
            Self::Bound { endpoint, is_enabled } => endpoint == target && is_enabled,
        }
    }
}

impl Memory {
    fn holds(&self, start: usize, length: usize) -> bool {
        let end = start.checked_add(length);
        start >= self.start && end.is_some_and(|end| end <= self.start + self.length)
    }
}
