//! What the `cluster_*` targets do with their input.

use landfall_cluster::frame::{FrameError, MAX_PAYLOAD, Message, Reader};

/// What a server sends over a forwarded port: however it is cut, the same comes out, and nothing is larger than came in.
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
