//! The health of gateways and tunnels, asked of ports that answer, refuse and are not there.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use landfall_hub::WatchedRole;
use landfall_testkit::{Browser, free_port, have};

use super::{picture, url};
use crate::bed::TestHub;

/// An admin port that says this of its readiness, until the test ends.
fn admin(status: &'static str, ready: &'static str, metrics: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut line = String::new();
            let _ = BufReader::new(&stream).read_line(&mut line);
            let (status, body) = if line.contains("/readyz") { (status, ready) } else { ("200 OK", metrics) };
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
        }
    });
    format!("http://{address}")
}

#[test]
fn the_health_of_gateways_and_tunnels_is_shown() {
    if !have(Browser::NEEDS) {
        return;
    }
    let gateway = admin("200 OK", "ok", "landfall_gateway_connections 7\nlandfall_gateway_tunnels 2\n");
    let server = admin(
        "503 Service Unavailable",
        "[+]ping ok\n[-]agent-connected failed: no agent is connected\n",
        "konnectivity_network_proxy_server_ready_backend_connections 0\n",
    );
    let gone = format!("http://127.0.0.1:{}", free_port().unwrap());
    let hub = TestHub::with(|config| {
        config.watch = [("gateway", &gateway), ("tunnel server", &server), ("tunnel agent", &gone)]
            .map(|(name, address)| WatchedRole::parse(&format!("{name}={address}")).unwrap())
            .to_vec();
    });
    let mut browser = Browser::start().unwrap();
    browser.open(&url(&hub, "/roles")).unwrap();
    browser.until("document.querySelector('h1').innerText === '2 of 3 roles are not ready'").unwrap();
    browser.screenshot(&picture("roles.png")).unwrap();
    let role = |browser: &mut Browser, place: usize| {
        browser
            .text(&format!("document.querySelectorAll('.role')[{place}].innerText.replaceAll('\\n', ' ')"))
            .unwrap()
    };
    let first = role(&mut browser, 0);
    assert!(first.contains("tunnel agent") && first.contains("unreachable"), "{first}");
    assert!(first.contains("it cannot be reached: Connection refused"), "it is no hub: {first}");
    let second = role(&mut browser, 1);
    assert!(
        second.contains("agent-connected failed: no agent is connected") && second.contains("agents"),
        "{second}"
    );
    assert!(!second.contains("ping"), "what is well is not told: {second}");
    let third = role(&mut browser, 2);
    assert!(third.contains("ready") && third.contains('7') && third.contains("connections"), "{third}");
    let roles = hub.json("/api/v1/roles");
    let readiness = ["ready", "notReady", "unreachable"];
    for (role, readiness) in roles["roles"].as_array().unwrap().iter().zip(readiness) {
        assert_eq!(role["readiness"], readiness, "{roles}");
    }
    assert_eq!(roles["roles"][0]["figures"]["connections"], 7.0, "{roles}");
}
