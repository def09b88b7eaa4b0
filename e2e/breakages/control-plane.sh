# Commands for starting a control plane's parts, sourced by every entry of `control-plane.toml`.
# In the folder: certificates and keys `server`, `stranger`, `elsewhere`, `expired`, the authorities `ca` and
# `stranger-ca`, the key pair `sa`. PORT0 to PORT3 are free.

# An etcd of one member; further flags may say otherwise. Takes the place of the shell, unless in the background.
lone_etcd() {
    exec etcd --name m0 --data-dir m0 --unsafe-no-fsync \
        --listen-client-urls http://127.0.0.1:$PORT0 --advertise-client-urls http://127.0.0.1:$PORT0 \
        --listen-peer-urls http://127.0.0.1:$PORT1 --initial-advertise-peer-urls http://127.0.0.1:$PORT1 \
        --initial-cluster m0=http://127.0.0.1:$PORT1 "$@"
}

# An etcd that wants certificates from its clients.
lone_tls_etcd() {
    lone_etcd --listen-client-urls https://127.0.0.1:$PORT0 --advertise-client-urls https://127.0.0.1:$PORT0 \
        --cert-file server.crt --key-file server.key --trusted-ca-file ca.crt --client-cert-auth "$@"
}

api_server() {
    exec kube-apiserver --bind-address=127.0.0.1 --secure-port=$PORT2 --cert-dir=serving --service-cluster-ip-range=10.96.0.0/16 \
        --service-account-issuer=https://kubernetes.default.svc --service-account-signing-key-file=sa.key \
        --service-account-key-file=sa.pub --endpoint-reconciler-type=none "$@"
}

# Returns when something listens on the port.
until_open() {
    for _ in $(seq 300); do
        ! (: </dev/tcp/127.0.0.1/$1) 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}
