use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::api::policy::v1::Eviction as EvictionObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams};
use serde_json::Value;

use crate::error::{created, deleted};
use crate::{Cluster, Error};

/// The kubelet's annotation of the API's copy of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Limit; a kubelet runs a few hundred pods at most.
const MAX_PODS: u32 = 2000;
/// Characters of a kubelet's message about a pod, which has a sentence or two.
const MAX_HINDRANCE: usize = 1000;

/// A pod with the properties that a drain needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct PodFacts {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The node to which it is bound.
    pub node: String,
    /// The kind of the controller that would recreate it elsewhere.
    pub controller: Option<String>,
    /// Whether it is the API's copy of a static pod.
    pub is_mirror: bool,
    /// Whether it has ended and will not run again.
    pub has_finished: bool,
    /// Whether it is being deleted.
    pub is_going: bool,
    /// Whether it has data that is deleted with it.
    pub has_local_data: bool,
    /// The kubelet's reason why it was rejected or cannot start.
    pub hindrance: Option<String>,
}

/// Outcome of an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The pod is terminating or deleted.
    Accepted,
    /// A disruption budget does not permit it now.
    Refused { reason: String },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trial {
    Yes,
    No,
}

impl Cluster {
    pub async fn pods_on(&self, node: &str) -> Result<Vec<PodFacts>, Error> {
        let pods: Api<Pod> = Api::all(self.client());
        let parameters = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(MAX_PODS);
        let found = self.ask(|| format!("list the pods on node {node}"), pods.list(&parameters)).await?;
        Ok(found.items.into_iter().map(pod_facts).collect())
    }

    /// Returns the pods of a namespace with these labels.
    pub async fn pods(&self, namespace: &str, selector: &str) -> Result<Vec<PodFacts>, Error> {
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        let parameters = ListParams::default().labels(selector).limit(MAX_PODS);
        let asked = || format!("list pods {selector} in {namespace}");
        let found = self.ask(asked, pods.list(&parameters)).await?;
        Ok(found.items.into_iter().map(pod_facts).collect())
    }

    /// Evicts a pod, subject to its disruption budgets.
    pub async fn evict(&self, pod: &PodFacts, grace: Option<Duration>) -> Result<Eviction, Error> {
        self.ask_eviction(pod, grace, Trial::No).await
    }

    /// Checks whether a pod could be evicted now, by a dry run.
    pub async fn would_evict(&self, pod: &PodFacts) -> Result<Eviction, Error> {
        self.ask_eviction(pod, None, Trial::Yes).await
    }

    async fn ask_eviction(
        &self,
        pod: &PodFacts,
        grace: Option<Duration>,
        trial: Trial,
    ) -> Result<Eviction, Error> {
        // A budget's rejection is a 429, which must not be retried.
        let pods: Api<Pod> = Api::namespaced(self.client_once()?, &pod.namespace);
        // The client library writes the options under a field name that the API server does not know.
        let eviction = EvictionObject {
            metadata: ObjectMeta { name: Some(pod.name.clone()), ..ObjectMeta::default() },
            delete_options: Some(DeleteOptions {
                grace_period_seconds: grace.map(|grace| i64::try_from(grace.as_secs()).unwrap_or(i64::MAX)),
                preconditions: Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
                // Set in both possible fields: with only one, a server that reads the other would evict the
                // pod.
                dry_run: (trial == Trial::Yes).then(|| vec!["All".to_owned()]),
                ..DeleteOptions::default()
            }),
        };
        let parameters = PostParams { dry_run: trial == Trial::Yes, ..PostParams::default() };
        let asked = || format!("evict pod {}/{}", pod.namespace, pod.name);
        let answer = pods.create_subresource::<_, Value>("eviction", &pod.name, &parameters, &eviction);
        match self.ask(asked, answer).await {
            Ok(_) => Ok(Eviction::Accepted),
            Err(error) => match error.answer() {
                // The pod was deleted, or replaced by another one of the same name.
                Some((404 | 409, _)) => Ok(Eviction::Accepted),
                Some((429, _)) => {
                    Ok(Eviction::Refused { reason: error.said().unwrap_or_default().to_owned() })
                }
                _ => Err(error),
            },
        }
    }

    /// Creates a pod from its manifest; an existing one is not changed.
    pub async fn create_pod(&self, namespace: &str, manifest: Value) -> Result<(), Error> {
        // A manifest may have fields that the library's types do not have.
        let resource = ApiResource::erase::<Pod>(&());
        let pods = Api::namespaced_with(self.client(), namespace, &resource);
        let pod: DynamicObject =
            serde_json::from_value(manifest).map_err(|source| Error::Manifest { kind: "Pod", source })?;
        let parameters = PostParams::default();
        created(self.ask(|| format!("create a pod in {namespace}"), pods.create(&parameters, &pod)).await)
    }

    /// Deletes a pod; a missing one is not an error.
    pub async fn delete_pod(&self, namespace: &str, name: &str) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        let parameters = DeleteParams::default();
        let asked = || format!("delete pod {namespace}/{name}");
        deleted(self.ask(asked, pods.delete(name, &parameters)).await)
    }
}

fn pod_facts(pod: Pod) -> PodFacts {
    let (spec, status, metadata) =
        (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default(), pod.metadata);
    let owners = metadata.owner_references.unwrap_or_default();
    let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
    PodFacts {
        hindrance: hindrance(&status),
        namespace: metadata.namespace.unwrap_or_default(),
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        node: spec.node_name.unwrap_or_default(),
        controller: controller.map(|owner| owner.kind),
        is_mirror: metadata.annotations.is_some_and(|notes| notes.contains_key(MIRROR)),
        has_finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        is_going: metadata.deletion_timestamp.is_some(),
        has_local_data: spec.volumes.unwrap_or_default().iter().any(|volume| volume.empty_dir.is_some()),
    }
}

/// Returns the reason why a pod does not run. A pod that its node rejected has failed without any container.
/// One whose container cannot start has a waiting container with a reason.
fn hindrance(status: &PodStatus) -> Option<String> {
    let told = |reason: Option<&str>, message: Option<&str>| {
        let parts: Vec<&str> =
            [reason, message].into_iter().flatten().filter(|part| !part.is_empty()).collect();
        let text: String = parts.join(": ").chars().take(MAX_HINDRANCE).collect();
        (!text.is_empty()).then_some(text)
    };
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    if status.phase.as_deref() == Some("Failed") && containers.is_empty() {
        return told(status.reason.as_deref(), status.message.as_deref());
    }
    let waiting = containers.iter().filter_map(|container| container.state.as_ref()?.waiting.as_ref());
    let harmless = |reason: &str| matches!(reason, "ContainerCreating" | "PodInitializing");
    let mut waiting =
        waiting.filter(|waiting| waiting.reason.as_deref().is_some_and(|reason| !harmless(reason)));
    waiting.find_map(|waiting| told(waiting.reason.as_deref(), waiting.message.as_deref()))
}
