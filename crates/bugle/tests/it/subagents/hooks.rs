//! Hooks: what they see, what they change, and the table of their failures.

use std::sync::Arc;

use bugle::{
    RequestContext, RunOptions, Tool,
    chunk::FinishReason,
    json::{Value, json},
    message::{Role, ToolState},
    model::Script,
    subagent::{
        CompleteDecision, Delegation, DelegationComplete, DelegationStart, FilterContext, HookErrorStrategy,
        HookFailure, StartDecision,
    },
    tool::{ToolContext, ToolError},
};
use parking_lot::Mutex;

use super::{Pair, explorer, kinds, lead, nested, pair, pair_of, scripted, spoken, to_explorer};

/// Keeps what hooks were called with.
#[derive(Clone)]
struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Seen<T> {
    fn push(&self, value: T) {
        self.0.lock().push(value);
    }
    fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.0.lock())
    }
}

fn starts(seen: &Seen<DelegationStart>, decision: StartDecision) -> Delegation {
    let seen = seen.clone();
    Delegation::default().on_delegation_start(move |start| {
        seen.push(start);
        let decision = decision.clone();
        async move { Ok(decision) }
    })
}

fn completes(delegation: Delegation, seen: &Seen<DelegationComplete>, decision: CompleteDecision) -> Delegation {
    let seen = seen.clone();
    delegation.on_delegation_complete(move |done| {
        seen.push(done);
        let decision = decision.clone();
        async move { Ok(decision) }
    })
}

#[tokio::test(start_paused = true)]
async fn sub_071_hooks_see_what_the_tables_say() {
    let (started, filtered, done) = (Seen::default(), Seen::<FilterContext>::default(), Seen::default());
    let kept = filtered.clone();
    let delegation = completes(starts(&started, StartDecision::proceed()), &done, CompleteDecision::default())
        .message_filter(move |context| {
            kept.push(context.clone());
            async move { Ok(context.messages) }
        });
    let call =
        Script::new().call_as("c1", "agent-explorer", r#"{"prompt":"go","instructions":"Be brief.","maxSteps":4}"#);
    let pair = pair(vec![call, Script::from("ok")], vec![Script::from("found")], delegation).await;
    let output = pair.generate("hi").await;
    let start = started.take().remove(0);
    assert_eq!((start.primitive_id.as_str(), start.primitive_type), ("explorer-agent", "agent"));
    assert_eq!((start.prompt.as_str(), start.iteration, start.tool_call_id.as_str()), ("go", 1, "c1"));
    assert_eq!(start.params.instructions.as_deref(), Some("Be brief."));
    assert_eq!(start.params.max_steps, Some(4));
    assert_eq!(start.params.thread_id.as_deref(), Some("thread"));
    assert_eq!(start.params.resource_id.as_deref(), Some("user"));
    assert_eq!((start.run_id.clone(), start.thread.clone()), (output.run_id.clone(), Some(pair.world.thread.clone())));
    assert_eq!((start.parent_agent_id.as_str(), start.parent_agent_name.as_str()), ("p", "Parent"));
    assert_eq!((start.messages.len(), start.is_resume), (1, false));
    let shape = json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]);
    assert_eq!(json!(start.messages), shape, "SUB-035: as models read them");
    let filter = filtered.take().remove(0);
    assert_eq!((filter.prompt.as_str(), filter.messages.len(), filter.iteration), ("go", 1, 1));
    assert_eq!(filter.run_id, output.run_id);
    let done = done.take().remove(0);
    assert_eq!((done.prompt.as_str(), done.success, done.iteration), ("go", true, 1));
    assert_eq!((done.result.text.as_str(), done.result.finish_reason), ("found", Some(FinishReason::Stop)));
    assert!(done.result.sub_agent_thread_id.starts_with("thread-") && done.error.is_none());
    let roles: Vec<Role> = done.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant]);
    assert_eq!((done.tool_call_id.as_str(), done.run_id), ("c1", output.run_id));
}

