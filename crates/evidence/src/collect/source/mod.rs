//! The kinds of sources, one file each.

mod api_server;
mod certificates;
mod cri;
mod disks;
mod endpoints;
mod facts;
mod files;
mod http;
mod https;
mod journal;
mod listing;
mod name_servers;
mod neighbours;
mod network;
mod openrc;
mod ostree;
mod resources;
mod shapes;
mod trust;
mod units;

use super::host::Host;
use super::piece::Trouble;
use super::plan::{Item, Spec};
use super::sink::Sink;

/// Reason for skipping live queries on a mounted disk.
const NOT_FROM_OUTSIDE: &str = "it is available on the machine itself only, not with another root";

/// A source of evidence.
///
/// Its evidence and read failures go into the sink; an error is the outcome of the entire item.
pub(super) trait Source {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble>;
}

pub(super) fn of(item: &Item) -> Box<dyn Source> {
    let to = item.to.clone();
    match item.source.clone() {
        Spec::Files { paths, lines } => Box::new(files::Files { to, paths, lines }),
        Spec::Facts { paths } => Box::new(facts::Facts { to, paths }),
        Spec::Journal { unit, since } => Box::new(journal::Journal { to, unit, since }),
        Spec::Journals { services } => Box::new(journal::Journals { to, services }),
        Spec::Units { names } => Box::new(units::Units { to, names }),
        Spec::Openrc {} => Box::new(openrc::Openrc { to }),
        Spec::Ostree {} => Box::new(ostree::Ostree { to }),
        Spec::Certificates { paths } => Box::new(certificates::Certificates { to, paths }),
        Spec::Cri { sockets, inspect } => Box::new(cri::Cri { to, sockets, inspect }),
        Spec::Disks {} => Box::new(disks::Disks { to }),
        Spec::Listing { paths } => Box::new(listing::Listing { to, paths }),
        Spec::Shapes { paths } => Box::new(shapes::Shapes { to, paths }),
        Spec::Network {} => Box::new(network::Network { to }),
        Spec::Http { address, path } => Box::new(http::Http { to, address, path }),
        Spec::Dns { names } => Box::new(name_servers::NameServers { to, names }),
        Spec::Resources { kubeconfigs } => Box::new(resources::Resources { to, kubeconfigs }),
        Spec::Api { path } => Box::new(https::Https { to, path, whom: https::Whom::ApiEndpoints }),
        Spec::Registry { hosts, path } => {
            Box::new(https::Https { to, path, whom: https::Whom::Registries(hosts) })
        }
    }
}
