//! Webhooks of outside systems by configuration: GitHub, Standard Webhooks, and plain JSON (PROV-006, PROV-010 … PROV-013).

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    ProviderError, ProviderEvent, Scheme, Secret, SignalProvider, Verifier, WebhookRequest, subscription_tools,
};
use crate::{
    json::{Object, json},
    notification::NewNotification,
    signal::{Contents, SignalInput},
    storage::ProviderSubscription,
    tool::Tool,
};

/// The id of a webhook provider that has been given none (PROV-006).
const DEFAULT_ID: &str = "webhook-signals";
/// How many of the things that an event concerns a summary of our own making names.
const NAMED: usize = 5;
/// Characters of such a summary.
const LINE: usize = 300;

/// A signal that says a thread now follows `resource` (PROV-006): type `reactive`, tag `webhook-subscribe`. Nothing but the
/// model reads it; [`Bugle::subscribe_provider`](crate::Bugle::subscribe_provider) subscribes.
///
/// ```
/// let signal = bugle::provider::webhook_subscribe_signal("acme/app");
/// assert_eq!(signal.tag_name.as_deref(), Some("webhook-subscribe"));
/// ```
pub fn webhook_subscribe_signal(resource: &str) -> SignalInput {
    about("webhook-subscribe", resource, format!("Events of {resource} arrive as notifications from now on."))
}

/// A signal that says a thread follows `resource` no more (PROV-006): type `reactive`, tag `webhook-unsubscribe`.
pub fn webhook_unsubscribe_signal(resource: &str) -> SignalInput {
    about("webhook-unsubscribe", resource, format!("Events of {resource} arrive no more."))
}

fn about(tag: &str, resource: &str, text: String) -> SignalInput {
    SignalInput {
        tag_name: Some(tag.to_owned()),
        attributes: Some([("resource".to_owned(), json!(resource))].into_iter().collect()),
        ..SignalInput::new("reactive", Contents::Text(text))
    }
}

/// How a sender signs, and what its bodies look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WebhookPreset {
    /// JSON of any kind, signed `X-Signature-256: sha256=<hex>`.
    #[default]
    Generic,
    /// GitHub's.
    GitHub,
    /// JSON of any kind, signed as Standard Webhooks says.
    StandardWebhooks,
}

/// A webhook (`[[webhooks]]` of `bugle.toml`).
#[derive(Debug, Clone, bon::Builder)]
pub struct WebhookOptions {
    /// Names it: its address is `/api/signals/<id>/webhook`. Default: `webhook-signals`.
    #[builder(into, default = DEFAULT_ID)]
    pub id: String,
    /// Default: generic JSON.
    #[builder(default)]
    pub preset: WebhookPreset,
    /// Secrets that senders may sign with; several while one is replaced. Without any there is no route.
    #[builder(default)]
    pub secrets: Vec<Secret>,
    /// How the sender signs, where not as its preset says.
    pub scheme: Option<Scheme>,
    /// How far a signed time may be off. Default: 300 s.
    #[builder(default = std::time::Duration::from_secs(300))]
    pub tolerance: std::time::Duration,
    /// Where in the body it says what it concerns, as a JSON pointer; a text or a list of texts. The preset's own if absent.
    pub external_id: Option<String>,
    /// Where the kind of event is, as a JSON pointer.
    pub kind: Option<String>,
    /// Where the summary is, as a JSON pointer.
    pub summary: Option<String>,
    /// The priority of its notifications. Default: `medium`; GitHub's failures are `high`.
    pub priority: Option<String>,
    /// Subscriptions that are always there.
    #[builder(default)]
    pub subscriptions: Vec<ProviderSubscription>,
}

/// A provider that takes webhooks in.
///
/// ```
/// use bugle::provider::{Secret, WebhookOptions, WebhookPreset, WebhookProvider};
/// let options = WebhookOptions::builder()
///     .id("github")
///     .preset(WebhookPreset::GitHub)
///     .secrets(vec![Secret::new("from the environment")])
///     .build();
/// let provider = WebhookProvider::new(options);
/// # let _ = provider;
/// ```
#[derive(Debug)]
pub struct WebhookProvider {
    options: WebhookOptions,
    verifier: Option<Verifier>,
}

