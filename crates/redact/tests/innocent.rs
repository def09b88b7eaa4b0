//! Text without secrets is unchanged: over-redaction impairs diagnosis.

#![expect(clippy::format_push_string, reason = "a test fails by panicking, and is not pressed for time")]

use landfall_redact::{Format, Length, Options, Redactor};

const INNOCENT: &str = r#"
kubelet version v1.33.2+rke2r1, containerd 2.1.4-k3s1.32, runc 1.3.0, kernel 6.8.0-31-generic, cri-tools 1.33.0
Server Version: 4.19.0-0.nightly-2025-06-04-215512 etcd 3.5.21 go1.24.4 openssl 3.0.15 systemd 255.4-1ubuntu8.8
image quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
docker.io/library/nginx:1.27.5-alpine registry.k8s.io/pause:3.10 ghcr.io/org/app:sha-0a1b2c3
Pulled registry.k8s.io/kube-apiserver:v1.33.2@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
--discovery-token-ca-cert-hash sha256:7c2e69131a36ae2a042a339b33381c6d0d43887e2de83720eff5359e26aec866
192.168.1.17:6443 10.96.0.1 172.16.254.3/24 fd00:10:244::1/64 2001:db8:85a3::8a2e:370:7334 fe80::1%eth0 00:1a:2b:3c:4d:5e
UUID=3b5c1f0e-9a57-4b1c-8c0d-2f6f4d1f7e11 machine-id 4f2d7b0ad8a04e2f9d0fbb6bd2a5a1c7 boot 0e1f2d3c4b5a69788796a5b4c3d2e1f0
kubelet.service containerd.service kubepods-burstable-pod3b5c1f0e_9a57_4b1c_8c0d_2f6f4d1f7e11.slice systemd-resolved.service
cri-containerd-8b1a9953c4611296a827abf8c47804d7e6c49c6b97b0f4c3a1c4d8a2b5b9f0e1.scope: Consumed 1.234s CPU time
StartContainer for "8b1a9953c4611296a827abf8c47804d7e6c49c6b97b0f4c3a1c4d8a2b5b9f0e1" returns successfully
pod kube-system/coredns-5d78c9869d-x7k2p uid 6f1c7e1b-65c9-4a5c-a1a2-3f4b5c6d7e8f node ip-10-0-137-42.eu-west-1.compute.internal
event coredns-5d78c9869d-x7k2p.17a9c3f4b2d81e05 worker.183e7f2a90bc4d16 openshift-kube-controller-manager-operator
commit 9fceb02d0ae598e95dc970b74767f19372d61af8 (HEAD -> main, tag: v1.2.3) Merge pull request #1234
E0102 03:04:05.678901    1234 reflector.go:158] "Unhandled Error" err="failed to list *v1.Node: Get \"https://10.0.0.1:6443/api/v1/nodes?limit=500&resourceVersion=0\": dial tcp 10.0.0.1:6443: connect: connection refused" logger="UnhandledError"
I0102 03:04:05.678901    1234 flags.go:64] FLAG: --authentication-token-webhook="true" --tls-private-key-file="" --bootstrap-kubeconfig="/etc/kubernetes/bootstrap-kubelet.conf"
W1115 client config: tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token, no bearer token, authorization mode Node,RBAC
error execution phase preflight: couldn't validate the identity of the API Server: could not find a JWS signature in the cluster-info ConfigMap for token ID "abcdef"
[kubelet-start] Writing kubelet configuration to file "/var/lib/kubelet/config.yaml" and flags to "/var/lib/kubelet/kubeadm-flags.env"
x509: certificate has expired or is not yet valid: current time 2026-01-02T03:04:05Z is after 2025-01-02T03:04:05Z
audit: type=1400 audit(1700000000.123:456): apparmor="DENIED" operation="open" profile="cri-containerd.apparmor.d" name="/proc/1/ns/" pid=4242
{"level":"info","ts":"2026-01-02T03:04:05.678Z","caller":"embed/etcd.go:762","msg":"serving peer traffic","address":"10.0.0.1:2380","cluster-id":"cdf818194e3a8c32","member-id":"8e9e05c52164694d"}
{"kind":"Pod","metadata":{"name":"a","ownerReferences":[{"kind":"ReplicaSet","uid":"6f1c7e1b-65c9-4a5c-a1a2-3f4b5c6d7e8f"}]},"spec":{"volumes":[{"name":"s","secret":{"secretName":"my-tls-secret-name"}}]}}
kind: ConfigMap
apiVersion: v1
data:
  key: value
  mode: iptables
    secretName: kubernetes-dashboard-certificates-and-a-long-name
    secret: my-secret-name
  imagePullSecrets: [{name: regcred}]
  keyRef: {name: credentials, key: password}
