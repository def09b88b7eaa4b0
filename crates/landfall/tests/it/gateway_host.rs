//! `landfall gateway` on a machine: the redirect rule after a kill, its unit under systemd, other nodes over real
//! SSH.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use landfall_testkit::isolated::{HOST, NEEDS, in_network, shell};
use landfall_testkit::{Need, Node, NodeSpec, Process, eventually, free_port, have};
use rustix::process::Signal;

use crate::command::Bench;
use crate::gateway::kubeadm;

const LIMIT: Duration = Duration::from_secs(120);
const UNIT: &str = include_str!("../../../../dist/landfall-gateway.service");

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_landfall"))
}

fn rules() -> String {
    let rules = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    String::from_utf8(rules.stdout).unwrap()
}

#[test]
fn a_killed_gateway_falls_out_of_the_path_and_its_successor_comes_back() {
    if have(&[NEEDS, &[Need::Program("nft"), Need::Program("curl")]].concat()) {
        let name = "gateway_host::a_killed_gateway_falls_out_of_the_path_and_its_successor_comes_back";
        in_network(name, killed);
    }
}

fn killed() {
    let bench = Bench::new();
    kubeadm(&bench);
    let [from, port, upstream] = [(); 3].map(|()| free_port().unwrap());
    let root = bench.path().join("root").display().to_string();
    let start = || {
        Process::start("gateway", program(), bench.path(), |command| {
            command.args(["gateway", "--root", &root, "--listen", &format!("0.0.0.0:{port}")]);
            command.args(["--upstream", &format!("127.0.0.1:{upstream}"), "--redirect", &from.to_string()]);
        })
        .unwrap()
    };
    let answers = || {
        let mut curl = Command::new("ip");
        curl.args(["netns", "exec", "client", "curl", "-sk", "-m", "5", "-o", "/dev/null"]);
        curl.arg(format!("https://{HOST}:{from}/livez")).status().unwrap().success()
    };
    let first = start();
    eventually("the redirection", LIMIT, || answers().then_some(())).unwrap();
    first.signal(Signal::KILL).unwrap();
    // A killed process cannot clean up, so the installed elements expire.
    eventually("the rule to match nothing", LIMIT, || (!rules().contains("elements")).then_some(())).unwrap();
    assert!(rules().contains("landfall_gateway"), "the rule itself is still there");
    drop(first);

    let mut second = start();
    eventually("the redirection again", LIMIT, || answers().then_some(())).unwrap();
    assert_eq!(rules().matches("redirect to").count(), 1, "{}", rules());
    second.signal(Signal::TERM).unwrap();
    assert_eq!(second.wait(LIMIT).unwrap(), Some(0), "{}", second.log());
    assert_eq!(rules(), "", "who stops takes the rule along");
}

#[test]
fn a_node_is_gathered_over_real_ssh_through_the_tunnel() {
    let programs = ["/usr/sbin/sshd", "ssh", "ssh-keygen"].map(Need::Program);
    if have(&[NEEDS, &programs].concat()) {
        in_network("gateway_host::a_node_is_gathered_over_real_ssh_through_the_tunnel", over_ssh);
    }
}

fn over_ssh() {
    let bench = Bench::new();
    kubeadm(&bench);
    let folder = bench.path();
    let file = |name: &str| folder.join(name).display().to_string();
    for name in ["host", "user"] {
        shell(&format!("ssh-keygen -q -t ed25519 -N '' -f {}", file(name)));
    }
    bench.file("known", format!("{HOST} {}", std::fs::read_to_string(folder.join("host.pub")).unwrap()));
    bench.file("wrong", format!("{HOST} {}", std::fs::read_to_string(folder.join("user.pub")).unwrap()));
    let mut sshd = Process::start("sshd", Path::new("/usr/sbin/sshd"), folder, |command| {
        command.args(["-D", "-e", "-f", "/dev/null", "-o", &format!("ListenAddress={HOST}")]);
        command.args(["-o", &format!("HostKey={}", file("host")), "-o", "PermitRootLogin=yes"]);
        command.args(["-o", &format!("AuthorizedKeysFile={}", file("user.pub")), "-o", "StrictModes=no"]);
        command.args(["-o", "UsePAM=no", "-o", "PidFile=none"]);
    })
    .unwrap();
    sshd.wait_until("sshd to listen", LIMIT, || std::net::TcpStream::connect((HOST, 22)).ok()).unwrap();
    let (port, upstream) = (free_port().unwrap(), free_port().unwrap());
    let settings = bench.file("gateway.toml", "[tunnel]\nnetworks = [\"192.0.2.0/24\"]\n");
    let _gateway = Process::start("gateway", program(), folder, |command| {
        command.arg("gateway").arg("--config").arg(&settings).args(["--root", &file("root")]);
        command.args(["--listen", &format!("127.0.0.1:{port}"), "--audit-log", &file("audit.log")]);
        command.args(["--upstream", &format!("127.0.0.1:{upstream}")]);
    })
    .unwrap();
    let gather = |known: &str| {
        let url = format!("https://localhost:{port}");
        let mut command = bench.command(&["gather", &url, "-o", "gathered.tar.gz", "--skip-analysis"]);
        command.args(["--certificate-authority", "root/etc/kubernetes/pki/ca.crt", "--wait", "90"]);
        command.args(["--client-certificate", "admin.crt", "--client-key", "admin.key", "--node", HOST]);
        command.args(["--ssh-user", "root", "--ssh-key", "user", "--known-hosts", known]);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = gather("known");
    assert_eq!(code, Some(0), "{said}");
    let of_node = format!("{HOST}-gathered.tar.gz");
    assert!(said.contains(&of_node) && said.contains("verified"), "{said}");
    assert!(said.contains("not collected by an agent") && said.contains("collected over SSH"), "{said}");
    let listed = Command::new("tar").arg("tzf").arg(folder.join(&of_node)).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("bootstrap/"), "{listed:?}");
    let audit = std::fs::read_to_string(folder.join("audit.log")).unwrap();
    assert!(audit.contains(&format!("{HOST}:22")), "{audit}");
    let left =
        Command::new("sh").args(["-c", "ls /var/tmp/landfall.* 2>/dev/null | wc -l"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout).trim(), "0", "nothing stays on the node");

    // A node with a wrong host key gets neither the binary nor trust; the bundle of the bootstrap machine is complete
    // anyway.
    let (code, said) = gather("wrong");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("nothing collected") && said.to_lowercase().contains("host key"), "{said}");
}

