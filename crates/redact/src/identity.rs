//! Addresses and names: not secret, but private.
//!
//! They are replaced with consistent pseudonyms only on request, because they are the most important
//! information for a reader.

use aho_corasick::AhoCorasick;
use regex::bytes::Regex;

use crate::hit::{Hit, What};
use crate::pseudonym::Pseudonyms;
use crate::{BuildError, Kind};

pub(crate) struct Identities {
    addresses: Regex,
    host_names: Option<AhoCorasick>,
}

/// Addresses that are equal on all machines do not identify this one.
const EVERYWHERE: [&[u8]; 5] = [b"127.0.0.1", b"0.0.0.0", b"255.255.255.255", b"::1", b"::"];

// === impl Identities ===

impl Identities {
    pub(crate) fn new(host_names: &[String]) -> Result<Self, BuildError> {
        let octet = "(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])";
        let pattern = format!(
            r"(?P<mac>\b(?:[0-9A-Fa-f]{{2}}[:-]){{5}}[0-9A-Fa-f]{{2}}\b)|(?P<v4>\b(?:{octet}\.){{3}}{octet}\b)|(?P<v6>\b(?:[0-9A-Fa-f]{{1,4}}:){{1,7}}(?:(?::[0-9A-Fa-f]{{1,4}}){{1,7}}|:|[0-9A-Fa-f]{{1,4}})(?:\b|$))"
        );
        let addresses = Regex::new(&format!("(?-u){pattern}"))
            .map_err(|source| BuildError::Regex { rule: "addresses".to_owned(), source })?;
        let host_names = (!host_names.is_empty())
            .then(|| {
                AhoCorasick::builder()
                    .ascii_case_insensitive(true)
                    .match_kind(aho_corasick::MatchKind::LeftmostLongest)
                    .build(host_names)
            })
            .transpose()
            .map_err(|source| BuildError::Literals { source })?;
        Ok(Self { addresses, host_names })
    }

    pub(crate) fn find(&self, text: &[u8], pseudonyms: &Pseudonyms, hits: &mut Vec<Hit>) {
        for captures in self.addresses.captures_iter(text) {
            for (name, kind) in [("mac", Kind::HARDWARE_ADDRESS), ("v4", Kind::IPV4), ("v6", Kind::IPV6)] {
                let Some(address) = captures.name(name) else { continue };
                // Times such as 12:34:56 also have colons; an IPv6 address has `::` or seven colons.
                let colons = memchr::memchr_iter(b':', address.as_bytes()).count();
                let is_address = kind != Kind::IPV6
                    || colons == 7
                    || memchr::memmem::find(address.as_bytes(), b"::").is_some();
                if is_address && !EVERYWHERE.contains(&address.as_bytes()) {
                    let tag = pseudonyms.tag(&address.as_bytes().to_ascii_lowercase());
                    hits.push(Hit {
                        start: address.start(),
                        end: address.end(),
                        what: What::Mark(kind, tag),
                    });
                }
            }
        }
        let Some(host_names) = &self.host_names else { return };
        for name in host_names.find_iter(text) {
            let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
            let is_part = text[..name.start()].last().is_some_and(is_word)
                || text[name.end()..].first().is_some_and(is_word);
            if !is_part {
                let tag = pseudonyms.tag(&text[name.range()].to_ascii_lowercase());
                hits.push(Hit {
                    start: name.start(),
                    end: name.end(),
                    what: What::Mark(Kind::HOST_NAME, tag),
                });
            }
        }
    }
}
