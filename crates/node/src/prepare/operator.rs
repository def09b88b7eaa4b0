//! Labels and annotations of the reboot operators of Container Linux and Flatcar, as far as a hook needs them.
//!
//! ```text
//! operator: label before-reboot=true ─▶ hook: annotation KEY=true ─▶ operator: reboot-ok=true ─▶ drain, reboot
//! operator: label after-reboot=true  ─▶ hook: annotation KEY=true ─▶ operator: reboot-ok=false ─▶ next node
//! ```
//!
//! A label may still be set after its hook has finished. A missing annotation stops the rollout to the fleet at this
//! node.

use std::collections::BTreeMap;

/// Prefixes of the operators of Container Linux and of Flatcar.
const PREFIXES: [&str; 2] =
    ["container-linux-update.v1.coreos.com/", "flatcar-linux-update.v1.flatcar-linux.net/"];
/// File that distributions write when a reboot is due, and that `kured` checks.
pub const REBOOT_REQUIRED: &str = "/run/reboot-required";

/// The phase in which a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    BeforeReboot,
    AfterReboot,
}

// === impl Moment ===

impl Moment {
    fn name(self) -> &'static str {
        match self {
            Self::BeforeReboot => "before-reboot",
            Self::AfterReboot => "after-reboot",
        }
    }

    /// Returns whether a label of the operator requests the hook of this phase.
    pub fn is_asked_for(self, labels: &BTreeMap<String, String>) -> bool {
        let label = |prefix: &&str| labels.get(&format!("{prefix}{}", self.name()));
        PREFIXES.iter().filter_map(label).any(|value| value == "true")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_operators_ask_by_label_and_only_for_their_moment() {
        let labels = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        for prefix in PREFIXES {
            let asked = labels(&format!("{prefix}before-reboot"), "true");
            assert!(Moment::BeforeReboot.is_asked_for(&asked));
            assert!(!Moment::AfterReboot.is_asked_for(&asked));
            assert!(Moment::AfterReboot.is_asked_for(&labels(&format!("{prefix}after-reboot"), "true")));
            assert!(!Moment::BeforeReboot.is_asked_for(&labels(&format!("{prefix}before-reboot"), "false")));
        }
        assert!(!Moment::BeforeReboot.is_asked_for(&labels("before-reboot", "true")));
    }
}
