//! Package sources of a machine: `/etc/yum.repos.d`, parsed without I/O.
//!
//! The reachability of a mirror can then be checked without a package manager, and without changing anything.

/// Size limit of one repository file.
pub const MAX_BYTES: u64 = 1024 * 1024;
pub const FOLDER: &str = "/etc/yum.repos.d";

/// An enabled repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    pub id: String,
    /// The URL for a reachability check.
    pub url: String,
    /// The repository requires a client certificate that only the package manager has, so a denial counts as an
    /// answer.
    pub entitled: bool,
}

/// Values of the variables in URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variables {
    pub release: String,
    pub architecture: String,
}

/// Returns the repositories of one file.
pub fn repositories(text: &str, variables: &Variables) -> Vec<Repository> {
    let mut found = Vec::new();
    let mut sections: Vec<(String, Vec<(String, String)>)> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(id) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            sections.push((id.to_owned(), Vec::new()));
        } else if let (Some((key, value)), Some((_, settings))) = (line.split_once('='), sections.last_mut())
        {
            settings.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    for (id, settings) in sections {
        let get =
            |name: &str| settings.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        if get("enabled").is_some_and(|value| matches!(value, "0" | "false" | "no")) {
            continue;
        }
        let list = get("mirrorlist").or_else(|| get("metalink"));
        let base = get("baseurl").and_then(|urls| urls.split([' ', ',']).find(|url| !url.is_empty()));
        let url = match (base, list) {
            (Some(base), _) => format!("{}/repodata/repomd.xml", base.trim_end_matches('/')),
            (None, Some(list)) => list.to_owned(),
            (None, None) => continue,
        };
        let url = url
            .replace("$releasever", &variables.release)
            .replace("${releasever}", &variables.release)
            .replace("$basearch", &variables.architecture);
        if url.starts_with("https://") || url.starts_with("http://") {
            found.push(Repository { id, url, entitled: get("sslclientcert").is_some() });
        }
    }
    found
}

/// Returns whether an answer with this status means that packages are available.
pub fn answers(repository: &Repository, status: u16) -> bool {
    (200..400).contains(&status) || (repository.entitled && matches!(status, 401 | 403))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_switched_on_is_asked() {
        let text = "# a comment\n[base]\nname=Base\nbaseurl = https://m.corp/$releasever/$basearch/os/ https://other\n\
            [off]\nbaseurl=https://off\nenabled=0\n[list]\nmirrorlist=https://list.corp/?r=$releasever\n\
            [rhel]\nbaseurl=https://cdn.redhat.com/x\nsslclientcert=/etc/pki/e.pem\n[odd]\nname=none\n";
        let variables = Variables { release: "8".into(), architecture: "x86_64".into() };
        let found = repositories(text, &variables);
        let urls: Vec<&str> = found.iter().map(|repository| repository.url.as_str()).collect();
        assert_eq!(
            urls,
            [
                "https://m.corp/8/x86_64/os/repodata/repomd.xml",
                "https://list.corp/?r=8",
                "https://cdn.redhat.com/x/repodata/repomd.xml"
            ]
        );
        assert!(answers(&found[2], 403) && !answers(&found[0], 403) && answers(&found[0], 200));
    }
}
