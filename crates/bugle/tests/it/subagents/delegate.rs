//! From subagent to tool and back: schema, result, context, isolation, budgets.

use std::sync::Arc;

use async_trait::async_trait;
use bugle::{
    Agent, RunOptions, ThreadKey, Tool,
    chunk::{FinishReason, Usage},
    json::{Value, json},
    message::{Role, ToolState},
    model::{Script, ScriptedModel, ToolChoice, ToolOutput},
    run::{ToolChoiceOption, ToolLiteral},
    subagent::{CompleteDecision, Delegation, SubAgent, SubRun, Task, ThreadScope},
    tool::{ToolContext, ToolError},
};
use parking_lot::Mutex;

use super::{delegating, explorer, input, lead, memory, outputs, pair, pair_of, scripted, spoken, to_explorer};
use crate::support::{builder, world_of};

fn grep() -> Tool {
    Tool::json("grep", |_, _: ToolContext| async { Ok::<Value, ToolError>(json!({"hits": 2})) })
}

#[tokio::test(start_paused = true)]
async fn sub_001_sub_020_sub_021_a_delegation_is_a_call_and_its_text_is_the_result() {
    let (parent, child) = (
        scripted(vec![to_explorer("Where is the token refreshed?"), Script::from("It is in auth.rs.")]),
        scripted(vec![
            Script::new().call_as("g1", "grep", r#"{"q":"refresh"}"#),
            Script::from("Token refresh is in auth.rs"),
        ]),
    );
    let explorer = explorer(&child).tool(grep()).build().unwrap();
    let pair = pair_of(lead(&parent).agent("explorer", explorer), parent, child).await;
    let output = pair.generate("Find it").await;
    assert_eq!(output.text, "It is in auth.rs.");
    assert_eq!(pair.told(1), ["Token refresh is in auth.rs"]);
    let calls = pair.calls().await;
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].state, calls[0].tool_name.as_str()), (ToolState::Result, "agent-explorer"));
    let result = calls[0].result.clone().unwrap();
    assert_eq!(result["text"], "Token refresh is in auth.rs");
    assert_eq!(result["finishReason"], "stop");
    assert!(result["usage"]["totalTokens"].as_u64().unwrap() > 0);
    assert_eq!(
        result["subAgentToolResults"],
        json!([{"toolName": "grep", "toolCallId": "g1", "args": {"q": "refresh"}, "result": {"hits": 2}}])
    );
    assert!(result["subAgentThreadId"].as_str().unwrap().starts_with("thread-"));
    assert_eq!(result["subAgentResourceId"], "user-explorer", "SUB-041");
    assert!(pair.world.bugle.agent("explorer-agent").is_err(), "SUB-008: it is not registered");
    assert_eq!(pair.sub_messages(&result).await.len(), 2, "SUB-008: and shares the parent's store");
    assert!(result.get("ref").is_none() && result.get("subAgentPendingToolCalls").is_none());
}

#[tokio::test(start_paused = true)]
async fn sub_130_a_delegation_that_has_ended_leaves_no_task() {
    const CALLS: usize = 8;
    let scripts = |calls: usize| (0..calls).map(|_| to_explorer("look")).chain([Script::from("done")]);
    let parent = scripted(scripts(1).chain(scripts(CALLS)).collect());
    let child = scripted((0..=CALLS).map(|_| Script::from("here")).collect());
    let explorer = explorer(&child).build().unwrap();
    let lead = lead(&parent).default_options(RunOptions { max_steps: Some(20), ..RunOptions::default() });
    let pair = pair_of(lead.agent("explorer", explorer), parent, child).await;
    let mut alive = Vec::new();
    for _ in 0..2 {
        assert_eq!(pair.generate("go").await.text, "done");
        // Everything that can end has.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        alive.push(tokio::runtime::Handle::current().metrics().num_alive_tasks());
    }
    assert_eq!(pair.child.requests().len(), CALLS + 1);
    assert_eq!(alive[0], alive[1]);
}

