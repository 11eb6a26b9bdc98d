//! Proof of where a webhook comes from (PROV-011): HMAC-SHA-256 over the raw body, in the forms that are in use.

use std::{fmt, sync::Arc, time::Duration};

use base64::Engine as _;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::time::Timestamp;

/// A webhook as it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRequest {
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body, byte for byte.
    pub body: Bytes,
    /// When it came in.
    pub now: Timestamp,
}

impl WebhookRequest {
    /// The first header of this name, which is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A secret that senders sign with. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// From its text.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into().into_bytes())
    }

    /// Whether somebody could sign with it.
    ///
    /// # Errors
    /// What is wrong, without the secret: it is blank, or for [`Scheme::StandardWebhooks`] begins with `whsec_` and is no
    /// base64 behind that.
    pub fn check(&self, scheme: &Scheme) -> Result<(), &'static str> {
        if self.0.iter().all(u8::is_ascii_whitespace) {
            return Err("it is blank");
        }
        let encoded = self.encoded().filter(|_| *scheme == Scheme::StandardWebhooks);
        if encoded.is_some_and(|text| decode(text, Encoding::Base64).is_none_or(|key| key.is_empty())) {
            return Err("what follows whsec_ is not base64");
        }
        Ok(())
    }

    fn encoded(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()?.strip_prefix("whsec_")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// How a signature is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// In hexadecimal digits.
    Hex,
    /// In base64.
    Base64,
}

/// What is signed, and where the signature is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheme {
    /// The body; the signature is in one header, behind a prefix.
    Body {
        /// The header, in lower case.
        header: String,
        /// What comes before the signature: `sha256=`.
        prefix: String,
        /// How it is written.
        encoding: Encoding,
    },
    /// `<time>.<body>`; the header reads `t=<seconds>,v1=<hex>`, with several `v1` while a sender rotates its secret.
    Timestamped {
        /// The header, in lower case.
        header: String,
    },
    /// Standard Webhooks: `<id>.<time>.<body>`; headers `webhook-id`, `webhook-timestamp` and `webhook-signature` with a
    /// list of `v1,<base64>`. A secret that begins with `whsec_` is base64.
    StandardWebhooks,
}

impl Scheme {
    /// GitHub's: `X-Hub-Signature-256: sha256=<hex>`.
    pub fn github() -> Self {
        Self::Body { header: "x-hub-signature-256".into(), prefix: "sha256=".into(), encoding: Encoding::Hex }
    }
}

type Check = Arc<dyn Fn(&WebhookRequest) -> bool + Send + Sync>;

/// Tells whether a webhook comes from somebody who knows a secret.
///
/// ```
/// use bugle::provider::{Scheme, Secret, Verifier};
/// // The new secret and the old one are both good while the sender changes over.
/// let verifier = Verifier::hmac(Scheme::github(), vec![Secret::new("new"), Secret::new("old")]);
/// # let _ = verifier;
/// ```
#[derive(Clone)]
pub struct Verifier {
    how: How,
    tolerance: Duration,
}

#[derive(Clone)]
enum How {
    Hmac { scheme: Scheme, secrets: Vec<Secret> },
    Custom(Check),
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Verifier");
        if let How::Hmac { scheme, secrets } = &self.how {
            shown.field("scheme", scheme).field("secrets", &secrets.len());
        }
        shown.field("tolerance", &self.tolerance).finish_non_exhaustive()
    }
}

impl Verifier {
    /// HMAC-SHA-256 with any of these secrets. Without secrets nothing is accepted.
    pub fn hmac(scheme: Scheme, secrets: Vec<Secret>) -> Self {
        Self { how: How::Hmac { scheme, secrets }, tolerance: Duration::from_secs(300) }
    }

    /// A check of one's own. It should compare in constant time.
    pub fn custom(check: impl Fn(&WebhookRequest) -> bool + Send + Sync + 'static) -> Self {
        Self { how: How::Custom(Arc::new(check)), tolerance: Duration::from_secs(300) }
    }

    /// How far a signed time may be off, either way. Default: 300 s.
    #[must_use]
    pub fn tolerance(self, tolerance: Duration) -> Self {
        Self { tolerance, ..self }
    }

