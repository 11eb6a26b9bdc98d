//! Lanes that processors keep (STATE §6, §7, §9).

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use bugle::{
    RunOptions,
    agent::AgentBuilder,
    json::{Value, json},
    memory::MemoryOptions,
    message::StoredMessage,
    model::{Gate, Script, ScriptedModel},
    processor::{
        Context, Hook, HookSet, InputStep, Outcome, Processor, ProcessorError,
        builtin::TokenLimiter,
        lane::{Current, Lane, LaneProcessor, Reading},
    },
    signal::{LaneView, SignalInput, StateAnswer, StateInput, tracked_lanes},
};
use parking_lot::Mutex;

use crate::{
    r#loop::{call, echo, world_with},
    support::{World, builder, world_of},
};

type Script2 = Arc<dyn Fn(&LaneView, usize) -> Outcome<Option<StateInput>> + Send + Sync>;

/// A lane that does what a test says, and shows what it was told.
#[derive(Clone)]
struct Told {
    id: &'static str,
    say: Script2,
    views: Arc<Mutex<Vec<LaneView>>>,
    count: Arc<AtomicUsize>,
}

impl Told {
    fn new(
        id: &'static str,
        say: impl Fn(&LaneView, usize) -> Outcome<Option<StateInput>> + Send + Sync + 'static,
    ) -> Self {
        Self { id, say: Arc::new(say), views: Arc::default(), count: Arc::default() }
    }
}

#[async_trait]
impl Processor for Told {
    fn id(&self) -> &str {
        self.id
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::State])
    }
    async fn compute_state_signal(&self, _: &mut Context<'_>, view: &LaneView) -> Outcome<Option<StateInput>> {
        self.views.lock().push(view.clone());
        (self.say)(view, self.count.fetch_add(1, Ordering::SeqCst))
    }
}

fn snapshot(lane: &str, key: &str) -> StateInput {
    StateInput::snapshot(lane, key, key)
}

fn delta(lane: &str, key: &str) -> StateInput {
    StateInput::delta(lane, key, key)
}

async fn tracked(world: &World, lane: &str) -> Option<Value> {
    let thread = world.storage.get_thread("thread").await.unwrap()?;
    tracked_lanes(&thread).into_iter().find(|(known, _)| known == lane).map(|(_, tracking)| json!(tracking))
}

/// The texts of the stored states, in order.
async fn states(world: &World) -> Vec<String> {
    let stored = world.stored().await;
    stored.iter().filter(|row| row.kind.as_deref() == Some("state")).map(StoredMessage::joined_text).collect()
}

#[tokio::test(start_paused = true)]
async fn state_011_012_014_050_054_055_a_state_is_told_once_and_stays_in_view() {
    let lane = Told::new("editor", |_, _| Ok(Some(snapshot("editor", "open main.rs"))));
    let world =
        world_with([call(1), "done".into(), "again".into()], |agent| agent.tool(echo()).input_processor(lane.clone()))
            .await;
    let ran = world.run("hi").await;
    assert_eq!(ran.kinds()[..3], ["start", "data-signal", "step-start"], "STATE-055");
    assert_eq!(ran.all("data-signal").len(), 1, "unchanged at the second step");
    let shown = "<state>open main.rs</state>";
    assert_eq!((world.asked(0), world.asked(1)), (vec!["hi".into(), shown.into()], vec!["hi".into(), shown.into()]));
    world.run("more").await;
    assert_eq!(states(&world).await, ["open main.rs"]);
    assert_eq!(lane.count.load(Ordering::SeqCst), 3, "STATE-051: once per prepared request");
    let tracking = tracked(&world, "editor").await.unwrap();
    assert_eq!((&tracking["version"], &tracking["currentMode"]), (&json!(1), &json!("snapshot")));
    {
        let views = lane.views.lock();
        assert_eq!((views[0].has_snapshot, views[1].has_snapshot, views[2].has_snapshot), (false, true, true));
        assert_eq!(views[2].last_snapshot.as_ref().unwrap().cache_key, "open main.rs");
    }
    // STATE-012: what was shown is what is stored.
    let stored = world.stored().await;
    let row = stored.iter().find(|row| row.kind.as_deref() == Some("state")).unwrap();
    let shown = &ran.all("data-signal")[0]["data"];
    let meta = json!(row.content.metadata)["signal"].clone();
    let chunk = &ran.all("data-signal")[0];
    assert_eq!((&chunk["type"], &chunk["transient"]), (&json!("data-signal"), &json!(true)), "STATE-011");
    assert_eq!((&shown["id"], &shown["type"]), (&json!(row.id), &json!("state")), "STATE-011");
    assert_eq!((&shown["tagName"], &shown["contents"]), (&json!("state"), &json!("open main.rs")), "STATE-011");
    assert_eq!(shown["metadata"]["state"]["cacheKey"], "open main.rs", "STATE-011");
    assert_eq!((&shown["createdAt"], &shown["acceptedAt"]), (&meta["createdAt"], &meta["acceptedAt"]));
}

