//! What can go wrong between a caller and the server.

use std::time::Duration;

use serde_json::Value;

/// Why a call gave no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The base URL is no `http://` or `https://` address.
    #[error("{url:?} is no server address; write http://HOST:PORT")]
    Url {
        /// What was given.
        url: String,
    },
    /// The server cannot be reached, or the connection broke before it answered.
    #[error("no server at {url}")]
    Unreachable {
        /// The server.
        url: String,
        /// What the network said.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused.
    #[error("{message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// What the server said, its issues included.
        message: String,
        /// The body: JSON if it was, else its text.
        body: Value,
        /// How long to wait before the next try, if the server said.
        retry_after: Option<Duration>,
    },
    /// The answer is not what the API says.
    #[error("the server's answer is not understood: {message}; is it a Bugle of this version?")]
    Protocol {
        /// What is wrong with it.
        message: String,
    },
    /// The HTTP client cannot be set up.
    #[error("the HTTP client cannot be set up")]
    Setup(#[source] reqwest::Error),
}

impl Error {
    /// The HTTP status, if the server answered one.
    pub const fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::Url { .. } | Self::Unreachable { .. } | Self::Protocol { .. } | Self::Setup(_) => None,
        }
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::Protocol { message: message.into() }
    }
}

/// The text of a refusal: its `error`, and the fields that are wrong (HTTP-005).
pub(crate) fn message_of(status: u16, body: &Value) -> String {
    let Some(error) = body.get("error").and_then(Value::as_str) else {
        return match body.as_str().map(str::trim) {
            Some(text) if !text.is_empty() => format!("HTTP {status}: {}", text.chars().take(500).collect::<String>()),
            _ => format!("HTTP {status}"),
        };
    };
    let issues = body.get("issues").and_then(Value::as_array).into_iter().flatten();
    let issues: Vec<String> = issues
        .filter_map(|issue| Some(format!("{}: {}", issue["field"].as_str()?, issue["message"].as_str()?)))
        .collect();
    if issues.is_empty() { error.to_owned() } else { format!("{error}: {}", issues.join("; ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn http_005_issues_are_part_of_the_message() {
        let body = json!({"error": "Invalid request body", "issues": [{"field": "message", "message": "required"}]});
        assert_eq!(message_of(400, &body), "Invalid request body: message: required");
        assert_eq!(message_of(404, &json!({"error": "Thread not found"})), "Thread not found");
        assert_eq!(message_of(502, &json!("<html>")), "HTTP 502: <html>");
        assert_eq!(message_of(502, &json!("")), "HTTP 502");
    }
}
