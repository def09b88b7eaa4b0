use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;

use crate::{Cluster, Error};

/// What nodes of the control plane are labelled with, today and before.
const ROLES: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// More nodes than any control plane has.
const MAX_NODES: u32 = 64;

impl Cluster {
    /// The addresses of the nodes that carry the control plane.
    pub async fn control_plane_addresses(&self) -> Result<Vec<IpAddr>, Error> {
        let nodes: Api<Node> = Api::all(self.client());
        let mut addresses = Vec::new();
        for role in ROLES {
            let parameters = ListParams::default().labels(role).limit(MAX_NODES);
            let found = self.ask(|| format!("list nodes labelled {role}"), nodes.list(&parameters)).await?;
            for address in found.items.iter().flat_map(internal_addresses) {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        Ok(addresses)
    }
}

fn internal_addresses(node: &Node) -> Vec<IpAddr> {
    let told = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let internal = told.into_iter().flatten().filter(|address| address.type_ == "InternalIP");
    internal.filter_map(|address| address.address.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeAddress, NodeStatus};

    use super::*;

    #[test]
    fn only_internal_addresses_count() {
        let address =
            |kind: &str, address: &str| NodeAddress { type_: kind.to_owned(), address: address.to_owned() };
        let status = NodeStatus {
            addresses: Some(vec![
                address("Hostname", "192.0.2.1"),
                address("InternalIP", "192.0.2.2"),
                address("InternalIP", "not an address"),
                address("ExternalIP", "192.0.2.3"),
            ]),
            ..NodeStatus::default()
        };
        let node = Node { status: Some(status), ..Node::default() };
        assert_eq!(internal_addresses(&node), ["192.0.2.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(internal_addresses(&Node::default()), [] as [IpAddr; 0]);
    }
}
