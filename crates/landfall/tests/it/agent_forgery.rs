//! Text of an attacker must not change the reports of an agent.
//!
//! The tests use a real journald and a real sshd, with clients without a login and with unprivileged users.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use landfall_model::envelope::Envelope;
use landfall_model::report::{Report, State, Trust};
use landfall_testkit::{Need, Node, NodeSpec, eventually, have};

const LIMIT: Duration = Duration::from_secs(120);

const SWAP: &str = "failed to run Kubelet: running with swap on is not supported, please disable swap";
const RESOLVER: &str = "\"Could not open resolv conf file.\" err=\"open /run/systemd/resolve/resolv.conf: no such file or directory\"";
const REGISTERED: &str = "\"Successfully registered node\" node=\"forged\"";
const READY: &str = "\"Fast updating node status as it just became ready\"";

/// Texts that would clear a failure.
const CLEARING: [&str; 3] = [
    "Node became ready",
    "Successfully registered node n1",
    "Fast updating node status as it just became ready",
];
/// Texts that would add a failure, and its cause.
const FAILING: [(&str, &str); 2] = [
    ("[ERROR DirAvailable--var-lib-etcd]: /var/lib/etcd is not empty", "leftover-cluster-state"),
    ("[ERROR Port-10250]: Port 10250 is in use", "port-in-use"),
];

/// The unit of the kubelet prints lines that the test has written, so that they appear when the test needs them.
const KUBELET: &str = "\
[Service]
Type=oneshot
RemainAfterExit=yes
Restart=no
ExecStart=
ExecStart=/bin/cat /var/lib/kubelet-lines
";

/// Commands with which a user can write to the journal. The first argument is the text.
const USER: &str = "\
logger -t kubelet \"$1\"
logger -t systemd \"$1\"
logger -t cloud-init \"$1\"
logger --journald <<END
MESSAGE=$1
SYSLOG_IDENTIFIER=kubelet
UNIT=kubelet.service
_SYSTEMD_UNIT=kubelet.service
_PID=1
END
echo \"$1\" | systemd-cat -t kubelet
cp /usr/bin/logger /home/alice/kubelet
/home/alice/kubelet -t kubelet \"$1\"
systemd-cat -t kubelet /home/alice/kubelet -s \"$1\"
systemd-cat -t kubelet mount \"/$1\"
systemd-cat -t kubeadm su \"$1\" </dev/null
su root -c \"$1\" </dev/null
exit 0
";

fn spec() -> NodeSpec {
    let mut spec = NodeSpec::new("forged");
    let file = |path: &str, content: &str| (path.into(), content.as_bytes().to_vec());
    spec.files = vec![
        file(
            "/etc/systemd/system/landfall-agent.service",
            include_str!("../../../../dist/landfall-agent.service"),
        ),
        file("/etc/systemd/system/sysinit.target.d/agent.conf", "[Unit]\nWants=landfall-agent.service\n"),
        file("/etc/landfall/agent.env", "LANDFALL_AGENT_OPTIONS=--report-folder /var/lib/landfall/brought\n"),
        file("/var/lib/landfall/brought/.keep", ""),
        file("/etc/systemd/system/kubelet.service.d/20-lines.conf", KUBELET),
        file("/var/lib/kubelet-lines", "starting\n"),
        file("/var/lib/user.sh", USER),
        // The image has no logind module for PAM, which would set the variable.
        file(
            "/etc/systemd/system/user@.service.d/runtime.conf",
            "[Service]\nEnvironment=XDG_RUNTIME_DIR=/run/user/%i\n",
        ),
    ];
    spec.arguments.push(format!("--bind-ro={}:/usr/local/bin/landfall", env!("CARGO_BIN_EXE_landfall")));
    spec
}

fn shell(node: &Node, script: &str) -> String {
    node.output(&["sh", "-euc", script]).unwrap()
}

/// The unit of the kubelet prints these lines.
fn kubelet_prints(node: &Node, lines: &[&str]) {
    std::fs::write(node.root().join("var/lib/kubelet-lines"), lines.join("\n") + "\n").unwrap();
    shell(node, "systemctl restart kubelet.service");
}

fn report_at(path: &Path) -> Option<Report> {
    Some(Envelope::parse(&std::fs::read(path).ok()?).ok()?.message().ok()?.report)
}

