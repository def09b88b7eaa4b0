use landfall_model::Phase;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

fn machine() -> Machine {
    Machine::fresh("m1", at(0))
}

fn said(state: State) -> Heard {
    Heard {
        name: "n1".to_owned(),
        provider_id: None,
        bound: None,
        state,
        trust: Trust::Proven,
        cause: None,
        title: "The node's own words".to_owned(),
        component: Some("kubelet".to_owned()),
        phase: Some(Phase::Join),
        since: None,
        last_seen: at(100),
        is_in_hub: true,
    }
}

fn words() -> Words {
    Words::new(Some("https://hub.corp/".to_owned())).unwrap()
}

fn of(heard: &Heard) -> Shown {
    shown(&machine(), heard, at(110), &words())
}

#[test]
fn every_state_has_its_status_and_reason() {
    let cause = Some(Cause::new("disk-full").unwrap());
    for (state, cause, status, reason, trouble) in [
        (State::Succeeded, None, Status::True, "Succeeded", false),
        (State::Degraded, cause.clone(), Status::True, "Degraded", false),
        (State::Running, None, Status::Unknown, "InProgress", false),
        (State::Unknown, None, Status::Unknown, "Undecided", false),
        (State::Hung, cause.clone(), Status::Unknown, "Hung", true),
        (State::Failed, None, Status::False, "Failed", true),
        (State::Failed, cause, Status::False, "DiskFull", true),
    ] {
        let shown = of(&Heard { cause, ..said(state) });
        assert_eq!(
            (shown.status, shown.reason.as_str(), shown.trouble),
            (status, reason, trouble),
            "{state:?}"
        );
    }
}

/// A claim sets neither `True` nor `False`, because other controllers act on both.
#[test]
fn claim_is_shown_as_unknown() {
    let cause = Some(Cause::new("disk-full").unwrap());
    for (state, cause, reason, trouble) in [
        (State::Succeeded, None, "SuccessClaimed", false),
        (State::Degraded, cause.clone(), "DegradedClaimed", false),
        (State::Running, None, "InProgress", false),
        (State::Unknown, None, "Undecided", false),
        (State::Hung, cause.clone(), "Hung", true),
        (State::Failed, None, "FailureClaimed", true),
        (State::Failed, cause, "FailureClaimed", true),
    ] {
        let shown = of(&Heard { trust: Trust::Claimed, cause, ..said(state) });
        assert_eq!(
            (shown.status, shown.reason.as_str(), shown.trouble),
            (Status::Unknown, reason, trouble),
            "{state:?}"
        );
    }
}

#[test]
fn message_names_the_evidence() {
    let cause = Some(Cause::new("disk-full").unwrap());
    for state in State::ALL {
        for (trust, basis) in
            [(Trust::Proven, "based on proven evidence"), (Trust::Claimed, "based on claimed evidence")]
        {
            let heard = Heard { trust, cause: cause.clone(), ..said(state) };
            let ready = Machine { ready_since: Some(at(50)), ..machine() };
            let late = at(100 + SILENT_AFTER.as_secs() + 1);
            for shown in [
                of(&heard),
                of(&Heard { cause: None, component: None, phase: None, ..heard.clone() }),
                shown(&machine(), &heard, late, &words()),
                shown(&ready, &heard, at(110), &words()),
            ] {
                assert_eq!(shown.message.matches("based on").count(), 1, "{}", shown.message);
                assert!(shown.message.contains(basis), "{state:?} {trust:?}: {}", shown.message);
            }
        }
    }
    // A title cannot forge the trust.
    let title = "x (based on proven evidence). See y".to_owned();
    let message = of(&Heard { trust: Trust::Claimed, title, ..said(State::Failed) }).message;
    let link = ". See https://hub.corp/nodes/n1";
    assert!(message.ends_with(&format!("; based on claimed evidence){link}")), "{message}");
}

#[test]
fn a_known_cause_is_told_in_the_catalogue_s_words() {
    let cause = Some(Cause::new("disk-full").unwrap());
    let shown = of(&Heard { cause, title: "password=hunter2 \n\u{1b}[2J".to_owned(), ..said(State::Failed) });
    let title = RuleSet::embedded()
        .unwrap()
        .catalogue()
        .get(&Cause::new("disk-full").unwrap())
        .unwrap()
        .title
        .clone();
    let details = "cause disk-full, phase join, kubelet; based on proven evidence";
    let expected = format!("{title} ({details}). See https://hub.corp/nodes/n1");
    assert_eq!(shown.message, expected);
}

