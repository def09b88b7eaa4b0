use super::*;

fn status(operation: Operation, checked: i64, version: &str) -> Seen {
    Seen::Status(Status {
        last_checked: checked,
        progress: 0.0,
        operation,
        new_version: version.to_owned(),
        new_size: 0,
    })
}

/// Processes the observations, one second apart, and returns the first result other than `Watch` or `Ask`.
fn watch(seen: &[Seen]) -> Result<(u32, Next), UpdateError> {
    let mut attempt = Attempt::new();
    let mut asked = 0;
    for (second, seen) in seen.iter().enumerate() {
        match attempt.see(seen, Duration::from_secs(second as u64))? {
            Next::Watch => {}
            Next::Ask => asked += 1,
            end @ Next::End(_) => return Ok((asked, end)),
        }
    }
    Ok((asked, Next::Watch))
}

const ZERO: &str = "0.0.0";

#[test]
fn an_update_is_found() {
    let seen = [
        status(Operation::Idle, 1, ZERO),
        status(Operation::Checking, 1, ZERO),
        status(Operation::Available, 2, "2001.0.0"),
        status(Operation::Downloading, 2, "2001.0.0"),
        status(Operation::Finalizing, 2, "2001.0.0"),
        status(Operation::NeedReboot, 2, "2001.0.0"),
    ];
    let version = Pending::Version("2001.0.0".parse().unwrap());
    assert_eq!(watch(&seen).unwrap(), (1, Next::End(version)));
}

#[test]
fn no_update_is_no_failure() {
    let seen = [
        status(Operation::Idle, 1, ZERO),
        status(Operation::Idle, 1, ZERO),
        status(Operation::Checking, 1, ZERO),
        status(Operation::Idle, 2, ZERO),
    ];
    assert_eq!(watch(&seen).unwrap(), (1, Next::End(Pending::Nothing)));
    // The update was too quick to be observed, but the time of the last check changed.
    let seen = [status(Operation::Idle, 1, ZERO), status(Operation::Idle, 2, ZERO)];
    assert_eq!(watch(&seen).unwrap(), (1, Next::End(Pending::Nothing)));
}

/// The first defect of the original: it treated the idle state after an error as "no update".
#[test]
fn defect_01_a_failed_update_does_not_look_like_none() {
    let seen = [
        status(Operation::Idle, 1, ZERO),
        status(Operation::Checking, 1, ZERO),
        status(Operation::ReportingError, 1, ZERO),
        status(Operation::Idle, 1, ZERO),
    ];
    assert!(matches!(watch(&seen), Err(UpdateError::Failed { while_doing: Operation::Checking })));
    // The error state itself was not observed.
    let seen = [
        status(Operation::Idle, 1, ZERO),
        status(Operation::Downloading, 2, "2001.0.0"),
        status(Operation::Idle, 2, ZERO),
    ];
    assert!(matches!(watch(&seen), Err(UpdateError::Failed { while_doing: Operation::Downloading })));
}

/// The other half of the first defect: the original waited without limit for an update_engine that had restarted.
#[test]
fn defect_01_a_restart_is_seen_and_the_update_asked_for_again() {
    let seen = [
        status(Operation::Idle, 1, ZERO),
        status(Operation::Downloading, 2, "2001.0.0"),
        Seen::Gone,
        Seen::Nothing,
        status(Operation::Idle, 0, ZERO),
        status(Operation::Checking, 0, ZERO),
        status(Operation::NeedReboot, 3, "2001.0.0"),
    ];
    assert!(matches!(watch(&seen).unwrap(), (2, Next::End(Pending::Version(_)))));
    // After its restart the update is pending, but its version is unknown.
    let seen = [
        status(Operation::Idle, 1, ZERO),
        status(Operation::Finalizing, 2, "2001.0.0"),
        Seen::Gone,
        status(Operation::NeedReboot, 0, ZERO),
    ];
    assert_eq!(watch(&seen).unwrap(), (1, Next::End(Pending::Unknown)));
}

#[test]
fn an_update_engine_that_keeps_dying_is_given_up() {
    let mut seen = vec![status(Operation::Idle, 1, ZERO)];
    for _ in 0..=MAX_RESTARTS {
        seen.extend([Seen::Gone, status(Operation::Idle, 1, ZERO)]);
    }
    assert!(matches!(watch(&seen), Err(UpdateError::Restarts)));
}

#[test]
fn every_wait_has_an_end() {
    let at = Duration::from_secs;
    let idle = status(Operation::Idle, 1, ZERO);

    let mut attempt = Attempt::new();
    assert_eq!(attempt.see(&idle, at(0)).unwrap(), Next::Ask);
    assert_eq!(attempt.see(&Seen::Nothing, at(59)).unwrap(), Next::Watch);
    assert!(matches!(attempt.see(&idle, at(61)), Err(UpdateError::NotBegun)));

    let mut attempt = Attempt::new();
    attempt.see(&idle, at(0)).unwrap();
    attempt.see(&Seen::Gone, at(10)).unwrap();
    assert_eq!(attempt.see(&Seen::Nothing, at(99)).unwrap(), Next::Watch);
    assert!(matches!(attempt.see(&Seen::Nothing, at(101)), Err(UpdateError::Gone)));

    let mut attempt = Attempt::new();
    attempt.see(&idle, at(0)).unwrap();
    attempt.see(&status(Operation::Downloading, 1, "2001.0.0"), at(5)).unwrap();
    let silent = attempt.see(&Seen::Nothing, SILENCE_LIMIT + at(6));
    assert!(matches!(silent, Err(UpdateError::Silent { while_doing: Operation::Downloading })));

    assert!(matches!(Attempt::new().see(&idle, TOTAL_LIMIT + at(1)), Err(UpdateError::Late)));
}

/// The second defect of the original: it treated `0.0.0` as an operating system too old to need anything.
#[test]
fn defect_02_a_pending_update_without_a_version_is_not_an_old_system() {
    for version in [ZERO, "0.0.0.0", "", "rubbish"] {
        let Seen::Status(status) = status(Operation::NeedReboot, 1, version) else { unreachable!() };
        assert_eq!(status.pending(), Pending::Unknown, "{version}");
    }
}
