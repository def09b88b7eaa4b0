//! Secrets in typical phrasings of users and scripts: all of them must be redacted, and similar harmless text
//! must be kept.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::LazyLock;

use landfall_redact::{Format, Length, Options, Redactor};

static REDACTOR: LazyLock<Redactor> = LazyLock::new(|| Redactor::builder().build().unwrap());

const CANARY: &str = "c4nAry-9Zq4w8xT";

const PHRASINGS: [&str; 84] = [
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
    "https://acct.blob.core.windows.net/vhds/a?sv=2024-08-04&sig={}",
    "sig={}",
    "client_secret {}",
    "client_secret={}",
    "chpasswd: root:{}",
    "passwd {}",
    "login with admin/{}",
    "GET https://api.example/v1/nodes?key={}",
    "https://api.example/v1/nodes?alt=json&key={}&x=1",
    "PSK: {}",
    "bindpw {}",
    "cryptsetup: key {}",
    "kubeadm token create {}",
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

/// Escapes around colored words, including their notations in syslog, JSON and `cat -v`.
const COLOURS: [(&str, &str); 8] = [
    ("\x1b[31m", "\x1b[0m"),
    ("\x1b[38;5;208m", "\x1b[m"),
    ("\x1b[1m\x1b[38;2;1;2;3m", "\x1b(B\x1b[m"),
    ("\x1b]8;;https://docs.example/x\x1b\\", "\x1b]8;;\x07"),
    ("#033[0;1;39m", "#033[0m"),
    ("\\u001b[31m", "\\u001b[0m"),
    ("\\x1b[31m", "\\x1b[0m"),
    ("^[[31m", "^[[0m"),
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

/// Too few digits for a pattern of words.
#[test]
fn a_pin_is_gone() {
    for text in ["pin: 4711", "PIN=4711", "Jan 02 03:04:05 n1 tang[7]: using pin: 4711\n"] {
        let redacted = redact(text, Format::Lines);
        assert!(!redacted.contains("4711"), "{text} -> {redacted}");
    }
}

/// A terminal does not display them, so they may be anywhere: around or inside a word or its name.
#[test]
fn no_colour_hides_a_secret() {
    let (first, second) = CANARY.split_at(6);
    for phrasing in PHRASINGS {
        for (on, off) in COLOURS {
            for text in [
                phrasing.replace("{}", &format!("{on}{CANARY}{off}")),
                phrasing.replace("{}", &format!("{first}{on}{second}{off}")),
                format!("{on}{}{off}", phrasing.replace("{}", CANARY)),
                // Inside all words that may be a name.
                phrasing.replace('o', &format!("o{on}")).replace("{}", CANARY),
            ] {
                let text = format!("first\n{text}\nlast\n");
                for length in [Length::Free, Length::Same] {
                    let options = Options { length, ..Options::default() };
                    let out = REDACTOR.redact(text.as_bytes(), options).0;
                    let redacted = String::from_utf8(out).unwrap();
                    assert!(
                        !redacted.contains(CANARY) && !redacted.contains(second) && !redacted.contains(first),
                        "{text:?} -> {redacted:?}"
                    );
                    assert!(
                        length == Length::Free || redacted.len() == text.len(),
                        "{text:?} -> {redacted:?}"
                    );
                    assert!(
                        redacted.starts_with("first\n") && redacted.ends_with("\nlast\n"),
                        "{redacted:?}"
                    );
                }
            }
        }
    }
}

/// Equal secrets have equal pseudonyms with and without colors, and colors outside secrets are kept.
#[test]
fn a_coloured_secret_is_the_same_secret() {
    let redacted =
        redact("\x1b[1mpassword=hunter22\x1b[0m ok\npass\x1b[31mword=hun\x1b[0mter22\n", Format::Lines);
    let mark = &redacted[redacted.find("***<").unwrap()..redacted.find(">***").unwrap() + 4];
    assert_eq!(
        redacted,
        format!("\x1b[1mpassword={mark}\x1b[0m ok\npass\x1b[31mword={mark}\n"),
        "{redacted:?}"
    );
}

/// The content of an escape is not displayed, but is readable in the file.
#[test]
fn titles_and_links_are_searched_too() {
    for text in [
        "\x1b]0;ssh https://robot:c4nAry-9Zq4w8xT@git.example/\x07$ ls",
        "a \x1b]8;;https://robot:c4nAry-9Zq4w8xT@git.example/\x1b\\link\x1b]8;;\x1b\\",
        "\x1bPpassword=c4nAry-9Zq4w8xT\x1b\\",
        // An escape without an end is not an escape.
        "\x1b]0;password=c4nAry-9Zq4w8xT",
    ] {
        let redacted = redact(text, Format::Lines);
        assert!(!redacted.contains(CANARY), "{text:?} -> {redacted:?}");
    }
}

#[test]
fn coloured_keys_are_gone_whole() {
    let body = "MHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY/PuoAoGCCqGSM49".repeat(3);
    let text = format!(
        "\x1b[32m-----BEGIN EC PRI\x1b[0mVATE KEY-----\n{body}\n\x1b[33m-----END EC PRIVATE KEY-----\x1b[0m\nafter\n"
    );
    let redacted = redact(&text, Format::Lines);
    assert!(!redacted.contains("MHcCAQEE") && redacted.ends_with("after\n"), "{redacted:?}");
}

/// Colors split by the journal's own limits, and entries with colored fields.
#[test]
fn colours_in_the_journal_keep_its_frame() {
    let message = "pass\x1b[31mword=c4nAry-\x1b[0m9Zq4w8xT";
    let mut export = b"_SYSTEMD_UNIT=a.service\nMESSAGE\n".to_vec();
    export.extend((message.len() as u64).to_le_bytes());
    export.extend(message.as_bytes());
    export.extend(b"\n\n");
    let options = Options { format: Format::JournalExport, ..Options::default() };
    let out = REDACTOR.redact(&export, options).0;
    assert_eq!(out.len(), export.len());
    assert!(
        memchr::memmem::find(&out, b"c4nAry-").is_none() && memchr::memmem::find(&out, b"9Zq4w8xT").is_none()
    );
}

#[test]
fn look_alikes_come_out_as_they_went_in() {
    for text in INNOCENT {
        assert_eq!(redact(text, Format::Lines), text);
    }
}

/// A token is recognized next to any character.
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

/// One secret in logged argument vectors, and in the lines of scripts and lists.
#[test]
fn flags_in_argument_vectors_are_redacted() {
    let secret = "c4nAry-9Zq4w8xT";
    for text in [
        format!("util.py[DEBUG]: Running command ['kubeadm', 'join', '--token', '{secret}', 'x'] with x"),
        format!("subp.py[DEBUG]: Running command ['curl', '-u', 'robot:{secret}', 'https://x'] with x"),
        format!(r#"{{"level":"info","args":["app","--password","{secret}","-v"]}}"#),
        format!(r#"msg="exec" args="[\"app\",\"--password\",\"{secret}\"]""#),
        format!("exec.Command [kubeadm join --token {secret}]"),
        format!(r#"type=EXECVE msg=audit(1.2:3): argc=3 a0="app" a1="--password" a2="{secret}""#),
        format!(r#"type=EXECVE msg=audit(1.2:3): argc=3 a0="curl" a1="-u" a2="robot:{secret}""#),
        format!(r#"{{"cmd":"app --password \"{secret}\" -v"}}"#),
        format!("  args:\n  - --password\n  - {secret}\n  - --v=2"),
        format!("    \"--password\",\n    \"{secret}\",\n    \"--v=2\""),
        format!("app --v=2 \\\n  --password \\\n  {secret} \\\n  x"),
    ] {
        let (out, _) =
            Redactor::builder().build().unwrap().redact(text.as_bytes(), landfall_redact::Options::default());
        let out = String::from_utf8(out).unwrap();
        assert!(!out.contains(secret), "{text}\n{out}");
    }
}
