//! Bodies of the `cluster_*` targets.

use landfall_cluster::frame::{FrameError, MAX_PAYLOAD, Message, Reader};

/// Any data of a server over a forwarded port: the output does not depend on how it is split, and is not
/// larger than the input.
pub(crate) fn frames(bytes: &[u8]) {
    let whole = read(&[bytes]);
    let (one, two) = bytes.split_at(bytes.len() / 2);
    let halves = read(&[one, two]);
    assert_eq!(whole, halves);
    let told: usize = whole.0.iter().map(size).sum();
    assert!(told <= bytes.len());
}

fn read(parts: &[&[u8]]) -> (Vec<Message>, Option<FrameError>) {
    let (mut reader, mut all) = (Reader::default(), Vec::new());
    for part in parts {
        reader.feed(part);
        loop {
            match reader.next_message() {
                Ok(Some(message)) => all.push(message),
                Ok(None) => break,
                Err(error) => return (all, Some(error)),
            }
        }
    }
    (all, None)
}

fn size(message: &Message) -> usize {
    let size = match message {
        Message::Data { bytes, .. } | Message::Ping(bytes) => bytes.len(),
        Message::Close => 0,
    };
    assert!(size <= MAX_PAYLOAD);
    size
}
