//! `landfall node prepare` with a bucket behind a proxy.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use landfall_testkit::{Need, Process, free_port, have};

use crate::command::Run;
use crate::node_prepare::{IMAGE, Node};

/// A forwarding proxy: `CONNECT`, then bytes in both directions.
struct Proxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// With a status, it answers every request with that status.
    fn start(refusal: Option<u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let shared = Arc::clone(&asked);
        // The thread ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || forward(stream, refusal, &shared));
            }
        });
        Self { address, asked }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn forward(client: TcpStream, refusal: Option<u16>, asked: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let mut request = String::new();
    reader.read_line(&mut request).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim_end().is_empty() {
            break;
        }
    }
    asked.lock().unwrap().push(request.trim_end().to_owned());
    let mut client = client;
    if let Some(status) = refusal {
        let answer = format!("HTTP/1.1 {status} no\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        return client.write_all(answer.as_bytes()).ok();
    }
    let server = TcpStream::connect(request.strip_prefix("CONNECT ")?.split(' ').next()?).ok()?;
    client.write_all(b"HTTP/1.1 200 go on\r\n\r\n").ok()?;
    let (mut up_from, mut up_to) = (reader, server.try_clone().ok()?);
    let up = std::thread::spawn(move || {
        let _ = std::io::copy(&mut up_from, &mut up_to);
        let _ = up_to.shutdown(Shutdown::Write);
    });
    let mut server = server;
    let _ = std::io::copy(&mut server, &mut client);
    let _ = client.shutdown(Shutdown::Both);
    up.join().ok()
}

fn run(node: &Node, environment: &[(&str, &str)], more: &[&str]) -> Run {
    let mut command = node.command(&["prepare"], more);
    command.envs(environment.iter().copied()).arg("--no-verify-signatures");
    command.output().unwrap().into()
}

#[test]
fn downloads_go_through_the_proxy_of_the_environment() {
    for name in ["https_proxy", "HTTPS_PROXY", "all_proxy"] {
        let node = Node::new();
        let proxy = Proxy::start(None);
        let prepared = run(&node, &[(name, &proxy.url())], &[]);
        assert_eq!(prepared.code, 100, "{name}: {prepared:?}");
        let asked = proxy.asked();
        let connect = format!("CONNECT {} HTTP/1.1", node.bucket.address());
        assert!(asked.len() >= 2 && asked.iter().all(|line| *line == connect), "{name}: {asked:?}");
    }
    // Hosts in `no_proxy` are reached directly.
    let node = Node::new();
    let proxy = Proxy::start(None);
    let direct = [("https_proxy", proxy.url()), ("no_proxy", "127.0.0.1,.corp".to_owned())];
    let direct: Vec<(&str, &str)> = direct.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let prepared = run(&node, &direct, &[]);
    assert_eq!((prepared.code, proxy.asked().len()), (100, 0), "{prepared:?}");
}

#[test]
fn a_proxy_that_refuses_or_is_gone_is_told_in_one_line() {
    let gone = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    for url in [Proxy::start(Some(407)).url(), Proxy::start(Some(403)).url(), gone] {
        let node = Node::new();
        let refused = run(&node, &[("https_proxy", &url)], &["--dry-run"]);
        let lines: Vec<&str> = refused.stderr.lines().filter(|line| !line.starts_with('{')).collect();
        assert_eq!((refused.code, lines.len()), (69, 2), "{refused:?}");
        assert!(
            lines[0].starts_with("error: cannot find out what this node needs: cannot fetch"),
            "{lines:?}"
        );
        assert!(lines[1].contains("proxies are read from `https_proxy`"), "{lines:?}");
        assert!(!node.has("root/var"), "something was written");
    }
}

/// tinyproxy, which requires a name and a password.
#[test]
fn a_real_proxy_takes_its_credentials_and_lets_downloads_through() {
    if !have(&[Need::Program("tinyproxy")]) {
        return;
    }
    let node = Node::new();
    let port = free_port().unwrap();
    let config = node.bench.file(
        "tinyproxy.conf",
        format!("Port {port}\nListen 127.0.0.1\nAllow 127.0.0.1\nTimeout 600\nLogLevel Connect\nBasicAuth user open-sesame\n"),
    );
    let mut proxy =
        Process::start("tinyproxy", Path::new("/usr/bin/tinyproxy"), node.bench.path(), |command| {
            command.arg("-d").arg("-c").arg(&config);
        })
        .unwrap();
    proxy
        .wait_until("the proxy to listen", Duration::from_secs(120), || {
            TcpStream::connect(("127.0.0.1", port)).ok().map(drop)
        })
        .unwrap();
    // A wrong password: reported in one line, without the password.
    let refused =
        run(&node, &[("https_proxy", &format!("http://user:guess-me@127.0.0.1:{port}"))], &["--dry-run"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (69, ""), "{refused:?}");
    assert!(refused.stderr.contains("proxies are read from `https_proxy`"), "{refused:?}");
    assert!(!refused.stderr.contains("guess-me"), "{refused:?}");
    assert!(node.bucket.asked().is_empty(), "{:?}", node.bucket.asked());

    let url = format!("http://user:open-sesame@127.0.0.1:{port}");
    let prepared = run(&node, &[("https_proxy", &url)], &[]);
    assert_eq!(prepared.code, 100, "{prepared:?}");
    assert!(node.has(IMAGE));
    let through = format!("CONNECT {}", node.bucket.address());
    assert!(proxy.log().matches(&through).count() >= 2, "{}", proxy.log());
}
