//! The version-skew policy: which kubelets an API server puts up with.
//!
//! A kubelet is never newer than any API server it may meet, and at most three minor versions older than the newest; two
//! if it is itself older than 1.25. Behind one endpoint there may be several servers, so both ends count.

use serde::{Deserialize, Serialize};

use super::version::KubeVersion;

const MAX_BEHIND: u32 = 3;
const MAX_BEHIND_OLD: u32 = 2;
/// From this minor version on, kubelets may be three behind.
const FIRST_LONG_MINOR: u32 = 25;

/// Whether a kubelet fits, for the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Skew {
    /// It fits every server that answered.
    Within,
    /// No server answered: the policy could not be asked.
    Unknown,
    /// It does not fit, and somebody allowed it.
    Allowed { reason: String },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkewError {
    #[error(
        "kubelet {kubelet} is newer than API server {server}: a kubelet must not be newer than any API server"
    )]
    TooNew { kubelet: KubeVersion, server: KubeVersion },
    #[error("kubelet {kubelet} is more than {behind} minor versions older than API server {server}")]
    TooOld { kubelet: KubeVersion, server: KubeVersion, behind: u32 },
    #[error("kubelet {kubelet} and API server {server} have different major versions")]
    Major { kubelet: KubeVersion, server: KubeVersion },
}

/// The kubelet that fits all of these servers best: the oldest server's own version.
pub fn oldest(servers: &[KubeVersion]) -> Option<&KubeVersion> {
    servers.iter().min_by(|a, b| a.compare(b))
}

/// Whether a kubelet may join servers of these versions.
pub fn judge(kubelet: &KubeVersion, servers: &[KubeVersion]) -> Result<(), SkewError> {
    let behind = if kubelet.minor < FIRST_LONG_MINOR { MAX_BEHIND_OLD } else { MAX_BEHIND };
    for server in servers {
        let (kubelet, server) = (kubelet.clone(), server.clone());
        if kubelet.major != server.major {
            return Err(SkewError::Major { kubelet, server });
        }
        if kubelet.minor > server.minor {
            return Err(SkewError::TooNew { kubelet, server });
        }
        if kubelet.minor + behind < server.minor {
            return Err(SkewError::TooOld { kubelet, server, behind });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(texts: &[&str]) -> Vec<KubeVersion> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_policy_holds_against_every_server() {
        let table: [(&str, &[&str], bool); 12] = [
            ("v1.32.0", &["v1.32.5"], true),
            ("v1.32.9", &["v1.32.0"], true),
            ("v1.29.0", &["v1.32.0"], true),
            ("v1.28.0", &["v1.32.0"], false),
            ("v1.33.0", &["v1.32.0"], false),
            // Between an upgraded server and one that is not: the older one counts.
            ("v1.33.0", &["v1.33.0", "v1.32.0"], false),
            ("v1.32.0", &["v1.33.0", "v1.32.0"], true),
            ("v1.29.0", &["v1.33.0", "v1.32.0"], false),
            ("v1.24.0", &["v1.26.0"], true),
            ("v1.24.0", &["v1.27.0"], false),
            ("v2.32.0", &["v1.32.0"], false),
            ("v1.32.0", &[], true),
        ];
        for (kubelet, servers, fits) in table {
            let judged = judge(&kubelet.parse().unwrap(), &versions(servers));
            assert_eq!(judged.is_ok(), fits, "{kubelet} with {servers:?}: {judged:?}");
        }
        assert_eq!(oldest(&versions(&["v1.33.0", "v1.32.4", "v1.32.10"])).unwrap().as_str(), "v1.32.4");
        assert_eq!(oldest(&[]), None);
    }
}