    /// Whether the name of a delivery (`webhook-id`) is signed too; `None` for a check of one's own, which may do anything.
    pub(super) fn signs_id(&self) -> Option<bool> {
        match &self.how {
            How::Hmac { scheme, .. } => Some(*scheme == Scheme::StandardWebhooks),
            How::Custom(_) => None,
        }
    }

    /// Whether the webhook is to be believed. Takes as long for a wrong signature as for a right one.
    pub fn accepts(&self, request: &WebhookRequest) -> bool {
        match &self.how {
            How::Custom(check) => check(request),
            How::Hmac { scheme, secrets } => self.accepts_hmac(scheme, secrets, request).unwrap_or(false),
        }
    }

    fn accepts_hmac(&self, scheme: &Scheme, secrets: &[Secret], request: &WebhookRequest) -> Option<bool> {
        match scheme {
            Scheme::Body { header, prefix, encoding } => {
                let given = decode(request.header(header)?.trim().strip_prefix(prefix.as_str())?, *encoding)?;
                Some(any_matches(secrets, &[&request.body], &[given], false))
            }
            Scheme::Timestamped { header } => {
                let fields: Vec<(&str, &str)> =
                    request.header(header)?.split(',').filter_map(|field| field.trim().split_once('=')).collect();
                let time = fields.iter().find(|(name, _)| *name == "t")?.1;
                let given: Vec<Vec<u8>> = fields
                    .iter()
                    .filter(|(name, _)| *name == "v1")
                    .filter_map(|(_, value)| decode(value, Encoding::Hex))
                    .collect();
                let parts: [&[u8]; 3] = [time.as_bytes(), b".", &request.body];
                Some(self.is_recent(time, request.now) & any_matches(secrets, &parts, &given, false))
            }
            Scheme::StandardWebhooks => {
                let (id, time) = (request.header("webhook-id")?, request.header("webhook-timestamp")?);
                let given: Vec<Vec<u8>> = request
                    .header("webhook-signature")?
                    .split_whitespace()
                    .filter_map(|signature| decode(signature.strip_prefix("v1,")?, Encoding::Base64))
                    .collect();
                let parts: [&[u8]; 5] = [id.as_bytes(), b".", time.as_bytes(), b".", &request.body];
                Some(self.is_recent(time, request.now) & any_matches(secrets, &parts, &given, true))
            }
        }
    }

    /// A signature of long ago may have been overheard.
    fn is_recent(&self, seconds: &str, now: Timestamp) -> bool {
        let Ok(seconds) = seconds.parse::<i64>() else { return false };
        let off = now.as_millis().saturating_sub(seconds.saturating_mul(1000)).unsigned_abs();
        u128::from(off) <= self.tolerance.as_millis()
    }
}

/// Looks at all secrets and all signatures, whatever the first ones say.
fn any_matches(secrets: &[Secret], parts: &[&[u8]], given: &[Vec<u8>], may_be_base64: bool) -> bool {
    let mut matches = subtle::Choice::from(0);
    for secret in secrets {
        let decoded = secret.encoded().filter(|_| may_be_base64).and_then(|text| decode(text, Encoding::Base64));
        let key = decoded.as_deref().unwrap_or(&secret.0);
        // An HMAC takes keys of any length; an empty one, or one of blanks, would be everybody's.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { continue };
        if secret.0.iter().all(u8::is_ascii_whitespace) || key.is_empty() {
            continue;
        }
        for part in parts {
            mac.update(part);
        }
        let expected = mac.finalize().into_bytes();
        for given in given {
            matches |= expected.as_slice().ct_eq(given);
        }
    }
    bool::from(matches)
}

fn decode(text: &str, encoding: Encoding) -> Option<Vec<u8>> {
    match encoding {
        Encoding::Base64 => base64::engine::general_purpose::STANDARD.decode(text).ok(),
        Encoding::Hex => {
            let digits = text.as_bytes();
            if !digits.len().is_multiple_of(2) {
                return None;
            }
            let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
            digits.chunks_exact(2).map(|pair| Some(value(pair[0])? * 16 + value(pair[1])?)).collect()
        }
    }
}
