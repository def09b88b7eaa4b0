//! The pods that must leave a node before its bootstrap, and whether they may be evicted.

use std::collections::BTreeMap;

use landfall_cluster::PodFacts;

use crate::policy::{Drain, Unasked};

/// Number of pods named in a message.
const MAX_NAMED: usize = 5;

/// Pods that are left on a node.
#[derive(Debug, Default)]
pub(super) struct Left<'a> {
    pub(super) to_evict: Vec<&'a PodFacts>,
    /// Pods that are terminating.
    pub(super) going: Vec<&'a PodFacts>,
    /// Pods that need an administrator, each with the reason.
    pub(super) stuck: Vec<(&'a PodFacts, &'static str)>,
}

/// Classifies the pods of a node. Pods of DaemonSets and static pods belong to the node; finished pods do not
/// block it.
pub(super) fn look<'a>(pods: &'a [PodFacts], policy: &Drain) -> Left<'a> {
    let mut left = Left::default();
    for pod in pods {
        if pod.is_mirror || pod.has_finished || pod.controller.as_deref() == Some("DaemonSet") {
            continue;
        }
        if pod.is_going {
            left.going.push(pod);
        } else if pod.controller.is_none() && policy.unmanaged == Unasked::Leave {
            left.stuck.push((pod, "nothing would make it again"));
        } else if pod.has_local_data && policy.local_data == Unasked::Leave {
            left.stuck.push((pod, "its local data would be lost"));
        } else {
            left.to_evict.push(pod);
        }
    }
    left
}

// === impl Left ===

impl Left<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.to_evict.is_empty() && self.going.is_empty() && self.stuck.is_empty()
    }

    /// Returns a message about the pods that block the drain, most severe first. It changes only when the
    /// state does.
    pub(super) fn text(&self, refused: &BTreeMap<String, String>) -> String {
        let name = |pod: &PodFacts| format!("{}/{}", pod.namespace, pod.name);
        let mut lines: Vec<String> =
            self.stuck.iter().map(|(pod, why)| format!("{} ({why})", name(pod))).collect();
        lines.extend(self.to_evict.iter().map(|pod| match refused.get(&name(pod)) {
            Some(why) => format!("{} ({why})", name(pod)),
            None => name(pod),
        }));
        lines.extend(self.going.iter().map(|pod| format!("{} (is going)", name(pod))));
        let more = lines.len().saturating_sub(MAX_NAMED);
        lines.truncate(MAX_NAMED);
        let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("still on the node: {}{tail}", lines.join(", "))
    }
}
