//! Bodies of the `cri_*` targets.

use landfall_evidence::cri::{Container, Image, Pod, Progress, Reply, Status, Version};

/// Any bytes from a runtime, in any pieces, give the same response or the same error.
pub(crate) fn reply(bytes: &[u8]) {
    let whole = read(bytes, bytes.len().max(1));
    let pieces = read(bytes, 1 + bytes.len() / 7);
    assert_eq!(whole, pieces);
}

fn read(bytes: &[u8], step: usize) -> Option<Vec<u8>> {
    let (mut reply, mut answer) = (Reply::default(), Vec::new());
    for piece in bytes.chunks(step) {
        if reply.push(piece, &mut answer).ok()? == Progress::Done {
            return reply.finish("Fuzz").ok();
        }
        assert!(answer.len() <= 2 * bytes.len(), "a peer makes us say more than it does");
    }
    None
}

/// Any content of a response.
pub(crate) fn messages(bytes: &[u8]) {
    let _ = Version::decode(bytes);
    let _ = Status::decode(bytes);
    let _ = Pod::decode_list(bytes);
    let _ = Container::decode_status(bytes);
    let _ = Image::decode_list(bytes);
    let listed = Container::decode_list(bytes).unwrap_or_default();
    assert!(listed.len() <= bytes.len());
}
