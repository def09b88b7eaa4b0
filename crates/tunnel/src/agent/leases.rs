//! Number of servers, according to their leases.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use landfall_cluster::{Cluster, LeaseQuery};
use landfall_model::chain;
use tokio::sync::Notify;

use super::servers::Servers;
use crate::number::random;

/// Interval for counting leases, as upstream. A random delay of up to half of it keeps agents from querying
/// simultaneously.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// `--server-count-source`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountSource {
    /// The number of leases, where they are counted.
    #[default]
    Default,
    /// The larger of the numbers from leases and from servers.
    Max,
}

pub(super) struct LeaseCounter {
    pub(super) cluster: Cluster,
    pub(super) query: LeaseQuery,
}

// === impl LeaseCounter ===

impl LeaseCounter {
    /// Counts without end. The last count stays in effect while counting fails.
    pub(super) async fn count(&self, servers: &Servers, changed: &Arc<Notify>) {
        loop {
            let started = Instant::now();
            let counted = self.cluster.live_leases(&self.query, Timestamp::now()).await;
            servers.metrics.lease_lists.observe(&counted, started.elapsed());
            match counted {
                Ok(live) => {
                    if servers.set_leases(live) {
                        tracing::info!(live, "servers counted by their leases");
                        changed.notify_one();
                    }
                }
                Err(error) => tracing::warn!(error = %chain(&error), "leases of servers not counted"),
            }
            let extra = u32::try_from(random() % 500).unwrap_or(0);
            tokio::time::sleep(LOOK_EVERY + LOOK_EVERY * extra / 1000).await;
        }
    }
}

impl fmt::Debug for LeaseCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseCounter").field("query", &self.query).finish_non_exhaustive()
    }
}

// === impl CountSource ===

impl std::str::FromStr for CountSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "default" => Ok(Self::Default),
            "max" => Ok(Self::Max),
            other => Err(format!("`{other}` is not a source of the server count; hint: `default`, `max`")),
        }
    }
}
