//! The signal that a bootstrap is complete, so that its temporary components can be removed.

use crate::teardown::GET;
use crate::{RenderError, Target, names};

/// Poll interval, and number of polls before the script fails; its unit then restarts it.
const PAUSE_SECONDS: u32 = 5;
const LOOKS: u32 = 720;

/// Signals of OpenShift's bootstrap. `report-progress.sh` writes the ConfigMap, `cluster-bootstrap` the
/// Event.
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
    /// Parses `config-map`, `event` or `marker`, each with an optional `=` and location. The default is the
    /// usual location.
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

    /// Returns the signal on the OpenShift bootstrap machine.
    pub(crate) fn of_bootkube() -> Self {
        Self::Marker { path: BOOTKUBE_MARKER.to_owned() }
    }

    /// Returns shell lines that wait for the end of the bootstrap, and fail after a time limit. If there is a
    /// `note` file, it records the signal: API servers delete old Events, and a reboot empties /run.
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

/// Returns the marker that this kind of host writes itself.
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
