//! The version-skew policy: the kubelet versions that an API server supports.
//!
//! A kubelet must never be newer than any API server it may connect to. It may be at most three minor versions older
//! than the newest one, or two if it is older than 1.25 itself. There may be several servers behind one endpoint, so
//! both limits apply.

use serde::{Deserialize, Serialize};

use super::version::KubeVersion;

const MAX_BEHIND: u32 = 3;
const MAX_BEHIND_OLD: u32 = 2;
/// From this minor version on, kubelets may be three minor versions older.
const FIRST_LONG_MINOR: u32 = 25;

/// Result of the skew check, for the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Skew {
    /// The kubelet is compatible with every server that answered.
    Within,
    /// No server answered, so the policy could not be checked.
    Unknown,
    /// The kubelet is not compatible, but the request allows it.
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

/// Returns the most compatible kubelet version: that of the oldest server.
pub fn oldest(servers: &[KubeVersion]) -> Option<&KubeVersion> {
    servers.iter().min_by(|a, b| a.compare(b))
}

/// Checks whether a kubelet may join servers of these versions.
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
            // During an upgrade of the servers the older version counts.
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
