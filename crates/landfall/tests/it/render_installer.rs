//! Tests the rendered pre-command of bootkube on a bootstrap host of the OpenShift installer.
//!
//! The host determines its own address and issues its own certificates. The command is killed after each of its steps
//! and run again, with records in the format of the installer's library.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_testkit::isolated::{self, HOST, in_network, shell};
use landfall_testkit::{Need, have};
use serde_json::Value;

use crate::command::Bench;
use crate::render_tunnel::install;

pub(crate) const IMAGE: &str = "none.example/none";
pub(crate) const NEEDS: &[Need] = &[Need::Program("jq"), Need::Program("bash")];
const DROP_IN: &str = "/etc/systemd/system/bootkube.service.d/10-landfall-tunnel.conf";
const BOOTKUBE: &str = "/usr/local/bin/bootkube.sh";
const RECORDS: &str = "/var/log/openshift/bootkube.json";
const STAGES: [&str; 4] = ["certs", "server-bootstrap", "override", "agent-manifest"];

/// Writes records like the installer's library: one array for each unit, entries without empty fields; a stage that
/// is open when the script ends is closed with it. The unit's name is given, because there is no systemd to query.
const LIBRARY: &str = r#"
entry() {
  local file=/var/log/openshift/$SERVICE_NAME.json
  mkdir -p /var/log/openshift
  { cat "$file" 2>/dev/null || echo '[]'; } | jq --arg timestamp "$(date +%Y-%m-%dT%H:%M:%SZ)" --arg phase "$1" \
    --arg result "${2-}" --arg errorLine "${3-}" --arg stage "${STAGE_NAME-}" --arg preCommand "${PRE_COMMAND-}" \
    '. + [{$timestamp, $phase, $result, $errorLine, $stage, $preCommand} | with_entries(select(.value != ""))]' >"$file.tmp"
  mv "$file.tmp" "$file"
}
whole=service
[ -z "${PRE_COMMAND-}" ] || whole=pre-command
record_service_stage_start() {
  if [ -n "${STAGE_NAME-}" ]; then echo 'a stage is open' && exit 1; fi
  STAGE_NAME=$1
  entry 'stage start'
}
record_service_stage_success() { entry 'stage end' success && STAGE_NAME=; }
finish() {
  local result=success line=
  [ "$1" = 0 ] || { result=failure line=$(caller 0 || true); }
  [ -z "${STAGE_NAME-}" ] || { entry 'stage end' $result "$line" && STAGE_NAME=; }
  entry "$whole end" $result "$line"
}
entry "$whole start"
trap 'finish $?' EXIT
"#;

/// The relevant parts of the installer's template: a stage that renders the API server, the copy for the machine
/// config controller, and the marker at the end.
const SCRIPT: &str = r#"#!/usr/bin/env bash
set -euoE pipefail
. /usr/local/bin/bootstrap-service-record.sh
cd /opt/openshift
mkdir --parents /etc/kubernetes/{manifests,bootstrap-configs} /etc/mcc/bootstrap manifests
BOOTSTRAP_INPLACE=false

bootkube_podman_run() {
    podman run --quiet --net=host "${@}"
}
KUBE_APISERVER_OPERATOR_IMAGE=operator.example/kube-apiserver
if [ ! -f kube-apiserver-bootstrap.done ]
then
    record_service_stage_start "kube-apiserver-bootstrap"
	rm --recursive --force kube-apiserver-bootstrap
	mkdir kube-apiserver-bootstrap
	bootkube_podman_run  \
		--name kube-apiserver-render \
		--volume "$PWD:/assets:z" \
		"${KUBE_APISERVER_OPERATOR_IMAGE}" \
		/usr/bin/cluster-kube-apiserver-operator render \
		--asset-output-dir=/assets/kube-apiserver-bootstrap \
		--config-output-file=/assets/kube-apiserver-bootstrap/config
	cp kube-apiserver-bootstrap/config /etc/kubernetes/bootstrap-configs/kube-apiserver-config.yaml
	touch kube-apiserver-bootstrap.done
    record_service_stage_success
