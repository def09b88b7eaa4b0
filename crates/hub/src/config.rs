//! The hub's configuration, validated before any resource is opened.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use landfall_net::nats::InvalidServer;
use landfall_net::{InvalidBackoff, ServerTlsFiles};

use crate::access::Proxy;
use crate::pull::{MAX_AGENTS, MAX_CLUSTERS, Pull};
use crate::roles::{MAX_ROLES, WatchedRole};

use crate::objects::{BucketPlace, BucketPlaceError};
use crate::store::{PostgresPlace, PostgresPlaceError};
use crate::take::Take;

/// Location of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    Sqlite(PathBuf),
    Postgres(PostgresPlace),
}

/// Location of the bundles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectPlace {
    Folder(PathBuf),
    Bucket(BucketPlace),
}

#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    pub store: StorePlace,
    pub objects: ObjectPlace,
    pub tls: Option<ServerTlsFiles>,
    /// File with the key that signs tokens.
    pub token_key: Option<PathBuf>,
    pub proxy: Option<Proxy>,
    /// Retention of reports and verdict changes.
    pub keep: Duration,
    /// Retention of bundles.
    pub keep_bundles: Duration,
    /// Maximum compressed size of a bundle.
    pub max_bundle: u64,
    /// Monitored gateways and tunnels; `watch_authority` is the CA of their certificates.
    pub watch: Vec<WatchedRole>,
    pub watch_authority: Option<PathBuf>,
    /// Agents to poll.
    pub pull: Option<Pull>,
    /// Sources from which the hub ingests reports.
    pub take: Take,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("invalid store `{0}`: must be `sqlite:PATH` or `postgres://…`")]
    Store(String),
    #[error("the address of the database cannot be used")]
    Postgres(#[source] PostgresPlaceError),
    #[error("invalid object store `{0}`: must be `file:PATH`, `s3://…`, `gs://…` or `az://…`")]
    Objects(String),
    #[error("the address of the object store cannot be used")]
    Bucket(#[source] BucketPlaceError),
    #[error("invalid poll interval")]
    Every(#[source] InvalidBackoff),
    #[error("the bucket that agents put reports into cannot be used")]
    TakeObjects(#[source] BucketPlaceError),
    #[error("reports cannot be taken from NATS")]
    TakeNats(#[source] InvalidServer),
    #[error(
        "invalid subject or name `{0}`: must contain letters, digits, `-` and `_`; a subject also dots between them"
    )]
    Subject(String),
    #[error("{0} is not loopback: it needs TLS and a way to know callers")]
    Exposed(SocketAddr),
    #[error("invalid role to watch `{0}`: must be `NAME=http://HOST:PORT` or `NAME=https://HOST:PORT`")]
    Watch(String),
    #[error("{MAX_ROLES} roles can be watched at most")]
    TooManyRoles,
    #[error("invalid agent to poll `{0}`: must be `[NODE=]HOST[:PORT]`")]
    Pull(String),
    #[error("invalid cluster to poll `{0}`: must be `[NAME=]KUBECONFIG`")]
    PullCluster(String),
    #[error("the proxy to agents cannot be used")]
    PullProxy(#[source] landfall_net::InvalidProxy),
    #[error("two clusters to ask are called `{0}`")]
    SameCluster(String),
    #[error("at most {MAX_CLUSTERS} clusters can be polled")]
    TooManyClusters,
    #[error("a proxy with TLS requires the CA of its certificate")]
    ProxyAuthority,
    #[error("at most {MAX_AGENTS} agents can be polled")]
    TooManyAgents,
}

// === impl StorePlace ===

impl StorePlace {
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        match text.split_once(':') {
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            Some(("postgres" | "postgresql", _)) => {
                PostgresPlace::parse(text).map(Self::Postgres).map_err(ConfigError::Postgres)
            }
            _ => Err(ConfigError::Store(text.to_owned())),
        }
    }
}

// === impl ObjectPlace ===

impl ObjectPlace {
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        match text.split_once(':') {
            Some(("file", path)) if !path.is_empty() => Ok(Self::Folder(path.into())),
            Some(("s3" | "gs" | "az", _)) => {
                BucketPlace::parse(text).map(Self::Bucket).map_err(ConfigError::Bucket)
            }
            _ => Err(ConfigError::Objects(text.to_owned())),
        }
    }
}

// === impl Config ===

impl Config {
    /// Validates the configuration. Outside of loopback, TLS and authentication of callers are required.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.watch.len() > MAX_ROLES {
            return Err(ConfigError::TooManyRoles);
        }
        self.pull.as_ref().map_or(Ok(()), Pull::validate)?;
        let certificates = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let knows_callers = certificates || self.token_key.is_some() || self.proxy.is_some();
        let loopback = self.listen.ip().to_canonical().is_loopback();
        if loopback || (self.tls.is_some() && knows_callers) {
            Ok(())
        } else {
            Err(ConfigError::Exposed(self.listen))
        }
    }
}

#[cfg(test)]
mod tests {
    use landfall_net::CertificateFiles;

    use super::*;

    fn config(listen: &str) -> Config {
        Config {
            listen: listen.parse().unwrap(),
            store: StorePlace::parse("sqlite:x.db").unwrap(),
            objects: ObjectPlace::parse("file:bundles").unwrap(),
            tls: None,
            token_key: None,
            proxy: None,
            keep: Duration::from_secs(1),
            keep_bundles: Duration::from_secs(1),
            max_bundle: 1,
            watch: Vec::new(),
            watch_authority: None,
            pull: None,
            take: Take::default(),
        }
    }

    #[test]
    fn beyond_loopback_tls_and_a_credential_are_demanded() {
        assert!(config("127.0.0.1:1").validate().is_ok() && config("[::1]:1").validate().is_ok());
        let tls = |authority: Option<&str>| {
            Some(ServerTlsFiles {
                certificate: CertificateFiles { certificate: "c".into(), key: "k".into() },
                client_ca: authority.map(Into::into),
            })
        };
        for listen in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
            let open = config(listen);
            assert!(open.validate().is_err());
            assert!(Config { tls: tls(None), ..open.clone() }.validate().is_err(), "anybody could come in");
            assert!(
                Config { token_key: Some("t".into()), ..open.clone() }.validate().is_err(),
                "tokens in the clear"
            );
            assert!(Config { tls: tls(Some("a")), ..open.clone() }.validate().is_ok());
            assert!(Config { tls: tls(None), token_key: Some("t".into()), ..open }.validate().is_ok());
        }
    }

    #[test]
    fn places_are_named_by_their_kind() {
        assert_eq!(StorePlace::parse("sqlite:/x/y.db").unwrap(), StorePlace::Sqlite("/x/y.db".into()));
        assert!(matches!(StorePlace::parse("postgres://hub@db/landfall").unwrap(), StorePlace::Postgres(_)));
        for bad in ["", "x.db", "sqlite:", "mysql://x", "postgres://hub:secret@db/landfall"] {
            assert!(StorePlace::parse(bad).is_err(), "{bad}");
        }
        assert!(ObjectPlace::parse("file:/x").is_ok() && ObjectPlace::parse("ftp://x").is_err());
        assert!(ObjectPlace::parse("s3://bundles?credentials-file=/x").is_ok());
        assert!(ObjectPlace::parse("az://bundles?account=fleet&credentials-file=/x").is_ok());
    }
}
