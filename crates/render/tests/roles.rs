//! Snapshots of gateway, agent, hub and in-place files, and checks by their consumers.
//!
//! The consumers are kube-apiserver, nft, Ignition and a shell.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admitted;
mod cluster;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_model::Secret;
use landfall_pki::KeyedCertificate;
use landfall_render::agent::{self, MAX_SNIPPET, Way};
use landfall_render::carriers::{BootstrapReport, Carriers, Events, Hub, Nats, Neighbour, Objects, Serve};
use landfall_render::tunnel::RunAs;
use landfall_render::{Content, Download, Format, Plan, RenderError, Stores, Target, gateway, hub, in_place};
use landfall_testkit::{ApiServer, FileServer, Need, have};
use serde_json::{Value, json};

const IMAGE: &str = "registry.example/landfall:0.1.0";

fn download() -> Download {
    let url = "https://releases.example/landfall/v0.1.0/landfall-linux-amd64".to_owned();
    Download { url, sha256: "5f".repeat(32) }
}

fn gateway(target: Target) -> gateway::Settings {
    gateway::Settings {
        target,
        redirect: Some(6443),
        networks: vec!["10.0.0.0/8".to_owned(), "fd00::/8".to_owned()],
        gatherers: Some("support".to_owned()),
        token: Secret::new("the token".to_owned()),
        download: Some(download()),
    }
}

fn agent(target: Target, way: Way) -> agent::Settings {
    let hub = Hub {
        url: "https://hub.example:8700".to_owned(),
        authority: (way != Way::FirstBoot).then(|| "the authority\n".to_owned()),
        token: true,
        certificate: false,
    };
    agent::Settings {
        target,
        way,
        carriers: Carriers { hub: Some(hub), ..Carriers::default() },
        image: Some(IMAGE.to_owned()),
        namespace: "landfall-agent".to_owned(),
        download: (!matches!(way, Way::Pod | Way::DaemonSet)).then(download),
    }
}

/// Returns an agent with all carriers.
fn talkative(target: Target, way: Way) -> agent::Settings {
    let settings = agent(target, way);
    let authority = |whose: &str| format!("the authority of {whose}\n");
    let carriers = Carriers {
        hub: settings.carriers.hub.clone().map(|hub| Hub { token: false, certificate: true, ..hub }),
        objects: Some(Objects {
            url: "s3://fleet/prod?region=r1&endpoint=https://minio.example:9000".to_owned(),
            authority: Some(authority("the bucket")),
        }),
        events: Some(Events {
            url: "https://queue.example/fleet".to_owned(),
            authority: Some(authority("events")),
            token: true,
        }),
        nats: Some(Nats {
            url: "tls://nats.example:4222".to_owned(),
            subject: Some("fleet.reports".to_owned()),
            authority: Some(authority("NATS")),
            login: true,
            certificate: true,
        }),
        neighbour: Some(Neighbour {
            places: vec!["10.0.0.4:8710".to_owned()],
            authority: authority("the neighbour"),
        }),
        bootstrap_report: Some(BootstrapReport {
            object: "team-a/edge-1".to_owned(),
            server: "https://mgmt.example:6443".to_owned(),
            authority: authority("the management cluster"),
        }),
        // Only pods on OpenShift can open the console.
        console: (!matches!(way, Way::Pod | Way::DaemonSet) || target == Target::Openshift)
            .then(|| "/dev/ttyS0".to_owned()),
        serve: Some(Serve { address: ":8710".to_owned(), client_authority: authority("those who ask") }),
    };
    agent::Settings { carriers, ..settings }
}

fn hub(target: Target, run_as: RunAs) -> hub::Settings {
    hub::Settings {
        target,
        run_as,
        names: vec!["hub.example".to_owned()],
        namespace: "landfall-hub".to_owned(),
        image: Some(IMAGE.to_owned()),
        download: (run_as == RunAs::Unit).then(download),
        stores: None,
        replicas: 1,
    }
}

/// Returns hubs with shared stores.
fn hubs(target: Target, run_as: RunAs) -> hub::Settings {
    let stores = Stores {
        reports: "postgres://hub@db.example/landfall?password-file=/etc/landfall/db".to_owned(),
        bundles: "s3://bundles/hub%20s?region=r1&credentials-file=/etc/landfall/s3".to_owned(),
    };
    let replicas = if run_as == RunAs::Pod { 3 } else { 1 };
    hub::Settings { stores: Some(stores), replicas, ..hub(target, run_as) }
}

