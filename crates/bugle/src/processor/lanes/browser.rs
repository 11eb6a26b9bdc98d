//! The browser an agent works with, as a lane (STATE-090 … STATE-095).

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{
    json::{Object, Value, json},
    message::{Part, StoredMessage, ToolState},
    processor::{
        Context, Hook, HookSet, Input, Outcome, Processor,
        lane::{Current, Lane, Reading, advance},
    },
    signal::{LaneView, StateInput},
};

/// The request-context key that holds what is known of the browser.
const KEY: &str = "browser";

/// What is asked each step, and wins over the request context.
type Look = Arc<dyn Fn() -> BoxFuture<'static, Object> + Send + Sync>;

/// Tells the model what the browser shows: the object under `browser` of the request context, and what a look at the
/// browser gives. Without that object it does nothing.
///
/// ```
/// use bugle::processor::lanes::BrowserLane;
/// let lane = BrowserLane::new().looking(|| Box::pin(async {
///     bugle::json::json!({"currentUrl": "https://example.com", "tabCount": 3}).as_object().cloned().unwrap_or_default()
/// }));
/// ```
#[derive(Clone, Default)]
pub struct BrowserLane {
    look: Option<Look>,
    /// The time of a state is a rendered attribute, as in the reference; by default it is metadata (STATE-095).
    timed: bool,
}

impl fmt::Debug for BrowserLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrowserLane(..)")
    }
}

/// What the lane says (STATE-092).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct State {
    process_id: Value,
    open: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tab_count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_url_change_source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_metadata: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    close_reason: Option<String>,
}

impl BrowserLane {
    /// A lane on the request context alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the browser each step; what is given wins over the request context's.
    #[must_use]
    pub fn looking(mut self, look: impl Fn() -> BoxFuture<'static, Object> + Send + Sync + 'static) -> Self {
        self.look = Some(Arc::new(look));
        self
    }

    /// Renders the time of each state. Otherwise identical prompts differ then, which defeats caches.
    #[must_use]
    pub fn timed(mut self) -> Self {
        self.timed = true;
        self
    }
}

fn tabs(count: u64) -> String {
    if count == 1 { "1 open tab".to_owned() } else { format!("{count} open tabs") }
}

fn of(fields: &Object, process_id: &str) -> State {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
    let open = fields.get("isOpen").and_then(Value::as_bool).unwrap_or(true);
    State {
        process_id: json!(process_id),
        open,
        active_url: text("currentUrl").filter(|_| open),
        page_title: text("pageTitle").filter(|_| open),
        tab_count: fields.get("tabCount").and_then(Value::as_u64).filter(|_| open),
        active_url_change_source: text("activeUrlChangeSource"),
        page_metadata: fields.get("pageMetadata").filter(|_| open).cloned(),
        close_reason: text("closeReason").filter(|_| !open),
    }
}

/// The URL that the most recent successful click reported (STATE-094).
fn clicked_url(messages: &[StoredMessage]) -> Option<String> {
    let parts = messages.iter().rev().flat_map(|message| message.content.parts.iter().rev());
    let result = parts.into_iter().find_map(|part| match part {
        Part::ToolInvocation(call)
            if call.tool_invocation.tool_name == "browser_click"
                && call.tool_invocation.state == ToolState::Result
                && call.tool_invocation.is_error != Some(true) =>
        {
            call.tool_invocation.result.as_ref()
        }
        _ => None,
    })?;
    ["url", "currentUrl"].iter().find_map(|name| result.get(name)?.as_str()).map(str::to_owned)
}

/// Which process looks: a browser that was open in another one was closed by a restart.
fn process() -> String {
    std::process::id().to_string()
}

struct Reader {
    timed: Option<String>,
}

#[async_trait]
impl Lane for Reader {
    type State = State;

