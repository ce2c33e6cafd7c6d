//! What the machine does without the engine: plain blocking sockets, memcpy, and a bare tokio ping-pong.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use tidefs_engine::memory::{Access, MemorySlice, PageKind, Region};
use tidefs_engine::transport::Direction;
use tidefs_engine::types::{ByteCount, PeerId, RegionId};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::REGION;
use super::target::Offer;
use crate::bench::error::Error;

/// Streams of the socket baseline: as many as the engine's tcp transport uses for each peer.
pub(super) const STREAMS: usize = 4;
/// What a connection of the socket baseline says first: whether it reads, bytes of a block, blocks, bytes of
/// memory.
const HELLO: usize = 25;
/// Bytes of a message of the ping-pong.
const MESSAGE: usize = 64;

/// Processor time of this process in seconds.
pub(super) fn cpu_seconds() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// Serves the socket baseline: each connection moves blocks in one direction, with a thread of its own.
pub(super) fn serve_sockets(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        thread::spawn(move || serve_stream(stream));
    }
}

fn serve_stream(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello)?;
    let number = |from: usize| u64::from_le_bytes(hello[from..from + 8].try_into().expect("eight bytes"));
    let block = usize::try_from(number(1).clamp(1, REGION.get())).unwrap_or(1);
    let mut memory = Memory::new(block, ByteCount(number(17)));
    // The clock of the other end starts when this memory is there.
    stream.write_all(&[1])?;
    for _ in 0..number(9) {
        if hello[0] == 0 {
            stream.write_all(memory.next_block())?;
        } else {
            stream.read_exact(memory.next_block())?;
        }
    }
    if hello[0] == 1 {
        stream.write_all(&[1])?;
    }
    Ok(())
}

/// The memory of one stream, used block after block: as much for all streams of a peer as the engine has, so that both
/// find as little in the caches of the processor.
struct Memory {
    bytes: Vec<u8>,
    block: usize,
    next: usize,
}

impl Memory {
    fn new(block: usize, span: ByteCount) -> Self {
        let share = usize::try_from(span.min(REGION).get()).unwrap_or(block) / STREAMS;
        Self { bytes: vec![1; (share / block).max(1) * block], block, next: 0 }
    }

    fn next_block(&mut self) -> &mut [u8] {
        let from = self.next;
        self.next = (from + self.block) % self.bytes.len();
        &mut self.bytes[from..from + self.block]
    }
}

/// Seconds to move `blocks` blocks of `size` over [`STREAMS`] plain sockets for each peer, from and into `span` bytes
/// of memory.
pub(super) fn sockets(
    peers: &[(PeerId, Offer)],
    direction: Direction,
    size: ByteCount,
    blocks: u64,
    span: ByteCount,
) -> Result<f64, Error> {
    let streams = STREAMS;
    let total = (streams * peers.len()) as u64;
    // Blocks are cut when there are too few for all streams, as the engine cuts its requests.
    let cut = if blocks < total { total.div_ceil(blocks) } else { 1 };
    let block = usize::try_from(size.get() / cut).unwrap_or(usize::MAX).max(1);
    let blocks = blocks * cut;
    let failed = || Error::system::<std::io::Error>("move bytes by plain sockets");
    let mut connections = Vec::new();
    for (index, (_, offer)) in peers.iter().cycle().take(streams * peers.len()).enumerate() {
        let mine = blocks / total + u64::from((index as u64) < blocks % total);
        let mut stream = TcpStream::connect(offer.sockets).map_err(failed())?;
        stream.set_nodelay(true).map_err(failed())?;
        let memory = Memory::new(block, span);
        greet(&mut stream, direction, block, mine, span).map_err(failed())?;
        connections.push((stream, mine, memory));
    }
    let began = Instant::now();
    thread::scope(|scope| {
        let moving: Vec<_> = connections
            .iter_mut()
            .map(|(stream, mine, memory)| scope.spawn(|| move_blocks(stream, direction, *mine, memory)))
            .collect();
        moving.into_iter().try_for_each(|moved| moved.join().expect("it does not panic")).map_err(failed())
    })?;
    Ok(began.elapsed().as_secs_f64())
}