fn hub_credentials() -> hub::Credentials {
    hub::Credentials {
        authority: "the authority\n".to_owned(),
        serving: KeyedCertificate {
            certificate: "the certificate\n".to_owned(),
            key: Secret::new("the key\n".to_owned()),
        },
        token_key: Secret::new("the key of tokens".to_owned()),
    }
}

fn in_place(target: Target) -> in_place::Settings {
    let nodes = ["worker-1".to_owned(), "worker-2.example".to_owned()].into();
    in_place::Settings { target, image: IMAGE.to_owned(), nodes }
}

/// Returns all packages with manifests in one format.
fn with_manifests(target: Target, format: Format) -> [Plan; 5] {
    [
        gateway::plan(&gateway(target), format).unwrap(),
        agent::plan(&talkative(target, Way::DaemonSet), format).unwrap(),
        hub::plan(&hub(target, RunAs::Pod), &hub_credentials(), format).unwrap(),
        hub::plan(&hubs(target, RunAs::Pod), &hub_credentials(), format).unwrap(),
        in_place::plan(&in_place(target), format).unwrap(),
    ]
}

#[test]
fn every_role_is_rendered_as_reviewed() {
    for target in Target::ALL {
        let plan = gateway::plan(&gateway(target), Format::Yaml).unwrap();
        insta::assert_snapshot!(format!("gateway-{target:?}"), plan.show());
        for way in [Way::FirstBoot, Way::Pod, Way::DaemonSet] {
            let plan = agent::plan(&agent(target, way), Format::Yaml).unwrap();
            insta::assert_snapshot!(format!("agent-{}-{target:?}", way.name()), plan.show());
        }
    }
    let plan = agent::plan(&agent(Target::Kubeadm, Way::Image), Format::Yaml).unwrap();
    insta::assert_snapshot!("agent-image", plan.show());
    for (target, way) in
        [(Target::Kubeadm, Way::Image), (Target::K3s, Way::Pod), (Target::Openshift, Way::DaemonSet)]
    {
        let mut plan = agent::plan(&talkative(target, way), Format::Yaml).unwrap();
        // The other files are the same as above.
        plan.files.retain(|file| {
            let path = file.path.to_string_lossy();
            !["service", "preset"].iter().any(|end| path.ends_with(end))
        });
        insta::assert_snapshot!(format!("agent-with-everything-{}-{target:?}", way.name()), plan.show());
    }
    for run_as in [RunAs::Pod, RunAs::Unit] {
        let plan = hub::plan(&hub(Target::Kubeadm, run_as), &hub_credentials(), Format::Yaml).unwrap();
        insta::assert_snapshot!(format!("hub-{run_as:?}"), plan.show());
        let mut plan = hub::plan(&hubs(Target::Openshift, run_as), &hub_credentials(), Format::Yaml).unwrap();
        // The other files are the same as above.
        plan.files.retain(|file| {
            let path = file.path.to_string_lossy();
            ["deployment.yaml", "budget.yaml", "service"].iter().any(|end| path.ends_with(end))
        });
        insta::assert_snapshot!(format!("hubs-{run_as:?}"), plan.show());
    }
    for target in Target::ALL {
        let plan = in_place::plan(&in_place(target), Format::Yaml).unwrap();
        let word = if target == Target::Openshift { "in-place-Openshift" } else { "in-place" };
        insta::assert_snapshot!(word, plan.show());
    }
    let [gateway, agent, hub, hubs, in_place] = with_manifests(Target::K3s, Format::Helm);
    for (word, plan) in
        [("gateway", gateway), ("agent", agent), ("hub", hub), ("hubs", hubs), ("in-place", in_place)]
    {
        let chart = plan.files.iter().filter(|file| file.path.ends_with("chart/values.yaml"));
        let values: Vec<&str> = chart.filter_map(|file| file.content.shown()).collect();
        insta::assert_snapshot!(format!("values-{word}"), values.concat());
    }
}