    fn id(&self) -> &'static str {
        "browser"
    }

    async fn current(&self, _: &mut Context<'_>) -> Outcome<Current<State>> {
        Ok(Current::Unknown)
    }

    fn read(&self, state: &State) -> Reading {
        let mut text = if state.open {
            "Browser is open.".to_owned()
        } else {
            match state.close_reason.as_deref() {
                Some(reason) => format!("Browser is closed (by {}).", reason.replace('_', " ")),
                None => "Browser is closed.".to_owned(),
            }
        };
        if let Some(url) = &state.active_url {
            let _ = write!(text, " Active tab URL: {url}.");
        }
        if let Some(title) = &state.page_title {
            let _ = write!(text, " Page title: {title}.");
        }
        if let Some(count) = state.tab_count {
            let _ = write!(text, " {}.", tabs(count));
        }
        self.dressed(Reading::text(text))
    }

    fn change(&self, before: &State, now: &State) -> Option<Reading> {
        let mut phrases = Vec::new();
        let reopened = now.open && !before.open;
        if before.open != now.open {
            phrases.push(match (now.open, now.close_reason.as_deref()) {
                (true, _) => "browser opened".to_owned(),
                (false, Some("process_restart")) => "browser closed by a process restart".to_owned(),
                (false, Some(reason)) => format!("{reason} closed the browser"),
                (false, None) => "browser closed".to_owned(),
            });
        }
        if now.open
            && let Some(url) = now.active_url.as_ref().filter(|url| reopened || before.active_url.as_ref() != Some(url))
        {
            let source = now.active_url_change_source.as_deref().unwrap_or("user");
            phrases.push(if reopened {
                format!("active tab URL is {url}")
            } else {
                format!("{source} changed active tab URL to {url}")
            });
        }
        if now.open
            && let Some(title) =
                now.page_title.as_ref().filter(|title| reopened || before.page_title.as_ref() != Some(title))
        {
            phrases.push(format!("page title is {title}"));
        }
        if now.open
            && let Some(count) = now.tab_count.filter(|count| reopened || before.tab_count != Some(*count))
        {
            phrases.push(tabs(count));
        }
        if now.open && before.page_metadata != now.page_metadata {
            phrases.push("page metadata changed".to_owned());
        }
        if phrases.is_empty() {
            return None;
        }
        let mut reading = self.dressed(Reading::text(format!("changed: {}", phrases.join("; "))));
        reading.delta = Some(json!(now));
        Some(reading)
    }

    fn differs(&self, before: &State, now: &State) -> bool {
        let bare = |state: &State| State { process_id: Value::Null, active_url_change_source: None, ..state.clone() };
        bare(before) != bare(now)
    }
}

impl Reader {
    fn dressed(&self, mut reading: Reading) -> Reading {
        reading = reading.with("type", "browser");
        if let Some(updated) = &self.timed {
            reading = reading.with("updated", updated.clone());
        }
        reading
    }
}

#[async_trait]
impl Processor for BrowserLane {
    fn id(&self) -> &'static str {
        "browser-context"
    }

    fn state_id(&self) -> &'static str {
        "browser"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input, Hook::State])
    }

    async fn process_input(&self, cx: &mut Context<'_>, input: &mut Input) -> Outcome {
        let Some(browser) = cx.request_context().get(KEY).and_then(Value::as_object) else { return Ok(()) };
        if input.mid_run {
            return Ok(());
        }
        let text = |name: &str| browser.get(name).and_then(Value::as_str).unwrap_or_default();
        let mut lines = vec![
            "You have a browser. Messages in <state type=\"browser\"> are automatic observations of it, not requests of the \
             user."
                .to_owned(),
        ];
        if browser.get("headless") == Some(&Value::Bool(false)) {
            lines.push("The user sees the browser's window and may use it too.".to_owned());
        }
        if !text("sessionId").is_empty() {
            lines.push(format!("Session id: {}", text("sessionId")));
        }
        if text("providerType") == "cli" && !text("cdpUrl").is_empty() {
            lines.push(format!("CDP URL: {}", text("cdpUrl")));
        }
        input.system.push(lines.join("\n"));
        Ok(())
    }

    async fn compute_state_signal(&self, cx: &mut Context<'_>, view: &LaneView) -> Outcome<Option<StateInput>> {
        let Some(mut fields) = cx.request_context().get(KEY).and_then(Value::as_object).cloned() else {
            return Ok(None);
        };
        if let Some(look) = &self.look {
            fields.extend(look().await);
        }
        let mut now = of(&fields, &process());
        let said = view.last_snapshot.iter().chain(&view.deltas).next_back();
        let before = said.and_then(|signal| serde_json::from_value::<State>(signal.value()?.clone()).ok());
        let was_open = before.as_ref().is_some_and(|before| before.open);
        if !now.open {
            if before.is_none() && now.close_reason.is_none() {
                // Closed, and never known to be open: nothing to tell (STATE-093).
                return Ok(None);
            }
            if now.close_reason.is_none() {
                let here = before.as_ref().is_some_and(|before| before.process_id == now.process_id);
                let kept = before.as_ref().filter(|before| !before.open).and_then(|before| before.close_reason.clone());
                now.close_reason = kept.or_else(|| Some(if here { "user" } else { "process_restart" }.to_owned()));
            }
        }
        let moved = was_open && before.as_ref().is_some_and(|before| before.active_url != now.active_url);
        if moved && now.active_url_change_source.is_none() && now.active_url.is_some() {
            let clicked = clicked_url(cx.messages());
            now.active_url_change_source = Some(if clicked == now.active_url { "agent" } else { "user" }.to_owned());
        }
        let reader = Reader { timed: self.timed.then(|| cx.now().to_string()) };
        let mut state = advance(&reader, view, Current::State(now));
        if let Some(state) = &mut state
            && !self.timed
        {
            state.metadata.get_or_insert_default().insert("updated".to_owned(), json!(cx.now()));
        }
        Ok(state)
    }
}
