//! The inputs of the fuzz target, run as plain tests with additional mutations.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../../fuzz/bodies/diagnose.rs"]
mod bodies;
#[path = "../../../fuzz/bodies/inputs.rs"]
mod inputs;

use std::time::{Duration, Instant};

use proptest::prelude::*;

fn inputs() -> Vec<Vec<u8>> {
    inputs::inputs("diagnose_lines")
}

#[test]
fn every_input_is_read() {
    for input in inputs() {
        bodies::lines(&input);
    }
}

#[test]
fn every_input_may_be_cut_anywhere() {
    for input in inputs() {
        for end in (0..input.len()).step_by(1 + input.len() / 60) {
            bodies::lines(&input[..end]);
            bodies::lines(&input[end..]);
        }
    }
}

#[test]
fn hostile_lines_cost_no_more_than_their_length() {
    // Ten times the bytes may take ten times as long, plus a reserve for loaded machines, but not a hundred
    // times.
    let time = |count: usize| {
        let shapes = [
            "  File \"x\", line 1\n".repeat(count),
            "Traceback (most recent call last):\n  x\nOSError: no space left on device\n".repeat(count / 3),
            "\t".repeat(count * 10) + "no space left on device",
            "==> kubelet <==\n".repeat(count),
            "connection refused https://10.0.0.1:6443/api \\\"".repeat(count / 2),
            "-- Boot 6f1c9a1f2d3e4b5c8a7b6c5d4e3f2a1b --\n".repeat(count),
        ];
        let begin = Instant::now();
        for text in &shapes {
            bodies::lines(text.as_bytes());
        }
        begin.elapsed()
    };
    let small = time(2_000);
    let large = time(20_000);
    assert!(large < small * 40 + Duration::from_secs(2), "{small:?} became {large:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        bodies::lines(&bytes);
    }

    #[test]
    fn known_lines_in_any_order_are_read(picks in proptest::collection::vec((0..7usize, 0..12usize), 0..40)) {
        let inputs = inputs();
        let mut text = Vec::new();
        for (file, line) in picks {
            let lines: Vec<&[u8]> = inputs[file % inputs.len()].split(|byte| *byte == b'\n').collect();
            text.extend_from_slice(lines[line % lines.len()]);
            text.push(b'\n');
        }
        bodies::lines(&text);
    }
}
