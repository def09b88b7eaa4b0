//! The corpora of the fuzz targets, without a fuzzer.

#[path = "../../../fuzz/bodies/dbus.rs"]
mod dbus;
#[path = "../../../fuzz/bodies/inputs.rs"]
mod inputs;
#[path = "../../../fuzz/bodies/nats.rs"]
mod nats;
#[path = "../../../fuzz/bodies/wire.rs"]
mod wire;

use inputs::inputs;

fn run(target: &str, body: fn(&[u8])) {
    for input in inputs(target) {
        body(&input);
        // Inputs with one flipped bit.
        for at in 0..input.len() {
            let mut damaged = input.clone();
            damaged[at] ^= 1 << (at % 8);
            body(&damaged);
        }
    }
}

#[test]
fn hellos() {
    run("wire_hello", wire::hello);
}

#[test]
fn proxy_headers() {
    run("wire_proxy", wire::proxy);
}

#[test]
fn protocols() {
    run("wire_protocol", wire::protocol);
}

#[test]
fn dbus_messages() {
    run("dbus_message", dbus::message);
}

#[test]
fn dbus_values() {
    run("dbus_values", dbus::values);
}

#[test]
fn nats_servers() {
    run("nats_said", nats::said);
}
