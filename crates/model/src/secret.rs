use zeroize::Zeroize;

/// A value that must not leave the process by accident. It cannot be printed, compared, cloned or serialized, and its
/// memory is overwritten when it is dropped.
///
/// The only access to the value is [`Secret::expose`], a name that reviewers can search for.
///
/// ```
/// use landfall_model::Secret;
/// let token = Secret::new(String::from("abcdef.0123456789abcdef"));
/// assert_eq!(token.expose().len(), 23);
/// ```
///
/// It has no `Debug`, so it cannot appear in a log line, not even inside another type:
///
/// ```compile_fail,E0277
/// use landfall_model::Secret;
/// let token = Secret::new(String::from("abcdef.0123456789abcdef"));
/// println!("{token:?}");
/// ```
///
/// no `Display`:
///
/// ```compile_fail,E0277
/// use landfall_model::Secret;
/// let token = Secret::new(String::from("abcdef.0123456789abcdef"));
/// println!("{token}");
/// ```
///
/// and no `Serialize`, so it cannot be written into a report:
///
/// ```compile_fail,E0277
/// use landfall_model::Secret;
/// fn serialisable<T: serde::Serialize>(_: T) {}
/// serialisable(Secret::new(String::from("abcdef.0123456789abcdef")));
/// ```
///
/// The same programs compile when they use the value itself, which proves that they fail for the intended reason:
///
/// ```
/// use landfall_model::Secret;
/// fn serialisable<T: serde::Serialize>(_: T) {}
/// let name = Secret::new(String::from("not a secret"));
/// println!("{0} {0:?}", name.expose());
/// serialisable(name.expose());
/// ```
#[expect(missing_debug_implementations, reason = "the point of the type")]
pub struct Secret<T: Zeroize>(T);

// === impl Secret ===

impl<T: Zeroize> Secret<T> {
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the value for immediate use.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T: Zeroize> Drop for Secret<T> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Secrets are read from configuration; they are never written back.
impl<'de, T: Zeroize + serde::Deserialize<'de>> serde::Deserialize<'de> for Secret<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self)
    }
}
