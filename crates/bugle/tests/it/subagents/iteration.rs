//! The hook at the end of every iteration, cell by cell (SUB-111).

use std::sync::Arc;

use bugle::{
    RunOptions, RunOutput, Tool,
    chunk::FinishReason,
    json::{Value, json},
    message::Role,
    model::{Script, ScriptedModel},
    run::StopCondition,
    subagent::{HookFailure, IterationComplete, IterationDecision, IterationHook},
    tool::{ToolContext, ToolError},
};
use parking_lot::Mutex;

use super::{input, pair_of, scripted, spoken};
use crate::support::{World, builder, world_of};

type Seen = Arc<Mutex<Vec<IterationComplete>>>;

fn decision(proceed: Option<bool>, feedback: Option<&str>) -> IterationDecision {
    IterationDecision { proceed, feedback: feedback.map(str::to_owned) }
}

fn hook(decisions: Vec<IterationDecision>) -> (IterationHook, Seen) {
    let seen = Seen::default();
    let kept = seen.clone();
    let hook = IterationHook::new(move |iteration| {
        let at = iteration.iteration as usize - 1;
        kept.lock().push(iteration);
        let decision = decisions.get(at).cloned().unwrap_or_default();
        async move { Ok(decision) }
    });
    (hook, seen)
}

fn tool() -> Tool {
    Tool::json("look", |_, _: ToolContext| async { Ok::<Value, ToolError>(json!("seen")) })
}

fn calls() -> Script {
    Script::new().call("look", json!({"at": 1}))
}

struct Ran {
    world: World,
    output: RunOutput,
    seen: Vec<IterationComplete>,
}

impl Ran {
    fn model(&self) -> &ScriptedModel {
        &self.world.model
    }
}

async fn run_with(scripts: Vec<Script>, decisions: Vec<IterationDecision>, mut options: RunOptions) -> Ran {
    let model = scripted(scripts);
    let (hook, seen) = hook(decisions);
    options.on_iteration_complete = Some(hook);
    let world = world_of(model.clone(), [builder("p", &model).tool(tool()).build().unwrap()]).await;
    let output = world.agent.generate(input("hi"), Some(&world.thread), options).await.unwrap();
    let seen = seen.lock().clone();
    Ran { world, output, seen }
}

async fn run(scripts: Vec<Script>, decisions: Vec<IterationDecision>) -> Ran {
    run_with(scripts, decisions, RunOptions::default()).await
}

