// containerd for the test bed's nodes: Debian 12 ships 1.6, which kubelet 1.36 refuses.
module landfall/testbed/containerd

go 1.26.8

require github.com/containerd/containerd/v2 v2.3.7
