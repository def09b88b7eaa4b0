//! Scratch.
#![allow(warnings)]
mod phrases;
use landfall_diagnose::{Engine, RuleSet, Stream};
use landfall_model::report::State;
use crate::phrases::phrases;
use std::collections::BTreeMap;

const H: &str = "Jan 02 03:09:00 n1";
const K: &str = "Jan 02 03:09:00 n1 kubelet[7]: E0102 03:09:00.123456       7 x.go:1] ";
const A: &str = "2026-01-02T03:09:00.123456789Z stderr F E0102 03:09:00.123456       1 x.go:1] ";
const AF: &str = "/var/log/pods/kube-system_kube-apiserver-n1_8a7b/kube-apiserver/0.log";
const CM: &str = "/var/log/pods/kube-system_kube-controller-manager-n1_8a7b/kube-controller-manager/0.log";
const EF: &str = "/var/log/pods/kube-system_etcd-n1_8a7b/etcd/0.log";
const CI: &str = "/var/log/cloud-init.log";
const CT: &str = "Jan 02 03:09:00 n1 containerd[7]: time=\"2026-01-02T03:09:00.123456789Z\" level=error msg=";
const CR: &str = "2026-01-02T03:09:00.123456789Z stdout F ";

fn carriers() -> Vec<(&'static str, &'static str, String)> {
    let mut v: Vec<(&'static str, &'static str, String)> = Vec::new();
    let mut h = |n: &'static str, t: &str| v.push((n, "", format!("{H} {t}")));
    h("session of a user", "systemd-logind[7]: New session 3 of user {p}.");
    h("coredump", "systemd-coredump[7]: Process 123 ({comm}) of user 1000 dumped core.");
    h("coredump frames", "systemd-coredump[7]: Process 123 (x) of user 1000 dumped core.\n                   \n                   Module {p} without build-id.\n                   #0  0x0000000000001129 {p} (/home/alice/{p} + 0x1129)");
    let many = "                   #0  0x1 n/a\n".repeat(45);
    h("coredump many frames", &format!("systemd-coredump[7]: Process 123 (x) of user 1000 dumped core.\n{many}                   #0  0x0000000000001129 {{p}} (/x + 0x1129)"));
    h("container entry of many lines", &format!("3f2a91bc77de[7]: x\n{many}                   {{p}}"));
    let wide = format!("                   {}\n", "x".repeat(9000));
    h("container entry of wide lines", &format!("3f2a91bc77de[7]: x\n{wide}                   {{p}}"));
    h("tmpfiles", "systemd-tmpfiles[7]: Failed to remove \"/tmp/{p}\", ignoring: Operation not permitted");
    h("nspawn", "systemd-nspawn[7]: {p}");
    h("fsck label", "systemd-fsck[7]: {p}: recovering journal");
    h("udevd", "systemd-udevd[7]: sdb1: Process '/usr/bin/x {p}' failed with exit code 1.");
    h("resolved", "systemd-resolved[7]: DNSSEC validation failed for question {p} IN A: no-signature");
    h("resolved conflict", "systemd-resolved[7]: Detected conflict on {dns} IN A 192.0.2.1");
    h("networkd ssid", "systemd-networkd[7]: wlan0: Connected WiFi access point: {p} (aa:bb:cc:dd:ee:ff)");
    h("networkd hostname", "systemd-networkd[7]: eth0: DHCPv4 server offered hostname {p}");
    h("networkd set hostname", "systemd-networkd[7]: Could not set hostname to '{p}': Invalid argument");
    h("timesyncd", "systemd-timesyncd[7]: Contacted time server 192.0.2.1:123 ({dns}).");
    h("polkit", "polkitd[7]: Registered Authentication Agent for unix-process:1:2 (system bus name :1.2 [{p}], object path /x)");
    h("dbus", "dbus-daemon[7]: [system] Rejected send message, 2 matched rules; type=\"method_call\", sender=\":1.5\" (uid=1000 pid=2 comm=\"{p}\" label=\"x\")");
    h("chronyd", "chronyd[7]: Selected source 192.0.2.1 ({dns})");
    h("chronyd raw", "chronyd[7]: Could not resolve {p}");
    h("NM wifi AP", "NetworkManager[7]: <info>  [1767323345.1] device (wlan0): Activation: (wifi) access point '{p}' has security, but secrets are required.");
    h("NM config ssid", "NetworkManager[7]: <info>  [1767323345.1] Config: added 'ssid' value '{p}'");
    h("NM connection", "NetworkManager[7]: <info>  [1767323345.1] device (wlan0): Activation: starting connection '{p}' (8a7b)");
    h("NM policy", "NetworkManager[7]: <info>  [1767323345.1] policy: auto-activating connection '{p}' (8a7b)");
    h("NM audit", "NetworkManager[7]: <info>  [1767323345.1] audit: op=\"connection-add\" uuid=\"8a7b\" name=\"{p}\" pid=1 uid=1000 result=\"success\"");
    h("NM dhcp", "NetworkManager[7]: <info>  [1767323345.1] dhcp4 (eth0): state changed new lease, address=192.0.2.7, hostname={p}");
    h("NM joined", "NetworkManager[7]: <info>  [1767323345.1] device (wlan0): Activation: (wifi) Stage 2 of 5 (Device Configure) successful. Connected to wireless network \"{p}\"");
    h("dnsmasq", "dnsmasq-dhcp[7]: DHCPACK(br0) 192.0.2.7 aa:bb:cc:dd:ee:ff {p}");
    h("dhclient", "dhclient[7]: suspect value in host_name option - discarded: {p}");
    h("rfc5424 in message", "alice[7]: <30>1 2026-01-02T03:09:00Z n1 kubelet 7 - - {p}");
    h("nested head", "alice[7]: 2026-01-02T03:09:00Z n1 kubelet[7]: {p}");
    h("nested syslog", "alice[7]: Jan 02 03:09:00 n1 kubelet[7]: {p}");
    h("nested klog", "alice[7]: E0102 03:09:00.123456       7 x.go:1] {p}");
    h("nested json", "alice[7]: {\"_SYSTEMD_UNIT\":\"kubelet.service\",\"MESSAGE\":{q},\"msg\":{q}}");
    h("cr", "alice[7]: x\rJan 02 03:09:00 n1 kubelet[7]: {p}");
    h("ls", "alice[7]: x\u{2028}Jan 02 03:09:00 n1 kubelet[7]: {p}");
    h("ff", "alice[7]: x\u{c}Jan 02 03:09:00 n1 kubelet[7]: {p}");
    h("nul", "alice[7]: x\0Jan 02 03:09:00 n1 kubelet[7]: {p}");
    h("ansi", "alice[7]: \u{1b}[31m{p}\u{1b}[0m");
    h("ansi in name", "\u{1b}[31malice[7]\u{1b}[0m: {p}");
    h("ansi up", "alice[7]: \u{1b}[1A\u{1b}[2KJan 02 03:09:00 n1 kubelet[7]: {p}");
    h("octal newline", "alice[7]: x#012Jan 02 03:09:00 n1 kubelet[7]: {p}");
    h("long", &format!("alice[7]: {}{{p}}", "x".repeat(70000)));
    h("program with colon", "registry.example/web:1.2/web.1[812]: {p}");
    h("program with space", "my app[812]: {p}");
    h("program with plus", "web+worker[812]: {p}");
    h("program unicode", "überwacher[812]: {p}");
    h("program unicode lookalike", "аlice[812]: {p}");
    h("program at", "app@1,2[812]: {p}");
    h("program long", &format!("{}[812]: {{p}}", "a".repeat(80)));
    h("program empty", "[812]: {p}");
    h("program no pid no space", "alice:{p}");
    h("program braces", "{app}[812]: {p}");
    h("program pid odd", "alice[8 12]: {p}");
    h("program pid unicode", "alice[812]：{p}");
    h("host unicode", "alice[812]\u{2028}: {p}");
    h("docker run", "docker[812]: {p}");
    h("podman run", "podman[812]: {p}");
    h("conmon", "conmon[812]: {p}");
    h("nerdctl", "nerdctl[812]: {p}");
    h("env", "env[812]: {p}");
    h("python web", "python3[812]: {\"ua\":{q}}");
    h("node-red", "node-red[812]: {p}");
    h("cluster-autoscaler", "cluster-x[812]: {p}");
    h("snapd", "snapd[7]: api_find.go:1: cannot find snap \"{p}\"");
    h("setroubleshoot", "setroubleshoot[7]: SELinux is preventing /home/alice/{p} from read access on the file {p}.");
    h("setroubleshoot comm", "setroubleshoot[7]: SELinux is preventing {comm} from read access on the file x. For complete SELinux messages run: sealert -l 1");
    h("iscsid", "iscsid[7]: Connection1:0 to [target: {p}, portal: 192.0.2.1,3260] through [iface: default] is operational now");
    h("multipathd", "multipathd[7]: sdb: wwid {p}");
    h("mount elsewhere", "systemd[1]: Unmounted srv-alice-{path}.mount - /srv/alice/{p}.");
    h("mount elsewhere name", "systemd[1]: srv-alice-{path}.mount: Deactivated successfully.");
    h("system machined", "systemd[1]: Started machine-x.scope - Container {p}.");
    h("systemd reload client", "systemd[1]: Reload requested from client PID 123 ('{comm}') (unit session-1.scope)...");
    // kernel
    h("kernel scsi", "kernel: scsi 6:0:0:0: Direct-Access     {p8} {p16} 1.00 PQ: 0 ANSI: 6");
    h("kernel ext4 last mounted", "kernel: EXT4-fs (sdb1): last mounted on {p}");
    h("kernel comm alloc", "kernel: {comm}: page allocation failure: order:0, mode:0x1");
    h("kernel comm CPU", "kernel: CPU: 0 PID: 123 Comm: {comm} Not tainted 6.1");
    h("kernel comm hung", "kernel: INFO: task {comm}:123 blocked for more than 120 seconds.");
    h("kernel comm oom", "kernel: {comm} invoked oom-killer: gfp_mask=0x1, order=0, oom_score_adj=0");
    h("kernel oom task", "kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/user.slice/{p},task_memcg=/user.slice/{p},task={comm},pid=1,uid=1000");
    h("kernel oom table", "kernel: [   1234]  1000  1234     1234     5678    12345        0             0 {comm}");
    h("kernel oom cgroup", "kernel: Memory cgroup stats for /user.slice/user-1000.slice/{p}:");
    h("kernel oom group", "kernel: Tasks in /user.slice/user-1000.slice/{p} are going to be killed due to memory.oom.group set");
    h("kernel fork", "kernel: cgroup: fork rejected by pids controller in /user.slice/user-1000.slice/{p}");
    h("kernel soft lockup", "kernel: watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [{comm}:123]");
    h("kernel sysctl", "kernel: warning: process `{comm}' used the deprecated sysctl system call with 1");
    h("kernel capability", "kernel: capability: warning: `{comm}' uses 32-bit capabilities (legacy support in use)");
    h("kernel comm bracket", "kernel: {comm}[123]: bad frame in rt_sigreturn frame:1 ip:2 sp:3 orax:4");
    h("kernel nfs", "kernel: NFS: state manager: lease expired failed on NFSv4 server {p} with error 5");
    h("kernel nfs server", "kernel: nfs: server {dns} not responding, timed out");
    h("kernel bt", "kernel: Bluetooth: hci0: {p}");
    h("kernel partition", "kernel:  sdb: sdb1 ({p})");
    h("kernel unsupported proto", "kernel: process 123 ({comm}) attempted a POSIX timer syscall while CONFIG_POSIX_TIMERS is not set");
    h("kernel seccomp", "kernel: audit: type=1326 audit(1767323345.123:45): auid=1000 uid=1000 pid=1 comm=\"x\" exe=\"/home/alice/{p}\" sig=31");
    h("kernel denial profile", "kernel: audit: type=1400 audit(1767323345.123:45): apparmor=\"DENIED\" operation=\"open\" profile=\"{p}\" name=\"x\" pid=1 comm=\"x\"");
    h("kernel denial exec", "kernel: audit: type=1400 audit(1767323345.123:45): apparmor=\"DENIED\" operation=\"exec\" profile=\"x\" target=\"{p}\" pid=1 comm=\"x\" info=\"{p}\"");
    h("kernel usb serial", "kernel: usb 1-1: SerialNumber: {p}");
    h("kernel uvc", "kernel: usb 1-1: Found UVC 1.00 device {p} (1234:5678)");
    h("kernel uvc2", "kernel: uvcvideo 1-1:1.0: Found UVC 1.00 device {p} (1234:5678)");
    h("kernel sound", "kernel: usb 1-1: 1:1: cannot get freq at ep {p}");
    h("kernel mtp", "kernel: mtp: {p}");
    h("kernel wireless", "kernel: wlan0: associated {p}");
    h("kernel binfmt", "kernel: Process accounting resumed {comm}");
    h("kernel trace", "kernel: {comm} (123): Uses obsolete interface");
    h("kernel comm quote", "kernel: x86/split lock detection: #AC: {comm}/123 took a split_lock trap at address: 0x1");
    h("kernel overlay lower", "kernel: overlayfs: failed to open {p}");
    h("kernel overlay upper", "kernel: overlayfs: upper fs does not support xattr, falling back ({p})");
    h("kernel fuse", "kernel: fuse: Bad value for '{p}'");
    h("kernel fuse unknown", "kernel: fuse: Unknown parameter '{p}'");
    h("kernel squash", "kernel: squashfs: Can't find a SQUASHFS superblock on {p}");
    // containerd / crio / docker
    let mut c = |n: &'static str, t: &str| v.push((n, "", format!("{CT}{t}")));
    c("ctr image", "\"PullImage \\\"{e}\\\" failed\" error=\"failed to parse image reference: invalid reference format\"");
    c("ctr manifest unknown", "\"PullImage \\\"evil.example/x:1\\\" failed\" error=\"failed to pull and unpack image: manifest unknown: {e}\"");
    c("ctr unauthorized", "\"PullImage \\\"evil.example/x:1\\\" failed\" error=\"failed to pull and unpack image: unauthorized: {e}\"");
    c("ctr name unknown", "\"PullImage \\\"evil.example/x:1\\\" failed\" error=\"name unknown: {e}\"");
    c("ctr unknown", "\"PullImage \\\"evil.example/x:1\\\" failed\" error=\"unknown: {e}\"");
    c("ctr toomanyrequests", "\"PullImage \\\"evil.example/x:1\\\" failed\" error=\"toomanyrequests: {e}\"");
    c("ctr body", "\"PullImage \\\"evil.example/x:1\\\" failed\" error=\"error parsing HTTP 404 response body: invalid character 'p' looking for beginning of value: {qq}\"");
    c("ctr layer", "\"PullImage \\\"evil.example/x:1\\\" failed\" error=\"failed to extract layer sha256:1: failed to unlinkat /var/lib/containerd/tmpmounts/x/{e}: operation not permitted\"");
    c("ctr layer2", "\"PullImage \\\"evil.example/x:1\\\" failed\" error=\"failed to extract layer sha256:1: mount callback failed on /x: failed to Lchown {qq} for UID 1\"");
    c("ctr label", "\"RunPodSandbox for \\\"x\\\" failed\" error=\"invalid label {qq}\"");
    c("ctr cdi", "\"CreateContainer within sandbox \\\"x\\\" failed\" error=\"CDI device injection failed: unresolvable CDI devices {e}\"");
    c("ctr cni", "\"RunPodSandbox failed\" error=\"failed to setup network for sandbox \\\"x\\\": plugin type=\\\"calico\\\" failed (add): failed to parse {qq} as JSON: invalid character\"");
    c("ctr cni annotation", "\"RunPodSandbox failed\" error=\"failed to setup network for sandbox \\\"x\\\": plugin type=\\\"multus\\\" name=\\\"multus\\\" failed (add): parsePodNetworkAnnotation: failed to parse pod Network Attachment Selection Annotation JSON format: {e}\"");
    c("ctr exec event", "\"get state for 3f2a\" error=\"context deadline exceeded: {e}\"");
    c("ctr sysctl", "\"StartContainer failed\" error=\"OCI runtime create failed: runc create failed: unable to start container process: error during container init: open /proc/sys/{e}: no such file or directory\"");
    c("ctr sysctl2", "\"StartContainer failed\" error=\"OCI runtime create failed: runc create failed: sysctl {qq} is not in a separate kernel namespace\"");
    c("ctr rlimit", "\"StartContainer failed\" error=\"OCI runtime create failed: runc create failed: unable to start container process: error during container init: error setting rlimit type {e}\"");
    c("ctr apparmor", "\"StartContainer failed\" error=\"OCI runtime create failed: runc create failed: unable to start container process: apparmor profile {e}: not found\"");
    c("ctr apparmor2", "\"StartContainer failed\" error=\"failed to generate apparmor spec opts: apparmor profile not found {e}\"");
    c("ctr seccomp", "\"StartContainer failed\" error=\"failed to generate seccomp spec opts: cannot load seccomp profile {qq}: open x: no such file or directory\"");
    c("ctr runtime handler", "\"RunPodSandbox failed\" error=\"failed to get sandbox runtime: no runtime for {qq} is configured\"");
    c("ctr copy up", "\"CreateContainer failed\" error=\"failed to create containerd container: mount callback failed: mkdir /tmp/x/{e}: not a directory\"");
    c("ctr subpath", "\"StartContainer failed\" error=\"error mounting {qq} to rootfs at \\\"/x\\\": mount {e}:/x: no such file or directory\"");
    c("ctr device", "\"StartContainer failed\" error=\"error gathering device information while adding custom device {qq}: no such file or directory\"");
    c("ctr workdir", "\"StartContainer failed\" error=\"OCI runtime create failed: mkdir {e}: read-only file system\"");
    c("ctr env", "\"StartContainer failed\" error=\"invalid environment variable {qq}\"");
    let mut h = |n: &'static str, t: &str| v.push((n, "", format!("{H} {t}")));
    h("dockerd", "dockerd[7]: time=\"2026-01-02T03:09:00Z\" level=error msg=\"Not continuing with pull after error: manifest unknown: {e}\"");
    h("dockerd body", "dockerd[7]: time=\"2026-01-02T03:09:00Z\" level=error msg=\"Attempting next endpoint for pull after error: Get https://evil.example/v2/: error parsing HTTP 403 response body: invalid character '<' looking for beginning of value: {qq}\"");
    h("dockerd images", "dockerd[7]: time=\"2026-01-02T03:09:00Z\" level=error msg=\"Handler for GET /v1.43/images/{e}/json returned error: No such image: {e}\"");
    h("dockerd name", "dockerd[7]: time=\"2026-01-02T03:09:00Z\" level=error msg=\"Handler for POST /v1.43/containers/create returned error: Conflict. The container name {qq} is already in use\"");
    h("crio", "crio[7]: time=\"2026-01-02 03:09:00.1Z\" level=info msg=\"Creating container: shop/web/{e}\" id=8a name=/runtime.v1.RuntimeService/CreateContainer");
    h("crio image", "crio[7]: time=\"2026-01-02 03:09:00.1Z\" level=info msg=\"Trying to access {qq}\"");
    h("crio registry", "crio[7]: time=\"2026-01-02 03:09:00.1Z\" level=error msg=\"Failed to pull: initializing source docker://evil.example/x:1: reading manifest 1 in evil.example/x: manifest unknown: {e}\"");
    h("crio registry2", "crio[7]: time=\"2026-01-02 03:09:00.1Z\" level=error msg=\"Failed to pull: initializing source docker://evil.example/x:1: reading manifest 1 in evil.example/x: received unexpected HTTP status: 418 {e}\"");
    h("crio annotation", "crio[7]: time=\"2026-01-02 03:09:00.1Z\" level=warning msg=\"Annotation {qq} is not allowed\"");
    h("crio cni", "crio[7]: time=\"2026-01-02 03:09:00.1Z\" level=error msg=\"Error adding network: [shop/web-1/8a7b:net]: error adding container to network: {e}\"");
    h("crio checking pod", "crio[7]: time=\"2026-01-02 03:09:00.1Z\" level=info msg=\"Checking pod shop_web-1 for CNI network {e} (type=x)\"");
    // kubelet
    let mut k = |n: &'static str, t: &str| v.push((n, "", format!("{K}{t}")));
    k("kubelet server rejected event", "Server rejected event '&v1.Event{TypeMeta:v1.TypeMeta{Kind:\"\"}, InvolvedObject:v1.ObjectReference{Kind:\"Pod\", Namespace:\"default\", Name:\"web\"}, Reason:\"Failed\", Message:{q}, Count:1}': 'events is forbidden' (will not retry!)");
    k("kubelet event new", "\"Server rejected event (will not retry!)\" err=\"x\" event=\"&Event{ObjectMeta:{web.17  default    0 0001-01-01 00:00:00 +0000 UTC},InvolvedObject:ObjectReference{Kind:Pod,Namespace:default,Name:web,},Reason:Failed,Message:{e},Count:1}\"");
    k("kubelet patch status", "\"Failed to update status for pod\" err=\"failed to patch status \\\"{}\\\" for pod \\\"default\\\"/\\\"web\\\": admission webhook denied the request: {e}\"");
    k("kubelet csi", "nestedpendingoperations.go:348] Operation for \"{volumeName:x}\" failed. No retries permitted until x. Error: MountVolume.MountDevice failed for volume \"pvc-1\" (UniqueName: \"x\") pod \"web\" (UID: \"8a7b\") : rpc error: code = Internal desc = {p}");
    k("kubelet hostpath", "nestedpendingoperations.go:348] Operation for \"x\" failed. Error: MountVolume.SetUp failed for volume \"data\" (UniqueName: \"x\") pod \"web\" (UID: \"8a7b\") : hostPath type check failed: {p} is not a directory");
    k("kubelet nfs", "nestedpendingoperations.go:348] Operation for \"x\" failed. Error: MountVolume.SetUp failed for volume \"data\" (UniqueName: \"x\") pod \"web\" (UID: \"8a7b\") : mount failed: exit status 32\\nMounting command: mount\\nOutput: mount.nfs: {p}");
    k("kubelet configmap key", "nestedpendingoperations.go:348] Operation for \"x\" failed. Error: MountVolume.SetUp failed for volume \"data\" (UniqueName: \"x\") pod \"web\" (UID: \"8a7b\") : references non-existent config key: {p}");
    k("kubelet flexvolume", "driver-call.go:262] Failed to unmarshal output for command: init, output: {q}, error: unexpected end of JSON input");
    k("kubelet cni", "\"RunPodSandbox from runtime service failed\" err=\"rpc error: code = Unknown desc = failed to setup network for sandbox \\\"3f\\\": plugin type=\\\"calico\\\" failed (add): failed to parse {qq} as JSON\"");
    k("kubelet image", "\"PullImage from image service failed\" err=\"rpc error: code = Unknown desc = manifest unknown: {e}\" image=\"evil.example/x:1\"");
    k("kubelet image name", "\"PullImage from image service failed\" err=\"rpc error: code = InvalidArgument desc = failed to parse image reference\" image={q}");
    k("kubelet image body", "\"PullImage from image service failed\" err=\"rpc error: code = Unknown desc = error parsing HTTP 404 response body: invalid character 'p' looking for beginning of value: {qq}\" image=\"evil.example/x:1\"");
    k("kubelet image unauthorized", "\"PullImage from image service failed\" err=\"rpc error: code = Unknown desc = Error response from daemon: unauthorized: {e}\" image=\"evil.example/x:1\"");
    k("kubelet probe multi", "\"Probe failed\" probeType=\"Liveness\" pod=\"default/web\" output=<\n                            {p}\n                >");
    k("kubelet probe multi tab", "\"Probe failed\" probeType=\"Liveness\" pod=\"default/web\" output=<\n\t{p}\n >");
    k("kubelet err multi", "\"Error syncing pod, skipping\" err=<\n                            {p}\n                > pod=\"default/web\"");
    k("kubelet forbidden", "Forbidden (user={p}, verb=get, resource=nodes, subresource=proxy)");
    k("kubelet timeout", "\"Timeout or abort while handling\" method=\"GET\" URI={q} auditID={q}");
    k("kubelet cgroup", "\"Failed to create existing container\" err=\"x\" name=\"/user.slice/user-1000.slice/{p}\"");
    k("kubelet cadvisor", "manager.go:1116] Failed to create existing container: /user.slice/user-1000.slice/{p}: task not found");
    k("kubelet cadvisor watch", "manager.go:1169] Failed to process watch event {EventType:0 Name:/user.slice/{p} WatchSource:0}: x");
    k("kubelet log rotate", "\"Failed to rotate log for container\" err=\"x\" path=\"/var/log/pods/default_{p}/0.log\"");
    k("kubelet term msg", "\"Unable to read termination message\" err=\"x: {e}\"");
    k("kubelet dns", "\"Nameserver limits exceeded\" err=\"Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {e}\"");
    k("kubelet ws", "\"Unhandled Error\" err=\"unable to upgrade websocket connection: {e}\"");
    k("kubelet static manifest", "\"Could not process manifest file\" path=\"/etc/kubernetes/manifests/x\" err=\"{e}\"");
    k("kubelet exec", "\"Unhandled Error\" err=\"error executing command in container: {e}\"");
    k("kubelet u2028", "\"Probe failed\" output=\"x\u{2028}{e}\" pod=\"default/web\"");
    k("kubelet npd", "log_monitor.go:159] New status generated: &{Source:kernel-monitor Events:[{Severity:warn Reason:X Message:{p}}]}");
    // API server, controller manager
    let mut a = |n: &'static str, f: &'static str, t: &str| v.push((n, f, format!("{A}{t}")));
    a("api trace", AF, "Trace[123]: \"Get\" accept:application/json,audit-id:{p},client:192.0.2.1,api-group:,url:/api/v1/namespaces/default/pods,user-agent:{p},verb:GET (02-Jan-2026 03:09:00.123) (total time: 600ms):");
    a("api trace url", AF, "Trace[123]: \"Create\" accept:application/json,audit-id:8a,client:192.0.2.1,url:/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles/{p},verb:POST (02-Jan-2026 03:09:00.123) (total time: 600ms):");
    a("api timeout", AF, "\"Timeout or abort while handling\" logger=\"UnhandledError\" method=\"GET\" URI={q} auditID={q}");
    a("api post timeout", AF, "\"Post-timeout activity\" logger=\"UnhandledError\" timeElapsed=\"1ms\" method=\"GET\" path={q} result={q}");
    a("api post timeout old", AF, "post-timeout activity - time-elapsed: 1ms, GET {q} result: <nil>");
    a("api rbac deny", AF, "\"RBAC DENY\" user={q} groups=[{q}] verb=\"get\" resource={q} namespace=\"\"");
    a("api rbac deny old", AF, "RBAC DENY: user {q} groups [{q}] cannot \"get\" resource \"pods\" named {q} in namespace \"default\"");
    a("api forbidden", AF, "\"Forbidden\" URI={q} reason={q}");
    a("api token", AF, "\"Unable to authenticate the request\" err=\"[invalid bearer token, {e}]\"");
    a("api oidc", AF, "\"Unable to authenticate the request\" err=\"oidc: verify token: oidc: id token issued by a different provider, expected \\\"https://x\\\" got {qq}\"");
    a("api oidc aud", AF, "\"Unable to authenticate the request\" err=\"oidc: verify token: oidc: expected audience \\\"x\\\" got [{qq}]\"");
    a("api sa token", AF, "\"Unable to authenticate the request\" err=\"[invalid bearer token, square/go-jose: validation failed, issuer {e}]\"");
    a("api x509", AF, "\"Unable to authenticate the request\" err=\"verifying certificate SN=1, SKID=, AKID= failed: x509: certificate signed by unknown authority (possibly because of \\\"x509: x\\\" while trying to verify candidate authority certificate {qq})\"");
    a("api metav1", AF, "\"Unhandled Error\" err=\"apiserver received an error that is not an metav1.Status: &errors.errorString{s:{qq}}: {e}\"");
    a("api webhook", AF, "failed calling webhook, failing open x.example: failed calling webhook \"x.example\": an error on the server ({qq}) has prevented the request from succeeding");
    a("api webhook denied", AF, "\"Unhandled Error\" err=\"admission webhook \\\"x\\\" denied the request: {e}\"");
    a("api openapi", AF, "loading OpenAPI spec for \"v1.evil.example\" failed with: failed to retrieve openAPI spec, http error: ResponseCode: 503, Body: {p}");
    a("api warning header", AF, "\"Warning\" agent={q} text={q}");
    a("api logging", AF, "logging error output: {q}");
    a("api impersonate", AF, "\"Impersonating\" user={q}");
    a("api audit log in log", AF, "audit.go:1] {\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",\"userAgent\":{q},\"requestObject\":{\"message\":{q}}}");
    a("api proxy", AF, "\"Error proxying data from client to backend\" err=\"{e}\"");
    a("api etcd key", AF, "etcd3/store: object at /registry/roles/shop/{p} could not be decoded");
    a("api watch", AF, "\"terminating watch\" resource=\"{e}\"");
    a("api old http2", AF, "http2: server connection error from 192.0.2.1:4: connection error: PROTOCOL_ERROR {p}");
    a("api spec field", AF, "unknown field {q}");
    a("cm rs", CM, "\"Unhandled Error\" err=\"sync \\\"shop/web-5d4\\\" failed with admission webhook \\\"x\\\" denied the request: {e}\"");
    a("cm event", CM, "\"Event occurred\" object=\"shop/web\" fieldPath=\"\" kind=\"Deployment\" type=\"Warning\" reason=\"Failed\" message={q}");
    a("cm pv", CM, "\"Error syncing\" PVC=\"shop/data\" err=\"rpc error: code = Internal desc = {e}\"");
    a("cm job", CM, "\"Unhandled Error\" err=\"error syncing job: shop/web: {e}\"");
    a("cm hpa", CM, "\"Unhandled Error\" err=\"failed to compute desired number of replicas for shop/web: unable to get metric {e}\"");
    a("cm dns name", CM, "\"Error syncing endpoints, retrying\" service=\"shop/web\" err=\"{e}\"");
    a("cm csr", CM, "\"Unhandled Error\" err=\"unable to sign CSR: {e}\"");
    a("cm csr cn", CM, "\"Unrecognized CSR\" csr=\"x\" requestor={q} cn={q}");
    // etcd
    let mut e = |n: &'static str, t: &str| v.push((n, EF, format!("2026-01-02T03:09:00.123456789Z stderr F {{\"level\":\"warn\",\"ts\":\"2026-01-02T03:09:00.123456Z\",\"caller\":\"x/y.go:1\",{t}}}")));
    e("etcd cluster id", "\"msg\":\"request cluster ID mismatch\",\"local-member-id\":\"1\",\"remote-peer-cluster-id\":{q},\"remote-peer-server-name\":{q}");
    e("etcd server from", "\"msg\":\"request sent was ignored by remote peer due to server version incompatibility\",\"remote-peer-server-version\":{q},\"remote-peer-id\":{q}");
    e("etcd key", "\"msg\":\"apply request took too long\",\"took\":\"200ms\",\"request\":\"header:<ID:1> txn:<compare:<key:\\\"/registry/roles/shop/{e}\\\">>\",\"response\":\"\"");
    e("etcd range", "\"msg\":\"apply request took too long\",\"took\":\"200ms\",\"prefix\":\"read-only range \",\"request\":\"key:\\\"{e}\\\" \"");
    e("etcd trace", "\"msg\":\"trace[123] range\",\"detail\":\"{range_begin:/registry/roles/shop/{e}; range_end:; }\",\"duration\":\"200ms\"");
    e("etcd auth", "\"msg\":\"invalid user name or password\",\"user-name\":{q}");
    e("etcd tls", "\"msg\":\"rejected connection on peer endpoint\",\"remote-addr\":\"192.0.2.1:4\",\"server-name\":\"\",\"ip-addresses\":[],\"dns-names\":[{q}],\"error\":\"tls: {e} doesn't match\"");
    e("etcd tls old", "\"msg\":\"rejected connection\",\"remote-addr\":\"192.0.2.1:4\",\"error\":\"tls: client requested unsupported application protocols ([{e}])\"");
    e("etcd http", "\"msg\":\"unexpected request\",\"url\":{q},\"path\":{q},\"remote\":{q}");
    e("etcd grpc", "\"msg\":\"grpc: Server.processUnaryRPC failed to write status: {e}\"");
    e("etcd grpc log", "\"msg\":\"[core] [Server #1] grpc: Server.Serve failed to create ServerTransport: connection error: desc = \\\"transport: http2Server.HandleStreams received bogus greeting from client: {qq}\\\"\"");
    e("etcd bad member", "\"msg\":\"failed to find remote peer in cluster\",\"local-member-id\":\"1\",\"remote-peer-id-from\":{q},\"remote-peer-id-stream-handler\":\"1\"");
    e("etcd url", "\"msg\":\"failed to parse remote peer urls\",\"remote-peer-urls\":{q}");
    // cloud-init
    let mut i = |n: &'static str, t: &str| v.push((n, CI, format!("2026-01-02 03:09:00,123 - {t}")));
    i("ci lease", "dhcp.py[DEBUG]: DHCP lease: [{'interface': 'eth0', 'fixed-address': '192.0.2.7', 'host-name': '{p}', 'domain-name': '{p}'}]");
    i("ci metadata", "DataSourceEc2.py[DEBUG]: Crawled metadata: {'local-hostname': '{p}', 'hostname': '{p}', 'public-hostname': '{p}'}");
    i("ci fqdn", "cc_update_etc_hosts.py[DEBUG]: Updating /etc/hosts with fqdn {p}");
    i("ci user", "util.py[DEBUG]: Running hidden command to protect sensitive input/output: {p}");
    i("ci dhclient", "dhcp.py[DEBUG]: dhclient stderr: DHCPACK of 192.0.2.7 from {p}");
    i("ci dhcpcd", "dhcp.py[DEBUG]: dhcpcd out: eth0: leased 192.0.2.7, host_name={p}");
    i("ci url", "url_helper.py[DEBUG]: [0/1] open 'http://169.254.169.254/{p}' with {} configuration");
    i("ci body", "url_helper.py[DEBUG]: Read from http://169.254.169.254/x (200, 12b): {p}");
    i("ci key comment", "cc_ssh_authkey_fingerprints.py[DEBUG]: ssh-ed25519 {p}");
    // files
    let mut f = |n: &'static str, file: &'static str, t: &str| v.push((n, file, t.to_owned()));
    f("haproxy in kube-system", "/var/log/pods/kube-system_haproxy-n1_8a7b/haproxy/0.log", &format!("{CR}192.0.2.1:4 [02/Jan/2026:03:09:00.123] api api/m0 0/0/1/2/3 200 1 - - ---- {{{{p}}}} \"GET / HTTP/1.1\""));
    f("traefik in kube-system", "/var/log/pods/kube-system_traefik-1_8a7b/traefik/0.log", &format!("{CR}{{\"ClientAddr\":\"192.0.2.1:4\",\"RequestPath\":{{q}},\"request_User-Agent\":{{q}},\"msg\":\"\"}}"));
    f("ingress in kube-system", "/var/log/pods/kube-system_rke2-ingress-1_8a7b/rke2-ingress-nginx-controller/0.log", &format!("{CR}192.0.2.1 - - [02/Jan/2026:03:09:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"{{p}}\""));
    f("other container in kube-system", "/var/log/pods/kube-system_metrics-server-1_8a7b/metrics-server/0.log", &format!("{CR}{{p}}"));
    f("coredns", "/var/log/pods/kube-system_coredns-1_8a7b/coredns/0.log", &format!("{CR}[ERROR] plugin/errors: 2 {{dns}}. A: read udp 10.0.0.1:4->192.0.2.1:53: i/o timeout"));
    f("coredns log", "/var/log/pods/kube-system_coredns-1_8a7b/coredns/0.log", &format!("{CR}[INFO] 10.0.0.5:4 - 1 \"A IN {{dns}}. udp 40 false 512\" NXDOMAIN qr,rd,ra 115 0.01s"));
    f("cilium", "/var/log/pods/kube-system_cilium-1_8a7b/cilium-agent/0.log", &format!("{CR}level=warning msg=\"Unable to parse policy\" k8sNamespace=shop error={{q}}"));
    f("calico", "/var/log/pods/kube-system_calico-node-1_8a7b/calico-node/0.log", &format!("{CR}2026-01-02 03:09:00.123 [WARNING][1] felix/x.go 1: policy name={{q}}"));
    f("docker json log", "/var/lib/docker/containers/3f2a91bc77de/3f2a91bc77de-json.log", "{\"log\":\"{e}\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-02T03:09:00.123456789Z\"}");
    f("docker json log in a bundle", "logs/3f2a91bc77de-json.log", "{\"log\":\"{e}\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-02T03:09:00.123456789Z\"}");
    f("cluster-info dump", "cluster-info/default/web-1/logs.txt", "{p}");
    f("cluster-info dump events", "cluster-info/default/events.json", "\"message\": {q}");
    f("cluster-info dump pods yaml", "cluster-info/default/pods.yaml", "message: {q}");
    f("troubleshoot logs", "support-bundle/cluster-resources/pods/logs/default/web/web.log", "{p}");
    f("troubleshoot logs 2", "support-bundle/logs/default/web/web.log", "{p}");
    f("troubleshoot pod json", "support-bundle/cluster-resources/pods/default.json", "\"message\": {q}");
    f("troubleshoot cronjobs", "support-bundle/cluster-resources/cronjobs/default.json", "\"message\": {q}");
    f("troubleshoot custom", "support-bundle/cluster-resources/custom-resources/x.example/default.json", "\"message\": {q}");
    f("must-gather routes", "must-gather/namespaces/shop/route.openshift.io/routes.yaml", "  message: {q}");
    f("must-gather ns", "must-gather/namespaces/shop/shop.yaml", "  message: {q}");
    f("must-gather cron", "must-gather/namespaces/shop/batch/cronjobs.yaml", "  message: {q}");
    f("must-gather secrets", "must-gather/namespaces/shop/core/secrets.yaml", "  message: {q}");
    f("must-gather event filter", "must-gather/event-filter.html", "<td>{p}</td>");
    f("sos crictl logs", "sosreport-n1/sos_commands/crio/containers/logs/crictl_logs_-t_3f2a91bc77de", "{p}");
    f("sos podman logs", "sosreport-n1/sos_commands/podman/podman_logs_-t_web", "{p}");
    f("sos docker logs", "sosreport-n1/sos_commands/docker/docker_logs_-t_web", "{p}");
    f("rke2 podlogs", "n1/rke2/podlogs/default-web-1", "{p}");
    f("k3s podlogs", "n1/k3s/podlogs/default-web-1", "{p}");
    f("kubectl get events", "bundle/kubectl_get_events.txt", "default   1m   Warning   Failed   pod/web   {p}");
    f("kubectl get events all", "bundle/events-all.log", "default   1m   Warning   Failed   pod/web   {p}");
    f("kubectl describe pods", "bundle/describe_pods.txt", "  Warning  Failed  1m  kubelet  {p}");
    f("audit log of the API server", "/var/log/kubernetes/audit/audit.log", "{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",\"level\":\"RequestResponse\",\"requestURI\":{q},\"user\":{\"username\":{q}},\"userAgent\":{q},\"requestObject\":{\"kind\":\"ConfigMap\",\"data\":{\"x\":{q}}}}");
    f("audit log, kube-apiserver.log", "must-gather/audit_logs/kube-apiserver/n1-audit.log", "{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",\"level\":\"Metadata\",\"user\":{\"username\":{q}},\"annotations\":{\"x\":{q}}}");
    f("rfc5424", "/var/log/syslog", "<30>1 2026-01-02T03:09:00.123Z n1 sshd 812 - - Invalid login {p}");
    f("rfc5424 structured", "/var/log/syslog", "<30>1 2026-01-02T03:09:00.123Z n1 alice 812 ID47 [x@32473 iut=\"3\" note=\"{p}\"] {p}");
    f("rfc5424 without pri", "/var/log/syslog", "2026-01-02T03:09:00.123Z n1 alice 812 - - {p}");
    f("rfc3164 with pri", "/var/log/syslog", "<30>Jan 02 03:09:00 n1 alice[812]: {p}");
    f("rfc3164 with pri no pid", "/var/log/syslog", "<30>Jan 02 03:09:00 n1 alice: {p}");
    f("syslog no colon", "/var/log/syslog", "Jan 02 03:09:00 n1 alice {p}");
    f("rsyslog remote", "/var/log/remote/n2.log", "Jan 02 03:09:00 n2 alice[1]: {p}");
    f("rsyslog remote address", "/var/log/remote/n2.log", "Jan 02 03:09:00 2001:db8::1 alice[1]: {p}");
    f("rsyslog iso", "/var/log/syslog", "2026-01-02T03:09:00.123456+00:00 n1 alice[7]: {p}");
    f("rsyslog iso no pid", "/var/log/syslog", "2026-01-02T03:09:00.123456+00:00 n1 alice: {p}");
    f("short-full", "journal.txt", "Fri 2026-01-02 03:09:00 UTC n1 alice[77]: {p}");
    f("short-full zone", "journal.txt", "Fri 2026-01-02 03:09:00 CEST n1 alice[77]: {p}");
    f("with-unit", "journal.txt", "Fri 2026-01-02 03:09:00 UTC n1 web.service[77]: {p}");
    f("with-unit no pid", "journal.txt", "Fri 2026-01-02 03:09:00 UTC n1 web.service: {p}");
    f("short-unix", "journal.txt", "1767323340.123456 n1 alice[77]: {p}");
    f("short-unix no pid", "journal.txt", "1767323340.123456 n1 alice: {p}");
    f("short-monotonic", "journal.txt", "[  123.456789] n1 alice[77]: {p}");
    f("short-monotonic no pid", "journal.txt", "[  123.456789] n1 alice: {p}");
    f("short-delta", "journal.txt", "[  123.456789 <    0.100000 >] n1 alice[77]: {p}");
    f("short-iso", "journal.txt", "2026-01-02T03:09:00+0000 n1 alice[77]: {p}");
    f("short-iso-precise", "journal.txt", "2026-01-02T03:09:00.123456+00:00 n1 alice[77]: {p}");
    f("short-precise", "journal.txt", "Jan 02 03:09:00.123456 n1 alice[77]: {p}");
    f("verbose", "journal.txt", "Fri 2026-01-02 03:09:00.123456 UTC [s=8a;i=1;b=2;m=3;t=4;x=5]\n    _SYSTEMD_UNIT=web.service\n    MESSAGE={p}\n    _COMM=kubelet");
    f("verbose two lines", "journal.txt", "Fri 2026-01-02 03:09:00.123456 UTC [s=8a;i=1;b=2;m=3;t=4;x=5]\n    _SYSTEMD_UNIT=web.service\n    MESSAGE=x\n            {p}\n    _COMM=kubelet");
    f("French", "journal.txt", "janv. 02 03:09:00 n1 alice[77]: {p}");
    f("French accents", "journal.txt", "févr. 02 03:09:00 n1 alice[77]: {p}");
    f("German", "journal.txt", "Mär 02 03:09:00 n1 alice[77]: {p}");
    f("Spanish", "journal.txt", "ene 02 03:09:00 n1 alice[77]: {p}");
    f("Russian", "journal.txt", "янв 02 03:09:00 n1 alice[77]: {p}");
    f("no host", "/var/log/syslog", "Jan 02 03:09:00 alice[77]: {p}");
    f("Alpine", "/var/log/messages", "Jan  2 03:09:00 n1 auth.info sshd[77]: Invalid login {p}");
    f("Alpine user", "/var/log/messages", "Jan  2 03:09:00 n1 user.notice alice: {p}");
    f("BSD level", "/var/log/messages", "Jan  2 03:09:00 <user.notice> n1 alice[77]: {p}");
    f("json syslog", "/var/log/syslog.json", "{\"@timestamp\":\"2026-01-02T03:09:00Z\",\"host\":\"n1\",\"programname\":\"alice\",\"message\":{q}}");
    f("fluentd", "/var/log/td/n1.log", "2026-01-02T03:09:00+00:00\tkube.var.log.containers.web_default_web-1.log\t{\"log\":{q},\"stream\":\"stdout\"}");
    f("crictl ps", "/var/log/cloud-init-output.log", "3f2a91bc77de   8a7b   2 minutes ago   Running   {p}   0   9c1d   web");
    f("top", "/var/log/cloud-init-output.log", "   1234 alice     20   0   12345   6789   1234 S   0.0   0.1   0:00.01 {p}");
    f("last", "/var/log/cloud-init-output.log", "{p8}  ssh:notty    192.0.2.1        Fri Jan  2 03:09    gone - no logout");
    f("systemctl status", "/var/log/cloud-init-output.log", "     Description: {p}");
    f("ps -o args", "/var/log/cloud-init-output.log", "1234 {p}");
    f("sections", "collected.txt", "==> web [3f2a] <==\n{p}\n");
    f("sections nested", "collected.txt", "==> kubelet <==\nJan 02 03:09:00 n1 kubelet[7]: x\n==> web [3f2a] <==\nx\n==> /var/log/app.log <==\n{p}\n");
    f("spool mail", "/var/mail/root", "Subject: {p}");
    f("history", "sos/root/.bash_history", "{p}");
    f("motd", "sos/etc/motd", "{p}");
    v
}

