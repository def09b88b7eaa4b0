//! The real NATS server with JetStream: optional TLS, mandatory token.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use landfall_pki::{Authority, Leaf, Purpose};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Binary, Need, Process, free_port};

const START_LIMIT: Duration = Duration::from_mins(1);
const ANSWER_LIMIT: Duration = Duration::from_mins(1);
const TOKEN: &str = "lights-of-the-harbour";

/// A server that runs until dropped.
#[derive(Debug)]
pub struct NatsServer {
    port: u16,
    directory: TempDir,
    _process: Process,
}

// === impl NatsServer ===

impl NatsServer {
    pub const NEEDS: &'static [Need] = &[Need::Built(Binary::NatsServer)];

    pub fn start() -> Result<Self> {
        let directory = tempfile::tempdir().context("make a folder for a NATS server")?;
        let path = |name: &str| directory.path().join(name);
        let authority = Authority::new("nats authority", 7)?;
        let names = [Ipv4Addr::LOCALHOST.to_string()];
        let pair = authority.issue(&Leaf::new("nats", Purpose::Serve).names(names))?;
        std::fs::write(path("tls.crt"), &pair.certificate)?;
        std::fs::write(path("tls.key"), pair.key.expose())?;
        std::fs::write(path("ca.crt"), authority.certificate())?;
        std::fs::write(path("login"), format!("{TOKEN}\n"))?;
        std::fs::write(path("wrong-login"), "somebody\nelse\n")?;
        let port = free_port()?;
        // NATS configuration accepts JSON.
        let config = json!({
            "listen": format!("127.0.0.1:{port}"),
            "authorization": {"token": TOKEN},
            "allow_non_tls": true,
            "tls": {"cert_file": path("tls.crt"), "key_file": path("tls.key")},
            "jetstream": {"store_dir": path("jetstream")},
        });
        std::fs::write(path("nats.conf"), config.to_string())?;
        let program = Binary::NatsServer.path()?;
        let mut process = Process::start("nats-server", &program, directory.path(), |command| {
            command.arg("-c").arg(path("nats.conf"));
        })?;
        process.wait_until("the NATS server to answer", START_LIMIT, || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        })?;
        Ok(Self { port, directory, _process: process })
    }

    /// Returns the URL, `tls://…`.
    pub fn url(&self) -> String {
        format!("tls://127.0.0.1:{}", self.port)
    }

    /// Returns the CA certificate that clients must trust.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.crt")
    }

    /// Returns a file with the token.
    pub fn login(&self) -> PathBuf {
        self.directory.path().join("login")
    }

    /// Returns a file with invalid credentials.
    pub fn wrong_login(&self) -> PathBuf {
        self.directory.path().join("wrong-login")
    }

    /// Creates a stream for the subjects.
    pub fn create_stream(&self, name: &str, subjects: &str) -> Result<()> {
        let stream = json!({"name": name, "subjects": [subjects], "storage": "file"});
        let answer = self.ask(&format!("$JS.API.STREAM.CREATE.{name}"), &stream)?;
        ensure!(answer.get("error").is_none(), "no stream was made: {answer}");
        Ok(())
    }

    /// Returns the messages of a stream in order: subjects and bodies.
    pub fn messages(&self, stream: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let info = self.ask(&format!("$JS.API.STREAM.INFO.{stream}"), &json!({}))?;
        let last = info["state"]["last_seq"].as_u64().context("a stream tells its last message")?;
        let message = |sequence: u64| -> Result<(String, Vec<u8>)> {
            let message = self.ask(&format!("$JS.API.STREAM.MSG.GET.{stream}"), &json!({"seq": sequence}))?;
            let message = &message["message"];
            let subject = message["subject"].as_str().context("a message has a subject")?;
            let body = BASE64.decode(message["data"].as_str().context("a message has a body")?)?;
            Ok((subject.to_owned(), body))
        };
        (1..=last).map(message).collect()
    }

    /// Returns the number of unacknowledged and undelivered messages of a durable consumer.
    pub fn pending(&self, stream: &str, consumer: &str) -> Result<u64> {
        let info = self.ask(&format!("$JS.API.CONSUMER.INFO.{stream}.{consumer}"), &json!({}))?;
        let count = |name: &str| info[name].as_u64().context("a consumer tells what is pending");
        Ok(count("num_ack_pending")? + count("num_pending")?)
    }

    /// Sends one request on a separate connection.
    fn ask(&self, subject: &str, question: &Value) -> Result<Value> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).context("reach the NATS server")?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let mut reader = BufReader::new(stream);
        let (login, question) = (json!({"verbose": false, "auth_token": TOKEN}), question.to_string());
        let text = format!(
            "CONNECT {login}\r\nSUB _INBOX.testkit 1\r\nPUB {subject} _INBOX.testkit {}\r\n{question}\r\n",
            question.len()
        );
        reader.get_mut().write_all(text.as_bytes())?;
        loop {
            let mut line = String::new();
            ensure!(reader.read_line(&mut line)? > 0, "the NATS server hung up");
            if line.starts_with("MSG ") {
                let length = line.split_ascii_whitespace().next_back().unwrap_or_default().parse()?;
                let mut answer = vec![0; length];
                reader.read_exact(&mut answer)?;
                return serde_json::from_slice(&answer).context("an answer is JSON");
            }
            if line.starts_with("-ERR") {
                bail!("the NATS server said {line}");
            }
        }
    }
}
