//! What a peer process runs: an engine that does as it is told on standard input, until that ends.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::engine::{
    Engine, EngineConfig, NoMessages, Parts, PeerDescriptor, TransportChoice, TransportOptions,
    open_transports,
};
use tidefs_engine::error::Error;
use tidefs_engine::link::LinkConfig;
use tidefs_engine::transport::Transport;
use tidefs_engine::transport::layer::fault::{self, FaultOptions};
use tidefs_engine::transport::libfabric::FabricConfig;
use tidefs_engine::types::ByteCount;
use tokio::runtime::Handle;

use crate::crowd;
use crate::load::{Memory, Running};
use crate::orders::{Answer, MARK, Order, ROLE, Setup, Status};

/// Not a test: what the process runs that [`crate::peer::Peer`] starts. Without its environment it does nothing.
#[test]
fn serve() {
    let Some(setup) = std::env::var_os(ROLE) else { return };
    // A panic of any thread is to be seen by who waits for an answer.
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        std::process::abort();
    }));
    let setup: Setup = serde_json::from_str(setup.to_str().unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let engine = start(runtime.handle(), &setup);
    let memory = Arc::new(Memory::register(&engine, setup.id));
    say(&Answer::Serving(engine.descriptor().encode()));
    let mut running: Option<Running> = None;
    let mut crowd = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line.unwrap()).unwrap() {
            Order::Connect { descriptor, within_ms } => {
                let descriptor = PeerDescriptor::decode(&descriptor).unwrap();
                let deadline = Instant::now() + Duration::from_millis(within_ms);
                match runtime.block_on(engine.connect(&descriptor, deadline)) {
                    Ok(()) => Answer::Done,
                    Err(error) => Answer::Failed(error.to_string()),
                }
            }
            Order::Load(load) => {
                assert!(running.is_none(), "one load at a time");
                running = Some(Running::start(&runtime, &engine, &memory, load));
                Answer::Done
            }
            Order::Look => Answer::Outcome(running.as_ref().unwrap().look()),
            Order::Stop => Answer::Outcome(runtime.block_on(running.take().unwrap().stop())),
            Order::Status => Answer::Status(Box::new(status(&engine))),
            Order::Crowd { first_member, count, target } => {
                runtime.block_on(crowd::gather(&mut crowd, &setup, first_member, count, target))
            }
            Order::Greet { targets } => runtime.block_on(crowd::greet(&engine, memory.private_id, &targets)),
        };
        say(&answer);
    }
    // The test is over; its process does not wait for anything.
    std::process::exit(0);
}

fn say(answer: &Answer) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "\n{MARK}{}", serde_json::to_string(answer).unwrap()).unwrap();
    output.flush().unwrap();
}

pub(crate) fn start(runtime: &Handle, setup: &Setup) -> Engine {
    let choice: TransportChoice = setup.transports.parse().unwrap();
    let link = LinkConfig {
        listen: setup.listen.clone(),
        silence_max: Duration::from_millis(setup.silence_ms),
        message_bytes_max: ByteCount::mib(1),
        ..LinkConfig::default()
    };
    let connect_timeout = Duration::from_millis(setup.silence_ms);
    let config = EngineConfig { link, connect_timeout, ..EngineConfig::new(setup.id) };
    let open = |parts: &Parts| -> Result<Vec<Arc<dyn Transport>>, Error> {
        // A provider that is wherever libfabric is.
        let libfabric = FabricConfig {
            provider: Some("tcp;ofi_rxm".to_owned()),
            address: Some(Ipv4Addr::LOCALHOST.into()),
            ..FabricConfig::default()
        };
        let options = TransportOptions { libfabric, ..TransportOptions::default() };
        let opened = open_transports(&choice, &options, parts)?;
        let Some(faults) = setup.faults else { return Ok(opened) };
        let options = FaultOptions {
            seed: faults.seed,
            delay_max: Duration::from_millis(faults.delay_ms_max),
            loss: faults.loss,
            failure: faults.failure,
            ..FaultOptions::default()
        };
        let faulty = |inner| fault::faulty(inner, &fault::Faults::new(options), &parts.runtime);
        Ok(opened.into_iter().map(faulty).collect())
    };
    Engine::start(runtime.clone(), config, Arc::new(NoMessages), open).unwrap()
}

fn status(engine: &Engine) -> Status {
    let numbers = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = numbers.split_whitespace().nth(1).unwrap().parse().unwrap();
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap();
    let micros = |time: nix::sys::time::TimeVal| {
        u64::try_from(time.tv_sec()).unwrap() * 1_000_000 + u64::try_from(time.tv_usec()).unwrap()
    };
    let mut kinds = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        // That of the listing itself is gone by now.
        let Ok(name) = std::fs::read_link(entry.unwrap().path()) else { continue };
        let kind: String = name.to_string_lossy().chars().filter(|char| !char.is_ascii_digit()).collect();
        *kinds.entry(kind).or_default() += 1;
    }
    let count = |folder| std::fs::read_dir(folder).unwrap().count() as u64;
    Status {
        engine: engine.status(),
        resident_bytes: pages * 4096,
        descriptors: kinds.values().sum(),
        kinds,
        threads: count("/proc/self/task"),
        cpu_us: micros(usage.user_time()) + micros(usage.system_time()),
        wakes: u64::try_from(usage.voluntary_context_switches()).unwrap(),
    }
}
