//! SSH through the gateway, with real programs at both ends.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use landfall_testkit::isolated::{HOST, NEEDS, in_network, shell};
use landfall_testkit::{Need, Process, eventually, free_port, have};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::bed::{Bed, GATHER_TOKEN, LIMIT};
use crate::client::Identity;

/// Connects standard input and output through `CONNECT`; a file contains the token.
const CONNECT: &str = r#"
import os, socket, ssl, sys, threading
gateway, target, token = int(sys.argv[1]), sys.argv[2], open(sys.argv[3]).read().strip()
plain = ssl._create_unverified_context()
stream = plain.wrap_socket(socket.create_connection(("127.0.0.1", gateway)), server_hostname="localhost")
stream.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
head = b""
while not head.endswith(b"\r\n\r\n"):
    head += stream.recv(1)
if b" 200 " not in head.split(b"\r\n")[0]:
    sys.exit(head.decode())
def up():
    while data := os.read(0, 16384):
        stream.sendall(data)
threading.Thread(target=up, daemon=True).start()
while data := stream.recv(16384):
    os.write(1, data)
"#;

#[test]
fn ssh_goes_end_to_end_and_nowhere_else() {
    let programs = ["/usr/sbin/sshd", "ssh", "ssh-keygen", "python3"].map(Need::Program);
    if have(&[NEEDS, &programs].concat()) {
        in_network("tunnel::ssh_goes_end_to_end_and_nowhere_else", inside);
    }
}

fn inside() {
    let port = free_port().unwrap();
    let bed = Bed::without_api(|config| {
        config.tunnel.networks = vec!["192.0.2.0/24".parse().unwrap(), "127.0.0.0/8".parse().unwrap()];
        config.tunnel.ports = vec![port];
    });
    let folder = bed.folder.path();
    let file = |name: &str| folder.join(name).display().to_string();
    for name in ["host", "user"] {
        shell(&format!("ssh-keygen -q -t ed25519 -N '' -f {}", file(name)));
    }
    std::fs::write(folder.join("connect.py"), CONNECT).unwrap();
    let host_key = std::fs::read_to_string(folder.join("host.pub")).unwrap();
    std::fs::write(folder.join("known"), format!("[{HOST}]:{port} {host_key}")).unwrap();
    let _sshd = sshd(folder, HOST, port);

    let ssh = |known: &str| {
        let through =
            format!("python3 {} {} %h:%p {}", file("connect.py"), bed.address.port(), file("gather-token"));
        let mut command = Command::new("ssh");
        command.args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]);
        command.args(["-o", &format!("UserKnownHostsFile={}", file(known))]);
        command.args(["-o", &format!("ProxyCommand={through}"), "-i", &file("user")]);
        command.args(["-p", &port.to_string(), &format!("root@{HOST}"), "echo $((6 * 7))"]).output().unwrap()
    };
    let said = ssh("known");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "42\n", "{}", String::from_utf8_lossy(&said.stderr));
    // The SSH client checks the host key: another key is rejected.
    let other = std::fs::read_to_string(folder.join("user.pub")).unwrap();
    std::fs::write(folder.join("wrong"), format!("[{HOST}]:{port} {other}")).unwrap();
    assert!(!ssh("wrong").status.success());
    eventually("the tunnel's end in the audit log", LIMIT, || {
        std::fs::read_to_string(folder.join("audit.log"))
            .unwrap()
            .contains("\"decision\":\"ended\"")
            .then_some(())
    })
    .unwrap();

    let closed = port + 1;
    for (target, token, code) in [
        (format!("{HOST}:{closed}"), GATHER_TOKEN, "403"),
        (format!("127.0.0.1:{port}"), GATHER_TOKEN, "403"),
        (format!("169.254.169.254:{port}"), GATHER_TOKEN, "403"),
        (format!("198.51.100.1:{port}"), GATHER_TOKEN, "403"),
        (format!("localhost:{port}"), GATHER_TOKEN, "403"),
        (format!("{HOST}:{port}"), "somebody-elses-token", "503"),
        ("nonsense".to_owned(), GATHER_TOKEN, "400"),
    ] {
        let request = format!(
            "CONNECT {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        );
        let got = bed.client(Identity::None).raw(&bed.runtime, request.as_bytes());
        assert!(got.starts_with(&format!("HTTP/1.1 {code} ")), "{target}: {got}");
    }
    let banner = bed.runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(60), websocket(&bed, port)).await.unwrap()
    });
    assert!(banner.starts_with("SSH-2.0-OpenSSH"), "{banner:?}");
}

