use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Mutex};

use landfall_model::step::{Outcome, Start, StepState, StepTitle};
use landfall_net::Notify;

use super::*;

fn event(sequence: u64, part: u32, what: Happening) -> Event {
    Event {
        format: FORMAT,
        attempt: "a".into(),
        sequence,
        part,
        time: Timestamp::UNIX_EPOCH,
        boot_id: "b".into(),
        what,
    }
}

fn opened() -> Event {
    let steps = [("fetch", "Fetch the manifest"), ("write", "Write `kubelet.env`")];
    let steps = steps.map(|(name, title)| StepTitle { name: name.into(), title: title.into() }).to_vec();
    event(1, 0, Happening::Opened { run: "prepare".into(), steps, start: Start::Fresh })
}

fn state(sequence: u64, state: StepState) -> Event {
    event(sequence, 0, Happening::Step { step: "fetch".into(), state, attempts: 1 })
}

fn progress(sequence: u64, part: u32, done: u64) -> Event {
    let what = Happening::Progress { step: "fetch".into(), done, total: Some(200), unit: Unit::Bytes };
    event(sequence, part, what)
}

#[tokio::test(start_paused = true)]
async fn a_slow_consumer_loses_progress_and_is_sent_to_the_ledger_for_states() {
    let (mut queue, mut receiver) = queue();
    queue.take(&state(1, StepState::Applying));
    for part in 1..=100 {
        queue.take(&progress(1, part, u64::from(part)));
    }
    for sequence in 2..=1000 {
        queue.take(&state(sequence, StepState::Applying));
    }
    queue.take(&progress(1000, 1, 7));
    assert_eq!(receive(&mut receiver).await, Some(Delivery::Event(state(1, StepState::Applying))));
    let mut last = 1;
    loop {
        match receive(&mut receiver).await.unwrap() {
            Delivery::Event(event) => {
                assert_eq!(event.place(), (last + 1, 0), "in order, without a gap");
                last = event.sequence;
            }
            Delivery::Replay { after } => {
                assert_eq!(after, last, "replay begins where delivery ended");
                break;
            }
        }
    }
    assert_eq!(last, 256);
    assert_eq!(receiver.dropped_progress(), 101);
    // After it has caught up, it receives events again, including the last one.
    queue.take(&state(1001, StepState::Done));
    queue.take(&progress(1001, 1, 8));
    drop(queue);
    assert_eq!(receive(&mut receiver).await, Some(Delivery::Event(state(1001, StepState::Done))));
    assert_eq!(receive(&mut receiver).await, Some(Delivery::Event(progress(1001, 1, 8))));
    assert_eq!(receive(&mut receiver).await, None);
}

/// The timeout turns a missing delivery into a failure rather than a hanging test.
async fn receive(receiver: &mut Receiver) -> Option<Delivery> {
    tokio::time::timeout(std::time::Duration::from_secs(1), receiver.receive()).await.unwrap()
}

#[test]
fn progress_takes_its_place_behind_the_last_state() {
    #[derive(Clone, Default)]
    struct Heard(Arc<Mutex<Vec<Event>>>);
    impl Sink for Heard {
        fn take(&mut self, event: &Event) {
            self.0.lock().unwrap().push(event.clone());
        }
    }
    let heard = Heard::default();
    let stream = EventStream::new(vec![Box::new(heard.clone())]);
    stream.progress("fetch", 1, None, Unit::Bytes);
    assert!(heard.0.lock().unwrap().is_empty(), "no place to put it yet");
    stream.tell(&[opened(), state(2, StepState::Applying)]);
    stream.progress("fetch", 1, None, Unit::Bytes);
    stream.progress("fetch", 2, None, Unit::Bytes);
    stream.tell(&[state(3, StepState::Done)]);
    stream.progress("write", 1, None, Unit::Bytes);
    let places: Vec<_> = heard.0.lock().unwrap().iter().map(Event::place).collect();
    assert_eq!(places, [(1, 0), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1)]);
}

