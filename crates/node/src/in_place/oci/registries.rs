//! `registries.conf`, as far as a pull by digest needs it: the mirrors of a repository, and their order.

use serde::Deserialize;

use super::reference::{Reference, is_path};

/// Limit far above the number of mirrors of one repository in practice.
const MAX_PLACES: usize = 32;

/// A location of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub host: String,
    pub repository: String,
    /// Permits plain HTTP, only where the settings say so. TLS is always verified.
    pub insecure: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum RegistriesError {
    #[error("`registries.conf` cannot be read")]
    Toml(#[source] Box<toml::de::Error>),
    #[error("`registries.conf` blocks `{prefix}`")]
    Blocked { prefix: String },
    #[error("`registries.conf` has `{location}` for a location")]
    Location { location: String },
}

#[derive(Default, Deserialize)]
struct File {
    #[serde(default)]
    registry: Vec<Registry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Registry {
    prefix: Option<String>,
    #[serde(default)]
    location: String,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    blocked: bool,
    #[serde(default)]
    mirror: Vec<Mirror>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Mirror {
    location: String,
    #[serde(default)]
    insecure: bool,
    #[serde(default, rename = "pull-from-mirror")]
    used_for: Option<String>,
}

/// Returns the locations of an image in the order of preference.
pub fn places(settings: Option<&str>, image: &Reference) -> Result<Vec<Place>, RegistriesError> {
    let file: File = match settings {
        Some(text) => toml::from_str(text).map_err(|error| RegistriesError::Toml(Box::new(error)))?,
        None => File::default(),
    };
    let name = format!("{}/{}", image.host, image.repository);
    let matching = file.registry.iter().filter_map(|registry| {
        let prefix = registry.prefix.as_deref().unwrap_or(&registry.location);
        matched(prefix, &name).map(|rest| (prefix, rest, registry))
    });
    let Some((prefix, rest, registry)) = matching.max_by_key(|(prefix, ..)| prefix.len()) else {
        let own = Place { host: image.host.clone(), repository: image.repository.clone(), insecure: false };
        return Ok(vec![own]);
    };
    let mut places = Vec::new();
    for mirror in &registry.mirror {
        if mirror.used_for.as_deref() != Some("tag-only") {
            places.push(place(&mirror.location, rest, mirror.insecure)?);
        }
    }
    if registry.blocked {
        if places.is_empty() {
            return Err(RegistriesError::Blocked { prefix: prefix.to_owned() });
        }
    } else {
        // Without a location, the prefix is the location.
        let own = if registry.location.is_empty() {
            place(&image.host, &format!("/{}", image.repository), registry.insecure)?
        } else {
            place(&registry.location, rest, registry.insecure)?
        };
        places.push(own);
    }
    places.truncate(MAX_PLACES);
    Ok(places)
}

/// Returns the hosts of everything that has mirrors, in the order of preference.
pub fn mirrored(settings: Option<&str>) -> Result<Vec<Vec<String>>, RegistriesError> {
    let file: File = match settings {
        Some(text) => toml::from_str(text).map_err(|error| RegistriesError::Toml(Box::new(error)))?,
        None => File::default(),
    };
    let mut all = Vec::new();
    for registry in file.registry.iter().filter(|registry| !registry.mirror.is_empty()) {
        let own = registry.prefix.as_deref().filter(|_| registry.location.is_empty());
        let own = own.unwrap_or(&registry.location);
        let mirrors = registry.mirror.iter().map(|mirror| mirror.location.as_str());
        // A prefix with a wildcard does not name a host.
        let own =
            [own].into_iter().filter(|own| !registry.blocked && !own.is_empty() && !own.starts_with('*'));
        let mut hosts: Vec<String> = Vec::new();
        for location in mirrors.chain(own).take(MAX_PLACES) {
            let host = location.split('/').next().unwrap_or_default();
            if !is_path(host, ".:-[]") {
                return Err(RegistriesError::Location { location: location.chars().take(128).collect() });
            }
            if !hosts.iter().any(|known| known == host) {
                hosts.push(host.to_owned());
            }
        }
        all.push(hosts);
    }
    Ok(all)
}

/// Returns the rest of the name after the prefix, if the prefix matches.
fn matched<'a>(prefix: &str, name: &'a str) -> Option<&'a str> {
    if let Some(domain) = prefix.strip_prefix("*.") {
        let (host, _) = name.split_once('/')?;
        let is_below = host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
        return is_below.then(|| &name[host.len()..]);
    }
    let rest = name.strip_prefix(prefix).filter(|_| !prefix.is_empty())?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

fn place(location: &str, rest: &str, insecure: bool) -> Result<Place, RegistriesError> {
    let invalid = || RegistriesError::Location { location: location.chars().take(128).collect() };
    let whole = format!("{location}{rest}");
    let (host, repository) = whole.split_once('/').ok_or_else(invalid)?;
    if !is_path(host, ".:-[]") || !is_path(repository, "._-/") {
        return Err(invalid());
    }
    Ok(Place { host: host.to_owned(), repository: repository.to_owned(), insecure })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(settings: &str) -> Vec<String> {
        let image = format!("quay.io/openshift/mco@sha256:{}", "a".repeat(64));
        match places(Some(settings), &Reference::parse(&image).unwrap()) {
            Ok(places) => places
                .iter()
                .map(|place| format!("{place}{}", if place.insecure { "!" } else { "" }))
                .collect(),
            Err(error) => vec![error.to_string()],
        }
    }

    #[test]
    fn mirrors_come_before_the_source_and_the_longest_prefix_wins() {
        let settings = r#"
unqualified-search-registries = ["x"]
[[registry]]
location = "quay.io"
[[registry.mirror]]
location = "wrong.corp"
[[registry]]
prefix = "quay.io/openshift"
location = "quay.io/openshift"
mirror-by-digest-only = true
[[registry.mirror]]
location = "mirror.corp:5000/ocp"
[[registry.mirror]]
location = "tags.corp/ocp"
pull-from-mirror = "tag-only"
[[registry.mirror]]
location = "open.corp/ocp"
insecure = true
"#;
        assert_eq!(
            found(settings),
            ["mirror.corp:5000/ocp/mco", "open.corp/ocp/mco!", "quay.io/openshift/mco"]
        );
    }

    #[test]
    fn other_settings_change_nothing() {
        assert_eq!(found(""), ["quay.io/openshift/mco"]);
        assert_eq!(found("[[registry]]\nlocation = \"quay.io/open\"\n"), ["quay.io/openshift/mco"]);
        assert_eq!(found("[[registry]]\nprefix = \"*.io\"\n"), ["quay.io/openshift/mco"]);
    }

    #[test]
    fn what_has_mirrors_is_known_with_all_its_hosts() {
        let settings = r#"
[[registry]]
location = "docker.io"
[[registry]]
location = "quay.io/openshift"
[[registry.mirror]]
location = "m.corp:5000/a"
[[registry.mirror]]
location = "m.corp:5000/b"
[[registry]]
prefix = "*.redhat.io"
blocked = true
[[registry.mirror]]
location = "n.corp"
"#;
        assert_eq!(
            mirrored(Some(settings)).unwrap(),
            [vec!["m.corp:5000".to_owned(), "quay.io".to_owned()], vec!["n.corp".to_owned()]]
        );
        assert!(mirrored(None).unwrap().is_empty());
        assert!(mirrored(Some("not toml")).is_err());
        let odd = "[[registry]]\nlocation = \"quay.io\"\n[[registry.mirror]]\nlocation = \"a b\"\n";
        assert!(mirrored(Some(odd)).is_err());
    }

    #[test]
    fn what_is_blocked_or_broken_is_told() {
        let blocked = "[[registry]]\nlocation = \"quay.io\"\nblocked = true\n";
        assert_eq!(found(blocked), ["`registries.conf` blocks `quay.io`"]);
        let mirrored = format!("{blocked}[[registry.mirror]]\nlocation = \"m.corp\"\n");
        assert_eq!(found(&mirrored), ["m.corp/openshift/mco"]);
        assert_eq!(found("not toml"), ["`registries.conf` cannot be read"]);
        let odd = "[[registry]]\nlocation = \"quay.io\"\n[[registry.mirror]]\nlocation = \"a b?\"\n";
        assert!(found(odd)[0].contains("for a location"));
    }
}
