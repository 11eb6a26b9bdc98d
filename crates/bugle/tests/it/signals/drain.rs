//! Where the loop takes input in (SIG §10).

use async_trait::async_trait;
use bugle::{
    RunOptions,
    agent::OnStepLimit,
    chunk::{FinishReason, Payload},
    json::json,
    model::{Gate, Script, ScriptedModel},
    processor::{Context, Hook, HookSet, Input, Outcome, Processor, ProcessorError},
    tool::{Tool, ToolContext},
};

use crate::support::{World, accepted, builder, message, world_of};

/// A tool that waits until it is let go, and tells how often it was called.
fn slow_tool() -> (Tool, tokio::sync::mpsc::UnboundedReceiver<tokio::sync::oneshot::Sender<()>>) {
    let (calls, called) = tokio::sync::mpsc::unbounded_channel();
    let tool = Tool::json("slow", move |_, _: ToolContext| {
        let (go, gone) = tokio::sync::oneshot::channel();
        calls.send(go).unwrap();
        async move {
            gone.await.unwrap();
            Ok(json!("done"))
        }
    });
    (tool, called)
}

#[tokio::test(start_paused = true)]
async fn loop_031_sig_202_sig_161_input_waits_for_the_whole_batch_of_tools() {
    let (tool, mut called) = slow_tool();
    let model = ScriptedModel::with_responses([
        Script::new().call("slow", json!({"n": 1})).call("slow", json!({"n": 2})),
        "answer".into(),
    ]);
    let world = world_of(model.clone(), [builder("plain", &model).tool(tool).build().unwrap()]).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    let (one, two) = (called.recv().await.unwrap(), called.recv().await.unwrap());
    world.send("S1").await;
    one.send(()).unwrap();
    world.send("S2").await;
    two.send(()).unwrap();
    watcher.until_end_of(&run).await;
    assert!(called.try_recv().is_err(), "neither cancelled nor run again");
    assert_eq!(world.model.cancelled(), 0);
    let prompt = &world.model.requests()[1].prompt;
    let roles: Vec<String> =
        prompt.iter().map(|m| serde_json::to_value(m).unwrap()["role"].as_str().unwrap().to_owned()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "user", "user"]);
    assert_eq!(world.asked(1), ["hi", "S1", "S2"]);
    let kinds = watcher.kinds();
    let result = kinds.iter().rposition(|kind| *kind == "tool-result").unwrap();
    assert_eq!(kinds[result + 1..result + 5], ["data-user-message", "data-user-message", "step-finish", "step-start"]);
}

/// One answer at the gate, with room for one step.
async fn at_the_limit(on_step_limit: OnStepLimit) -> (World, Gate) {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let options = RunOptions { max_steps: Some(1), ..RunOptions::default() };
    let agent = builder("plain", &model).default_options(options).on_step_limit(on_step_limit).build().unwrap();
    (world_of(model, [agent]).await, gate)
}

#[tokio::test(start_paused = true)]
async fn loop_029_sig_203_at_the_step_limit_input_is_stored_echoed_and_named_as_unanswered() {
    let (world, gate) = at_the_limit(OnStepLimit::Save).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    accepted(world.agent.send_message(&world.thread, message("late")).await.unwrap()).await;
    gate.open();
    let finish = watcher.until_end_of(&run).await;
    let Some(Payload::Finish(finish)) = finish.payload() else { panic!("no finish") };
    assert_eq!(finish.step_result.reason, FinishReason::Other);
    assert_eq!(finish.unanswered_signal_ids, ["late".into()], "SIG-204");
    assert_eq!((world.model.requested(), watcher.echoes()), (1, vec!["hi".to_owned(), "late".to_owned()]));
    assert_eq!(world.texts().await, ["hi", "a", "late"]);
    assert!(world.storage.inbox(&world.thread).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn sig_204_follow_up_gives_it_a_run_with_a_fresh_budget() {
    let (world, gate) = at_the_limit(OnStepLimit::FollowUp).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    world.send("late").await;
    gate.open();
    watcher.until_end_of(&run).await;
    let finish = watcher.until("finish").await;
    assert_ne!(finish.run_id, Some(run));
    assert_eq!(world.texts().await, ["hi", "a", "late", "b"]);
}

struct Guard;

#[async_trait]
impl Processor for Guard {
    fn id(&self) -> &'static str {
        "guard"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input])
    }

    async fn process_input(&self, _: &mut Context<'_>, input: &mut Input) -> Outcome {
        for message in &*input.messages {
            match message.joined_text().as_str() {
                "bad" => return Err(ProcessorError::tripwire("not allowed")),
                "crash" => return Err(ProcessorError::Failed("boom".into())),
                _ => {}
            }
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn sig_208_ruling_34_ruling_35_a_guard_refuses_one_input_and_the_run_goes_on() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into(), "c".into()]);
    let world = world_of(model.clone(), [builder("plain", &model).input_processor(Guard).build().unwrap()]).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    for text in ["good", "bad", "crash"] {
        accepted(world.agent.send_message(&world.thread, message(text)).await.unwrap()).await;
    }
    gate.open();
    watcher.until_end_of(&run).await;
    assert_eq!(watcher.echoes(), ["hi", "good"]);
    let rejected: Vec<_> = watcher.chunks.iter().filter(|chunk| chunk.kind() == "data-signal-rejected").collect();
    assert_eq!(serde_json::to_value(rejected[0]).unwrap()["data"], json!({"id": "bad", "reason": "not allowed"}));
    assert_eq!(rejected.len(), 2, "ruling 35: a crash fails closed");
    assert_eq!(world.asked(1), ["hi", "good"]);
    let blocked = world.stored().await.into_iter().find(|message| message.id.as_str() == "bad").unwrap();
    let blocked = serde_json::to_value(blocked).unwrap();
    assert_eq!(blocked["content"]["metadata"]["blocked"], json!({"reason": "not allowed", "processorId": "guard"}));
    world.send("more").await;
    watcher.until("finish").await;
    assert_eq!(world.asked(2), ["hi", "good", "more"], "ruling 34: left out of recall");
    assert!(world.storage.inbox(&world.thread).await.unwrap().is_empty());
}