/// User data has a small size limit on every platform.
#[test]
fn a_first_boot_has_less_than_a_kilobyte_everywhere() {
    let mut seen = 0;
    for (target, format) in [
        (Target::Kubeadm, Format::Yaml),
        (Target::K3s, Format::Yaml),
        (Target::Capi, Format::Yaml),
        (Target::Openshift, Format::Yaml),
        (Target::Kubeadm, Format::Ignition),
        (Target::K3s, Format::Ignition),
        (Target::Openshift, Format::Ignition),
    ] {
        let plan = agent::plan(&agent(target, Way::FirstBoot), format).unwrap();
        for file in &plan.files {
            let text = file.content.shown().unwrap();
            assert!(text.len() < MAX_SNIPPET, "{target:?}: {} bytes\n{text}", text.len());
            assert!(text.contains("sha256sum -c --status"), "{text}");
            seen += 1;
        }
    }
    // Cluster API has two kinds of machines, with a fragment and a patch for each.
    assert_eq!(seen, 10);
    // CA files are not counted.
    let mut trusting = agent(Target::Capi, Way::FirstBoot);
    trusting.carriers.hub.as_mut().unwrap().authority = Some("a".repeat(1500));
    for target in [Target::Capi, Target::Kubeadm, Target::Openshift] {
        assert!(agent::plan(&agent::Settings { target, ..trusting.clone() }, Format::Yaml).is_ok());
    }
}

/// Rendered objects must not change the Pod Security level of other components' namespaces.
#[test]
fn namespaces_of_others_are_used_as_they_are() {
    for format in [Format::Yaml, Format::Helm] {
        for (namespace, made) in [("kube-system", false), ("default", false), ("fleet", true)] {
            let namespace = namespace.to_owned();
            let agent =
                agent::Settings { namespace: namespace.clone(), ..agent(Target::Kubeadm, Way::DaemonSet) };
            let hub = hub::Settings { namespace: namespace.clone(), ..hub(Target::Kubeadm, RunAs::Pod) };
            for plan in
                [agent::plan(&agent, format).unwrap(), hub::plan(&hub, &hub_credentials(), format).unwrap()]
            {
                assert_eq!(plan.show().contains("kind: Namespace"), made, "{namespace} {format:?}");
            }
        }
    }
}

/// The installer enables only its own units and has no other source for the binary.
#[test]
fn the_installers_bootstrap_starts_the_gateway_and_fetches_it() {
    let plan = gateway::plan(&gateway(Target::Openshift), Format::Installer).unwrap();
    let text = plan.show();
    assert!(text.contains("bootkube.service.d/20-landfall-gateway.conf"), "{text}");
    assert!(text.contains("\nWants=landfall-gateway.service\n"), "{text}");
    assert!(text.contains("\nExecStartPre=+/usr/local/bin/landfall-gateway-install.sh\n"), "{text}");
    // A download may take 10 min, while the default start timeout is 90 s.
    assert!(text.contains("\nTimeoutStartSec=11min\n"), "{text}");
    assert!(
        text.contains("0755 data/data/bootstrap/files/usr/local/bin/landfall-gateway-install.sh"),
        "{text}"
    );
    // Files in a source tree are the same for every cluster.
    assert!(plan.files.iter().all(|file| matches!(file.content, Content::Open(_))), "{text}");
    assert!(!text.contains("gather_token") && text.contains("\nadmin = "), "{text}");
}

#[test]
fn no_secret_is_shown() {
    for target in Target::ALL {
        let mut plans = Vec::from(with_manifests(target, Format::Yaml));
        plans.push(gateway::plan(&gateway(target), Format::Yaml).unwrap());
        // Cluster API configures many machines, while the hub is a single one.
        if target != Target::Capi {
            plans.push(hub::plan(&hub(target, RunAs::Unit), &hub_credentials(), Format::Yaml).unwrap());
        }
        for plan in plans {
            let shown = plan.show();
            for secret in ["the token", "the key", "dGhlIHRva2Vu", "dGhlIGtleQ"] {
                assert!(!shown.contains(secret), "{target:?}: `{secret}` in {shown}");
            }
        }
    }
}

