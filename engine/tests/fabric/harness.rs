//! Two ends of the transport, and operations whose ends can be waited for.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tidefs_engine::error::Error;
use tidefs_engine::memory::{Access, MemorySlice, PageKind, Region};
use tidefs_engine::transport::libfabric::{Fabric, FabricConfig};
use tidefs_engine::transport::{
    BatchId, BoxFuture, Direction, Endpoint, Exchange, Operation, RemoteSlice, Ticket, TicketSink, Transport,
};
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId, RailId, RegionId};

/// Longest that anything here may take, on a slow and busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn config() -> FabricConfig {
    let wanted = std::env::var("TIDEFS_TEST_FABRIC").unwrap_or_else(|_| "tcp;ofi_rxm@127.0.0.1".to_owned());
    let (provider, address) = wanted.split_once('@').unwrap();
    FabricConfig {
        provider: Some(provider.to_owned()),
        address: Some(address.parse().unwrap()),
        settle: Duration::from_millis(500),
        // On a busy machine a peer may be silent for a while.
        silence: Duration::from_secs(10),
        ..FabricConfig::default()
    }
}

/// The strict provider's file, where libfabric finds it. Set up before the library is used for the first time.
fn prepare() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let built = std::env::current_exe().unwrap().with_file_name("libfabric_strict.so");
        assert!(built.exists(), "{} was not built", built.display());
        // Beside the build, so that a run leaves nothing behind; tests in other processes put the same link there.
        let folder = built.with_file_name("libfabric-providers");
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("libstrict-fi.so");
        let link = folder.join(format!("link-{}", std::process::id()));
        std::os::unix::fs::symlink(&built, &link).unwrap();
        std::fs::rename(&link, &file).unwrap();
        // SAFETY: the first thing that any test here does; no other thread of this process reads the environment yet
        // but those of tests that wait for this same cell.
        unsafe { std::env::set_var("FI_PROVIDER_PATH", &folder) };
        file
    })
}

/// Opens one end. `None`, with the reason on standard output, where there is no libfabric.
pub(crate) fn open() -> Option<Arc<Fabric>> {
    open_with(&config())
}

/// The same over the strict provider.
pub(crate) fn open_strict() -> Option<Arc<Fabric>> {
    open_with(&strict_config())
}

pub(crate) fn strict_config() -> FabricConfig {
    FabricConfig { provider: Some("strict".to_owned()), address: None, ..config() }
}

/// Longest registration of [`in_pieces`].
pub(crate) const PIECE: u64 = 1 << 20;

/// The same with several registrations for each region of more than [`PIECE`].
pub(crate) fn in_pieces(config: FabricConfig) -> FabricConfig {
    FabricConfig { registration_bytes_max: Some(ByteCount(PIECE)), ..config }
}

pub(crate) fn open_with(config: &FabricConfig) -> Option<Arc<Fabric>> {
    prepare();
    if let Err(error) = libfabric_sys::Library::open() {
        println!("skipped: {error} (Debian: libfabric1)");
        return None;
    }
    // The library is there, so a provider that is not is a failure.
    Some(Arc::new(Fabric::open(config).unwrap()))
}