/// Returns the messages that a service manager receives for the run.
fn statuses(socket: &OsStr, manager: &UnixDatagram) -> Vec<String> {
    let mut notify = StatusLine::new(Notify::new(socket).unwrap());
    manager.set_nonblocking(true).unwrap();
    notify.take(&opened());
    notify.take(&state(2, StepState::Applying));
    for done in [0, 1, 2, 3, 100] {
        notify.take(&progress(2, 1, done));
    }
    let failed = StepState::Failed { reason: "two\nlines".into(), retry: landfall_model::step::Retry::Now };
    notify.take(&state(3, failed));
    notify.take(&event(4, 0, Happening::Ended { outcome: Outcome::Done }));
    let mut told = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(length) = manager.recv(&mut buffer) {
        told.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
    }
    told
}

#[test]
fn the_manager_hears_one_line_per_change_on_both_kinds_of_socket() {
    let expected = [
        "STATUS=1/2 Fetch the manifest",
        "STATUS=1/2 Fetch the manifest: 0 %",
        "STATUS=1/2 Fetch the manifest: 1 %",
        "STATUS=1/2 Fetch the manifest: 50 %",
        "STATUS=1/2 Fetch the manifest: failed, two lines",
        "STATUS=Done",
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    assert_eq!(statuses(path.as_os_str(), &manager), expected);

    let name = format!("landfall-steps-test-{}", std::process::id());
    let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let socket = format!("@{name}");
    assert_eq!(statuses(socket.as_ref(), &manager), expected);
}

#[test]
fn a_manager_that_is_gone_or_does_not_read_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let mut notify = StatusLine::new(Notify::new(path.as_os_str()).unwrap());
    notify.take(&opened());
    notify.take(&state(2, StepState::Applying));
    let _never_reads = UnixDatagram::bind(&path).unwrap();
    for sequence in 3..5000 {
        notify.take(&state(sequence, StepState::Waiting { on: sequence.to_string() }));
    }
    assert!(Notify::new("relative/path".as_ref()).is_err());
    assert!(Notify::new("".as_ref()).is_err());
}

#[test]
fn a_renderer_is_told_numbers_and_titles() {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);
    impl Renderer for Lines {
        fn step(&mut self, number: usize, count: usize, title: &str, state: &StepState) {
            self.0.lock().unwrap().push(format!("{number}/{count} {title} {}", state.name()));
        }
        fn progress(&mut self, number: usize, _: usize, _: &str, done: u64, total: Option<u64>, _: Unit) {
            self.0.lock().unwrap().push(format!("{number} {done} of {total:?}"));
        }
        fn ended(&mut self, outcome: &Outcome) {
            self.0.lock().unwrap().push(format!("{outcome:?}"));
        }
    }
    let lines = Lines::default();
    let mut terminal = Terminal::new(lines.clone());
    terminal.take(&state(1, StepState::Applying));
    for event in [opened(), state(2, StepState::Applying), progress(2, 1, 5)] {
        terminal.take(&event);
    }
    terminal.take(&event(3, 0, Happening::Ended { outcome: Outcome::Done }));
    assert_eq!(*lines.0.lock().unwrap(), ["1/2 Fetch the manifest applying", "1 5 of Some(200)", "Done"]);
}

#[test]
fn state_events_are_lines_of_a_file_within_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let mut file = EventFile::at(&path);
    file.take(&opened());
    file.take(&progress(1, 1, 5));
    file.take(&state(2, StepState::Done));
    let text = std::fs::read_to_string(&path).unwrap();
    let sequences: Vec<u64> =
        text.lines().map(|line| serde_json::from_str::<Event>(line).unwrap().sequence).collect();
    assert_eq!(sequences, [1, 2], "state events only");
    // Another process continues where this one ended.
    let mut again = EventFile::at(&path);
    let long = StepState::Failed { reason: "x".repeat(2000), retry: landfall_model::step::Retry::Now };
    for sequence in 3..1200 {
        again.take(&state(sequence, long.clone()));
    }
    for name in ["events.jsonl", "events.jsonl.1"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.len() <= 1024 * 1024 && text.ends_with('\n'), "{name} has {} bytes", text.len());
        assert!(text.lines().all(|line| serde_json::from_str::<Event>(line).is_ok()), "{name}");
    }
    // A link created in advance is not followed, and does not stop the run.
    let planted = folder.path().join("planted.jsonl");
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), &planted).unwrap();
    EventFile::at(&planted).take(&opened());
    assert!(!folder.path().join("elsewhere").exists());
}
