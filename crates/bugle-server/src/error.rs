//! Refusals: the one place that knows which status a refusal has (HTTP-005, HTTP-006, the table of HTTP §2).

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bugle::{
    Error, RunId,
    json::{Value, json},
    provider::WebhookError,
    storage::StorageError,
};

use crate::shape::Issue;

/// Why a request is refused.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    body: Value,
    /// Seconds.
    retry_after: Option<u32>,
}

/// Where a request is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Body,
    Query,
    Path,
}

impl Place {
    const fn title(self) -> &'static str {
        match self {
            Self::Body => "Invalid request body",
            Self::Query => "Invalid query parameters",
            Self::Path => "Invalid path parameters",
        }
    }
}

impl Failure {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, body: json!({"error": message.into()}), retry_after: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }

    /// Another resource's thread, on a write (HTTP-012).
    pub(crate) fn foreign_thread() -> Self {
        Self::forbidden("Access denied: thread belongs to a different resource")
    }

    pub(crate) fn unknown_thread() -> Self {
        Self::not_found("Thread not found")
    }

    pub(crate) fn invalid(place: Place, issues: Vec<Issue>) -> Self {
        let body = json!({"error": place.title(), "issues": issues});
        Self { status: StatusCode::BAD_REQUEST, body, retry_after: None }
    }

    /// One wrong field of the body.
    pub(crate) fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(Place::Body, vec![Issue::new(field, message)])
    }

    fn later(self) -> Self {
        Self { retry_after: Some(1), ..self }
    }

    fn with_run(self, run_id: &RunId) -> Self {
        self.with("runId", json!(run_id))
    }

    fn with(mut self, name: &str, value: Value) -> Self {
        self.body[name] = value;
        self
    }

    /// The same, with the issues' fields inside `prefix`.
    pub(crate) fn under(mut self, prefix: &str) -> Self {
        if let Some(issues) = self.body.get_mut("issues").and_then(Value::as_array_mut) {
            for issue in issues {
                let field = issue["field"].as_str().unwrap_or_default();
                issue["field"] = json!(format!("{prefix}.{field}"));
            }
        }
        self
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    #[cfg(test)]
    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body)).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        let text = error.to_string();
        match error {
            StorageError::ThreadOwnership { .. } => Self::foreign_thread(),
            StorageError::MessageOwnership { .. } => Self::forbidden(text),
            StorageError::NotFound { what: "thread", .. } => Self::unknown_thread(),
            StorageError::NotFound { .. } => Self::not_found(text),
            StorageError::Busy { .. }
            | StorageError::Exists { .. }
            | StorageError::DifferentContent { .. }
            | StorageError::NotParked { .. } => Self::conflict(text),
            StorageError::Invalid(_) => Self::bad_request(text),
            StorageError::Unsupported { .. } => Self::unsupported(text),
            StorageError::StaleEpoch { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, text).later(),
            StorageError::Unavailable { source, .. } => {
                tracing::error!(error = %text, source = source.as_deref().map(tracing::field::display), "storage is unavailable");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, text).later()
            }
            _ => Self::unexpected(&text),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            // What the caller's options or context made impossible (HTTP-096).
            Error::Configuration(_) | Error::NoActiveRun | Error::RunNotOnThread { .. } | Error::NoMemory(_) => {
                Self::bad_request(text)
            }
            Error::UnknownAgent(_)
            | Error::UnknownInput(_)
            | Error::NoSuspendedRun { .. }
            | Error::NoSuspendedThreadRun { .. }
            | Error::NotSuspended { answered: false, .. } => Self::not_found(text),
            // Somebody was faster, or several calls fit (HTTP-108, ruling 37).
            Error::NotSuspended { run_id, .. } => Self::conflict(text).with_run(&run_id),
            Error::AmbiguousSuspendedRuns { run_ids, .. } => Self::conflict(text).with("runIds", json!(run_ids)),
            Error::AmbiguousToolCall { tool_call_ids, .. } => {
                Self::conflict(text).with("toolCallIds", json!(tool_call_ids))
            }
            Error::MissingResumeTarget => Self::bad_request(text),
            Error::InvalidSignal(invalid) => Self::field(invalid.field, invalid.message),
            Error::Invalid { field, message } => Self::field(field, message),
            Error::InputLimit(_) => Self::new(StatusCode::TOO_MANY_REQUESTS, text).later(),
            Error::AlreadyTaken { run_id, .. } | Error::RunInProgress { run_id, .. } => {
                Self::conflict(text).with_run(&run_id)
            }
            Error::RunIdTaken { run_id } => Self::conflict(text).with_run(&run_id),
            Error::Draining | Error::OwnedElsewhere { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, text).later(),
            Error::State(error) => match error.code {
                "state_thread_not_found" => Self::unknown_thread(),
                "thread_resource_mismatch" => Self::foreign_thread(),
                "state_conflict" | "state_stale_base" | "state_too_many_lanes" => Self::conflict(text),
                _ => match error.field {
                    Some(field) => Self::field(field, error.message),
                    None => Self::bad_request(text),
                },
            },
            Error::Storage(error) => error.into(),
            Error::NotificationsUnsupported(_) => Self::unsupported(text),
            // A caller's mistake is never 5xx: the client would send it again (HTTP-013).
            Error::Run(info) if info.id.as_deref() == Some("AGENT_MEMORY_THREAD_RESOURCE_MISMATCH") => {
                Self::foreign_thread()
            }
            Error::Run(info) if info.id.as_deref() == Some("MESSAGE_OWNERSHIP") => Self::forbidden(text),
            // Not the provider's failure but the store's: nothing was run, or nothing more could be stored.
            Error::Run(info) if matches!(info.name.as_str(), "StorageError" | "ThreadUnavailable") => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, text).later()
            }
            Error::Run(_) => Self::new(StatusCode::BAD_GATEWAY, text),
            Error::Internal(_) => Self::unexpected(&text),
            _ => Self::unexpected(&text),
        }
    }
}

