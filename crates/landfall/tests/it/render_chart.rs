//! Charts with Helm: linted, rendered with values and without, and accepted by a real API server.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use landfall_testkit::{ApiServer, Binary, Need, have};
use serde_json::json;

use crate::command::Bench;
use crate::render_tunnel::privileged;

const IMAGE: &str = "registry.example/landfall:0.1.0";
const OTHER_IMAGE: &str = "10.0.0.9:5000/other:2";

/// A role, and the values that its chart has. The kind of cluster is added.
struct Chart {
    words: &'static [&'static str],
    namespaced: bool,
    workload: bool,
}

/// For each kind of cluster.
const KINDS: [&str; 4] = ["openshift", "kubeadm", "k3s", "capi"];

const CHARTS: [Chart; 8] = [
    Chart { words: &["tunnel", "--server", "10.0.0.5"], namespaced: true, workload: true },
    Chart { words: &["agent", "--by", "daemon-set"], namespaced: true, workload: true },
    Chart { words: &["hub", "--run-as", "pod", "--server", "hub.corp"], namespaced: true, workload: true },
    Chart {
        words: &[
            "hub",
            "--run-as",
            "pod",
            "--server",
            "hub.corp",
            "--store",
            "postgres://hub@db.corp/landfall?password-file=/etc/landfall/db",
            "--objects",
            "s3://bundles/hub?region=r1&credentials-file=/etc/landfall/s3",
        ],
        namespaced: true,
        workload: true,
    },
    Chart { words: &["in-place", "--node", "worker-1"], namespaced: false, workload: true },
    Chart { words: &["controller", "--work", "in-place"], namespaced: true, workload: true },
    Chart { words: &["controller", "--work", "capi"], namespaced: true, workload: true },
    Chart { words: &["gateway", "--gatherers", "support"], namespaced: false, workload: false },
];

#[test]
fn helm_and_the_api_server_take_every_chart() {
    if ![ApiServer::NEEDS, &[Need::Built(Binary::Helm)]].into_iter().all(have) {
        return;
    }
    let cluster = ApiServer::start_with(&privileged()).unwrap();
    // A dry run creates no objects, so the following ones need these namespaces.
    for namespace in [
        "landfall-bootstrap",
        "landfall-agent",
        "landfall-hub",
        "landfall",
        "landfall-capi",
        "elsewhere",
        "kube-system",
    ] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        cluster.apply(&object).unwrap();
    }
    for kind in KINDS {
        for chart in &CHARTS {
            chart.try_out(&cluster, kind);
        }
    }
}

/// The chart accepts the same names as `render`, and names that YAML would parse as numbers stay strings.
#[test]
fn a_chart_takes_every_name_that_render_takes() {
    if ![ApiServer::NEEDS, &[Need::Built(Binary::Helm)]].into_iter().all(have) {
        return;
    }
    let cluster = ApiServer::start_with(&privileged()).unwrap();
    for (namespace, image) in [("5g-landfall", "[fd00::5]:5000/landfall"), ("1e5", "10"), ("0x1f", "true")] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        cluster.apply(&object).unwrap();
        let bench = Bench::new();
        let names = ["--namespace", namespace, "--image", image, "--format", "helm", "-o", "out"];
        for words in [
            &["render", "tunnel", "--for", "k3s", "--server", "10.0.0.5"][..],
            &["render", "controller", "--for", "kubeadm"],
        ] {
            let run = bench.run(&[words, &names, &["--force"]].concat());
            assert_eq!(run.code, 0, "{run:?}");
            let file = bench.file("filled-in.yaml", filled_in(&bench, &[])).display().to_string();
            cluster.kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", &file]).unwrap();
        }
    }
}

/// Runs Helm without settings of the user.
fn helm(bench: &Bench, words: &[&str]) -> Output {
    Command::new(Binary::Helm.path().unwrap())
        .args(words)
        .env_clear()
        .env("HOME", bench.path())
        .current_dir(bench.path())
        .output()
        .unwrap()
}

#[track_caller]
fn filled_in(bench: &Bench, further: &[&str]) -> String {
    let run = helm(bench, &[&["template", "release", "out/chart"], further].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

// === impl Chart ===

impl Chart {
    fn try_out(&self, cluster: &ApiServer, kind: &str) {
        let bench = Bench::new();
        let role = self.words[0];
        let image: &[&str] = if self.workload { &["--image", IMAGE] } else { &[] };
        let words =
            [&["render"], self.words, &["--for", kind], image, &["--format", "helm", "-o", "out"]].concat();
        let run = bench.run(&words);
        assert_eq!(run.code, 0, "{run:?}");
        let lint = helm(&bench, &["lint", "--strict", "out/chart"]);
        assert!(lint.status.success(), "{role}: {}", String::from_utf8_lossy(&lint.stdout));

        let take = |text: &str| {
            let file: PathBuf = bench.file("filled-in.yaml", text);
            let file = file.display().to_string();
            cluster.kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", &file]).unwrap()
        };
        let usual = filled_in(&bench, &[]);
        assert!(!usual.contains("landfall-value-"), "{role}: a mark is left\n{usual}");
        assert!(take(&usual).contains("landfall"), "{role}");
        assert!(Path::new(&bench.path().join("out/chart/values.schema.json")).exists());
        // The differences between the kinds are covered up to here.
        if kind != "kubeadm" {
            return;
        }
        if !self.workload {
            let other = filled_in(&bench, &["--set", "gatherers=system:authenticated"]);
            assert!(other.contains("name: \"system:authenticated\""), "{other}");
            take(&other);
            let nobody = helm(
                &bench,
                &["template", "release", "out/chart", "--set", "gatherers=system:unauthenticated"],
            );
            assert!(!nobody.status.success(), "{nobody:?}");
            return;
        }
        assert!(usual.contains(IMAGE), "{role}: {usual}");

        let mut values = vec![format!("image={OTHER_IMAGE}")];
        if self.namespaced {
            values.extend(["namespace=elsewhere".to_owned(), "createNamespace=false".to_owned()]);
        }
        let mut further: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
        for value in [
            r#"nodeSelector={"example.com/pool":"infra"}"#,
            r#"tolerations=[{"key":"example.com/only","operator":"Exists"}]"#,
            r#"resources={"requests":{"cpu":"77m"}}"#,
            r#"imagePullSecrets=[{"name":"registry-login"}]"#,
            r#"extraArguments=["--one","a: \"b\" {{ c }}"]"#,
        ] {
            further.extend(["--set-json", value]);
        }
        if usual.contains("kind: Deployment") {
            further.extend(["--set", "replicas=3"]);
        }
        let other = filled_in(&bench, &further);
        for part in [
            OTHER_IMAGE,
            "example.com/pool",
            "example.com/only",
            "77m",
            "registry-login",
            r#"- "a: \"b\" {{ c }}""#,
        ] {
            assert!(other.contains(part), "{role}: `{part}` is missing\n{other}");
        }
        assert!(!other.contains(IMAGE), "{role}: {other}");
        if self.namespaced {
            assert!(
                other.contains("namespace: \"elsewhere\"") && !other.contains("kind: Namespace"),
                "{other}"
            );
        }
        take(&other);

        for bad in ["image=a b", "image=true", "unknown=1", "extraArguments=x", "imagePullSecrets[0]=x"] {
            let run = helm(&bench, &["template", "release", "out/chart", "--set", bad]);
            assert!(!run.status.success(), "{role}: `{bad}` was taken");
        }
    }
}
