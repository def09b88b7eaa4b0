//! Why there is no decision, for programs: one word per kind of trouble.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::DecideError;
use super::decision::Inputs;
use super::gather::GatherError;
use super::planner::PlanError;

/// The kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The kubelet would be outside the version-skew policy of an API server.
    VersionSkew,
    /// A list of images, or its signature, could not be fetched.
    Fetch,
    /// Nobody who counts signed a list.
    Signature,
    /// A list is for something else, or of another time.
    NotForThis,
    /// Nothing tells the version of the cluster.
    ClusterVersion,
    /// No runtime is known, or none is offered, for this cluster and this system.
    NoRuntime,
    /// The updater does not say what the next boot brings.
    NextOs,
    /// A file or a document that is there cannot be used.
    Unusable,
}

/// What a run that came to no decision leaves behind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    pub(crate) why: Why,
    /// What was known when it stopped.
    pub(crate) inputs: Option<Inputs>,
}

/// Where a step leaves it for whoever runs the steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct TroubleBox(Arc<Mutex<Option<Trouble>>>);

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
                | GatherError::Architecture => Self::Unusable,
            },
            DecideError::Plan { source, .. } => match source {
                PlanError::Skew(_) => Self::VersionSkew,
                PlanError::Mappings(_) | PlanError::Nothing(_) | PlanError::Sysext(_) => Self::NoRuntime,
                PlanError::Profile { .. } | PlanError::NoManifest { .. } => Self::Unusable,
            },
        }
    }
}

// === impl TroubleBox ===

impl TroubleBox {
    pub(crate) fn put(&self, error: &DecideError) {
        let inputs = match error {
            DecideError::Plan { inputs, .. } => Some((**inputs).clone()),
            DecideError::Gather(_) => None,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Trouble { why: error.into(), inputs });
    }

    pub(crate) fn take(&self) -> Option<Trouble> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
