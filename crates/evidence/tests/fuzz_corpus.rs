//! The inputs of the fuzz targets, run as plain tests.

#[path = "../../../fuzz/bodies/evidence.rs"]
mod bodies;
#[path = "../../../fuzz/bodies/cri.rs"]
mod cri;
#[path = "../../../fuzz/bodies/inputs.rs"]
mod inputs;

use inputs::inputs;

fn run(target: &str, body: fn(&[u8])) {
    for input in inputs(target) {
        body(&input);
    }
}

#[test]
fn tar() {
    run("evidence_tar", bodies::tar);
}

#[test]
fn zip() {
    run("evidence_zip", bodies::zip);
}

#[test]
fn evtx() {
    run("evidence_evtx", bodies::evtx);
}

#[test]
fn utf16() {
    run("evidence_utf16", bodies::utf16);
}

#[test]
fn console() {
    run("evidence_console", bodies::console);
}

#[test]
fn kmsg() {
    run("evidence_kmsg", bodies::kmsg);
}

#[test]
fn any() {
    run("evidence_any", bodies::any);
}

#[test]
fn cri_replies() {
    run("cri_reply", cri::reply);
}

#[test]
fn cri_messages() {
    run("cri_messages", cri::messages);
}
