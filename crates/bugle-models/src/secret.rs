//! Keys: usable, never shown.

use std::fmt;

/// A provider's key. Neither `Debug` nor any error of this crate shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// Wraps a key. Blanks around it are dropped.
    pub fn new(key: impl AsRef<str>) -> Self {
        Self(key.as_ref().trim().to_owned())
    }

    /// The key itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

impl<T: AsRef<str>> From<T> for ApiKey {
    fn from(key: T) -> Self {
        Self::new(key)
    }
}

/// Takes what must not be shown out of texts that come from outside.
#[derive(Clone, Default)]
pub(crate) struct Scrubber(Vec<String>);

impl fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scrubber({})", self.0.len())
    }
}

impl Scrubber {
    /// Hides `secret`. Too short a text is no secret: replacing it would only garble.
    pub(crate) fn hide(&mut self, secret: &str) {
        if secret.len() >= 6 && !self.0.iter().any(|known| known == secret) {
            self.0.push(secret.to_owned());
            // A longer secret may hold a shorter one.
            self.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        }
    }

    pub(crate) fn clean(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| {
            if text.contains(secret.as_str()) { text.replace(secret.as_str(), "[key]") } else { text }
        })
    }
}
