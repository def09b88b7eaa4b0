//! What the reboot operators of Container Linux and Flatcar write on a node, as far as a hook has to know.
//!
//! ```text
//! operator: label before-reboot=true ─▶ hook: annotation KEY=true ─▶ operator: reboot-ok=true ─▶ drain, reboot
//! operator: label after-reboot=true  ─▶ hook: annotation KEY=true ─▶ operator: reboot-ok=false ─▶ next node
//! ```
//!
//! A label lingers while its hook is done already, and an annotation that never comes stops the fleet here.

use std::collections::BTreeMap;

/// Container Linux's operator, and Flatcar's.
const PREFIXES: [&str; 2] =
    ["container-linux-update.v1.coreos.com/", "flatcar-linux-update.v1.flatcar-linux.net/"];
/// Where distributions say that a reboot is due, and where `kured` looks.
pub const REBOOT_REQUIRED: &str = "/run/reboot-required";

/// When a hook runs.
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

    /// Whether an operator's label asks for the hook of this moment.
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
