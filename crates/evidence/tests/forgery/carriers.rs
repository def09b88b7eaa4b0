//! Journal entries with attacker-chosen text, and the fields that journald sets for their writers.

use crate::writer::{Writer, fill};

/// An entry whose message and fields contain a token that [`fill`] replaces with a phrase.
#[derive(Debug)]
pub(crate) struct Carrier {
    pub(crate) name: &'static str,
    pub(crate) writer: Writer,
    pub(crate) message: &'static str,
    /// Fields controlled by the sender, in addition to `MESSAGE` and `SYSLOG_IDENTIFIER`.
    pub(crate) fields: &'static [(&'static str, &'static str)],
}

const SESSION: &str = "/user.slice/user-1000.slice/session-1.scope";
const USER_SERVICE: &str = "/user.slice/user-1000.slice/user@1000.service/app.slice/kubelet.service";
const USER_MANAGER: &str = "/user.slice/user-1000.slice/user@1000.service/init.scope";
const POD: &str = "/kubepods.slice/kubepods-pod8a7b.slice/cri-containerd-3f2a91bc77de.scope";
const POD_CGROUPFS: &str = "/kubepods/besteffort/pod8a7b/3f2a91bc77de";

pub(crate) const SYSTEMD: Writer =
    Writer { pid: "1", ..Writer::root("/usr/lib/systemd/systemd", "/init.scope") };
pub(crate) const KUBELET: Writer = Writer::stdout("/usr/bin/kubelet", "/system.slice/kubelet.service");
pub(crate) const CLOUD_INIT: Writer =
    Writer::stdout("/usr/bin/python3.11", "/system.slice/cloud-final.service").named("cloud-init");
const SSHD: Writer = Writer::root("/usr/sbin/sshd", "/system.slice/ssh.service");
const NETWORK_MANAGER: Writer =
    Writer::root("/usr/sbin/NetworkManager", "/system.slice/NetworkManager.service");
const HOSTNAMED: Writer =
    Writer::root("/usr/lib/systemd/systemd-hostnamed", "/system.slice/systemd-hostnamed.service");
const CONTAINERD: Writer = Writer::stdout("/usr/bin/containerd", "/system.slice/containerd.service");
const CRIO: Writer = Writer::stdout("/usr/bin/crio", "/system.slice/crio.service");
const DOCKERD: Writer = Writer::root("/usr/bin/dockerd", "/system.slice/docker.service");
const K3S: Writer = Writer::stdout("/usr/local/bin/k3s", "/system.slice/k3s.service");
const ETCD: Writer =
    Writer { uid: "998", ..Writer::stdout("/usr/local/bin/etcd", "/system.slice/etcd.service") };
const API_SERVER: Writer =
    Writer::stdout("/usr/local/bin/kube-apiserver", "/system.slice/kube-apiserver.service");
const KERNEL: Writer =
    Writer { transport: "kernel", pid: "", uid: "", exe: "", cgroup: "", identifier: "kernel" };
const AUDIT: Writer = Writer { transport: "audit", identifier: "audit", ..KERNEL };
/// A program run by a user with a shell.
const USER: Writer = Writer { uid: "1000", ..Writer::root("/usr/bin/logger", SESSION) };

