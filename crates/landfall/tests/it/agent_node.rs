//! The agent on a real machine whose `kubeadm join` fails for a real reason.

use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use landfall_model::envelope::Envelope;
use landfall_testkit::{BootstrapToken, HOST_ADDRESS, Invitation, Node, NodeSpec, eventually, have};
use serde_json::json;

const CAUSE: &str = "apiserver-unreachable";
/// From kubeadm's end to the report that names the cause, on a machine with nothing else to do.
const PROMISE: SignedDuration = SignedDuration::from_secs(2);
/// What the tests' own machine may add: it runs many tests at once.
const LOADED: SignedDuration = SignedDuration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(120);
const MAX_OWN_MEMORY_KIB: u64 = 15 << 10;

/// A machine whose API server does not listen, with the agent installed as a release installs it.
fn spec() -> NodeSpec {
    let token = BootstrapToken { id: "abcdef".to_owned(), secret: "0123456789abcdef".to_owned() };
    let invitation = Invitation { endpoint: format!("{HOST_ADDRESS}:1"), token };
    let mut join = invitation.join_configuration();
    join["timeouts"] = json!({"discovery": "4s"});
    let config = json!({
        "write_files": [{"path": "/run/kubeadm/join.yaml", "content": join.to_string()}],
        "runcmd": [
            "echo 1 >/proc/sys/net/ipv4/ip_forward",
            "kubeadm join --config /run/kubeadm/join.yaml",
            "date --utc +%Y-%m-%dT%H:%M:%S.%NZ >/var/lib/kubeadm-ended",
        ],
    });
    let mut spec = NodeSpec::new("castaway");
    spec.user_data = format!("#cloud-config\n{config}\n");
    spec.files = vec![
        (
            "/etc/systemd/system/landfall-agent.service".into(),
            include_bytes!("../../../../dist/landfall-agent.service").to_vec(),
        ),
        (
            "/etc/systemd/system/sysinit.target.d/agent.conf".into(),
            b"[Unit]\nWants=landfall-agent.service\n".to_vec(),
        ),
        (
            "/etc/landfall/agent.env".into(),
            b"LANDFALL_AGENT_OPTIONS=--report-folder /var/lib/landfall/brought\n".to_vec(),
        ),
        ("/var/lib/landfall/brought/.keep".into(), Vec::new()),
    ];
    spec.arguments.push(format!("--bind-ro={}:/usr/local/bin/landfall", env!("CARGO_BIN_EXE_landfall")));
    spec
}

fn envelope(path: &Path) -> Option<Envelope> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn names_the_cause(envelope: &Envelope) -> bool {
    envelope.report.verdict.cause.as_ref().is_some_and(|cause| cause.as_str() == CAUSE)
}

/// Every report that left the machine, oldest first.
fn brought(node: &Node) -> Vec<Envelope> {
    let files = std::fs::read_dir(node.root().join("var/lib/landfall/brought")).unwrap();
    let mut all: Vec<Envelope> = files.filter_map(|file| envelope(&file.unwrap().path())).collect();
    all.sort_by_key(|envelope| envelope.id);
    all
}

#[test]
fn the_cause_of_a_failed_join_is_known_at_once_and_outlives_a_kill() {
    if !have(Node::NEEDS) {
        return;
    }
    let mut node = Node::boot(&spec()).unwrap();
    node.wait_for_boot().unwrap();
    let ended = eventually("kubeadm to give up", LIMIT, || {
        let text = std::fs::read_to_string(node.root().join("var/lib/kubeadm-ended")).ok()?;
        text.trim().parse::<Timestamp>().ok()
    })
    .unwrap();
    let report = node.root().join("var/lib/landfall/agent/report.json");
    let kept = eventually("the cause on the disk", LIMIT, || envelope(&report).filter(names_the_cause))
        .unwrap_or_else(|error| panic!("{error}: {:?}", envelope(&report)));
    eventually("it to be brought", LIMIT, || {
        brought(&node).iter().any(|envelope| envelope.id == kept.id).then_some(())
    })
    .unwrap();
    let first = brought(&node).into_iter().find(names_the_cause).unwrap();
    let took = first.time.duration_since(ended);
    // Measured on every run, for those who read along.
    let pid = node.output(&["systemctl", "show", "-P", "MainPID", "landfall-agent"]).unwrap();
    let status = node.read(&format!("/proc/{}/status", pid.trim())).unwrap();
    let memory: Vec<&str> = status.lines().filter(|line| line.contains("Rss")).collect();
    let time = node.output(&["systemctl", "show", "-P", "CPUUsageNSec", "landfall-agent"]).unwrap();
    let _ = std::io::Write::write_all(
        &mut std::io::stderr(),
        format!("cause known {took:#} after kubeadm's end; {memory:?}; {} ns of CPU\n", time.trim())
            .as_bytes(),
    );
    assert!(took <= PROMISE + LOADED, "the cause was known {took:#} after kubeadm's end");
    let own = memory.iter().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let own: u64 = own.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(own <= MAX_OWN_MEMORY_KIB, "the agent holds {own} KiB of its own");

    node.output(&["systemctl", "kill", "--signal=KILL", "landfall-agent"]).unwrap();
    let after = envelope(&report).unwrap();
    assert!(names_the_cause(&after) && after.sequence >= kept.sequence, "what was on the disk is lost");
}
