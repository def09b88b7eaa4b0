//! Bodies of the `wire_*` targets.

use landfall_net::{Protocol, classify, client_hello, proxy_header};

/// A TLS client hello: no panic, and a decision is final when more bytes follow.
pub(crate) fn hello(bytes: &[u8]) {
    let whole = client_hello(bytes);
    for cut in cuts(bytes) {
        match client_hello(&bytes[..cut]) {
            Ok(None) => {}
            decided => assert_eq!(decided, whole),
        }
    }
}

/// A PROXY header: no panic, never longer than the input, and a decision is final when more bytes follow.
pub(crate) fn proxy(bytes: &[u8]) {
    let whole = proxy_header(bytes);
    if let Ok(Some(header)) = &whole {
        assert!(header.length <= bytes.len());
        assert_eq!(proxy_header(&bytes[..header.length]), whole);
    }
    for cut in cuts(bytes) {
        match proxy_header(&bytes[..cut]) {
            Ok(None) => {}
            decided => assert_eq!(decided, whole),
        }
    }
}

/// First bytes of a connection: exactly one decision.
pub(crate) fn protocol(bytes: &[u8]) {
    let whole = classify(bytes);
    if let Some(Protocol::Tls(hello)) = &whole {
        assert_eq!(client_hello(bytes), Ok(Some(hello.clone())));
    }
    for cut in cuts(bytes) {
        match classify(&bytes[..cut]) {
            None => {}
            decided => assert_eq!(decided, whole),
        }
    }
}

/// Returns each length of a short input, and some of a long one.
fn cuts(bytes: &[u8]) -> impl Iterator<Item = usize> {
    (0..bytes.len()).step_by(1 + bytes.len() / 128)
}
