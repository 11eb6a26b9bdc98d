//! An agent's own code that never answers: the run stays stoppable (SIG-312).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bugle::{
    RunOptions,
    chunk::FinishReason,
    json::{Value, json},
    model::{ModelSettings, Script, Timeouts},
    processor::{Context, Hook, HookSet, Input, Outcome, Processor},
    runtime::AbortOptions,
    scorer::{Score, Scorer, ScorerError, ScorerInput, TaskCompletion},
};
use tokio::{sync::Notify, time::Instant};

use super::{Ran, input, world_with};
use crate::support::World;

/// Never answers once it has been told `deaf`; says that it was asked.
#[derive(Clone, Default)]
struct Deaf(Arc<Notify>);

#[async_trait]
impl Processor for Deaf {
    fn id(&self) -> &'static str {
        "deaf"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input])
    }

    async fn process_input(&self, _: &mut Context<'_>, input: &mut Input) -> Outcome {
        if input.messages.iter().any(|message| message.joined_text() == "deaf") {
            self.0.notify_one();
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

#[async_trait]
impl Scorer for Deaf {
    fn id(&self) -> &'static str {
        "deaf"
    }
    async fn score(&self, _: &ScorerInput) -> Result<Score, ScorerError> {
        self.0.notify_one();
        std::future::pending().await
    }
}

async fn guarded() -> (World, Deaf) {
    let deaf = Deaf::default();
    let world = world_with(["answer"], |agent| agent.input_processor(deaf.clone())).await;
    (world, deaf)
}

fn limited(total: f64) -> RunOptions {
    let timeout = Some(Timeouts { total_ms: Some(total), ..Timeouts::default() });
    RunOptions { model_settings: Some(ModelSettings { timeout, ..ModelSettings::default() }), ..RunOptions::default() }
}

async fn blocked(world: &World) -> Value {
    let stored = world.stored().await;
    stored.iter().find(|message| message.joined_text() == "deaf").unwrap().content.meta("blocked").cloned().unwrap()
}

#[tokio::test(start_paused = true)]
async fn sig_312_an_abort_ends_a_run_whose_guard_never_answers() {
    let (world, deaf) = guarded().await;
    let stream = world.agent.stream(input("deaf"), Some(&world.thread), RunOptions::default()).await.unwrap();
    deaf.0.notified().await;
    let began = Instant::now();
    stream.abort();
    assert_eq!(stream.output().await.unwrap().finish_reason, FinishReason::Aborted);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(250) && took < Duration::from_millis(300), "{took:?}");
    assert_eq!(world.model.requested(), 0);
    assert_eq!(blocked(&world).await["processorId"], "deaf");
    // The thread is free, and what was not judged stays away from models (ruling 34).
    world.run("next").await;
    assert_eq!(world.asked(0), ["next"]);
}

#[tokio::test(start_paused = true)]
async fn sig_312_an_abort_ends_a_woken_run_and_input_mid_run_that_a_guard_holds() {
    let (world, deaf) = guarded().await;
    let mut watcher = world.watch().await;
    let run = world.send("deaf").await.run_id.unwrap();
    deaf.0.notified().await;
    assert!(watcher.subscription().abort(AbortOptions::default()).await.unwrap());
    watcher.until_end_of(&run).await;
    assert_eq!(watcher.chunks.last().unwrap().kind(), "abort");
    assert_eq!(blocked(&world).await["processorId"], "deaf");
    assert!(world.storage.inbox(&world.thread).await.unwrap().is_empty(), "not tried again");

    let gate = bugle::model::Gate::new();
    let deaf = Deaf::default();
    let script = [Script::new().text("a").gate(&gate)];
    let world = world_with(script, |agent| agent.input_processor(deaf.clone())).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    world.send("deaf").await;
    gate.open();
    deaf.0.notified().await;
    assert!(watcher.subscription().abort(AbortOptions::default()).await.unwrap());
    watcher.until_end_of(&run).await;
    assert_eq!(watcher.chunks.last().unwrap().kind(), "abort");
    assert_eq!(world.texts().await, ["hi", "a", "deaf"]);
    assert_eq!(blocked(&world).await["processorId"], "deaf");
}

#[tokio::test(start_paused = true)]
async fn loop_047_the_total_limit_ends_a_run_whose_guard_never_answers() {
    let (world, _) = guarded().await;
    let began = Instant::now();
    let ran: Ran = world.run_with("deaf", limited(900.0)).await;
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(900) && took < Duration::from_millis(950), "{took:?}");
    assert_eq!(ran.payload("error")["error"]["details"], json!({"timeoutType": "total", "timeoutMs": 900.0}));
    assert_eq!(world.model.requested(), 0);
}

#[tokio::test(start_paused = true)]
async fn cli_072_a_shutdown_does_not_wait_for_a_guard_or_a_scorer() {
    let (world, deaf) = guarded().await;
    let stream = world.agent.stream(input("deaf"), Some(&world.thread), RunOptions::default()).await.unwrap();
    deaf.0.notified().await;
    let began = Instant::now();
    world.bugle.shutdown(Duration::from_millis(10)).await;
    assert_eq!(stream.output().await.map(|output| output.finish_reason).ok(), None, "left to the next owner");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());

    let deaf = Deaf::default();
    let completion = TaskCompletion::all(vec![Arc::new(deaf.clone())]);
    let world = world_with(["answer"], |agent| agent.is_task_complete(completion)).await;
    let stream = world.agent.stream(input("hi"), Some(&world.thread), RunOptions::default()).await.unwrap();
    deaf.0.notified().await;
    let began = Instant::now();
    world.bugle.shutdown(Duration::from_millis(10)).await;
    assert_eq!(stream.output().await.map(|output| output.finish_reason).ok(), None, "left to the next owner");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn loop_047_the_total_limit_ends_a_run_whose_scorer_never_answers() {
    let completion = TaskCompletion::all(vec![Arc::new(Deaf::default())]);
    let world = world_with(["answer"], |agent| agent.is_task_complete(completion)).await;
    let ran = world.run_with("hi", limited(900.0)).await;
    assert_eq!(ran.payload("error")["error"]["details"]["timeoutType"], "total");
}
