//! Body of the `dns_message` target.

use landfall_evidence::collect::dns::Message;

/// Any response from a name server.
pub(crate) fn message(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        assert!(message.answers.len() <= bytes.len());
        for answer in &message.answers {
            assert!(!answer.to_string().contains(char::is_control), "an answer cannot drive a terminal");
        }
        let _ = message.code_name();
    }
}
