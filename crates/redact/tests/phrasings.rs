//! Secrets in the words that people and scripts put around them: none may come through, and what only looks like it must.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::LazyLock;

use landfall_redact::{Format, Options, Redactor};

static REDACTOR: LazyLock<Redactor> = LazyLock::new(|| Redactor::builder().build().unwrap());

const CANARY: &str = "c4nAry-9Zq4w8xT";

const PHRASINGS: [&str; 71] = [
    "sshpass -p {} ssh core@10.0.0.5",
    "sshpass -p{} ssh core@10.0.0.5",
    "sshpass -v -p '{}' ssh core@10.0.0.5",
    "root password is {}",
    "The root password is: {}",
    "the password for core is \"{}\"",
    "password set to {}",
    "Password: {}",
    "echo root:{} | chpasswd",
    "echo 'root:{}' | chpasswd -e",
    "+ printf core:{} | sudo chpasswd",
    "chpasswd <<< 'root:{}'",
    "echo {} | passwd --stdin root",
    "echo {} | docker login --username robot --password-stdin quay.io",
    "tool --password {} --verbose",
    "tool --password={}",
    "tool --admin-password '{}'",
    "mysql -uroot -p{} shop",
    "mysqldump -h db -p'{}' shop",
    "cloud-init[9]: using token: {}",
    "the join token is {}",
    "Authorization: Basic {}",
    "-H 'Authorization: Bearer {}'",
    "authorization=\"token {}\"",
    "curl -u robot:{} https://x.example/",
    "curl -urobot:{} https://x.example/",
    "curl --user 'robot:{}' https://x.example/",
    "wget --user=x --password={} https://x.example/",
    "https://robot:{}@git.example/x.git",
    "postgres://app:{}@db:5432/shop",
    "HTTPS_PROXY=http://robot:{}@proxy:3128",
    "rocommunity {} 10.0.0.0/8",
    "snmp-server community {} RO",
    "snmpwalk -v2c -c {} 10.0.0.1",
    "ipmitool -I lanplus -U ADMIN -P {} sel list",
    "ipmitool -P{} -U ADMIN sel list",
    "export FOO_SECRET={}",
    "export MY_TOKEN='{}'",
    "declare -x DB_PASSWORD=\"{}\"",
    "podman login -u robot -p {} quay.io",
    "crictl pull --creds robot:{} quay.io/a/b",
    "skopeo copy --src-creds=robot:{} docker://a docker://b",
    "openssl pkcs12 -passin pass:{} -in a.p12",
    "redis-cli -h cache -a {} ping",
    "got token {} from the metadata service",
    "received token \"{}\"",
    "token {} accepted",
    "\"token\" => \"{}\"",
    "password {} rejected",
    "with password '{}'",
    "Password for core: {}",
    "password (root): {}",
    "client secret {}",
    "secret={}",
    "API key: {}",
    "X-Auth-Token: {}",
    "> X-Vault-Token: {}",
    "Cookie: session={}",
    "vault login {}",
    "useradd -p {} core",
    "net user Administrator {}",
    "kubectl create secret generic x --from-literal=pw={}",
    "machine git.example login robot password {}",
    "{\"user\":\"admin\",\"pass\":\"{}\"}",
    "{\"name\":\"DB_PASSWORD\",\"value\":\"{}\"}",
    "user=admin pw={}",
    "--agent-token {}",
    "token_secret: {}",
    "The initial admin password has been set to {}",
    "Generated password {}",
    "credentials: admin / {}",
];

const INNOCENT: [&str; 22] = [
    "password is required",
    "Permission denied, please try again: password is incorrect",
    "the password is not set",
    "pam_unix(sshd:auth): authentication failure; logname= uid=0",
    "Failed password for root from 10.0.0.5 port 40022 ssh2",
    "token is expired or not yet valid",
    "error execution phase preflight: couldn't validate the identity of the API Server: token id \"abcdef\" is invalid",
    "mysql.service: Main process exited, code=exited, status=1/FAILURE",
    "mysql -u root -p shop",
    "ipmitool sel list",
    "chpasswd: (user core) pam_chauthtok() failed",
    "curl -fsSL -o /tmp/x https://x.example/v1.33.2/x.tar.gz",
    "curl --user-agent landfall/1.2.3 https://x.example/",
    "https://registry.example:5000/v2/",
    "docker.io/library/nginx@sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "snmpd[1]: Connection from UDP: [10.0.0.1]:4321",
    "systemd-logind[612]: New session 4 of user core.",
    "my_module.some_function",
    "kubelet_volume_stats.used",
    "node_exporter.service",
    "pods \"coredns_7c65d6cfc9.17f1e2d3c4b5a697\" not found",
    "kubeadm join 10.0.0.1:6443 --discovery-token-ca-cert-hash sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0",
];

fn redact(text: &str, format: Format) -> String {
    let options = Options { format, ..Options::default() };
    String::from_utf8(REDACTOR.redact(text.as_bytes(), options).0).unwrap()
}

#[test]
fn no_phrasing_lets_a_secret_through() {
    for phrasing in PHRASINGS {
        let text = phrasing.replace("{}", CANARY);
        for (format, text) in [
            (Format::Lines, format!("Jan 02 03:04:05 n1 bash[7]: + {text}\n")),
            (Format::Lines, format!("{text}\n")),
            (Format::Cri, format!("2026-01-02T03:04:05.678901234Z stdout F {text}\n")),
        ] {
            let redacted = redact(&text, format);
            assert!(!redacted.contains(CANARY), "{text} -> {redacted}");
        }
    }
}

#[test]
fn look_alikes_come_out_as_they_went_in() {
    for text in INNOCENT {
        assert_eq!(redact(text, Format::Lines), text);
    }
}

/// Whatever a program puts beside a token, the token is seen.
#[test]
fn a_token_is_seen_whatever_stands_beside_it() {
    let jwt = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJub2RlLTcifQ.MEUCIQDq9-zX_s1gn4tur3";
    let tokens = [
        ("abcdef.0123456789abcdef", "0123456789abcdef"),
        ("AKIAJ7Q2MZ5XN4TC6W3E", "AKIAJ7Q2MZ5XN4TC6W3E"),
        ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "16C7e42F292c6912E7710c838347Ae178B4a"),
        (jwt, "MEUCIQDq9-zX_s1gn4tur3"),
    ];
    for (token, secret) in tokens {
        for (before, after) in [
            ("_", ""),
            ("", "_"),
            ("_", "_"),
            ("token_", " "),
            ("\"", "\""),
            ("=", "&x=1"),
            ("\\n", "\\n"),
            ("\\t", ""),
            ("-", "-"),
            ("/", "/"),
            (":", ","),
            ("<", ">"),
            ("%", "%"),
        ] {
            let text = format!("kubeadm said {before}{token}{after}\n");
            let redacted = redact(&text, Format::Lines);
            assert!(!redacted.contains(secret), "{text} -> {redacted}");
        }
    }
}

#[test]
fn a_join_command_keeps_what_is_public() {
    let key = "5a1f".repeat(16);
    let hash = "0f1e2d3c".repeat(8);
    let text = format!(
        "kubeadm join 10.0.0.1:6443 --token abcdef.0123456789abcdef \\\n\t--discovery-token-ca-cert-hash sha256:{hash} \\\n\t--control-plane --certificate-key {key}\n"
    );
    let redacted = redact(&text, Format::Lines);
    assert!(!redacted.contains("0123456789abcdef") && !redacted.contains(&key), "{redacted}");
    assert!(redacted.contains("--token abcdef.***<BTOKEN:") && redacted.contains(&hash), "{redacted}");
}