fi
if [ ! -f mco-bootstrap.done ]
then
    record_service_stage_start "mco-bootstrap"
	cp manifests/* /etc/mcc/bootstrap/
	touch mco-bootstrap.done
    record_service_stage_success
fi
"#;

/// Runs two images: the binary under test, and the operator's image, which writes out the settings it receives.
const PODMAN: &str = r#"#!/usr/bin/env bash
set -eu
[ "$1" = run ] && shift
entry=
while [ "${1#-}" != "$1" ]; do
  case $1 in
  --volume) volume=$2 && shift ;;
  --entrypoint) entry=$2 && shift ;;
  --name | --user) shift ;;
  esac
  shift
done
host=${volume%%:*} inside=${volume#*:} inside=${inside%:z}
image=$1 && shift
case $image in
none.example/none)
  [ "$entry" = /landfall ]
  exec LANDFALL "${@/#$inside/$host}" ;;
operator.example/*)
  for word; do
    case $word in
    --config-override-files=*) settings=$host${word#*=/assets} ;;
    --config-output-file=*) out=$host${word#*=/assets} ;;
    esac
  done
  cp "$settings" "$out" ;;
esac
"#;

#[test]
fn a_bootstrap_host_makes_its_own_tunnel() {
    if !have(isolated::NEEDS) || !have(NEEDS) {
        return;
    }
    in_network("render_installer::a_bootstrap_host_makes_its_own_tunnel", || {
        every_interruption();
        what_it_cannot_do();
        a_registry_that_hangs();
        in_place();
        as_a_unit();
        the_kubelets_word();
    });
}

/// After each command in turn the host dies and starts again.
fn every_interruption() {
    let bench = Bench::new();
    prepare(&bench, &["--image", IMAGE]);
    let mut commands = 0;
    loop {
        clean();
        let run = pre_command(&bench, Some(commands));
        let killed = run.status.signal() == Some(9);
        assert!(killed || run.status.success(), "{commands}: {}", said(&run));
        if killed {
            let again = pre_command(&bench, None);
            assert!(again.status.success(), "killed after {commands}: {}", said(&again));
        }
        assert_made(commands);
        if !killed {
            break;
        }
        commands += 1;
    }
    assert!(commands > 30, "it was killed only {commands} times");

    let before = fs::read("/etc/landfall/tunnel/server.crt").unwrap();
    let again = pre_command(&bench, None);
    assert!(again.status.success(), "{}", said(&again));
    assert_eq!(fs::read("/etc/landfall/tunnel/server.crt").unwrap(), before, "what is done is done");
    let run = bootkube(&bench);
    assert!(run.status.success(), "{}", said(&run));
    let rendered =
        fs::read_to_string("/etc/kubernetes/bootstrap-configs/kube-apiserver-config.yaml").unwrap();
    assert!(rendered.contains("egress-selector-config-file"), "{rendered}");
    let stages = stages(&bench);
    assert_eq!(stages["bootkube: kube-apiserver-bootstrap"], "ok");
    for stage in STAGES {
        assert_eq!(stages[&format!("bootkube: landfall-tunnel-{stage}")], "ok", "{stages}");
    }
}

/// An unknown bootkube: the failure is recorded, and the API server gets no tunnel configuration. Then a new attempt.
fn what_it_cannot_do() {
    let bench = Bench::new();
    clean();
    let script = fs::read_to_string(BOOTKUBE).unwrap();
    fs::write(BOOTKUBE, "something else\n").unwrap();
    let run = pre_command(&bench, None);
    assert_eq!(run.status.code(), Some(1), "{}", said(&run));
    assert_eq!(fs::read_to_string(BOOTKUBE).unwrap(), "something else\n");
    let records = records();
    let failed = records.iter().find(|entry| entry["result"] == "failure").unwrap();
    assert_eq!(
        (&failed["phase"], &failed["stage"]),
        (&"stage end".into(), &"landfall-tunnel-override".into())
    );
    assert_eq!(failed["preCommand"], "landfall-tunnel-bootstrap");
    assert_eq!(records.last().unwrap()["phase"], "pre-command end");
    assert_eq!(stages(&bench)["bootkube: landfall-tunnel-override"], "failed");

    fs::write(BOOTKUBE, script).unwrap();
    let run = pre_command(&bench, None);
    assert!(run.status.success(), "{}", said(&run));
    assert_made(0);
}

/// systemd tolerates a pre-command that fails, but not one that exceeds its timeout, so the wait for the image is
/// limited.
fn a_registry_that_hangs() {
    let bench = Bench::new();
    clean();
    shell("cp /usr/local/bin/podman /run/podman");
    // Ignores every signal except SIGKILL.
    let hangs =
        "#!/bin/bash\ntrap '' TERM\nread -rt 60 <>/run/silence\ntouch /run/waited-for-the-registry\nexit 1\n";
    fs::write("/usr/local/bin/podman", hangs).unwrap();
    shell("mkfifo /run/silence");
    // Shortens the timeouts of the script.
    let faster = "[ \"$1 $2 $3\" = \"-k 10 300\" ] && shift 3 && exec /usr/bin/timeout -k 0.2 0.2 \"$@\"";
    let timeout = bench.file("timeout", format!("#!/bin/sh\n{faster}\n"));
    shell(&format!("install -m 755 {} /usr/local/bin/timeout", timeout.display()));
    let run = pre_command(&bench, None);
    assert!(!run.status.success(), "{}", said(&run));
    assert!(!Path::new("/run/waited-for-the-registry").exists());
    assert_eq!(records().last().unwrap()["phase"], "pre-command end");
    assert!(!Path::new("/etc/landfall/tunnel").exists());
    shell("mv /run/podman /usr/local/bin/podman && rm /usr/local/bin/timeout");
    let run = pre_command(&bench, None);
    assert!(run.status.success(), "{}", said(&run));
    assert_made(0);
}

/// A single node that becomes its own cluster would keep all files of the tunnel.
fn in_place() {
    let bench = Bench::new();
    clean();
    let script = fs::read_to_string(BOOTKUBE).unwrap();
    let script = script.replace("BOOTSTRAP_INPLACE=false", "BOOTSTRAP_INPLACE=true");
    fs::write(BOOTKUBE, &script).unwrap();
    let run = pre_command(&bench, None);
    assert!(run.status.success() && said(&run).contains("it gets no tunnel"), "{}", said(&run));
    assert_eq!(fs::read_to_string(BOOTKUBE).unwrap(), script, "bootkube is told of nothing");
    assert_eq!(records().last().unwrap()["result"], "success");
    shell(
        "[ \"$(find /etc/landfall /etc/kubernetes /opt/openshift -type f -not -name .keep 2>/dev/null)\" = /opt/openshift/landfall-tunnel-teardown.done ]",
    );
    clean();
}

/// The binary is on the host, and the server is a unit that is enabled once it has certificates.
fn as_a_unit() {
    let bench = Bench::new();
    prepare(&bench, &["--image", IMAGE, "--run-as", "unit"]);
    clean();
    shell(
        "printf '#!/bin/sh\\necho \"$@\" >>/run/systemctl.log\\n[ -e /etc/landfall/tunnel/server.key ]\\n' >/usr/local/bin/systemctl",
    );
    shell("chmod 755 /usr/local/bin/systemctl && rm /usr/local/bin/podman");
    shell(&format!("ln -s {} /usr/local/bin/landfall", env!("CARGO_BIN_EXE_landfall")));
    let run = pre_command(&bench, None);
    assert!(run.status.success(), "{}", said(&run));
    let asked = fs::read_to_string("/run/systemctl.log").unwrap();
    assert_eq!(asked, "daemon-reload\nenable --now --no-block landfall-tunnel-server.service\n");
    let unit = fs::read_to_string("/etc/systemd/system/landfall-tunnel-server.service").unwrap();
    assert!(unit.contains("--cluster-cert=/etc/landfall/tunnel/server.crt"), "{unit}");
    assert!(!Path::new("/etc/kubernetes/manifests/landfall-tunnel-server.yaml").exists());
    assert_eq!(called(), HOST);
    prepare(&bench, &["--image", IMAGE, "--force"]);
}

/// The address in the kubelet's settings is used for the node. Without any address there is no tunnel.
fn the_kubelets_word() {
    let bench = Bench::new();
    clean();
    fs::write(
        "/usr/local/bin/kubelet.sh",
        "/usr/bin/kubelet \\\n    --node-ip=\"198.51.100.7\" \\\n    --v=2\n",
    )
    .unwrap();
    let run = pre_command(&bench, None);
    assert!(run.status.success(), "{}", said(&run));
    assert_eq!(called(), "198.51.100.7");

    clean();
    fs::write("/usr/local/bin/kubelet.sh", "/usr/bin/kubelet --node-ip=:: --v=2\n").unwrap();
    shell("ip -6 addr add 2001:db8::5/64 dev cable nodad && ip -6 route add default via 2001:db8::1");
    let run = pre_command(&bench, None);
    assert!(run.status.success(), "{}", said(&run));
    assert_eq!(called(), "2001:db8::5");

    clean();
    fs::write("/usr/local/bin/kubelet.sh", "/usr/bin/kubelet --v=2\n").unwrap();
    shell("ip route del default; ip -6 route del default");
    let run = pre_command(&bench, None);
    assert_eq!(run.status.code(), Some(1), "{}", said(&run));
    assert!(said(&run).contains("no address that nodes could call"), "{}", said(&run));
    assert!(
        !Path::new("/etc/landfall/tunnel").exists()
            && !fs::read_to_string(BOOTKUBE).unwrap().contains("landfall")
    );
}

/// Installs the files rendered for the installer's source beside those that the installer itself puts on a bootstrap
/// host.
pub(crate) fn prepare(bench: &Bench, words: &[&str]) {
    let words = [&["render", "tunnel", "--for", "openshift", "--format", "installer", "-o", "source"], words]
        .concat();
    let rendered = bench.run(&words);
    assert_eq!(rendered.code, 0, "{rendered:?}");
    let source = bench.path().join("source/data/data/bootstrap");
    let keys = Command::new("grep").args(["-rlE", "PRIVATE KEY|CERTIFICATE"]).arg(&source).output().unwrap();
    assert_eq!(keys.stdout, b"", "there are keys in the source");

    bench.file("host/usr/local/bin/bootstrap-service-record.sh", LIBRARY);
    for (path, text) in [
        ("host/usr/local/bin/bootkube.sh", SCRIPT.to_owned()),
        ("host/usr/local/bin/podman", PODMAN.replace("LANDFALL", env!("CARGO_BIN_EXE_landfall"))),
        // Waiting for missing addresses is skipped.
        ("host/usr/local/bin/sleep", "#!/bin/sh\n".to_owned()),
        ("host/usr/local/bin/kubelet.sh", "/usr/bin/kubelet --v=2\n".to_owned()),
    ] {
        let path = bench.file(path, text);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for folder in ["opt/openshift", "var/log", "etc/kubernetes"] {
        bench.file(&format!("host/{folder}/.keep"), "");
    }
    install(&bench.path().join("host"));
    install(&source.join("files"));
    let units = source.join("systemd/common/units");
    shell(&format!("mkdir -p /etc/systemd/system && cp {}/* /etc/systemd/system", units.display()));
    shell(&format!("cp {BOOTKUBE} /run/bootkube.sh"));
    shell("ip route replace default via 192.0.2.2");
}

/// Runs the pre-command of bootkube as systemd would, and kills it after this many commands.
pub(crate) fn pre_command(bench: &Bench, limit: Option<usize>) -> Output {
    let drop_in = fs::read_to_string(DROP_IN).unwrap();
    let script = drop_in.lines().find_map(|line| line.strip_prefix("ExecStartPre=-")).unwrap();
    run(bench, script, limit)
}

pub(crate) fn bootkube(bench: &Bench) -> Output {
    run(bench, BOOTKUBE, None)
}

fn run(bench: &Bench, script: &str, limit: Option<usize>) -> Output {
    let count = limit.map_or_else(String::new, |limit| {
        format!("n=0; trap 'n=$((n+1)); [ $n -le {limit} ] || kill -9 $$' DEBUG\n")
    });
    let script = bench.file("script", format!("{count}{}", fs::read_to_string(script).unwrap()));
    Command::new("bash")
        .arg(script)
        .current_dir(bench.path())
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("SERVICE_NAME", "bootkube")
        .output()
        .unwrap()
}

pub(crate) fn said(run: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr))
}

/// Resets the host to its state before the first boot.
fn clean() {
    shell("rm -rf /opt/openshift/* /etc/landfall /etc/kubernetes/* /var/log/openshift /etc/mcc");
    shell(&format!("cp /run/bootkube.sh {BOOTKUBE}"));
}

/// Checks that there is one complete tunnel: matching certificates, one flag, and a record of each stage.
fn assert_made(at: usize) {
    let manifest = |name: &str| -> Value {
        let text = fs::read_to_string(format!("/opt/openshift/manifests/{name}.yaml")).unwrap();
        serde_saphyr::from_str(&text).unwrap()
    };
    let secret = manifest("04-landfall-tunnel-secret");
    let authority = STANDARD.decode(secret["data"]["ca.crt"].as_str().unwrap()).unwrap();
    assert_eq!(fs::read("/etc/landfall/tunnel/ca.crt").unwrap(), authority, "{at}");
    for name in ["server.crt", "server.key"] {
        let made = format!("/opt/openshift/landfall-tunnel/host/etc/landfall/tunnel/{name}");
        assert_eq!(
            fs::read(format!("/etc/landfall/tunnel/{name}")).unwrap(),
            fs::read(made).unwrap(),
            "{at}"
        );
    }
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("/etc/landfall/tunnel/server.key"), 0o600);
    assert_eq!(mode("/opt/openshift/manifests/04-landfall-tunnel-secret.yaml"), 0o600);
    assert_eq!(mode("/opt/openshift/landfall-tunnel"), 0o700);
    assert_eq!(called(), HOST);
    assert!(Path::new("/etc/kubernetes/manifests/landfall-tunnel-server.yaml").exists(), "{at}");
    assert!(
        Path::new("/etc/kubernetes/bootstrap-configs/landfall-tunnel/egress-selector.yaml").exists(),
        "{at}"
    );
    assert_eq!(fs::read_to_string(BOOTKUBE).unwrap().matches("--config-override-files=").count(), 1, "{at}");
    shell("[ -z \"$(find /etc /opt /usr/local -name '*.landfall' -o -name 'landfall-tunnel.new')\" ]");

    for stage in STAGES {
        assert!(Path::new(&format!("/opt/openshift/landfall-tunnel-{stage}.done")).exists(), "{at}");
    }
    let ends: Vec<String> = records()
        .iter()
        .filter(|entry| entry["phase"] == "stage end" && entry["result"] == "success")
        .map(|entry| entry["stage"].as_str().unwrap().trim_start_matches("landfall-tunnel-").to_owned())
        .collect();
    let mut once = ends.clone();
    once.dedup();
    assert_eq!(once, STAGES, "{at}: in this order");
    // A stage whose marker was not written yet runs again.
    assert!(ends.len() <= STAGES.len() + 1, "{at}: {ends:?}");
}

/// Returns the address that the agents connect to.
fn called() -> String {
    let text = fs::read_to_string("/opt/openshift/manifests/05-landfall-tunnel-daemon-set.yaml").unwrap();
    let set: Value = serde_saphyr::from_str(&text).unwrap();
    let arguments = set["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
    let called =
        arguments.iter().find_map(|word| word.as_str().unwrap().strip_prefix("--proxy-server-host="));
    called.unwrap().to_owned()
}

fn records() -> Vec<Value> {
    serde_json::from_str(&fs::read_to_string(RECORDS).unwrap()).unwrap()
}

/// Returns the result of `landfall diagnose` for the records: the last state of each stage.
fn stages(bench: &Bench) -> Value {
    let run = bench.run(&["diagnose", "--explain", "--output", "json", RECORDS]);
    let report = run.report();
    let stages = report["reasoning"]["stages"].as_array().unwrap_or_else(|| panic!("{run:?}"));
    stages
        .iter()
        .map(|stage| (stage["stage"].as_str().unwrap_or_default().to_owned(), stage["outcome"].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
