//! Defects of the original, each with a test named after its number. Further ones are beside the code in question.

use landfall_model::Secret;
use landfall_model::step::Outcome;

use super::machine::{Fault, Machine};
use super::runtime;
use crate::in_place::credentials::{Credentials, Source};
use crate::in_place::flavour::Flavour;

const FLAVOURS: [Flavour; 2] = [Flavour::Rhcos, Flavour::Rhel];

/// I6: in the original `rm -f` on directories had no effect, so old state survived into the new configuration.
#[test]
fn i6_no_state_of_the_old_life_is_left() {
    for flavour in FLAVOURS {
        let machine = Machine::new(flavour, Fault::None);
        machine.run(&runtime(), None).unwrap();
        assert_eq!(machine.trees_of_the_old_life(), [] as [&str; 0], "{flavour:?}");
    }
}

/// I7: the original left the Secret, a binary and root login over SSH (`PermitRootLogin yes`) behind.
#[test]
fn i7_nothing_is_left_behind() {
    for (flavour, fault) in
        FLAVOURS.into_iter().flat_map(|flavour| [(flavour, Fault::None), (flavour, Fault::Apply)])
    {
        let machine = Machine::new(flavour, fault);
        machine.run(&runtime(), None).unwrap();
        machine.check_end("at the end");
        let left = machine.paths();
        for path in ["/etc/ssh", "/etc/armada", "/usr/local/bin/", "/var/lib/landfall/in-place/"] {
            let left: Vec<_> = left
                .iter()
                .filter(|left| left.starts_with(path) && left.rsplit('.').next() != Some("told"))
                .collect();
            assert!(left.is_empty(), "{flavour:?} {fault:?}: {left:?}");
        }
    }
}

/// I9: in the original no Kubernetes object showed the progress of a node.
#[test]
fn i9_the_cluster_is_shown_every_way_it_ends() {
    for (fault, last) in [(Fault::None, "Done"), (Fault::Apply, "RolledBack"), (Fault::Preflight, "Failed")] {
        let machine = Machine::new(Flavour::Rhcos, fault);
        machine.run(&runtime(), None).unwrap();
        let shown = machine.shown();
        assert_eq!(shown.last().map(String::as_str), Some(last), "{shown:?}");
        assert!(
            fault != Fault::None || shown.iter().any(|state| state == "Rebooting" || state == "Armed"),
            "{shown:?}"
        );
    }
}

/// I10: the original kept files under fixed names in `/tmp`, where any user can create them first. It also edited a
/// script with `sed`, which failed on special characters and on the second run.
#[test]
fn i10_no_file_is_in_tmp_and_no_character_is_special() {
    for flavour in FLAVOURS {
        let machine = Machine::new(flavour, Fault::None);
        let end = machine.run(&runtime(), None).unwrap();
        assert_eq!(end.outcome, Outcome::Done);
        for operation in machine.operations() {
            assert!(!operation.contains("/tmp"), "{operation}");
        }
    }
    let password = r#"a/b&c\d|e$f'g"h;i`j%k{l}m"#;
    let secret = serde_json::json!({"region": "r", "bootstrap_url": "https://b", "workerid": "w", "clusterid": "c",
        "bootstrap_secret": password});
    let read = Credentials::parse(&Secret::new(secret.to_string().into_bytes()), Flavour::Rhel).unwrap();
    let Source::Payload { password: found, .. } = &read.source else { panic!() };
    assert_eq!(found.expose(), password);
}

/// The endpoint is down when the attempt ends. Applying the same Secret again delivers the missed events once.
#[test]
fn progress_that_could_not_be_told_is_kept() {
    let machine = Machine::new(Flavour::Rhel, Fault::None);
    machine.progress_endpoint(false);
    let end = machine.run(&runtime(), None).unwrap();
    assert_eq!(machine.progress(), [] as [u64; 0]);
    machine.progress_endpoint(true);
    machine.label_again();
    let again = machine.run(&runtime(), None).unwrap();
    assert_eq!((again.outcome, again.applied), (end.outcome, end.applied), "answered from the ledger");
    let told = machine.progress();
    assert!(told.len() > 10 && told.is_sorted(), "{told:?}");
    machine.label_again();
    machine.run(&runtime(), None).unwrap();
    assert_eq!(machine.progress(), told, "nothing is told twice");
    machine.check_secrets("afterwards");
}

/// An event may have reached the listener without an answer yet when the work ends.
#[test]
fn each_event_is_told_once_however_slow_the_answers_are() {
    let machine = Machine::new(Flavour::Rhel, Fault::None);
    machine.progress_endpoint(true);
    machine.run(&runtime(), None).unwrap();
    let told = machine.progress();
    assert!(told.len() > 10, "{told:?}");
    assert_eq!(told, (1..=told.len() as u64).collect::<Vec<_>>());
}
