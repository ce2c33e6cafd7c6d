//! The other end of the bench: an engine with one region, and plain sockets for the baselines.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use serde::{Deserialize, Serialize};
use tidefs_engine::engine::{Answer, Engine, EngineConfig, FIRST_FREE_CHANNEL, Messages, TransportName};
use tidefs_engine::link::{Channel, LinkConfig};
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::transport::libfabric::bare::BareTarget;
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId, RegionId};

use super::{Opening, baseline, fabric, pattern};
use crate::bench::error::Error;
use crate::bench::ffi;

/// Seed of what a target's memory holds at first.
pub(super) const SEED: u64 = 1;
/// Asks for the body back.
pub(super) const ECHO: Channel = FIRST_FREE_CHANNEL;
/// Asks for the processor time of the target, as seconds in text.
pub(super) const CPU: Channel = Channel(FIRST_FREE_CHANNEL.0 + 1);

/// What a target tells who measures against it: one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    /// Its engine, as versioned bytes.
    pub(super) descriptor: Vec<u8>,
    /// Its region.
    pub(super) region: RegionId,
    /// Length of it.
    pub(super) length: ByteCount,
    /// Plain sockets of the throughput baseline.
    pub(super) sockets: SocketAddr,
    /// The tokio ping-pong.
    pub(super) ping_pong: SocketAddr,
    /// Process and descriptor of the region's file, for the memcpy baseline on the same host.
    pub(super) memory: (u32, i32),
    /// The bare loop of libfabric, where the provider is to be had.
    pub(super) bare: Option<BareTarget>,
}

impl Offer {
    /// Reads the line that a target printed.
    pub(super) fn parse(line: &str) -> Result<Self, Error> {
        serde_json::from_str(line.trim()).map_err(|error| {
            Error::Argument(format!("not the line that `tidefs bench transfer --target` prints: {error}"))
        })
    }
}

#[derive(Debug)]
struct Service;

impl Messages for Service {
    fn request(&self, _: PeerId, channel: Channel, body: Vec<u8>) -> Answer {
        Answer::Now(match channel {
            ECHO => Ok(body),
            CPU => Ok(format!("{:.6}", baseline::cpu_seconds()).into_bytes()),
            _ => Err(format!("nobody answers on channel {}", channel.0)),
        })
    }

    fn notified(&self, _: PeerId, _: Channel, _: Vec<u8>) {}
}

/// Serves until standard input ends.
pub(super) fn serve(
    runtime: &tokio::runtime::Runtime,
    listen: SocketAddr,
    opening: &Opening,
    length: ByteCount,
) -> Result<(), Error> {
    let me = PeerId { member: MemberId(u64::from(std::process::id())), incarnation: Incarnation(1) };
    let config = EngineConfig {
        link: LinkConfig { listen: vec![listen], ..LinkConfig::default() },
        ..EngineConfig::new(me)
    };
    let open = |parts: &_| fabric::open(&TransportName::ALL, opening, parts);
    let engine = Engine::start(runtime.handle().clone(), config, Arc::new(Service), open)
        .map_err(Error::engine("start the engine"))?;
    let region = Region::anonymous(length, PageKind::Base, Access::ReadWrite)
        .map_err(Error::system("allocate the memory of the bench"))?;
    let region = Arc::new(region);
    pattern::fill(&region, SEED);
    let id = engine.register(&region).map_err(Error::engine("register memory"))?;
    let (sockets, ping_pong) = (plain_listener(listen.ip())?, plain_listener(listen.ip())?);
    let file = region.file().expect("anonymous memory is a memfd");
    let offer = Offer {
        descriptor: engine.descriptor().encode(),
        region: id,
        length,
        sockets: address_of(&sockets)?,
        ping_pong: address_of(&ping_pong)?,
        memory: (std::process::id(), file.as_raw_fd()),
        bare: fabric::serve_bare(&opening.fabric, &region),
    };
    thread::spawn(move || baseline::serve_sockets(&sockets));
    baseline::serve_ping_pong(runtime, ping_pong)?;
    println!("{}", serde_json::to_string(&offer).expect("an offer has numbers and text only"));
    let mut nothing = [0; 64];
    while std::io::stdin().read(&mut nothing).is_ok_and(|count| count > 0) {}
    runtime.block_on(engine.close());
    Ok(())
}

fn plain_listener(ip: IpAddr) -> Result<TcpListener, Error> {
    TcpListener::bind((ip, 0)).map_err(Error::system("listen for the baseline"))
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, Error> {
    listener.local_addr().map_err(Error::system("read the address of the baseline"))
}

/// A target process on this host. It ends when its standard input is closed, so also when this process is killed.
#[derive(Debug)]
pub(super) struct Child {
    process: std::process::Child,
    offer: Offer,
}

impl Child {
    /// Starts one and waits for its offer.
    pub(super) fn start(opening: &Opening) -> Result<Self, Error> {
        let program = std::env::current_exe().map_err(Error::system("find this program"))?;
        let mut command = Command::new(program);
        command
            .args(["bench", "transfer", "--target", "--fabric", &opening.fabric])
            .args(["--zerocopy", opening.zerocopy.as_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        ffi::stop_with_parent(&mut command);
        let mut process = command.spawn().map_err(Error::system("start a target process"))?;
        let mut line = String::new();
        let output = process.stdout.take().expect("it was asked for");
        BufReader::new(output).read_line(&mut line).map_err(Error::system("read a target's offer"))?;
        let offer = Offer::parse(&line)?;
        Ok(Self { process, offer })
    }

    /// How to reach it.
    pub(super) fn offer(&self) -> &Offer {
        &self.offer
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(mut input) = self.process.stdin.take() {
            let _ = input.flush();
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