PWD=/root OLDPWD=/etc HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin TERM=xterm-256color SSH_AUTH_SOCK=/run/user/0/agent
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMzW0vq1N5Jr0o2lZc8hX1r7aJm6yQq3gqz7bKxT9fQe root@bootstrap
256 SHA256:8vF4pXqzT7mWnLk2sR9yBcD3eG5hJ6aQ1uI0oP8xZwY root@node (ED25519)
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE8xOUetsCa8EfOlDEBAfREhJqspDo
-----END PUBLIC KEY-----
cat <<EOF > /etc/motd
welcome
EOF
https://github.com/kubernetes/kubernetes/issues/98765 mailto:root@example.com git@github.com:org/repo.git
Jan 02 03:04:05 node-1 systemd[1]: Started crio-conmon-8b1a9953c4611296a827abf8c47804d7e6c49c6b97b0f4c3a1c4d8a2b5b9f0e1.scope.
CPU usage 97%, disk 85% full, 100%  of 50%25 done; load 0.15 0.10 0.05; took 12.345678ms; rtt min/avg/max 0.1/0.2/0.3
password authentication is disabled; PasswordAuthentication no; passwd[77]: password unchanged for user core
"#;

#[test]
fn innocent_text_is_untouched() {
    let redactor = Redactor::builder().build().unwrap();
    for line in INNOCENT.lines() {
        let (out, counts) = redactor.redact(line.as_bytes(), Options::default());
        assert_eq!(String::from_utf8_lossy(&out), line, "{counts:?}");
    }
    for length in [Length::Free, Length::Same] {
        let (out, counts) = redactor.redact(INNOCENT.as_bytes(), Options { length, ..Options::default() });
        assert_eq!(String::from_utf8_lossy(&out), INNOCENT);
        assert!(counts.redacted.is_empty() && counts.withheld == 0, "{counts:?}");
    }
}

#[test]
fn innocent_entries_are_untouched() {
    let redactor = Redactor::builder().build().unwrap();
    let mut journal = String::new();
    let mut container = String::new();
    for line in INNOCENT.lines() {
        journal.push_str(&format!(
            "__CURSOR=s=1\n_SYSTEMD_UNIT=kubelet.service\nMESSAGE={line}\n_CMDLINE={line}\n\n"
        ));
        container.push_str(&format!("2026-01-02T03:04:05.678901234Z stdout F {line}\n"));
    }
    for (format, text) in [(Format::JournalExport, journal), (Format::Cri, container)] {
        let (out, counts) = redactor.redact(text.as_bytes(), Options { format, ..Options::default() });
        assert_eq!(String::from_utf8_lossy(&out), text, "{counts:?}");
    }
}

#[test]
fn bytes_that_are_no_text_are_untouched() {
    let redactor = Redactor::builder().build().unwrap();
    let noise: Vec<u8> = (0..200_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[1]).collect();
    let (out, counts) = redactor.redact(&noise, Options::default());
    assert_eq!(out, noise, "{counts:?}");
}

/// Random words are only reported.
#[test]
fn suspicious_words_are_counted_and_kept() {
    let redactor = Redactor::builder().build().unwrap();
    let text = "one\ntwo xQ7rT2kP9mW4vB8nL1cZ6yD3fG5hJ0sAqEwRuIoX\nthree\n";
    let (out, counts) = redactor.redact(text.as_bytes(), Options::default());
    assert_eq!(String::from_utf8_lossy(&out), text);
    assert_eq!((counts.suspicious, counts.suspicious_lines), (1, vec![2]));
}
