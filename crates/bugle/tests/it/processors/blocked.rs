//! What guards have blocked, and what they could not judge (rulings 34, 36).

use async_trait::async_trait;
use bugle::{
    RunOptions,
    chunk::FinishReason,
    json::json,
    memory::MemoryOptions,
    model::{Gate, Script, ScriptedModel},
    processor::{
        Context, Hook, HookSet, Outcome, OutputStep, Processor,
        builtin::{OnMatch, RegexFilter, Rule},
    },
    runtime::RunInput,
};

use crate::support::{World, builder, world_of};

/// An agent that remembers two messages, and is not told what is forbidden.
async fn guarded() -> World {
    let model = ScriptedModel::recording();
    let guard = RegexFilter::new("guard", vec![Rule::new("bad", "forbidden", 9).unwrap()], OnMatch::Block);
    let agent = builder("plain", &model).memory(MemoryOptions::last(2)).input_processor(guard);
    world_of(model, [agent.build().unwrap()]).await
}

#[tokio::test(start_paused = true)]
async fn ruling_34_blocked_input_does_not_use_up_the_history() {
    let world = guarded().await;
    world.run("one").await;
    world.run("two").await;
    for n in 0..40 {
        world.run(&format!("forbidden {n}")).await;
    }
    assert_eq!(world.model.requested(), 2);
    world.run("three").await;
    assert_eq!(world.asked(2), ["two", "three"]);
}

#[tokio::test(start_paused = true)]
async fn ruling_34_a_blocked_message_that_is_sent_again_is_judged_again() {
    let world = guarded().await;
    let send = async |text: &str| {
        let message = json!([{"id": "m1", "role": "user", "content": text}]);
        let input = RunInput::from_json(&message).unwrap();
        world.agent.generate(input, Some(&world.thread), RunOptions::default()).await.unwrap()
    };
    for _ in 0..2 {
        assert_eq!(send("forbidden").await.finish_reason, FinishReason::Tripwire);
    }
    assert_eq!(world.model.requested(), 0);
    assert_eq!(send("allowed").await.finish_reason, FinishReason::Stop);
    assert_eq!(world.asked(0), ["allowed"]);
    let rows = world.stored().await;
    assert_eq!((rows.len(), rows[0].is_blocked(), rows[0].joined_text().as_str()), (2, false, "allowed"));
}

#[tokio::test(start_paused = true)]
async fn ruling_36_people_see_blocked_input_before_the_run_starts() {
    let world = guarded().await;
    let mut watcher = world.watch().await;
    let run = world.send("forbidden").await.run_id.unwrap();
    watcher.until_end_of(&run).await;
    assert_eq!(watcher.kinds(), ["data-user-message", "start", "tripwire", "finish"]);
}

/// Judges whole answers.
struct Judge;

#[async_trait]
impl Processor for Judge {
    fn id(&self) -> &'static str {
        "judge"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::OutputStep])
    }
    fn judges_answers(&self) -> bool {
        true
    }
    async fn process_output_step(&self, _: &mut Context<'_>, _: &mut OutputStep) -> Outcome {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn proc_051_what_was_cut_off_before_it_was_judged_is_not_kept() {
    for judged in [false, true] {
        let gate = Gate::new();
        let model =
            ScriptedModel::with_responses([Script::new().text("partial").gate(&gate).text("never"), "b".into()]);
        let agent = builder("plain", &model);
        let agent = if judged { agent.output_processor(Judge) } else { agent };
        let world = world_of(model, [agent.build().unwrap()]).await;
        let mut watcher = world.watch().await;
        let run = world.send("hi").await.run_id.unwrap();
        gate.reached().await;
        world.agent.abort_thread(&world.thread, bugle::runtime::AbortOptions::default()).await.unwrap();
        watcher.until_end_of(&run).await;
        let kept = world.texts().await.iter().any(|text| text == "partial");
        assert_eq!(kept, !judged, "{:?}", world.texts().await);
        let run = world.send("again").await.run_id.unwrap();
        watcher.until_end_of(&run).await;
        assert_eq!(world.texts().await.last().map(String::as_str), Some("b"), "whole answers are");
    }
}