fn esc(p: &str, kept: &[u8], f: impl Fn(u8)->String) -> String { p.bytes().fold(String::new(), |mut t,b| { if b.is_ascii_alphanumeric()||kept.contains(&b) {t.push(b as char)} else {t+=&f(b)}; t}) }
fn fill(t: &str, p: &str) -> String {
    let q = format!("{p:?}"); let e = &q[1..q.len()-1];
    let qq0 = format!("{q:?}"); let qq=&qq0[1..qq0.len()-1];
    let n = |n: usize| p.chars().take(n).collect::<String>();
    let tokens = [("{p}", p.to_owned()),("{q}",q.clone()),("{e}",e.to_owned()),("{qq}",qq.to_owned()),("{comm}",n(15)),("{p8}",n(8)),("{p16}",n(16)),
      ("{path}",esc(p,b":_.",|b|format!("\\x{b:02x}"))),("{dns}",esc(p,b"-_.",|b|format!("\\{b:03}")))];
    let mut s=t.to_owned();
    for (m,(k,_)) in ('\u{e000}'..).zip(&tokens) { s=s.replace(k,&m.to_string()); }
    for (m,(_,v)) in ('\u{e000}'..).zip(&tokens) { s=s.replace(m,v); }
    s
}

const BASES: [(&str,&str,State);3] = [
 ("failed","Jan 02 03:04:05 n1 systemd[1]: Started kubelet.service - kubelet.\nJan 02 03:04:06 n1 kubelet[7]: E0102 03:04:06.678901       7 run.go:74] \"command failed\" err=\"failed to run Kubelet: running with swap on is not supported, please disable swap or set --fail-swap-on flag to false\"\n",State::Failed),
 ("succeeded","Jan 02 03:04:05 n1 systemd[1]: Started kubelet.service - kubelet.\nJan 02 03:04:06 n1 kubelet[7]: I0102 03:04:06.678901       7 kubelet_node_status.go:78] \"Successfully registered node\" node=\"n1\"\nJan 02 03:04:07 n1 kubelet[7]: I0102 03:04:07.678901       7 kubelet_node_status.go:501] \"Fast updating node status as it just became ready\"\n",State::Succeeded),
 ("running","Jan 02 03:04:05 n1 cloud-init[9]: Cloud-init v. 24.1 running 'modules:final' at Fri, 02 Jan 2026 03:04:05 +0000. Up 20.1 seconds.\n",State::Running),
];

