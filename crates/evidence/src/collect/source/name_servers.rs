//! Queries of each name server in `resolv.conf`: their responses and latencies.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use landfall_diagnose::Fact;

use super::endpoints;
use super::{NOT_FROM_OUTSIDE, Source};
use crate::collect::dns::{Answer, Message, Query, RecordType};
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::Sink;

/// Resolvers' limit and a few more.
const MAX_SERVERS: usize = 5;
const MAX_NAMES: usize = 8;

/// glibc waits 5 s; a server slower than this delays everything on the node.
const PATIENCE: Duration = Duration::from_secs(2);

const MAX_MESSAGE: usize = 64 << 10;
const PORT: u16 = 53;

/// The response of one server.
struct Reply {
    server: SocketAddr,
    record: RecordType,
    said: io::Result<Message>,
    elapsed: Duration,
}

pub(super) struct NameServers {
    pub(super) to: String,
    pub(super) names: Vec<String>,
}

// === impl NameServers ===

impl Source for NameServers {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        if !host.is_this_machine() {
            return Err(Trouble::Skipped(NOT_FROM_OUTSIDE));
        }
        let servers = servers(host);
        let endpoints = endpoints::api(host, sink.deadline());
        let mut names: Vec<String> = self.names.clone();
        names.extend(
            endpoints.iter().filter(|endpoint| endpoint.is_name()).map(|endpoint| endpoint.host.clone()),
        );
        names.dedup();
        let mut text = String::new();
        if servers.is_empty() {
            text += "no name server in /etc/resolv.conf\n";
        }
        if names.is_empty() {
            text += "no name to ask for: no API endpoint in this machine's configuration is a name\n";
        }
        for name in names.iter().take(MAX_NAMES) {
            let mut replies = Vec::new();
            for server in &servers {
                for record in [RecordType::A, RecordType::Aaaa] {
                    let patience = PATIENCE.min(sink.time_left()?);
                    replies.push(Reply::of(SocketAddr::new(*server, PORT), name, record, patience));
                }
            }
            text += &tell(name, &replies);
            if !servers.is_empty() {
                let has_address =
                    replies.iter().any(Reply::has_address) || !addresses_in_hosts(host, name).is_empty();
                let error = if has_address { "" } else { "no name server gave an address" };
                let (probe, target, error) = ("dns".to_owned(), name.clone(), error.to_owned());
                sink.observe(Some(Fact::Probe { probe, target, error }));
            }
        }
        sink.text(&self.to, "name servers", &text);
        Ok(())
    }
}

// === impl Reply ===

impl Reply {
    fn of(server: SocketAddr, name: &str, record: RecordType, patience: Duration) -> Self {
        let started = Instant::now();
        let said = ask(server, name, record, patience);
        Self { server, record, said, elapsed: started.elapsed() }
    }

    fn has_address(&self) -> bool {
        self.said.as_ref().is_ok_and(|message| message.answers.iter().any(|answer| address(answer).is_some()))
    }
}

/// Resolves a name: first in `/etc/hosts`, then with the first server that has an address.
pub(super) fn resolve(host: &Host, name: &str, patience: Duration) -> Vec<IpAddr> {
    if let Ok(address) = name.parse() {
        return vec![address];
    }
    let known = addresses_in_hosts(host, name);
    if !known.is_empty() {
        return known;
    }
    for server in servers(host) {
        for record in [RecordType::A, RecordType::Aaaa] {
            let answer = ask(SocketAddr::new(server, PORT), name, record, patience);
            let answers = answer.map(|message| message.answers).unwrap_or_default();
            let addresses: Vec<IpAddr> = answers.iter().filter_map(address).collect();
            if !addresses.is_empty() {
                return addresses;
            }
        }
    }
    Vec::new()
}

/// Returns the addresses of a name in `/etc/hosts`.
fn addresses_in_hosts(host: &Host, name: &str) -> Vec<IpAddr> {
    let hosts = host.fact("/etc/hosts").unwrap_or_default();
    let known = hosts.lines().filter_map(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    });
    known.collect()
}

fn address(answer: &Answer) -> Option<IpAddr> {
    match answer {
        Answer::Ipv4(address) => Some((*address).into()),
        Answer::Ipv6(address) => Some((*address).into()),
        Answer::Alias(_) | Answer::Other(_) => None,
    }
}

fn servers(host: &Host) -> Vec<IpAddr> {
    let text = host.fact("/etc/resolv.conf").unwrap_or_default();
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    // An address may have a zone suffix for its link.
    let parsed = named.filter_map(|server| server.trim().split('%').next()?.parse().ok());
    parsed.take(MAX_SERVERS).collect()
}

