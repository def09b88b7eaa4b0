//! Values that steps pass to each other: named and typed, and kept in the ledger across reboots.
//!
//! They are written to disk and shown to people: a secret is never a value. Pass secrets to a step's constructor.

use std::any::type_name;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Size limit of a value in the ledger. Larger content belongs in a file; the value is then its path and digest.
const MAX_VALUE_BYTES: usize = 256 * 1024;

/// All values of a run by name.
pub(crate) type Values = BTreeMap<String, Value>;

/// The name of a value, with its type.
///
/// ```
/// use landfall_steps::Key;
/// const CLUSTER_VERSION: Key<String> = Key::new("cluster-version");
/// ```
pub struct Key<T> {
    name: &'static str,
    value: PhantomData<fn() -> T>,
}

/// A key in a list of keys of different types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub(crate) name: &'static str,
    pub(crate) of: &'static str,
}

/// The values that a step passes to the following ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs(pub(crate) Values);

#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error("`{name}` is not among the declared inputs of the step")]
    Undeclared { name: &'static str },
    #[error("`{name}` has no value yet")]
    Absent { name: &'static str },
    #[error("the recorded value of `{name}` is not a {of}")]
    Type {
        name: &'static str,
        of: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("the value of `{name}` cannot be written as JSON")]
    Json {
        name: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("the value of `{name}` has {bytes} bytes; the ledger takes {MAX_VALUE_BYTES}")]
    TooLarge { name: &'static str, bytes: usize },
}

// === impl Key ===

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> Key<T> {
    pub const fn new(name: &'static str) -> Self {
        Self { name, value: PhantomData }
    }

    pub fn slot(&self) -> Slot {
        Slot { name: self.name, of: type_name::<T>() }
    }
}

impl<T: Serialize + DeserializeOwned> Key<T> {
    pub(crate) fn encode(&self, value: &T) -> Result<Value, ValueError> {
        let value =
            serde_json::to_value(value).map_err(|source| ValueError::Json { name: self.name, source })?;
        let bytes = value.to_string().len();
        if bytes > MAX_VALUE_BYTES {
            return Err(ValueError::TooLarge { name: self.name, bytes });
        }
        Ok(value)
    }

    pub(crate) fn decode(&self, values: &Values) -> Result<T, ValueError> {
        let value = values.get(self.name).ok_or(ValueError::Absent { name: self.name })?;
        T::deserialize(value).map_err(|source| ValueError::Type {
            name: self.name,
            of: type_name::<T>(),
            source,
        })
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}: {})", self.name, type_name::<T>())
    }
}

// === impl Outputs ===

impl Outputs {
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a value.
    pub fn give<T: Serialize + DeserializeOwned>(
        mut self,
        key: &Key<T>,
        value: &T,
    ) -> Result<Self, ValueError> {
        self.0.insert(key.name.to_owned(), key.encode(value)?);
        Ok(self)
    }
}