#[tokio::test(start_paused = true)]
async fn sub_002_sub_004_sub_009_sub_010_the_tool_is_offered_with_description_and_schema() {
    let (parent, child) = (scripted(vec![Script::from("ok")]), scripted(vec![]));
    let silent = Agent::builder("silent").model(Arc::new(child.clone())).build().unwrap();
    let lead = lead(&parent).agent("explorer", explorer(&child).build().unwrap()).agent("my tool", silent);
    let (warnings, _guard) = crate::support::warnings();
    let pair = pair_of(lead, parent, child).await;
    pair.generate("hi").await;
    let warned = warnings.containing("has no description");
    assert!(warned.len() == 1 && warned[0].contains("my tool"), "SUB-009: once, for the one without: {warned:?}");
    let tools = pair.parent.requests()[0].tools.clone();
    let told: Vec<_> = tools.iter().map(|tool| (tool.name.as_str(), tool.description.as_deref().unwrap())).collect();
    assert_eq!(told, [("agent-explorer", "Finds things."), ("agent-my_tool", "Agent: my tool")]);
    assert_eq!(tools[0].parameters["required"], json!(["prompt"]));
    assert_eq!(tools[0].parameters["additionalProperties"], false);
}

#[tokio::test(start_paused = true)]
async fn sub_003_keys_that_name_one_tool_fail_the_run_before_the_model_is_asked() {
    let (parent, child) = (scripted(vec![Script::from("ok")]), scripted(vec![]));
    let explorer = explorer(&child).build().unwrap();
    let lead = lead(&parent).agent("a b", explorer.clone()).agent("a_b", explorer);
    let pair = pair_of(lead, parent, child).await;
    let failed = pair.world.agent.generate(input("hi"), None, RunOptions::default()).await.unwrap_err();
    let bugle::Error::Run(error) = failed else { panic!("{failed}") };
    assert_eq!(error.id.as_deref(), Some("AGENT_TOOL_NAME_COLLISION"));
    assert_eq!(pair.parent.requested(), 0);
}

#[tokio::test(start_paused = true)]
async fn sub_005_an_agent_tool_replaces_a_tool_of_its_name() {
    let (parent, child) = (scripted(vec![to_explorer("go"), Script::from("ok")]), scripted(vec![Script::from("me")]));
    let own = Tool::json("agent-explorer", |_, _: ToolContext| async { Ok::<Value, ToolError>(json!("own")) });
    let lead = lead(&parent).tool(own).agent("explorer", explorer(&child).build().unwrap());
    let pair = pair_of(lead, parent, child).await;
    pair.generate("hi").await;
    assert_eq!(pair.told(1), ["me"]);
}

#[tokio::test(start_paused = true)]
async fn sub_006_active_tools_and_tool_choice_apply_to_agent_tools() {
    let (parent, child) = (scripted(vec![to_explorer("go"), Script::from("ok"), Script::from("ok")]), scripted(vec![]));
    let lead = lead(&parent).tool(grep()).agent("explorer", explorer(&child).build().unwrap());
    let pair = pair_of(lead, parent, child).await;
    let only = |name: &str| RunOptions { active_tools: Some(vec![name.to_owned()]), ..RunOptions::default() };
    pair.generate_with("hi", only("grep")).await;
    assert!(pair.told(1)[0].contains("\"agent-explorer\" not found"), "{:?}", pair.told(1));
    assert_eq!(pair.child.requested(), 0);
    let must = ToolChoiceOption::Tool { kind: ToolLiteral::Tool, tool_name: "agent-explorer".into() };
    pair.generate_with("hi", RunOptions { tool_choice: Some(must), ..only("agent-explorer") }).await;
    let requests = pair.parent.requests();
    let offered = |n: usize| requests[n].tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    assert_eq!((offered(0), offered(2)), (vec!["grep".to_owned()], vec!["agent-explorer".to_owned()]));
    assert_eq!(requests[2].tool_choice, ToolChoice::Tool("agent-explorer".into()));
}

