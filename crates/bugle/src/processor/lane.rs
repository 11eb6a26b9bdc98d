//! A lane in three functions (STATE-099): the current state, how it reads, and how a change reads. When to say what is
//! decided here, once for all lanes: nothing while nothing has changed and the snapshot is in view, a delta for a change,
//! a fresh snapshot where there is none, where it fell out of view, and after a number of deltas.

use std::fmt;

use async_trait::async_trait;
use serde::{Serialize, de::DeserializeOwned};

use super::{Context, Hook, HookSet, Outcome, Processor};
use crate::{
    json::{Object, Value, json},
    signal::{Attributes, Contents, LaneView, StateInput, StateMode},
};

/// What a lane holds now.
#[derive(Debug, Clone, PartialEq)]
pub enum Current<S> {
    /// It cannot be told; what was said stands.
    Unknown,
    /// There is nothing (any more).
    Nothing,
    /// This.
    State(S),
}

/// How a state or a change reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// What the model reads.
    pub contents: Contents,
    /// On the tag.
    pub attributes: Attributes,
    /// Another tag than the lane's.
    pub tag_name: Option<String>,
    /// Stored, never shown.
    pub metadata: Option<Object>,
    /// The change as data, for deltas.
    pub delta: Option<Value>,
}

impl Reading {
    /// Text without attributes.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            contents: Contents::Text(text.into()),
            attributes: Attributes::new(),
            tag_name: None,
            metadata: None,
            delta: None,
        }
    }

    /// With an attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.attributes.insert(name.to_owned(), value.into());
        self
    }

    /// With another tag.
    #[must_use]
    pub fn tagged(mut self, tag: &str) -> Self {
        self.tag_name = Some(tag.to_owned());
        self
    }
}

/// A lane. Give it to an agent as `LaneProcessor::new(lane)`.
///
/// ```
/// use async_trait::async_trait;
/// use bugle::processor::{Context, Outcome, lane::{Current, Lane, LaneProcessor, Reading}};
///
/// /// The branch that is checked out.
/// struct Branch;
///
/// #[async_trait]
/// impl Lane for Branch {
///     type State = String;
///     fn id(&self) -> &str {
///         "branch"
///     }
///     async fn current(&self, _: &mut Context<'_>) -> Outcome<Current<String>> {
///         Ok(Current::State("main".to_owned()))
///     }
///     fn read(&self, branch: &String) -> Reading {
///         Reading::text(format!("On branch {branch}.")).with("type", "branch")
///     }
///     fn change(&self, _: &String, branch: &String) -> Option<Reading> {
///         Some(Reading::text(format!("Now on branch {branch}.")).with("type", "branch"))
///     }
/// }
///
/// let processor = LaneProcessor::new(Branch);
/// ```
#[async_trait]
pub trait Lane: Send + Sync {
    /// The state. It is stored with each signal, so that the next look knows what was said.
    type State: Serialize + DeserializeOwned + PartialEq + Send + Sync;

    /// The lane's id.
    fn id(&self) -> &str;

    /// What it holds now.
    async fn current(&self, cx: &mut Context<'_>) -> Outcome<Current<Self::State>>;

    /// How a state reads.
    fn read(&self, state: &Self::State) -> Reading;

    /// How a change reads; `None` = it is said as a whole state.
    fn change(&self, before: &Self::State, now: &Self::State) -> Option<Reading>;

    /// Whether the model is to know of the change.
    fn differs(&self, before: &Self::State, now: &Self::State) -> bool {
        before != now
    }

    /// Identity of a state. By default the state itself, its keys in order.
    fn key(&self, state: &Self::State) -> String {
        sorted(&json!(state)).to_string()
    }

    /// How it reads that there is nothing any more; `None` = nothing is said. Its key is `<id>:none`.
    fn gone(&self, before: &Self::State) -> Option<Reading> {
        let _ = before;
        None
    }

    /// A state from an earlier one and a delta of another writer, which stored no whole state with it.
    fn fold(&self, before: Self::State, delta: &Value) -> Option<Self::State> {
        let _ = (before, delta);
        None
    }

    /// So many deltas may follow a snapshot; then it is said as a whole.
    fn deltas_max(&self) -> usize {
        10
    }
}

/// A processor that keeps one lane.
pub struct LaneProcessor<L>(L);

impl<L> LaneProcessor<L> {
    /// Keeps `lane`.
    pub fn new(lane: L) -> Self {
        Self(lane)
    }
}

impl<L: Lane> fmt::Debug for LaneProcessor<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LaneProcessor({})", self.0.id())
    }
}

#[async_trait]
impl<L: Lane> Processor for LaneProcessor<L> {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::State])
    }

    async fn compute_state_signal(&self, cx: &mut Context<'_>, view: &LaneView) -> Outcome<Option<StateInput>> {
        let current = self.0.current(cx).await?;
        Ok(advance(&self.0, view, current))
    }
}

/// What was last said: the state of the latest signal, or of an earlier one with the deltas folded in.
fn said<L: Lane>(lane: &L, view: &LaneView) -> Option<L::State> {
    let read = |value: &Value| serde_json::from_value::<L::State>(value.clone()).ok();
    let signals: Vec<_> = view.last_snapshot.iter().chain(&view.deltas).collect();
    let from = signals.iter().rposition(|signal| signal.value().and_then(read).is_some())?;
    let mut state = signals[from].value().and_then(read)?;
    for signal in &signals[from + 1..] {
        state = lane.fold(state, signal.delta()?)?;
    }
    Some(state)
}

/// What is to be said, if anything (STATE-093, STATE-096).
pub fn advance<L: Lane>(lane: &L, view: &LaneView, current: Current<L::State>) -> Option<StateInput> {
    let before = said(lane, view);
    let none_key = format!("{}:none", lane.id());
    let now = match current {
        Current::Unknown => return None,
        Current::Nothing => {
            let was_gone = view.active.last().is_some_and(|signal| signal.cache_key == none_key);
            let reading = before.filter(|_| !was_gone).and_then(|before| lane.gone(&before))?;
            return Some(input(lane.id(), none_key, StateMode::Snapshot, reading, None));
        }
        Current::State(now) => now,
    };
    let key = lane.key(&now);
    let was_gone = view.active.last().is_some_and(|signal| signal.cache_key == none_key);
    let before = before.filter(|_| !was_gone);
    let whole = |now: &L::State| input(lane.id(), key.clone(), StateMode::Snapshot, lane.read(now), Some(json!(now)));
    let Some(before) = before else { return Some(whole(&now)) };
    if !lane.differs(&before, &now) {
        return (!view.has_snapshot).then(|| whole(&now));
    }
    let delta = (view.has_snapshot && view.deltas.len() < lane.deltas_max()).then(|| lane.change(&before, &now));
    match delta.flatten() {
        Some(reading) => Some(input(lane.id(), key, StateMode::Delta, reading, Some(json!(now)))),
        None => Some(whole(&now)),
    }
}

fn input(lane: &str, cache_key: String, mode: StateMode, reading: Reading, value: Option<Value>) -> StateInput {
    StateInput {
        id: Some(lane.to_owned()),
        cache_key,
        contents: Some(reading.contents),
        mode,
        value,
        delta: reading.delta,
        attributes: (!reading.attributes.is_empty()).then_some(reading.attributes),
        metadata: reading.metadata,
        tag_name: reading.tag_name,
        ..StateInput::default()
    }
}

/// The value with the keys of its objects in order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort();
            keys.into_iter().map(|key| (key.clone(), sorted(&fields[key]))).collect::<Object>().into()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}
