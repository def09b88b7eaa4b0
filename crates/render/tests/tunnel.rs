//! Snapshots of the tunnel's files, and checks by their consumers.
//!
//! The consumers are kube-apiserver, kubectl, kubeadm and Ignition.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;

use std::fs;
use std::path::Path;
use std::process::Command;

use landfall_model::Secret;
use landfall_pki::KeyedCertificate;
use landfall_render::tunnel::{self, RunAs, Settings};
use landfall_render::{
    Completion, Content, Credentials, Download, Format, RenderError, Target, authority, credentials, script,
    steps,
};
use landfall_testkit::{ApiServer, Binary, Need, have};

/// Targets with files on a host; those of Cluster API are in the object that configures the machines.
const HOSTS: [Target; 3] = [Target::Openshift, Target::Kubeadm, Target::K3s];

fn settings(target: Target) -> Settings {
    Settings::new(target, "10.0.0.5", "registry.example/landfall:0.1.0")
}

/// Returns the settings of a bootstrap host that determines its own address.
fn unknown() -> Settings {
    Settings { server: None, ..settings(Target::Openshift) }
}

fn real() -> Credentials {
    let authority = authority(None, 7).unwrap();
    credentials(&authority, &["10.0.0.5".to_owned()], 7).unwrap()
}

/// Returns fixed certificates, so that snapshots are reproducible.
fn fixed() -> Credentials {
    let pair = |name: &str| KeyedCertificate {
        certificate: format!("certificate of the {name}\n"),
        key: Secret::new(format!("key of the {name}\n")),
    };
    Credentials { authority: "authority\n".to_owned(), server: pair("server"), agent: pair("agent") }
}

#[test]
fn every_target_is_rendered_as_reviewed() {
    for target in Target::ALL {
        let plan = tunnel::plan(&settings(target), &fixed(), Format::Yaml).unwrap();
        insta::assert_snapshot!(format!("tunnel-{target:?}"), plan.show());
        insta::assert_snapshot!(format!("teardown-{target:?}"), script(&settings(target)));
    }
    for (target, text) in [(Target::Kubeadm, "config-map"), (Target::K3s, "event"), (Target::Capi, "marker")]
    {
        let completion = Some(Completion::parse(text, target).unwrap());
        let settings = Settings { completion, ..settings(target) };
        insta::assert_snapshot!(format!("teardown-{target:?}-{text}"), script(&settings));
        let plan = tunnel::plan(&settings, &fixed(), Format::Yaml).unwrap();
        assert!(plan.show().contains("ExecStart=/usr/local/bin/landfall-tunnel-teardown.sh"), "{target:?}");
    }
    for format in [Format::Kustomize, Format::Helm] {
        let plan = tunnel::plan(&settings(Target::Kubeadm), &fixed(), format).unwrap();
        let names: Vec<String> =
            plan.files.iter().map(|file| format!("{:04o} {}", file.mode, file.path.display())).collect();
        insta::assert_snapshot!(format!("files-{format:?}"), names.join("\n"));
    }
}

#[test]
fn the_api_server_takes_every_manifest() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let api_server = cluster::with_namespaces(&["landfall-bootstrap"]);
    for target in HOSTS {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { run_as: RunAs::Pod, ..settings(target) };
        tunnel::plan(&settings, &real(), Format::Kustomize).unwrap().write(folder.path(), false).unwrap();
        let manifests = match target {
            Target::K3s => "host/var/lib/rancher/k3s/agent/pod-manifests",
            _ => "host/etc/kubernetes/manifests",
        };
        let pod = folder.path().join(manifests).join("landfall-tunnel-server.yaml");
        let taken = cluster::take(&api_server, "-f", &pod);
        assert!(taken.contains("landfall-tunnel-server created"), "{taken}");
        let taken = cluster::take(&api_server, "-k", &folder.path().join("manifests"));
        assert!(taken.contains("daemonset.apps/landfall-tunnel-agent created"), "{taken}");
        assert!(taken.contains("secret/landfall-tunnel-agent created"), "{taken}");
    }
}