fn steps(max_steps: u32) -> RunOptions {
    RunOptions { max_steps: Some(max_steps), ..RunOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn sub_110_every_iteration_is_told_with_all_fields() {
    let ran = run_with(vec![calls(), Script::from("done")], vec![], steps(4)).await;
    let [first, last] = &ran.seen[..] else { panic!("{:?}", ran.seen) };
    assert_eq!((first.iteration, first.max_iterations, first.is_final), (1, Some(4), false));
    assert_eq!((first.finish_reason, first.text.as_str()), (FinishReason::ToolCalls, ""));
    assert_eq!((first.tool_calls[0].name.as_str(), &first.tool_calls[0].args), ("look", &json!({"at": 1})));
    assert_eq!(first.tool_results[0].result, "seen");
    assert_eq!((last.iteration, last.is_final, last.text.as_str()), (2, true, "done"));
    assert_eq!((last.agent_id.as_str(), last.run_id.clone()), ("p", ran.output.run_id.clone()));
    assert_eq!(last.thread.as_ref(), Some(&ran.world.thread));
    assert_eq!(last.messages.len(), 2);
    assert_eq!(ran.output.text, "done");
}

#[tokio::test(start_paused = true)]
async fn sub_110_a_hook_that_fails_is_ignored() {
    let model = scripted(vec![Script::from("done")]);
    let hook = IterationHook::new(|_| async { Err(HookFailure::new("broken")) });
    let options = RunOptions { on_iteration_complete: Some(hook), ..RunOptions::default() };
    let agent = builder("p", &model).default_options(options).build().unwrap();
    let world = world_of(model, [agent]).await;
    let output = world.agent.generate(input("hi"), None, RunOptions::default()).await.unwrap();
    assert_eq!(output.text, "done");
}

#[tokio::test(start_paused = true)]
async fn loop_027_sub_111_tool_calls_continue_true() {
    let ran = run(vec![calls(), Script::from("done")], vec![decision(Some(true), None)]).await;
    assert_eq!((ran.output.text.as_str(), ran.model().requested()), ("done", 2));
}

#[tokio::test(start_paused = true)]
async fn sub_111_tool_calls_feedback_with_and_without_continue_true() {
    for proceed in [None, Some(true)] {
        let ran = run(vec![calls(), Script::from("done")], vec![decision(proceed, Some("Look twice."))]).await;
        assert_eq!(ran.output.text, "done");
        let prompt = spoken(&ran.model().requests()[1]);
        assert_eq!(prompt[prompt.len() - 2..], ["tool", "user: Look twice."]);
    }
}

#[tokio::test(start_paused = true)]
async fn sub_111_tool_calls_continue_false_ends_now() {
    let ran = run(vec![calls()], vec![decision(Some(false), None)]).await;
    assert_eq!((ran.output.finish_reason, ran.model().requested()), (FinishReason::ToolCalls, 1));
}

#[tokio::test(start_paused = true)]
async fn sub_111_tool_calls_continue_false_with_feedback_grants_one_turn_without_tools() {
    let decisions = vec![decision(Some(false), Some("Sum up.")), decision(Some(true), Some("more"))];
    let ran = run(vec![calls(), Script::from("summary")], decisions).await;
    assert_eq!((ran.output.text.as_str(), ran.model().requested()), ("summary", 2));
    let request = &ran.model().requests()[1];
    assert!(request.tools.is_empty());
    assert_eq!(spoken(request).last().unwrap(), "user: Sum up.");
    assert!(ran.seen[1].is_final);
}

#[tokio::test(start_paused = true)]
async fn sub_111_a_last_turn_that_calls_tools_all_the_same_runs_none_and_ends() {
    let ran = run(vec![calls(), calls()], vec![decision(Some(false), Some("Sum up."))]).await;
    assert_eq!((ran.output.finish_reason, ran.model().requested()), (FinishReason::ToolCalls, 2));
    let stored = super::calls(&ran.world.stored().await);
    assert_eq!(stored[1].error_text.as_deref(), Some("no tools are offered in this turn"));
}

#[tokio::test(start_paused = true)]
async fn ruling_17_sub_111_final_answer_continue_true_with_feedback_loops_with_it() {
    let ran =
        run(vec![Script::from("first"), Script::from("second")], vec![decision(Some(true), Some("Name sources."))])
            .await;
    assert_eq!(ran.model().requested(), 2);
    let prompt = spoken(&ran.model().requests()[1]);
    assert_eq!(prompt[prompt.len() - 2..], ["assistant: first", "user: Name sources."]);
    let stored = ran.world.stored().await;
    let texts: Vec<(Role, String)> = stored.iter().map(|message| (message.role, message.joined_text())).collect();
    let expected = [
        (Role::User, "hi"),
        (Role::Assistant, "first"),
        (Role::Assistant, "Name sources."),
        (Role::Assistant, "second"),
    ];
    assert_eq!(texts, expected.map(|(role, text)| (role, text.to_owned())));
    let metadata = stored[2].content.meta("completionResult").unwrap();
    assert_eq!(metadata["suppressFeedback"], true, "SUB-113");
    assert!(!ran.output.text.contains("Name sources."));
    let ids: std::collections::HashSet<_> = stored.iter().map(|message| &message.id).collect();
    assert_eq!(ids.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn sub_111_final_answer_continue_true_loops() {
    let ran = run(vec![Script::from("first"), Script::from("second")], vec![decision(Some(true), None)]).await;
    assert_eq!(ran.model().requested(), 2);
    let prompt = spoken(&ran.model().requests()[1]);
    assert!(prompt.last().unwrap().starts_with("user: "), "no provider refuses it: {prompt:?}");
    assert_eq!(ran.world.texts().await, ["hi", "first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn loop_027_sub_111_final_answer_continue_false_ends_and_drops_the_feedback() {
    for feedback in [None, Some("too late")] {
        let ran = run(vec![Script::from("first")], vec![decision(Some(false), feedback)]).await;
        assert_eq!((ran.output.text.as_str(), ran.output.finish_reason), ("first", FinishReason::Stop));
        assert_eq!(ran.world.texts().await, ["hi", "first"]);
    }
}

#[tokio::test(start_paused = true)]
async fn sub_111_stopped_by_a_condition_continue_true_goes_on_with_and_without_feedback() {
    for feedback in [None, Some("go on")] {
        let stop = StopCondition(Arc::new(|steps| steps.len() == 1));
        let options = RunOptions { stop_when: vec![stop], ..RunOptions::default() };
        let ran = run_with(vec![calls(), Script::from("done")], vec![decision(Some(true), feedback)], options).await;
        assert!(ran.seen[0].is_final);
        assert_eq!((ran.output.text.as_str(), ran.model().requested()), ("done", 2));
    }
}

#[tokio::test(start_paused = true)]
async fn sub_112_max_steps_wins() {
    let always = vec![decision(Some(true), Some("more")); 9];
    let ran = run_with(vec![Script::from("a"), Script::from("b"), Script::from("c")], always, steps(3)).await;
    assert_eq!(ran.model().requested(), 3);
    let last = vec![IterationDecision::default(), decision(Some(false), Some("Sum up."))];
    let ran = run_with(vec![calls(), calls()], last, steps(2)).await;
    assert_eq!(ran.model().requested(), 2, "no free step, no last turn");
}

#[tokio::test(start_paused = true)]
async fn sub_112_ruling_12_without_max_steps_a_hook_prolongs_a_run_to_25_iterations() {
    let always = vec![decision(Some(true), None); 40];
    let ran = run(vec![calls(); 40], always).await;
    assert_eq!(ran.model().requested(), 25);
    let ran = run(vec![calls(); 40], vec![]).await;
    assert_eq!(ran.model().requested(), 5, "SUB-062");
}

#[tokio::test(start_paused = true)]
async fn sub_032_sub_114_feedback_reaches_later_subagents() {
    let (parent, child) =
        (scripted(vec![calls(), super::to_explorer("go"), Script::from("ok")]), scripted(vec![Script::from("found")]));
    let lead = super::lead(&parent).tool(tool()).agent("explorer", super::explorer(&child).build().unwrap());
    let pair = pair_of(lead, parent, child).await;
    let (hook, _) = hook(vec![decision(None, Some("Prefer new sources."))]);
    let options = RunOptions { on_iteration_complete: Some(hook), ..RunOptions::default() };
    pair.generate_with("hi", options).await;
    assert_eq!(pair.child_asked(0), ["hi", "Prefer new sources.", "go"]);
}

#[tokio::test(start_paused = true)]
async fn sub_081_bail_wins_over_the_hook_which_is_asked_all_the_same() {
    let delegation = bugle::subagent::Delegation::default().on_delegation_complete(|done| async move {
        done.bail();
        Ok(Default::default())
    });
    let pair = super::pair(vec![super::to_explorer("go")], vec![Script::from("found")], delegation).await;
    let (hook, seen) = hook(vec![decision(Some(true), Some("more"))]);
    let options = RunOptions { on_iteration_complete: Some(hook), ..RunOptions::default() };
    let output = pair.generate_with("hi", options).await;
    assert_eq!((output.finish_reason, pair.parent.requested()), (FinishReason::ToolCalls, 1));
    assert!(seen.lock()[0].is_final);
}
