use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::PostParams;

use crate::{Cluster, Error, OwnLease};

/// Limit of another holder's lease duration, as a multiple of this one's. It may be configured with a longer
/// duration.
const MOST_PATIENCE: u32 = 3;

/// A candidate for a Lease; its holder leads.
///
/// The silence of another holder is measured by the local clock, from the last observed change of the Lease.
/// The clocks of different machines need not agree.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Election {
    cluster: Cluster,
    lease: OwnLease,
    seen: Option<(String, Instant)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Leadership until this time, unless the Lease is renewed.
    Leading {
        until: Instant,
    },
    Following {
        leader: String,
    },
}

// === impl Election ===

impl Election {
    pub fn new(cluster: Cluster, lease: OwnLease) -> Self {
        Self { cluster, lease, seen: None }
    }

    /// Acquires a free Lease or renews an own one. Without a response, leadership ends with the last renewal.
    pub async fn campaign(&mut self) -> Result<Standing, Error> {
        let asked_at = Instant::now();
        let OwnLease { namespace, name, holder, duration, .. } = &self.lease;
        let leases: Api<Lease> = Api::namespaced(self.cluster.client(), namespace);
        let asked = || format!("read Lease {namespace}/{name}");
        let found = self.cluster.ask(asked, leases.get_opt(name)).await?;
        let leading = Standing::Leading { until: asked_at + *duration };
        let parameters = PostParams::default();
        let Some(mut object) = found else {
            let object = Lease {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    labels: Some(self.lease.labels.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(None)),
            };
            let asked = || format!("create Lease {namespace}/{name}");
            return won(self.cluster.ask(asked, leases.create(&parameters, &object)).await, leading);
        };
        let spec = object.spec.clone().unwrap_or_default();
        let leader = spec.holder_identity.clone().unwrap_or_default();
        if leader != *holder && !leader.is_empty() {
            let version = object.metadata.resource_version.clone().unwrap_or_default();
            let valid = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
            let valid = patience(valid.map(Duration::from_secs), *duration);
            match &self.seen {
                Some((seen, since)) if *seen == version => {
                    if since.elapsed() < valid {
                        return Ok(Standing::Following { leader });
                    }
                }
                _ => {
                    self.seen = Some((version, asked_at));
                    return Ok(Standing::Following { leader });
                }
            }
        }
        object.spec = Some(self.spec(Some(&spec)));
        let asked = || format!("renew Lease {namespace}/{name}");
        won(self.cluster.ask(asked, leases.replace(name, &parameters, &object)).await, leading)
    }

    /// Releases an own Lease, so that another candidate can lead immediately.
    pub async fn resign(&self) -> Result<(), Error> {
        let OwnLease { namespace, name, holder, .. } = &self.lease;
        let leases: Api<Lease> = Api::namespaced(self.cluster.client(), namespace);
        let asked = || format!("read Lease {namespace}/{name}");
        let Some(mut object) = self.cluster.ask(asked, leases.get_opt(name)).await? else { return Ok(()) };
        let Some(spec) = object.spec.as_mut().filter(|spec| spec.holder_identity.as_ref() == Some(holder))
        else {
            return Ok(());
        };
        spec.holder_identity = Some(String::new());
        let parameters = PostParams::default();
        let asked = || format!("give up Lease {namespace}/{name}");
        self.cluster.ask(asked, leases.replace(name, &parameters, &object)).await.map(drop)
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let holder = Some(self.lease.holder.clone());
        let kept = before.filter(|before| before.holder_identity == holder);
        let transitions = before.and_then(|before| before.lease_transitions).unwrap_or(0);
        LeaseSpec {
            acquire_time: kept.and_then(|kept| kept.acquire_time.clone()).or_else(|| Some(now.clone())),
            lease_transitions: Some(transitions.saturating_add(i32::from(kept.is_none()))),
            holder_identity: holder,
            lease_duration_seconds: Some(i32::try_from(self.lease.duration.as_secs()).unwrap_or(i32::MAX)),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }
    }
}

/// Returns the time after which a silent holder loses the Lease. Any client may have written the claimed
/// duration, so it is limited. The minimum is the time for which a holder with the same settings leads. The
/// maximum prevents the Lease of a removed holder from blocking the election.
fn patience(claimed: Option<Duration>, own: Duration) -> Duration {
    claimed.unwrap_or(own).clamp(own, own * MOST_PATIENCE)
}

/// Returns the result of a write: on a conflict, another candidate has the Lease.
fn won(written: Result<Lease, Error>, leading: Standing) -> Result<Standing, Error> {
    match written {
        Ok(_) => Ok(leading),
        Err(error) if error.is_conflict() => Ok(Standing::Following { leader: "another replica".to_owned() }),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lease_says_of_itself_is_believed_within_reason() {
        let own = Duration::from_secs(30);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(patience(None, own), own);
        assert_eq!(patience(seconds(0), own), own, "its holder still believes it leads");
        assert_eq!(patience(seconds(45), own), Duration::from_secs(45));
        assert_eq!(patience(seconds(u64::from(u32::MAX)), own), Duration::from_secs(90));
    }
}