#[test]
fn static_pods_lie_where_the_kubelet_looks_and_go_from_there() {
    for (target, folder) in [
        (Target::K3s, "/var/lib/rancher/k3s/agent/pod-manifests"),
        (Target::Kubeadm, "/etc/kubernetes/manifests"),
    ] {
        let settings = Settings { run_as: RunAs::Pod, ..settings(target) };
        let plan = tunnel::plan(&settings, &fixed(), Format::Yaml).unwrap();
        let pod = format!("{folder}/landfall-tunnel-server.yaml");
        assert!(plan.files.iter().any(|file| file.path == Path::new(&format!("host{pod}"))), "{target:?}");
        assert!(script(&settings).contains(&format!("rm -f {pod}\n")), "{target:?}");
    }
}

/// Below /etc, a unit may write only to the configured directories.
#[test]
fn the_servers_unit_may_make_its_socket() {
    for target in HOSTS {
        let settings = Settings { run_as: RunAs::Unit, ..settings(target) };
        let text = tunnel::plan(&settings, &fixed(), Format::Yaml).unwrap().show();
        let socket = text.split("--uds-name=").nth(1).unwrap().split_whitespace().next().unwrap();
        let folder = Path::new(socket).parent().unwrap().display().to_string();
        let told = text.contains(&format!("\nReadWritePaths={folder}\n"));
        assert_eq!(told, folder.starts_with("/etc/"), "{target:?}: {folder}");
    }
}

/// A unit needs the binary, which no other component installs on the host.
#[test]
fn a_unit_is_brought_its_program() {
    let download =
        Some(Download { url: "https://releases.example/landfall".to_owned(), sha256: "5f".repeat(32) });
    let fetched = |target, format| {
        let settings = Settings { run_as: RunAs::Unit, download: download.clone(), ..settings(target) };
        let plan = tunnel::plan(&settings, &fixed(), format).unwrap();
        let folder = tempfile::tempdir().unwrap();
        plan.write(folder.path(), false).unwrap();
        let grep = Command::new("grep")
            .args(["-rl", "-e", "https://releases.example/landfall", "-e", "landfall-tunnel-install.sh"])
            .arg(folder.path())
            .output();
        String::from_utf8(grep.unwrap().stdout).unwrap()
    };
    assert!(fetched(Target::K3s, Format::Yaml).ends_with("/install.sh\n"));
    assert!(fetched(Target::K3s, Format::Ignition).ends_with("/landfall-tunnel.ign\n"));
    assert!(fetched(Target::Capi, Format::Yaml).ends_with("/kubeadm-control-plane.yaml\n"));
    let unit = Settings { run_as: RunAs::Unit, download: download.clone(), ..unknown() };
    let text = tunnel::plan_of_own_address(&unit, 7, Format::Installer).unwrap().show();
    assert!(text.contains("files/usr/local/bin/landfall-tunnel-install.sh <==\n"), "{text}");
    let pod = Settings { download, ..settings(Target::Kubeadm) };
    let error = tunnel::plan(&pod, &fixed(), Format::Yaml).err().unwrap();
    assert!(matches!(error, RenderError::DownloadOfPod), "{error}");
}