/// Waits for a report, and fails with the last one.
#[track_caller]
fn report(node: &Node, expected: &str, is_expected: impl Fn(&Report) -> bool) -> Report {
    let path = node.root().join("var/lib/landfall/agent/report.json");
    eventually(expected, LIMIT, || report_at(&path).filter(|report| is_expected(report)))
        .unwrap_or_else(|error| panic!("{error}: {:?}", report_at(&path)))
}

/// Returns every report that left the machine.
fn sent(node: &Node) -> Vec<Report> {
    let files = std::fs::read_dir(node.root().join("var/lib/landfall/brought")).unwrap();
    files.filter_map(|file| report_at(&file.unwrap().path())).collect()
}

fn successes(node: &Node) -> usize {
    sent(node).iter().filter(|report| report.verdict.state == State::Succeeded).count()
}

/// Returns whether the report names the cause, and not only as ruled out.
fn names(report: &Report, cause: &str) -> bool {
    report.findings.iter().any(|finding| finding.cause.as_str() == cause && finding.ruled_out.is_none())
}

/// Writes the text in all ways available to a client without a login and to a user, and checks that it is in the
/// journal.
fn attack(node: &Node, text: &str) {
    let output = Command::new("ssh")
        .args(["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"])
        .args(["-F", "none", "-l", text, &node.address().to_string(), "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(255), "{output:?}");
    let user = "cd /; exec setpriv --reuid=1001 --regid=1001 --clear-groups env XDG_RUNTIME_DIR=/run/user/1001 \
                systemd-run --user --quiet --collect --property=Type=oneshot --description=\"$1\" sh /var/lib/user.sh \"$1\"";
    node.output(&["sh", "-euc", user, "user", text]).unwrap();
    shell(node, "journalctl --sync");
    // sshd removes the text after a colon.
    let name = escaped(text.split(':').next().unwrap());
    let written = node.journal(&["--output=json", "--grep", &name, "--case-sensitive"]).unwrap();
    let count = |field: &str| written.lines().filter(|line| line.contains(field)).count();
    assert!(count("\"_SYSTEMD_UNIT\":\"ssh.service\"") >= 1, "sshd has not logged it: {written}");
    assert!(count("\"_UID\":\"1001\"") >= 6, "the user has not logged it: {written}");
    assert!(count("\"SYSLOG_IDENTIFIER\":\"kubelet\"") >= 4, "{written}");
}

/// Returns an expression that matches this text.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_alphanumeric() || c == ' ' { c.to_string() } else { format!("\\{c}") })
        .collect()
}

#[test]
fn chosen_text_on_a_node_changes_no_report() {
    if !have(&[Node::NEEDS, &[Need::Program("ssh")]].concat()) {
        return;
    }
    let mut node = Node::boot(&spec()).unwrap();
    node.wait_for_boot().unwrap();
    node.wait_for_cloud_init().unwrap();
    shell(
        &node,
        "useradd --create-home --uid 1001 alice; ssh-keygen -A; \
         systemctl start ssh.service user@1001.service",
    );

    kubelet_prints(&node, &[SWAP]);
    let failed = report(&node, "the failure to be reported", |report| names(report, "swap-enabled"));
    assert_eq!((failed.verdict.state, failed.verdict.trust), (State::Failed, Trust::Proven));
    let succeeded = successes(&node);
    for text in CLEARING {
        attack(&node, text);
    }
    // This line follows all of the above: the report that names it has read them.
    kubelet_prints(&node, &[RESOLVER]);
    let after = report(&node, "the second failure", |report| names(report, "resolv-conf-missing"));
    assert_eq!(after.verdict.state, State::Failed);
    assert!(names(&after, "swap-enabled"), "a text has cleared it: {after:?}");
    assert_eq!(successes(&node), succeeded);

    kubelet_prints(&node, &[REGISTERED, READY]);
    let ready = report(&node, "the success", |report| report.verdict.state == State::Succeeded);
    assert_eq!(ready.verdict.trust, Trust::Proven);
    for (text, _) in FAILING {
        attack(&node, text);
    }
    kubelet_prints(&node, &[SWAP]);
    let last = report(&node, "the last failure", |report| report.verdict.state == State::Failed);
    assert!(last.verdict.cause.as_ref().is_some_and(|cause| cause.as_str() == "swap-enabled"), "{last:?}");
    for report in sent(&node).iter().chain([&last]) {
        for (text, cause) in FAILING {
            assert!(!names(report, cause), "{text} counts: {report:?}");
        }
    }
}
