//! Location of the database: a libpq URL with the password in a file.
//!
//! An encrypted connection always verifies the server's certificate; only connections to this machine are
//! unencrypted by default.

use std::io::Read as _;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use landfall_model::Secret;
use landfall_net::{ClientTls, TlsError};
use rustls::ClientConfig;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::super::StoreError;

/// Maximum size of the password file and of the CA file.
const MAX_FILE: u64 = 1 << 20;
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Session settings: the server also ends statements after the timeout, and releases locks of a hub that is gone.
const SESSION: &str =
    "-c statement_timeout=20s -c lock_timeout=10s -c idle_in_transaction_session_timeout=20s";

/// A database as named on the command line. Contains no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    url: String,
    password: Option<PathBuf>,
    authority: Option<PathBuf>,
    encryption: Encryption,
}

/// Encryption of the connection. An encrypted connection always verifies the server's certificate and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encryption {
    Demanded,
    Off,
    /// Disabled for servers on this machine, required for all others.
    ByAddress,
}

#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("it is not a URL such as `postgres://hub@db.example/landfall?password-file=/etc/landfall/db`")]
    Url(#[source] tokio_postgres::Error),
    #[error("every user of the machine can see a password in the URL: name a file with `password-file=`")]
    Password,
    #[error("`sslmode` is `disable`, `require` or `verify-full`, not `{0}`")]
    Encryption(String),
}

#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

// === impl Place ===

impl Place {
    /// Removes landfall's own parameters from the query; the rest is for libpq.
    pub fn parse(text: &str) -> Result<Self, PlaceError> {
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let mut place =
            Self { url: base.to_owned(), password: None, authority: None, encryption: Encryption::ByAddress };
        let mut others = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("password-file", path)) => place.password = Some(path.into()),
                Some(("ca-file", path)) => place.authority = Some(path.into()),
                Some(("sslmode", "disable")) => place.encryption = Encryption::Off,
                Some(("sslmode", "require" | "verify-full")) => place.encryption = Encryption::Demanded,
                Some(("sslmode", other)) => return Err(PlaceError::Encryption(other.to_owned())),
                Some(("password", _)) => return Err(PlaceError::Password),
                _ => others.push(pair),
            }
        }
        if !others.is_empty() {
            place.url = format!("{base}?{}", others.join("&"));
        }
        let config = Config::from_str(&place.url).map_err(PlaceError::Url)?;
        if config.get_password().is_some() {
            return Err(PlaceError::Password);
        }
        Ok(place)
    }

    /// Returns the URL for messages.
    pub(super) fn shown(&self) -> String {
        self.url.clone()
    }

    /// Reads the files and returns the parameters of a connection.
    pub(super) fn open(&self) -> Result<(Config, MakeRustlsConnect), StoreError> {
        let failed = |source| StoreError::Open { place: self.shown(), source };
        let mut config = Config::from_str(&self.url).map_err(|error| failed(Box::new(error)))?;
        if let Some(path) = &self.password {
            let password = Secret::new(read(path).map_err(|error| failed(Box::new(error)))?);
            let end = password.expose().trim_ascii_end().len();
            config.password(&password.expose()[..end]);
        }
        let near = config.get_hosts().iter().all(|host| match host {
            Host::Unix(_) => true,
            Host::Tcp(name) => {
                name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        });
        let encrypted = match self.encryption {
            Encryption::Demanded => true,
            Encryption::Off => false,
            Encryption::ByAddress => !near,
        };
        config
            .ssl_mode(if encrypted { SslMode::Require } else { SslMode::Disable })
            .connect_timeout(CONNECT_PATIENCE)
            .tcp_user_timeout(CONNECT_PATIENCE * 4)
            .keepalives_idle(CONNECT_PATIENCE * 6)
            // Selects the writable server among several hosts; a standby does not suffice.
            .target_session_attrs(TargetSessionAttrs::ReadWrite);
        // The operator's options come last and therefore take precedence.
        let session = config.get_options().map_or(SESSION.to_owned(), |own| format!("{SESSION} {own}"));
        config.options(session);
        if config.get_application_name().is_none() {
            config.application_name("landfall-hub");
        }
        let tls = self.tls().map_err(|error| failed(Box::new(error)))?;
        Ok((config, MakeRustlsConnect::new(tls)))
    }

    fn tls(&self) -> Result<ClientConfig, TlsError> {
        ClientTls { ca: self.authority.clone(), ..ClientTls::default() }.read()
    }
}

fn read(path: &std::path::Path) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes)).map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(text: &str) -> SslMode {
        Place::parse(text).unwrap().open().unwrap().0.get_ssl_mode()
    }

    #[test]
    fn beyond_this_machine_the_connection_is_encrypted() {
        assert_eq!(mode("postgres://hub@db.example/landfall"), SslMode::Require);
        assert_eq!(mode("postgres://hub@10.0.0.1/landfall"), SslMode::Require);
        assert_eq!(mode("postgres://hub@db.example/landfall?sslmode=disable"), SslMode::Disable);
        assert_eq!(mode("postgres://hub@127.0.0.1/landfall"), SslMode::Disable);
        assert_eq!(mode("postgres://hub@localhost/landfall?sslmode=verify-full"), SslMode::Require);
        assert_eq!(mode("postgres://hub@%2frun%2fpostgresql/landfall"), SslMode::Disable);
    }

    #[test]
    fn options_of_the_address_are_added_to_ours() {
        let options =
            |text: &str| Place::parse(text).unwrap().open().unwrap().0.get_options().map(str::to_owned);
        assert_eq!(options("postgres://hub@localhost/landfall").as_deref(), Some(SESSION));
        let own = options("postgres://hub@localhost/landfall?options=-c%20search_path%3Dhub").unwrap();
        assert_eq!(own, format!("{SESSION} -c search_path=hub"));
    }

    #[test]
    fn a_password_is_never_part_of_the_address() {
        for bad in ["postgres://hub:secret@db/landfall", "postgres://hub@db/landfall?password=secret"] {
            assert!(matches!(Place::parse(bad), Err(PlaceError::Password)), "{bad}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        std::fs::write(&path, "secret\n").unwrap();
        let url = format!("postgres://hub@localhost/landfall?password-file={}", path.display());
        let place = Place::parse(&url).unwrap();
        assert_eq!(place.open().unwrap().0.get_password(), Some(&b"secret"[..]));
        assert!(!format!("{place:?}").contains("secret"));
        for bad in ["mysql://x", "postgres://h/d?sslmode=prefer", "postgres://h/d?odd=1"] {
            assert!(Place::parse(bad).is_err(), "{bad}");
        }
    }
}