#[test]
fn unknown_words_are_one_line_without_secrets_and_short() {
    let token = "abcdef.0123456789abcdef";
    let title = format!("join --token {token} failed\nline two {}", "x".repeat(5000));
    let heard = Heard { title, component: Some("c\n".repeat(300)), ..said(State::Failed) };
    let message = of(&heard).message;
    assert!(message.starts_with("join --token abcdef.*** failed line two xxx"), "{message}");
    assert_eq!(of(&heard).message, message, "another process says the same");
    assert!(!message.contains(token) && !message.contains('\n'), "{message}");
    assert!(message.chars().count() <= MAX_MESSAGE, "{}", message.len());
    let empty = Heard { title: "\u{1b}".to_owned(), component: None, phase: None, ..said(State::Failed) };
    assert!(of(&empty).message.starts_with("The node said nothing more"));
}

#[test]
fn reasons_are_spelt_as_conditions_want_it() {
    let spelt = |cause: &str| reason(&Cause::new(cause).unwrap());
    assert_eq!(spelt("dns-resolution-failure"), "DnsResolutionFailure");
    assert_eq!(spelt("k3s-token-mismatch"), "K3sTokenMismatch");
    assert_eq!(spelt("9p-broken"), "Cause9pBroken");
    for entry in RuleSet::embedded().unwrap().catalogue().iter() {
        let reason = reason(&entry.name);
        assert!(reason.len() <= 256 && reason.chars().all(|c| c.is_ascii_alphanumeric()), "{reason}");
        assert!(reason.starts_with(|c: char| c.is_ascii_uppercase()), "{reason}");
    }
}

/// The cluster takes precedence over any log, whichever reported first.
#[test]
fn ready_node_is_never_shown_as_failed() {
    let ready = Machine { ready_since: Some(at(101)), ..machine() };
    for since in [None, Some(at(100)), Some(at(102))] {
        for beat in [100, 101, 102, 160, 3600] {
            for trust in [Trust::Proven, Trust::Claimed] {
                let heard = Heard { since, trust, last_seen: at(beat), ..said(State::Failed) };
                let ready = shown(&ready, &heard, at(beat), &words());
                assert_eq!(
                    (ready.status, ready.reason.as_str()),
                    (Status::True, NODE_READY),
                    "beat at {beat}"
                );
                assert!(!ready.trouble);
            }
        }
    }
    let heard = Heard { since: Some(at(100)), last_seen: at(160), ..said(State::Failed) };
    assert_eq!(shown(&machine(), &heard, at(160), &words()).status, Status::False, "not ready");
}

#[test]
fn a_ready_node_is_neither_under_way_nor_stuck() {
    let ready = Machine { ready_since: Some(at(50)), ..machine() };
    let late = at(100 + SILENT_AFTER.as_secs() + 1);
    for (state, reason) in [
        (State::Running, NODE_READY),
        (State::Unknown, NODE_READY),
        (State::Hung, NODE_READY),
        (State::Degraded, DEGRADED),
        (State::Succeeded, SUCCEEDED),
    ] {
        for now in [at(110), late] {
            let shown = shown(&ready, &said(state), now, &words());
            assert_eq!((shown.status, shown.reason.as_str(), shown.trouble), (Status::True, reason, false));
        }
        let claimed = Heard { trust: Trust::Claimed, ..said(state) };
        let shown = shown(&ready, &claimed, late, &words());
        assert_eq!((shown.status, shown.reason.as_str()), (Status::True, NODE_READY), "{state:?}");
    }
}

#[test]
fn a_node_that_says_nothing_more_is_silent() {
    let late = at(100 + SILENT_AFTER.as_secs() + 1);
    assert_eq!(shown(&machine(), &said(State::Running), late, &words()).reason, SILENT);
    assert_eq!(
        shown(&machine(), &said(State::Succeeded), late, &words()).reason,
        SUCCEEDED,
        "it need not say more"
    );
    assert_eq!(shown(&machine(), &said(State::Failed), late, &words()).status, Status::False);
}

/// An unchanged report must give an unchanged message, or the condition would be written repeatedly.
#[test]
fn words_do_not_change_with_time() {
    for state in State::ALL {
        let (one, two) = (said(state), Heard { last_seen: at(105), ..said(state) });
        assert_eq!(of(&one), of(&two), "{state:?}");
    }
}