#[tokio::test(start_paused = true)]
async fn sub_073_iteration_counts_the_parents_turns() {
    let seen = Seen::default();
    let two = Script::new().call_as("c2", "agent-explorer", r#"{"prompt":"b"}"#).call_as(
        "c3",
        "agent-explorer",
        r#"{"prompt":"c"}"#,
    );
    let pair = pair(
        vec![to_explorer("a"), two, Script::from("ok")],
        vec![Script::from("1"), Script::from("2"), Script::from("3")],
        starts(&seen, StartDecision::proceed()),
    )
    .await;
    pair.generate("hi").await;
    let mut counted: Vec<_> = seen.take().iter().map(|start| (start.tool_call_id.clone(), start.iteration)).collect();
    counted.sort();
    assert_eq!(counted, [("c1".to_owned(), 1), ("c2".to_owned(), 2), ("c3".to_owned(), 2)]);
}

#[tokio::test(start_paused = true)]
async fn sub_074_sub_075_sub_076_a_rejection_is_a_success_that_ran_nothing() {
    let (seen, done) = (Seen::default(), Seen::default());
    let metadata = json!({"project": "x"}).as_object().cloned();
    let decision = StartDecision { thread_metadata: metadata.clone(), ..StartDecision::reject("too many") };
    let delegation = completes(starts(&seen, decision), &done, CompleteDecision::default())
        .message_filter(|_| async { panic!("called") });
    let pair = pair(vec![to_explorer("go"), Script::from("ok")], vec![], delegation).await;
    let (chunks, output) = pair.stream("hi").await;
    assert_eq!((output.text.as_str(), pair.child.requested(), done.take().len()), ("ok", 0, 0));
    assert_eq!(pair.told(1), ["[Delegation Rejected] too many"]);
    let inner = nested(&chunks, "c1");
    assert_eq!(kinds(&inner), ["text-delta"]);
    assert_eq!(inner[0]["runId"], json!(output.run_id));
    let call = pair.calls().await.remove(0);
    let result = call.result.unwrap();
    assert_eq!((call.state, result["text"].as_str()), (ToolState::Result, Some("[Delegation Rejected] too many")));
    let texts: Vec<String> =
        pair.sub_messages(&result).await.iter().map(bugle::message::StoredMessage::joined_text).collect();
    assert_eq!(texts, ["go", "[Delegation Rejected] too many"]);
    assert_eq!(pair.threads_of("user-explorer").await[0].metadata, metadata);
}

#[tokio::test(start_paused = true)]
async fn sub_031_sub_042_sub_060_a_start_hook_changes_prompt_steps_instructions_and_metadata() {
    let (seen, done) = (Seen::default(), Seen::default());
    let metadata = json!({"project": "x"}).as_object().cloned();
    let decision = StartDecision {
        modified_prompt: Some("better".into()),
        modified_max_steps: Some(1),
        modified_instructions: Some("Be long.".into()),
        thread_metadata: metadata.clone(),
        ..StartDecision::proceed()
    };
    let delegation = completes(starts(&seen, decision), &done, CompleteDecision::default());
    let (parent, child) =
        (scripted(vec![to_explorer("go"), Script::from("ok")]), scripted(vec![Script::new().call("grep", json!({}))]));
    let grep = Tool::json("grep", |_, _: ToolContext| async { Ok::<Value, ToolError>(json!(1)) });
    let explorer = explorer(&child).tool(grep).build().unwrap();
    let lead = lead(&parent).default_options(super::delegating(delegation)).agent("explorer", explorer);
    let pair = pair_of(lead, parent, child).await;
    pair.generate("hi").await;
    assert_eq!(spoken(&pair.child.requests()[0]), ["system: You explore.\n\nBe long.", "user: hi", "user: better"]);
    assert_eq!(pair.child.requested(), 1);
    let result = pair.calls().await[0].result.clone().unwrap();
    assert_eq!(pair.sub_messages(&result).await[0].joined_text(), "better");
    let thread = pair.threads_of("user-explorer").await.remove(0);
    assert_eq!(thread.metadata, metadata);
    assert_eq!(done.take()[0].prompt, "better");
}

