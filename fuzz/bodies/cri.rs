//! Bodies of the `cri_*` targets.

use std::time::Instant;

use landfall_evidence::cri::{Call, Container, Image, Pod, Progress, Status, Version};

/// Any bytes from a runtime, in any pieces, give the same response or the same error.
pub(crate) fn reply(bytes: &[u8]) {
    // The settings are included, so that the fuzzer need not find them.
    let mut input = b"\0\0\0\x04\0\0\0\0\0".to_vec();
    input.extend_from_slice(bytes);
    let whole = read(&input, input.len());
    let pieces = read(&input, 1 + input.len() / 7);
    assert_eq!(whole, pieces);
}

fn read(bytes: &[u8], step: usize) -> Option<Vec<u8>> {
    let (mut call, now) = (Call::new("/Fuzz", b""), Instant::now());
    let asked = call.output().len();
    for piece in bytes.chunks(step) {
        if call.push(piece, now).ok()? == Progress::Done {
            return call.finish("Fuzz").ok();
        }
        assert!(call.output().len() <= asked + 2 * bytes.len(), "a peer makes us say more than it does");
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
