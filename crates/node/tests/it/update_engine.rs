//! Tests of the updater's client against a real dbus-daemon and a simulated update_engine.

use crate::bus::{Act, Bus, status};
use landfall_fetch::{Algorithm, Digest};
use landfall_node::environment::HostEnvironment;
use landfall_node::prepare::hook::{self, HookError};
use landfall_node::prepare::request::{Request, Trust};
use landfall_node::prepare::update_engine::{Engine, Operation, Pending, UpdateError};
use landfall_testkit::{FileServer, Need, have};
use serde_json::json;

const NEEDS: &[Need] = &[Need::Program("dbus-daemon")];
const ZERO: &str = "0.0.0";
const NEW: &str = "2001.0.0";

fn update(bus: &Bus) -> Result<Pending, UpdateError> {
    Engine::at(bus.socket().display().to_string()).update(&mut |_| true)
}

#[test]
fn an_update_is_asked_for_and_waited_for() {
    if !have(NEEDS) {
        return;
    }
    let bus = Bus::start();
    let engine = bus.engine(
        status("IDLE", ZERO),
        vec![
            Act::Tell(status("CHECKING_FOR_UPDATE", ZERO)),
            Act::Tell(status("UPDATE_AVAILABLE", NEW)),
            Act::Tell(status("DOWNLOADING", NEW)),
            Act::Tell(status("FINALIZING", NEW)),
            Act::Tell(status("UPDATED_NEED_REBOOT", NEW)),
        ],
    );
    let mut seen = Vec::new();
    let pending = Engine::at(bus.socket().display().to_string()).update(&mut |status| {
        seen.push(status.operation);
        true
    });
    assert_eq!(pending.unwrap(), Pending::Version(NEW.parse().unwrap()));
    assert!(seen.contains(&Operation::Downloading), "{seen:?}");
    assert_eq!(engine.asked(), 1);
    let status = Engine::at(bus.socket().display().to_string()).status().unwrap();
    assert_eq!(status.pending(), Pending::Version(NEW.parse().unwrap()));
}

#[test]
fn no_update_is_told_from_a_failed_one() {
    if !have(NEEDS) {
        return;
    }
    let bus = Bus::start();
    let _engine = bus.engine(
        status("IDLE", ZERO),
        vec![Act::Tell(status("CHECKING_FOR_UPDATE", ZERO)), Act::Tell(status("IDLE", ZERO))],
    );
    assert_eq!(update(&bus).unwrap(), Pending::Nothing);

    let bus = Bus::start();
    let _engine = bus.engine(
        status("IDLE", ZERO),
        vec![
            Act::Tell(status("CHECKING_FOR_UPDATE", ZERO)),
            Act::Tell(status("REPORTING_ERROR_EVENT", ZERO)),
            Act::Tell(status("IDLE", ZERO)),
        ],
    );
    let failed = update(&bus);
    assert!(matches!(failed, Err(UpdateError::Failed { while_doing: Operation::Checking })), "{failed:?}");
}

#[test]
fn a_restart_in_the_middle_is_survived() {
    if !have(NEEDS) {
        return;
    }
    let bus = Bus::start();
    let first = bus.engine(status("IDLE", ZERO), vec![Act::Tell(status("DOWNLOADING", NEW)), Act::Leave]);
    let waiting = std::thread::spawn({
        let socket = bus.socket().display().to_string();
        move || Engine::at(socket).update(&mut |_| true)
    });
    first.wait_for_its_end();
    // After its restart the update is pending, but its version is unknown.
    let _second = bus.engine(status("UPDATED_NEED_REBOOT", ZERO), Vec::new());
    assert_eq!(waiting.join().unwrap().unwrap(), Pending::Unknown);
}

#[test]
fn without_an_updater_the_answer_is_clear() {
    if !have(NEEDS) {
        return;
    }
    let bus = Bus::start();
    let engine = Engine::at(bus.socket().display().to_string());
    assert!(matches!(engine.status(), Err(UpdateError::Absent)));
    let nowhere = Engine::at("/nowhere/bus");
    assert!(matches!(nowhere.status(), Err(UpdateError::Bus { .. })));
    // The caller may stop waiting.
    let _service = bus.engine(status("IDLE", ZERO), vec![Act::Tell(status("DOWNLOADING", NEW))]);
    let stopped = engine.update(&mut |status| status.operation != Operation::Downloading);
    assert!(matches!(stopped, Err(UpdateError::Stopped)), "{stopped:?}");
}

/// From the bus to the plan: both the pending and the running system get their runtime.
#[tokio::test(flavor = "multi_thread")]
async fn a_pending_system_on_the_bus_gets_its_runtime_too() {
    if !have(NEEDS) {
        return;
    }
    let bus = Bus::start();
    let _engine = bus.engine(status("UPDATED_NEED_REBOOT", NEW), Vec::new());
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let bucket = FileServer::start().unwrap();
    let image = Digest::of(Algorithm::Sha512, b"image");
    for (system, versions) in [(NEW, &["17.03"][..]), ("2000.0.0", &["17.03", "1.12"])] {
        let entry = |version: &&str| json!({"version": version, "hash": format!("sha512-{}", image.hex()), "locations": [{"url": bucket.url("/i")}]});
        let versions: Vec<_> = versions.iter().map(entry).collect();
        let manifest = json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": "docker", "versions": versions}]}});
        bucket.file(&format!("/{system}.json"), manifest.to_string());
    }
    bucket.file("/i", b"image".to_vec());
    put("ca.crt", bucket.authority());
    put("usr/lib/os-release", "ID=coreos\nVERSION_ID=2000.0.0\nCOREOS_BOARD=amd64-usr\n");
    put("etc/kubernetes/kubelet.env", "KUBELET_IMAGE_TAG=v1.9.3\n");
    put("run/dbus/here", "");
    std::os::unix::fs::symlink(bus.socket(), root.path().join("run/dbus/system_bus_socket")).unwrap();
    let env = HostEnvironment::new(root.path(), Some(&root.path().join("ca.crt"))).unwrap();
    let request = Request {
        manifest_urls: vec![bucket.url("/{{.OSVersion}}.json")],
        trust: Trust { verify: false, ..Trust::default() },
        ..Request::default()
    };
    let decision = hook::before_reboot(&env, &request).await.unwrap();
    assert_eq!(decision.inputs.next_os.value.unwrap().as_str(), NEW);
    for system in [NEW, "2000.0.0"] {
        let image = root.path().join(format!("var/lib/torcx/store/{system}/docker:17.03.torcx.tgz"));
        assert_eq!(std::fs::read(image).unwrap(), b"image", "{system}");
    }
    // Until the reboot, the check fails.
    let early = hook::after_reboot(&env, &request).await;
    assert!(matches!(&early, Err(HookError::Wrong { reason }) if reason.contains(NEW)), "{early:?}");
}