#[tokio::test(start_paused = true)]
async fn sub_072_the_request_context_is_copied_at_the_boundary() {
    let delegation = Delegation::default().on_delegation_start(|start| async move {
        assert_eq!(start.request_context.get("mastra__threadId"), None);
        start.request_context.set("who", "hook");
        start.request_context.remove("gone");
        Ok(StartDecision::proceed())
    });
    let seen = Seen::<RequestContext>::default();
    let kept = seen.clone();
    let look = Tool::json("look", move |_, context: ToolContext| {
        kept.push(context.request_context);
        async { Ok::<Value, ToolError>(json!("seen")) }
    });
    let kept = seen.clone();
    let own = Tool::json("own", move |_, context: ToolContext| {
        kept.push(context.request_context);
        async { Ok::<Value, ToolError>(json!("seen")) }
    });
    let (parent, child) = (
        scripted(vec![to_explorer("go"), Script::new().call("own", json!({})), Script::from("ok")]),
        scripted(vec![Script::new().call("look", json!({})), Script::from("found")]),
    );
    let explorer = explorer(&child)
        .tool(look)
        .instructions_per(|context| context.get("who").map(|who| format!("You work for {who}.")));
    let lead = lead(&parent)
        .tool(own)
        .default_options(super::delegating(delegation))
        .agent("explorer", explorer.build().unwrap());
    let pair = pair_of(lead, parent, child).await;
    let mut options = RunOptions::default();
    options.request_context.set("who", "caller").set("gone", 1).set("mastra__threadId", "t").set("stays", 2);
    pair.generate_with("hi", options).await;
    let [inner, outer] = seen.take().try_into().unwrap();
    assert_eq!(inner.values(), json!({"who": "hook", "stays": 2}).as_object().unwrap());
    assert_eq!(outer.get("who"), Some(&json!("caller")));
    assert_eq!(outer.get("gone"), Some(&json!(1)));
    assert_eq!(spoken(&pair.child.requests()[0])[0], "system: You work for \"hook\".");
}

#[tokio::test(start_paused = true)]
async fn sub_078_a_filter_says_what_is_forwarded() {
    let delegation = Delegation::default().message_filter(|_| async { Ok(Vec::new()) });
    let pair = pair(vec![to_explorer("go"), Script::from("ok")], vec![Script::from("found")], delegation).await;
    pair.generate("hi").await;
    assert_eq!(spoken(&pair.child.requests()[0]), ["system: You explore.", "user: go"]);
}

#[tokio::test(start_paused = true)]
async fn sub_081_bail_ends_the_parents_loop_after_all_siblings() {
    let delegation = Delegation::default().on_delegation_complete(|done| async move {
        if done.tool_call_id == "c1" {
            done.bail();
        }
        Ok(CompleteDecision::default())
    });
    let both = Script::new().text("Both.").call_as("c1", "agent-explorer", r#"{"prompt":"a"}"#).call_as(
        "c2",
        "agent-explorer",
        r#"{"prompt":"b"}"#,
    );
    let slow = Script::new().wait(std::time::Duration::from_secs(5)).text("slow");
    let pair = pair(vec![both], vec![Script::from("fast"), slow], delegation).await;
    let output = pair.generate("hi").await;
    assert_eq!((output.text.as_str(), output.finish_reason), ("Both.", FinishReason::ToolCalls));
    assert_eq!(pair.parent.requested(), 1);
    let states: Vec<ToolState> = pair.calls().await.iter().map(|call| call.state).collect();
    assert_eq!(states, [ToolState::Result, ToolState::Result]);
}

#[tokio::test(start_paused = true)]
async fn sub_081_bail_may_cancel_the_siblings() {
    let delegation = Delegation::default().on_delegation_complete(|done| async move {
        if done.success {
            done.bail_and_cancel_siblings();
        }
        Ok(CompleteDecision::default())
    });
    let both = Script::new().call_as("c1", "agent-explorer", r#"{"prompt":"a"}"#).call_as(
        "c2",
        "agent-explorer",
        r#"{"prompt":"b"}"#,
    );
    let pair = pair(vec![both], vec![Script::from("fast"), Script::new().hang()], delegation).await;
    let output = pair.generate("hi").await;
    assert_eq!(output.finish_reason, FinishReason::ToolCalls);
    pair.child.until_cancelled(1).await;
}

