//! Signals that processors send (PROC §8, SIG-209).

use bugle::{
    chunk::{Chunk, DataChunk},
    json::json,
    message::Role,
    processor::{Context, Hook, HookSet, InputStep, Outcome, Processor},
};

use super::{ALL, Act, Spy};
use crate::r#loop::{call, echo, world_with};

#[tokio::test(start_paused = true)]
async fn proc_080_081_082_echo_order_and_stored_order() {
    let spy = Spy::new("p", &ALL).deciding(|hook, n| match (hook, n) {
        (Hook::InputStep, 0) => Some(Act::Signal("remind 0")),
        (Hook::InputStep, 1) => Some(Act::Signal("remind 1")),
        _ => None,
    });
    let world = world_with([call(1), "done".into()], |agent| agent.tool(echo()).input_processor(spy)).await;
    let ran = world.run("hi").await;
    let kinds: Vec<&str> = ran.kinds().into_iter().filter(|kind| !kind.starts_with("tool-call-")).collect();
    assert_eq!(
        kinds,
        [
            "start",
            "data-signal",
            "step-start",
            "tool-call",
            "tool-result",
            "step-finish",
            "data-signal",
            "step-start",
            "text-start",
            "text-delta",
            "text-end",
            "step-finish",
            "finish"
        ]
    );
    let stored = world.stored().await;
    let rows: Vec<(Role, String)> = stored.iter().map(|row| (row.role, row.joined_text())).collect();
    assert_eq!(
        rows,
        [
            (Role::User, "hi".into()),
            (Role::Signal, "remind 0".into()),
            (Role::Assistant, String::new()),
            (Role::Signal, "remind 1".into()),
            (Role::Assistant, "done".into())
        ]
    );
    assert!(stored.is_sorted_by(|a, b| a.created_at < b.created_at));
    assert_eq!(
        world.asked(1),
        ["hi", "<system-reminder>remind 0</system-reminder>", "<system-reminder>remind 1</system-reminder>"]
    );
    // What was shown is what is stored.
    let shown = ran.all("data-signal");
    assert_eq!(shown[0]["data"]["createdAt"], json!(stored[1].created_at));
    assert_eq!(shown[0]["data"]["id"], json!(stored[1].id));
}

#[tokio::test(start_paused = true)]
async fn proc_083_where_signals_may_be_sent() {
    for (hook, allowed) in [
        (Hook::Input, true),
        (Hook::InputStep, true),
        (Hook::LlmRequest, false),
        (Hook::OutputStream, true),
        (Hook::LlmResponse, false),
        (Hook::OutputStep, true),
        (Hook::ToolResult, true),
        (Hook::OutputResult, true),
    ] {
        let spy = Spy::new("p", &ALL).acting(hook, 0, Act::Signal("told"));
        let shared: bugle::processor::SharedProcessor = std::sync::Arc::new(spy);
        let world = world_with([call(1), "done".into()], |agent| {
            agent.tool(echo()).shared_input_processor(shared.clone()).shared_output_processor(shared)
        })
        .await;
        let ran = world.run("hi").await;
        let stored = world.texts().await.iter().filter(|text| *text == "told").count();
        let failed = ran.output.error.is_some();
        assert_eq!((stored, failed), (usize::from(allowed), !allowed), "{}: {:?}", hook.name(), ran.kinds());
        if allowed {
            assert_eq!(ran.output.text, "done", "{}", hook.name());
            let prompt = json!(world.model.requests().last().unwrap().prompt).to_string();
            let before_last_request = !matches!(hook, Hook::OutputResult);
            assert_eq!(prompt.contains("told"), before_last_request, "{}", hook.name());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn proc_084_a_transient_signal_is_one_fresh_copy_per_request_and_never_stored() {
    let spy = Spy::new("p", &ALL).deciding(|hook, _| (hook == Hook::InputStep).then_some(Act::Transient("now")));
    let world = world_with([call(1), "done".into()], |agent| agent.tool(echo()).input_processor(spy)).await;
    let ran = world.run("hi").await;
    let shown = "<system-reminder>now</system-reminder>";
    assert_eq!((world.asked(0), world.asked(1)), (vec!["hi".into(), shown.into()], vec!["hi".into(), shown.into()]));
    let last = json!(world.model.requests()[1].prompt.last().unwrap());
    assert_eq!(last["content"][0]["text"], shown, "the copy is the fresh one, at the end");
    assert_eq!(ran.all("data-signal").len(), 2);
    assert!(!world.texts().await.contains(&"now".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn proc_085_data_chunks_for_clients() {
    struct Writing;
    #[async_trait::async_trait]
    impl Processor for Writing {
        fn id(&self) -> &'static str {
            "writing"
        }
        fn hooks(&self) -> HookSet {
            HookSet::of(&[Hook::InputStep])
        }
        async fn process_input_step(&self, cx: &mut Context<'_>, _: &mut InputStep) -> Outcome {
            let data = |kind: &str| DataChunk { kind: kind.into(), data: json!(1), id: None, transient: Some(true) };
            assert!(cx.write(data("progress")).await.is_err());
            cx.write(data("data-progress")).await
        }
    }
    let world = world_with(["done"], |agent| agent.input_processor(Writing)).await;
    let ran = world.run("hi").await;
    let kinds: Vec<&str> = ran.chunks.iter().map(Chunk::kind).take(3).collect();
    assert_eq!(kinds, ["start", "data-progress", "step-start"]);
}

#[tokio::test(start_paused = true)]
async fn loop_033_sig_209_proc_045_a_processors_signal_does_not_interrupt_its_own_request() {
    let spy = Spy::new("p", &ALL).deciding(|hook, _| (hook == Hook::InputStep).then_some(Act::Signal("context")));
    let world = world_with(["done"], |agent| agent.input_processor(spy.clone())).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    watcher.until_end_of(&run).await;
    assert_eq!((world.model.requested(), spy.count(Hook::InputStep)), (1, 1));
}
