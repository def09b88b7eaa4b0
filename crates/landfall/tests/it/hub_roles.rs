//! The health of real gateways and tunnels on the hub's page.

use std::path::Path;
use std::time::Duration;

use landfall_testkit::{Browser, Process, eventually, free_port, have};
use serde_json::Value;

use crate::gateway::kubeadm;
use crate::hub::{ask, start_with};
use crate::tunnel::Dock;

const LIMIT: Duration = Duration::from_secs(90);

/// Returns the health port in these flags of a tunnel.
fn health_port(flags: &[String]) -> u16 {
    let port = |flag: &String| {
        flag.split_once("health").and_then(|(_, rest)| rest.rsplit_once('=')).map(|(_, port)| port.to_owned())
    };
    flags.iter().find_map(port).unwrap().parse().unwrap()
}

#[test]
fn the_health_of_gateways_and_tunnels_is_shown() {
    if !have(Browser::NEEDS) {
        return;
    }
    let dock = Dock::new();
    let bench = &dock.bench;
    kubeadm(bench);
    let [listen, upstream, admin, gone, port] = [(); 5].map(|()| free_port().unwrap());
    bench.file("gateway.toml", format!("admin = \"127.0.0.1:{admin}\"\n"));
    let root = bench.path().join("root").display().to_string();
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    let _gateway = Process::start("gateway", program, bench.path(), |command| {
        command.args(["gateway", "--root", &root, "--listen", &format!("127.0.0.1:{listen}")]);
        command.args(["--config", &bench.path().join("gateway.toml").display().to_string()]);
        command.args(["--upstream", &format!("127.0.0.1:{upstream}")]);
        command.env("RUNTIME_DIRECTORY", bench.path());
    })
    .unwrap();
    let (server_flags, agent_flags) = (dock.server_flags(), dock.agent_flags());
    let _server = dock.start("proxy-server", &server_flags);
    let watched = [
        ("gateway", admin),
        ("tunnel server", health_port(&server_flags)),
        ("its admin port", dock.server_admin),
        ("tunnel agent", health_port(&agent_flags)),
        ("nobody", gone),
    ]
    .map(|(name, port)| format!("--watch={name}=http://127.0.0.1:{port}"));
    let watched: Vec<&str> = watched.iter().map(String::as_str).collect();
    let hub = start_with(bench, port, &watched);
    let role = |wanted: &str| -> Option<Value> {
        let (_, body) = ask(port, "GET", "/api/v1/roles", "")?;
        let body: Value = serde_json::from_str(&body).ok()?;
        body["roles"].as_array()?.iter().find(|role| role["name"] == wanted).cloned()
    };
    let until = |name: &str, readiness: &str| -> Value {
        let fits = || role(name).filter(|role| role["readiness"] == readiness);
        eventually(&format!("`{name}` to be {readiness}"), LIMIT, fits)
            .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", role(name), hub.log()))
    };
    // The gateway is ready with or without an API server behind it.
    let gateway = until("gateway", "ready");
    assert_eq!(gateway["figures"]["tunnels"], 0.0, "{gateway}");
    let server = until("tunnel server", "notReady");
    assert_eq!(server["figures"]["agents"], 0.0, "{server}");
    assert!(!server["detail"].as_str().unwrap().is_empty(), "{server}");
    until("tunnel agent", "unreachable");

    // An agent connects: server and agent are ready.
    let _agent = dock.start("proxy-agent", &agent_flags);
    let server = until("tunnel server", "ready");
    assert_eq!(server["figures"]["agents"], 1.0, "{server}");
    let agent = until("tunnel agent", "ready");
    assert_eq!(agent["figures"]["servers"], 1.0, "{agent}");
    let mistaken = until("its admin port", "notReady");
    assert!(
        mistaken["detail"].as_str().unwrap().contains("name the admin port, of a tunnel the health port"),
        "{mistaken}"
    );
    let nobody = until("nobody", "unreachable");
    assert!(nobody["detail"].as_str().unwrap().contains("Connection refused"), "{nobody}");

    let mut browser = Browser::start().unwrap();
    browser.open(&format!("http://127.0.0.1:{port}/roles")).unwrap();
    browser.until("document.querySelector('h1').innerText.startsWith('2 of 5 roles')").unwrap();
    browser.screenshot(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages/roles.png")).unwrap();
    let shown = browser.text("document.querySelector('main').innerText").unwrap();
    for part in
        ["nobody", "unreachable", "Connection refused", "gateway", "tunnel server", "tunnel agent", "ready"]
    {
        assert!(shown.contains(part), "`{part}` is not on the page: {shown}");
    }
    // Targets that need attention come first.
    let first = browser.text("document.querySelectorAll('.role h2')[0].innerText").unwrap();
    assert!(first.contains("nobody"), "{first}");
}