#[tokio::test(start_paused = true)]
async fn sub_082_sub_084_feedback_is_for_the_next_turn_and_goes_with_bail() {
    let delegation = Delegation::default().on_delegation_complete(|done| async move {
        done.bail();
        Ok(CompleteDecision { feedback: Some("Ask two agents next time.".into()), result_text: None })
    });
    let pair = pair(vec![to_explorer("go"), Script::from("next")], vec![Script::from("found")], delegation).await;
    pair.generate("hi").await;
    let stored = pair.world.stored().await;
    let last = stored.last().unwrap();
    assert_eq!((last.role, last.joined_text().as_str()), (Role::Assistant, "Ask two agents next time."));
    let metadata = Value::Object(last.content.metadata.clone().unwrap());
    assert_eq!(metadata, json!({"mode": "stream", "completionResult": {"suppressFeedback": true}}));
    pair.generate("more").await;
    assert!(spoken(&pair.parent.requests()[1]).contains(&"user: Ask two agents next time.".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn sub_082_the_current_run_does_not_see_the_feedback() {
    let done = Seen::default();
    let decision = CompleteDecision { feedback: Some("hidden".into()), result_text: None };
    let delegation = completes(Delegation::default(), &done, decision);
    let pair = pair(vec![to_explorer("go"), Script::from("ok")], vec![Script::from("found")], delegation).await;
    let output = pair.generate("hi").await;
    assert_eq!(output.text, "ok");
    assert!(!spoken(&pair.parent.requests()[1]).iter().any(|line| line.contains("hidden")));
    assert_eq!(pair.world.texts().await.last().unwrap(), "hidden");
}

#[tokio::test(start_paused = true)]
async fn sub_083_a_result_text_replaces_the_text_even_if_it_is_empty() {
    for text in ["short", ""] {
        let done = Seen::default();
        let decision = CompleteDecision { feedback: None, result_text: Some(text.into()) };
        let delegation = completes(Delegation::default(), &done, decision);
        let pair =
            pair(vec![to_explorer("go"), Script::from("ok")], vec![Script::from("a long text")], delegation).await;
        pair.generate("hi").await;
        assert_eq!(pair.told(1), [text]);
        assert_eq!(pair.calls().await[0].result.clone().unwrap()["text"], text);
        assert_eq!(done.take()[0].result.text, "a long text");
    }
}

// SUB-086, cell by cell.

const GENERIC: &str = "[Agent:Parent] - Failed agent tool execution for explorer";

async fn with_strategy(delegation: Delegation, strategy: HookErrorStrategy, child: Script) -> (Pair, Vec<Value>) {
    let delegation = Delegation { hook_error_strategy: Some(strategy), ..delegation };
    let pair = pair(vec![to_explorer("go"), Script::from("ok")], vec![child], delegation).await;
    let options = RunOptions::default();
    let context = options.request_context.clone();
    let output = pair.generate_with("hi", options).await;
    assert_eq!(output.text, "ok", "the parent goes on");
    (pair, context.delegation_hook_errors())
}

fn recorded(hook: &str, errors: &[Value]) {
    assert_eq!(errors.len(), 1);
    let error = &errors[0];
    assert_eq!(
        (&error["hook"], &error["primitiveId"], &error["toolCallId"], &error["name"], &error["message"]),
        (&json!(hook), &json!("explorer-agent"), &json!("c1"), &json!("Error"), &json!("broken")),
    );
    assert!(error["runId"].is_string());
}

fn broken_start(done: &Seen<DelegationComplete>) -> Delegation {
    let delegation = Delegation::default().on_delegation_start(|_| async { Err(HookFailure::new("broken")) });
    completes(delegation, done, CompleteDecision::default())
}

#[tokio::test(start_paused = true)]
async fn sub_086_start_warn_runs_unchanged() {
    let done = Seen::default();
    let (pair, errors) = with_strategy(broken_start(&done), HookErrorStrategy::Warn, Script::from("found")).await;
    assert_eq!((pair.told(1), done.take().len()), (vec!["found".to_owned()], 1));
    recorded("onDelegationStart", &errors);
}

#[tokio::test(start_paused = true)]
async fn sub_086_sub_087_start_throw_does_not_run() {
    let done = Seen::default();
    let (pair, errors) = with_strategy(broken_start(&done), HookErrorStrategy::Throw, Script::from("found")).await;
    assert_eq!((pair.told(1), pair.child.requested(), done.take().len()), (vec![GENERIC.to_owned()], 0, 0));
    assert_eq!(pair.calls().await[0].state, ToolState::OutputError);
    recorded("onDelegationStart", &errors);
}

fn broken_filter(done: &Seen<DelegationComplete>) -> Delegation {
    let delegation = Delegation::default().message_filter(|_| async { Err(HookFailure::new("broken")) });
    completes(delegation, done, CompleteDecision::default())
}

#[tokio::test(start_paused = true)]
async fn sub_086_filter_warn_forwards_everything() {
    let done = Seen::default();
    let (pair, errors) = with_strategy(broken_filter(&done), HookErrorStrategy::Warn, Script::from("found")).await;
    assert_eq!(pair.child_asked(0), ["hi", "go"]);
    assert_eq!((pair.told(1), done.take().len()), (vec!["found".to_owned()], 1));
    recorded("messageFilter", &errors);
}

#[tokio::test(start_paused = true)]
async fn sub_086_filter_throw_fails_and_tells_the_complete_hook() {
    let done = Seen::default();
    let (pair, errors) = with_strategy(broken_filter(&done), HookErrorStrategy::Throw, Script::from("found")).await;
    assert_eq!((pair.told(1), pair.child.requested()), (vec![GENERIC.to_owned()], 0));
    let done = done.take();
    assert_eq!((done.len(), done[0].success, done[0].error.as_ref().unwrap().message.as_str()), (1, false, "broken"));
    recorded("messageFilter", &errors);
}

fn broken_complete(count: &Arc<Mutex<u32>>) -> Delegation {
    let count = count.clone();
    Delegation::default().on_delegation_complete(move |_| {
        *count.lock() += 1;
        async { Err(HookFailure::new("broken")) }
    })
}

#[tokio::test(start_paused = true)]
async fn sub_086_complete_warn_keeps_the_result() {
    let count = Arc::default();
    let (pair, errors) = with_strategy(broken_complete(&count), HookErrorStrategy::Warn, Script::from("found")).await;
    assert_eq!((pair.told(1), *count.lock()), (vec!["found".to_owned()], 1));
    recorded("onDelegationComplete", &errors);
}

#[tokio::test(start_paused = true)]
async fn sub_086_complete_throw_fails_although_the_sub_run_did_not() {
    let count = Arc::default();
    let (pair, errors) = with_strategy(broken_complete(&count), HookErrorStrategy::Throw, Script::from("found")).await;
    assert_eq!((pair.told(1), *count.lock()), (vec![GENERIC.to_owned()], 1));
    let call = pair.calls().await.remove(0);
    assert_eq!(call.state, ToolState::OutputError);
    assert_eq!(pair.sub_messages(&call.result.unwrap()).await.len(), 2, "the transcript stays");
    recorded("onDelegationComplete", &errors);
}

#[tokio::test(start_paused = true)]
async fn sub_086_complete_of_a_failure_shows_the_failure_whatever_the_strategy() {
    for strategy in [HookErrorStrategy::Warn, HookErrorStrategy::Throw] {
        let count = Arc::default();
        let child = Script::new().fail_with(400, "sub boom");
        let delegation = Delegation { hook_error_strategy: Some(strategy), ..broken_complete(&count) };
        let pair = pair(vec![to_explorer("go"), Script::from("ok")], vec![child], delegation).await;
        let (chunks, _) = pair.stream("hi").await;
        assert_eq!((pair.told(1), *count.lock()), (vec![GENERIC.to_owned()], 1));
        let error = chunks.iter().find(|chunk| chunk.kind() == "tool-error").unwrap();
        let error = serde_json::to_value(error).unwrap()["payload"]["error"].clone();
        assert_eq!(error["cause"]["message"], "sub boom");
        assert_eq!(error["details"]["hookError"]["message"], "broken");
    }
}

#[tokio::test(start_paused = true)]
async fn sub_085_a_panic_is_a_failure_and_parallel_delegations_lose_no_entry() {
    let delegation = Delegation::default().on_delegation_start(|_| async { panic!("broken") });
    let calls: Script =
        (0..8).fold(Script::new(), |script, n| script.call_as(&format!("c{n}"), "agent-explorer", r#"{"prompt":"a"}"#));
    let pair = pair(vec![calls, Script::from("ok")], vec![Script::from("x"); 8], delegation).await;
    let options = RunOptions::default();
    let context = options.request_context.clone();
    pair.generate_with("hi", options).await;
    let errors = context.delegation_hook_errors();
    assert_eq!(errors.len(), 8);
    assert!(errors.iter().all(|error| error["name"] == "Panic" && error["message"] == "broken"));
}

#[tokio::test(start_paused = true)]
async fn sub_070_the_calls_hooks_are_merged_with_the_agents() {
    let (started, done) = (Seen::default(), Seen::default());
    let base = completes(Delegation::default(), &done, CompleteDecision::default());
    let pair = pair(vec![to_explorer("go"), Script::from("ok")], vec![Script::from("found")], base).await;
    pair.generate_with("hi", super::delegating(starts(&started, StartDecision::proceed()))).await;
    assert_eq!((started.take().len(), done.take().len()), (1, 1));
}