impl WebhookProvider {
    /// A provider with these options.
    pub fn new(options: WebhookOptions) -> Self {
        let scheme = options.scheme.clone().unwrap_or_else(|| match options.preset {
            WebhookPreset::GitHub => Scheme::github(),
            WebhookPreset::StandardWebhooks => Scheme::StandardWebhooks,
            WebhookPreset::Generic => Scheme::Body {
                header: "x-signature-256".into(),
                prefix: "sha256=".into(),
                encoding: super::Encoding::Hex,
            },
        });
        let secrets = options.secrets.clone();
        let verifier = (!secrets.is_empty()).then(|| Verifier::hmac(scheme, secrets).tolerance(options.tolerance));
        Self { options, verifier }
    }

    /// Proves where webhooks come from in a way of its own.
    #[must_use]
    pub fn verified_by(self, verifier: Verifier) -> Self {
        Self { verifier: Some(verifier), ..self }
    }

    fn generic(&self, body: Value, (delivery_id, repetition_key): (String, Option<String>)) -> ProviderEvent {
        let at = |pointer: &Option<String>| pointer.as_deref().and_then(|pointer| body.pointer(pointer));
        let resources = match &self.options.external_id {
            Some(_) => at(&self.options.external_id),
            None => body.get("resource").or_else(|| body.get("externalResourceId")),
        };
        let external_resource_ids = texts(resources);
        let kind = at(&self.options.kind).and_then(as_text).unwrap_or_else(|| "webhook-event".into());
        let summary = at(&self.options.summary).and_then(as_text);
        let summary = summary.unwrap_or_else(|| {
            let mut about = external_resource_ids.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
            if let Some(more) = external_resource_ids.len().checked_sub(NAMED).filter(|more| *more > 0) {
                let _ = write!(about, " and {more} more");
            }
            line(format!("{kind} from {}: {about}", self.options.id))
        });
        ProviderEvent {
            source: self.options.id.clone(),
            kind,
            summary,
            priority: self.options.priority.clone().unwrap_or_else(|| "medium".into()),
            payload: Some(body),
            delivery_id,
            repetition_key,
            coalesce_key: None,
            attributes: None,
            external_resource_ids,
        }
    }

    fn github(
        &self,
        request: &WebhookRequest,
        body: Value,
        (delivery_id, repetition_key): (String, Option<String>),
    ) -> Option<ProviderEvent> {
        let event = request.header("x-github-event").unwrap_or("event").to_owned();
        if event == "ping" {
            return None;
        }
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let repository = text("/repository/full_name");
        let named = self.options.external_id.as_deref().and_then(|pointer| body.pointer(pointer));
        let external_resource_ids = match named {
            Some(named) => texts(Some(named)),
            None => {
                // A subscription may follow a whole account.
                let owner =
                    repository.as_deref().and_then(|name| name.split_once('/')).map(|(owner, _)| owner.to_owned());
                repository.iter().cloned().chain(owner.or_else(|| text("/organization/login"))).collect()
            }
        };
        let action = text("/action");
        let kind = self.options.kind.as_deref().and_then(|pointer| body.pointer(pointer)).and_then(as_text);
        let kind = kind.unwrap_or_else(|| match &action {
            Some(action) => format!("{event}.{action}"),
            None => event.clone(),
        });
        let summary = self.options.summary.as_deref().and_then(|pointer| body.pointer(pointer)).and_then(as_text);
        let summary = summary.unwrap_or_else(|| github_summary(&event, action.as_deref(), &body));
        let conclusion =
            ["workflow_run", "check_run", "check_suite"].iter().find_map(|name| text(&format!("/{name}/conclusion")));
        let has_failed = matches!(conclusion.as_deref(), Some("failure" | "timed_out" | "startup_failure"));
        let priority = self.options.priority.clone();
        let priority = priority.unwrap_or_else(|| if has_failed { "high" } else { "medium" }.into());
        let mut attributes = Object::new();
        for (name, value) in [("repository", repository), ("sender", text("/sender/login"))] {
            if let Some(value) = value {
                attributes.insert(name.to_owned(), value.into());
            }
        }
        Some(ProviderEvent {
            external_resource_ids,
            source: "github".into(),
            kind,
            summary,
            priority,
            payload: Some(body),
            delivery_id,
            repetition_key,
            coalesce_key: None,
            attributes: Some(attributes),
        })
    }
}