#[tokio::test(start_paused = true)]
async fn state_015_022_030_versions_of_snapshots_and_deltas() {
    let keys = ["s1", "s1", "d1", "s2", "s1"];
    let lane = Told::new("a", move |_, n| {
        let key = keys[n];
        Ok(Some(if key.starts_with('d') { delta("a", key) } else { snapshot("a", key) }))
    });
    let scripts = [call(1), call(2), call(3), call(4), "done".into()];
    let world = world_with(scripts, |agent| agent.tool(echo()).input_processor(lane)).await;
    world.run_with("hi", RunOptions { max_steps: Some(9), ..RunOptions::default() }).await;
    assert_eq!(states(&world).await, ["s1", "d1", "s2", "s1"]);
    let shown = ["s1", "d1", "s2", "s1"].map(|key| format!("<state>{key}</state>"));
    assert_eq!(world.asked(4)[1..], shown, "STATE-015: what is superseded stays");
    let prompts: Vec<Value> = world.model.requests().iter().map(crate::r#loop::prompt).collect();
    for pair in prompts.windows(2) {
        let (earlier, later) = (pair[0].as_array().unwrap(), pair[1].as_array().unwrap());
        assert!(later.starts_with(earlier), "STATE-015: nothing is rewritten");
    }
    let tracking = tracked(&world, "a").await.unwrap();
    assert_eq!((&tracking["version"], &tracking["currentCacheKey"]), (&json!(4), &json!("s1")));
}

#[tokio::test(start_paused = true)]
async fn state_073_074_056_what_fell_out_of_the_window_is_handed_over() {
    // The run's window is three messages.
    let keys = ["s1", "d1", "d2"];
    let lane = Told::new("a", move |view, n| {
        if n < 3 {
            return Ok(Some(if n == 0 { snapshot("a", keys[n]) } else { delta("a", keys[n]) }));
        }
        // STATE-056: well-behaved.
        Ok((!view.has_snapshot && view.last_snapshot.is_some()).then(|| snapshot("a", "d2")))
    });
    let model =
        ScriptedModel::with_responses([call(1), call(2), "one".into(), "two".into(), "three".into(), "four".into()]);
    let agent = builder("plain", &model).tool(echo()).memory(MemoryOptions::last(3)).input_processor(lane.clone());
    let world = world_of(model, [agent.build().unwrap()]).await;
    world.run("hi").await;
    world.run("more").await;
    let views = lane.views.lock().clone();
    let view = views.last().unwrap();
    let known = |signals: &[bugle::signal::LaneSignal]| -> Vec<String> {
        signals.iter().map(|signal| signal.cache_key.clone()).collect()
    };
    assert!(!view.has_snapshot, "STATE-074");
    assert_eq!(view.last_snapshot.as_ref().unwrap().cache_key, "s1");
    assert_eq!(
        (known(&view.active), known(&view.deltas)),
        (vec!["s1".into(), "d1".into(), "d2".into()], vec!["d1".into(), "d2".into()])
    );
    assert_eq!(states(&world).await, ["s1", "d1", "d2", "d2"], "a fresh snapshot");
    let version = tracked(&world, "a").await.unwrap()["version"].clone();
    assert_eq!(version, 4, "another mode, so another version");
}

#[tokio::test(start_paused = true)]
async fn state_031_a_trimmed_state_is_told_again_under_its_version() {
    let lane = Told::new("a", |_, _| Ok(Some(snapshot("a", "same"))));
    let model = ScriptedModel::with_responses(["one", "two", "three"]);
    let agent = builder("plain", &model).memory(MemoryOptions::last(1)).input_processor(lane);
    let world = world_of(model, [agent.build().unwrap()]).await;
    for text in ["hi", "more", "last"] {
        world.run(text).await;
    }
    // The second run still saw it: a window reaches back to what its first answer answers (MEM-088).
    assert_eq!(states(&world).await, ["same", "same"]);
    let tracking = tracked(&world, "a").await.unwrap();
    assert_eq!(tracking["version"], 1);
    let rows = world.stored().await;
    let newest = rows.iter().rfind(|row| row.kind.as_deref() == Some("state")).unwrap();
    assert_eq!(tracking["lastSnapshotSignalId"], json!(newest.id));
}

#[tokio::test(start_paused = true)]
async fn state_076_a_limiter_that_drops_the_snapshot_says_so() {
    let lane = Told::new("a", |view, _| {
        Ok((!view.has_snapshot).then(|| StateInput { contents: Some("x".repeat(300).into()), ..snapshot("a", "big") }))
    });
    let world = world_with([call(1), "done".into()], |agent| {
        agent.tool(echo()).input_processor(lane.clone()).input_processor(TokenLimiter::new(80))
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!(ran.output.text, "done");
    let views = lane.views.lock();
    assert!(!views[1].has_snapshot, "the prompt did not hold it");
    assert_eq!(world.asked(0), ["hi"]);
}

#[tokio::test(start_paused = true)]
async fn state_058_059_a_failing_lane_does_not_end_the_run_a_tripwire_does() {
    let failing = Told::new("bad", |_, _| Err(ProcessorError::Failed("boom".into())));
    let good = Told::new("good", |_, _| Ok(Some(snapshot("good", "fine"))));
    let scripts = [call(1), call(2), call(3), "done".into()];
    let world = world_with(scripts, |agent| agent.tool(echo()).input_processor(failing).input_processor(good)).await;
    let ran = world.run("hi").await;
    assert_eq!(ran.output.text, "done");
    assert_eq!(ran.all("data-state-error").len(), 1, "after three in a row, once");
    assert_eq!(states(&world).await, ["fine"]);
    let tripping = Told::new("guard", |_, _| Err(ProcessorError::tripwire("stop")));
    let world = world_with(["never"], |agent| agent.input_processor(tripping)).await;
    let ran = world.run("hi").await;
    assert_eq!(ran.payload("tripwire")["reason"], "stop");
}

#[tokio::test(start_paused = true)]
async fn state_033_071_a_delta_needs_no_snapshot_and_all_deltas_are_told() {
    let lane = Told::new("a", |_, n| Ok((n < 2).then(|| delta("a", ["d1", "d2"][n]))));
    let world =
        world_with([call(1), call(2), "done".into()], |agent| agent.tool(echo()).input_processor(lane.clone())).await;
    world.run("hi").await;
    assert_eq!(states(&world).await, ["d1", "d2"]);
    let tracking = tracked(&world, "a").await.unwrap();
    assert_eq!((&tracking["version"], tracking.get("lastSnapshotSignalId")), (&json!(2), None));
    let views = lane.views.lock();
    let last = views.last().unwrap();
    assert_eq!((last.has_snapshot, last.last_snapshot.is_none()), (false, true));
    assert_eq!(last.deltas.iter().map(|one| one.cache_key.as_str()).collect::<Vec<_>>(), ["d1", "d2"]);
}

/// A lane under another name than the processor's.
struct Named(Option<&'static str>);

#[async_trait]
impl Processor for Named {
    fn id(&self) -> &'static str {
        "processor"
    }
    fn state_id(&self) -> &'static str {
        "lane"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::State])
    }
    async fn compute_state_signal(&self, _: &mut Context<'_>, view: &LaneView) -> Outcome<Option<StateInput>> {
        assert_eq!(view.lane, "lane");
        Ok(Some(StateInput { id: self.0.map(str::to_owned), ..snapshot("", "k") }))
    }
}

