//! Random signals, states and stored rows, legacy shapes included: nothing panics, and every thread can run again.
//!
//! Seeded; goes on for `BUGLE_FUZZ_SECONDS` (default 2). A failure names its seed; `BUGLE_FUZZ_SEED` begins there.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bugle::{
    json::{Object, Value, json},
    message::{MessageContent, Role, StoredMessage},
    model::ScriptedModel,
    processor::{
        Context, Outcome,
        builtin::{AgentsMd, OnMatch, RegexFilter, TokenLimiter, ToolCallFilter, UnicodeNormaliser, preset},
        lane::{Current, Lane, LaneProcessor, Reading},
        lanes::{BrowserLane, GoalLane, TaskLane},
    },
    signal::{SignalInput, StateInput},
    storage::{MemoryStorage, MetadataChange, NewThread, Storage, ThreadUpdate},
    time::Timestamp,
};

use crate::{
    r#loop::run_on,
    support::{builder, world_on},
};

/// A small generator: the same numbers for the same seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn of(seed: u64) -> Self {
        // Small seeds are mixed, so that neighbours have little in common.
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        random.next();
        random
    }
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
    fn text(&mut self) -> String {
        let pieces = [
            "a",
            "<b>",
            "&",
            "\"",
            "\u{0}",
            "\u{202e}",
            "é",
            "👨\u{200d}👩",
            "\n",
            " ",
            "ann@example.com",
            "]]>",
            "<system-reminder type=\"dynamic-agents-md\" path=\"x\">",
            "4111 1111 1111 1111",
            "\u{feff}",
            "x=\"1\"",
        ];
        (0..self.below(6)).map(|_| self.pick(&pieces).to_owned()).collect()
    }
    /// Any JSON, with the names that matter among its keys.
    fn json(&mut self, depth: usize) -> Value {
        const KEYS: [&str; 24] = [
            "type",
            "id",
            "contents",
            "content",
            "parts",
            "text",
            "data",
            "mediaType",
            "attributes",
            "metadata",
            "state",
            "threadId",
            "cacheKey",
            "mode",
            "version",
            "tagName",
            "signal",
            "transient",
            "role",
            "createdAt",
            "toolInvocation",
            "result",
            "value",
            "blocked",
        ];
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.next() as i64),
            3 => json!(self.pick(&[
                "snapshot",
                "delta",
                "thread",
                "lane",
                "user",
                "state",
                "reactive",
                "file",
                "image",
                "text",
                "tool-invocation"
            ])),
            4 | 5 => json!(self.text()),
            6 => (0..self.below(4)).map(|_| self.json(depth - 1)).collect(),
            _ => (0..self.below(5))
                .map(|_| (self.pick(&KEYS).to_owned(), self.json(depth - 1)))
                .collect::<Object>()
                .into(),
        }
    }
    fn object(&mut self) -> Object {
        match self.json(4) {
            Value::Object(object) => object,
            other => [("signal".to_owned(), other)].into_iter().collect(),
        }
    }
}

/// A lane of a random value.
struct Any(Value);

#[async_trait::async_trait]
impl Lane for Any {
    type State = Value;
    fn id(&self) -> &'static str {
        "lane"
    }
    async fn current(&self, _: &mut Context<'_>) -> Outcome<Current<Value>> {
        Ok(if self.0.is_null() { Current::Nothing } else { Current::State(self.0.clone()) })
    }
    fn read(&self, state: &Value) -> Reading {
        Reading::text(state.to_string())
    }
    fn change(&self, _: &Value, now: &Value) -> Option<Reading> {
        Some(Reading::text(now.to_string()))
    }
}

fn row(random: &mut Random, at: i64) -> StoredMessage {
    let role = [Role::Signal, Role::Signal, Role::Signal, Role::User, Role::Assistant][random.below(5)];
    let content = match random.below(3) {
        0 => MessageContent::from_stored(&random.json(3).to_string()),
        1 => MessageContent::from_stored(&random.text()),
        _ => MessageContent {
            parts: (0..random.below(4)).map(|_| bugle::message::Part::from_value(random.json(4))).collect(),
            metadata: Some([("signal".to_owned(), Value::Object(random.object()))].into_iter().collect()),
            ..MessageContent::default()
        },
    };
    StoredMessage {
        id: format!("row-{at}").into(),
        role,
        created_at: Timestamp::from_millis(1_700_000_000_000 + at),
        thread_id: Some("thread".into()),
        resource_id: Some("user".into()),
        kind: [None, Some("v2"), Some("state"), Some("user"), Some("system-reminder"), Some("no type")]
            [random.below(6)]
        .map(str::to_owned),
        content,
    }
}

