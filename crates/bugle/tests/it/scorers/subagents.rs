//! Completion checks beside delegation and the iteration hook (SCO-042, SCO-047, SCO-050).

use std::sync::{Arc, Mutex};

use bugle::{
    Agent, RunOptions,
    json::{Value, json},
    model::{Script, ScriptedModel},
    scorer::TaskCompletion,
    subagent::{IterationDecision, IterationHook},
};

use super::{checks, holds, passed};
use crate::{
    r#loop::{Ran, world_with},
    support::user_texts,
};

fn child(model: &ScriptedModel) -> bugle::agent::AgentBuilder {
    Agent::builder("helper-agent").description("Helps.").model(Arc::new(model.clone())).max_retries(0)
}

fn delegate() -> Script {
    Script::new().call("agent-helper", json!({"prompt": "help"}))
}

fn checked() -> RunOptions {
    RunOptions { is_task_complete: Some(TaskCompletion::all(vec![holds("DONE")])), ..RunOptions::default() }
}

/// The nested chunks of this type.
fn nested(ran: &Ran, kind: &str) -> Vec<Value> {
    let outputs = ran.all("tool-output").into_iter().map(|chunk| chunk["payload"]["output"].clone());
    outputs.filter(|output| output["type"] == kind).collect()
}

#[tokio::test(start_paused = true)]
async fn sco_050_a_subagent_does_not_inherit_the_check_and_may_have_its_own() {
    let model = ScriptedModel::with_responses(["no word of it"]);
    let helper = child(&model).build().unwrap();
    let world = world_with([delegate(), Script::new().text("DONE")], |agent| agent.agent("helper", helper)).await;
    let ran = world.run_with("work", checked()).await;
    assert_eq!((passed(&ran), model.requested(), nested(&ran, "is-task-complete").len()), (vec![(2, true)], 1, 0));

    let model = ScriptedModel::with_responses(["no word of it", "DONE by the helper"]);
    let helper = child(&model).default_options(checked()).build().unwrap();
    let world = world_with([delegate(), Script::new().text("done")], |agent| agent.agent("helper", helper)).await;
    let ran = world.run("work").await;
    let own: Vec<Value> =
        nested(&ran, "is-task-complete").iter().map(|chunk| chunk["payload"]["passed"].clone()).collect();
    assert_eq!((own, checks(&ran).len()), (vec![json!(false), json!(true)], 0));
    assert_eq!(ran.payload("tool-result")["result"]["text"], "DONE by the helper");
}

#[tokio::test(start_paused = true)]
async fn sco_042_sub_032_later_subagents_read_the_feedback() {
    let model = ScriptedModel::with_responses(["helped"]);
    let helper = child(&model).build().unwrap();
    let scripts = [Script::new().text("draft"), delegate(), Script::new().text("DONE")];
    let world = world_with(scripts, |agent| agent.agent("helper", helper)).await;
    let ran = world.run_with("work", checked()).await;
    assert_eq!(passed(&ran), [(1, false), (3, true)]);
    let read = user_texts(&model.requests()[0].prompt);
    assert_eq!((read[0].as_str(), read.last().map(String::as_str)), ("work", Some("help")));
    assert!(read[1].contains("no DONE"), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn sco_047_the_iteration_hook_is_asked_after_the_check_and_may_end_or_prolong_the_loop() {
    for (decision, requested, text) in [
        (IterationDecision::default(), 2, "DONE"),
        (IterationDecision::stop(), 1, "draft"),
        (IterationDecision::go_on("One more."), 3, "last"),
    ] {
        let seen: Arc<Mutex<Vec<(u32, bool)>>> = Arc::default();
        let kept = seen.clone();
        let prolongs = decision.proceed == Some(true);
        let hook = IterationHook::new(move |turn| {
            kept.lock().unwrap().push((turn.iteration, turn.is_final));
            // The first decision; a prolonging one also where the check has passed.
            let said = if turn.iteration == 1 || (prolongs && turn.iteration == 2) {
                decision.clone()
            } else {
                IterationDecision::default()
            };
            async move { Ok(said) }
        });
        let options = RunOptions { on_iteration_complete: Some(hook), ..checked() };
        let world = world_with(["draft", "DONE", "last"], |agent| agent).await;
        // The last answer of the prolonged run passes nothing; it is at its limit.
        let ran = world.run_with("work", RunOptions { max_steps: Some(3), ..options }).await;
        assert_eq!((world.model.requested(), ran.output.steps.last().unwrap().text.as_str()), (requested, text));
        let expected = [(1, false), (2, true), (3, true)];
        assert_eq!(seen.lock().unwrap()[..], expected[..requested]);
    }
}
