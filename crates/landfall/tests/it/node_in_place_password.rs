//! A one-time password that is used up by an incomplete download.

use std::process::Stdio;
use std::time::Duration;

use landfall_testkit::{FileServer, Serve, eventually};
use serde_json::{Value, json};

use crate::command::{Bench, Run};
use crate::node_in_place::archive;

const PASSWORD: &str = "one-time-password-4711";
const PATH: &str = "/boot?workerid=w&clusterid=c";
/// End of the first download: after the first header of the archive.
const CUT: usize = 700;
const LIMIT: Duration = Duration::from_mins(5);

struct Site {
    bench: Bench,
    server: FileServer,
    payload: Vec<u8>,
}

impl Site {
    fn new() -> Self {
        let (bench, server) = (Bench::new(), FileServer::start().unwrap());
        let payload = archive(&[
            ("bootstrap/bootstrap_base_openshift_4.sh", "#!/bin/bash\n"),
            ("bootstrap/bootstrap_kube_openshift_4.sh", "#!/bin/bash\n"),
        ]);
        bench.file("root/etc/redhat-release", "Red Hat Enterprise Linux release 8.6 (Ootpa)\n");
        std::fs::create_dir_all(bench.path().join("root/var/lib")).unwrap();
        // A listener that does not answer is retried for 30 s.
        let (header, value) = ("x-one-time-password", PASSWORD.to_owned());
        server.serve("/boot/upiworker", Serve::Post { header, value, refuse: 0 });
        let secret = json!({"bootstrap_url": server.url("/boot"), "bootstrap_secret": PASSWORD, "workerid": "w",
            "clusterid": "c", "region": "eu-de", "ca_cert": server.authority()});
        bench.file("secret.json", secret.to_string());
        Self { bench, server, payload }
    }

    fn once(&self, resumes: bool) {
        let (bytes, value) = (self.payload.clone(), PASSWORD.to_owned());
        let header = "x-one-time-password";
        self.server.serve(PATH, Serve::Once { header, value, bytes, after: CUT, resumes, spent: false });
    }

    fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
        let arguments = [
            "node",
            "in-place",
            "--root=root",
            "--node-name=n1",
            "--free-space=1",
            "--secret-file=secret.json",
        ];
        arguments.iter().chain(&["--no-cluster"]).chain(more).copied().collect()
    }

    fn run(&self, more: &[&str]) -> Run {
        let run = self.bench.run(&Self::arguments(more));
        assert!(!run.stderr.contains(PASSWORD) && !run.stdout.contains(PASSWORD), "{run:?}");
        run
    }

    fn asked(&self) -> Vec<String> {
        self.server.asked().into_iter().filter(|line| line.starts_with(&format!("GET {PATH}"))).collect()
    }

    /// Checks that the attempt failed permanently with a reason, and that no secret is left.
    #[track_caller]
    fn assert_spent(&self, run: &Run) {
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains("the one-time password is spent"), "{run:?}");
        assert!(run.stderr.contains("put a new password into the Secret"), "{run:?}");
        let status = self.bench.run(&["node", "status", "--root", "root", "--output=json"]).report();
        assert_eq!(
            (&status["state"]["is"], &status["state"]["step"]),
            (&json!("failed"), &json!("preflight"))
        );
        assert_eq!(status["state"]["retryable"], json!(false), "{status:#}");
        let asked = self.asked().len();
        // The result for the same Secret comes from the ledger.
        assert_eq!(self.run(&[]).code, 1);
        assert_eq!(self.asked().len(), asked);
        let mut grep = std::process::Command::new("grep");
        let found = grep.args(["-rlF", PASSWORD]).arg(self.bench.path().join("root")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "the password is left");
    }
}

#[test]
fn a_password_spent_by_a_cut_ends_the_attempt_and_says_so() {
    let site = Site::new();
    site.once(false);
    let run = site.run(&[]);
    site.assert_spent(&run);
    assert_eq!(site.asked().len(), 2, "once, and once more: {:?}", site.asked());
    // A new password is a new attempt.
    let secret = std::fs::read_to_string(site.bench.path().join("secret.json")).unwrap();
    site.bench.file("secret.json", secret.replace(PASSWORD, "another-password"));
    let value = "another-password".to_owned();
    let bytes = site.payload.clone();
    site.server.serve(PATH, Serve::Guarded { header: "x-one-time-password", value, bytes });
    let report = site.run(&["--preflight-only", "--output=json"]).report();
    assert_eq!(source(&report), "passed", "{report:#}");
}

#[test]
fn a_download_that_was_cut_off_goes_on_where_it_was() {
    let site = Site::new();
    site.once(true);
    let report = site.run(&["--preflight-only", "--output=json"]).report();
    assert_eq!(source(&report), "passed", "{report:#}");
    assert_eq!(site.asked(), [format!("GET {PATH}"), format!("GET {PATH} from {CUT}")]);
    let folder =
        site.bench.path().join("root/var/lib/landfall/in-place").join(report["attempt"].as_str().unwrap());
    assert_eq!(std::fs::read(folder.join("payload.tar")).unwrap(), site.payload);
}

/// Killed while the server is about to answer: whether the password is used up is unknown until the server says so.
#[test]
fn a_password_spent_by_a_killed_process_is_told_by_the_next() {
    let site = Site::new();
    site.server.serve(PATH, Serve::Claim { claimed: 4096 });
    let mut command = site.bench.command(&Site::arguments(&[]));
    let mut killed = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the password to be shown", LIMIT, || (!site.asked().is_empty()).then_some(())).unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    site.server.serve(PATH, Serve::Status(409));
    let run = site.run(&[]);
    site.assert_spent(&run);
}

/// An unreachable server has not used up the password, and a password that is wrong from the start is reported as
/// wrong.
#[test]
fn a_password_nobody_was_shown_is_not_spent() {
    let site = Site::new();
    let secret = std::fs::read_to_string(site.bench.path().join("secret.json")).unwrap();
    let mut other: Value = serde_json::from_str(&secret).unwrap();
    other["ca_cert"] = json!(FileServer::start().unwrap().authority());
    site.bench.file("secret.json", other.to_string());
    let run = site.run(&[]);
    assert_eq!(run.code, 75, "it may pass: {run:?}");
    assert_eq!(site.asked(), [""; 0]);
    let mut find = std::process::Command::new("find");
    let marks = find.arg(site.bench.path().join("root")).args(["-name", "asked"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&marks.stdout), "", "it is written down as if it had been shown");
    site.bench.file("secret.json", secret);
    site.server.serve(PATH, Serve::Status(401));
    let run = site.run(&[]);
    assert!(run.stderr.contains("not valid, or was used before") && !run.stderr.contains("spent"), "{run:?}");
}

fn source(report: &Value) -> &str {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == "source").unwrap()["outcome"].as_str().unwrap()
}
