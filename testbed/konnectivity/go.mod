// The upstream Konnectivity server and agent, peers for interoperability and benchmarks.
// A module of its own: its gRPC differs from the one Kubernetes pins.
module landfall/testbed/konnectivity

go 1.26.2

require (
	sigs.k8s.io/apiserver-network-proxy v0.36.0
	sigs.k8s.io/apiserver-network-proxy/konnectivity-client v0.36.0
)
