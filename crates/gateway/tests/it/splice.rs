//! TLS connections are spliced while an API server answers and terminated otherwise.

use std::net::SocketAddr;

use hyper::{Method, Version};
use landfall_gateway::config::Mode;
use landfall_testkit::{ApiServer, have};
use rustix::process::Signal;

use crate::bed::{Bed, GATHER_TOKEN};
use crate::client::Identity;

const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

#[test]
fn clients_keep_their_own_tls_until_the_api_server_is_gone() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let api = ApiServer::start().unwrap();
    let bed = Bed::before(&api, |config| {
        config.mode = Mode::Splice;
        config.front_proxy = None;
    });
    let direct = SocketAddr::new(bed.address.ip(), api.port());
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let identity = bed.user("jane", "developers");
        let [through, straight] = [bed.address, direct].map(|address| {
            let client = bed.client_of(address, identity.clone()).version(version);
            let got = client.send(&bed.runtime, Method::POST, WHO_AM_I, REVIEW);
            got.json()["status"]["userInfo"].clone()
        });
        assert_eq!(through["username"], "jane");
        assert_eq!(through, straight);
    }
    // Standard clients reach the API server; landfall clients select the gateway by their ALPN protocol.
    let stock = bed.client(Identity::None).bearer(GATHER_TOKEN).get(&bed.runtime, "/bootstrap/identity");
    assert_eq!(stock.status, 401, "{stock:?}");
    let ours = bed.client(Identity::None).protocol(b"landfall/1").bearer(GATHER_TOKEN);
    assert_eq!(ours.get(&bed.runtime, "/bootstrap/identity").json()["phase"], "local");

    api.process().signal(Signal::KILL).unwrap();
    bed.wait_for_phase("failed");
    let stock = bed.client(bed.user("admin", "system:masters"));
    assert_eq!(stock.get(&bed.runtime, "/bootstrap").status, 200, "plain curl works when it matters");
    let got = stock.get(&bed.runtime, "/api/v1/namespaces");
    assert_eq!((got.status.as_u16(), got.header("connection")), (503, "close"), "{got:?}");
}
