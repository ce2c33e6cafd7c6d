//! A peer process as the test holds it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidefs_engine::engine::PeerDescriptor;
use tidefs_engine::types::{Incarnation, MemberId, PeerId};

use crate::network::Host;
use crate::orders::{Answer, Load, MARK, Order, Outcome, ROLE, Setup, Status, Target};

/// Longest time for anything here, on a slow and busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(45);

/// A peer that nobody was before.
pub(crate) fn next_id() -> PeerId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    PeerId { member: MemberId(NEXT.fetch_add(1, Ordering::Relaxed)), incarnation: Incarnation(1) }
}

/// The setup of a peer that listens at `listen`.
pub(crate) fn setup(id: PeerId, listen: &[&str], transports: &str) -> Setup {
    Setup {
        id,
        listen: listen.iter().map(|text| text.parse().unwrap()).collect(),
        transports: transports.to_owned(),
        silence_ms: 10_000,
        faults: None,
    }
}

/// An engine in a process of its own, killed when this goes.
#[derive(Debug)]
pub(crate) struct Peer {
    process: Child,
    input: ChildStdin,
    answers: Receiver<Answer>,
    pub(crate) setup: Setup,
    pub(crate) descriptor: Vec<u8>,
}

impl Peer {
    /// Starts one on this host.
    pub(crate) fn start(setup: Setup) -> Self {
        Self::spawn(Command::new(std::env::current_exe().unwrap()), setup)
    }

    /// Starts one on `host`.
    pub(crate) fn start_on(host: &Host, setup: Setup) -> Self {
        let mut command = host.command("env");
        command.arg(std::env::current_exe().unwrap());
        Self::spawn(command, setup)
    }

    fn spawn(mut command: Command, setup: Setup) -> Self {
        command.args(["--exact", "child::serve", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, serde_json::to_string(&setup).unwrap());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, answers) = channel();
        // Ends with the process.
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Some(told) = line.strip_prefix(MARK) else { continue };
                if sender.send(serde_json::from_str(told).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut peer = Self { process, input, answers, setup, descriptor: Vec::new() };
        let Answer::Serving(descriptor) = peer.hear() else { panic!("it does not serve") };
        peer.descriptor = descriptor;
        peer
    }

    fn hear(&self) -> Answer {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(error) => panic!("peer {} does not answer: {error}", self.setup.id),
        }
    }

    pub(crate) fn ask(&mut self, order: &Order) -> Answer {
        writeln!(self.input, "{}", serde_json::to_string(order).unwrap()).unwrap();
        self.hear()
    }

    pub(crate) fn connect(&mut self, other: &Self) {
        let order = Order::Connect { descriptor: other.descriptor.clone(), within_ms: 20_000 };
        let answer = self.ask(&order);
        assert!(matches!(answer, Answer::Done), "{answer:?}");
    }

    /// Tries to connect within `within`; the error in words.
    pub(crate) fn try_connect(&mut self, descriptor: &[u8], within: Duration) -> Result<(), String> {
        let within_ms = u64::try_from(within.as_millis()).unwrap();
        match self.ask(&Order::Connect { descriptor: descriptor.to_vec(), within_ms }) {
            Answer::Done => Ok(()),
            Answer::Failed(words) => Err(words),
            answer => panic!("{answer:?}"),
        }
    }

    pub(crate) fn load(&mut self, load: Load) {
        let answer = self.ask(&Order::Load(load));
        assert!(matches!(answer, Answer::Done), "{answer:?}");
    }

    pub(crate) fn look(&mut self) -> Outcome {
        let Answer::Outcome(outcome) = self.ask(&Order::Look) else { panic!("it does not tell") };
        outcome
    }

    pub(crate) fn stop_load(&mut self) -> Outcome {
        let Answer::Outcome(outcome) = self.ask(&Order::Stop) else { panic!("it does not tell") };
        outcome
    }

    pub(crate) fn status(&mut self) -> Status {
        let Answer::Status(status) = self.ask(&Order::Status) else { panic!("it does not tell") };
        *status
    }

    /// Waits until the load of this peer has succeeded `more` times from now on.
    pub(crate) fn wait_for_success(&mut self, more: u64) {
        let before = self.look().succeeded;
        self.wait_until(&format!("{more} more requests succeed"), |outcome| {
            outcome.succeeded >= before + more
        });
    }

    /// Waits until the load has failed `more` times from now on.
    pub(crate) fn wait_for_failure(&mut self, more: u64) {
        let failed = |outcome: &Outcome| outcome.ended - outcome.succeeded;
        let before = failed(&self.look());
        self.wait_until(&format!("{more} more requests fail"), |outcome| failed(outcome) >= before + more);
    }

    fn wait_until(&mut self, what: &str, is_so: impl Fn(&Outcome) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let outcome = self.look();
            if is_so(&outcome) {
                return;
            }
            assert!(Instant::now() < until, "waited for: {what}: {outcome:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn target(&self) -> Target {
        Target { id: self.setup.id, descriptor: self.descriptor.clone() }
    }

    /// The same peer under other addresses.
    pub(crate) fn descriptor_at(&self, addresses: &[String]) -> Vec<u8> {
        let mut descriptor = PeerDescriptor::decode(&self.descriptor).unwrap();
        descriptor.addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        descriptor.encode()
    }

    pub(crate) fn port(&self) -> u16 {
        PeerDescriptor::decode(&self.descriptor).unwrap().addresses[0].port()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().cast_signed()), signal).unwrap();
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A load of some kind on `targets`, to be changed where it should be another.
pub(crate) fn load(targets: &[&Peer]) -> Load {
    Load {
        targets: targets.iter().map(|peer| peer.target()).collect(),
        seed: 1,
        depth: 4,
        requests_max: 8,
        batch_bytes_max: 512 << 10,
        deadline_ms: 20_000,
        ways: crate::orders::Ways::Both,
        cancelled: 0.0,
    }
}

impl Outcome {
    /// What holds for each load that has stopped, whatever was done to its network or its peers.
    pub(crate) fn expect_sound(&self) {
        assert_eq!(self.wrong, Vec::<String>::new(), "{self:?}");
        assert_eq!(self.ended, self.submitted, "each request ends once: {self:?}");
        // The time to settle, on a busy machine; silence alone would take until the kernel gives up.
        assert!(self.late_ms_max < 10_000, "something ended long after its deadline: {self:?}");
    }
}
