//! How a member joins: its start is counted and its engine started, then it is registered, and follows what the others do from
//! there on.
//!
//! Invariant: of a start that is not let in nothing goes on, and the coordinator is asked no more to let it in.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tidefs_engine::engine::{Engine, EngineConfig, Messages, PeerDescriptor, open_transports};
use tidefs_engine::link::LinkConfig;
use tidefs_engine::types::PeerId;
use tokio::runtime::Handle;

use super::carrier::{Carrier, Ear};
use super::coordinator::{Coordinator, CoordinatorError, Reachability};
use super::core::{Core, Ingredients};
use super::error::ClusterError;
use super::member::{Member, View};
use super::node::Cluster;
use super::object::Holder;
use super::settings::ClusterConfig;

/// How long who was not let in waits for a coordinator that answers to hear that it is not to be let in any more.
const TAKEN_BACK_WITHIN: Duration = Duration::from_millis(500);

impl Cluster {
    /// Opens a start of this member, starts its engine, registers it, and follows the views from then on.
    ///
    /// `holder` is asked for what this member holds; when it is gone nothing is.
    ///
    /// # Errors
    /// [`ClusterError::Coordinator`] when it does not let this member in within [`super::settings::Timings::start`];
    /// [`ClusterError::Engine`] when the engine does not start.
    pub async fn start(
        config: ClusterConfig,
        runtime: Handle,
        coordinator: Arc<dyn Coordinator>,
        holder: Weak<dyn Holder>,
    ) -> Result<Self, ClusterError> {
        let deadline = Instant::now() + config.timings.start;
        let start = coordinator.begin(config.member, deadline).await?;
        let me = PeerId { member: config.member, incarnation: start.incarnation };
        let link = LinkConfig {
            listen: config.listen.clone(),
            advertise: config.advertise.clone(),
            cluster: start.cluster.to_string(),
            key: config.key.clone(),
            tls: config.tls.clone(),
            silence_max: config.timings.silence,
            // Readers of many objects at once, and changes that wait for others.
            calls_max: 8192,
            answers_max: 4096,
            ..LinkConfig::default()
        };
        let ear = Arc::new(Ear::default());
        let messages = Arc::clone(&ear) as Arc<dyn Messages>;
        let engine_config = EngineConfig { link, ..EngineConfig::new(me) };
        let (choice, options) = (&config.transports, &config.transport_options);
        let engine = Engine::start(runtime.clone(), engine_config, messages, |parts| {
            open_transports(choice, options, parts)
        })?;
        let descriptor = engine.descriptor();
        let carrier: Arc<dyn Carrier> = Arc::new(engine.clone());
        let engine = Some(engine);
        let cluster = start.cluster;
        let ingredients = Ingredients { me, cluster, config, runtime, coordinator, holder, carrier, engine };
        let core = Core::new(ingredients);
        // Set once, here.
        let _ = ear.0.set(Arc::downgrade(&core));
        Self::join(core, descriptor, deadline).await
    }

    /// Registers a member that is reached as `descriptor` says, and sets it going.
    pub(super) async fn join(
        core: Arc<Core>,
        descriptor: PeerDescriptor,
        deadline: Instant,
    ) -> Result<Self, ClusterError> {
        let member = Member {
            id: core.me.member,
            incarnation: core.me.incarnation,
            name: core.config.name.clone(),
            engine: descriptor,
            labels: core.config.labels.clone(),
            capacity: core.config.capacity,
            protocol: core.config.protocol,
            since: 0,
        };
        let member = core.registration.get_or_init(|| member).clone();
        core.recall_removals();
        if let Err(error) = core.coordinator.register(member, deadline).await {
            // Of a later start nothing is to be taken back, and that there is one is why this one does not take part.
            if !matches!(error, CoordinatorError::Superseded { .. }) {
                take_back_registration(&core).await;
            }
            core.close().await;
            return Err(error.into());
        }
        let mut views = core.coordinator.views();
        let is_me =
            |view: &View| view.member(core.me.member).is_some_and(|member| member.engine.id == core.me);
        if let Ok(Ok(view)) = tokio::time::timeout_at(deadline.into(), views.wait_for(is_me)).await {
            core.adopt_view(view.clone());
        }
        core.forget_kept_removals();
        core.spawn(Arc::clone(&core).tell_recalled());
        core.resume_drain();
        core.spawn(Arc::clone(&core).follow_agreements());
        core.spawn(Arc::clone(&core).follow_views());
        core.spawn(Arc::clone(&core).announce_for_ever());
        core.spawn(Arc::clone(&core).tick_for_ever());
        core.spawn(Arc::clone(&core).copy_for_ever());
        core.spawn(Arc::clone(&core).repair_for_ever());
        Ok(Self { core })
    }
}

/// Has the coordinator not register a start that it was asked in vain to let in: one that is away would do so as soon as it
/// is back, when nobody is there any more.
async fn take_back_registration(core: &Core) {
    let is_reached = matches!(core.coordinator.reachability(), Reachability::Reached);
    let patience = if is_reached { TAKEN_BACK_WITHIN } else { Duration::ZERO };
    if let Err(error) = core.coordinator.leave(core.within(patience)).await {
        tracing::debug!(%error, "a start that was not let in is taken back when the coordinator answers");
    }
}