pub(crate) const CARRIERS: &[Carrier] = &[
    // Unauthenticated clients.
    said("ssh user", SSHD, "Invalid user {p} from 192.0.2.1 port 4"),
    said("ssh user, password", SSHD, "Failed password for invalid user {p} from 192.0.2.1 port 4 ssh2"),
    said(
        "ssh user, session process",
        SSHD.run("/usr/lib/openssh/sshd-session"),
        "Invalid user {p} from 192.0.2.1",
    ),
    said("ssh banner", SSHD, "Bad protocol version identification '{p}' from 192.0.2.1 port 4"),
    said("ssh user, PAM", SSHD, "pam_unix(sshd:auth): authentication failure; logname= uid=0 user={p}"),
    said(
        "console login",
        Writer::root("/usr/bin/login", SESSION),
        "FAILED LOGIN (1) on '/dev/tty1' FOR '{p}'",
    ),
    said(
        "user agent, nginx",
        Writer::root("/usr/sbin/nginx", "/system.slice/nginx.service"),
        "192.0.2.1 - - [02/Jan/2026:03:09:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"{p}\"",
    ),
    said(
        "user agent, nginx JSON",
        Writer::stdout("/usr/sbin/nginx", "/system.slice/nginx.service"),
        "{\"status\":200,\"agent\":{q}}",
    ),
    said(
        "user agent, HAProxy",
        Writer::root("/usr/sbin/haproxy", "/system.slice/haproxy.service"),
        "192.0.2.1:4 [02/Jan/2026:03:09:00.123] api api/m0 0/0/1/2/3 200 1 - - ---- {{p}} \"GET / HTTP/1.1\"",
    ),
    said(
        "user agent, kubelet",
        KUBELET,
        "I0102 03:09:00.123456       7 httplog.go:132] \"HTTP\" verb=\"GET\" URI={q} latency=\"1ms\" userAgent={q} resp=401",
    ),
    said(
        "user agent, API server",
        API_SERVER,
        "I0102 03:09:00.123456       7 httplog.go:132] \"HTTP\" verb=\"GET\" URI={q} latency=\"1ms\" userAgent={q} resp=401",
    ),
    said(
        "user agent, k3s",
        K3S,
        "I0102 03:09:00.123456       7 httplog.go:132] \"HTTP\" verb=\"GET\" URI={q} latency=\"1ms\" userAgent={q} resp=401",
    ),
    said(
        "client certificate, API server",
        API_SERVER,
        "E0102 03:09:00.123456       7 authentication.go:73] \"Unable to authenticate the request\" err=\"[x509: subject with cn={e} is not in the allowed list, invalid bearer token]\"",
    ),
    said(
        "TLS server name, etcd",
        ETCD,
        "{\"level\":\"warn\",\"ts\":\"2026-01-02T03:09:00.123456Z\",\"caller\":\"embed/config_logging.go:170\",\"msg\":\"rejected connection on client endpoint\",\"remote-addr\":\"192.0.2.1:4\",\"server-name\":{q},\"error\":\"EOF\"}",
    ),
    // Network and cloud: DHCP, DNS, time, metadata.
    said(
        "DHCP host name",
        NETWORK_MANAGER,
        "<info>  [1767323345.1] dhcp4 (eth0): option host_name            => '{p}'",
    ),
    said(
        "DHCP option",
        NETWORK_MANAGER,
        "<info>  [1767323345.1] dhcp4 (eth0): option wpad                 => '{p}'",
    ),
    said(
        "DHCP root path",
        NETWORK_MANAGER,
        "<info>  [1767323345.1] dhcp4 (eth0): option root_path            => '{p}'",
    ),
    said(
        "DHCP host name, policy",
        NETWORK_MANAGER,
        "<info>  [1767323345.1] policy: set-hostname: set hostname to '{p}' (from DHCPv4)",
    ),
    said(
        "DHCP host name, change",
        NETWORK_MANAGER,
        "<info>  [1767323345.1] hostname: hostname changed from (none) to \"{p}\"",
    ),
    said(
        "network name",
        NETWORK_MANAGER,
        "<info>  [1767323345.1] device (wlan0): Activation: (wifi) connection '{p}' requires no security.",
    ),
    said("host name set", HOSTNAMED, "Hostname set to <{p}> (transient)"),
    said("host name changed", HOSTNAMED, "Changed host name to '{p}'"),
    said("host name at boot", SYSTEMD, "Hostname set to <{p}>."),
    said(
        "DHCP client hook",
        Writer::stdout("/usr/bin/dash", "/system.slice/networking.service").named("dhclient-script"),
        "new_host_name='{p}'",
    ),
    said(
        "DHCP client hook, logger",
        Writer::root("/usr/bin/logger", "/system.slice/dhcpcd.service").named("dhcpcd-run-hooks"),
        "eth0: setting hostname to {p}",
    ),
    said(
        "DNS name",
        Writer::root("/usr/lib/systemd/systemd-resolved", "/system.slice/systemd-resolved.service"),
        "DNSSEC validation failed for question {dns} IN A: no-signature",
    ),
    said(
        "metadata host name",
        CLOUD_INIT,
        "2026-01-02 03:09:00,123 - cc_set_hostname.py[DEBUG]: Setting the hostname to {p} ({p})",
    ),
    said(
        "metadata host name, update",
        CLOUD_INIT,
        "2026-01-02 03:09:00,123 - cc_update_hostname.py[DEBUG]: Updating hostname to {p} ({p})",
    ),
    said(
        "metadata host name, failure",
        CLOUD_INIT,
        "2026-01-02 03:09:00,123 - __init__.py[WARNING]: Failed to write hostname {p} to /etc/hostname",
    ),
    said(
        "metadata host name, system",
        CLOUD_INIT,
        "2026-01-02 03:09:00,123 - __init__.py[DEBUG]: Non-persistently setting the system hostname to {p}",
    ),
    said(
        "metadata host name, hostname",
        CLOUD_INIT,
        "2026-01-02 03:09:00,123 - subp.py[DEBUG]: Running command ['hostname', '{p}'] with allowed return codes [0]",
    ),
    said(
        "metadata host name, hostnamectl",
        CLOUD_INIT,
        "2026-01-02 03:09:00,123 - subp.py[DEBUG]: Running command ['hostnamectl', 'set-hostname', '{p}'] with allowed return codes [0]",
    ),
    said(
        "metadata host name, Azure",
        Writer::stdout("/usr/bin/python3.11", "/system.slice/walinuxagent.service"),
        "2026-01-02T03:09:00.123456Z INFO EnvHandler ExtHandler Detected hostname change: n1 -> {p}",
    ),
    said(
        "metadata user, Google",
        Writer::root("/usr/bin/google_guest_agent", "/system.slice/google-guest-agent.service"),
        "Updating keys for user {p}.",
    ),
    // Users with a shell.
    said("logger as kubelet", USER.named("kubelet"), "{p}"),
    said("logger as kubeadm", USER.named("kubeadm"), "{p}"),
    said("logger as cloud-init", USER.named("cloud-init"), "{p}"),
    said("logger as systemd", USER.named("systemd"), "{p}"),
    said("logger as kernel", USER.named("kernel"), "{p}"),
    said("logger as containerd", USER.named("containerd"), "{p}"),
    said("logger as etcd", USER.named("etcd"), "{p}"),
    said("logger as k3s", USER.named("k3s"), "{p}"),
    said("logger, tag", USER.named("kubelet: {p}"), "hello"),
    said("logger, tag of two lines", USER.named("x\nJan 02 03:09:00 n1 kubelet[7]: {p}\n"), "hello"),
    said("logger, second line", USER.named("x"), "first\n2026-01-02T03:09:00.000000Z n1 kubelet[7]: {p}"),
    said(
        "systemd-cat",
        Writer { uid: "1000", ..Writer::stdout("/usr/bin/dash", SESSION) }.named("kubelet"),
        "{p}",
    ),
    said("program of a user", USER.run("/home/alice/kubelet"), "{p}"),
    said("process of a user that ended", USER.run("").named("kubelet"), "{p}"),
    Carrier {
        name: "native fields",
        writer: Writer { transport: "journal", ..USER }.named("systemd"),
        message: "{p}",
        fields: &[
            ("UNIT", "kubelet.service"),
            ("OBJECT_SYSTEMD_UNIT", "kubelet.service"),
            ("SYSLOG_PID", "1"),
            ("SYSLOG_FACILITY", "0"),
            ("PRIORITY", "2"),
            ("MESSAGE_ID", "39f53479d3a045ac8e11786248231fbf"),
            ("JOB_RESULT", "{p}"),
        ],
    },
    Carrier {
        name: "native fields of a container",
        writer: Writer { transport: "journal", ..USER }.named("etcd"),
        message: "{p}",
        fields: &[
            ("CONTAINER_NAME", "k8s_etcd_etcd-n1_kube-system_8a7b_0"),
            ("CONTAINER_ID", "3f2a91bc77de"),
            ("SYSTEMD_UNIT", "kubelet.service"),
        ],
    },
    said(
        "sudo",
        Writer::root("/usr/bin/sudo", SESSION),
        "   alice : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND={p}",
    ),
    said(
        "sudo, directory",
        Writer::root("/usr/bin/sudo", SESSION),
        "   alice : command not allowed ; TTY=pts/0 ; PWD={p} ; USER=root ; COMMAND=x",
    ),
    said(
        "su",
        Writer { uid: "1000", ..Writer::root("/usr/bin/su", SESSION) },
        "FAILED SU (to {p}) alice on pts/0",
    ),
    said(
        "link to su",
        Writer { ..Writer::root("/usr/bin/su", SESSION) }.named("kubeadm"),
        "FAILED SU (to {p}) alice on pts/0",
    ),
    said(
        "pkexec",
        Writer::root("/usr/bin/pkexec", SESSION),
        "alice: Executing command [USER=root] [TTY=pts/0] [CWD={p}] [COMMAND={p}]",
    ),
    said(
        "polkit",
        Writer::root("/usr/lib/polkit-1/polkitd", "/system.slice/polkit.service"),
        "Registered Authentication Agent for unix-process:1:2 (system bus name :1.2 [{p}], object path /x)",
    ),
    said(
        "cron",
        Writer::root("/usr/sbin/cron", "/system.slice/cron.service").named("CRON"),
        "(alice) CMD ({p})",
    ),
    said(
        "snap search",
        Writer::root("/usr/lib/snapd/snapd", "/system.slice/snapd.service"),
        "api_find.go:1: cannot find snap \"{p}\"",
    ),
    said("audit, execve", AUDIT, "EXECVE argc=1 a0={hex}"),
    said(
        "audit, command",
        AUDIT,
        "USER_CMD pid=1 uid=1000 auid=1000 ses=1 msg='cwd=\"/\" cmd={hex} terminal=pts/0 res=failed'",
    ),
    said(
        "audit, account",
        AUDIT,
        "USER_LOGIN pid=1 uid=0 auid=4294967295 msg='op=login acct={hex} exe=\"/usr/sbin/sshd\" res=failed'",
    ),
    said(
        "audit, denial",
        AUDIT,
        "AVC apparmor=\"DENIED\" operation=\"open\" profile=\"x\" name={hex} pid=1 comm={hexcomm}",
    ),
    said(
        "audit in the kernel's log",
        KERNEL,
        "audit: type=1100 audit(1767323345.123:45): pid=1 uid=0 msg='op=PAM:authentication acct={hex} exe=\"/usr/sbin/sshd\" res=failed'",
    ),
    said(
        "audit denial in the kernel's log",
        KERNEL,
        "audit: type=1400 audit(1767323345.123:45): apparmor=\"DENIED\" operation=\"open\" profile=\"x\" name={hex} pid=1 comm={hexcomm}",
    ),
    said(
        "unit of a user",
        Writer { pid: "1234", uid: "1000", ..Writer::root("/usr/lib/systemd/systemd", USER_MANAGER) },
        "Started run-u1.service - {p}.",
    ),
    said(
        "output of a user's unit",
        Writer { uid: "1000", ..Writer::stdout("/usr/bin/kubelet", USER_SERVICE) },
        "{p}",
    ),
    said("mount of a user", SYSTEMD, "Unmounted home-alice-{path}.mount - /home/alice/{p}."),
    said("mount of a user, name", SYSTEMD, "home-alice-{path}.mount: Deactivated successfully."),
    said(
        "label of a disk",
        SYSTEMD,
        "dev-disk-by\\x2dlabel-{path}.device: Dev dev-disk-by\\x2dlabel-{path}.device appeared twice with different sysfs paths /sys/x and /sys/y",
    ),
    said(
        "process that is killed",
        SYSTEMD,
        "session-1.scope: Killing process 123 ({comm}) with signal SIGKILL.",
    ),
    said(
        "process that reloads",
        SYSTEMD,
        "Reloading requested from client PID 123 ('{comm}') (unit session-1.scope)...",
    ),
    said(
        "process that notifies",
        SYSTEMD,
        "ssh.service: Found left-over process 123 ({comm}) in control group while starting unit. Ignoring.",
    ),
    said(
        "kernel, protection fault",
        KERNEL,
        "traps: {comm}[123] general protection fault ip:1 sp:2 error:0 in {p}[3,4]",
    ),
    said(
        "kernel, segmentation fault",
        KERNEL,
        "{comm}[123]: segfault at 0 ip 1 sp 2 error 4 in {p}[3,4] likely on CPU 0",
    ),
    said("kernel, executable stack", KERNEL, "process '/home/alice/{p}' started with executable stack"),
    said("kernel, command line", KERNEL, "ptrace attach of \"{p}\"[123] was attempted by \"{p}\"[124]"),
    said("kernel, 9p", KERNEL, "9pnet: Could not find request transport: {p}"),
    said("kernel, NFS server", KERNEL, "nfs: server {p} not responding, still trying"),
    said("description of a unit", SYSTEMD, "Started run-u1.service - {p}."),
    said("description of a unit, old", SYSTEMD, "Stopped {p}."),
    said(
        "name of a time server",
        Writer::root("/usr/lib/systemd/systemd-timesyncd", "/system.slice/systemd-timesyncd.service"),
        "Contacted time server 192.0.2.1:123 ({p}).",
    ),
    said(
        "name of a DHCP server",
        Writer::root("/usr/sbin/dhcpcd", "/system.slice/dhcpcd.service"),
        "eth0: offered 192.0.2.7 from 192.0.2.1 `{p}'",
    ),
    said("name of a VPN", NETWORK_MANAGER, "<info>  [1767323345.1] vpn[0x1,8a,\"{p}\"]: starting openvpn"),
    said("kernel, mount option", KERNEL, "tmpfs: Unknown parameter '{p}'"),
    said("kernel, mount source", KERNEL, "overlayfs: failed to resolve '{p}': -2"),
    said("kernel, interface name", KERNEL, "device {comm} entered promiscuous mode"),
    said("kernel, USB product", KERNEL, "usb 1-1: Product: {p}"),
    said("kernel, USB maker", KERNEL, "usb 1-1: Manufacturer: {p}"),
    said("kernel, USB serial number", KERNEL, "usb 1-1: SerialNumber: {p}"),
    said(
        "kernel, input device",
        KERNEL,
        "input: {p} as /devices/pci0000:00/0000:00:01.2/usb1/1-1/1-1:1.0/input/input5",
    ),
    said(
        "kernel, HID device",
        KERNEL,
        "hid-generic 0003:1234:5678.0001: input,hidraw0: USB HID v1.11 Keyboard [{p}] on usb-0000:00:01.2-1/input0",
    ),
    said(
        "dump of a process",
        Writer {
            uid: "997",
            ..Writer::root(
                "/usr/lib/systemd/systemd-coredump",
                "/system.slice/system-systemd\\x2dcoredump.slice/systemd-coredump@0-1-0.service",
            )
        },
        "Process 123 ({comm}) of user 1000 dumped core.\n\nModule {p} without build-id.\nStack trace of thread 123:\n#0  0x0000000000001129 {p} (/home/alice/{p} + 0x1129)",
    ),
    said(
        "file name, tmpfiles",
        Writer::root("/usr/bin/systemd-tmpfiles", "/system.slice/systemd-tmpfiles-clean.service"),
        "Failed to remove \"/tmp/{p}\", ignoring: Operation not permitted",
    ),
    said(
        "disk label, udisks",
        Writer::root("/usr/libexec/udisks2/udisksd", "/system.slice/udisks2.service"),
        "Mounted /dev/sdb1 at /media/alice/{p} on behalf of uid 1000",
    ),
    // Root's scripts that list names chosen by users.
    said("environment", CLOUD_INIT, "HOSTNAME={p}"),
    said("environment, declare", CLOUD_INIT, "declare -x HOSTNAME={q}"),
    said("environment, small letters", CLOUD_INIT, "declare -x user_agent={q}"),
    said("ps aux", CLOUD_INIT, "alice       1234  0.0  0.1  12345  6789 ?        Ss   03:09   0:00 {p}"),
    said("ps -ef", CLOUD_INIT, "alice       1234       1  0 03:09 ?        00:00:00 {p}"),
    said("ls -l", CLOUD_INIT, "-rw-r--r-- 1 alice alice 0 Jan  2 03:09 {p}"),
    said("file name, find", CLOUD_INIT, "/home/alice/{p}"),
    said(
        "file name, find -ls",
        CLOUD_INIT,
        "   131074      4 -rw-r--r--   1 alice    alice           0 Jan  2 03:09 /home/alice/{p}",
    ),
    said("systemctl list-units", CLOUD_INIT, "  home-alice-x.mount loaded active mounted /home/alice/{p}"),
    // Containers and pods.
    Carrier {
        name: "container on Docker's journald driver",
        writer: DOCKERD.named("3f2a91bc77de"),
        message: "{p}",
        fields: &[
            ("CONTAINER_ID", "3f2a91bc77de"),
            ("CONTAINER_ID_FULL", "3f2a91bc77de3f2a91bc77de3f2a91bc77de3f2a91bc77de3f2a91bc77de3f2a"),
            ("CONTAINER_NAME", "kubelet"),
            ("CONTAINER_TAG", "kubelet"),
            ("IMAGE_NAME", "{p}"),
        ],
    },
    Carrier {
        name: "container of root's podman",
        writer: Writer {
            transport: "journal",
            ..Writer::root("/usr/bin/conmon", "/machine.slice/libpod-conmon-3f2a.scope")
        }
        .named("kubelet"),
        message: "{p}",
        fields: &[("CONTAINER_NAME", "kubelet"), ("CONTAINER_ID_FULL", "3f2a91bc77de")],
    },
    Carrier {
        name: "container of a user's podman",
        writer: Writer {
            transport: "journal",
            uid: "1000",
            ..Writer::root(
                "/usr/bin/conmon",
                "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-3f2a.scope",
            )
        }
        .named("kubelet"),
        message: "{p}",
        fields: &[("CONTAINER_NAME", "kubelet"), ("CONTAINER_ID_FULL", "3f2a91bc77de")],
    },
    said(
        "container of a unit, docker run",
        Writer::stdout("/usr/bin/docker", "/system.slice/web.service"),
        "{p}",
    ),
    said(
        "container of a unit, podman run",
        Writer::stdout("/usr/bin/podman", "/system.slice/web.service"),
        "{p}",
    ),
    said(
        "container of a unit, conmon",
        Writer::stdout("/usr/bin/conmon", "/system.slice/web.service"),
        "{p}",
    ),
    said(
        "container of a unit, nerdctl run",
        Writer::stdout("/usr/local/bin/nerdctl", "/system.slice/web.service"),
        "{p}",
    ),
    said("container with the journal's socket", Writer::root("/usr/bin/kubelet", POD), "{p}"),
    said(
        "container with the journal's socket, logger",
        Writer::root("/usr/bin/logger", POD).named("kubeadm"),
        "{p}",
    ),
    said(
        "container with the journal's socket, cgroupfs",
        Writer::root("/usr/bin/kubelet", POD_CGROUPFS),
        "{p}",
    ),
    said(
        "container with the journal's socket, logger, cgroupfs",
        Writer::root("/usr/bin/logger", POD_CGROUPFS).named("kubeadm"),
        "{p}",
    ),
    said(
        "container with the journal's socket, Docker",
        Writer::root("/usr/bin/kubelet", "/docker/3f2a91bc77de"),
        "{p}",
    ),
    said(
        "probe of a pod, several lines",
        KUBELET,
        "I0102 03:09:00.123456       7 prober.go:107] \"Probe failed\" probeType=\"Liveness\" pod=\"default/web\" output=<\n\t{p}\n >",
    ),
    said(
        "protocols of a TLS client, kubelet",
        KUBELET,
        "I0102 03:09:00.123456       7 log.go:245] http: TLS handshake error from 192.0.2.1:4: tls: client requested unsupported application protocols ([{q}])",
    ),
    said(
        "audit id of a client",
        API_SERVER,
        "I0102 03:09:00.123456       1 httplog.go:132] \"HTTP\" verb=\"GET\" audit-ID={q} srcIP=\"192.0.2.1:4\" resp=401",
    ),
    said(
        "sandbox of a pod, containerd 2",
        CONTAINERD,
        "time=\"2026-01-02T03:09:00Z\" level=error msg=\"RunPodSandbox for name:\\\"web\\\" uid:\\\"8a7b\\\" namespace:\\\"default\\\" failed, error\" error={q}",
    ),
    said(
        "payload of a unit",
        Writer::root("/usr/bin/kubelet", "/system.slice/web.service/libpod-payload-3f2a"),
        "{p}",
    ),
    said(
        "probe of a pod",
        KUBELET,
        "I0102 03:09:00.123456       7 prober.go:107] \"Probe failed\" probeType=\"Liveness\" pod=\"default/web\" podUID=\"8a7b\" containerName=\"web\" probeResult=\"failure\" output={q}",
    ),
    said(
        "command of a pod",
        KUBELET,
        "E0102 03:09:00.123456       7 pod_workers.go:1301] \"Error syncing pod, skipping\" err=\"failed to \\\"StartContainer\\\" for \\\"web\\\" with RunContainerError: \\\"exec: {qq}: executable file not found\\\"\" pod=\"default/web\" podUID=\"8a7b\"",
    ),
    said(
        "command in a pod",
        KUBELET,
        "E0102 03:09:00.123456       7 log.go:32] \"ExecSync cmd from runtime service failed\" err=\"rpc error: code = Unknown desc = command error: x\" containerID=\"3f2a91bc77de\" cmd=[\"sh\",\"-c\",{q}]",
    ),
    said(
        "command of a container",
        KUBELET,
        "E0102 03:09:00.123456       7 log.go:32] \"StartContainer from runtime service failed\" err=\"rpc error: code = Unknown desc = failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: {qq}: stat {e}: no such file or directory: unknown\" containerID=\"3f2a91bc77de\"",
    ),
    said(
        "directory of a container",
        KUBELET,
        "E0102 03:09:00.123456       7 log.go:32] \"StartContainer from runtime service failed\" err=\"rpc error: code = Unknown desc = OCI runtime create failed: runc create failed: unable to start container process: chdir to cwd ({qq}) set in config.json failed: no such file or directory: unknown\" containerID=\"3f2a91bc77de\"",
    ),
    said(
        "user of a container",
        KUBELET,
        "E0102 03:09:00.123456       7 log.go:32] \"CreateContainer in sandbox from runtime service failed\" err=\"rpc error: code = Unknown desc = failed to generate container spec: unable to find user {e}: no matching entries in passwd file\" podSandboxID=\"3f2a91bc77de\"",
    ),
    said(
        "mount of a container",
        KUBELET,
        "E0102 03:09:00.123456       7 log.go:32] \"StartContainer from runtime service failed\" err=\"rpc error: code = Unknown desc = OCI runtime create failed: runc create failed: error mounting \\\"/x\\\" to rootfs at {qq}: not a directory: unknown\" containerID=\"3f2a91bc77de\"",
    ),
    said(
        "registry of an image",
        KUBELET,
        "E0102 03:09:00.123456       7 log.go:32] \"PullImage from image service failed\" err=\"rpc error: code = Unknown desc = failed to pull and unpack image \\\"evil.example/x:1\\\": failed to resolve reference \\\"evil.example/x:1\\\": unexpected status from HEAD request to https://evil.example/v2/x/manifests/1: 418 {e}\" image=\"evil.example/x:1\"",
    ),
    said(
        "event of a pod",
        KUBELET,
        "I0102 03:09:00.123456       7 event.go:389] \"Event occurred\" object=\"default/web\" fieldPath=\"\" kind=\"Pod\" apiVersion=\"v1\" type=\"Warning\" reason=\"Failed\" message={q}",
    ),
    said(
        "hook of a pod",
        KUBELET,
        "E0102 03:09:00.123456       7 handlers.go:78] \"Exec lifecycle hook for Container in Pod failed\" err=\"command 'x' exited with 1\" execCommand=[{q}] containerName=\"web\" pod=\"default/web\" message={q}",
    ),
    said(
        "termination message of a pod",
        KUBELET,
        "I0102 03:09:00.123456       7 status_manager.go:1] \"Status for pod updated successfully\" pod=\"default/web\" status={\"message\":{q}}",
    ),
    said(
        "volume of a pod",
        KUBELET,
        "E0102 03:09:00.123456       7 nestedpendingoperations.go:348] Operation for \"x\" failed. Error: MountVolume.SetUp failed for volume \"data\" (UniqueName: \"x\") pod \"web\" (UID: \"8a7b\") : mount failed: exit status 32\\nMounting command: mount\\nMounting arguments: -t nfs evil.example:/{p} /x\\nOutput: mount.nfs: {p}",
    ),
    said(
        "probe of a pod, k3s",
        K3S,
        "I0102 03:09:00.123456       7 prober.go:107] \"Probe failed\" probeType=\"Liveness\" pod=\"default/web\" podUID=\"8a7b\" containerName=\"web\" probeResult=\"failure\" output={q}",
    ),
    said(
        "command of a container, containerd",
        CONTAINERD,
        "time=\"2026-01-02T03:09:00.123456789Z\" level=error msg=\"StartContainer for \\\"3f2a91bc77de\\\" failed\" error=\"failed to create containerd task: OCI runtime create failed: runc create failed: unable to start container process: exec: {qq}: executable file not found in $PATH: unknown\"",
    ),
    said(
        "command in a container, containerd",
        CONTAINERD,
        "time=\"2026-01-02T03:09:00.123456789Z\" level=error msg=\"ExecSync for \\\"3f2a91bc77de\\\" failed\" error=\"failed to exec in container: failed to start exec \\\"4b\\\": OCI runtime exec failed: exec failed: unable to start container process: exec: {qq}: executable file not found in $PATH: unknown\"",
    ),
    said(
        "directory of a container, containerd",
        CONTAINERD,
        "time=\"2026-01-02T03:09:00.123456789Z\" level=error msg=\"StartContainer for \\\"3f2a91bc77de\\\" failed\" error=\"OCI runtime create failed: runc create failed: unable to start container process: chdir to cwd ({qq}) set in config.json failed: no such file or directory\"",
    ),
    said(
        "user of a container, containerd",
        CONTAINERD,
        "time=\"2026-01-02T03:09:00.123456789Z\" level=error msg=\"CreateContainer within sandbox \\\"3f2a91bc77de\\\" failed\" error=\"unable to find user {e}: no matching entries in passwd file\"",
    ),
    said(
        "registry of an image, containerd",
        CONTAINERD,
        "time=\"2026-01-02T03:09:00.123456789Z\" level=error msg=\"PullImage \\\"evil.example/x:1\\\" failed\" error=\"failed to pull and unpack image \\\"evil.example/x:1\\\": failed to resolve reference \\\"evil.example/x:1\\\": unexpected status from HEAD request to https://evil.example/v2/x/manifests/1: 418 {e}\"",
    ),
    said(
        "sandbox of a pod, containerd",
        CONTAINERD,
        "time=\"2026-01-02T03:09:00.123456789Z\" level=error msg=\"RunPodSandbox for &PodSandboxMetadata{Name:web,Uid:8a7b,Namespace:default,Attempt:0,} failed, error\" error=\"{p}\"",
    ),
    said(
        "command of a container, CRI-O",
        CRIO,
        "time=\"2026-01-02 03:09:00.123456789Z\" level=error msg=\"Failed to start container 3f2a91bc77de: container_linux.go:380: starting container process caused: exec: {qq}: stat {e}: no such file or directory\" id=8a7b name=/runtime.v1.RuntimeService/StartContainer",
    ),
    said(
        "command of a container, Docker",
        DOCKERD,
        "time=\"2026-01-02T03:09:00.123456789Z\" level=error msg=\"Handler for POST /v1.43/containers/3f2a/start returned error: failed to create task for container: OCI runtime create failed: runc create failed: unable to start container process: exec: {qq}: executable file not found in $PATH: unknown\"",
    ),
];

const fn said(name: &'static str, writer: Writer, message: &'static str) -> Carrier {
    Carrier { name, writer, message, fields: &[] }
}

// === impl Carrier ===

impl Carrier {
    pub(crate) fn entry(&self, number: u64, phrase: &str, out: &mut Vec<u8>) {
        let mut fields: Vec<(&str, String)> =
            self.fields.iter().map(|(name, value)| (*name, fill(value, phrase))).collect();
        if self.writer.identifier.contains("{p}") {
            fields.push(("SYSLOG_IDENTIFIER", fill(self.writer.identifier, phrase)));
        }
        self.writer.entry(number, &fill(self.message, phrase), &fields, out);
    }
}
