//! Regression tests for the defects of the original, one for each.
//!
//! The numbers are those of our notes on it. Defects 1, 6 and 7 have further tests beside the code in question; a
//! booting machine demonstrates 9.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use landfall_model::step::Outcome;
use landfall_net::{Backoff, Retries};
use landfall_steps::events::EventStream;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::crash_tests::machine::{ENV, Machine, NEW, OLD, Scenario, image_bytes, image_path};
use super::crash_tests::runtime;
use super::decision::Origin;
use super::request::{Request, Trust};
use super::run::{self, Other, Prepared};
use super::{DecideError, decide, gather, hook, next_os};
use crate::environment::HostEnvironment;
use crate::prepare::environment::PrepareEnvironment;

/// An update is pending and update_engine reports `0.0.0`: the original treated that as a system too old to need
/// anything.
#[test]
fn defect_02_an_unknown_next_system_is_found_out_or_an_error() {
    let machine = Machine::new(Scenario::UpdateAndRuntime);
    machine.stage_update(true);
    let decided = runtime().block_on(decide(&machine, &machine.request()));
    assert!(matches!(decided, Err(DecideError::Gather(gather::GatherError::PendingUnknown))), "{decided:?}");
    machine.put(next_os::FULL_RESPONSE, "<response><manifest version=\"2001.0.0\"></manifest></response>");
    let decided = runtime().block_on(decide(&machine, &machine.request())).unwrap();
    assert_eq!(decided.inputs.next_os.value.unwrap().as_str(), NEW);
    assert!(matches!(decided.inputs.next_os.origin, Origin::File { .. }));
    assert_eq!(decided.artefacts.len(), 2, "for both systems");
}

/// A truncated image under its final name counted as installed and broke the next boot.
#[test]
fn defect_03_a_torn_image_is_not_taken_for_a_whole_one() {
    for torn in ["", "an image of", "an image of another length"] {
        let machine = Machine::new(Scenario::UpdateAndRuntime);
        machine.put(&image_path(OLD).display().to_string(), torn);
        machine.put(&image_path(NEW).display().to_string(), torn);
        let end = machine.run_over_damage(&runtime());
        assert_eq!(end.outcome, Outcome::Done, "{torn:?}");
        for image in machine.images() {
            assert_eq!(image.as_deref(), Some(&image_bytes()[..]), "{torn:?}");
        }
    }
}

/// `kubelet.env` was written before the reboot; if the reboot failed, the file blocked every further attempt.
#[test]
fn defect_04_no_kubelet_env_before_the_reboot_came_about() {
    let machine = Arc::new(Machine::new(Scenario::UpdateAndRuntime));
    for _ in 0..3 {
        let prepared = runtime().block_on(run::prepare(
            &machine,
            &machine.request(),
            Other::Respect,
            &EventStream::default(),
            &CancellationToken::new(),
        ));
        // The reboot does not happen, and the next process of the same boot still requests it.
        assert!(
            matches!(prepared, Ok(Prepared::Run(Outcome::RebootNeeded { .. }))),
            "no reboot was asked for: {prepared:?}"
        );
        assert_eq!(machine.text(ENV), None);
        machine.restart_process();
    }
    machine.boot();
    assert_eq!(machine.run(&runtime(), None).unwrap().outcome, Outcome::Done);
    assert!(machine.text(ENV).is_some());
}

/// An API server for one test: answers each connection with the next item, and repeats the last one without limit.
struct Api {
    folder: TempDir,
    asked: Arc<AtomicUsize>,
}

