//! The agent on a real machine, from its first boot over failed joins and a reboot to a join that succeeds.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use landfall_model::envelope::{Envelope, ReportMessage};
use landfall_model::report::State;
use landfall_testkit::{
    ApiServer, BootstrapToken, ControllerManager, HOST_ADDRESS, Invitation, Node, NodeSpec, eventually, have,
};
use serde_json::{Value, json};

/// Time limit from kubeadm's exit to the report with the cause, on an idle machine. The best of the attempts must
/// meet it.
const PROMISE: SignedDuration = SignedDuration::from_secs(2);
/// Additional time for the other attempts: the machine runs many tests at once.
const LOADED: SignedDuration = SignedDuration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(120);
const MAX_OWN_MEMORY_KIB: u64 = 15 << 10;

/// The cause of each failed `kubeadm join`, and the part of its configuration that triggers it.
const ATTEMPTS: [&str; 3] =
    ["apiserver-unreachable", "bootstrap-config-invalid", "discovery-ca-hash-mismatch"];

const AGENT: &str = "landfall-agent";
const DROP_IN: &str = "/etc/systemd/system/landfall-agent.service.d/broken.conf";
/// The first start dies immediately, and the second hangs.
const BROKEN: &str = "[Service]\nExecStartPost=+/bin/sh -c 'if mkdir /run/died; then kill -KILL $MAINPID; else kill -STOP $MAINPID; fi'\n";

/// Duration of the idle measurement, and the limit for CPU time of one core, with optimization or without.
const REST: Duration = Duration::from_secs(30);
const MAX_SHARE: f64 = 0.01;

fn join_configurations(invitation: &Invitation) -> [Value; 3] {
    let token = BootstrapToken { id: "abcdef".to_owned(), secret: "0123456789abcdef".to_owned() };
    let mut nowhere = Invitation { endpoint: format!("{HOST_ADDRESS}:1"), token }.join_configuration();
    nowhere["timeouts"] = json!({"discovery": "4s"});
    let mut malformed = invitation.join_configuration();
    malformed["discovery"]["bootstrapToken"]["token"] = json!("not-a-token");
    let mut other = invitation.join_configuration();
    other["discovery"]["bootstrapToken"]["unsafeSkipCAVerification"] = json!(false);
    other["discovery"]["bootstrapToken"]["caCertHashes"] = json!([format!("sha256:{}", "ab".repeat(32))]);
    [nowhere, malformed, other]
}

/// A machine whose first join fails, with the agent installed as a release installs it.
fn spec(invitation: &Invitation) -> NodeSpec {
    let config = json!({
        "runcmd": [
            "echo 1 >/proc/sys/net/ipv4/ip_forward",
            format!("kubeadm join --config /etc/join-0.yaml; {}", ended(0)),
        ],
    });
    let mut spec = invitation.node("castaway");
    spec.user_data = format!("#cloud-config\n{config}\n");
    let file = |path: &str, content: &str| (path.into(), content.as_bytes().to_vec());
    spec.files = vec![
        file(
            "/etc/systemd/system/landfall-agent.service",
            include_str!("../../../../dist/landfall-agent.service"),
        ),
        file("/etc/systemd/system/sysinit.target.d/agent.conf", "[Unit]\nWants=landfall-agent.service\n"),
        file("/etc/landfall/agent.env", "LANDFALL_AGENT_OPTIONS=--report-folder /var/lib/landfall/brought\n"),
        file("/var/lib/landfall/brought/.keep", ""),
        file("/etc/join.yaml", &invitation.join_configuration().to_string()),
    ];
    for (number, configuration) in join_configurations(invitation).iter().enumerate() {
        spec.files.push(file(&format!("/etc/join-{number}.yaml"), &configuration.to_string()));
    }
    spec.arguments.push(format!("--bind-ro={}:/usr/local/bin/landfall", env!("CARGO_BIN_EXE_landfall")));
    spec
}

/// Returns the command that records the end of an attempt.
fn ended(number: usize) -> String {
    format!("date --utc +%Y-%m-%dT%H:%M:%S.%NZ >/var/lib/ended-{number}")
}

fn message(path: &Path) -> Option<ReportMessage> {
    Envelope::parse(&std::fs::read(path).ok()?).ok()?.message().ok()
}

