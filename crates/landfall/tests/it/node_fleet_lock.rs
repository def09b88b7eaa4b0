//! Reboots with the permission of a FleetLock server that enforces the protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use landfall_testkit::{HttpRequest, serve_http};
use serde_json::{Value, json};

use crate::node_prepare::{ENV, Node};

/// A lock server with a limit for concurrent reboots in a group.
struct LockServer {
    origin: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    slots: usize,
    holders: BTreeMap<String, BTreeSet<String>>,
    asked: Vec<String>,
    /// Protocol violations of clients.
    breaches: Vec<String>,
    /// Number of requests that are answered with 500 first.
    trouble: usize,
}

impl LockServer {
    fn start(slots: usize) -> Self {
        let state = Arc::new(Mutex::new(State { slots, ..State::default() }));
        let shared = Arc::clone(&state);
        let origin = serve_http(move |request| {
            let (status, answer) = judge(&request, &mut shared.lock().unwrap());
            (status, answer.map(|answer| answer.to_string()).unwrap_or_default())
        });
        Self { origin: origin.unwrap(), state }
    }

    fn flag(&self) -> String {
        format!("--fleet-lock={}/", self.origin)
    }

    fn asked(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        assert_eq!(state.breaches, [""; 0], "the protocol was broken");
        state.asked.clone()
    }
}

fn judge(request: &HttpRequest, state: &mut State) -> (u16, Option<Value>) {
    let (line, protocol) = (request.line(), request.header("fleet-lock-protocol"));
    let refuse = |status, kind: &str, value: &str| (status, Some(json!({"kind": kind, "value": value})));
    let mut breach = |what: String| {
        state.breaches.push(what);
        refuse(400, "bad_request", "see the protocol")
    };
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "POST" || protocol != Some("true") {
        return breach(format!("{line}, protocol {protocol:?}"));
    }
    let Ok(body) = serde_json::from_slice::<Value>(&request.body) else {
        return breach("no JSON".to_owned());
    };
    let (id, group) = (&body["client_params"]["id"], &body["client_params"]["group"]);
    let (Some(id), Some(group)) = (id.as_str(), group.as_str()) else { return breach(body.to_string()) };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    if id.is_empty() || group.is_empty() || !group.chars().all(is_name) {
        return breach(body.to_string());
    }
    state.asked.push(format!("{path} {group} {id}"));
    if state.trouble > 0 {
        state.trouble -= 1;
        return (500, None);
    }
    let slots = state.slots;
    let holders = state.holders.entry(group.to_owned()).or_default();
    match path {
        "/v1/pre-reboot" => {
            if holders.contains(id) || holders.len() < slots {
                holders.insert(id.to_owned());
                return (200, None);
            }
            refuse(409, "all_slots_taken", "another machine of the group reboots")
        }
        // Releasing a lock that the client does not hold is not an error.
        "/v1/steady-state" => {
            holders.remove(id);
            (200, None)
        }
        _ => {
            state.breaches.push(line.to_owned());
            refuse(404, "not_found", path)
        }
    }
}

fn flags<'a>(lock: &'a str, id: &'a str) -> [&'a str; 4] {
    ["--no-verify-signatures", lock, "--fleet-lock-group=workers", id]
}

#[test]
fn one_machine_after_the_other_reboots_and_gives_the_lock_back() {
    let server = LockServer::start(1);
    let lock = server.flag();
    let (first, second) = (Node::new(), Node::new());
    let run = first.run(&flags(&lock, "--fleet-lock-id=first"));
    assert_eq!(run.code, 100, "{run:?}");
    // The other machine has to wait, reports the reason, and has not changed its pending reboot.
    let run = second.run(&flags(&lock, "--fleet-lock-id=second"));
    assert_eq!(run.code, 75, "{run:?}");
    assert!(run.stderr.contains("all_slots_taken: another machine of the group reboots"), "{run:?}");
    assert!(!second.has("root/run/systemd/system/torcx-docker-cleanup.service"));
    assert_eq!(second.status()["outcome"]["is"], "waiting");

    first.boot();
    // The lock server itself may fail when the machine is back.
    server.state.lock().unwrap().trouble = 1;
    let run = first.bench.run(&["node", "resume", "--root", "root"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(first.has(ENV));
    let run = second.run(&flags(&lock, "--fleet-lock-id=second"));
    assert_eq!(run.code, 100, "{run:?}");
    assert_eq!(
        server.asked(),
        [
            "/v1/pre-reboot workers first",
            "/v1/pre-reboot workers second",
            "/v1/steady-state workers first",
            "/v1/steady-state workers first",
            "/v1/pre-reboot workers second",
        ]
    );
}

#[test]
fn without_its_lock_server_a_machine_waits_and_without_a_reboot_nobody_is_asked() {
    let node = Node::new();
    // A port without a listener.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let lock = format!("--fleet-lock=http://{gone}");
    let run = node.run(&flags(&lock, "--fleet-lock-id=n"));
    assert_eq!(run.code, 75, "{run:?}");
    assert!(run.stderr.contains("Waiting for the reboot lock"), "{run:?}");
    assert!(!node.has(ENV));

    let server = LockServer::start(0);
    let lock = server.flag();
    let calm = Node::new();
    let run = calm.run(&["--torcx-skip-setup", &lock, "--fleet-lock-id=n"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(server.asked(), [""; 0]);
    // Without an ID, that of the machine is used.
    let run = calm.run(&["--torcx-skip-setup", &lock, "--start-over"]);
    run.assert_refused(1, "machine-id");
}