fn run<'p>(engine: &Engine, base: &str, file: &str, t: &str, ps: impl IntoIterator<Item=&'p String>) -> (State, Option<landfall_model::Cause>) {
    let lines: String = ps.into_iter().map(|p| fill(t,p)+"\n").collect();
    let mut case = engine.open();
    let mut add = |name: &str, text: &str| { let s = Stream::sniff(name, text.as_bytes()); let src = case.add_source(name, s.kind.name()); case.add(src, engine.scan(&s,1,text.as_bytes())); };
    if file.is_empty() { add("journal.log",&format!("{base}{lines}")); } else { add("journal.log",base); add(file,&lines); }
    let v = case.finish().verdict; (v.state, v.cause)
}

#[test]
fn attack() {
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    let phrases = phrases();
    let only = std::env::var("ONLY").ok();
    let total: usize = phrases.values().map(|s| s.len()).sum();
    let cs = carriers();
    println!("{} carriers x {} phrases", cs.len(), total);
    let (mut nflip, mut ncar) = (0,0);
    for (name,file,t) in &cs {
        if only.as_ref().is_some_and(|o| !name.contains(o.as_str())) { continue }
        let mut out = Vec::new();
        for (bn,base,st) in &BASES {
            let exp = run(&engine,base,file,t,[&"hello".to_owned()]);
            if exp.0 != *st { out.push(format!("   BASE {bn}: hello gives {exp:?}")); }
            for (eff,ps) in &phrases {
                if run(&engine,base,file,t,ps)==exp { continue }
                let mut m=0; let mut ex=String::new();
                for p in ps { let got=run(&engine,base,file,t,[p]); if got!=exp { m+=1; if m<=3 {ex+=&format!(" | {p:?} -> {:?} {:?}", got.0, got.1.as_ref().map(|c|c.to_string()));} } }
                nflip+=m.max(1);
                out.push(format!("   {bn}/{eff}: {m} {ex}"));
            }
        }
        if !out.is_empty() { ncar+=1; println!("== {name}"); for o in out { println!("{}", o.chars().take(700).collect::<String>()); } }
    }
    println!("TOTAL {ncar} carriers, {nflip} flips");
}

#[test]
fn dump() {
    let text: String = carriers().iter().map(|(n,f,t)| format!("{}\n", serde_json::to_string(&(n,f,t)).unwrap())).collect();
    std::fs::write("/tmp/carriers.jsonl", text).unwrap();
}
