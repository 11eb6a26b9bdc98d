//! The table of keys: name, type, range, default, and whether this version has it (CLI §4).

use super::Scalar;

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Address,
    Bool,
    Choice(&'static [&'static str]),
    Int {
        min: i64,
        max: i64,
    },
    Ratio,
    Duration {
        min_ms: u64,
        max_ms: u64,
    },
    Size {
        min: u64,
        max: u64,
    },
    List,
    /// How often, in cron's words.
    Cron,
    Secret,
    /// A table whose keys are free.
    Map,
}

/// Whether this version acts on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    Yes,
    /// Only with these values, which change nothing or are what this version does anyway.
    Only(&'static [&'static str]),
    Later,
}

/// A key.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) path: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: Option<&'static str>,
    pub(crate) support: Support,
}

const fn key(path: &'static str, kind: Kind, default: Option<&'static str>) -> Key {
    Key { path, kind, default, support: Support::Yes }
}

const fn later(path: &'static str, kind: Kind) -> Key {
    Key { path, kind, default: None, support: Support::Later }
}

const fn only(path: &'static str, kind: Kind, values: &'static [&'static str]) -> Key {
    Key { path, kind, default: None, support: Support::Only(values) }
}

const DAY: u64 = 86_400_000;
const COUNT: Kind = Kind::Int { min: 1, max: 1_000_000_000 };
const TIME: Kind = Kind::Duration { min_ms: 1, max_ms: 3650 * DAY };
const TIME_OR_NONE: Kind = Kind::Duration { min_ms: 0, max_ms: 3650 * DAY };
const BYTES: Kind = Kind::Size { min: 1, max: 1 << 40 };

/// All keys but those of `[[auth.tokens]]`, `[[webhooks]]`, `[models.aliases]` and `[models.providers]`.
pub(crate) const TABLE: &[Key] = &[
    key("server.listen", Kind::Address, Some("127.0.0.1:4111")),
    key("server.prefix", Kind::Text, Some("/api")),
    key("server.max-body", Kind::Size { min: 1024, max: 1 << 30 }, Some("4.5MiB")),
    key("server.keep-alive", Kind::Duration { min_ms: 100, max_ms: DAY }, Some("25s")),
    later("server.request-timeout", TIME),
    key("server.cors-origins", Kind::List, None),
    key("server.drain-timeout", Kind::Duration { min_ms: 0, max_ms: DAY }, Some("25s")),
    only("server.studio", Kind::Bool, &["false"]),
    key("server.allow-anonymous", Kind::Bool, Some("false")),
    key("storage.url", Kind::Text, Some("file:bugle.db")),
    later("storage.auth-token", Kind::Secret),
    later("storage.schema", Kind::Text),
    later("storage.max-connections", COUNT),
    key("storage.synchronous", Kind::Choice(&["normal", "full"]), Some("normal")),
    only("storage.domains", Kind::Map, &["{}"]),
    only("storage.retention", Kind::Map, &["{}"]),
    only("pubsub.url", Kind::Text, &["memory:"]),
    later("pubsub.key-prefix", Kind::Text),
    later("pubsub.max-stream-length", COUNT),
    later("pubsub.stream-idle-ttl", TIME),
    later("pubsub.max-delivery-attempts", COUNT),
    later("pubsub.in-flight-timeout", TIME),
    later("pubsub.compat", Kind::Choice(&["mastra-1.71"])),
    key("lease.ttl", Kind::Duration { min_ms: 100, max_ms: DAY }, Some("15s")),
    later("lease.renew-interval", TIME),
    only("lease.failure", Kind::Choice(&["closed", "open"]), &["closed"]),
    only("inbox.max-entries", COUNT, &["1000"]),
    only("inbox.max-bytes", BYTES, &["8MiB"]),
    only("inbox.fairness", Kind::Choice(&["fifo", "owner"]), &["fifo"]),
    later("inbox.max-steer-drains", COUNT),
    only("runs.suspended-ttl", TIME, &["30m"]),
    only("runs.abort-grace", TIME, &["250ms"]),
    only("runs.tool-abort-grace", TIME, &["1s"]),
    key("runs.tool-concurrency", Kind::Int { min: 1, max: 10_000 }, Some("10")),
    key("runs.max-delegation-depth", Kind::Int { min: 1, max: 100 }, Some("8")),
    only("subscriptions.log-bytes", BYTES, &["8MiB"]),
    only("subscriptions.lag-chunks", COUNT, &["1024"]),
    only("subscriptions.lag-bytes", BYTES, &["1MiB"]),
    only("subscriptions.on-lag", Kind::Choice(&["compact", "close"]), &["compact"]),
    Key {
        path: "auth.mode",
        kind: Kind::Choice(&["none", "tokens", "jwt", "both"]),
        default: Some("none"),
        support: Support::Only(&["none", "tokens"]),
    },
    later("auth.jwt.secret", Kind::Secret),
    later("auth.jwt.public-key", Kind::Text),
    later("auth.jwt.jwks-url", Kind::Text),
    later("auth.jwt.algorithms", Kind::List),
    later("auth.jwt.issuer", Kind::Text),
    later("auth.jwt.audience", Kind::Text),
    later("auth.jwt.user-claim", Kind::Text),
    later("auth.jwt.resource-claim", Kind::Text),
    later("auth.jwt.leeway", TIME_OR_NONE),
    key("models.default", Kind::Text, None),
    key("agents.dirs", Kind::List, Some("agents")),
    key("agents.default", Kind::Text, None),
    Key {
        path: "mcp.files",
        kind: Kind::List,
        default: Some(".mcp.json"),
        support: Support::Only(&["[]", "[.mcp.json]"]),
    },
    key("notifications.dispatch", Kind::Bool, Some("true")),
    key("notifications.batch-size", Kind::Int { min: 1, max: 10_000 }, Some("100")),
    key("notifications.safety-poll", Kind::Duration { min_ms: 100, max_ms: DAY }, Some("60s")),
    key("notifications.cron", Kind::Cron, None),
    key("notifications.max-attempts", Kind::Int { min: 1, max: 1000 }, Some("5")),
    key("notifications.dedupe-window", TIME_OR_NONE, Some("0s")),
    key("notifications.render-id", Kind::Bool, Some("false")),
    only("background-tasks.enabled", Kind::Bool, &["false"]),
    later("background-tasks.global-concurrency", COUNT),
    later("background-tasks.per-agent-concurrency", COUNT),
    later("background-tasks.default-timeout", TIME),
    only("cross-agent.enabled", Kind::Bool, &["false"]),
    later("cross-agent.root", Kind::Text),
    later("cross-agent.resource-id", Kind::Text),
    later("cross-agent.accept-from", Kind::Choice(&["any", "saved", "same-resource"])),
    only("cross-agent.suppress-resends", Kind::Bool, &["false"]),
    later("cross-agent.max-hops", COUNT),
    key("log.level", Kind::Text, Some("info")),
    key("log.format", Kind::Choice(&["auto", "text", "json"]), Some("auto")),
    key("log.file", Kind::Text, None),
    later("otel.endpoint", Kind::Text),
    only("otel.headers", Kind::Map, &["{}"]),
    later("otel.service-name", Kind::Text),
    later("otel.sample-ratio", Kind::Ratio),
    later("otel.metrics", Kind::Bool),
    only("otel.model-chunks", Kind::Bool, &["false"]),
];

/// Variables that are no keys, and what reads them.
pub(crate) const CLIENT_VARIABLES: [&str; 5] =
    ["BUGLE_SERVER", "BUGLE_TOKEN", "BUGLE_AGENT", "BUGLE_RESOURCE", "BUGLE_THREAD"];

/// Keys of `[[auth.tokens]]`.
pub(super) const TOKEN_KEYS: [&str; 4] = ["token", "user", "resource", "allow"];
/// Keys of `[[webhooks]]`, and of its subscriptions.
pub(super) const WEBHOOK_KEYS: [&str; 10] =
    ["id", "agent", "preset", "secrets", "tolerance", "external-id", "kind", "summary", "priority", "subscriptions"];
pub(super) const SUBSCRIPTION_KEYS: [&str; 3] = ["resource", "thread", "external-id"];
/// Keys of `[models.providers.<id>]`; the last two are not in this version.
pub(super) const PROVIDER_KEYS: [&str; 5] = ["base-url", "api-key", "max-retries", "api", "headers"];

/// The key at `path`.
pub(crate) fn find(path: &str) -> Option<&'static Key> {
    TABLE.iter().find(|key| key.path == path)
}

impl Key {
    /// The variable that sets it; maps have none.
    pub(crate) fn variable(&self) -> Option<String> {
        (self.kind != Kind::Map).then(|| format!("BUGLE_{}", self.path.replace(['.', '-'], "_").to_uppercase()))
    }

    /// Refuses what this version does not have: a setting is never ignored in silence.
    pub(crate) fn check_support(&self, value: &Scalar) -> Result<(), String> {
        match self.support {
            Support::Yes => Ok(()),
            Support::Later => Err(format!("{} is not in this version; remove it", self.path)),
            Support::Only(values) if values.contains(&value.to_string().as_str()) => Ok(()),
            Support::Only(values) => {
                Err(format!("{} = {value} is not in this version; only {} is", self.path, values.join(" or ")))
            }
        }
    }
}
