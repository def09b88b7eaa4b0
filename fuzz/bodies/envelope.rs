//! Body of the `pki_envelope` target.

use landfall_model::envelope::{Envelope, PAYLOAD_TYPE};
use landfall_pki::verify_envelope;

/// Any bytes as an envelope: it has one layout, the known type, and proves a key only by its one signature.
pub(crate) fn envelope(bytes: &[u8]) {
    let Ok(envelope) = Envelope::parse(bytes) else { return };
    assert_eq!(envelope.payload_type, PAYLOAD_TYPE);
    assert!(envelope.payload.len() <= bytes.len() / 4 * 3);
    let json = serde_json::to_vec(&envelope).expect("text and base64 are JSON");
    assert_eq!(Envelope::parse(&json).ok().as_ref(), Some(&envelope));
    if let Ok(key) = verify_envelope(&envelope) {
        assert_eq!(key.is_some(), envelope.signatures.len() == 1);
        let changed = Envelope { payload: [&envelope.payload[..], b" "].concat(), ..envelope.clone() };
        assert!(key.is_none() || verify_envelope(&changed).is_err());
    }
    if let Ok(message) = envelope.message() {
        assert!(serde_json::to_vec(&message).is_ok());
    }
}
