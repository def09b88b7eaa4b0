# Commands for breaking a node, sourced by every entry of `node.toml`.

. /usr/local/lib/breakages/environment
FILES=/usr/local/lib/breakages
OUTPUT=/var/log/cloud-init-output.log
CRI=unix:///run/containerd/containerd.sock

# A node that has not joined: containerd runs, kubelet does not, no state and no old logs.
reset() {
    systemctl stop kubelet 2>/dev/null || true
    pkill -f breakages-server 2>/dev/null || true
    ctr -n k8s.io tasks ls -q 2>/dev/null | xargs -r -n1 ctr -n k8s.io tasks kill -s KILL >/dev/null 2>&1 || true
    grep -o ' /var/lib/kubelet/[^ ]*' /proc/mounts | sort -r | xargs -r umount -l
    rm -rf /etc/kubernetes /var/lib/kubelet/* /var/lib/cni/networks/*
    mkdir -p /etc/kubernetes/manifests
    echo 1 >/proc/sys/net/ipv4/ip_forward
    systemctl reset-failed
    # cloud-init as the boot left it.
    [ -d /run/cloud-data.sound ] || cp -a /var/lib/cloud/data /run/cloud-data.sound
    rm -rf /var/lib/cloud/data
    cp -a /run/cloud-data.sound /var/lib/cloud/data
    ln -sf /var/lib/cloud/data/status.json /var/lib/cloud/data/result.json /run/cloud-init/
    : >$OUTPUT
    : >/var/log/cloud-init.log
    rm -rf /var/log/pods/*
    journalctl --rotate -q
    journalctl --vacuum-size=1K -q 2>/dev/null
}

# Writes what `kubeadm join` is given, changed by the Python statements in $1 (`c` is the configuration).
join_configuration() {
    mkdir -p /run/kubeadm
    ENDPOINT=$ENDPOINT TOKEN=$TOKEN python3 - "${1:-}" >/run/kubeadm/kubeadm-join-config.yaml <<'END'
import json, os, sys
c = {
    "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "JoinConfiguration",
    "discovery": {"bootstrapToken": {"apiServerEndpoint": os.environ["ENDPOINT"], "token": os.environ["TOKEN"],
                                     "unsafeSkipCAVerification": True}},
    "nodeRegistration": {"criSocket": "unix:///run/containerd/containerd.sock",
                         "ignorePreflightErrors": ["SystemVerification"]},
    "timeouts": {"discovery": "4s", "tlsBootstrap": "6s", "kubeletHealthCheck": "12s", "kubernetesAPICall": "6s"},
}
token = c["discovery"]["bootstrapToken"]
exec(sys.argv[1])
json.dump(c, sys.stdout)
END
}

# Waits until the kubelet says $2 after it has said $1, a minute at most.
kubelet_says_after() {
    timeout 60 journalctl --follow --lines all --quiet --unit kubelet --output cat | sed --unbuffered -n "/$1/,\$p" | grep -q "$2"
}

# Puts the time before each line, as the images of Cluster API do.
stamp() {
    python3 -uc 'import sys, time
for line in sys.stdin: sys.stdout.write(time.strftime("[%Y-%m-%d %H:%M:%S] ") + line)'
}

# Lets containerd speak plain HTTP with the registry $1, until `no_plain_registry`.
plain_registry() {
    cp /etc/containerd/config.toml /run/config.toml.sound
    mkdir -p "/run/certs.d/$1"
    echo "server = 'http://$1'" >"/run/certs.d/$1/hosts.toml"
    printf "[plugins.'io.containerd.cri.v1.images'.registry]\n  config_path = '/run/certs.d'\n" >>/etc/containerd/config.toml
    systemctl restart containerd
}

no_plain_registry() {
    cp /run/config.toml.sound /etc/containerd/config.toml
    systemctl restart containerd
}

# Joins, as cloud-init would run it; fails or not, its output is kept.
join() {
    join_configuration "${1:-}"
    kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml 2>&1 | stamp >>$OUTPUT
}

# The preflight checks of `kubeadm init`, with images from $1, pulled as $2 says.
init_preflight() {
    cat >/run/kubeadm-init.yaml <<END
{"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "InitConfiguration",
 "nodeRegistration": {"criSocket": "$CRI", "imagePullPolicy": "$2", "ignorePreflightErrors": ["SystemVerification", "Mem"]}}
---
{"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "kubernetesVersion": "v1.36.4",
 "imageRepository": "$1"}
END
    kubeadm init phase preflight --config /run/kubeadm-init.yaml 2>&1 | stamp >>$OUTPUT
}

# kubelet's configuration, changed by the Python statements in $1.
kubelet_configuration() {
    python3 - "${1:-}" >/var/lib/kubelet/config.yaml <<'END'
import json, sys
c = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cgroupDriver": "systemd",
    "failCgroupV1": False, "staticPodPath": "/etc/kubernetes/manifests",
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False},
                       "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"}},
    "authorization": {"mode": "AlwaysAllow"},
    # The disk is that of the machine the tests run on, however full it is.
    "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
}
exec(sys.argv[1])
json.dump(c, sys.stdout)
END
    mkdir -p /etc/kubernetes/pki
    cp $FILES/ca.crt /etc/kubernetes/pki/ca.crt
}

# A kubeconfig for kubelet with the client certificate $1, at the server $2, trusting $3.
kubelet_kubeconfig() {
    mkdir -p /var/lib/kubelet/pki
    cp "$FILES/$1" /var/lib/kubelet/pki/kubelet-client-current.pem
    cat >/etc/kubernetes/kubelet.conf <<END
{"apiVersion": "v1", "kind": "Config", "current-context": "c",
 "clusters": [{"name": "c", "cluster": {"server": "${2:-https://$ENDPOINT}", "certificate-authority": "$FILES/${3:-ca.crt}"}}],
 "users": [{"name": "u", "user": {"client-certificate": "/var/lib/kubelet/pki/kubelet-client-current.pem",
                                   "client-key": "/var/lib/kubelet/pki/kubelet-client-current.pem"}}],
 "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
END
}

# A static pod of the control plane: name, image, and Python statements that change it (`c` is the container).
static_pod() {
    python3 - "$1" "$2" "${3:-}" >/etc/kubernetes/manifests/$1.yaml <<'END'
import json, sys
c = {"name": sys.argv[1], "image": sys.argv[2], "imagePullPolicy": "IfNotPresent"}
p = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": sys.argv[1], "namespace": "kube-system"},
     "spec": {"hostNetwork": True, "containers": [c], "terminationGracePeriodSeconds": 0}}
exec(sys.argv[3])
json.dump(p, sys.stdout)
END
}

# kubelet without a cluster, for static pods; started anew by systemd when it fails.
standalone() {
    mkdir -p /run/systemd/system/kubelet.service.d
    cat >/run/systemd/system/kubelet.service.d/50-standalone.conf <<'END'
[Service]
ExecStart=
ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml
END
    systemctl daemon-reload
    systemctl start kubelet
}

no_longer_standalone() {
    systemctl stop kubelet
    rm -f /run/systemd/system/kubelet.service.d/50-standalone.conf
    systemctl daemon-reload
}

# A further setting of a unit, until `unset_unit`.
set_unit() {
    mkdir -p /run/systemd/system/$1.d
    printf '%s\n' "$2" >/run/systemd/system/$1.d/90-broken.conf
    systemctl daemon-reload
}

unset_unit() {
    rm -f /run/systemd/system/$1.d/90-broken.conf
    systemctl daemon-reload
}

# Runs the Python program $1 in the background until `reset`; returns once something listens on port $2.
server() {
    printf '# breakages-server\n%s\n' "$1" >/run/breakages-server.py
    systemd-run -q --collect python3 /run/breakages-server.py
    for _ in $(seq 100); do
        ! grep -q ":$(printf %04X "$2") " /proc/net/tcp /proc/net/tcp6 /proc/net/udp || return 0
        sleep 0.1
    done
    return 1
}

# cloud-init from its first stage on, with the user data $1.
cloud_init() {
    printf '%s\n' "$1" >/var/lib/cloud/seed/nocloud/user-data
    cloud-init clean
    for stage in 'init --local' init 'modules --mode=config' 'modules --mode=final'; do
        cloud-init $stage >>$OUTPUT 2>&1 || true
    done
}
