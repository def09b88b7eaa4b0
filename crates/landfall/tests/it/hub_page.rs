//! From kubeadm's exit on a real machine to the verdict on an open page.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{
    BootstrapToken, Browser, HOST_ADDRESS, Invitation, Key, Node, NodeSpec, eventually, have,
};
use serde_json::json;

use crate::command::{Bench, message};
use crate::hub::{start_guarded, token};

const CAUSE: &str = "apiserver-unreachable";
/// The name in the certificate of the node's own port; its address is known only when it runs.
const SERVED_AS: &str = "castaway.example";
const LIMIT: Duration = Duration::from_secs(120);
/// Milliseconds from kubeadm's exit to the verdict on the page, on an idle machine. The best of the attempts must
/// meet it, because the test machine is loaded.
const PROMISE: i64 = 2_000;
const GENEROUS: i64 = 60_000;
/// The machine itself, and two roots inside it that have their own agents: a boot is expensive, a join is not.
const NAMES: [&str; 3] = ["castaway", "castaway-2", "castaway-3"];

/// A machine whose API server does not listen, with the agent as `landfall render agent` installs it: pushing to the
/// hub, and with its own port.
fn machine(bench: &Bench, authority: &Authority, token: &str, port: u16) -> NodeSpec {
    let bootstrap = BootstrapToken { id: "abcdef".to_owned(), secret: "0123456789abcdef".to_owned() };
    let invitation = Invitation { endpoint: format!("{HOST_ADDRESS}:1"), token: bootstrap };
    let mut join = invitation.join_configuration();
    join["timeouts"] = json!({"discovery": "4s"});
    let config = json!({
        "write_files": [{"path": "/run/kubeadm/join.yaml", "content": join.to_string()}],
        "runcmd": [
            "echo 1 >/proc/sys/net/ipv4/ip_forward",
            "kubeadm join --config /run/kubeadm/join.yaml; date +%s%3N >/var/lib/castaway-ended",
        ],
    });
    bench.file("hub-ca.crt", authority.certificate());
    let hub = format!("https://{HOST_ADDRESS}:{port}");
    let rendered = bench.run(&[
        "render",
        "agent",
        "--for",
        "kubeadm",
        "--by",
        "image",
        "--output",
        "rendered",
        "--hub",
        &hub,
        "--hub-ca",
        "hub-ca.crt",
        "--hub-token",
        "--serve",
        "8710",
        "--serve-client-ca",
        "hub-ca.crt",
    ]);
    assert_eq!(rendered.code, 0, "{rendered:?}");
    let mut spec = NodeSpec::new("castaway");
    spec.user_data = format!("#cloud-config\n{config}\n");
    spec.files = files_below(&bench.path().join("rendered/host"));
    // The certificate of one machine is not rendered.
    let leaf = Leaf::new("castaway", Purpose::Serve).names([SERVED_AS]);
    let issued = authority.issue(&leaf).unwrap();
    spec.files.extend([
        ("/etc/landfall/hub.token".into(), token.as_bytes().to_vec()),
        ("/etc/landfall/agent.crt".into(), issued.certificate.into_bytes()),
        ("/etc/landfall/agent.key".into(), issued.key.expose().clone().into_bytes()),
        // An image build applies the preset; the image of this machine was built without it.
        (
            "/etc/systemd/system/sysinit.target.d/agent.conf".into(),
            b"[Unit]\nWants=landfall-agent.service\n".to_vec(),
        ),
    ]);
    spec.arguments.push(format!("--bind-ro={}:/usr/local/bin/landfall", env!("CARGO_BIN_EXE_landfall")));
    spec
}

