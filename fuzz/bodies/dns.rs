//! What the `dns_message` target does with its input.

use landfall_evidence::collect::dns::Message;

/// What a name server may send.
pub(crate) fn message(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        assert!(message.answers.len() <= bytes.len());
        for answer in &message.answers {
            assert!(!answer.to_string().contains(char::is_control), "an answer cannot drive a terminal");
        }
        let _ = message.code_name();
    }
}