#[test]
fn the_api_server_takes_every_manifest_and_pod() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let api_server = cluster::with_namespaces(&[]);
    let take = |flag: &str, path: &Path| cluster::take(&api_server, flag, path);
    let apply = |path: &Path| api_server.kubectl(&["apply", "-f", &path.display().to_string()]).unwrap();
    for (target, format) in Target::ALL
        .into_iter()
        .flat_map(|target| [Format::Yaml, Format::Kustomize].map(|format| (target, format)))
    {
        for plan in with_manifests(target, format) {
            let folder = tempfile::tempdir().unwrap();
            plan.write(folder.path(), false).unwrap();
            let manifests = folder.path().join("manifests");
            // Objects that pods depend on are applied for real, because a dry run creates nothing. The
            // namespace decides what the pods may do.
            let mut files: Vec<_> =
                fs::read_dir(&manifests).unwrap().map(|entry| entry.unwrap().path()).collect();
            files.sort();
            let ends = |path: &Path, end: &str| path.to_string_lossy().ends_with(end);
            for file in &files {
                if ends(file, "-namespace.yaml") || ends(file, "-service-account.yaml") {
                    apply(file);
                }
            }
            let taken = take(if format == Format::Yaml { "-f" } else { "-k" }, &manifests);
            assert!(taken.contains("landfall"), "{taken}");
            for file in &files {
                if ["-daemon-set.yaml", "-stateful-set.yaml", "-deployment.yaml"]
                    .iter()
                    .any(|end| ends(file, end))
                {
                    let taken = admitted::take_pod(&api_server, file).unwrap();
                    assert!(taken.contains("pod/try created"), "{taken}");
                }
            }
        }
        if target != Target::Capi && format == Format::Yaml {
            let folder = tempfile::tempdir().unwrap();
            agent::plan(&agent(target, Way::Pod), format).unwrap().write(folder.path(), false).unwrap();
            let place = if target == Target::K3s {
                "var/lib/rancher/k3s/agent/pod-manifests"
            } else {
                "etc/kubernetes/manifests"
            };
            let taken = take("-f", &folder.path().join("host").join(place).join("landfall-agent.yaml"));
            assert!(taken.contains("pod/landfall-agent created"), "{taken}");
        }
    }
    // The check does reject pods: the hub's namespace does not admit the agent's permissions.
    let folder = tempfile::tempdir().unwrap();
    let agent =
        agent::Settings { namespace: "landfall-hub".to_owned(), ..agent(Target::Kubeadm, Way::DaemonSet) };
    agent::plan(&agent, Format::Yaml).unwrap().write(folder.path(), false).unwrap();
    let manifests = folder.path().join("manifests");
    apply(&manifests.join("02-landfall-agent-service-account.yaml"));
    let refused = admitted::take_pod(&api_server, &manifests.join("04-landfall-agent-daemon-set.yaml"));
    assert!(format!("{:?}", refused.unwrap_err()).contains("violates PodSecurity"));
    // The fragment of a KubeadmControlPlane needs a Secret.
    let folder = tempfile::tempdir().unwrap();
    gateway::plan(&gateway(Target::Capi), Format::Yaml).unwrap().write(folder.path(), false).unwrap();
    let taken = take("-f", &folder.path().join("cluster-api/secret.yaml"));
    assert!(taken.contains("secret/landfall-gateway-files created"), "{taken}");
}

/// Tests both kinds of machines, with lists of their own and without.
#[test]
fn cluster_apis_objects_are_patched_with_what_is_rendered() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let api_server = cluster::with_namespaces(&["default"]);
    let folder = tempfile::tempdir().unwrap();
    let mut settings = agent(Target::Capi, Way::FirstBoot);
    settings.carriers.hub.as_mut().unwrap().authority = Some("the authority\n".to_owned());
    agent::plan(&settings, Format::Yaml).unwrap().write(folder.path(), false).unwrap();
    for (kind, group, word, place) in [
        (
            "KubeadmControlPlane",
            "controlplane.cluster.x-k8s.io",
            "kubeadm-control-plane",
            &["kubeadmConfigSpec"][..],
        ),
        (
            "KubeadmConfigTemplate",
            "bootstrap.cluster.x-k8s.io",
            "kubeadm-config-template",
            &["template", "spec"],
        ),
    ] {
        admitted::define_kubeadm(&api_server, kind, group, place);
        let plural = format!("{}s", kind.to_lowercase());
        let wrapped = |spec: Value| place.iter().rev().fold(spec, |inner, key| json!({*key: inner}));
        let own = json!({"files": [{"path": "/etc/own", "content": "own"}], "preKubeadmCommands": ["true"]});
        for (name, spec) in [("bare", json!({})), ("own", own)] {
            let object = json!({
                "apiVersion": format!("{group}/v1beta1"), "kind": kind,
                "metadata": {"name": name, "namespace": "default"}, "spec": wrapped(spec),
            });
            api_server.apply(&object).unwrap();
        }
        for (name, way, end, before) in [("bare", "merge", "yaml", 0), ("own", "json", "patch.yaml", 1)] {
            let file = folder.path().join(format!("cluster-api/{word}.{end}")).display().to_string();
            let patch = ["patch", &plural, name, "-n", "default", "--type", way, "--patch-file", &file];
            api_server.kubectl(&patch).unwrap();
            let text = api_server.kubectl(&["get", &plural, name, "-n", "default", "-o", "json"]).unwrap();
            let object: Value = serde_json::from_str(&text).unwrap();
            let spec = place.iter().fold(&object["spec"], |inner, key| &inner[*key]);
            let (files, commands) = (&spec["files"], &spec["preKubeadmCommands"]);
            assert_eq!(files.as_array().unwrap().len(), before + 1, "{object:#}");
            assert_eq!(files[before]["path"], "/etc/landfall/hub-ca.crt");
            assert_eq!(commands.as_array().unwrap().len(), before + 1, "{object:#}");
            let command = commands[before].as_str().unwrap();
            assert!(command.starts_with("systemd-run ") && command.contains(&"5f".repeat(32)), "{command}");
        }
    }
}

