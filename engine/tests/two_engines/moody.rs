//! A transport that is the best of its engine, and of which only the moods are known: it refuses, hangs, or is out of reach.

use std::sync::atomic::AtomicBool;

use tidefs_engine::memory::Region;
use tidefs_engine::transport::{Capabilities, Endpoint, Exchange, Rail};
use tokio::sync::Notify;

use super::*;
use crate::ways::config;

/// How a [`Moody`] transport behaves, and what it was asked.
#[derive(Debug, Default)]
pub(crate) struct Mood {
    /// Whether who connects waits, for `go_on`; then it is refused.
    pub(crate) hangs: AtomicBool,
    /// Whether it cannot reach the peer at all, as shared memory one of another host.
    pub(crate) is_out_of_reach: AtomicBool,
    pub(crate) connects: AtomicU64,
    pub(crate) go_on: Notify,
    pub(crate) forgotten: AtomicU64,
    /// Whether it never lets go of a region.
    pub(crate) keeps_regions: AtomicBool,
    /// Whether no memory can be registered with it, and whether that has to be, here too.
    pub(crate) refuses_regions: AtomicBool,
    pub(crate) needs_regions: AtomicBool,
    /// Whether it takes its time to forget, and whether it is about it.
    pub(crate) forgets_slowly: AtomicBool,
    pub(crate) is_forgetting: AtomicBool,
    /// Whether its closing never ends, and how often it began.
    pub(crate) never_closes: AtomicBool,
    pub(crate) closed: AtomicU64,
}

/// A transport of which only the connecting is known: it refuses, or does not end.
#[derive(Debug)]
struct Moody {
    inner: Arc<dyn Transport>,
    mood: Arc<Mood>,
}

impl Transport for Moody {
    fn name(&self) -> &'static str {
        "moody"
    }

    fn capabilities(&self) -> Capabilities {
        let needs_local_registration = self.mood.needs_regions.load(Ordering::Relaxed);
        Capabilities { needs_local_registration, ..self.inner.capabilities() }
    }

    fn rails(&self) -> Vec<Rail> {
        self.inner.rails()
    }

    fn register(&self, _: RegionId, _: &Arc<Region>) -> Result<Vec<u8>, Error> {
        if self.mood.refuses_regions.load(Ordering::Relaxed) {
            return Err(Error::System { what: "register memory", cause: "it may not be pinned".into() });
        }
        Ok(Vec::new())
    }

    fn unregister(&self, _: RegionId) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.mood.keeps_regions.load(Ordering::Relaxed) {
                std::future::pending().await
            }
        })
    }

    fn connect<'a>(
        &'a self,
        _: PeerId,
        _: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        self.mood.connects.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {
            if self.mood.hangs.load(Ordering::Relaxed) {
                self.mood.go_on.notified().await;
            }
            if self.mood.is_out_of_reach.load(Ordering::Relaxed) {
                let (looked_for, cause) = ("a peer on this host".into(), "it runs on another".into());
                return Err(Error::Unavailable { transport: "moody", looked_for, cause });
            }
            Err(Error::Refused { cause: "not now".into() })
        })
    }

    fn answer(&self, _: PeerId, _: &[u8]) -> Result<Vec<u8>, Error> {
        Err(Error::Refused { cause: "nobody asks".into() })
    }

    fn forget(&self, _: PeerId) {
        self.mood.is_forgetting.store(true, Ordering::SeqCst);
        self.mood.forgotten.fetch_add(1, Ordering::SeqCst);
        if self.mood.forgets_slowly.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(500));
        }
        self.mood.is_forgetting.store(false, Ordering::SeqCst);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.mood.closed.fetch_add(1, Ordering::SeqCst);
            if self.mood.never_closes.load(Ordering::Relaxed) {
                std::future::pending().await
            }
        })
    }
}

/// An engine whose best transport is moody, and the other `tcp`.
pub(crate) fn moody(runtime: &Runtime, mood: &Arc<Mood>) -> End {
    moody_with(runtime, mood, config())
}

pub(crate) fn moody_with(runtime: &Runtime, mood: &Arc<Mood>, config: EngineConfig) -> End {
    start_with(runtime, config, Access::ReadWrite, |parts| {
        let inner = TransportName::Tcp.open(&TransportOptions::default(), parts)?;
        Ok(vec![around(&inner, mood), inner])
    })
}

/// Moody all the way.
pub(crate) fn all_moody(runtime: &Runtime, moods: &[Arc<Mood>]) -> End {
    start_with(runtime, config(), Access::ReadWrite, |parts| {
        let inner = TransportName::Tcp.open(&TransportOptions::default(), parts)?;
        Ok(moods.iter().map(|mood| around(&inner, mood)).collect())
    })
}

fn around(inner: &Arc<dyn Transport>, mood: &Arc<Mood>) -> Arc<dyn Transport> {
    Arc::new(Moody { inner: Arc::clone(inner), mood: Arc::clone(mood) })
}