/// A function of the strict provider, in the copy that libfabric has loaded.
fn strict_symbol(name: &CStr) -> *mut c_void {
    let file = CString::new(prepare().as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: names end with zeros; the library stays loaded, since its handle is never closed.
    let symbol = unsafe { libc::dlsym(libc::dlopen(file.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!symbol.is_null());
    symbol
}

/// Calls a function of the strict provider that takes whether something is so from now on.
fn turn(name: &CStr, is_on: bool) {
    // SAFETY: the signature of the functions that this is called for.
    let function: extern "C" fn(i32) = unsafe { std::mem::transmute(strict_symbol(name)) };
    function(i32::from(is_on));
}

/// Calls one that takes a number.
fn set(name: &CStr, number: usize) {
    // SAFETY: the signature of the functions that this is called for.
    let function: extern "C" fn(usize) = unsafe { std::mem::transmute(strict_symbol(name)) };
    function(number);
}

/// Calls one that answers how often something happened since the last call.
fn take(name: &CStr) -> usize {
    // SAFETY: the signature of the functions that this is called for.
    let function: extern "C" fn() -> usize = unsafe { std::mem::transmute(strict_symbol(name)) };
    function()
}

/// Makes every endpoint of the strict provider swallow what is sent to it, or answer again.
pub(crate) fn silence(is_silent: bool) {
    turn(c"strict_silence", is_silent);
}

/// Makes a refused key break the way to its target, or not any more.
pub(crate) fn fragile(is_fragile: bool) {
    turn(c"strict_fragile", is_fragile);
}

/// Whether the strict provider registers memory with the endpoints that are opened from now on.
pub(crate) fn bound(is_bound: bool) {
    turn(c"strict_bound", is_bound);
}

/// Whether the strict provider gives keys of withdrawn memory again from now on.
pub(crate) fn reusing(is_reusing: bool) {
    turn(c"strict_reuse", is_reusing);
}

/// Whether endpoints of the strict provider refuse to be closed.
pub(crate) fn stuck(is_stuck: bool) {
    turn(c"strict_stuck", is_stuck);
}

/// Whether registered memory of the strict provider refuses to be closed.
pub(crate) fn held(is_held: bool) {
    turn(c"strict_held", is_held);
}

/// Whether queues of the strict provider have a descriptor that cannot be waited for.
pub(crate) fn mute(is_mute: bool) {
    turn(c"strict_mute", is_mute);
}

/// How often somebody wanted to wait for such a descriptor since the last call.
pub(crate) fn asked() -> usize {
    take(c"strict_asked")
}

/// Operations that endpoints of the strict provider say they hold; 0 for as many as they do.
pub(crate) fn announce(operations: usize) {
    set(c"strict_announce", operations);
}

/// How many operations were refused for want of room since the last call.
pub(crate) fn refusals() -> usize {
    take(c"strict_refusals")
}

/// Halts whoever reads a queue of the strict provider for so long from now on.
pub(crate) fn halt(time: Duration) {
    // SAFETY: the signature of the provider's function.
    let set: extern "C" fn(u64) = unsafe { std::mem::transmute(strict_symbol(c"strict_halt")) };
    set(u64::try_from(time.as_millis()).unwrap());
}

/// Whether the second NIC of the strict provider cannot be opened from now on.
pub(crate) fn dead(is_dead: bool) {
    turn(c"strict_dead", is_dead);
}

/// Whether endpoints of the second NIC of the strict provider cannot be opened from now on.
pub(crate) fn shut(is_shut: bool) {
    turn(c"strict_shut", is_shut);
}

/// Whether operations over the second NIC of the strict provider fail from now on.
pub(crate) fn failing(is_failing: bool) {
    turn(c"strict_failing", is_failing);
}

/// How many have failed since the last call.
pub(crate) fn failures() -> usize {
    take(c"strict_failures")
}

/// Longest memory that the strict provider registers from now on; 0 for any.
pub(crate) fn memory_max(bytes: usize) {
    set(c"strict_memory_max", bytes);
}

/// Addresses that endpoints of the strict provider know.
pub(crate) fn addresses() -> usize {
    take(c"strict_addresses")
}

/// What rules of the strict provider were broken since the last call.
pub(crate) fn violations() -> String {
    type Take = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    // SAFETY: the signature of the provider's function.
    let take: Take = unsafe { std::mem::transmute(strict_symbol(c"strict_violations")) };
    let mut text = vec![0_u8; 1 << 16];
    // SAFETY: the buffer has as many bytes as are said.
    let length = unsafe { take(text.as_mut_ptr().cast(), text.len()) };
    String::from_utf8_lossy(&text[..length]).into_owned()
}

/// The strict provider is one for the whole process: its tests go one after the other, where they share a process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

pub(crate) fn expect_no_violation() {
    let broken = violations();
    assert!(broken.is_empty(), "rules of the strict provider were broken:\n{broken}");
}

pub(crate) fn peer(number: u64) -> PeerId {
    PeerId { member: MemberId(number), incarnation: Incarnation(1) }
}

/// An exchange with another end in this process, which knows us as `own`.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) other: Arc<Fabric>,
    pub(crate) own: PeerId,
}

impl Exchange for Direct {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        let answer = self.other.answer(self.own, &request);
        Box::pin(async move { answer })
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("it takes too long") })
}

#[derive(Debug)]
struct Sink(Sender<(u32, Result<(), Error>)>);

impl TicketSink for Sink {
    fn completed(&self, index: u32, result: Result<(), Error>) {
        let _ = self.0.send((index, result));
    }
}

/// A registered region.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) id: RegionId,
    pub(crate) key: Arc<[u8]>,
}

impl Memory {
    pub(crate) fn new(fabric: &Fabric, id: u64, length: u64, access: Access) -> Self {
        let region = Arc::new(Region::anonymous(ByteCount(length), PageKind::Base, access).unwrap());
        let id = RegionId(id);
        let key = fabric.register(id, &region).unwrap().into();
        Self { region, id, key }
    }

