//! Secrets in files of real formats: a log that contains each of them bare loses exactly these words.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "machine/mod.rs"]
mod machine;

use std::cell::RefCell;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use machine::Machine;

/// Path of the log in the bundle and on the machine.
const LOG: (&str, &str) = ("bootstrap/log/syslog", "var/log/syslog");

/// Plants secrets in files.
struct Planter {
    machine: Machine,
    /// File and value.
    planted: RefCell<Vec<(String, String)>>,
}

impl Planter {
    /// Writes a file with one new secret in it.
    fn plant(&self, path: &str, text: impl FnOnce(&str) -> String) {
        self.plant_as(path, "", |secret| text(secret).into_bytes());
    }

    /// Like [`Self::plant`], for a secret with this prefix.
    fn plant_as(&self, path: &str, prefix: &str, content: impl FnOnce(&str) -> Vec<u8>) {
        let secret = self.secret(path, prefix);
        self.machine.file(path, content(&secret));
    }

    fn secret(&self, path: &str, prefix: &str) -> String {
        let mut planted = self.planted.borrow_mut();
        // Letters and digits that no rule recognizes by form.
        let mut state = (planted.len() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let alphabet = b"bcdfghjkmnpqrstvwxz23456789";
            char::from(alphabet[usize::try_from(state % alphabet.len() as u64).unwrap()])
        };
        let secret: String = prefix.chars().chain((0..14).map(|_| next())).collect();
        planted.push((path.to_owned(), secret.clone()));
        secret
    }

    fn seed(&self, name: &str, text: impl FnOnce(&str) -> String) {
        self.plant(&format!("var/lib/cloud/seed/{name}/user-data"), text);
    }

    fn config(&self, name: &str, text: impl FnOnce(&str) -> String) {
        self.seed(name, |secret| format!("#cloud-config\n{}", text(secret)));
    }