#[test]
fn a_node_is_gathered_from_its_agent_through_the_tunnel() {
    if have(NEEDS) {
        in_network("gateway_host::a_node_is_gathered_from_its_agent_through_the_tunnel", from_agent);
    }
}

fn from_agent() {
    let bench = Bench::new();
    let authority = kubeadm(&bench);
    let folder = bench.path();
    let mut agent = crate::agent_serve::agent(&bench, &authority, HOST, 8710);
    agent.wait_until("the agent's port", LIMIT, || std::net::TcpStream::connect((HOST, 8710)).ok()).unwrap();
    let (port, upstream) = (free_port().unwrap(), free_port().unwrap());
    let settings = bench.file("gateway.toml", "[tunnel]\nnetworks = [\"192.0.2.0/24\"]\n");
    let _gateway = Process::start("gateway", program(), folder, |command| {
        command.arg("gateway").arg("--config").arg(&settings).arg("--root").arg(folder.join("root"));
        command.args([
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--upstream",
            &format!("127.0.0.1:{upstream}"),
        ]);
    })
    .unwrap();
    let url = format!("https://localhost:{port}");
    let mut command = bench.command(&["gather", &url, "-o", "gathered.tar.gz", "--output", "json"]);
    command.args(["--certificate-authority", "root/etc/kubernetes/pki/ca.crt", "--wait", "90"]);
    command.args(["--client-certificate", "admin.crt", "--client-key", "admin.key", "--node", HOST]);
    let output = command.output().unwrap();
    let (code, said) = (output.status.code(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&format!("node {HOST}: collected by its agent")), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verdict"]["cause"], "dns-resolution-failure");
}

#[test]
fn the_unit_serves_restarts_and_stops_under_systemd() {
    if !have(&[Node::NEEDS, &[Need::Program("curl")]].concat()) {
        return;
    }
    let bench = Bench::new();
    kubeadm(&bench);
    let mut spec = NodeSpec::new("bootstrap");
    for name in ["ca.crt", "front-proxy-ca.crt", "apiserver.crt", "apiserver.key"]
        .into_iter()
        .chain(["front-proxy-client.crt", "front-proxy-client.key"])
    {
        let path = format!("etc/kubernetes/pki/{name}");
        let content = std::fs::read(bench.path().join("root").join(&path)).unwrap();
        spec.files.push((format!("/{path}").into(), content));
    }
    spec.files.push(("/usr/local/bin/landfall".into(), std::fs::read(program()).unwrap()));
    spec.files.push(("/etc/systemd/system/landfall-gateway.service".into(), UNIT.into()));
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();
    node.output(&["chmod", "+x", "/usr/local/bin/landfall"]).unwrap();
    // With `Type=notify` this returns when the gateway has reported that it is ready.
    node.output(&["systemctl", "start", "landfall-gateway.service"]).unwrap();
    let property = |name: &str| {
        let value = node.output(&["systemctl", "show", "-p", name, "--value", "landfall-gateway.service"]);
        value.unwrap().trim().to_owned()
    };
    assert_eq!((property("ActiveState"), property("SubState")), ("active".to_owned(), "running".to_owned()));
    let ask = |path: &str, to: &str| {
        let mut curl = Command::new("curl");
        curl.current_dir(bench.path()).args(["-sk", "-m", "60", "--cert", "admin.crt", "--key", "admin.key"]);
        curl.args(["-o", to, "-w", "%{http_code}", &format!("https://{}:6443{path}", node.address())]);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    // Through the redirect rule, which the sandbox must allow.
    eventually("an answer at the API's port", LIMIT, || (ask("/livez", "/dev/null") == "200").then_some(()))
        .unwrap();
    // The collector reads the machine through the same sandbox.
    assert_eq!(ask("/bootstrap", "bundle.tar.gz"), "200", "{}", node.journal(&[]).unwrap());
    let listed = Command::new("tar").arg("tzf").arg(bench.path().join("bundle.tar.gz")).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for part in ["/journals/", "/network/"] {
        assert!(listed.contains(part), "{listed}");
    }
    assert!(node.read("/var/log/landfall/gateway-audit.log").unwrap().contains("\"/bootstrap\""));

    let before = property("MainPID");
    node.output(&["systemctl", "kill", "--kill-whom=main", "-s", "KILL", "landfall-gateway.service"])
        .unwrap();
    eventually("a successor", LIMIT, || {
        (property("SubState") == "running" && property("MainPID") != before).then_some(())
    })
    .unwrap();
    assert_eq!(property("NRestarts"), "1");
    eventually("its answer", LIMIT, || (ask("/livez", "/dev/null") == "200").then_some(())).unwrap();

    node.output(&["systemctl", "stop", "landfall-gateway.service"]).unwrap();
    assert_eq!((property("ActiveState"), property("Result")), ("inactive".to_owned(), "success".to_owned()));
    assert_eq!(node.output(&["nft", "list", "ruleset"]).unwrap().trim(), "", "no rule is left");
}