/// Starts a real sshd with the keys in the directory.
fn sshd(folder: &Path, address: &str, port: u16) -> Process {
    let file = |name: &str| folder.join(name).display().to_string();
    let options = [
        format!("Port={port}"),
        format!("ListenAddress={address}"),
        format!("HostKey={}", file("host")),
        format!("AuthorizedKeysFile={}", file("user.pub")),
        "PermitRootLogin=yes".to_owned(),
        "StrictModes=no".to_owned(),
        "UsePAM=no".to_owned(),
        "PidFile=none".to_owned(),
    ];
    let mut sshd = Process::start("sshd", Path::new("/usr/sbin/sshd"), folder, |command| {
        command.args(["-D", "-e", "-f", "/dev/null"]);
        for option in &options {
            command.args(["-o", option]);
        }
    })
    .unwrap();
    sshd.wait_until("sshd to listen", LIMIT, || std::net::TcpStream::connect((address, port)).ok()).unwrap();
    sshd
}

/// Tests two clients on one port: one uses TLS, the other SSH.
#[test]
fn raw_ssh_on_the_api_port_reaches_sshd() {
    let programs = ["/usr/sbin/sshd", "ssh", "ssh-keygen"].map(Need::Program);
    if have(&[NEEDS, &programs].concat()) {
        in_network("tunnel::raw_ssh_on_the_api_port_reaches_sshd", raw_inside);
    }
}

fn raw_inside() {
    let port = free_port().unwrap();
    let bed = Bed::without_api(|config| config.ssh = Some(([127, 0, 0, 1], port).into()));
    let folder = bed.folder.path();
    let file = |name: &str| folder.join(name).display().to_string();
    for name in ["host", "user"] {
        shell(&format!("ssh-keygen -q -t ed25519 -N '' -f {}", file(name)));
    }
    let _sshd = sshd(folder, "127.0.0.1", port);
    let host_key = std::fs::read_to_string(folder.join("host.pub")).unwrap();
    std::fs::write(folder.join("known"), format!("[127.0.0.1]:{} {host_key}", bed.address.port())).unwrap();
    let mut command = Command::new("ssh");
    command.args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]);
    command.args(["-o", &format!("UserKnownHostsFile={}", file("known")), "-i", &file("user")]);
    command.args(["-p", &bed.address.port().to_string(), "root@127.0.0.1", "head -c 3000000 /dev/zero"]);
    let said = command.output().unwrap();
    assert_eq!(said.stdout.len(), 3_000_000, "{}", String::from_utf8_lossy(&said.stderr));
    assert_eq!(bed.client(Identity::None).get(&bed.runtime, "/livez").status, 200, "and TLS is TLS");
    eventually("its end in the audit log", LIMIT, || {
        let audit = std::fs::read_to_string(folder.join("audit.log")).unwrap();
        (audit.contains("\"SSH\"") && audit.contains("\"decision\":\"ended\"")).then_some(())
    })
    .unwrap();
    assert!(bed.metrics().contains("landfall_gateway_connections_total{way=\"ssh\"} 1"));
}

/// Returns the first bytes of a node, from the first frame of a WebSocket.
async fn websocket(bed: &Bed, port: u16) -> String {
    let mut stream = bed.client(Identity::None).connect(b"http/1.1").await;
    let request = format!(
        "GET /bootstrap/tunnel?host={HOST}&port={port} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {GATHER_TOKEN}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
    let mut frame = [0; 2];
    stream.read_exact(&mut frame).await.unwrap();
    assert_eq!(frame[0], 0x82, "a whole binary message");
    let mut content = vec![0; usize::from(frame[1])];
    stream.read_exact(&mut content).await.unwrap();
    String::from_utf8(content).unwrap()
}