    fn script(&self, name: &str, text: impl FnOnce(&str) -> String) {
        self.seed(name, |secret| format!("#!/bin/sh\nset -eu\n{}\n", text(secret)));
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn plant() -> Planter {
    let planter = Planter { machine: Machine::new(), planted: RefCell::default() };
    user_data(&planter);
    ignition(&planter);
    cluster(&planter);
    accounts(&planter);
    networks(&planter);
    landfall(&planter);
    planter
}

fn user_data(p: &Planter) {
    p.config("chpasswd-list", |s| {
        format!("chpasswd:\n  expire: false\n  list: |\n    root:{s}\n    core:R\n")
    });
    p.config("chpasswd-items", |s| format!("chpasswd:\n  list:\n  - root:{s}\n"));
    p.config("chpasswd-users", |s| {
        format!("chpasswd:\n  users:\n  - {{name: root, password: {s}, type: text}}\n")
    });
    p.config("password", |s| format!("password: {s}\nssh_pwauth: true\n"));
    p.config("plain", |s| {
        format!("users:\n- name: core\n  lock_passwd: false\n  plain_text_passwd: '{s}'\n")
    });
    p.plant_as("var/lib/cloud/seed/special/user-data", "x,{@}/y:z#", |s| {
        format!("#cloud-config\nusers:\n- name: core\n  plain_text_passwd: \"{s}\"\n").into_bytes()
    });
    p.plant_as("var/lib/cloud/seed/passwd/user-data", "$6$saltsalt$", |s| {
        format!("#cloud-config\nusers:\n- name: core\n  passwd: {s}\n").into_bytes()
    });
    p.plant_as("var/lib/cloud/seed/hashed/user-data", "$y$j9T$", |s| {
        format!("#cloud-config\nusers:\n- name: core\n  hashed_passwd: {s}\n").into_bytes()
    });
    let file = |content: &str, more: &str| {
        format!("write_files:\n- path: /etc/app/settings.ini\n{more}  content: {content}\n")
    };
    p.config("file-plain", |s| file(&format!("|\n    [main]\n    password = {s}\n"), ""));
    p.config("file-b64", |s| file(&STANDARD.encode(format!("db_pass={s}\n")), "  encoding: b64\n"));
    p.config("file-gz-b64", |s| {
        file(&STANDARD.encode(gzip(format!("api_key: {s}\n").as_bytes())), "  encoding: gz+b64\n")
    });
    p.config("file-gz", |s| {
        let data = STANDARD.encode(gzip(format!("[x]\nsecret={s}\n").as_bytes()));
        file(&format!("!!binary {data}"), "  encoding: gzip\n")
    });
    p.config("file-token", |s| format!("write_files:\n- path: /etc/app/token\n  content: {s}\n"));
    p.config("file-private", |s| {
        format!("write_files:\n- path: /etc/app/unlock\n  permissions: '0600'\n  content: {s}\n")
    });
    p.plant_as("var/lib/cloud/seed/file-random/user-data", "Qa7", |s| {
        format!("#cloud-config\nwrite_files:\n- path: /etc/app/unlock\n  content: {s}\n").into_bytes()
    });
    p.seed("jinja-b64", |s| {
        let content = STANDARD.encode(format!("db_pass={s}\n"));
        format!(
            "## template: jinja\n#cloud-config\nhostname: {{{{ v1.name }}}}\n{{% if v1.x %}}\nwrite_files:\n- path: /etc/a\n  encoding: b64\n  \
             content: {content}\n{{% endif %}}\n"
        )
    });
    p.config("repeated", |s| format!("password: {s}\nusers: []\npassword: other\n"));
    p.seed("truncated", |s| {
        let content = STANDARD.encode(format!("db_pass={s}\n"));
        format!("{{\"write_files\":[{{\"path\":\"/etc/a\",\"encoding\":\"b64\",\"content\":\"{content}\"}},{{\"path\":\"/etc")
    });
    p.config("file-known", |s| {
        format!("write_files:\n- path: /etc/landfall/nats\n  content: |\n    agent\n    {s}\n")
    });
    p.config("file-env", |s| {
        format!("write_files:\n- path: /etc/default/app\n  content: |\n    HTTPS_PROXY=http://app:{s}@proxy.example:3128\n")
    });
    p.config("file-yaml", |s| {
        format!(
            "write_files:\n- path: /etc/app.yaml\n  content: |\n    auth:\n      client_secret: \"{s}\"\n"
        )
    });
    p.config("runcmd-flag", |s| format!("runcmd:\n- kubeadm join --token {s} api.example:6443\n"));
    p.config("runcmd-list", |s| format!("runcmd:\n- [kubeadm, join, --certificate-key, {s}]\n"));
    p.config("runcmd-shell", |s| format!("runcmd:\n- [sh, -c, 'K3S_TOKEN={s} ./install.sh']\n"));
    p.config("bootcmd-export", |s| format!("bootcmd:\n- export REGISTRY_PASSWORD={s}\n"));
    p.config("ubuntu-pro", |s| format!("ubuntu_advantage:\n  token: {s}\n"));
    p.config("subscription", |s| format!("rh_subscription:\n  username: me\n  activation-key: {s}\n"));
    p.seed("jinja", |s| {
        format!("## template: jinja\n#cloud-config\nhostname: {{{{ v1.name }}}}\nusers:\n- plain_text_passwd: {s}\n")
    });
    p.plant_as("var/lib/cloud/seed/packed/user-data", "", |s| {
        gzip(format!("#cloud-config\npassword: {s}\n").as_bytes())
    });
    p.seed("multipart", |s| {
        let part = STANDARD.encode(format!("#cloud-config\npassword: {s}\n"));
        format!(
            "Content-Type: multipart/mixed; boundary=\"===B==\"\nMIME-Version: 1.0\n\n--===B==\nContent-Type: text/x-shellscript\n\n\
             #!/bin/sh\ntrue\n--===B==\nContent-Type: text/cloud-config; charset=\"utf-8\"\nContent-Transfer-Encoding: base64\n\n{part}\n--===B==--\n"
        )
    });
    p.seed("quoted", |s| {
        let (start, end) = s.split_at(7);
        format!(
            "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/x-shellscript\nContent-Transfer-Encoding: quoted-printable\n\n\
             #!/bin/sh\nexport TOKEN=3D{start}=\n{end}\n--b--\n"
        )
    });
    p.seed("archive", |s| {
        format!("#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    password: {s}\n")
    });
    p.seed("encoded", |s| STANDARD.encode(format!("#cloud-config\npassword: {s}\n")));
    p.plant_as("var/lib/cloud/seed/encoded-packed/user-data", "", |s| {
        STANDARD.encode(gzip(format!("#!/bin/sh\nexport A_TOKEN={s}\n").as_bytes())).into_bytes()
    });
    p.seed("include", |s| format!("#include\nhttps://reader:{s}@config.example/base\n"));
    p.script("export", |s| format!("export VAULT_TOKEN=\"{s}\""));
    p.script("here-document", |s| format!("cat > /etc/app/env <<'EOF'\nDB_PASSWORD={s}\nEOF"));
    p.script("here-token", |s| format!("tee /etc/rancher/node/password >/dev/null <<-EOF\n{s}\nEOF"));
    p.script("chpasswd", |s| format!("echo \"core:{s}\" | chpasswd"));
    p.script("stdin", |s| format!("echo '{s}' | passwd --stdin root"));
    p.script("login", |s| format!("podman login -u me -p '{s}' registry.example"));
    p.script("curl", |s| format!("curl -fsS --user me:{s} https://files.example/x -o /opt/x"));
    p.script("header", |s| format!("curl -H \"Authorization: Bearer {s}\" https://files.example/x"));
    p.script("continued", |s| format!("kubeadm join api.example:6443 \\\n  --discovery-token-ca-cert-hash sha256:00 \\\n  --token \\\n  {s}"));
    p.plant("var/lib/waagent/CustomData", |s| STANDARD.encode(format!("#cloud-config\npassword: {s}\n")));
    p.plant("var/lib/waagent/ovf-env.xml", |s| {
        format!("<ns0:Environment xmlns:ns0=\"x\"><ns1:UserName>core</ns1:UserName><ns1:UserPassword>{s}</ns1:UserPassword></ns0:Environment>")
    });
    p.plant("run/cloud-init/instance-data-sensitive.json", |s| {
        let data = STANDARD.encode(format!("#cloud-config\npassword: {s}\n"));
        format!("{{\"ds\":{{\"meta_data\":{{\"instance-id\":\"i-0123\"}},\"user_data\":\"{data}\"}}}}")
    });
    p.plant("run/cloud-init/combined-cloud-config.json", |s| {
        format!("{{\"system_info\":{{\"default_user\":{{\"name\":\"core\"}}}},\"password\":\"{s}\"}}")
    });
}

fn ignition(p: &Planter) {
    let file = |path: &str, source: &str| {
        format!(
            "{{\"ignition\":{{\"version\":\"3.4.0\"}},\"storage\":{{\"files\":[{{\"path\":\"{path}\",\"mode\":384,\"contents\":{{{source}}}}}]}}}}"
        )
    };
    let base64 = |bytes: &[u8]| {
        format!("\"source\":\"data:text/plain;charset=utf-8;base64,{}\"", STANDARD.encode(bytes))
    };
    p.plant("run/ignition.json", |s| {
        file("/etc/app.ini", &base64(format!("[a]\npassword={s}\n").as_bytes()))
    });
    p.plant("usr/lib/ignition/user.ign", |s| {
        file("/etc/app.env", &format!("\"source\":\"data:,{}\"", percent(&format!("APP_SECRET={s}\n"))))
    });
    p.plant("boot/ignition/config.ign", |s| {
        let packed = gzip(format!("token: {s}\n").as_bytes());
        file("/etc/app.yaml", &format!("\"compression\":\"gzip\",{}", base64(&packed)))
    });
    p.plant("var/lib/landfall/in-place/a/ignition.json", |s| {
        let auth = STANDARD.encode(format!("me:{s}"));
        let secret = format!("{{\"auths\":{{\"r.example\":{{\"auth\":\"{auth}\"}}}}}}");
        file("/var/lib/kubelet/config.json", &base64(secret.as_bytes()))
    });
    p.plant("var/lib/landfall/in-place/b/ignition.json", |s| {
        format!("{{\"ignition\":{{\"version\":\"3.4.0\",\"config\":{{\"merge\":[{{\"source\":\"https://x/\",\"httpHeaders\":[{{\"name\":\"Authorization\",\"value\":\"Bearer {s}\"}}]}}]}}}}}}")
    });
    p.plant("var/lib/landfall/in-place/c/ignition.json", |s| {
        format!("{{\"systemd\":{{\"units\":[{{\"name\":\"a.service\",\"dropins\":[{{\"name\":\"p.conf\",\"contents\":\"[Service]\\nEnvironment=\\\"APP_PASSWORD={s}\\\"\\n\"}}]}}]}}}}")
    });
    p.plant_as("var/lib/landfall/in-place/d/ignition.json", "$6$salt$", |s| {
        format!("{{\"passwd\":{{\"users\":[{{\"name\":\"core\",\"passwordHash\":\"{s}\"}}]}}}}").into_bytes()
    });
    p.plant("var/lib/landfall/in-place/e/ignition.json", |s| {
        format!(
            "{{\"storage\":{{\"luks\":[{{\"name\":\"root\",\"keyFile\":{{\"source\":\"data:,{s}\"}}}}]}}}}"
        )
    });
    p.plant("etc/ignition-machine-config-encapsulated.json", |s| {
        format!(
            "{{\"spec\":{{\"config\":{}}}}}",
            file("/etc/app/password", &format!("\"source\":\"data:,{s}%0A\""))
        )
    });
}

fn cluster(p: &Planter) {
    p.plant("run/kubeadm/join.yaml", |s| {
        format!("kind: JoinConfiguration\ndiscovery:\n  bootstrapToken:\n    token: {s}\n---\ncertificateKey: none\n")
    });
    p.plant("run/kubeadm/init.yaml", |s| format!("kind: InitConfiguration\ncertificateKey: {s}\n"));
    p.plant("etc/kubernetes/manifests/app.yaml", |s| {
        format!("spec:\n  containers:\n  - name: app\n    command: [app, --db-password={s}]\n")
    });
    p.plant("var/lib/rancher/k3s/server/manifests/a.yaml", |s| {
        format!(
            "kind: Secret\nmetadata: {{name: cloud-credentials}}\ndata:\n  password: {}\n",
            STANDARD.encode(s)
        )
    });
    let pull = |auth: String| {
        format!("{{\"auths\":{{\"r.example\":{{\"auth\":\"{auth}\",\"email\":\"me@example.com\"}}}}}}")
    };
    p.plant("var/lib/kubelet/config.json", |s| pull(STANDARD.encode(format!("puller:{s}"))));
    p.plant_as("root/.docker/config.json", "a:", |s| {
        pull(STANDARD_NO_PAD.encode(format!("puller:{s}"))).into_bytes()
    });
    p.plant("run/containers/0/auth.json", |s| {
        format!("{{\"auths\":{{\"r.example\":{{\"identitytoken\":\"{s}\"}}}}}}")
    });
    p.plant("etc/containerd/config.toml", |s| {
        format!("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"r\".auth]\nusername = \"me\"\npassword = \"{s}\"\n")
    });
    p.plant("etc/kubernetes/admin.conf", |s| {
        format!("kind: Config\nusers:\n- name: admin\n  user: {{token: '{s}'}}\n")
    });
    p.plant("etc/kubernetes/exec.conf", |s| {
        format!("kind: Config\nusers:\n- user:\n    exec:\n      env:\n      - name: OIDC_CLIENT_SECRET\n        value: {s}\n")
    });
    p.plant("var/lib/rancher/k3s/server/token", |s| {
        format!("K10{}::server:{s}\n", "0123456789abcdef".repeat(4))
    });
    p.plant("var/lib/rancher/k3s/server/node-token", |s| format!("{s}\n"));
    p.plant("etc/k0s/token", |s| format!("{s}\n"));
    p.plant("etc/k0s/k0s.yaml", |s| {
        format!("spec:\n  storage:\n    kine:\n      dataSource: postgres://k0s:{s}@db.example/kine\n")
    });
    p.plant("var/snap/microk8s/current/credentials/known_tokens.csv", |s| {
        format!("{s},admin,admin,\"system:masters\"\n")
    });
    p.plant("root/.vault-token", |s| format!("{s}\n"));
    p.plant("etc/vault.d/vault.hcl", |s| format!("storage \"postgresql\" {{\n  password = \"{s}\"\n}}\n"));
    p.plant("etc/cifs-credentials", |s| format!("username=app\npassword={s}\ndomain=EXAMPLE\n"));
    p.plant("root/.smbcredentials", |s| format!("username=app\npassword={s}\n"));
    p.plant("var/lib/rancher/rke2/server/agent-token", |s| {
        format!("K10{}::node:{s}\n", "fedcba9876543210".repeat(4))
    });
    p.plant("var/lib/rancher/k3s/server/cred/passwd", |s| format!("{s},server,server,k3s:server\n"));
    p.plant("var/lib/rancher/k3s/server/cred/encryption-config.json", |s| encryption("aescbc", s));
    p.plant("etc/kubernetes/encryption-config.yaml", |s| encryption("secretbox", s));
    p.plant("etc/kubernetes/pki/tokens.csv", |s| format!("{s},admin,1,\"system:masters\"\n"));
    p.plant("etc/kubernetes/enc/enc.yaml", |s| encryption("aesgcm", s));
    p.plant("etc/rancher/node/password", str::to_owned);
    p.plant("etc/rancher/k3s/config.yaml", |s| format!("server: https://api.example:6443\ntoken: \"{s}\"\n"));
    p.plant("etc/rancher/rke2/config.yaml.d/10.yaml", |s| format!("agent-token: {s}\n"));
    p.plant("etc/rancher/rke2/registries.yaml", |s| {
        format!("configs:\n  r.example:\n    auth: {{username: me, password: {s}}}\n")
    });
    p.plant_as("etc/kubernetes/cloud.conf", "a,{b}@c/d:e;f", |s| {
        format!(
            "[Global]\nauth-url = https://keystone.example:5000/v3\nusername = kube\npassword = \"{s}\"\n"
        )
        .into_bytes()
    });
    p.plant("etc/kubernetes/cloud-config", |s| {
        format!("[VirtualCenter \"vc.example\"]\nuser = kube\npassword = {s}\n")
    });
    p.plant("etc/kubernetes/cloud-provider-config", |s| {
        format!("global:\n  user: kube\n  password: {s}\nvcenter: {{}}\n")
    });
    p.plant("etc/kubernetes/azure.json", |s| {
        format!("{{\"tenantId\":\"t\",\"aadClientId\":\"c\",\"aadClientSecret\":\"{s}\"}}")
    });
    p.plant("etc/aws/credentials", |s| {
        format!("[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = {s}\n")
    });
    p.plant("etc/openstack/clouds.yaml", |s| {
        format!("clouds:\n  c:\n    auth:\n      application_credential_id: abcd\n      application_credential_secret: {s}\n")
    });
    p.plant("opt/openshift/auth/kubeadmin-password", str::to_owned);
}

fn encryption(provider: &str, secret: &str) -> String {
    format!(
        "kind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - {provider}:\n      keys:\n      - name: key1\n        secret: {secret}\n  - identity: {{}}\n"
    )
}

fn accounts(p: &Planter) {
    for (path, prefix) in [("etc/shadow", "$y$j9T$salt$"), ("etc/shadow-", "$6$salt$")] {
        p.plant_as(path, prefix, |s| {
            format!("root:{s}:19000:0:99999:7:::\nbin:*:19000::::::\n").into_bytes()
        });
    }
    p.plant_as("etc/gshadow", "$6$salt$", |s| format!("wheel:!{s}::core\nadm:!::\n").into_bytes());
    p.plant_as("etc/security/opasswd", "$6$salt$", |s| format!("core:1000:2:$1$old,{s}\n").into_bytes());
    p.plant("root/.netrc", |s| format!("machine files.example\n  login me\n  password {s}\n"));
    p.plant("root/.pgpass", |s| format!("db.example:5432:*:me:{s}\n"));
    p.plant("root/.git-credentials", |s| format!("https://me:{s}@git.example\n"));
}

fn networks(p: &Planter) {
    p.plant("etc/wireguard/wg0.conf", |s| format!("[Interface]\nAddress = 10.0.0.1/24\nPrivateKey = {s}\n"));
    p.plant("etc/wireguard/wg1.conf", |s| {
        format!("[Peer]\nPublicKey = cHVibGljLWtleQ==\nPresharedKey = {s}\n")
    });
    p.plant("etc/systemd/network/wg.netdev", |s| format!("[WireGuard]\nPrivateKey={s}\n"));
    let connection = |section: &str, field: &str, s: &str| {
        format!("[connection]\nid=uplink-connection\n\n[{section}]\n{field}={s}\n")
    };
    let folder = "etc/NetworkManager/system-connections";
    p.plant(&format!("{folder}/a.nmconnection"), |s| connection("wifi-security", "psk", s));
    p.plant(&format!("{folder}/b.nmconnection"), |s| connection("wifi-security", "wep-key0", s));
    p.plant(&format!("{folder}/c.nmconnection"), |s| connection("802-1x", "password", s));
    p.plant(&format!("{folder}/d.nmconnection"), |s| connection("802-1x", "private-key-password", s));
    p.plant(&format!("{folder}/e.nmconnection"), |s| connection("vpn-secrets", "password", s));
    p.plant("etc/netplan/50.yaml", |s| {
        format!("network:\n  wifis:\n    wlan0:\n      access-points:\n        home: {{password: {s}}}\n")
    });
    p.plant("etc/wpa_supplicant/wpa.conf", |s| format!("network={{\n  ssid=\"home\"\n  psk=\"{s}\"\n}}\n"));
    p.plant("etc/ppp/chap-secrets", |s| format!("# client server secret\n\"me\" * \"{s}\" *\n"));
    p.plant("etc/ipsec.secrets", |s| format!("%any : PSK \"{s}\"\n"));
    p.plant("etc/keepalived/keepalived.conf", |s| {
        format!("authentication {{\n  auth_type PASS\n  auth_pass {s}\n}}\n")
    });
    p.plant("etc/fstab", |s| format!("//files/x /mnt cifs username=me,password={s},uid=0 0 0\n"));
    p.plant("etc/iscsi/iscsid.conf", |s| {
        format!("node.session.auth.username = me\nnode.session.auth.password = {s}\n")
    });
    p.plant("etc/ceph/ceph.client.admin.keyring", |s| {
        format!("[client.admin]\n\tkey = {s}\n\tcaps mon = \"allow *\"\n")
    });
    let proxy = |s: &str| format!("http://me:{s}@proxy.example:3128");
    p.plant("etc/systemd/system/kubelet.service.d/proxy.conf", |s| {
        format!("[Service]\nEnvironment=\"HTTPS_PROXY={}\" \"NO_PROXY=10.0.0.0/8\"\n", proxy(s))
    });
    p.plant("etc/systemd/system/crio.service.d/proxy.conf", |s| {
        format!("[Service]\nEnvironment=HTTP_PROXY=http://me:{}@proxy:3128\n", percent(s))
    });
    p.plant("etc/systemd/system/app.service", |s| {
        format!("[Service]\nExecStart=/usr/bin/app --api-token={s}\n")
    });
    p.plant("etc/systemd/system/k3s.service.env", |s| format!("K3S_TOKEN='{s}'\n"));
    p.plant("etc/environment", |s| format!("https_proxy={}\n", proxy(s)));
    p.plant("etc/default/app", |s| format!("APP_PROXY=me:{s}@proxy.example:3128\n"));
    p.plant("etc/sysconfig/app", |s| format!("OPTIONS=\"--user=app --password={s}\"\n"));
    p.plant("etc/profile.d/proxy.sh", |s| format!("export all_proxy={}\n", proxy(s)));
    p.plant("etc/yum.repos.d/a.repo", |s| {
        format!("[a]\nbaseurl=https://repo.example/a\nusername=me\npassword={s}\n")
    });
    p.plant("etc/apt/auth.conf.d/a.conf", |s| format!("machine repo.example login me password {s}\n"));
}

fn landfall(p: &Planter) {
    p.plant("etc/landfall/hub.token", |s| format!("{s}\n"));
    p.plant("etc/landfall/gather-token", |s| format!("{s}\n"));
    p.plant("etc/landfall/nats", |s| format!("agent\n{s}\n"));
    p.plant("etc/landfall/db", |s| format!("{s}\n"));
    p.plant("etc/landfall/bucket", |s| {
        format!("DefaultEndpointsProtocol=https;AccountName=fleet;AccountKey={s};EndpointSuffix=core.windows.net\n")
    });
    p.plant("etc/landfall/s3", |s| format!("aws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = {s}\n"));
    p.plant("etc/landfall/hub/token.key", |s| format!("{s}\n"));
    p.plant("etc/landfall/agent.env", |s| format!("HTTPS_PROXY=http://me:{s}@proxy.example:3128\n"));
    let in_place = "var/lib/landfall/in-place";
    p.plant(&format!("{in_place}/f/secret.json"), |s| {
        format!("{{\"ignition_url\":\"https://x/\",\"ignition_token\":\"{s}\"}}")
    });
    p.plant(&format!("{in_place}/g/secret.json"), |s| {
        format!("{{\"bootstrap_url\":\"https://x/\",\"bootstrap_secret\":\"{s}\"}}")
    });
    p.plant(&format!("{in_place}/h/secret.json"), |s| {
        format!("{{\"hub_url\":\"https://x/\",\"hub_token\":\"{s}\"}}")
    });
    p.plant(&format!("{in_place}/i/secret.json"), |s| {
        let auth = STANDARD.encode(format!("me:{s}"));
        format!("{{\"registry_auth\":\"{{\\\"auths\\\":{{\\\"r\\\":{{\\\"auth\\\":\\\"{auth}\\\"}}}}}}\"}}")
    });
}

/// Harmless words in the same files.
const HARMLESS: [&str; 40] = [
    "https://keystone.example:5000/v3",
    "application_credential_id",
    "/etc/app/settings.ini",
    "JoinConfiguration",
    "EncryptionConfiguration",
    "io.containerd.grpc.v1.cri",
    "multipart/mixed",
    "text/cloud-config",
    "AKIDEXAMPLE",
    "me@example.com",
    "proxy.example:3128",
    "proxy.example",
    "registry.example",
    "10.0.0.0/8",
    "api.example:6443",
    "https://api.example:6443",
    "core.windows.net",
    "DefaultEndpointsProtocol",
    "REGISTRY_PASSWORD",
    "K3S_TOKEN",
    "uplink-connection",
    "wifi-security",
    "cHVibGljLWtleQ==",
    "kubelet.service.d",
    "/etc/rancher/node/password",
    "files.example",
    "https://files.example/x",
    "plain_text_passwd",
    "hashed_passwd",
    "rh_subscription",
    "instance-id",
    "default_user",
    "k3s:server",
    "repo.example",
    "https://repo.example/a",
    "db.example:5432",
    "certificateKey",
    "PresharedKey",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "git.example",
];

#[test]
fn bare_values_of_secret_files_do_not_leak() {
    let planter = plant();
    let planted = planter.planted.borrow().clone();
    assert!(planted.len() >= 60, "{}", planted.len());
    let mut log: String =
        planted.iter().map(|(_, value)| format!("step wrote >{value}< and ended\n")).collect();
    for word in HARMLESS {
        log += &format!("step named {word} and ended\n");
    }
    planter.machine.file(LOG.1, log);
    let bundle = planter.machine.collect();
    let text = bundle.text(LOG.0);
    let leaks: Vec<_> = planted.iter().filter(|(_, value)| bundle.contains(value).is_some()).collect();
    assert!(leaks.is_empty(), "{} of {} leak: {leaks:#?}", leaks.len(), planted.len());
    let lost: Vec<_> =
        HARMLESS.iter().filter(|word| !text.contains(&format!("step named {word} and"))).collect();
    assert!(lost.is_empty(), "{lost:#?}");
}