/// One line on an event of GitHub.
fn github_summary(event: &str, action: Option<&str>, body: &Value) -> String {
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str);
    let repository = text("/repository/full_name").unwrap_or("github");
    let sender = text("/sender/login").unwrap_or("somebody");
    let text = match event {
        "push" => {
            let count = body.get("commits").and_then(Value::as_array).map_or(0, Vec::len);
            let branch = text("/ref").unwrap_or_default();
            let branch = branch.strip_prefix("refs/heads/").unwrap_or(branch);
            let plural = if count == 1 { "" } else { "s" };
            let mut line = format!("{sender} pushed {count} commit{plural} to {branch} of {repository}");
            if let Some(message) = text("/head_commit/message").and_then(|message| message.lines().next()) {
                let _ = write!(line, ": {message}");
            }
            line
        }
        "workflow_run" | "check_run" | "check_suite" => {
            let of = |name: &str| text(&format!("/{event}/{name}")).map(str::to_owned);
            let name = of("name").or_else(|| of("head_branch")).unwrap_or_else(|| event.to_owned());
            let state = of("conclusion").or_else(|| of("status")).unwrap_or_default();
            let branch = of("head_branch").map(|branch| format!(" on {branch}")).unwrap_or_default();
            format!("{name}{branch} of {repository}: {state}")
        }
        _ => {
            let what = event.replace('_', " ");
            let action = action.unwrap_or("happened").replace('_', " ");
            let subject = ["pull_request", "issue", "release", "discussion"].iter().find_map(|name| body.get(*name));
            let title = subject
                .and_then(|subject| subject.get("title").or_else(|| subject.get("name")))
                .and_then(Value::as_str)
                .map(|title| format!(": {title}"))
                .unwrap_or_default();
            let number = subject.and_then(|subject| subject.get("number")).and_then(Value::as_u64);
            let number = number.map(|number| format!(" #{number}")).unwrap_or_default();
            format!("{what}{number} {action} in {repository} by {sender}{title}")
        }
    };
    line(text)
}

/// A summary of our own making, of at most 300 characters.
fn line(text: String) -> String {
    if text.chars().count() > LINE { text.chars().take(LINE - 1).chain(['…']).collect() } else { text }
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()).filter(|text| !text.trim().is_empty()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// A text or a list of texts, each once.
fn texts(value: Option<&Value>) -> Vec<String> {
    let mut found: Vec<String> = match value {
        Some(Value::Array(items)) => items.iter().filter_map(as_text).collect(),
        Some(value) => as_text(value).into_iter().collect(),
        None => Vec::new(),
    };
    let mut seen = std::collections::HashSet::new();
    found.retain(|text| !text.is_empty() && seen.insert(text.clone()));
    found
}

impl SignalProvider for WebhookProvider {
    fn id(&self) -> &str {
        &self.options.id
    }

    fn verifier(&self) -> Option<&Verifier> {
        self.verifier.as_ref()
    }

    fn read_webhook(&self, request: &WebhookRequest) -> Result<Vec<ProviderEvent>, ProviderError> {
        let body: Value = serde_json::from_slice(&request.body)
            .map_err(|error| ProviderError(format!("the body is not JSON: {error}")))?;
        let named = match self.options.preset {
            WebhookPreset::GitHub => request.header("x-github-delivery"),
            _ => request.header("webhook-id"),
        };
        let digest = Sha256::digest(&request.body).iter().fold(String::from("sha256-"), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        let named = named.filter(|id| !id.is_empty()).map(str::to_owned);
        // Only a name that is signed tells repetitions apart; else whoever overhears a body sends it under another.
        let is_signed = self.verifier.as_ref().is_some_and(|verifier| match verifier.signs_id() {
            Some(signs) => signs,
            None => self.options.preset == WebhookPreset::StandardWebhooks,
        });
        let delivery = match named {
            Some(named) if is_signed => (named, None),
            named => (named.unwrap_or_else(|| digest.clone()), Some(digest)),
        };
        Ok(match self.options.preset {
            WebhookPreset::GitHub => self.github(request, body, delivery).into_iter().collect(),
            _ => vec![self.generic(body, delivery)],
        })
    }

    fn fixed_subscriptions(&self) -> &[ProviderSubscription] {
        &self.options.subscriptions
    }

    /// What several pending events say of one thing is one notification, except from GitHub, whose events differ.
    fn notification(
        &self,
        _: &ProviderEvent,
        subscription: &ProviderSubscription,
        made: NewNotification,
    ) -> NewNotification {
        let coalesce_key = match self.options.preset {
            WebhookPreset::GitHub => None,
            _ => Some(format!("{}:{}", self.options.id, subscription.external_resource_id)),
        };
        NewNotification { coalesce_key, ..made }
    }

    fn tools(&self) -> Vec<Tool> {
        subscription_tools(&self.options.id).into()
    }
}