#[test]
fn a_failed_join_is_on_the_open_page_at_once() {
    if !have(Node::NEEDS) || !have(Browser::NEEDS) {
        return;
    }
    let bench = Bench::new();
    let authority = Authority::new("test CA", 1).unwrap();
    let (hub, port) = start_guarded(&bench, &authority);
    let (tokens, viewer) = (NAMES.map(|name| token(&bench, "node", name)), token(&bench, "viewer", "ann"));

    // An operator who has logged in and waits.
    let mut browser = Browser::start().unwrap();
    browser.trust_every_certificate().unwrap();
    browser.open(&format!("https://127.0.0.1:{port}/")).unwrap();
    browser.until("document.activeElement.id === 'token'").unwrap();
    browser.write(&viewer).unwrap();
    browser.press(Key::Enter).unwrap();
    browser.until("document.getElementById('live')?.innerText === 'live'").unwrap();
    // A row of the fleet view has the node's name and, after the state, the cause.
    let watch = format!(
        "(() => {{ window.shown = {{}}; const look = () => {{ for (const row of document.querySelectorAll('main tbody tr')) {{ \
         const name = row.querySelector('th')?.innerText; if (name && !window.shown[name] && \
         row.querySelector('.what')?.title === {CAUSE:?}) window.shown[name] = Date.now(); }} }}; \
         new MutationObserver(look).observe(document.querySelector('main'), {{childList: true, subtree: true}}); }})()"
    );
    browser.evaluate(&watch).unwrap();

    let mut node = Node::boot(&machine(&bench, &authority, &tokens[0], port)).unwrap();
    node.wait_for_boot().unwrap();
    let mut best = i64::MAX;
    for (name, token) in NAMES.iter().zip(&tokens) {
        if *name != NAMES[0] {
            follow_another(&node, name, token, port);
        }
        let ended = format!("var/lib/{name}-ended");
        let ended: i64 = eventually("kubeadm to give up", LIMIT, || {
            std::fs::read_to_string(node.root().join(&ended)).ok()?.trim().parse().ok()
        })
        .unwrap();
        browser
            .until(&format!("typeof window.shown[{name:?}] === 'number'"))
            .unwrap_or_else(|error| panic!("{error}\n{}", hub.log()));
        let took = browser.evaluate(&format!("window.shown[{name:?}]")).unwrap().as_i64().unwrap() - ended;
        // Printed on every run, for information.
        let _ = writeln!(std::io::stderr(), "{name}: on the open page {took} ms after kubeadm's end");
        assert!(took <= GENEROUS, "the verdict was on the page {took} ms after kubeadm's end");
        best = best.min(took);
    }
    assert!(best <= PROMISE, "the best took {best} ms");

    // The same machine answers on the port that was rendered with the other files.
    let operator = Leaf::new("ann", Purpose::Call).organization("landfall:operators");
    let operator = authority.issue(&operator).unwrap();
    let (certificate, key) =
        (bench.file("ann.crt", operator.certificate), bench.file("ann.key", operator.key.expose()));
    let asked = Command::new("curl")
        .args(["-sSf", "--noproxy", "*", "-m", "60", "--cacert"])
        .arg(bench.path().join("hub-ca.crt"))
        .arg("--cert")
        .arg(certificate)
        .arg("--key")
        .arg(key)
        .args(["--resolve", &format!("{SERVED_AS}:8710:{}", node.address())])
        .arg(format!("https://{SERVED_AS}:8710/report"))
        .output()
        .unwrap();
    assert!(asked.status.success(), "{asked:?}");
    let report = message(&asked.stdout).unwrap();
    assert!(report["report"].to_string().contains(CAUSE), "{report}");
}

/// Starts another agent for a root inside the machine, and lets kubeadm fail there.
fn follow_another(node: &Node, name: &str, token: &str, port: u16) {
    let root = format!("/var/lib/{name}");
    let log = format!("{root}/var/log/cloud-init-output.log");
    let agent = format!("/usr/local/bin/landfall agent --root {root} --state {root}-state");
    let hub = format!(
        "--hub https://{HOST_ADDRESS}:{port} --hub-ca /etc/landfall/hub-ca.crt --hub-token {root}-token"
    );
    let script = format!(
        "set -eu; mkdir -p {root}/etc {root}/var/log; echo {name} >{root}/etc/hostname; printf %s '{token}' >{root}-token; \
         echo '[preflight] Running pre-flight checks' >{log}; systemd-run --quiet --unit={name} {agent} {hub}"
    );
    node.output(&["sh", "-c", &script]).unwrap();
    let report = node.root().join(format!("{}-state/report.json", root.trim_start_matches('/')));
    eventually("the agent to follow", LIMIT, || report.exists().then_some(())).unwrap();
    // The failure is expected.
    let join = format!(
        "kubeadm join --config /run/kubeadm/join.yaml >>{log} 2>&1; date +%s%3N >/var/lib/{name}-ended"
    );
    node.output(&["sh", "-c", &join]).unwrap();
}

/// Returns every file below `folder` by its path on a machine.
fn files_below(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let place = Path::new("/").join(path.strip_prefix(folder).unwrap());
                files.push((place, std::fs::read(&path).unwrap()));
            }
        }
    }
    files
}
