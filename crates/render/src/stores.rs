//! Stores that several hubs share, and the files that their URLs reference: passwords, keys and CA files.
//!
//! These files are private to the hub's host or cluster and are never rendered. Only their mounts are
//! rendered.

use crate::{RenderError, names};

/// A database for reports and a bucket for bundles, in the hub's URL formats.
#[derive(Clone, Debug)]
pub struct Stores {
    pub reports: String,
    pub bundles: String,
}

/// Parameters of a URL that reference a file, and the file's name at the hub.
const FILES: [(&str, &str); 3] =
    [("password-file", "password"), ("credentials-file", "credentials"), ("ca-file", "ca.crt")];

/// Both URLs, and the files that they reference.
pub(crate) struct Placed {
    pub(crate) reports: String,
    pub(crate) bundles: String,
    /// The name of each file at the hub, and its path in the original URL.
    pub(crate) files: Vec<(String, String)>,
}

// === impl Stores ===

impl Stores {
    pub(crate) fn check(&self) -> Result<(), RenderError> {
        let shared = |url: &str, schemes: &[&str]| {
            let known = schemes.iter().any(|scheme| url.starts_with(scheme));
            let placed = place("", "", url).1.iter().all(|(_, path)| names::path(path));
            let good = known && placed && names::plain(url).is_ok();
            good.then_some(()).ok_or_else(|| RenderError::Store { url: url.to_owned() })
        };
        shared(&self.reports, &["postgres://", "postgresql://"])?;
        shared(&self.bundles, &["s3://", "gs://", "az://"])
    }

    /// Returns the URLs with their files in `folder`, the hub's directory.
    pub(crate) fn placed(&self, folder: &str) -> Placed {
        let (reports, mut files) = place(folder, "database", &self.reports);
        let (bundles, more) = place(folder, "bucket", &self.bundles);
        files.extend(more);
        Placed { reports, bundles, files }
    }
}

fn place(folder: &str, whose: &str, url: &str) -> (String, Vec<(String, String)>) {
    let Some((place, query)) = url.split_once('?') else { return (url.to_owned(), Vec::new()) };
    let mut files = Vec::new();
    let mut part = |part: &str| {
        let named = part.split_once('=').and_then(|(key, path)| {
            let (_, name) = FILES.iter().find(|(known, _)| *known == key)?;
            Some((key, path, format!("{whose}-{name}")))
        });
        let Some((key, path, name)) = named else { return part.to_owned() };
        let placed = format!("{key}={folder}/{name}");
        files.push((name, path.to_owned()));
        placed
    };
    let query: Vec<String> = query.split('&').map(&mut part).collect();
    (format!("{place}?{}", query.join("&")), files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stores(reports: &str, bundles: &str) -> Stores {
        Stores { reports: reports.to_owned(), bundles: bundles.to_owned() }
    }

    #[test]
    fn files_are_where_the_hub_finds_them() {
        let placed = stores(
            "postgres://hub@db/landfall?password-file=/etc/a&sslmode=require&ca-file=/etc/b",
            "s3://bundles/hub?region=r1&credentials-file=/etc/c",
        )
        .placed("/keys");
        assert_eq!(
            placed.reports,
            "postgres://hub@db/landfall?password-file=/keys/database-password&sslmode=require&ca-file=/keys/database-ca.crt"
        );
        assert_eq!(placed.bundles, "s3://bundles/hub?region=r1&credentials-file=/keys/bucket-credentials");
        let names: Vec<_> = placed.files.iter().map(|(name, path)| format!("{name}:{path}")).collect();
        assert_eq!(
            names,
            ["database-password:/etc/a", "database-ca.crt:/etc/b", "bucket-credentials:/etc/c"]
        );
    }

    #[test]
    fn what_one_hub_keeps_for_itself_is_refused() {
        let good = ("postgres://db/landfall", "s3://bundles?credentials-file=/etc/c");
        assert!(stores(good.0, good.1).check().is_ok());
        for (reports, bundles) in [
            ("sqlite:/var/lib/hub.db", good.1),
            (good.0, "file:/var/lib/bundles"),
            ("postgres://db/landfall?password-file=../a", good.1),
            (good.0, "s3://bundles?credentials-file=relative"),
            ("postgres://db/$(id)", good.1),
        ] {
            let refused = stores(reports, bundles).check();
            assert!(matches!(refused, Err(RenderError::Store { .. })), "{reports} {bundles}");
        }
    }
}