/// Says what will be moved, and waits until the other end has its memory.
fn greet(
    stream: &mut TcpStream,
    direction: Direction,
    block: usize,
    blocks: u64,
    span: ByteCount,
) -> std::io::Result<()> {
    let mut hello = vec![u8::from(direction == Direction::Write)];
    hello.extend((block as u64).to_le_bytes());
    hello.extend(blocks.to_le_bytes());
    hello.extend(span.get().to_le_bytes());
    stream.write_all(&hello)?;
    stream.read_exact(&mut [0])
}

fn move_blocks(
    stream: &mut TcpStream,
    direction: Direction,
    blocks: u64,
    memory: &mut Memory,
) -> std::io::Result<()> {
    for _ in 0..blocks {
        match direction {
            Direction::Read => stream.read_exact(memory.next_block())?,
            Direction::Write => stream.write_all(memory.next_block())?,
        }
    }
    if direction == Direction::Write {
        stream.read_exact(&mut [0])?;
    }
    Ok(())
}

/// Seconds to copy `blocks` blocks of `size` from the mapped region of a target on this host.
///
/// Writes are compared with the same copy: the contents of the target's memory are verified, and are not touched.
pub(super) fn memcpy(offer: &Offer, size: ByteCount, blocks: u64, span: ByteCount) -> Result<f64, Error> {
    let (process, descriptor) = offer.memory;
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(&path);
    let file = file.map_err(Error::system("map the memory of a target: is it on this host?"))?;
    let failed = || Error::system::<std::io::Error>("map memory for the baseline");
    let theirs =
        Arc::new(Region::of_file(Arc::new(file), offer.length, Access::ReadWrite).map_err(failed())?);
    let mine = Arc::new(Region::anonymous(REGION, PageKind::Base, Access::ReadWrite).map_err(failed())?);
    let places = (span.get() / size.get()).max(1);
    let slice = |region: &Arc<Region>, index: u64| {
        MemorySlice::new(region, RegionId(0), index % places * size.get(), size)
            .map_err(Error::engine("cut memory for the baseline"))
    };
    // Once before the clock starts: the pages of a fresh mapping are not there yet.
    for index in 0..places.min(blocks) {
        slice(&mine, index)?.copy_from(&slice(&theirs, index)?);
    }
    let began = Instant::now();
    for index in 0..blocks {
        slice(&mine, index)?.copy_from(&slice(&theirs, index)?);
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Serves the ping-pong: sends back what comes, 64 bytes at a time.
pub(super) fn serve_ping_pong(runtime: &tokio::runtime::Runtime, listener: TcpListener) -> Result<(), Error> {
    let failed = || Error::system::<std::io::Error>("listen for the ping-pong");
    listener.set_nonblocking(true).map_err(failed())?;
    let _inside = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed())?;
    runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(async move {
                let mut message = [0; MESSAGE];
                while stream.read_exact(&mut message).await.is_ok()
                    && stream.write_all(&message).await.is_ok()
                {}
            });
        }
    });
    Ok(())
}

/// Median round trip in microseconds of a bare tokio program, on a runtime like the engine's.
pub(super) fn ping_pong(offer: &Offer, count: usize) -> Result<f64, Error> {
    let failed = || Error::system::<std::io::Error>("play ping-pong");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed())?;
    let address = offer.ping_pong;
    let task = runtime.spawn(async move {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut message = [7; MESSAGE];
        let mut latencies = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            stream.write_all(&message).await?;
            stream.read_exact(&mut message).await?;
            latencies.push(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(latencies)
    });
    let played: Result<Vec<f64>, std::io::Error> =
        runtime.block_on(task).map_err(|error| Error::Invalid(format!("the ping-pong ended: {error}")))?;
    let mut latencies = played.map_err(failed())?;
    latencies.sort_unstable_by(f64::total_cmp);
    Ok(crate::bench::statistics::percentile(&latencies, 0.5))
}
