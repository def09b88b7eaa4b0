//! The reason why a run stopped, machine-readable: one word per kind.

use std::sync::{Arc, Mutex, PoisonError};

use landfall_fetch::FetchError;
use landfall_steps::StepError;
use serde::{Deserialize, Serialize};

use super::DecideError;
use super::decision::Inputs;
use super::gather::GatherError;
use super::planner::PlanError;
use super::steps;

/// The kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The kubelet would be outside the version-skew policy of an API server.
    VersionSkew,
    /// A list of images, its signature, or an image could not be fetched.
    Fetch,
    /// The content of an image differs from the hash in its list.
    WrongHash,
    /// No trusted key signed a list.
    Signature,
    /// A list is for another system, or its validity period does not match.
    NotForThis,
    /// The version of the cluster could not be determined.
    ClusterVersion,
    /// No runtime is known, or available, for this cluster and this system.
    NoRuntime,
    /// The updater failed, or does not report which system the next boot starts.
    NextOs,
    /// A file or a document exists but cannot be used.
    Unusable,
    /// An extension does not fit an operating system that would load it, or one blocks all others.
    Misfit,
    /// The machine does not run the runtime that was installed for it.
    NotActive,
    /// The disk of this node, or its systemd, failed.
    Machine,
}

/// An image that was not delivered.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotBrought {
    pub why: Why,
    pub(crate) error: StepError,
}

/// Details that a stopped run leaves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    pub(crate) why: Why,
    /// The inputs known when the run stopped, if no decision contains them.
    pub(crate) inputs: Option<Inputs>,
}

/// Passes details from a step to the code that runs the steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct TroubleBox(Arc<Mutex<Option<(&'static str, Trouble)>>>);

// === impl Why ===

impl From<&DecideError> for Why {
    fn from(error: &DecideError) -> Self {
        match error {
            DecideError::Gather(error) => match error {
                GatherError::Fetch { .. } => Self::Fetch,
                GatherError::Verify { .. } => Self::Signature,
                GatherError::NotForThis { .. } => Self::NotForThis,
                GatherError::NoClusterVersion { .. } | GatherError::Forced(_) => Self::ClusterVersion,
                GatherError::NextOs(_) | GatherError::PendingUnknown => Self::NextOs,
                GatherError::Read { .. }
                | GatherError::Missing { .. }
                | GatherError::OsRelease(_)
                | GatherError::Mappings { .. }
                | GatherError::Template(_)
                | GatherError::Manifest { .. }
                | GatherError::Sums { .. }
                | GatherError::Profile(_)
                | GatherError::Architecture
                | GatherError::Merged { .. } => Self::Unusable,
            },
            DecideError::Plan { source, .. } => match source {
                PlanError::Skew(_) => Self::VersionSkew,
                PlanError::Mappings(_) | PlanError::Nothing(_) | PlanError::Sysext(_) => Self::NoRuntime,
                PlanError::Profile { .. } | PlanError::NoManifest { .. } => Self::Unusable,
            },
        }
    }
}

impl From<&FetchError> for Why {
    fn from(error: &FetchError) -> Self {
        match error {
            FetchError::WrongHash { .. } | FetchError::Everywhere { wrong: true, .. } => Self::WrongHash,
            FetchError::NoSpace { .. } | FetchError::Write { .. } | FetchError::Publish { .. } => {
                Self::Machine
            }
            _ => Self::Fetch,
        }
    }
}

impl Why {
    /// Returns the word used in every format.
    pub fn name(self) -> &'static str {
        match self {
            Self::VersionSkew => "version-skew",
            Self::Fetch => "fetch",
            Self::WrongHash => "wrong-hash",
            Self::Signature => "signature",
            Self::NotForThis => "not-for-this",
            Self::ClusterVersion => "cluster-version",
            Self::NoRuntime => "no-runtime",
            Self::NextOs => "next-os",
            Self::Unusable => "unusable",
            Self::Misfit => "misfit",
            Self::NotActive => "not-active",
            Self::Machine => "machine",
        }
    }

    /// Returns the default reason for a failure of this step.
    pub(crate) fn of_step(step: &str) -> Self {
        match step {
            steps::UPDATE_OS => Self::NextOs,
            steps::DECIDE => Self::Unusable,
            steps::FETCH => Self::Fetch,
            steps::CHECK => Self::Misfit,
            steps::MERGE | steps::VERIFY => Self::NotActive,
            _ => Self::Machine,
        }
    }
}

// === impl TroubleBox ===

impl TroubleBox {
    /// Records why a step failed.
    pub(crate) fn put(&self, step: &'static str, trouble: Trouble) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((step, trouble));
    }

    /// Returns why this step failed. Entries of an earlier attempt or an earlier step are ignored.
    pub(crate) fn take(&self, step: &str) -> Trouble {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let left = left.filter(|(of, _)| *of == step).map(|(_, trouble)| trouble);
        left.unwrap_or_else(|| Trouble { why: Why::of_step(step), inputs: None })
    }
}

// === impl Trouble ===

impl From<&DecideError> for Trouble {
    fn from(error: &DecideError) -> Self {
        let inputs = match error {
            DecideError::Plan { inputs, .. } => Some((**inputs).clone()),
            DecideError::Gather(_) => None,
        };
        Self { why: error.into(), inputs }
    }
}

#[cfg(test)]
mod tests {
    use landfall_steps::events::EventStream;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::environment::HostEnvironment;
    use crate::prepare::request::Request;
    use crate::prepare::run::{Decided, Other, Prepared, prepare};

    /// Retries do not sleep in this test.
    #[tokio::test(start_paused = true)]
    async fn a_bus_that_is_not_there_has_its_word() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("usr/lib")).unwrap();
        let release = "ID=flatcar\nVERSION_ID=2000.0.0\nFLATCAR_BOARD=amd64-usr\n";
        std::fs::write(folder.path().join("usr/lib/os-release"), release).unwrap();
        let env = Arc::new(HostEnvironment::new(folder.path(), None).unwrap());
        let (events, cancel) = (EventStream::default(), CancellationToken::new());
        let prepared = prepare(&env, &Request::default(), Other::Respect, &events, &cancel).await.unwrap();
        let Prepared::Failed { step, reason, why, decided } = prepared else { panic!("{prepared:?}") };
        assert_eq!((step.as_str(), why, decided), (steps::UPDATE_OS, Why::NextOs, Decided::NotYet));
        assert!(reason.contains("cannot reach the system bus"), "{reason}");
        let status = crate::prepare::status::status(&*env).unwrap();
        assert_eq!(status.why, Some(Why::NextOs));
    }

    #[test]
    fn every_word_is_the_same_in_every_format() {
        for why in [
            Why::VersionSkew,
            Why::Fetch,
            Why::WrongHash,
            Why::Signature,
            Why::NotForThis,
            Why::ClusterVersion,
            Why::NoRuntime,
            Why::NextOs,
            Why::Unusable,
            Why::Misfit,
            Why::NotActive,
            Why::Machine,
        ] {
            assert_eq!(serde_json::to_value(why).unwrap(), why.name());
        }
    }
}
