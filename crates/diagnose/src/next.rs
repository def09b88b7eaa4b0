//! Next steps when the evidence is inconclusive: what to check and collect.

use landfall_model::Phase;

use crate::case::{FACTS, SourceEntry};
use crate::reason::Drafts;
use crate::scan::Engine;
use crate::stages::Stages;

/// Missing evidence: its description, the source names that show it was read, and the phases it covers.
struct Wanted {
    what: &'static str,
    known_as: &'static [&'static str],
    phases: &'static [Phase],
}

const WANTED: [Wanted; 7] = [
    Wanted {
        what: "the output of cloud-init: `/var/log/cloud-init-output.log` and `/var/log/cloud-init.log`",
        known_as: &["cloud-init"],
        phases: &[Phase::Kernel, Phase::CloudInit],
    },
    Wanted {
        what: "the console log of the machine, from the hypervisor or the cloud",
        known_as: &["console", "dmesg", "serial"],
        phases: &[Phase::Firmware, Phase::Kernel, Phase::Ignition],
    },
    Wanted {
        what: "the kubelet's journal: `journalctl -b -u kubelet`",
        known_as: &["kubelet", "journal"],
        phases: &[
            Phase::CloudInit,
            Phase::Runtime,
            Phase::ControlPlane,
            Phase::Join,
            Phase::Kubelet,
            Phase::Network,
        ],
    },
    Wanted {
        what: "the container runtime's journal: `journalctl -b -u containerd -u crio`",
        known_as: &["containerd", "crio", "docker", "journal"],
        phases: &[Phase::Runtime, Phase::ControlPlane, Phase::Kubelet],
    },
    Wanted {
        what: "the logs of the control plane's containers: `crictl ps -a`, `crictl logs ID`",
        known_as: &["apiserver", "etcd", "/pods/", "/containers/"],
        phases: &[Phase::ControlPlane],
    },
    Wanted {
        what: "whether the API endpoint answers this machine: `curl -k https://ENDPOINT:6443/livez`",
        known_as: &[],
        phases: &[Phase::Join],
    },
    Wanted {
        what: "the logs of the network add-on's pods, and `/etc/cni/net.d`",
        known_as: &["calico", "cilium", "flannel", "cni"],
        phases: &[Phase::Network],
    },
];

/// Maximum number of steps; more would be a manual.
const MAX_STEPS: usize = 3;

pub(crate) fn steps(
    engine: &Engine,
    sources: &[SourceEntry],
    stages: &Stages<'_>,
    drafts: &Drafts<'_>,
) -> Vec<String> {
    let reached = stages.last_event().map_or(Phase::Kernel, |event| event.phase);
    let read = |wanted: &Wanted| {
        sources.iter().any(|entry| {
            entry.lines > 0
                && wanted.known_as.iter().any(|name| entry.name.contains(name) || entry.kind.contains(name))
        })
    };
    let missing = WANTED.iter().filter(|wanted| wanted.phases.contains(&reached) && !read(wanted));
    let unconfirmed = drafts.iter().find(|(cause, draft)| {
        draft.is_root() && engine.is_destructive(cause) && !draft.is_corroborated(stages)
    });
    let mut steps: Vec<String> = Vec::new();
    steps.extend(unconfirmed.map(|(cause, _)| {
        format!("Confirm `{cause}` first: its fix destroys data, and a single unproven source reports it.")
    }));
    let room = MAX_STEPS - 1 - steps.len();
    steps.extend(missing.take(room).map(|wanted| format!("Collect {}.", wanted.what)));
    if sources.iter().all(|entry| entry.kind != FACTS) {
        steps.push(
            "Run `landfall diagnose` on the machine, as root: it reads all logs and proves their origin."
                .to_owned(),
        );
    }
    steps
}
