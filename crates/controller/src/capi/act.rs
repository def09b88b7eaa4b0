//! Execution of one action as a write to the management cluster.

use landfall_cluster::{Cluster, Error, Part, Place};
use serde_json::{Value, json};

use super::condition::{Condition, TYPE};
use super::machine::{HOOK, MachineName};
use super::manifests::MANAGER;
use super::plan::{Action, Orphan};
use super::report;
use super::shape::{Shape, Way};

/// Attempts to read and replace the conditions while other clients write them.
const MAX_TRIES: usize = 5;
/// Text of the hook annotation, for administrators.
const HOLDER: &str = "landfall-capi: until the bundle is in the hub, for a limited time";

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The Machine was deleted, or replaced by another one of the same name.
    Gone,
    /// Another manager owns the condition. The controller does not take it back.
    Conflict,
}

pub async fn act(cluster: &Cluster, shape: Shape, action: &Action) -> Result<Outcome, Error> {
    let written = match action {
        Action::Hook { machine } => annotate(cluster, shape, machine, Some(HOLDER)).await,
        Action::Unhook { machine } => annotate(cluster, shape, machine, None).await,
        Action::Show { machine, condition, .. } => show(cluster, shape, machine, Some(condition)).await,
        Action::Clear { machine } => show(cluster, shape, machine, None).await,
        Action::Adopt { orphan } => adopt(cluster, shape, orphan).await,
    };
    match written {
        Err(error) => match error.answer() {
            Some((404, _)) => Ok(Outcome::Gone),
            // The API server's response for a custom resource of this name with another UID.
            Some((422, _)) if error.said().is_some_and(|words| words.contains("metadata.uid")) => {
                Ok(Outcome::Gone)
            }
            Some((409, _)) => Ok(Outcome::Conflict),
            _ => Err(error),
        },
        written => written,
    }
}

async fn annotate(
    cluster: &Cluster,
    shape: Shape,
    machine: &MachineName,
    value: Option<&str>,
) -> Result<Outcome, Error> {
    let patch = json!({"metadata": {"uid": machine.uid, "annotations": {HOOK: value}}});
    cluster.merge_placed(&shape.machine(), machine.place(), MANAGER, Part::Object, &patch).await?;
    Ok(Outcome::Done)
}

async fn show(
    cluster: &Cluster,
    shape: Shape,
    machine: &MachineName,
    condition: Option<&Condition>,
) -> Result<Outcome, Error> {
    match shape.way {
        Way::Apply => {
            let conditions: Vec<Value> = condition.iter().map(|condition| condition.entry()).collect();
            let content = json!({"metadata": {"uid": machine.uid}, "status": {"conditions": conditions}});
            cluster.apply_placed(&shape.machine(), machine.place(), MANAGER, Part::Status, &content).await?;
            Ok(Outcome::Done)
        }
        Way::Replace => replace(cluster, shape, machine, condition).await,
    }
}

/// Writes all conditions where they are one list. The write fails if another client wrote since they were
/// read.
async fn replace(
    cluster: &Cluster,
    shape: Shape,
    machine: &MachineName,
    condition: Option<&Condition>,
) -> Result<Outcome, Error> {
    let kind = shape.machine();
    for _ in 0..MAX_TRIES {
        let Some(object) = cluster.placed(&kind, machine.place()).await? else { return Ok(Outcome::Gone) };
        if object["metadata"]["uid"] != machine.uid.as_str() {
            return Ok(Outcome::Gone);
        }
        let conditions = among(&object["status"]["conditions"], condition);
        let version = &object["metadata"]["resourceVersion"];
        let patch = json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}});
        match cluster.merge_placed(&kind, machine.place(), MANAGER, Part::Status, &patch).await {
            Err(error) if error.is_conflict() => {}
            written => return written.map(|()| Outcome::Done),
        }
    }
    Ok(Outcome::Conflict)
}

/// Returns all conditions with the controller's one updated; the others keep their content and position.
fn among(conditions: &Value, ours: Option<&Condition>) -> Vec<Value> {
    let mut all = conditions.as_array().cloned().unwrap_or_default();
    let place = all.iter().position(|condition| condition["type"] == TYPE);
    match (place, ours.map(Condition::old_entry)) {
        (Some(place), Some(entry)) => all[place] = entry,
        (None, Some(entry)) => all.push(entry),
        (Some(place), None) => drop(all.remove(place)),
        (None, None) => {}
    }
    all
}

/// Makes the Machine the owner of its report, so that both are deleted together.
async fn adopt(cluster: &Cluster, shape: Shape, orphan: &Orphan) -> Result<Outcome, Error> {
    let Orphan { report, machine, cluster: name } = orphan;
    let kind = shape.machine();
    let owner = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "name": machine.name, "uid": machine.uid});
    let content = json!({"metadata": {"labels": {report::CLUSTER_LABEL: name}, "ownerReferences": [owner]}});
    let place = Place { namespace: &machine.namespace, name: report };
    cluster.apply_placed(&report::KIND, place, MANAGER, Part::Object, &content).await?;
    Ok(Outcome::Done)
}

// === impl MachineName ===

impl MachineName {
    pub(super) fn place(&self) -> Place<'_> {
        Place { namespace: &self.namespace, name: &self.name }
    }
}

#[cfg(test)]
mod tests {
    use super::super::condition::Status;
    use super::*;

    #[test]
    fn conditions_of_others_stay_as_and_where_they_are() {
        let ours = Condition {
            status: Status::False,
            reason: "DiskFull".to_owned(),
            message: "Full".to_owned(),
            since: "2026-01-02T03:04:05.678Z".parse().unwrap(),
        };
        let (one, two) = (json!({"type": "Ready", "odd": [1]}), json!({"type": "InfrastructureReady"}));
        let written = among(&json!([one, two]), Some(&ours));
        assert_eq!(written[..2], [one.clone(), two.clone()]);
        assert_eq!(written[2]["severity"], "Error");
        assert_eq!(written[2]["lastTransitionTime"], "2026-01-02T03:04:05Z");
        let better = Condition { status: Status::True, ..ours };
        let again = among(&json!([one, written[2], two]), Some(&better));
        assert_eq!((&again[0], &again[2], again.len()), (&one, &two, 3));
        assert_eq!(again[1].get("severity"), None, "only what is False has one");
        assert_eq!(among(&json!(again), None), [one, two]);
        assert!(among(&Value::Null, None).is_empty());
    }
}
