use std::fmt;
use std::sync::Arc;

use landfall_model::Secret;
use zeroize::Zeroize as _;

use crate::hit::Counts;
use crate::identity::Identities;
use crate::known::{KNOWN_MIN, KNOWN_TOTAL_MAX, Known};
use crate::pseudonym::Pseudonyms;
use crate::rules::Rules;
use crate::scan::Engine;
use crate::stream::{Options, Stream};
use crate::{EntryStream, InvalidKind, Kind};

/// Redactor for the evidence of one bundle. Cloning is cheap, and clones give equal secrets equal pseudonyms.
#[derive(Clone)]
pub struct Redactor {
    pub(crate) engine: Arc<Engine>,
    ignored: usize,
}

/// Builder that collects the node's own secrets and names.
#[derive(Default)]
pub struct Builder {
    known: Vec<(Kind, Secret<Vec<u8>>)>,
    host_names: Vec<String>,
    ignored: usize,
}

/// Reason why the redactor cannot be built. Without one, no evidence may leave the machine.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("could not read the redaction rules")]
    Rules {
        #[source]
        source: toml::de::Error,
    },
    #[error("redaction rule `{rule}` has no valid kind")]
    Kind {
        rule: String,
        #[source]
        source: InvalidKind,
    },
    #[error("redaction rule `{rule}` has no valid pattern")]
    Regex {
        rule: String,
        #[source]
        source: regex::Error,
    },
    #[error("could not build the search for literals")]
    Literals {
        #[source]
        source: aho_corasick::BuildError,
    },
    #[error("known secrets of {size} bytes are more than the {KNOWN_TOTAL_MAX} that can be searched for")]
    TooMuchKnown { size: usize },
    #[error("the system gave no random key for pseudonyms")]
    NoRandomKey {
        #[source]
        source: getrandom::Error,
    },
}

// === impl Redactor ===

impl Redactor {
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Redacts a byte stream that arrives in parts.
    pub fn stream(&self, options: Options) -> Stream {
        Stream::new(Arc::clone(&self.engine), options)
    }

    /// Redacts entries with framed text one by one.
    pub fn entries(&self, options: Options) -> EntryStream {
        EntryStream::new(Arc::clone(&self.engine), options)
    }

    /// Redacts a text in memory, such as an excerpt of a finding.
    pub fn redact(&self, text: &[u8], options: Options) -> (Vec<u8>, Counts) {
        let mut out = Vec::with_capacity(text.len());
        let mut stream = self.stream(options);
        stream.push(text, &mut out);
        let counts = stream.finish(&mut out);
        (out, counts)
    }

    /// Returns the number of known values that are too short to be searched for.
    pub fn ignored(&self) -> usize {
        self.ignored
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

// === impl Builder ===

impl Builder {
    /// Adds a value that must not appear in any form.
    ///
    /// Values shorter than [`KNOWN_MIN`] are ignored and counted.
    ///
    /// Pass values, not files: otherwise each line of a configuration file is redacted in all other files. Of
    /// a bootstrap token only the secret half is searched for, because its ID is public.
    #[must_use]
    pub fn known_secret<T>(mut self, kind: Kind, secret: &Secret<T>) -> Self
    where
        T: AsRef<[u8]> + zeroize::Zeroize,
    {
        let mut value = secret.expose().as_ref().trim_ascii();
        if kind == Kind::BOOTSTRAP_TOKEN
            && let Some(dot) = value.iter().position(|byte| *byte == b'.')
        {
            value = &value[dot + 1..];
        }
        if value.len() < KNOWN_MIN {
            self.ignored += 1;
        } else {
            self.known.push((kind, Secret::new(value.to_vec())));
        }
        self
    }

    /// Adds a name of this machine, which is replaced only with
    /// [`Names::Pseudonyms`](crate::Names::Pseudonyms).
    #[must_use]
    pub fn host_name(mut self, name: &str) -> Self {
        if !name.is_empty() {
            self.host_names.push(name.to_owned());
        }
        self
    }

    pub fn build(self) -> Result<Redactor, BuildError> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|source| BuildError::NoRandomKey { source })?;
        let secret_key = Secret::new(key);
        key.zeroize();
        self.build_with_key(secret_key)
    }

    fn build_with_key(self, key: Secret<[u8; 32]>) -> Result<Redactor, BuildError> {
        let size = self.known.iter().map(|(_, value)| value.expose().len()).sum();
        if size > KNOWN_TOTAL_MAX {
            return Err(BuildError::TooMuchKnown { size });
        }
        let pseudonyms = Pseudonyms::new(key);
        let engine = Engine {
            rules: Rules::built_in()?,
            known: Known::new(&self.known, &pseudonyms),
            identities: Identities::new(&self.host_names)?,
            pseudonyms,
        };
        Ok(Redactor { engine: Arc::new(engine), ignored: self.ignored })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("known", &self.known.len()).finish_non_exhaustive()
    }
}
