//! A way to a port of loopback that can be closed, held up, and made to change what it carries.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How often a way that holds bytes up looks whether it still does.
const LOOK: Duration = Duration::from_millis(1);

/// What connections that carry messages alone carry in a moment, at most.
const LITTLE: u64 = 256 << 10;

#[derive(Debug)]
struct Rules {
    is_open: AtomicBool,
    /// Raised when one of the others changes.
    epoch: AtomicU64,
    /// Bytes that are carried before the rest is held up, since then.
    allowed: AtomicU64,
    /// Which of these bytes, counted from 1, is changed, in the first direction that comes to it; 0 for none.
    wrong_byte: AtomicU64,
    /// Bytes that were carried since then.
    carried: AtomicU64,
}

/// A way that is open at first.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) port: u16,
    rules: Arc<Rules>,
    /// Both ends of each connection.
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    /// To the server that listens on `port` of loopback, or will.
    pub(crate) fn to(port: u16) -> Self {
        let door = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let rules = Rules {
            is_open: AtomicBool::new(true),
            epoch: AtomicU64::new(0),
            allowed: AtomicU64::new(u64::MAX),
            wrong_byte: AtomicU64::new(0),
            carried: AtomicU64::new(0),
        };
        let way = Self {
            port: door.local_addr().expect("its address").port(),
            rules: Arc::new(rules),
            connections: Arc::default(),
        };
        let (rules, connections) = (Arc::clone(&way.rules), Arc::clone(&way.connections));
        // Ends with the process: accept(2) of a listener cannot be ended otherwise.
        thread::spawn(move || {
            for near in door.incoming().map_while(Result::ok) {
                let mut all = connections.lock().expect("nobody panics with it");
                let far = TcpStream::connect(("127.0.0.1", port)).ok();
                let Some(far) = far.filter(|_| rules.is_open.load(Ordering::SeqCst)) else { continue };
                for (from, mut to) in [(copy(&near), copy(&far)), (copy(&far), copy(&near))] {
                    let rules = Arc::clone(&rules);
                    thread::spawn(move || {
                        // However it ends: both ends are told.
                        let _ = carry(from, &mut to, &rules);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                all.extend([near, far]);
            }
        });
        way
    }

    pub(crate) fn close(&self) {
        self.rules.is_open.store(false, Ordering::SeqCst);
        for connection in self.connections.lock().expect("nobody panics with it").drain(..) {
            // One that ended by itself is fine.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn open(&self) {
        self.rules.is_open.store(true, Ordering::SeqCst);
    }

    /// So many bytes are carried from now on, and the rest is held up, but for connections that carry little.
    pub(crate) fn hold_after(&self, bytes: u64) {
        self.rules.allowed.store(bytes, Ordering::SeqCst);
        self.rules.carried.store(0, Ordering::SeqCst);
        self.rules.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Carries on.
    pub(crate) fn let_go(&self) {
        self.hold_after(u64::MAX);
    }

    /// Changes the byte behind the next `bytes` of one direction, once.
    pub(crate) fn change_after(&self, bytes: u64) {
        self.rules.wrong_byte.store(bytes + 1, Ordering::SeqCst);
        self.rules.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether the byte that was to be changed was.
    pub(crate) fn has_changed(&self) -> bool {
        self.rules.wrong_byte.load(Ordering::SeqCst) == 0
    }

    /// Bytes that were carried since they were held up or let go.
    pub(crate) fn carried(&self) -> u64 {
        self.rules.carried.load(Ordering::SeqCst)
    }
}

/// Carries one direction of a connection to its end.
fn carry(mut from: TcpStream, to: &mut TcpStream, rules: &Rules) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let (mut epoch, mut carried) = (0, 0);
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        loop {
            let now = rules.epoch.load(Ordering::SeqCst);
            if now != epoch {
                (epoch, carried) = (now, 0);
            }
            let allowed = rules.allowed.load(Ordering::SeqCst);
            if carried < LITTLE || rules.carried.load(Ordering::SeqCst) < allowed {
                break;
            }
            if !rules.is_open.load(Ordering::SeqCst) {
                return Ok(());
            }
            thread::sleep(LOOK);
        }
        let wrong = rules.wrong_byte.load(Ordering::SeqCst);
        if wrong > carried && wrong <= carried + count as u64 {
            let is_mine = rules.wrong_byte.compare_exchange(wrong, 0, Ordering::SeqCst, Ordering::SeqCst);
            if is_mine.is_ok() {
                buffer[usize::try_from(wrong - carried - 1).expect("it is in the buffer")] ^= 0x20;
            }
        }
        to.write_all(&buffer[..count])?;
        carried += count as u64;
        rules.carried.fetch_add(count as u64, Ordering::SeqCst);
    }
}

fn copy(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a descriptor")
}

/// A port of loopback on which nobody listens, below those that the kernel gives to whoever asks for any. Each test is a
/// process, and begins to look at another one.
pub(crate) fn free_port() -> u16 {
    const FIRST: u64 = 12_000;
    const COUNT: u64 = 18_000;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let start = u64::from(std::process::id()).wrapping_mul(97);
    let next =
        || (FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT).try_into().expect("a port");
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(next).take(1000).find(is_free).expect("a free port")
}