#[test]
fn ignition_takes_every_configuration() {
    for target in [Target::Openshift, Target::Kubeadm, Target::K3s] {
        for (name, plan) in [
            ("landfall-gateway", gateway::plan(&gateway(target), Format::Ignition).unwrap()),
            ("landfall-agent", agent::plan(&agent(target, Way::FirstBoot), Format::Ignition).unwrap()),
            ("landfall-agent", agent::plan(&agent(target, Way::Pod), Format::Ignition).unwrap()),
            (
                "landfall-hub",
                hub::plan(&hub(target, RunAs::Unit), &hub_credentials(), Format::Ignition).unwrap(),
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            plan.write(folder.path(), false).unwrap();
            let text = fs::read_to_string(folder.path().join(format!("{name}.ign"))).unwrap();
            let (config, warnings) = ignition_config::Config::parse_str(&text).unwrap();
            assert!(warnings.is_empty(), "{warnings:?}");
            assert!(matches!(config, ignition_config::Config::V3_2(_)), "{config:?}");
            // A download by Ignition itself would stop the boot on a failure.
            let config: Value = serde_json::from_str(&text).unwrap();
            let files = config["storage"]["files"].as_array().cloned().unwrap_or_default();
            let text_of = |file: &Value| {
                let source = file["contents"]["source"].as_str().unwrap();
                let data = source.strip_prefix("data:;base64,").unwrap_or_else(|| panic!("{source}"));
                String::from_utf8(STANDARD.decode(data).unwrap()).unwrap()
            };
            let files: BTreeMap<&str, String> =
                files.iter().map(|file| (file["path"].as_str().unwrap(), text_of(file))).collect();
            if name != "landfall-agent" {
                let install = format!("/usr/local/bin/{name}-install.sh");
                assert!(files[&*install].contains(&download().url), "{files:?}");
                let drop_in = &files[&*format!("/etc/systemd/system/{name}.service.d/05-program.conf")];
                // The retries have no limit, whatever the unit's own restart settings are.
                assert_eq!(
                    *drop_in,
                    format!(
                        "[Unit]\nStartLimitIntervalSec=0\n\n[Service]\nExecStartPre=+{install}\nTimeoutStartSec=11min\n"
                    )
                );
            }
        }
    }
}

#[test]
fn nft_takes_the_guard() {
    if !have(&[Need::Root, Need::Program("nft"), Need::Program("unshare")]) {
        return;
    }
    let guard = "host/etc/landfall/gateway-guard.nft";
    for networks in [&["10.0.0.0/8", "fd00::/8"][..], &["fd00::/8"], &[]] {
        let folder = tempfile::tempdir().unwrap();
        let networks = networks.iter().map(ToString::to_string).collect();
        let settings = gateway::Settings { networks, ..gateway(Target::Kubeadm) };
        gateway::plan(&settings, Format::Yaml).unwrap().write(folder.path(), false).unwrap();
        let run = Command::new("unshare")
            .args(["--net", "nft", "--file"])
            .arg(folder.path().join(guard))
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }
    let open = gateway::Settings { networks: Vec::new(), redirect: None, ..gateway(Target::Kubeadm) };
    let plan = gateway::plan(&open, Format::Yaml).unwrap();
    assert!(plan.files.iter().all(|file| file.path != Path::new(guard)));
}

/// Runs the snippet in a shell, with an isolated directory for the binary.
#[test]
fn a_first_boot_runs_what_has_the_right_hash_and_nothing_else() {
    let needs = [Need::Root, Need::Program("unshare"), Need::Program("curl"), Need::Program("sha256sum")];
    if !have(&needs) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let files = FileServer::start().unwrap();
    let program = "#!/bin/sh\necho \"started with $*\"\n";
    // A signed URL of a bucket: several words to a shell, and with a range expression of curl.
    let place = "/landfall?expires=1&signature=a;b&list[0]=c";
    files.file(place, program);
    // The server is not verified here: the digest decides.
    fs::write(folder.path().join(".curlrc"), "insecure\n").unwrap();
    fs::write(folder.path().join("program"), program).unwrap();
    let sum = Command::new("sha256sum").arg(folder.path().join("program")).output().unwrap();
    let right = String::from_utf8(sum.stdout).unwrap()[..64].to_owned();
    for (sha256, runs) in [(right, true), ("0".repeat(64), false)] {
        let download = Some(Download { url: files.url(place), sha256 });
        let mut settings = agent::Settings { download, ..agent(Target::Kubeadm, Way::FirstBoot) };
        // A URL with characters that are special to a shell.
        let url = "s3://fleet?region=r1&endpoint=https://[fd00::1]:9000".to_owned();
        settings.carriers.objects = Some(Objects { url, authority: None });
        let plan = agent::plan(&settings, Format::Yaml).unwrap();
        plan.write(folder.path(), true).unwrap();
        let snippet = fs::read_to_string(folder.path().join("cloud-init.yaml")).unwrap();
        assert!(snippet.len() <= MAX_SNIPPET && snippet.starts_with("#cloud-config\n"), "{snippet}");
        // YAML in double quotes or none is what the shell runs; folded lines are joined by spaces.
        let text = snippet.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let (_, command) = text.split_once("sh -ec '").unwrap();
        let (command, _) = command.split_once('\'').unwrap();
        // The existing file is another binary, which must never run.
        let old = "mount -t tmpfs none /usr/local/bin; cd /usr/local/bin; printf '#!/bin/sh\\necho old\\n' >landfall; chmod +x landfall";
        let command = format!("{old}; {}", command.replace("\\\"", "\""));
        let run = Command::new("unshare")
            .args(["--mount", "sh", "-ec", &command])
            .env("CURL_HOME", folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        let wanted = "started with agent --hub https://hub.example:8700 --hub-token /etc/landfall/hub.token \
                      --objects s3://fleet?region=r1&endpoint=https://[fd00::1]:9000 \
                      --objects-credentials /etc/landfall/bucket\n";
        assert_eq!(run.status.success(), runs, "{}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(said, if runs { wanted } else { "" });
        let by_hand = gateway::Settings { download: settings.download.clone(), ..gateway(Target::Kubeadm) };
        gateway::plan(&by_hand, Format::Yaml).unwrap().write(folder.path(), true).unwrap();
        let command = format!(
            "mount -t tmpfs none /usr/local/bin; {}/install.sh; ls /usr/local/bin",
            folder.path().display()
        );
        let run = Command::new("unshare")
            .args(["--mount", "sh", "-c", &command])
            .env("CURL_HOME", folder.path())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&run.stdout), if runs { "landfall\n" } else { "" });
        let complaint = String::from_utf8_lossy(&run.stderr).contains("with this hash could not be had");
        assert_eq!(complaint, !runs, "{run:?}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let target = Target::Kubeadm;
    let refused = |plan: Result<Plan, RenderError>| plan.err().unwrap();
    let network = gateway::Settings { networks: vec!["10.0.0.1/8".to_owned()], ..gateway(target) };
    assert!(matches!(refused(gateway::plan(&network, Format::Yaml)), RenderError::Network { .. }));
    let port = gateway::Settings { redirect: Some(6444), ..gateway(target) };
    assert!(matches!(refused(gateway::plan(&port, Format::Yaml)), RenderError::Ports { .. }));
    let of_capi = gateway::plan(&gateway(Target::Capi), Format::Ignition);
    assert!(matches!(refused(of_capi), RenderError::IgnitionOfCapi));
    for (way, format) in [
        (Way::Image, Format::Ignition),
        (Way::Image, Format::Helm),
        (Way::FirstBoot, Format::Kustomize),
        (Way::Pod, Format::Helm),
        (Way::DaemonSet, Format::Ignition),
    ] {
        let error = refused(agent::plan(&agent(target, way), format));
        assert!(matches!(error, RenderError::Combination { .. }), "{error}");
    }
    let of_capi = agent::plan(&agent(Target::Capi, Way::Image), Format::Yaml);
    assert!(matches!(refused(of_capi), RenderError::ImageOfCapi));
    for group in ["", " ", "a\nb", "system:unauthenticated"] {
        let nobody = gateway::Settings { gatherers: Some(group.to_owned()), ..gateway(target) };
        assert!(
            matches!(refused(gateway::plan(&nobody, Format::Yaml)), RenderError::Group { .. }),
            "{group:?}"
        );
    }
    let bare = agent::Settings { download: None, ..agent(target, Way::FirstBoot) };
    assert!(matches!(refused(agent::plan(&bare, Format::Yaml)), RenderError::Missing { .. }));
    let bare = agent::Settings { image: None, ..agent(target, Way::Pod) };
    assert!(matches!(refused(agent::plan(&bare, Format::Yaml)), RenderError::Missing { .. }));
    let with = |carriers: Carriers| {
        refused(agent::plan(&agent::Settings { carriers, ..agent(target, Way::Pod) }, Format::Yaml))
    };
    let console = |device: &str| Carriers { console: Some(device.to_owned()), ..Carriers::default() };
    assert!(matches!(with(console("/dev/ttyS0")), RenderError::ConsoleOfPod));
    for device in ["ttyS0", "/etc/passwd", "/dev/../etc/passwd", "/dev/tty S0"] {
        assert!(matches!(with(console(device)), RenderError::Console { .. }), "{device}");
    }
    for address in ["443", "node-1:8710", ":", "10.0.0.4:1023"] {
        let serve = Serve { address: address.to_owned(), client_authority: String::new() };
        let error = with(Carriers { serve: Some(serve), ..Carriers::default() });
        assert!(matches!(error, RenderError::Port { .. }), "{address}");
    }
    let objects = Some(Objects { url: "s3://fleet/$(id)".to_owned(), authority: None });
    assert!(matches!(with(Carriers { objects, ..Carriers::default() }), RenderError::Url { .. }));
    let events = Some(Events { url: "http://queue.example".to_owned(), authority: None, token: true });
    assert!(matches!(with(Carriers { events, ..Carriers::default() }), RenderError::InTheClear { .. }));
    let object = |object: &str| {
        let bootstrap_report = talkative(target, Way::Pod).carriers.bootstrap_report;
        let bootstrap_report =
            bootstrap_report.map(|report| BootstrapReport { object: object.to_owned(), ..report });
        with(Carriers { bootstrap_report, ..Carriers::default() })
    };
    for bad in ["edge-1", "team-a/", "Team/edge", "a/b/c"] {
        assert!(matches!(object(bad), RenderError::Report { .. }), "{bad}");
    }
    for (run_as, replicas) in [(RunAs::Pod, 0), (RunAs::Pod, 51), (RunAs::Unit, 2)] {
        let many = hub::Settings { replicas, ..hubs(target, run_as) };
        let error = refused(hub::plan(&many, &hub_credentials(), Format::Yaml));
        assert!(matches!(error, RenderError::Replicas { .. }), "{error}");
    }
    let alone = hub::Settings { replicas: 2, ..hub(target, RunAs::Pod) };
    let error = refused(hub::plan(&alone, &hub_credentials(), Format::Yaml));
    assert!(matches!(error, RenderError::Replicas { replicas: 2 }), "{error}");
    let full = talkative(target, Way::FirstBoot);
    assert!(matches!(refused(agent::plan(&full, Format::Yaml)), RenderError::Snippet { .. }));
    assert!(agent::plan(&full, Format::Ignition).is_ok());
    let mut long = agent(target, Way::FirstBoot);
    long.download = Some(Download { url: download().url + &"/x".repeat(400), ..download() });
    assert!(matches!(refused(agent::plan(&long, Format::Yaml)), RenderError::Snippet { .. }));
    let nameless = in_place::Settings { nodes: Vec::new(), ..in_place(target) };
    assert!(matches!(refused(in_place::plan(&nameless, Format::Yaml)), RenderError::Missing { .. }));
    let long = in_place::Settings { nodes: vec!["n".repeat(64)], ..in_place(target) };
    assert!(matches!(refused(in_place::plan(&long, Format::Yaml)), RenderError::Node { .. }));
}