impl Failure {
    /// What the sender of a webhook is told: nothing that helps to guess (PROV-011).
    pub(crate) fn of_webhook(error: &WebhookError) -> Self {
        match error {
            WebhookError::Unknown => Self::not_found("Not Found"),
            WebhookError::Refused => Self::new(StatusCode::UNAUTHORIZED, "Unauthorized"),
            WebhookError::Unreadable(_) => Self::bad_request(error.to_string()),
            // Sending it again would help nobody.
            WebhookError::Invalid(error) if matches!(&**error, Error::Invalid { field, .. } if field == "payload") => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
            }
            WebhookError::Invalid(_) => Self::bad_request(error.to_string()),
            _ => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).later(),
        }
    }

    fn unexpected(text: &str) -> Self {
        tracing::error!(error = text, "request failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }
}

#[cfg(test)]
mod tests {
    use bugle::ThreadKey;

    use super::*;

    #[test]
    fn prov_013_only_what_could_not_be_stored_is_to_be_sent_again() {
        let invalid = |field: &str| WebhookError::Invalid(Box::new(Error::invalid(field, "no")));
        let storage = StorageError::Unavailable { message: "disk full".into(), source: None };
        for (error, status, later) in [
            (WebhookError::Unreadable("no JSON".into()), 400, false),
            (invalid("attributes"), 400, false),
            (invalid("payload"), 413, false),
            (WebhookError::NotStored(Box::new(storage.into())), 503, true),
        ] {
            let failure = Failure::of_webhook(&error);
            assert_eq!((failure.status().as_u16(), failure.retry_after.is_some()), (status, later), "{failure:?}");
        }
    }

    #[test]
    fn http_013_mistakes_of_the_caller_are_never_5xx_and_unaccepted_input_asks_to_come_again() {
        for (error, status, later) in [
            (Error::NoActiveRun, 400, false),
            (Error::UnknownAgent("nope".into()), 404, false),
            (Error::InputLimit(ThreadKey::new("r", "t")), 429, true),
            (Error::Draining, 503, true),
            (Error::OwnedElsewhere { thread: ThreadKey::new("r", "t"), owner: "p".into() }, 503, true),
            (Error::AlreadyTaken { id: "m".into(), run_id: "r".into() }, 409, false),
            (Error::NoSuspendedRun { run_id: "r".into() }, 404, false),
            (Error::NotSuspended { run_id: "r".into(), tool_call_id: None, answered: false }, 404, false),
            (Error::NotSuspended { run_id: "r".into(), tool_call_id: None, answered: true }, 409, false),
            (Error::AmbiguousToolCall { tool_call_id: "c".into(), tool_call_ids: Vec::new() }, 409, false),
            (StorageError::NotParked { run_id: "r".into() }.into(), 409, false),
            (StorageError::Unavailable { message: "disk full".into(), source: None }.into(), 503, true),
            (StorageError::DifferentContent { id: "m".into() }.into(), 409, false),
        ] {
            let failure = Failure::from(error);
            assert_eq!((failure.status().as_u16(), failure.retry_after.is_some()), (status, later), "{failure:?}");
        }
    }
}
