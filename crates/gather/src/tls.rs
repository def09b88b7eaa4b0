//! TLS for clients of the endpoint.

use std::path::Path;

use landfall_model::chain;
use landfall_net::{Identity, ServerTrust, client_config, parse_roots, system_roots};
use rustls::ClientConfig;

use crate::connection::Speaks;
use crate::{Access, Error};

/// Offered first: a gateway in splice mode answers connections with this protocol itself. An API server does not know
/// it and selects the next.
const GATEWAY: &[u8] = b"landfall/1";
const HTTP: &[u8] = b"http/1.1";

pub(crate) fn client(access: &Access, speaks: Speaks) -> Result<ClientConfig, Error> {
    let invalid = |error| Error::Credentials { what: chain(&error).to_string() };
    let trust = if access.skip_verification {
        ServerTrust::Insecure
    } else {
        let roots = match &access.authority {
            Some(pem) => parse_roots(Path::new("certificate authority"), pem).map_err(invalid)?,
            None => system_roots(),
        };
        if roots.is_empty() {
            let what = "no CA certificate to verify the endpoint with".to_owned();
            return Err(Error::Credentials { what });
        }
        ServerTrust::Roots(roots)
    };
    let identity = access.identity.as_ref().map(|identity| Identity {
        certificate: &identity.certificate,
        key: identity.key.expose(),
        certificate_path: Path::new("client certificate"),
        key_path: Path::new("client key"),
    });
    let protocols: &[&[u8]] = match speaks {
        Speaks::Gateway => &[GATEWAY, HTTP],
        Speaks::ApiServer => &[HTTP],
    };
    client_config(trust, identity, protocols).map_err(invalid)
}
