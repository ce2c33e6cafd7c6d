//! Paths of the admin API. The version stands in the path, so that two can be served side by side.

/// `GET`: [`crate::Status`].
pub const STATUS: &str = "/v1/status";
/// `GET` with [`crate::ListQuery`]: one [`crate::ListEvent`] a line, the last one a summary or an error.
pub const LIST: &str = "/v1/list";
/// `GET` with [`crate::PathQuery`]: [`crate::ObjectStat`].
pub const STAT: &str = "/v1/stat";
/// `GET` with [`crate::PathQuery`]: [`crate::Why`].
pub const WHY: &str = "/v1/why";
/// `GET` with [`crate::PathQuery`]: [`crate::Where`].
pub const WHERE: &str = "/v1/where";
/// `POST` of [`crate::DrainRequest`]: [`crate::DrainStatus`].
pub const DRAIN: &str = "/v1/drain";
/// `POST` of [`crate::EvictRequest`]: one [`crate::EvictEvent`] a line, the last one a summary or an error. It ends with
/// its reader.
pub const EVICT: &str = "/v1/evict";
/// `POST` of [`crate::PinRequest`]: [`crate::Pinned`].
pub const PIN: &str = "/v1/pin";
/// `POST` of [`crate::VerifyRequest`]: one [`crate::VerifyEvent`] a line, the last one a summary or an error.
pub const VERIFY: &str = "/v1/verify";
/// `POST` of [`crate::AddDiskRequest`]: [`crate::DisksChanged`].
pub const TIER_ADD: &str = "/v1/tier/add";
/// `POST` of [`crate::RemoveDiskRequest`]: [`crate::DisksChanged`].
pub const TIER_REMOVE: &str = "/v1/tier/remove";
/// `POST` of [`crate::DrainDiskRequest`]: one [`crate::DrainEvent`] a line, the last one a summary or an error.
pub const TIER_DRAIN: &str = "/v1/tier/drain";
/// `GET`: [`crate::EffectiveConfig`].
pub const CONFIG: &str = "/v1/config";
/// `GET`: metrics as text, in the exposition format of Prometheus.
pub const METRICS: &str = "/v1/metrics";
/// `GET`: `ok` as text, while the daemon answers. Carries no version, for probes outlive versions.
pub const HEALTH: &str = "/healthz";

#[cfg(test)]
mod tests {
    #[test]
    fn versioned_routes_carry_the_api_version() {
        let prefix = format!("/v{}/", crate::API_VERSION);
        for route in [
            super::STATUS,
            super::LIST,
            super::STAT,
            super::WHY,
            super::WHERE,
            super::DRAIN,
            super::EVICT,
            super::PIN,
            super::VERIFY,
            super::TIER_ADD,
            super::TIER_REMOVE,
            super::TIER_DRAIN,
            super::CONFIG,
            super::METRICS,
        ] {
            assert!(route.starts_with(&prefix), "{route}");
        }
    }
}
