//! The redirect rule of the API port, in its own network namespace.

use std::process::Command;

use landfall_testkit::isolated::{HOST, NEEDS, in_network};
use landfall_testkit::{ApiServer, Need, eventually, have};
use rustix::process::Signal;

use crate::bed::{Bed, GATHER_TOKEN, LIMIT};

#[test]
fn connections_come_here_only_while_that_does_good() {
    if have(&[NEEDS, ApiServer::NEEDS, &[Need::Program("nft"), Need::Program("curl")]].concat()) {
        in_network("redirect::connections_come_here_only_while_that_does_good", inside);
    }
}

fn inside() {
    let api = ApiServer::start().unwrap();
    let mut bed = Bed::before(&api, |config| {
        config.listen = vec!["0.0.0.0:0".parse().unwrap()];
        config.redirect = Some(api.port());
    });
    let code = |path: &str| {
        let url = format!("https://{HOST}:{}{path}", api.port());
        let output = Command::new("ip")
            .args([
                "netns",
                "exec",
                "client",
                "curl",
                "-sk",
                "-m",
                "5",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
            ])
            .args(["-H", &format!("Authorization: Bearer {GATHER_TOKEN}"), &url])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let wait = |what: &str, path: &str, expected: &str| {
        eventually(what, LIMIT, || (code(path) == expected).then_some(())).unwrap();
    };
    wait("the redirection", "/bootstrap/identity", "200");
    assert_eq!(code("/version"), "401", "a token the API server does not know is no one's through us either");

    // Without an API server the redirect rule may stay.
    api.process().signal(Signal::KILL).unwrap();
    wait("the API server to be missed", "/version", "503");
    assert_eq!(code("/bootstrap"), "200");

    // A gateway that stops removes its rule.
    bed.stop();
    assert_eq!(code("/bootstrap"), "000", "nothing is there any more");
    let rules = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&rules.stdout), "", "no rule is left");
}