/// Returns a report that the agent stored, by file name.
fn kept(node: &Node, name: &str) -> Option<ReportMessage> {
    message(&node.root().join("var/lib/landfall/agent").join(name))
}

fn names(message: &ReportMessage, cause: &str) -> bool {
    message.report.findings.iter().any(|finding| finding.cause.as_str() == cause)
}

/// Returns every report that left the machine, oldest first.
fn brought(node: &Node) -> Vec<ReportMessage> {
    let files = std::fs::read_dir(node.root().join("var/lib/landfall/brought")).unwrap();
    let mut all: Vec<ReportMessage> = files.filter_map(|file| message(&file.unwrap().path())).collect();
    all.sort_by_key(|message| message.id);
    all
}

fn shell(node: &Node, script: &str) -> String {
    node.output(&["sh", "-c", script]).unwrap()
}

fn property(node: &Node, unit: &str, name: &str) -> String {
    node.output(&["systemctl", "show", "-P", name, unit]).unwrap().trim().to_owned()
}

/// Returns the CPU time of all threads of the agent, in seconds.
fn used(node: &Node) -> f64 {
    let stat = node.read(&format!("/proc/{}/stat", property(node, AGENT, "MainPID"))).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = [11, 12].iter().map(|at| fields[*at].parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

fn say(words: &str) {
    // Printed on every run, for information.
    let _ = writeln!(std::io::stderr(), "{words}");
}

#[test]
fn a_machine_is_followed_over_failures_and_a_reboot_to_success() {
    let needs = [Node::NEEDS, ApiServer::NEEDS, ControllerManager::NEEDS, Invitation::NEEDS].concat();
    if !have(&needs) {
        return;
    }
    let cluster = ApiServer::start_with(&Invitation::api_server()).unwrap();
    let _controllers = ControllerManager::start(&cluster).unwrap();
    let invitation = Invitation::create(&cluster).unwrap();
    let mut node = Node::boot(&spec(&invitation)).unwrap();
    node.wait_for_boot().unwrap();

    causes_are_known_at_once(&node);
    is_there_before_it_is_needed(&node);
    let first = node.boot_id().unwrap();
    let last = kept(&node, "report.json").unwrap();
    assert_eq!(last.node.boot_id.as_deref(), Some(first.as_str()));

    // After SIGKILL it is restarted and has lost nothing.
    let pid = property(&node, AGENT, "MainPID");
    shell(&node, "systemctl kill --signal=KILL landfall-agent");
    let again = kept(&node, "report.json").unwrap();
    assert!(names(&again, ATTEMPTS[2]) && again.sequence >= last.sequence, "what was on the disk is lost");
    eventually("the agent to be started again", LIMIT, || {
        let now = property(&node, AGENT, "MainPID");
        (now != pid && now != "0").then_some(())
    })
    .unwrap();

    // A boot in which it dies and then hangs is like any other boot.
    let write = format!("mkdir -p $(dirname {DROP_IN}); cat >{DROP_IN} <<'END'\n{BROKEN}END");
    shell(&node, &write);
    node.reboot().unwrap();
    node.wait_for_cloud_init().unwrap();
    let second = node.boot_id().unwrap();
    assert_ne!(first, second);
    eventually("the agent to be stopped", LIMIT, || {
        let status = node.read(&format!("/proc/{}/status", property(&node, AGENT, "MainPID"))).ok()?;
        status.contains("State:\tT").then_some(())
    })
    .unwrap();
    assert_eq!(property(&node, "multi-user.target", "ActiveState"), "active");
    let untouched = kept(&node, "report.json").unwrap();
    assert_eq!(untouched.node.boot_id.as_deref(), Some(first.as_str()), "it was to have died before this");

    // The last report of the first boot is kept beside that of the second.
    shell(
        &node,
        &format!("rm {DROP_IN}; systemctl daemon-reload; systemctl kill --signal=CONT landfall-agent"),
    );
    let is_second = |message: &ReportMessage| message.node.boot_id.as_deref() == Some(second.as_str());
    eventually("a report of the second boot", LIMIT, || kept(&node, "report.json").filter(is_second))
        .unwrap_or_else(|error| panic!("{error}: {:?}", kept(&node, "report.json")));
    let before = kept(&node, "previous-report.json").unwrap();
    assert_eq!(before.node.boot_id.as_deref(), Some(first.as_str()));
    assert!(names(&before, ATTEMPTS[2]), "{before:?}");

    joins_and_rests(&node, &cluster);
}

/// Checks that three failures are each reported after their own end.
fn causes_are_known_at_once(node: &Node) {
    let mut best = None;
    for (number, cause) in ATTEMPTS.iter().enumerate() {
        if number > 0 {
            let join = format!("kubeadm join --config /etc/join-{number}.yaml 2>&1 | systemd-cat -t kubeadm");
            shell(node, &format!("{join}; {}", ended(number)));
        }
        let ended = eventually("kubeadm to give up", LIMIT, || {
            let text = std::fs::read_to_string(node.root().join(format!("var/lib/ended-{number}"))).ok()?;
            text.trim().parse::<Timestamp>().ok()
        })
        .unwrap();
        let known = eventually("the cause to be brought", LIMIT, || {
            brought(node).into_iter().find(|message| names(message, cause))
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", kept(node, "report.json")));
        let took = known.time.duration_since(ended);
        say(&format!("`{cause}` was known {took:#} after kubeadm's end"));
        assert!(took <= PROMISE + LOADED, "`{cause}` was known {took:#} after kubeadm's end");
        best = best.map_or(Some(took), |best: SignedDuration| Some(best.min(took)));
    }
    assert!(best.is_some_and(|best| best <= PROMISE), "the best took {best:?}");
    // The first report contains the agent's own observations.
    let report = kept(node, "report.json").unwrap().report;
    for source in ["systemd", "file"] {
        let told = report.sources.iter().find(|told| told.name == source);
        assert!(told.is_some_and(|told| told.lines > 0), "{source}: {:?}", report.sources);
    }
}

fn is_there_before_it_is_needed(node: &Node) {
    let moment = |unit: &str, name: &str| property(node, unit, name).parse::<u64>().unwrap();
    let here = moment(AGENT, "ActiveEnterTimestampMonotonic");
    let needed = moment("cloud-final.service", "InactiveExitTimestampMonotonic");
    assert!(here > 0 && here < needed, "it was there at {here}, and cloud-final began at {needed}");
}

fn joins_and_rests(node: &Node, cluster: &ApiServer) {
    let join = "kubeadm join --config /etc/join.yaml";
    shell(node, &format!("echo 1 >/proc/sys/net/ipv4/ip_forward; {join} 2>&1 | systemd-cat -t kubeadm"));
    eventually("the node to be ready", LIMIT, || node.is_ready(cluster).unwrap().then_some(())).unwrap();
    let report = eventually("the agent to see it", LIMIT, || {
        kept(node, "report.json").filter(|message| message.report.verdict.state == State::Succeeded)
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", kept(node, "report.json")));
    let phases: Vec<&str> = report.report.timeline.iter().map(|entry| entry.phase.name()).collect();
    for phase in ["join", "kubelet"] {
        assert!(phases.contains(&phase), "{phase} is not in {phases:?}");
    }

    // At first pods start and log lines arrive late. The quietest of three windows counts, and in one of them there
    // must not be a report.
    let last = || kept(node, "report.json").unwrap().id;
    let windows = [(); 3].map(|()| {
        let (said, before, began) = (last(), used(node), Instant::now());
        eventually("a while of rest", REST * 2, || (began.elapsed() >= REST).then_some(())).unwrap();
        ((used(node) - before) / began.elapsed().as_secs_f64(), said == last())
    });
    let share = windows.iter().map(|(share, _)| *share).fold(f64::INFINITY, f64::min);
    assert!(windows.iter().any(|(_, quiet)| *quiet), "a node that is up is quiet");
    let status = node.read(&format!("/proc/{}/status", property(node, AGENT, "MainPID"))).unwrap();
    let memory: Vec<&str> =
        status.lines().filter(|line| line.contains("Rss") || line.contains("HWM")).collect();
    say(&format!("at rest the agent takes {:.2} % of a core; {memory:?}", share * 100.0));
    assert!(share <= MAX_SHARE, "the agent takes {:.2} % of a core at rest", share * 100.0);
    let own = memory.iter().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let own: u64 = own.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(own <= MAX_OWN_MEMORY_KIB, "the agent holds {own} KiB of its own");
}