async fn one(seed: u64) {
    let mut random = Random(seed | 1);
    let storage = Arc::new(MemoryStorage::new());
    let model = ScriptedModel::with_responses((0..40).map(|_| "fine"));
    let filter =
        RegexFilter::new("filter", vec![preset("email").unwrap(), preset("credit-card").unwrap()], OnMatch::Redact);
    let agent = builder("plain", &model)
        .input_processor(UnicodeNormaliser { strip_control_chars: true, ..UnicodeNormaliser::default() })
        .input_processor(AgentsMd::new("/nonexistent"))
        .input_processor(LaneProcessor::new(Any(random.json(3))))
        .input_processor(LaneProcessor::new(TaskLane))
        .input_processor(LaneProcessor::new(GoalLane))
        .input_processor(BrowserLane::new())
        .input_processor(ToolCallFilter::default())
        .input_processor(TokenLimiter::new(100_000))
        .output_processor(filter)
        .build()
        .unwrap();
    let world = world_on(model, [agent], storage.clone()).await;
    storage.create_thread(NewThread::of(&world.thread)).await.unwrap();
    let rows: Vec<StoredMessage> = (0..random.below(12) as i64).map(|at| row(&mut random, at)).collect();
    storage.save_messages(rows).await.unwrap();
    let metadata = match random.below(3) {
        0 => json!({"mastra": random.json(4)}),
        1 => json!({"mastra": {"stateSignals": random.json(4)}}),
        _ => json!({"mastra": {"stateSignals": {"lane": random.json(3)}}}),
    };
    let metadata = MetadataChange::Own(metadata.as_object().unwrap().clone());
    storage.update_thread(ThreadUpdate { id: "thread".into(), metadata, ..ThreadUpdate::default() }).await.unwrap();
    for kind in ["task", "goal"] {
        let value = random.json(3);
        let _ = storage.set_thread_state("thread", kind, Some(value)).await;
    }
    let mut watcher = world.watch().await;
    let mut runs = Vec::new();
    for _ in 0..4 {
        let body = random.json(4);
        if let Ok(input) = SignalInput::from_json(&body)
            && let Ok(mut sent) = world.agent.send_signal(&world.thread, input).await
            && let Ok(outcome) = sent.accepted().await
        {
            runs.extend(outcome.run_id);
        }
        let mut state = random.object();
        state.insert("id".into(), json!("lane"));
        state.insert("cacheKey".into(), json!(random.text()));
        if random.below(2) == 0 {
            state.insert("contents".into(), json!(random.text()));
        }
        state.shift_remove("transient");
        if let Ok(input) = StateInput::from_json(&Value::Object(state))
            && let Ok(sent) = world.agent.send_state_signal(&world.thread, input).await
        {
            runs.extend(sent.outcome().and_then(|outcome| outcome.run_id.clone()));
        }
        let text = random.text();
        runs.extend(world.send(if text.trim().is_empty() { "hi" } else { &text }).await.run_id);
    }
    if let Some(last) = runs.last() {
        watcher.until_end_of(last).await;
    }
    // The thread runs again.
    let ran = run_on(&world.agent, "again", Some(&world.thread), Default::default()).await;
    assert_eq!((ran.output.text.as_str(), ran.output.error), ("fine", None), "seed {seed}");
}

#[tokio::test]
async fn fuzz_no_signal_and_no_row_stops_a_thread() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = Duration::from_secs(number("BUGLE_FUZZ_SECONDS").unwrap_or(2));
    let first = number("BUGLE_FUZZ_SEED").unwrap_or(0x5eed);
    let began = Instant::now();
    let mut seed = first;
    while seed == first || began.elapsed() < time {
        let done = tokio::time::timeout(Duration::from_secs(30), one(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))).await;
        assert!(done.is_ok(), "stuck at BUGLE_FUZZ_SEED={seed}");
        seed += 1;
    }
    println!("{} threads from seed {first}", seed - first);
}
