use proptest::prelude::*;

use super::*;

const FORMATS: [Format; 10] = [
    Format::Any,
    Format::Lines(Kind::PASSWORD),
    Format::LastLine,
    Format::Pem,
    Format::Shadow,
    Format::PreviousPasswords,
    Format::PasswordTable,
    Format::Netrc,
    Format::Pgpass,
    Format::ChapSecrets,
];

fn found(format: Format, text: &str) -> Vec<String> {
    let (values, is_complete) = search(format, text.as_bytes()).into_parts();
    assert!(is_complete, "{text}");
    values.iter().map(|(_, value)| String::from_utf8_lossy(value.expose()).into_owned()).collect()
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(prop::num::u8::ANY, 0..600)) {
        for format in FORMATS {
            search(format, &bytes);
        }
    }

    #[test]
    fn arbitrary_documents_do_not_panic(
        pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..40)
    ) {
        let text: String = pieces.concat();
        for format in FORMATS {
            search(format, text.as_bytes());
        }
    }
}

/// Fragments of all formats, so that inputs pass the first checks of the parsers.
const PIECES: [&str; 44] = [
    "#cloud-config\n",
    "#!/bin/sh\n",
    "Content-Type: multipart/mixed; boundary=\"=B=\"\n",
    "\n--=B=\n",
    "\n\n",
    "Content-Transfer-Encoding: base64\n",
    "Content-Transfer-Encoding: quoted-printable\n",
    "write_files:\n",
    "- path: /etc/shadow\n",
    "  content: |\n",
    "  encoding: gz+b64\n",
    "    ",
    "\n",
    "{\"auths\":",
    "{",
    "}",
    "[",
    "]",
    "\"auth\":\"dXNlcjpodW50ZXIyMg==\"",
    ",",
    "\"",
    "'",
    "password",
    ": ",
    "=",
    "token",
    "hunter2hunter2",
    "\\",
    "cat <<EOF > /etc/x/token\n",
    "EOF\n",
    "<<",
    "--token ",
    "echo a:hunter22 | chpasswd\n",
    "data:;base64,",
    "%41%",
    "H4sIAAAA",
    "K10abc::server:hunter22",
    "://user:p@ss/w@",
    "é\u{0}",
    "&a ",
    "*a",
    "ä",
    "<<<",
    "$'",
];

#[test]
fn user_data_of_each_form_is_searched() {
    for (text, secret) in [
        ("#cloud-config\nchpasswd:\n  list: |\n    root:hunter22,{@}/x\n", "hunter22,{@}/x"),
        ("#cloud-config\nchpasswd:\n  list:\n  - root:hunter22:x\n", "hunter22:x"),
        ("#cloud-config\nchpasswd: {users: [{name: a, password: hunter22, type: text}]}\n", "hunter22"),
        ("#cloud-config\npassword: 0123456789\n", "0123456789"),
        ("#cloud-config\nruncmd:\n- [kubeadm, join, --token, hunter22]\n", "hunter22"),
        ("#cloud-config\nruncmd:\n- kubeadm join --certificate-key=0123456789abcdef\n", "0123456789abcdef"),
        ("#cloud-config\nbootcmd:\n- export REGISTRY_PASSWORD='hunter 22'\n", "hunter 22"),
        (
            "## template: jinja\n#cloud-config\na: {{ b }}\nusers:\n- plain_text_passwd: hunter22\n",
            "hunter22",
        ),
        ("#!/bin/sh\ncat > /etc/app/token <<'EOF'\nhunter22\nEOF\n", "hunter22"),
        ("#!/bin/sh\necho 'root:hunter22' | chpasswd\n", "hunter22"),
        ("#!/bin/sh\ncurl -u admin:hunter22 https://x/\n", "hunter22"),
        ("#!/bin/sh\ncurl -H 'Authorization: Bearer hunter22' https://x/\n", "hunter22"),
        ("#!/bin/sh\ndocker login -u a -p hunter22 r.example\n", "hunter22"),
        ("#include\nhttps://user:hunter22@x/y\n", "hunter22"),
    ] {
        let found = found(Format::Any, text);
        assert!(found.iter().any(|value| value == secret), "{text}: {found:?}");
    }
}

#[test]
fn harmless_values_are_not_learned() {
    for text in [
        "mode: iptables\nname: kubernetes\nuser: administrator\n",
        "tokenFile: /etc/landfall/hub.token\ntoken-ttl: 24h0m0s\n",
        "[Global]\nauth-url = https://keystone.example:5000/v3\nsecret-name = cloud-credentials\n",
        "HTTPS_PROXY=http://proxy.example:3128\nNO_PROXY=10.0.0.0/8,registry.example\n",
        "passwd: files systemd\nshadow: files systemd\n",
        "etcd:\n  initial-cluster-token: etcd-cluster-1\n",
        "volumes:\n- secret: {secretName: cloud-credentials}\n- secret: cloud-credentials\n",
        "#!/bin/sh\nkubeadm join --discovery-token-ca-cert-hash sha256:0123456789abcdef api.example:6443\n",
        "ssh_authorized_keys:\n- ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ user@host.example\n",
        "#!/bin/sh\ndocker run -d -p 127.0.0.1:5000:5000 -p 8080:8080 registry.example/app\nmkdir -p /a/b\n",
        "password = # none is needed\nkey_password=./keys/server.key\n",
        "A_TOKEN=${lines[2]}\nB_TOKEN=${OTHER:-${TMP_DIR}/x.key}\nC_TOKEN=$TMP_DIR/other\n",
        "DB_PASSWORD=$OTHER_PASSWORD\nX_TOKEN=${OTHER_TOKEN}\nY_TOKEN=$(cat /etc/token)\n",
    ] {
        assert_eq!(found(Format::Any, text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn payloads_inside_payloads_are_bounded() {
    let mut text = "password: hunter22".to_owned();
    for _ in 0..12 {
        text = format!("write_files:\n- path: /x\n  content: {}\n", serde_json::to_string(&text).unwrap());
    }
    let (_, is_complete) = search(Format::Any, text.as_bytes()).into_parts();
    assert!(!is_complete);
}
