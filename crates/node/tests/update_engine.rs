//! The updater's client against a real dbus-daemon, and a service on it that plays update_engine.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bus;

use bus::{Act, Bus, status};
use landfall_node::prepare::update_engine::{Engine, Operation, Pending, UpdateError};
use landfall_testkit::{Need, have};

const NEEDS: &[Need] = &[Need::Program("dbus-daemon")];
const ZERO: &str = "0.0.0";
const NEW: &str = "2001.0.0";

fn update(bus: &Bus) -> Result<Pending, UpdateError> {
    Engine::at(bus.socket().display().to_string()).update(&mut |_| true)
}

#[test]
fn an_update_is_asked_for_and_waited_for() {
    if !have(NEEDS) {
        return;
    }
    let bus = Bus::start();
    let engine = bus.engine(
        status("IDLE", ZERO),
        vec![
            Act::Tell(status("CHECKING_FOR_UPDATE", ZERO)),
            Act::Tell(status("UPDATE_AVAILABLE", NEW)),
            Act::Tell(status("DOWNLOADING", NEW)),
            Act::Tell(status("FINALIZING", NEW)),
            Act::Tell(status("UPDATED_NEED_REBOOT", NEW)),
        ],
    );
    let mut seen = Vec::new();
    let pending = Engine::at(bus.socket().display().to_string()).update(&mut |status| {
        seen.push(status.operation);
        true
    });
    assert_eq!(pending.unwrap(), Pending::Version(NEW.parse().unwrap()));
    assert!(seen.contains(&Operation::Downloading), "{seen:?}");
    assert_eq!(engine.asked(), 1);
    let status = Engine::at(bus.socket().display().to_string()).status().unwrap();
    assert_eq!(status.pending(), Pending::Version(NEW.parse().unwrap()));
}

#[test]
fn no_update_is_told_from_a_failed_one() {
    if !have(NEEDS) {
        return;
    }
    let bus = Bus::start();
    let _engine = bus.engine(
        status("IDLE", ZERO),
        vec![Act::Tell(status("CHECKING_FOR_UPDATE", ZERO)), Act::Tell(status("IDLE", ZERO))],
    );
    assert_eq!(update(&bus).unwrap(), Pending::Nothing);

    let bus = Bus::start();
    let _engine = bus.engine(
        status("IDLE", ZERO),
        vec![
            Act::Tell(status("CHECKING_FOR_UPDATE", ZERO)),
            Act::Tell(status("REPORTING_ERROR_EVENT", ZERO)),
            Act::Tell(status("IDLE", ZERO)),
        ],
    );
    let failed = update(&bus);
    assert!(matches!(failed, Err(UpdateError::Failed { while_doing: Operation::Checking })), "{failed:?}");
}

#[test]
fn a_restart_in_the_middle_is_survived() {
    if !have(NEEDS) {
        return;
    }
    let bus = Bus::start();
    let first = bus.engine(status("IDLE", ZERO), vec![Act::Tell(status("DOWNLOADING", NEW)), Act::Leave]);
    let waiting = std::thread::spawn({
        let socket = bus.socket().display().to_string();
        move || Engine::at(socket).update(&mut |_| true)
    });
    first.wait_for_its_end();
    // It comes back with the update pending, and has forgotten which.
    let _second = bus.engine(status("UPDATED_NEED_REBOOT", ZERO), Vec::new());
    assert_eq!(waiting.join().unwrap().unwrap(), Pending::Unknown);
}

#[test]
fn without_an_updater_the_answer_is_clear() {
    if !have(NEEDS) {
        return;
    }
    let bus = Bus::start();
    let engine = Engine::at(bus.socket().display().to_string());
    assert!(matches!(engine.status(), Err(UpdateError::Absent)));
    let nowhere = Engine::at("/nowhere/bus");
    assert!(matches!(nowhere.status(), Err(UpdateError::Bus { .. })));
    // Whoever waits may stop waiting.
    let _service = bus.engine(status("IDLE", ZERO), vec![Act::Tell(status("DOWNLOADING", NEW))]);
    let stopped = engine.update(&mut |status| status.operation != Operation::Downloading);
    assert!(matches!(stopped, Err(UpdateError::Stopped)), "{stopped:?}");
}
