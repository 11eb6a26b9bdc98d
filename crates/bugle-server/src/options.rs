//! What a server is told: prefix, limits, origins, and who may do what.

use std::{fmt, sync::Arc, time::Duration};

use bugle::model::SharedModel;
use subtle::ConstantTimeEq;

/// Options of a server.
///
/// ```
/// let options = bugle_server::ServerOptions::builder().build();
/// assert_eq!(options.prefix, "/api");
/// ```
#[derive(Debug, Clone, bon::Builder)]
pub struct ServerOptions {
    /// What all paths but `/health` begin with (HTTP-001). Default: `/api`.
    #[builder(default = "/api".to_owned(), into)]
    pub prefix: String,
    /// The longest body, in bytes (HTTP-007). Default: 4.5 MiB.
    #[builder(default = 4_718_592)]
    pub max_body: usize,
    /// Time between comment frames on a silent stream (HTTP-025). Default: 25 s.
    #[builder(default = Duration::from_secs(25))]
    pub keep_alive: Duration,
    /// Which pages of other origins may read answers (HTTP-014). Default: all.
    #[builder(default)]
    pub origins: Origins,
    /// Who may do what (HTTP §13). Default: everybody everything.
    #[builder(default)]
    pub auth: Auth,
    /// Finds the model that a request names (field `model`). Without one, such requests are refused.
    pub models: Option<ModelResolver>,
    /// Shown in the OpenAPI document. Default: this crate's version.
    #[builder(default = env!("CARGO_PKG_VERSION").to_owned(), into)]
    pub version: String,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self::builder().build()
    }
}

/// Origins whose pages may read answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origins {
    /// All of them.
    #[default]
    Any,
    /// These, such as `https://app.example`.
    Only(Vec<String>),
}

impl Origins {
    pub(crate) fn allows(&self, origin: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Only(list) => list.iter().any(|allowed| allowed == origin),
        }
    }
}

/// Who may do what.
#[derive(Debug, Clone, Default)]
pub enum Auth {
    /// Everybody may do everything.
    #[default]
    None,
    /// Those who show one of these tokens (HTTP-210 … HTTP-214).
    Tokens(Vec<Token>),
}

/// A bearer token, and whom it stands for.
#[derive(Clone, bon::Builder)]
pub struct Token {
    /// What the client shows. Never logged.
    #[builder(into)]
    pub secret: String,
    /// Who that is.
    #[builder(into)]
    pub user: String,
    /// The resource this user acts as; overrules whatever a request says (HTTP-213).
    #[builder(into)]
    pub resource: String,
    /// `false`: known, but may do nothing (HTTP-211). Default: true.
    #[builder(default = true)]
    pub allow: bool,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("user", &self.user)
            .field("resource", &self.resource)
            .field("allow", &self.allow)
            .finish_non_exhaustive()
    }
}

impl Auth {
    pub(crate) const fn is_on(&self) -> bool {
        matches!(self, Self::Tokens(_))
    }

    /// Finds whose secret this is. Looks at all tokens, and at all bytes of each of the same length.
    pub(crate) fn find(&self, secret: &str) -> Option<&Token> {
        let Self::Tokens(tokens) = self else { return None };
        let mut found = None;
        for token in tokens {
            if bool::from(token.secret.as_bytes().ct_eq(secret.as_bytes())) && !secret.is_empty() {
                found = Some(token);
            }
        }
        found
    }
}

type Resolve = dyn Fn(&str) -> Result<SharedModel, String> + Send + Sync;

/// Finds the model that a request names; `Err` says why there is none.
#[derive(Clone)]
pub struct ModelResolver(Arc<Resolve>);

impl ModelResolver {
    /// Resolves with `resolve`, which must not block.
    pub fn new(resolve: impl Fn(&str) -> Result<SharedModel, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(resolve))
    }

    pub(crate) fn resolve(&self, name: &str) -> Result<SharedModel, String> {
        (self.0)(name)
    }
}

impl fmt::Debug for ModelResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelResolver(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_210_a_secret_finds_its_token_and_nothing_else_does() {
        let token = |secret: &str, user: &str| Token::builder().secret(secret).user(user).resource(user).build();
        let auth = Auth::Tokens(vec![token("token-alice", "alice"), token("", "nobody"), token("token-bob", "bob")]);
        assert_eq!(auth.find("token-bob").map(|token| token.user.as_str()), Some("bob"));
        assert!(auth.find("token-bo").is_none());
        assert!(auth.find("").is_none());
        assert!(!format!("{auth:?}").contains("token-alice"));
    }
}
