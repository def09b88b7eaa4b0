//! `kubectl` through the gateway, which must be transparent.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use landfall_testkit::{
    ApiServer, Binary, ControllerManager, Invitation, Node, POD_IMAGE, eventually, free_port, have,
};
use serde_json::json;

use crate::bed::Bed;

const LIMIT: Duration = Duration::from_secs(120);

/// Writes a kubeconfig of the administrator with the gateway as its server.
fn kubeconfig(api: &ApiServer, bed: &Bed) -> PathBuf {
    let text = std::fs::read_to_string(api.admin_kubeconfig()).unwrap();
    let through = text.replace(&api.url(), &format!("https://127.0.0.1:{}", bed.address.port()));
    assert_ne!(text, through);
    let path = bed.folder.path().join("kubeconfig");
    std::fs::write(&path, through).unwrap();
    path
}

fn kubectl(kubeconfig: &PathBuf, arguments: &[&str]) -> Command {
    let mut command = Command::new(Binary::Kubectl.path().unwrap());
    command.arg("--kubeconfig").arg(kubeconfig).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[track_caller]
fn output(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn objects_are_read_written_and_watched() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let api = ApiServer::start().unwrap();
    let bed = Bed::before(&api, |_| {});
    let config = kubeconfig(&api, &bed);
    let run = |arguments: &[&str]| output(kubectl(&config, arguments));
    assert!(run(&["get", "namespaces"]).contains("kube-system"));
    assert_eq!(run(&["auth", "can-i", "*", "*", "--all-namespaces"]).trim(), "yes");
    let mut refused = kubectl(&config, &["auth", "can-i", "list", "secrets", "--as=jane"]);
    assert_eq!(String::from_utf8_lossy(&refused.output().unwrap().stdout).trim(), "no");
    // A path that must arrive unmodified.
    let odd = "/api/v1/namespaces/default/configmaps?labelSelector=a%2Fb%3Dc&limit=1";
    assert!(run(&["get", "--raw", odd]).contains("ConfigMapList"));

    let mut watch = kubectl(&config, &["get", "configmaps", "-n", "default", "--watch-only", "-o", "name"])
        .spawn()
        .unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let (sender, seen) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let file = bed.folder.path().join("map.json");
    // A watch reports no object from before its start, so the test creates objects until one appears.
    let mut number = 0;
    let first = eventually("an event through the watch", LIMIT, || {
        number += 1;
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("seen-{number}"), "namespace": "default"}});
        std::fs::write(&file, map.to_string()).unwrap();
        run(&["apply", "-f", file.to_str().unwrap()]);
        seen.recv_timeout(Duration::from_millis(200)).ok()
    })
    .unwrap();
    assert!(first.starts_with("configmap/seen-"), "{first}");
    watch.kill().unwrap();
    watch.wait().unwrap();
    reading.join().unwrap();
}

#[test]
fn commands_run_and_ports_are_forwarded() {
    let needs = [Node::NEEDS, ApiServer::NEEDS, ControllerManager::NEEDS, Invitation::NEEDS].concat();
    if !have(&needs) {
        return;
    }
    let mut spec = Invitation::api_server();
    // The node's name does not resolve, and its kubelet has a self-signed certificate.
    spec.arguments.push("--kubelet-preferred-address-types=InternalIP".to_owned());
    spec.arguments.push("--kubelet-certificate-authority=".to_owned());
    let api = ApiServer::start_with(&spec).unwrap();
    let _controllers = ControllerManager::start(&api).unwrap();
    let invitation = Invitation::create(&api).unwrap();
    let mut node = Node::boot(&invitation.node("worker")).unwrap();
    let bed = Bed::before(&api, |_| {});
    let config = kubeconfig(&api, &bed);
    assert_eq!(node.wait_for_cloud_init().unwrap(), [""; 0]);
    eventually("the node to be ready", LIMIT, || node.is_ready(&api).unwrap().then_some(())).unwrap();
    api.apply(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "guest", "namespace": "default"},
        "spec": {
            "nodeName": "worker",
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "guest", "image": POD_IMAGE, "imagePullPolicy": "Never",
                "command": ["/bin/busybox", "sh", "-c", "echo begun; while true; do echo pong | busybox nc -l -p 7777; done"],
            }],
        },
    }))
    .unwrap();
    eventually("the pod to run", LIMIT, || {
        let phase = api.kubectl(&["get", "pod", "guest", "-o", "jsonpath={.status.phase}"]).unwrap();
        (phase == "Running").then_some(())
    })
    .unwrap();
    assert_eq!(output(kubectl(&config, &["logs", "guest"])), "begun\n");
    for websockets in ["true", "false"] {
        // These variables select WebSocket or SPDY in kubectl.
        let streaming = |arguments: &[&str]| {
            let mut command = kubectl(&config, arguments);
            command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets);
            command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets);
            command
        };
        let mut exec = streaming(&["exec", "-i", "guest", "--", "/bin/busybox", "cat"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        exec.stdin.take().unwrap().write_all(&b"through and back\n".repeat(20_000)).unwrap();
        let ended = exec.wait_with_output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        assert_eq!(ended.stdout.len(), 17 * 20_000, "websockets: {websockets}");
        let failing =
            streaming(&["exec", "guest", "--", "/bin/busybox", "sh", "-c", "exit 7"]).output().unwrap();
        assert_eq!(failing.status.code(), Some(7));

        // kubectl cannot copy without `tar` in the container.
        output(streaming(&["exec", "guest", "--", "/bin/busybox", "ln", "-sf", "/bin/busybox", "/bin/tar"]));
        let (sent, back) = (bed.folder.path().join("sent"), bed.folder.path().join("back"));
        std::fs::write(&sent, b"copied there and back\n".repeat(50_000)).unwrap();
        output(streaming(&["cp", sent.to_str().unwrap(), "guest:/copied"]));
        output(streaming(&["cp", "guest:/copied", back.to_str().unwrap()]));
        assert!(std::fs::read(&sent).unwrap() == std::fs::read(&back).unwrap(), "websockets: {websockets}");

        let mut attached = streaming(&["attach", "guest"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(attached.stdout.take().unwrap()).lines();
        let (tell, told) = std::sync::mpsc::channel();
        let reading = std::thread::spawn(move || {
            if let Some(Ok(line)) = lines.find(|line| line.as_ref().is_ok_and(|line| line == "attached")) {
                tell.send(line).unwrap();
            }
        });
        eventually("what the pod says", LIMIT, || {
            let say = ["exec", "guest", "--", "/bin/busybox", "sh", "-c", "echo attached > /proc/1/fd/1"];
            output(streaming(&say));
            told.try_recv().ok()
        })
        .unwrap();
        attached.kill().unwrap();
        attached.wait().unwrap();
        reading.join().unwrap();

        let port = free_port().unwrap();
        let ports = format!("{port}:7777");
        let mut forward = streaming(&["port-forward", "guest", &ports]).spawn().unwrap();
        let got = eventually("an answer through the forwarded port", LIMIT, || {
            // The forward ends when the pod is not listening, which happens between two of its responses.
            if forward.try_wait().unwrap().is_some() {
                forward = streaming(&["port-forward", "guest", &ports]).spawn().unwrap();
            }
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
            let mut got = String::new();
            let _ = stream.read_to_string(&mut got);
            (!got.is_empty()).then_some(got)
        });
        forward.kill().unwrap();
        forward.wait().unwrap();
        assert_eq!(got.unwrap(), "pong\n", "websockets: {websockets}");
    }
}
