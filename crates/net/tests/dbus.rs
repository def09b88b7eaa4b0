//! Tests with fake peers. The crates that use a real bus test it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use landfall_net::dbus::{Connection, DbusError, Peer, Value};

const SOON: Duration = Duration::from_secs(20);
const RETURN: u8 = 2;
const ERROR: u8 = 3;

/// Starts a program that authenticates every client, returns the same response to everything, and reports the requests.
fn program(answer: impl Fn(u32) -> Vec<u8> + Send + 'static) -> (UnixStream, Receiver<Vec<u8>>) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (tell, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let mut begun = Vec::new();
        let mut is_in = false;
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = theirs.read(&mut piece) {
            begun.extend_from_slice(&piece[..count]);
            let begin = begun.windows(7).position(|word| word == b"BEGIN\r\n");
            if let Some(at) = begin.filter(|_| !is_in) {
                is_in = true;
                begun.drain(..at + 7);
                theirs.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n").unwrap();
            }
            if is_in && begun.len() >= 16 {
                let serial = u32::from_le_bytes(begun[8..12].try_into().unwrap());
                let asked = std::mem::take(&mut begun);
                if theirs.write_all(&answer(serial)).is_err() || tell.send(asked).is_err() {
                    return;
                }
            }
        }
    });
    (ours, heard)
}

/// Returns the sender field that systemd sets on its own socket. On a bus it could not be the name of a sender.
fn sender() -> Vec<u8> {
    [&[7, 1, b's', 0, 24, 0, 0, 0][..], b"org.freedesktop.systemd1", &[0; 8]].concat()
}

/// Builds a message; the length of each header field is a multiple of eight bytes.
fn message(kind: u8, serial: u32, fields: &[&[u8]], body: &[u8]) -> Vec<u8> {
    let mut head = vec![5, 1, b'u', 0];
    head.extend(serial.to_le_bytes());
    head.extend(fields.concat());
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_le_bytes();
    let mut message = vec![b'l', kind, 1, 1];
    message.extend([length(body), 1_u32.to_le_bytes(), length(&head)].concat());
    message.extend(head);
    message.resize(message.len().next_multiple_of(8), 0);
    message.extend(body);
    message
}

fn ask(connection: &mut Connection) -> Result<Vec<Value>, DbusError> {
    connection.call("d.e", "/f", "i.j", "Method", &["one", "three"])
}

#[test]
fn a_program_is_asked_and_its_answer_read() {
    // a{sv} with one entry: "A" -> variant u 5
    let body = [16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, b'A', 0, 1, b'u', 0, 0, 0, 0, 5, 0, 0, 0];
    let signature = [8, 1, b'g', 0, 5, b'a', b'{', b's', b'v', b'}', 0];
    let (stream, heard) = program(move |serial| message(RETURN, serial, &[&sender(), &signature], &body));
    let mut connection = Connection::open(stream, Peer::Program, SOON).unwrap();
    for _ in 0..2 {
        let values = ask(&mut connection).unwrap();
        let entry = Value::Entry(Box::new((Value::Text("A".to_owned()), Value::Unsigned(5))));
        assert_eq!(values, [Value::Array(vec![entry])]);
        assert_eq!(values[0].to_string(), "A=5");
        let asked = heard.recv().unwrap();
        for word in ["d.e", "/f", "i.j", "Method", "one", "three"] {
            assert!(asked.windows(word.len()).any(|found| found == word.as_bytes()), "{word}");
        }
    }
}

#[test]
fn what_failed_has_a_name() {
    let name = b"d.e.Odd";
    let field = [&[4, 1, b's', 0, 7, 0, 0, 0][..], name, &[0]].concat();
    let signature = [8, 1, b'g', 0, 1, b's', 0];
    let body = [&[3, 0, 0, 0][..], b"why", &[0]].concat();
    let (stream, _heard) = program(move |serial| message(ERROR, serial, &[&field, &signature], &body));
    let mut connection = Connection::open(stream, Peer::Program, SOON).unwrap();
    let failed = ask(&mut connection).unwrap_err();
    assert!(
        matches!(&failed, DbusError::Failed { method, name, error } if (method.as_str(), name.as_str(), error.as_str()) == ("Method", "d.e.Odd", "why")),
        "{failed:?}"
    );
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let begun = Instant::now();
    let short = Duration::from_millis(100);
    let (silent, _theirs) = UnixStream::pair().unwrap();
    assert!(matches!(Connection::open(silent, Peer::Bus, short), Err(DbusError::TimedOut)));
    let (stream, _heard) = program(|_| Vec::new());
    let mut connection = Connection::open(stream, Peer::Program, SOON).unwrap();
    connection.extend(short);
    assert!(matches!(ask(&mut connection), Err(DbusError::TimedOut)));
    assert_eq!(connection.next_signal(short).unwrap(), None);
    assert!(begun.elapsed() < SOON);
}

#[test]
fn odd_words_are_survived() {
    let texts = [b"MALFORMED".repeat(9), vec![0; 64], vec![255; 64], [b'l', 2, 1, 1].repeat(16)];
    for text in texts {
        for cut in [text.len(), text.len() / 2] {
            let said = text[..cut].to_vec();
            let (stream, _heard) = program(move |_| said.clone());
            let mut connection = Connection::open(stream, Peer::Program, SOON).unwrap();
            connection.extend(Duration::from_millis(200));
            assert!(ask(&mut connection).is_err());
        }
    }
}
