//! What tells that a bootstrap is over, so that what served it may go.

use crate::teardown::GET;
use crate::{RenderError, Target, names};

/// How often it is looked for, and how many times before a script gives up; its unit then starts it again.
const PAUSE_SECONDS: u32 = 5;
const LOOKS: u32 = 720;

/// Where OpenShift's bootstrap says that it is over: `report-progress.sh` writes the one, `cluster-bootstrap` the other.
const CONFIG_MAP: (&str, &str) = ("kube-system", "bootstrap");
const EVENT: (&str, &str) = ("kube-system", "bootstrap-finished");
const BOOTKUBE_MARKER: &str = "/opt/openshift/.bootkube.done";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A ConfigMap whose `status` is `complete`.
    ConfigMap { namespace: String, name: String },
    /// An Event of this name.
    Event { namespace: String, name: String },
    /// A file on the host.
    Marker { path: String },
}

// === impl Completion ===

impl Completion {
    /// Reads `config-map`, `event` or `marker`, each with `=` and its place, or at its usual place.
    pub fn parse(text: &str, target: Target) -> Result<Self, RenderError> {
        let invalid = || RenderError::Completion { text: text.to_owned() };
        let (kind, place) = text.split_once('=').map_or((text, None), |(kind, place)| (kind, Some(place)));
        let object = |usual: (&str, &str)| {
            let (namespace, name) = place.map_or(Some(usual), |place| place.split_once('/'))?;
            names::object(namespace, name).then(|| (namespace.to_owned(), name.to_owned()))
        };
        match kind {
            "config-map" => object(CONFIG_MAP).map(|(namespace, name)| Self::ConfigMap { namespace, name }),
            "event" => object(EVENT).map(|(namespace, name)| Self::Event { namespace, name }),
            "marker" => place
                .or(usual_marker(target))
                .filter(|path| names::path(path))
                .map(|path| Self::Marker { path: path.to_owned() }),
            _ => None,
        }
        .ok_or_else(invalid)
    }

    /// What OpenShift's bootstrap machine has to see.
    pub(crate) fn of_bootkube() -> Self {
        Self::Marker { path: BOOTKUBE_MARKER.to_owned() }
    }

    /// Lines of shell that end when the bootstrap is over, and fail when that takes too long. What was seen once is kept in
    /// `note`, if there is one: API servers forget Events, and a reboot what lies below /run.
    pub(crate) fn wait(&self, note: Option<&str>) -> Vec<String> {
        let mut seen = match self {
            Self::ConfigMap { namespace, name } => format!(
                "[ \"$({GET} configmap {name} --namespace={namespace} --ignore-not-found \
                 -o 'jsonpath={{.data.status}}' 2>/dev/null)\" = complete ]"
            ),
            Self::Event { namespace, name } => format!(
                "[ -n \"$({GET} event {name} --namespace={namespace} --ignore-not-found -o name 2>/dev/null)\" ]"
            ),
            Self::Marker { path } => format!("[ -e {path} ]"),
        };
        let mut keep = Vec::new();
        if let Some((note, (folder, _))) = note.and_then(|note| Some((note, note.rsplit_once('/')?))) {
            seen = format!("[ -e {note} ] || {seen}");
            keep = vec![format!("mkdir -p {folder}"), format!("touch {note}"), format!("sync -f {note}")];
        }
        let look = [
            format!("over() {{ {seen}; }}"),
            format!("for i in $(seq {LOOKS}); do over && break; sleep {PAUSE_SECONDS}; done"),
            "over || { echo 'the bootstrap is not over yet' >&2; exit 1; }".to_owned(),
        ];
        look.into_iter().chain(keep).collect()
    }
}

/// What the kind of host writes by itself.
fn usual_marker(target: Target) -> Option<&'static str> {
    match target {
        Target::Openshift => Some(BOOTKUBE_MARKER),
        Target::Capi => Some("/run/cluster-api/bootstrap-success.complete"),
        Target::Kubeadm | Target::K3s => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_usual_or_named() {
        let parse = |text: &str| Completion::parse(text, Target::Capi).unwrap();
        let object = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let (namespace, name) = object("kube-system", "bootstrap");
        assert_eq!(parse("config-map"), Completion::ConfigMap { namespace, name });
        let (namespace, name) = object("a", "b.c");
        assert_eq!(parse("event=a/b.c"), Completion::Event { namespace, name });
        let path = "/run/cluster-api/bootstrap-success.complete".to_owned();
        assert_eq!(parse("marker"), Completion::Marker { path });
        assert_eq!(parse("marker=/run/x"), Completion::Marker { path: "/run/x".to_owned() });
    }

    #[test]
    fn what_a_shell_would_read_is_no_place() {
        for bad in [
            "",
            "marker",
            "marker=",
            "marker=run/x",
            "marker=/run/$(x)",
            "marker=/run/a b",
            "marker=/run/../etc/x",
            "event=x",
            "event=a/",
            "config-map=a/B",
            "config-map=a/b/c",
            "configmap",
        ] {
            let error = Completion::parse(bad, Target::Kubeadm).unwrap_err();
            assert!(matches!(error, RenderError::Completion { .. }), "{bad}: {error}");
        }
    }
}