/// Formats one line per reply in the wording of the Go resolver, which the node's components use.
///
/// A failing server is worded differently if another one answered, because it did not cause the lookup to
/// fail.
fn tell(name: &str, replies: &[Reply]) -> String {
    let answered = replies.iter().any(Reply::has_address);
    let mut text = String::new();
    for Reply { server, record, said, elapsed } in replies {
        let mut fails = if answered { " fails, another server answers: " } else { ": " };
        let what = match said {
            Ok(message) if message.code == 3 => "no such host".to_owned(),
            Ok(message) if message.code != 0 => format!("server misbehaving ({})", message.code_name()),
            Ok(message) => {
                fails = ": ";
                let answers: Vec<String> = message.answers.iter().map(ToString::to_string).collect();
                if answers.is_empty() { "no records of this type".to_owned() } else { answers.join(", ") }
            }
            Err(error) if is_timeout(error) => "i/o timeout".to_owned(),
            Err(error) => error.to_string(),
        };
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "lookup {name} on {server}{fails}{what} ({record}, {} ms)", elapsed.as_millis());
    }
    text
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn ask(server: SocketAddr, name: &str, record: RecordType, patience: Duration) -> io::Result<Message> {
    // Only replies from the server's own address are accepted. A forged one could only mislead the reader
    // about DNS.
    let [low, high, ..] = RandomState::new().hash_one(name).to_le_bytes();
    let id = u16::from_le_bytes([low, high]);
    let query = Query { id, name: name.to_owned(), record };
    let question = query.encode().map_err(io::Error::other)?;
    let message = over_udp(server, &question, id, patience)?;
    if message.cut { over_tcp(server, &question, patience) } else { Ok(message) }
}

fn over_udp(server: SocketAddr, question: &[u8], id: u16, patience: Duration) -> io::Result<Message> {
    let any: SocketAddr =
        if server.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.send(question)?;
    let deadline = Instant::now() + patience;
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let count = socket.recv(&mut buffer)?;
        match Message::parse(&buffer[..count]) {
            // A response to another query.
            Ok(message) if message.id != id => {}
            Ok(message) => return Ok(message),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

fn over_tcp(server: SocketAddr, question: &[u8], patience: Duration) -> io::Result<Message> {
    let mut stream = TcpStream::connect_timeout(&server, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_be_bytes())?;
    stream.write_all(question)?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer)?;
    Message::parse(&answer).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    fn ask_once(server: SocketAddr, patience: Duration) -> String {
        tell("api.c1.example", &[Reply::of(server, "api.c1.example", RecordType::A, patience)])
    }

    /// Turns the query into a response with one address.
    fn answer(question: &[u8], flags: u8) -> Vec<u8> {
        let mut bytes = question.to_vec();
        bytes[2..8].copy_from_slice(&[0x81 | flags, 0x80, 0, 1, 0, u8::from(flags == 0)]);
        if flags == 0 {
            bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]);
        }
        bytes
    }

    #[test]
    fn what_each_server_said_is_told() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let server = socket.local_addr().unwrap();
        let serve = thread::spawn(move || {
            let mut buffer = [0; 512];
            let (count, from) = socket.recv_from(&mut buffer).unwrap();
            // A response to another query arrives first and is skipped.
            let mut other = answer(&buffer[..count], 0);
            other[0] ^= 0xff;
            socket.send_to(&other, from).unwrap();
            socket.send_to(&answer(&buffer[..count], 0), from).unwrap();
        });
        let line = ask_once(server, SOON);
        serve.join().unwrap();
        assert!(line.starts_with(&format!("lookup api.c1.example on {server}: 192.0.2.7 (A, ")), "{line}");
    }

    #[test]
    fn an_answer_that_does_not_fit_is_asked_for_over_tcp() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let socket = UdpSocket::bind(server).unwrap();
        let serve = thread::spawn(move || {
            let mut buffer = [0; 512];
            let (count, from) = socket.recv_from(&mut buffer).unwrap();
            socket.send_to(&answer(&buffer[..count], 2), from).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = vec![0; count + 2];
            stream.read_exact(&mut question).unwrap();
            let answer = answer(&question[2..], 0);
            stream.write_all(&u16::try_from(answer.len()).unwrap().to_be_bytes()).unwrap();
            stream.write_all(&answer).unwrap();
        });
        let line = ask_once(server, SOON);
        serve.join().unwrap();
        assert!(line.contains(": 192.0.2.7 (A, "), "{line}");
    }

    #[test]
    fn silence_is_told_as_the_go_resolver_tells_it() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let server = socket.local_addr().unwrap();
        let line = ask_once(server, Duration::from_millis(50));
        assert!(line.contains(": i/o timeout (A, "), "{line}");
    }

    #[test]
    fn a_server_that_fails_beside_one_that_answers_is_not_the_cause() {
        let reply = |code: u8, answers: Vec<Answer>| Reply {
            server: "192.0.2.1:53".parse().unwrap(),
            record: RecordType::A,
            said: Ok(Message { id: 0, cut: false, code, answers }),
            elapsed: Duration::from_millis(3),
        };
        let good = || reply(0, vec![Answer::Ipv4(Ipv4Addr::new(10, 0, 0, 7))]);
        let text = tell("a.example", &[reply(2, Vec::new())]);
        assert_eq!(text, "lookup a.example on 192.0.2.1:53: server misbehaving (SERVFAIL) (A, 3 ms)\n");
        let text = tell("a.example", &[reply(3, Vec::new()), good()]);
        assert_eq!(
            text,
            "lookup a.example on 192.0.2.1:53 fails, another server answers: no such host (A, 3 ms)\n\
             lookup a.example on 192.0.2.1:53: 10.0.0.7 (A, 3 ms)\n"
        );
    }
}