#[tokio::test(start_paused = true)]
async fn sub_007_agents_are_made_for_each_run() {
    let (parent, child) = (scripted(vec![Script::from("none"), Script::from("one")]), scripted(vec![]));
    let explorer = explorer(&child).build().unwrap();
    let lead = lead(&parent).agents_per(move |context| match context.get("who")?.as_str()? {
        "nobody" => Some(Default::default()),
        _ => Some([("explorer".to_owned(), Arc::new(explorer.clone()) as _)].into_iter().collect()),
    });
    let pair = pair_of(lead, parent, child).await;
    let mut options = RunOptions::default();
    let failed = pair.world.agent.generate(input("hi"), None, options.clone()).await.unwrap_err();
    let bugle::Error::Run(error) = failed else { panic!("{failed}") };
    assert_eq!(error.id.as_deref(), Some("AGENT_GET_AGENTS_FUNCTION_EMPTY_RETURN"));
    options.request_context.set("who", "nobody");
    pair.generate_with("hi", options.clone()).await;
    options.request_context.set("who", "anna");
    pair.generate_with("hi", options).await;
    let offered: Vec<usize> = pair.parent.requests().iter().map(|request| request.tools.len()).collect();
    assert_eq!(offered, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn sub_012_a_thread_the_model_names_is_neither_read_nor_written() {
    let call =
        Script::new().call("agent-explorer", json!({"prompt": "go", "threadId": "victim", "resourceId": "user"}));
    let pair = pair(vec![call, Script::from("ok")], vec![Script::from("found")], Delegation::default()).await;
    pair.generate("hi").await;
    assert!(pair.world.storage.get_thread("victim").await.unwrap().is_none());
    let result = pair.calls().await[0].result.clone().unwrap();
    assert_ne!(result["subAgentThreadId"], "victim");
}

#[tokio::test(start_paused = true)]
async fn sub_013_wrong_input_is_an_error_the_model_can_read_and_nothing_runs() {
    let call = Script::new().call("agent-explorer", json!({"task": "go"}));
    let hooked = Delegation::default().on_delegation_complete(|_| async { panic!("called") });
    let pair = pair(vec![call, Script::from("ok")], vec![], hooked).await;
    let output = pair.generate("hi").await;
    assert!(pair.told(1)[0].contains("prompt: required, but missing"), "{:?}", pair.told(1));
    assert_eq!(pair.child.requested(), 0);
    assert_eq!(pair.calls().await[0].is_error, Some(true));
    assert_eq!(output.text, "ok");
}

#[tokio::test(start_paused = true)]
async fn sub_022_the_whole_payload_on_request() {
    let options = Delegation { include_sub_agent_tool_results_in_model_context: Some(true), ..Delegation::default() };
    let pair = pair(vec![to_explorer("go"), Script::from("ok")], vec![Script::from("found")], options).await;
    pair.generate("hi").await;
    let ToolOutput::Json(told) = outputs(&pair.parent.requests()[1])[0].clone() else { panic!("no JSON") };
    assert_eq!(told["text"], "found");
    assert!(told["subAgentThreadId"].is_string());
}

#[tokio::test(start_paused = true)]
async fn sub_023_a_later_turn_reads_the_same_short_text() {
    let scripts = vec![to_explorer("go"), Script::from("ok"), Script::from("again")];
    let pair = pair(scripts, vec![Script::from("found")], Delegation::default()).await;
    pair.generate("hi").await;
    pair.generate("more").await;
    assert_eq!(pair.told(2), ["found"]);
}

#[tokio::test(start_paused = true)]
async fn sub_024_a_sub_run_without_text_is_told_as_such() {
    let pair = pair(vec![to_explorer("go"), Script::from("ok")], vec![Script::from("  ")], Delegation::default()).await;
    pair.generate("hi").await;
    assert!(pair.told(1)[0].contains("without a text"), "{:?}", pair.told(1));
    let raw = pair.calls().await[0].result.clone().unwrap()["text"].clone();
    assert_eq!(raw.as_str().unwrap().trim(), "");
}

#[tokio::test(start_paused = true)]
async fn sub_030_sub_032_sub_033_sub_034_the_context_is_what_the_parents_model_saw_without_calls() {
    let scripts = vec![
        Script::new().text("Looking.").call_as("c1", "agent-explorer", r#"{"prompt":"first"}"#),
        Script::new().text("And now?").call_as("c2", "agent-explorer", r#"{"prompt":"second"}"#),
        Script::from("done"),
    ];
    let pair = pair(scripts, vec![Script::from("one"), Script::from("two")], Delegation::default()).await;
    pair.generate("Please find").await;
    let seen: Vec<_> = pair.child.requests().iter().map(spoken).collect();
    assert_eq!(seen[0], ["system: You explore.", "user: Please find", "user: first"]);
    assert_eq!(
        seen[1],
        ["system: You explore.", "user: Please find", "assistant: Looking.", "user: second"],
        "text of earlier turns stays, calls and results go, the parent's system message is not there"
    );
}

#[tokio::test(start_paused = true)]
async fn sub_031_sub_034_instructions_are_added_and_the_parents_only_on_request() {
    let call = Script::new().call("agent-explorer", json!({"prompt": "go", "instructions": "Be brief."}));
    let options = Delegation { include_parent_system: Some(true), ..Delegation::default() };
    let pair = pair(vec![call, Script::from("ok")], vec![Script::from("found")], options).await;
    pair.generate("hi").await;
    assert_eq!(
        spoken(&pair.child.requests()[0]),
        ["system: You explore.\n\nBe brief.", "system: You are plain.", "user: hi", "user: go"]
    );
}

#[tokio::test(start_paused = true)]
async fn sub_036_sub_097_the_parents_options_stay_with_the_parent() {
    let pair =
        pair(vec![to_explorer("go"), Script::from("ok")], vec![Script::from("found")], Delegation::default()).await;
    let options = RunOptions {
        model_settings: Some(serde_json::from_value(json!({"temperature": 0.5})).unwrap()),
        client_tools: [("open-tab".to_owned(), Default::default())].into_iter().collect(),
        max_steps: Some(2),
        ..RunOptions::default()
    };
    pair.generate_with("hi", options).await;
    let request = &pair.child.requests()[0];
    assert_eq!(request.settings.temperature, None);
    assert!(request.tools.is_empty(), "{:?}", request.tools);
}

#[tokio::test(start_paused = true)]
async fn sub_040_to_046_each_delegation_has_a_thread_of_its_own_with_prompt_and_answer_only() {
    let both = Script::new().call_as("c1", "agent-explorer", r#"{"prompt":"one"}"#).call_as(
        "c2",
        "agent-explorer",
        r#"{"prompt":"two"}"#,
    );
    let model = ScriptedModel::recording();
    let parent = scripted(vec![Script::from("earlier"), both, Script::from("ok")]);
    let pair = pair_of(lead(&parent).agent("explorer", explorer(&model).build().unwrap()), parent, model).await;
    pair.generate("before").await;
    pair.generate("hi").await;
    let threads = pair.threads_of("user-explorer").await;
    assert_eq!(threads.len(), 2);
    assert_eq!(pair.threads_of("user").await.len(), 1);
    for call in pair.calls().await {
        let result = call.result.unwrap();
        let stored = pair.sub_messages(&result).await;
        let roles: Vec<Role> = stored.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant]);
        assert_eq!(stored[0].joined_text(), call.args["prompt"].as_str().unwrap());
    }
    assert!(!pair.world.texts().await.iter().any(|text| text == "one"));
}

#[tokio::test(start_paused = true)]
async fn sub_041_without_a_parent_resource_each_delegation_has_one_of_its_own() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    let delegation = Delegation::default().on_delegation_complete(move |done| {
        kept.lock().push(done.result.sub_agent_resource_id);
        async { Ok(CompleteDecision::default()) }
    });
    let scripts = vec![to_explorer("one"), to_explorer("two"), Script::from("ok")];
    let pair = pair(scripts, vec![Script::from("a"), Script::from("b")], delegation).await;
    pair.world.agent.generate(input("hi"), None, RunOptions::default()).await.unwrap();
    let seen = seen.lock();
    assert!(seen.len() == 2 && seen.iter().all(|resource| !resource.is_empty()), "{seen:?}");
    assert_ne!(seen[0], seen[1]);
}

#[tokio::test(start_paused = true)]
async fn sub_045_memory_is_lent_for_the_delegation_only_and_not_at_all_on_request() {
    let scripts = vec![to_explorer("go"), Script::from("ok"), to_explorer("again"), Script::from("ok")];
    let child = vec![Script::from("a"), Script::from("b")];
    let pair = pair(scripts, child, Delegation::default()).await;
    pair.generate("hi").await;
    assert_eq!(pair.threads_of("user-explorer").await.len(), 1);
    let off = delegating(Delegation { inherit_memory: Some(false), ..Delegation::default() });
    pair.generate_with("hi", off).await;
    assert_eq!(pair.threads_of("user-explorer").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sub_045_a_loan_does_not_reach_grandchildren() {
    let (parent, child) = (
        scripted(vec![to_explorer("go"), Script::from("ok")]),
        scripted(vec![Script::new().call("agent-deep", json!({"prompt": "deeper"})), Script::from("found")]),
    );
    let deep = Agent::builder("deep").model(Arc::new(scripted(vec![Script::from("x")]))).build().unwrap();
    let lead = lead(&parent).agent("explorer", explorer(&child).agent("deep", deep).build().unwrap());
    let pair = pair_of(lead, parent, child).await;
    pair.generate("hi").await;
    assert_eq!(pair.threads_of("user-explorer").await.len(), 1);
    assert!(pair.threads_of("user-explorer-deep").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sub_060_sub_064_a_budget_ends_a_sub_run_that_counts_as_a_success() {
    let again = || Script::new().call("grep", json!({}));
    let call = |steps: Value| Script::new().call("agent-explorer", json!({"prompt": "go", "maxSteps": steps}));
    let (parent, child) = (
        scripted(vec![call(json!("4")), call(json!(9)), call(Value::Null), Script::from("ok")]),
        scripted((0..30).map(|_| again()).collect()),
    );
    let limited = RunOptions { max_steps: Some(6), ..RunOptions::default() };
    let explorer = explorer(&child).tool(grep()).default_options(limited).build().unwrap();
    let pair = pair_of(lead(&parent).agent("explorer", explorer), parent, child).await;
    let output = pair.generate("hi").await;
    assert_eq!(output.steps.len(), 4, "a delegation costs the parent one iteration (SUB-063)");
    let took: Vec<usize> = pair
        .calls()
        .await
        .iter()
        .map(|call| call.result.as_ref().unwrap()["subAgentToolResults"].as_array().unwrap().len())
        .collect();
    assert_eq!(took, [4, 6, 6], "asked for 4; 9 lowered to the subagent's own 6; its own 6");
    assert!(pair.told(1)[0].contains("tool-calls"), "{:?}", pair.told(1));
    let result = pair.calls().await[0].result.clone().unwrap();
    assert_eq!(result["finishReason"], json!(FinishReason::ToolCalls));
}

#[tokio::test(start_paused = true)]
async fn sub_154_usage_is_reported_beside_the_parents() {
    let usage = |total| Usage { total_tokens: Some(total), ..Usage::default() };
    let seven = |script: Script, reason| script.finish_with(reason, usage(7));
    let pair = pair(
        vec![seven(to_explorer("go"), FinishReason::ToolCalls), seven(Script::from("ok"), FinishReason::Stop)],
        vec![seven(Script::from("found"), FinishReason::Stop)],
        Delegation::default(),
    )
    .await;
    let (chunks, output) = pair.stream("hi").await;
    assert_eq!(output.usage.total_tokens, Some(14));
    assert_eq!(output.sub_agent_usage.unwrap().total_tokens, Some(7));
    let finish = serde_json::to_value(chunks.last().unwrap()).unwrap();
    assert_eq!(finish["payload"]["output"]["usage"]["totalTokens"], 14);
    assert_eq!(finish["payload"]["output"]["subAgentUsage"]["totalTokens"], 7);
    assert_eq!(output.text, "ok");
}

struct Echo;

#[async_trait]
impl SubAgent for Echo {
    fn id(&self) -> &'static str {
        "echo"
    }
    async fn run(&self, task: Task) -> SubRun {
        SubRun::text(format!("{} of {}", task.prompt, task.context.len()))
    }
}

#[tokio::test(start_paused = true)]
async fn sub_001_anything_can_be_delegated_to() {
    let parent = scripted(vec![Script::new().call("agent-echo", json!({"prompt": "say"})), Script::from("ok")]);
    let lead = builder("p", &parent).agent("echo", Echo).build().unwrap();
    let world = world_of(parent.clone(), [lead]).await;
    world.agent.generate(input("hi"), Some(&world.thread), RunOptions::default()).await.unwrap();
    assert_eq!(super::told(&parent.requests()[1]), ["say of 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_pinned_thread_is_remembered_across_delegations_and_runs() {
    let scripts = vec![to_explorer("one"), Script::from("ok"), to_explorer("two"), Script::from("ok")];
    let options = Delegation { thread_scope: Some(ThreadScope::ParentThread), ..Delegation::default() };
    let pair = pair(scripts, vec![Script::from("first"), Script::from("second")], options).await;
    pair.generate("hi").await;
    pair.generate("ho").await;
    let seen = spoken(&pair.child.requests()[1]);
    assert_eq!(seen[..3], ["system: You explore.", "user: one", "assistant: first"]);
    let threads = pair.threads_of("user-explorer").await;
    assert_eq!(threads.len(), 1);
    assert_eq!(threads[0].id, "thread-explorer");
    let key = ThreadKey::new("user-explorer", "thread-explorer");
    assert_eq!(pair.world.storage.recent_messages(&key, 10).await.unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_thread_for_the_run_is_kept_for_it_and_not_beyond() {
    let scripts =
        vec![to_explorer("one"), to_explorer("two"), Script::from("ok"), to_explorer("three"), Script::from("ok")];
    let options = Delegation { thread_scope: Some(ThreadScope::Run), ..Delegation::default() };
    let child = vec![Script::from("first"), Script::from("second"), Script::from("third")];
    let pair = pair(scripts, child, options).await;
    pair.generate("hi").await;
    pair.generate("ho").await;
    assert!(spoken(&pair.child.requests()[1]).contains(&"assistant: first".to_owned()));
    assert!(!spoken(&pair.child.requests()[2]).contains(&"assistant: first".to_owned()));
    assert_eq!(pair.threads_of("user-explorer").await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn sig_210_a_sub_run_takes_in_nothing_of_its_parents_thread() {
    let gate = bugle::model::Gate::new();
    let (parent, child) = (
        scripted(vec![to_explorer("look"), Script::from("done")]),
        scripted(vec![Script::new().call_as("g1", "grep", "{}").gate(&gate), Script::from("found")]),
    );
    let explorer = explorer(&child).tool(grep()).build().unwrap();
    let pair = pair_of(lead(&parent).agent("explorer", explorer), parent, child).await;
    let mut watcher = pair.world.watch().await;
    let run = pair.world.send("go").await.run_id.unwrap();
    gate.reached().await;
    let joined = pair.world.send("also").await;
    assert_eq!(joined.run_id.as_ref(), Some(&run));
    gate.open();
    watcher.until_end_of(&run).await;
    assert_eq!(pair.child_asked(0), ["go", "look"]);
    assert_eq!(pair.child_asked(1), ["go", "look"]);
    assert_eq!(pair.world.asked(1), ["go", "also"], "the parent takes it in once its tools have settled");
}

#[tokio::test(start_paused = true)]
async fn sub_166_one_subagent_serves_many_delegations_and_keeps_nothing() {
    let (parent, child) = (scripted(vec![to_explorer("go"), Script::from("ok")]), ScriptedModel::recording());
    let shared = explorer(&child).build().unwrap();
    let standalone = shared.clone();
    let lead = lead(&parent).agent("explorer", shared).memory(memory()).build().unwrap();
    let world = world_of(parent, [lead, standalone]).await;
    world.agent.generate(input("hi"), Some(&world.thread), RunOptions::default()).await.unwrap();
    let alone = world.bugle.agent("explorer-agent").unwrap();
    assert!(alone.agent().memory().is_none());
    let output = alone.generate(input("[[say alone]]"), None, RunOptions::default()).await.unwrap();
    assert_eq!(output.text, "alone");
    assert!(matches!(
        alone.generate(input("x"), Some(&world.thread), RunOptions::default()).await,
        Err(bugle::Error::NoMemory(_))
    ));
}