impl Api {
    fn start(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        // The thread ends with the process of the test.
        std::thread::spawn(move || {
            let held: Mutex<Vec<TcpStream>> = Mutex::default();
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let mut head = [0; 4096];
                let _ = stream.read(&mut head);
                let number = count.fetch_add(1, Ordering::SeqCst);
                let answer = &answers[number.min(answers.len() - 1)];
                if answer.is_empty() {
                    // Stays connected without an answer.
                    held.lock().unwrap().push(stream);
                } else {
                    let _ = stream.write_all(answer.as_bytes());
                }
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- {{name: c, cluster: {{server: \"http://{address}\"}}}}\n\
             contexts:\n- {{name: c, context: {{cluster: c, user: u}}}}\ncurrent-context: c\nusers:\n- {{name: u, user: {{}}}}\n"
        );
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
        Self { folder, asked }
    }

    fn environment(&self, tries: u32, pause: Duration) -> HostEnvironment {
        let api_retries = Retries::new(Backoff::new(pause, pause).unwrap(), tries).unwrap();
        let env = HostEnvironment::new(self.folder.path(), None).unwrap();
        HostEnvironment { api_retries, ..env }
    }
}

fn answer(status: u16, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

const VERSION: &str = r#"{"major":"1","minor":"9","gitVersion":"v1.9.3+coreos.0","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#;

/// Only transport errors were retried: a 503 of a load balancer, or a truncated answer, was final.
#[tokio::test(flavor = "multi_thread")]
async fn defect_05_a_server_in_trouble_or_half_an_answer_is_asked_again() {
    let kubeconfig = std::path::Path::new("/kubeconfig");
    let half = answer(200, VERSION).split_at(170).0.to_owned();
    for broken in [answer(500, ""), answer(503, "busy"), answer(200, "{\"major\":"), half] {
        let api = Api::start(vec![broken.clone(), broken.clone(), answer(200, VERSION)]);
        let servers = api.environment(3, Duration::from_millis(10)).api_servers(kubeconfig).await;
        let servers = servers.unwrap_or_else(|error| panic!("{error} after {broken:?}"));
        assert_eq!(servers[0].version.as_ref().unwrap().as_str(), "v1.9.3+coreos.0", "{broken:?}");
        // The number of retries is limited as configured.
        let api = Api::start(vec![broken]);
        assert!(api.environment(2, Duration::from_millis(10)).api_servers(kubeconfig).await.is_err());
        assert!(api.asked.load(Ordering::SeqCst) >= 2);
    }
}

/// It also slept after the last attempt, and waited without limit for a server that did not answer.
#[tokio::test(flavor = "multi_thread")]
async fn defect_05_there_is_no_pause_behind_the_last_try_and_no_wait_without_an_end() {
    let kubeconfig = std::path::Path::new("/kubeconfig");
    let api = Api::start(vec![answer(500, "")]);
    let asking = api.environment(1, Duration::from_mins(59));
    let asked = tokio::time::timeout(Duration::from_mins(2), asking.api_servers(kubeconfig)).await;
    assert!(asked.expect("it slept after the last try").is_err());
    let silent = Api::start(vec![String::new()]);
    let asking = silent.environment(1, Duration::from_mins(59));
    let asked = tokio::time::timeout(Duration::from_mins(2), asking.api_servers(kubeconfig)).await;
    let error = asked.expect("it waits for ever").unwrap_err();
    assert!(error.reason.contains("no answer within"), "{error}");
}

/// The error of writing the unit that clears the data of docker was dropped: the machine rebooted, and docker did not
/// start.
#[tokio::test(flavor = "multi_thread")]
async fn defect_08_a_cleanup_unit_that_cannot_be_written_stops_the_reboot() {
    let folder = tempfile::tempdir().unwrap();
    let put = |path: &str, bytes: &[u8]| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    let bucket = landfall_testkit::FileServer::start().unwrap();
    let hash = landfall_fetch::Digest::of(landfall_fetch::Algorithm::Sha512, b"image");
    let manifest = serde_json::json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": "docker", "versions": [
        {"version": "17.03", "hash": format!("sha512-{}", hash.hex()), "locations": [{"url": bucket.url("/i")}]},
    ]}]}});
    bucket.file("/m.json", manifest.to_string());
    bucket.file("/i", b"image".to_vec());
    put("ca.crt", bucket.authority().as_bytes());
    put("usr/lib/os-release", b"ID=coreos\nVERSION_ID=2000.0.0\nCOREOS_BOARD=amd64-usr\n");
    // A file in place of the directory for units.
    put("run/systemd", b"not a folder");
    let env = Arc::new(HostEnvironment::new(folder.path(), Some(&folder.path().join("ca.crt"))).unwrap());
    let request = Request {
        force_kube_version: Some("v1.9.3".to_owned()),
        manifest_urls: vec![bucket.url("/m.json")],
        trust: Trust { verify: false, ..Trust::default() },
        upgrade_os: false,
        ..Request::default()
    };
    let cancel = CancellationToken::new();
    let prepared = run::prepare(&env, &request, Other::Respect, &EventStream::default(), &cancel).await;
    let Ok(Prepared::Failed { step, reason, why, .. }) = prepared else { panic!("{prepared:?}") };
    assert_eq!((step.as_str(), why), ("reboot", super::why::Why::Machine));
    assert!(reason.contains("run/systemd"), "{reason}");
    assert!(!folder.path().join("etc/kubernetes/kubelet.env").exists());
    // The run continues after the problem is fixed.
    std::fs::remove_file(folder.path().join("run/systemd")).unwrap();
    let prepared = run::prepare(&env, &request, Other::Respect, &EventStream::default(), &cancel).await;
    assert!(matches!(prepared, Ok(Prepared::Run(Outcome::RebootNeeded { .. }))), "{prepared:?}");
}

/// Only the hook of the operator installed the runtime for a staged system: a manual reboot or a power failure booted
/// without docker.
#[test]
fn defect_10_a_staged_update_has_its_runtime_before_anybody_announces_a_reboot() {
    let machine = Machine::new(Scenario::EverythingRuns);
    machine.put(ENV, "KUBELET_IMAGE_TAG=v1.9.3_c.0\n");
    let request = machine.request();
    let cancel = CancellationToken::new();
    runtime().block_on(async {
        let every = Duration::from_secs(20);
        let look_on = async {
            // Time advances from poll to poll: some happen before the update, some after.
            tokio::time::sleep(every * 3).await;
            assert_eq!(machine.disk_has(&image_path(NEW)), None, "nothing was pending yet");
            machine.stage_update(false);
            tokio::time::sleep(every * 3).await;
            cancel.cancel();
        };
        tokio::join!(hook::keep_staged(&machine, &request, every, &cancel), look_on);
    });
    assert_eq!(machine.disk_has(&image_path(NEW)).as_deref(), Some(&image_bytes()[..]));
    // A power failure without an announcement: the boot expects its image, and would panic without it.
    machine.boot();
    assert!(machine.text("/usr/lib/os-release").unwrap().contains(NEW));
}

/// Behind a load balancer the newest server may answer first, but the skew policy limits the oldest.
#[test]
fn defect_11_the_oldest_api_server_decides() {
    for servers in [["v1.9.3", "v1.8.15"], ["v1.8.15", "v1.9.3"]] {
        let machine = Machine::new(Scenario::EverythingRuns);
        machine.servers_say(&servers);
        let decision = runtime().block_on(decide(&machine, &machine.request())).unwrap();
        assert_eq!(decision.kubelet.as_str(), "v1.8.15", "{servers:?}");
        // A version that fits only the newer server is refused, and the error names its inputs.
        let request = Request { force_kube_version: Some("v1.9.0".to_owned()), ..machine.request() };
        let refused = runtime().block_on(decide(&machine, &request));
        let Err(DecideError::Plan { inputs, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(inputs.api_servers.len(), 2);
    }
}