    /// Fills it with bytes that depend on `seed` and place.
    pub(crate) fn fill(&self, seed: u64) {
        let bytes: Vec<u8> = pattern(seed, self.region.length().get());
        assert!(self.region.write_at(0, &bytes));
    }

    pub(crate) fn bytes(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        assert!(self.region.read_at(offset, &mut bytes));
        bytes
    }
}

pub(crate) fn pattern(seed: u64, length: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(step).collect()
}

/// One operation to make: which way, local offset, remote offset, length.
pub(crate) type Piece = (Direction, u64, u64, u64);

/// Operations under way at one endpoint.
pub(crate) struct Run {
    pub(crate) batch: BatchId,
    results: Receiver<(u32, Result<(), Error>)>,
    count: usize,
    endpoint: Arc<dyn Endpoint>,
    rest: VecDeque<Operation>,
}

impl Run {
    /// Posts `pieces` between two regions, to end within `within`.
    pub(crate) fn start(
        endpoint: &Arc<dyn Endpoint>,
        local: &Memory,
        remote: &Memory,
        pieces: &[Piece],
        within: Duration,
    ) -> Self {
        let (sender, results) = channel();
        let sink: Arc<dyn TicketSink> = Arc::new(Sink(sender));
        let batch = BatchId::next();
        let deadline = Instant::now() + within;
        let rails = endpoint.load().len();
        let operation = |(index, &(direction, from, to, length)): (usize, &Piece)| Operation {
            direction,
            local: MemorySlice::new(&local.region, local.id, from, ByteCount(length)).unwrap(),
            remote: RemoteSlice { region: remote.id, key: Arc::clone(&remote.key), offset: to },
            rail: RailId(u16::try_from(index % rails).unwrap()),
            deadline,
            ticket: Ticket::new(Arc::clone(&sink), batch, u32::try_from(index).unwrap()),
        };
        let mut rest: VecDeque<Operation> = pieces.iter().enumerate().map(operation).collect();
        endpoint.post(&mut rest);
        Self { batch, results, count: pieces.len(), endpoint: Arc::clone(endpoint), rest }
    }

    /// Waits for all ends; posts what did not fit before. Each operation ends exactly once.
    pub(crate) fn wait(mut self) -> Vec<Result<(), Error>> {
        let mut ends: Vec<Option<Result<(), Error>>> = vec![None; self.count];
        let give_up = Instant::now() + PATIENCE;
        while ends.iter().any(Option::is_none) {
            // Another run may have had all the room before; its ends are not told here.
            self.endpoint.post(&mut self.rest);
            let Ok((index, result)) = self.results.recv_timeout(Duration::from_millis(20)) else {
                assert!(Instant::now() < give_up, "an operation does not end: {ends:?}");
                continue;
            };
            let before = ends[index as usize].replace(result);
            assert!(before.is_none(), "operation {index} ended twice");
        }
        ends.into_iter().map(Option::unwrap).collect()
    }
}

/// Two ends in this process, the first connected to the second.
pub(crate) struct Pair {
    pub(crate) near: Arc<Fabric>,
    pub(crate) far: Arc<Fabric>,
    pub(crate) endpoint: Arc<dyn Endpoint>,
}

impl Pair {
    pub(crate) fn open() -> Option<Self> {
        Some(Self::of(open()?, open()?))
    }

    pub(crate) fn open_strict() -> Option<Self> {
        Some(Self::of(open_strict()?, open_strict()?))
    }

    /// Two ends that are opened alike.
    pub(crate) fn with(config: &FabricConfig) -> Option<Self> {
        Some(Self::of(open_with(config)?, open_with(config)?))
    }

    pub(crate) fn of(near: Arc<Fabric>, far: Arc<Fabric>) -> Self {
        let endpoint = connect(&near, &far);
        Self { near, far, endpoint }
    }

    /// Memory of `length` bytes at each end, region 1 at the near one and region 2 at the far one.
    pub(crate) fn memory(&self, length: u64) -> (Memory, Memory) {
        let memory = |end, id| Memory::new(end, id, length, Access::ReadWrite);
        (memory(&self.near, 1), memory(&self.far, 2))
    }
}

/// The first of a pair to the second.
pub(crate) fn connect(near: &Arc<Fabric>, far: &Arc<Fabric>) -> Arc<dyn Endpoint> {
    connect_as(near, peer(1), far, peer(2))
}

/// One end to another, which know each other by these names.
pub(crate) fn connect_as(
    near: &Arc<Fabric>,
    own: PeerId,
    far: &Arc<Fabric>,
    other: PeerId,
) -> Arc<dyn Endpoint> {
    let exchange = Direct { other: Arc::clone(far), own };
    block_on(near.connect(other, &exchange)).unwrap()
}