#[tokio::test(start_paused = true)]
async fn state_052_a_lane_is_called_as_its_processor_says_and_no_other_is_written() {
    for (returned, stored) in [(None, 1), (Some("lane"), 1), (Some("other"), 0)] {
        let world = world_with(["done"], |agent| agent.input_processor(Named(returned))).await;
        assert_eq!(world.run("hi").await.output.text, "done");
        assert_eq!(states(&world).await.len(), stored, "{returned:?}");
        assert_eq!(tracked(&world, "lane").await.is_some(), stored == 1, "{returned:?}");
        for lane in ["processor", "other"] {
            assert_eq!(tracked(&world, lane).await, None, "{returned:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn state_060_more_lanes_ask_no_more_of_the_store() {
    const LANES: [&str; 4] = ["a", "b", "c", "d"];
    let mut calls = Vec::new();
    for count in [1, LANES.len()] {
        let store = crate::faulty::Faulty::new();
        let model = ScriptedModel::with_responses([call(1), "done".into()]);
        let agent = LANES[..count].iter().fold(builder("plain", &model).tool(echo()), |agent, lane| {
            agent.input_processor(Told::new(lane, move |_, n| Ok(Some(snapshot(lane, &n.to_string())))))
        });
        let world = crate::support::world_on(model, [agent.build().unwrap()], store.clone()).await;
        world.run("hi").await;
        assert_eq!(tracked(&world, LANES[count - 1]).await.unwrap()["version"], 2);
        calls.push(store.calls());
    }
    assert_eq!(calls[0], calls[1]);
}

#[tokio::test(start_paused = true)]
async fn state_057_without_memory_an_error_without_a_thread_nothing() {
    let lane = || Told::new("a", |_, _| Ok(Some(snapshot("a", "s"))));
    let model = ScriptedModel::with_responses(["one"]);
    let forgetful =
        bugle::Agent::builder("plain").model(Arc::new(model.clone())).input_processor(lane()).build().unwrap();
    let world = world_of(model, [forgetful]).await;
    let ran = crate::r#loop::run_on(&world.agent, "hi", None, RunOptions::default()).await;
    assert!(ran.payload("error")["error"]["message"].as_str().unwrap().contains("no memory"));
    let world = world_with(["one"], |agent| agent.input_processor(lane())).await;
    let ran = crate::r#loop::run_on(&world.agent, "hi", None, RunOptions::default()).await;
    assert_eq!(ran.output.text, "one");
    assert!(ran.all("data-signal").is_empty());
}

/// Sends two lanes from its step hook.
struct Sending(Arc<Mutex<Vec<StateAnswer>>>);

#[async_trait]
impl Processor for Sending {
    fn id(&self) -> &'static str {
        "sending"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::InputStep])
    }
    async fn process_input_step(&self, cx: &mut Context<'_>, _: &mut InputStep) -> Outcome {
        for lane in ["x", "y"] {
            let answer = cx.send_state_signal(snapshot(lane, "same key")).await?;
            self.0.lock().push(answer);
        }
        let wrong = StateInput { tag_name: Some("a b".into()), ..snapshot("x", "k") };
        assert!(cx.send_state_signal(wrong).await.is_err(), "STATE-004");
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn state_001_061_a_step_hook_may_send_state_too_and_lanes_are_independent() {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let world =
        world_with([call(1), "done".into()], |agent| agent.tool(echo()).input_processor(Sending(answers.clone())))
            .await;
    world.run("hi").await;
    assert_eq!(states(&world).await, ["same key", "same key"], "STATE-001");
    let kinds: Vec<bool> = answers.lock().iter().map(|answer| matches!(answer, StateAnswer::Sent(_))).collect();
    assert_eq!(kinds, [true, true, false, false]);
    assert_eq!(tracked(&world, "x").await.unwrap()["version"], 1);
    assert_eq!(tracked(&world, "y").await.unwrap()["version"], 1);
}

/// A counter, as a lane of three functions.
struct Counter(Arc<AtomicU32>);

#[async_trait]
impl Lane for Counter {
    type State = u32;
    fn id(&self) -> &'static str {
        "counter"
    }
    async fn current(&self, _: &mut Context<'_>) -> Outcome<Current<u32>> {
        Ok(match self.0.load(Ordering::SeqCst) {
            0 => Current::Nothing,
            99 => Current::Unknown,
            n => Current::State(n),
        })
    }
    fn read(&self, state: &u32) -> Reading {
        Reading::text(format!("at {state}"))
    }
    fn change(&self, before: &u32, now: &u32) -> Option<Reading> {
        Some(Reading::text(format!("{before} to {now}")))
    }
    fn gone(&self, _: &u32) -> Option<Reading> {
        Some(Reading::text(""))
    }
    fn deltas_max(&self) -> usize {
        2
    }
}

#[tokio::test(start_paused = true)]
async fn state_099_the_generic_lane_decides_what_is_said() {
    let count = Arc::new(AtomicU32::new(0));
    let model = ScriptedModel::recording();
    let agent = builder("plain", &model).input_processor(LaneProcessor::new(Counter(count.clone())));
    let world = world_of(model, [agent.build().unwrap()]).await;
    let mut said = Vec::new();
    for n in [0, 1, 1, 2, 3, 4, 99, 0, 0, 5] {
        count.store(n, Ordering::SeqCst);
        let before = states(&world).await.len();
        world.run("go").await;
        said.push(states(&world).await.split_off(before).join("|"));
    }
    assert_eq!(said, ["", "at 1", "", "1 to 2", "2 to 3", "at 4", "", "", "", "at 5"]);
    // The retraction was an empty text: it is a row all the same.
    let tracking = tracked(&world, "counter").await.unwrap();
    assert_eq!(tracking["version"], 6);
}

#[tokio::test(start_paused = true)]
async fn state_053_083_an_external_state_joins_a_run_and_its_processor_sees_it() {
    let gate = Gate::new();
    let lane = Told::new("a", |_, n| Ok((n == 0).then(|| snapshot("a", "mine"))));
    let scripts = [Script::new().call("echo", json!({})).gate(&gate), "done".into()];
    let world = world_with(scripts, |agent| agent.tool(echo()).input_processor(lane.clone())).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let sent = world.agent.send_state_signal(&world.thread, snapshot("a", "theirs")).await.unwrap();
    assert!(!sent.is_unchanged());
    gate.open();
    watcher.until_end_of(&run).await;
    {
        let views = lane.views.lock();
        let last = views.last().unwrap();
        assert_eq!((last.lane.as_str(), &last.thread), ("a", &world.thread), "STATE-053");
        assert_eq!((views[0].active.len(), views[0].tracking.is_some()), (0, false), "STATE-053");
        assert_eq!(last.tracking.as_ref().unwrap().version, 2);
        assert_eq!(last.active.iter().map(|signal| signal.cache_key.as_str()).collect::<Vec<_>>(), ["mine", "theirs"]);
    }
    assert_eq!(states(&world).await, ["mine", "theirs"]);
}

#[tokio::test(start_paused = true)]
async fn state_006_a_raw_state_signal_is_plain_context() {
    let world = world_with(["one"], |agent| agent).await;
    let mut watcher = world.watch().await;
    let mut sent = world.agent.send_signal(&world.thread, SignalInput::new("state", "raw")).await.unwrap();
    let run = sent.accepted().await.unwrap().run_id.unwrap();
    watcher.until_end_of(&run).await;
    assert_eq!(states(&world).await, ["raw"]);
    let thread = world.storage.get_thread("thread").await.unwrap().unwrap();
    assert!(tracked_lanes(&thread).is_empty());
}

#[tokio::test(start_paused = true)]
async fn state_096_prov_007_the_task_list_stays_in_view() {
    use bugle::processor::lanes::{TaskLane, task_tools};
    let write = Script::new()
        .call("task_write", json!({"tasks": [{"content": "Pack"}, {"content": "Go", "status": "in_progress"}]}));
    let complete = Script::new().call("task_complete", json!({"id": "task_go"}));
    let world = world_with([write, complete, "done".into()], |agent| {
        let agent = task_tools().into_iter().fold(agent, AgentBuilder::tool);
        agent.input_processor(LaneProcessor::new(TaskLane))
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!(ran.output.text, "done");
    let whole = "<current-task-list count=\"2\">○ Pack {id: task_pack}\n▸ Go {id: task_go}</current-task-list>";
    let change = "<task-list-update changes=\"1\">changed ✓ Go {id: task_go}</task-list-update>";
    assert_eq!(
        (world.asked(1), world.asked(2)),
        (vec!["hi".into(), whole.into()], vec!["hi".into(), whole.into(), change.into()])
    );
    let results = ran.all("tool-result");
    assert_eq!(results[1]["payload"]["result"]["open"], 1);
    let kept = world.storage.get_thread_state("thread", "task").await.unwrap().unwrap();
    assert_eq!(kept[1], json!({"id": "task_go", "content": "Go", "status": "completed"}));
    // Without a thread nothing is stored.
    let write = || Script::new().call("task_write", json!({"tasks": [{"content": "Pack"}]}));
    let world =
        world_with([write(), "done".into()], |agent| task_tools().into_iter().fold(agent, AgentBuilder::tool)).await;
    let ran = crate::r#loop::run_on(&world.agent, "hi", None, RunOptions::default()).await;
    assert!(ran.payload("tool-error")["error"]["message"].as_str().unwrap().contains("nothing was stored"));
}

#[tokio::test(start_paused = true)]
async fn state_097_a_goal_is_told_whole_and_taken_back_once() {
    use bugle::processor::lanes::{Goal, GoalLane, set_goal};
    let model = ScriptedModel::recording();
    let agent = builder("plain", &model).input_processor(LaneProcessor::new(GoalLane)).build().unwrap();
    let world = world_of(model, [agent]).await;
    world.run("hi").await;
    let goal = |runs: u32| Goal {
        objective: "Reach Oslo".into(),
        status: "active".into(),
        extra: json!({"runsUsed": runs}).as_object().unwrap().clone(),
    };
    set_goal(&world.bugle, &world.thread, Some(&goal(1))).await.unwrap();
    world.run("one").await;
    set_goal(&world.bugle, &world.thread, Some(&goal(2))).await.unwrap();
    world.run("counters are no change").await;
    set_goal(&world.bugle, &world.thread, None).await.unwrap();
    world.run("two").await;
    world.run("three").await;
    let rows = world.stored().await;
    let told: Vec<String> = rows
        .iter()
        .filter(|row| row.kind.as_deref() == Some("current-objective"))
        .map(|row| json!(row)["content"]["metadata"]["signal"]["attributes"]["status"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(told, ["active", "none"]);
}

#[tokio::test(start_paused = true)]
async fn state_090_092_093_095_the_browser_is_observed() {
    use bugle::processor::lanes::BrowserLane;
    let model = ScriptedModel::recording();
    let agent = builder("plain", &model).input_processor(BrowserLane::new()).build().unwrap();
    let world = world_of(model, [agent]).await;
    let mut told = Vec::new();
    for browser in [
        json!(null),
        json!({"isOpen": false}),
        json!({"provider": "x", "currentUrl": "https://example.com", "tabCount": 3}),
        json!({"provider": "x", "currentUrl": "https://example.com", "tabCount": 3}),
        json!({"provider": "x", "currentUrl": "https://example.com/1", "tabCount": 1}),
        json!({"provider": "x", "isOpen": false}),
        json!({"provider": "x", "isOpen": false}),
    ] {
        let mut options = RunOptions::default();
        if !browser.is_null() {
            options.request_context.set("browser", browser);
        }
        let before = states(&world).await.len();
        world.run_with("go", options).await;
        told.push(states(&world).await.split_off(before).join("|"));
    }
    assert_eq!(
        told,
        [
            "",
            "",
            "Browser is open. Active tab URL: https://example.com. 3 open tabs.",
            "",
            "changed: user changed active tab URL to https://example.com/1; 1 open tab",
            "changed: user closed the browser",
            ""
        ]
    );
    let system = json!(world.model.requests()[2].prompt).to_string();
    assert!(system.contains("automatic observations"), "STATE-091");
    let rows = world.stored().await;
    let row = json!(rows.iter().find(|row| row.kind.as_deref() == Some("state")).unwrap());
    let signal = &row["content"]["metadata"]["signal"];
    assert_eq!(signal["attributes"], json!({"type": "browser"}), "STATE-095");
    assert!(signal["metadata"]["updated"].is_string());
}

#[tokio::test(start_paused = true)]
async fn state_091_094_the_model_is_told_of_the_browser_and_who_moved_it() {
    use bugle::{Tool, processor::lanes::BrowserLane};
    let click = Tool::json("browser_click", |_: Value, _| async move { Ok(json!({"url": "https://example.com/2"})) });
    let click_it = || Script::new().call("browser_click", json!({}));
    let scripts = ["seen".into(), click_it(), "clicked".into(), "gone".into()];
    let world = world_with(scripts, |agent| agent.tool(click).input_processor(BrowserLane::new())).await;
    let go = async |browser: Value| {
        let mut options = RunOptions::default();
        options.request_context.set("browser", browser);
        world.run_with("go", options).await;
    };
    go(json!({"currentUrl": "https://example.com", "headless": false, "sessionId": "s-1", "providerType": "cli", "cdpUrl": "ws://x"}))
        .await;
    let system = |n: usize| -> Vec<String> {
        let prompt = json!(world.model.requests()[n].prompt);
        let turns = prompt.as_array().unwrap().iter().filter(|turn| turn["role"] == "system");
        turns.map(|turn| turn["content"].as_str().unwrap().to_owned()).collect()
    };
    let told = system(0);
    assert_eq!(told.len(), 2, "the instructions and one message: {told:?}");
    for part in ["automatic observations", "not requests of the user", "sees the browser's window", "s-1", "ws://x"] {
        assert!(told[1].contains(part), "{part}: {}", told[1]);
    }
    // The click of the run before reported the URL that is shown now.
    go(json!({"currentUrl": "https://example.com", "providerType": "sdk", "cdpUrl": "ws://x"})).await;
    assert!(!system(1)[1].contains("ws://x") && !system(1)[1].contains("window"), "{:?}", system(1));
    go(json!({"currentUrl": "https://example.com/2"})).await;
    assert_eq!(states(&world).await.last().unwrap(), "changed: agent changed active tab URL to https://example.com/2");
}

#[tokio::test(start_paused = true)]
async fn state_050_051_once_per_prepared_request_between_step_hooks_and_prepare_step() {
    use super::{ALL, Act, Spy};
    use bugle::run::PrepareStep;
    // A failed request is tried again, a rejected step too: each is prepared anew.
    let first = Spy::new("first", &ALL).deciding(|hook, n| match (hook, n) {
        (Hook::ApiError, 0) => Some(Act::Retry),
        _ => None,
    });
    let second = Spy::new("second", &[Hook::InputStep, Hook::State]).logging_to(&first);
    let judge = Spy::new("judge", &[Hook::OutputStep]).acting(Hook::OutputStep, 0, Act::Retry);
    let scripts = [Script::new().fail_with(500, "busy"), "rejected".into(), call(1), "done".into()];
    let world = world_with(scripts, |agent| {
        let agent = agent.tool(echo()).input_processor(first.clone()).input_processor(second.clone());
        agent.output_processor(judge).max_processor_retries(2)
    })
    .await;
    let log = first.log.clone();
    let prepare = PrepareStep(Arc::new(move |_: &mut InputStep| log.lock().push("prepare".into())));
    let ran = world.run_with("hi", RunOptions { prepare_step: Some(prepare), ..RunOptions::default() }).await;
    assert_eq!(ran.output.text, "done");
    let requests = world.model.requested();
    assert_eq!((requests, first.count(Hook::State), second.count(Hook::State)), (4, 4, 4));
    let log = first.logged();
    let of_step = |line: &&String| {
        ["processInputStep", "computeStateSignal", "prepare", "processLLMRequest"]
            .iter()
            .any(|hook| line.contains(hook))
    };
    let steps: Vec<String> =
        log.iter().filter(of_step).map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    let one = [
        "first.processInputStep",
        "second.processInputStep",
        "first.computeStateSignal",
        "second.computeStateSignal",
        "prepare",
        "first.processLLMRequest",
    ];
    assert_eq!(steps, one.repeat(requests));
}

#[tokio::test(start_paused = true)]
async fn state_078_what_learns_from_history_does_not_read_states() {
    use bugle::memory::TitleOptions;
    let lane = Told::new("editor", |_, _| Ok(Some(snapshot("editor", "secret.rs is open"))));
    let model = ScriptedModel::with_responses(["answer", "A title"]);
    let memory = MemoryOptions { generate_title: Some(TitleOptions::default()), ..MemoryOptions::last(10) };
    let agent = builder("plain", &model).memory(memory).input_processor(lane).build().unwrap();
    let world = world_of(model, [agent]).await;
    world.run("question").await;
    while world.model.requested() < 2 {
        tokio::task::yield_now().await;
    }
    assert!(world.asked(0).iter().any(|text| text.contains("secret.rs")), "the agent reads it");
    let read = json!(world.model.requests()[1].prompt).to_string();
    assert!(read.contains("question") && read.contains("answer") && !read.contains("secret.rs"), "{read}");
}