#[test]
fn kubeadm_takes_its_configuration() {
    if !have(&[Need::Built(Binary::Kubeadm)]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    tunnel::plan(&settings(Target::Kubeadm), &fixed(), Format::Yaml)
        .unwrap()
        .write(folder.path(), false)
        .unwrap();
    let output = Command::new(Binary::Kubeadm.path().unwrap())
        .args(["config", "validate", "--config"])
        .arg(folder.path().join("host/etc/landfall/tunnel/kubeadm-init-configuration.yaml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn ignition_takes_its_configuration() {
    for target in HOSTS {
        let folder = tempfile::tempdir().unwrap();
        tunnel::plan(&settings(target), &fixed(), Format::Ignition)
            .unwrap()
            .write(folder.path(), false)
            .unwrap();
        let text = fs::read_to_string(folder.path().join("landfall-tunnel.ign")).unwrap();
        let (config, warnings) = ignition_config::Config::parse_str(&text).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        assert!(matches!(config, ignition_config::Config::V3_2(_)), "{config:?}");
        let manifests_beside = Path::new(&folder.path().join("manifests")).exists();
        assert_eq!(manifests_beside, target != Target::Openshift);
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let good = settings(Target::Kubeadm);
    let refused = |settings: Settings| tunnel::plan(&settings, &fixed(), Format::Yaml).err().unwrap();
    let long = "n".repeat(64);
    for namespace in ["", "Upper", "a b", "-a", long.as_str()] {
        let error = refused(Settings { namespace: namespace.to_owned(), ..good.clone() });
        assert!(matches!(error, RenderError::Namespace { .. }), "{error}");
    }
    for namespace in [
        "default",
        "kube-system",
        "openshift-etcd",
        "landfall",
        "landfall-agent",
        "landfall-capi",
        "landfall-hub",
    ] {
        let error = refused(Settings { namespace: namespace.to_owned(), ..good.clone() });
        assert!(matches!(error, RenderError::SharedNamespace { .. }), "{error}");
    }
    for server in ["", "10.0.0.0/24", "a b", "https://x", "10.0.0.256", "0.0.0.0"] {
        let error = refused(Settings { server: Some(server.to_owned()), ..good.clone() });
        assert!(matches!(error, RenderError::Address { .. }), "{error}");
    }
    let error = refused(Settings { image: "a b".to_owned(), ..good.clone() });
    assert!(matches!(error, RenderError::Image { .. }));
    for port in [6443, 6444, 8093, 8094, good.health_port, good.admin_port] {
        let error = refused(Settings { agent_port: port, ..good.clone() });
        assert!(matches!(error, RenderError::Ports { .. }), "{port}: {error}");
    }
    for low in [0, 443, 1023] {
        let error = refused(Settings { agent_port: low, ..good.clone() });
        assert!(matches!(error, RenderError::LowPort { port } if port == low), "{low}: {error}");
    }
    // The gateway's port on k3s.
    let port = |target| Settings { agent_port: 6445, ..settings(target) };
    assert!(matches!(refused(port(Target::K3s)), RenderError::Ports { .. }));
    assert!(tunnel::plan(&port(Target::Kubeadm), &fixed(), Format::Yaml).is_ok());
}

/// A minimal replacement for the installer's library, with the functions that the scripts call.
const RECORDS: &str =
    "record_service_stage_start(){ echo \"start $1\"; }; record_service_stage_success(){ echo success; }\n";

/// Runs one of the scripts for the installer's bootstrap, with its library and files at other paths.
fn run_script(folder: &Path, name: &str) -> std::process::Output {
    let files = folder.join("host/usr/local/bin");
    let text = fs::read_to_string(files.join(name)).unwrap();
    fs::write(folder.join("records.sh"), RECORDS).unwrap();
    let records = format!(". {}/records.sh", folder.display());
    let text = text.replace(". /usr/local/bin/bootstrap-service-record.sh", &records);
    fs::write(folder.join(name), text).unwrap();
    Command::new("bash")
        .arg(folder.join(name))
        .env("LANDFALL_BOOTKUBE", folder.join("bootkube.sh"))
        .env("LANDFALL_DONE", folder)
        .output()
        .unwrap()
}

#[test]
fn bootkube_learns_of_the_tunnel_once() {
    let folder = tempfile::tempdir().unwrap();
    let plan = tunnel::plan(&settings(Target::Openshift), &fixed(), Format::Yaml).unwrap();
    plan.write(folder.path(), false).unwrap();
    let script = folder.path().join("bootkube.sh");
    let before = "bootkube_podman_run \\\n    \"${IMAGE}\" \\\n    /usr/bin/cluster-kube-apiserver-operator render \\\n      --asset-input-dir=/assets/tls \\\n      --config-output-file=x\n";
    fs::write(&script, before).unwrap();
    for _ in 0..2 {
        let run = run_script(folder.path(), "landfall-tunnel-egress.sh");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }
    let after = fs::read_to_string(&script).unwrap();
    let added = "      --config-override-files=/assets/landfall-tunnel-config-override.yaml \\\n";
    assert_eq!(after, before.replace("render \\\n", &format!("render \\\n{added}")));

    fs::write(&script, "something else\n").unwrap();
    let run = run_script(folder.path(), "landfall-tunnel-egress.sh");
    assert_eq!(run.status.code(), Some(1));
    assert_eq!(fs::read_to_string(&script).unwrap(), "something else\n");
}

/// Files in a source tree are the same for every cluster, so they must not contain a key or certificate.
#[test]
fn the_installers_source_gets_no_keys() {
    let error = tunnel::plan(&settings(Target::Openshift), &fixed(), Format::Installer).err().unwrap();
    assert!(matches!(error, RenderError::KeysInSource), "{error}");
    for run_as in [RunAs::Pod, RunAs::Unit] {
        let settings = Settings { run_as, ..unknown() };
        let plan = tunnel::plan_of_own_address(&settings, 7, Format::Installer).unwrap();
        assert!(plan.files.iter().all(|file| matches!(file.content, Content::Open(_))));
        let names: Vec<String> = plan.files.iter().map(|file| file.path.display().to_string()).collect();
        // A directory of drop-ins beside a unit makes two units of one name, which Ignition rejects.
        assert!(names.iter().all(|name| !(name.contains("/units/") && name.contains(".d/"))), "{names:?}");
        insta::assert_snapshot!(format!("own-address-{run_as:?}"), plan.show());
    }
    for format in [Format::Helm, Format::Kustomize] {
        let error = tunnel::plan_of_own_address(&unknown(), 7, format).err().unwrap();
        assert!(matches!(error, RenderError::Combination { .. }), "{error}");
    }
    let elsewhere = Settings { server: None, ..settings(Target::Kubeadm) };
    let error = tunnel::plan_of_own_address(&elsewhere, 7, Format::Yaml).err().unwrap();
    assert!(matches!(error, RenderError::OwnAddress), "{error}");
    let error = tunnel::plan_of_own_address(&unknown(), 0, Format::Yaml).err().unwrap();
    assert!(matches!(error, RenderError::Days { days: 0 }), "{error}");
    let error = tunnel::plan(&elsewhere, &fixed(), Format::Yaml).err().unwrap();
    assert!(matches!(error, RenderError::Missing { .. }), "{error}");
}

/// After a failed restart of k3s, the next run must restart it again.
#[test]
fn a_restart_of_k3s_that_failed_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let drop_in = folder.path().join("90-landfall-tunnel.yaml");
    fs::write(&drop_in, "").unwrap();
    let step = steps(&settings(Target::K3s)).into_iter().find(|step| step.name == "egress").unwrap();
    let commands: Vec<&str> =
        step.commands.iter().take_while(|line| !line.contains("pgrep")).map(String::as_str).collect();
    let text =
        commands.join("\n").replace("/etc/rancher/k3s/config.yaml.d", &folder.path().display().to_string());
    let run = |systemctl: &str| {
        let text = format!("set -eu\nsystemctl(){{ echo \"$@\"; {systemctl}; }}\n{text}\n");
        Command::new("sh").args(["-c", &text]).output().unwrap()
    };
    for (systemctl, said) in [("false", "restart k3s\n"), ("true", "restart k3s\n"), ("true", "")] {
        let run = run(systemctl);
        assert_eq!(run.status.success(), systemctl == "true", "{run:?}");
        assert_eq!(String::from_utf8_lossy(&run.stdout), said, "{run:?}");
        assert!(!drop_in.exists());
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

/// All steps are complete: the script changes nothing and sends no request to any cluster.
#[test]
fn a_teardown_that_is_done_does_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::Openshift;
    let completion = Some(Completion::parse("marker", target).unwrap());
    let settings = Settings { completion, ..settings(target) };
    tunnel::plan(&settings, &fixed(), Format::Yaml).unwrap().write(folder.path(), false).unwrap();
    for step in steps(&settings) {
        fs::write(folder.path().join(format!("landfall-tunnel-{}.done", step.name)), "").unwrap();
    }
    let run = run_script(folder.path(), "landfall-tunnel-teardown.sh");
    assert!(run.status.success() && run.stdout.is_empty(), "{run:?}");
    assert!(folder.path().join("landfall-tunnel-teardown.done").exists());
}
