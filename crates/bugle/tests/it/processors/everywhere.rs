//! What guards see: all that a prompt shows, all that an answer says, thoughts among it (PROC-051, PROC-055 d, PROC-074).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bugle::{
    Agent, Error, RunOptions, ThreadKey, Tool,
    chunk::FinishReason,
    json::{Value, json},
    memory::MemoryOptions,
    model::{ModelEvent, Script, ScriptedModel},
    processor::{
        Hook, Processors, SharedProcessor,
        builtin::{
            AgentsMd, BatchParts, Classifier, MessageHistory, OnMatch, OnOutputLimit, Preset, RegexFilter, Rule,
            Strategy, StreamErrorRetry, SystemPromptScrubber, TokenLimiter, preset,
        },
    },
    run::ClientTool,
    runtime::{ActiveBehavior, IdleBehavior, Message, RunInput},
    signal::{Attributes, SignalInput, StateInput},
    storage::NewThread,
};

use super::{Act, Spy};
use crate::{
    r#loop::{Ran, call, prompt, run_on, world_with},
    support::{World, builder, world_of},
};

const SECRETS: [&str; 2] = ["ann@example.com", "sk-abcdefghijklmnop1234"];

fn filter(on_match: OnMatch) -> RegexFilter {
    RegexFilter::new("secrets", vec![preset("email").unwrap(), preset("api-key").unwrap()], on_match)
}

fn holds_secret(value: &Value) -> bool {
    let text = value.to_string();
    SECRETS.iter().any(|secret| text.contains(secret))
}

fn attributes(value: &str) -> Attributes {
    [("from".to_owned(), json!(value))].into()
}

/// An agent that says what it reads, behind a guard of its input.
async fn guarded(on_match: OnMatch) -> World {
    let model = ScriptedModel::recording();
    let agent = builder("plain", &model).memory(MemoryOptions::last(9)).input_processor(filter(on_match));
    let world = world_of(model, [agent.build().unwrap()]).await;
    world.storage.create_thread(NewThread::of(&world.thread)).await.unwrap();
    world
}

/// A message, a notification and a state that carry a secret in an attribute.
async fn send_all(world: &World) {
    let quiet = || world.target_for(ActiveBehavior::Persist, IdleBehavior::Persist);
    let message = Message { attributes: Some(attributes(SECRETS[0])), ..Message::from("hello") };
    world.agent.send_message(quiet(), message).await.unwrap().persisted().await.unwrap();
    let state = StateInput { attributes: Some(attributes(SECRETS[1])), ..StateInput::snapshot("lane", "k", "open") };
    world.agent.send_state_signal(quiet(), state).await.unwrap();
    let mut watcher = world.watch().await;
    let notice =
        SignalInput { attributes: Some(attributes(SECRETS[0])), ..SignalInput::new("notification", "CI failed") };
    let sent = world.agent.send_signal(&world.thread, notice).await.unwrap();
    let run = crate::support::accepted(sent).await.run_id.unwrap();
    watcher.until_end_of(&run).await;
}

#[tokio::test(start_paused = true)]
async fn proc_102_guards_see_attributes_of_messages_states_and_notifications() {
    let world = guarded(OnMatch::Redact).await;
    send_all(&world).await;
    let asked = world.asked(0).join("\n");
    assert_eq!(asked.matches("from=\"[email]\"").count(), 2, "{asked}");
    assert_eq!(asked.matches("from=\"[api-key]\"").count(), 1, "{asked}");
    assert!(!holds_secret(&json!(world.stored().await)), "nor is it stored");
    let world = guarded(OnMatch::Block).await;
    send_all(&world).await;
    world.run("now").await;
    assert_eq!(world.model.requested(), 1, "the notification started a run that was stopped");
    assert_eq!(world.asked(0), ["now"]);
    assert_eq!(world.stored().await.iter().filter(|row| row.is_blocked()).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn proc_102_guards_see_calls_and_results_in_input_messages() {
    let messages = json!([
        {"role": "user", "content": "look it up"},
        {"role": "assistant", "content": [
            {"type": "reasoning", "text": format!("it is {}", SECRETS[0])},
            {"type": "tool-call", "toolCallId": "c1", "toolName": "find", "input": {"key": SECRETS[1]}},
        ]},
        {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c1", "toolName": "find",
            "output": {"type": "json", "value": {"list": [{"mail": SECRETS[0], SECRETS[0]: 1}]}}}]},
        {"role": "user", "content": "well?"},
    ]);
    let input = || RunInput::from_json(&messages).unwrap();
    let build = |on_match| {
        world_with(["ok"], move |agent| agent.memory(MemoryOptions::last(0)).input_processor(filter(on_match)))
    };
    let world = build(OnMatch::Redact).await;
    world.agent.generate(input(), None, RunOptions::default()).await.unwrap();
    let prompt = prompt(&world.model.requests()[0]);
    assert!(!holds_secret(&prompt), "{prompt}");
    assert!(prompt.to_string().contains("[email]") && prompt.to_string().contains("look it up"), "{prompt}");
    let world = build(OnMatch::Block).await;
    let output = world.agent.generate(input(), None, RunOptions::default()).await.unwrap();
    assert_eq!((output.finish_reason, world.model.requested()), (FinishReason::Tripwire, 0));
}

/// What a client answers to a stored call.
async fn answered(on_match: OnMatch) -> (World, bugle::RunOutput) {
    let scripts = [Script::new().call_as("c1", "place", "{}"), "there".into(), "again".into()];
    let world = world_with(scripts, |agent| agent.input_processor(filter(on_match))).await;
    let mut options = RunOptions::default();
    options.client_tools.insert("place".into(), ClientTool::default());
    world.run_with("where am I?", options.clone()).await;
    let result = json!([{"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c1", "toolName": "place",
        "output": {"type": "json", "value": {"who": SECRETS[0]}}}]}]);
    let result = RunInput::from_json(&result).unwrap();
    let output = world.agent.generate(result, Some(&world.thread), options).await.unwrap();
    (world, output)
}

#[tokio::test(start_paused = true)]
async fn proc_102_guards_see_what_a_client_answers_to_a_stored_call() {
    let (world, output) = answered(OnMatch::Redact).await;
    assert_eq!(output.text, "there");
    let asked = prompt(&world.model.requests()[1]);
    assert!(asked.to_string().contains("[email]") && !holds_secret(&asked), "{asked}");
    assert!(!holds_secret(&json!(world.stored().await)));
    let (world, output) = answered(OnMatch::Block).await;
    assert_eq!((output.finish_reason, world.model.requested()), (FinishReason::Tripwire, 1));
    world.run("and now?").await;
    let asked = prompt(&world.model.requests()[1]);
    assert!(asked.to_string().contains("rejected by secrets") && !holds_secret(&asked), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn proc_102_judges_see_attributes_and_results_as_one_text() {
    let found = r#"{"findings": [{"category": "email", "score": 0.9, "passages": ["ann@example.com"]}]}"#;
    let none = r#"{"findings": []}"#;
    let judge = ScriptedModel::with_responses([none, found]);
    let guard = Classifier::preset(Preset::Pii, Arc::new(judge.clone())).strategy(Strategy::Redact);
    let model = ScriptedModel::recording();
    let world = world_of(model.clone(), [builder("plain", &model).input_processor(guard).build().unwrap()]).await;
    let mut watcher = world.watch().await;
    let message = Message { attributes: Some(attributes(SECRETS[0])), ..Message::from("hello") };
    let sent = world.agent.send_message(&world.thread, message).await.unwrap();
    let run = crate::support::accepted(sent).await.run_id.unwrap();
    watcher.until_end_of(&run).await;
    assert_eq!(judge.requested(), 2, "the text, and what is beside it");
    assert_eq!(world.asked(0), ["<user from=\"[email]\">hello</user>"]);
}

fn thinks() -> Script {
    let pieces = ["write to ann@exam", "ple.com", " or sk-abcdefghij", "klmnop1234 or not"];
    let think = |text: &str| ModelEvent::ReasoningDelta { id: "r".into(), text: text.into() };
    pieces.into_iter().fold(Script::new(), |script, piece| script.emit(think(piece))).text("done")
}

fn everything(ran: &Ran, stored: &[bugle::message::StoredMessage]) -> Value {
    let steps: Vec<&str> = ran.output.steps.iter().map(|step| step.reasoning_text.as_str()).collect();
    json!([ran.chunks, stored, steps, ran.output.text])
}

#[tokio::test(start_paused = true)]
async fn proc_074_reasoning_is_redacted_in_the_stream_and_at_rest() {
    let world = world_with([thinks()], |agent| agent.output_processor(filter(OnMatch::Redact))).await;
    let ran = world.run("hi").await;
    let said: String =
        ran.all("reasoning-delta").iter().map(|chunk| chunk["payload"]["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(said, "write to [email] or [api-key] or not");
    assert_eq!(ran.output.steps[0].reasoning_text, said);
    assert_eq!(world.answer_parts().await[0]["reasoning"], said);
    let kinds = ran.kinds();
    let last = kinds.iter().rposition(|kind| *kind == "reasoning-delta").unwrap();
    assert!(last < kinds.iter().position(|kind| *kind == "reasoning-end").unwrap(), "{kinds:?}");
    let all = everything(&ran, &world.stored().await);
    assert!(!all.to_string().contains("ann@") && !all.to_string().contains("sk-abc"), "{all}");
    let world = world_with([thinks()], |agent| agent.output_processor(filter(OnMatch::Block))).await;
    let ran = world.run("hi").await;
    assert_eq!(ran.payload("tripwire")["metadata"], json!({"rules": ["email", "api-key"]}));
    assert!(!everything(&ran, &world.stored().await).to_string().contains("ann@"));
    // Instructions, too.
    let script = Script::new().think("First: never tell anybody the code of the safe, hm.").text("Ok.");
    let world = world_with([script], |agent| {
        agent
            .instructions("Never tell anybody the code of the safe.")
            .output_processor(SystemPromptScrubber { words: 5, ..SystemPromptScrubber::default() })
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!(ran.output.steps[0].reasoning_text, "First: [instructions] hm.");
    assert!(!everything(&ran, &world.stored().await).to_string().contains("anybody"));
}

#[tokio::test(start_paused = true)]
async fn proc_052_arguments_of_calls_are_judged_by_those_that_block_before_the_tool_runs() {
    for (on_match, runs, reason) in
        [(OnMatch::Block, 0, FinishReason::Tripwire), (OnMatch::Redact, 1, FinishReason::Stop)]
    {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let tool = Tool::json("mail", move |input: Value, _| {
            let counted = counted.clone();
            async move {
                assert_eq!(input["to"], SECRETS[0], "tools get their arguments as they are");
                counted.fetch_add(1, Ordering::SeqCst);
                Ok(json!("sent"))
            }
        });
        let script = Script::new().call("mail", json!({"to": SECRETS[0]}));
        let world =
            world_with([script, "done".into()], |agent| agent.tool(tool).output_processor(filter(on_match))).await;
        let ran = world.run("hi").await;
        assert_eq!((count.load(Ordering::SeqCst), ran.output.finish_reason), (runs, reason), "{on_match:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn proc_001_a_processor_in_a_list_where_it_never_works_is_refused() {
    let agent = || Agent::builder("a").model(Arc::new(ScriptedModel::new()));
    let refused = |built: Result<Agent, Error>| match built {
        Err(Error::Configuration(message)) => message,
        other => panic!("{other:?}"),
    };
    let message = refused(agent().output_processor(AgentsMd::new(".")).build());
    assert!(
        message.ends_with("none of its hooks ever runs in outputProcessors; it belongs to inputProcessors"),
        "{message}"
    );
    let message = refused(agent().input_processor(SystemPromptScrubber::default()).build());
    assert!(
        message.contains("system-prompt-scrubber") && message.ends_with("belongs to outputProcessors"),
        "{message}"
    );
    let message = refused(agent().error_processor(filter(OnMatch::Block)).build());
    assert!(message.ends_with("it belongs to inputProcessors or outputProcessors"), "{message}");
    assert!(agent().input_processor(BatchParts::new(2)).build().is_err());
    // PROC-060: failed requests are told to every list. PROC-001: without hooks it is ignored. Parts stand where they may.
    let retry = || StreamErrorRetry::default();
    let fine = agent().input_processor(retry()).output_processor(Spy::new("idle", &[])).error_processor(retry());
    assert!(fine.output_processor(MessageHistory::new()).build().is_ok());
    assert!(agent().output_processor(Spy::new("x", &[Hook::Input, Hook::ApiError])).build().is_ok());
    assert!(Processors::new([Arc::new(Spy::new("idle", &[])) as SharedProcessor]).is_ok());
}

#[tokio::test(start_paused = true)]
async fn proc_074_the_stream_shows_what_is_stored_of_a_match_longer_than_max_length() {
    let note = || vec![Rule::new("note", "(?s)<secret>.*?</secret>", 128).unwrap()];
    let body = "word ".repeat(100);
    let script = || Script::new().text(&format!("a <secret>{body}</secret> b"));
    let world =
        world_with([script()], |agent| agent.output_processor(RegexFilter::new("notes", note(), OnMatch::Redact)))
            .await;
    let ran = world.run("hi").await;
    assert_eq!(crate::support::text(&ran.chunks), "a [note] b");
    assert_eq!(world.answer_parts().await[0]["text"], "a [note] b");
    let world =
        world_with([script()], |agent| agent.output_processor(RegexFilter::new("notes", note(), OnMatch::Block))).await;
    let ran = world.run("hi").await;
    assert_eq!(ran.payload("tripwire")["metadata"], json!({"rules": ["note"]}));
    assert_eq!(crate::support::text(&ran.chunks), "a ");
}

#[tokio::test(start_paused = true)]
async fn proc_100_the_limit_of_an_answer_does_not_depend_on_its_chunks() {
    let text = "w1 w2 w3 w4 w5 w6 w7 w8 w9";
    let one = || Script::new().emit(ModelEvent::TextDelta { id: "t".into(), text: text.into() });
    let words = || Script::new().text(text);
    let letters = || {
        text.chars()
            .fold(Script::new(), |script, c| script.emit(ModelEvent::TextDelta { id: "t".into(), text: c.into() }))
    };
    for script in [one(), words(), letters()] {
        let world = world_with([script], |agent| agent.output_processor(TokenLimiter::new(5))).await;
        let ran = world.run("hi").await;
        assert_eq!(ran.output.text, "w1 w2 w3 w4 w5 w6 w7", "five tokens are twenty letters");
        assert_eq!(crate::support::text(&ran.chunks), ran.output.text);
        assert_eq!(ran.all("data-token-limit-reached").len(), 1);
    }
}

fn taken_back(ran: &Ran, processor: &str) {
    let kinds = ran.kinds();
    let at = |kind: &str| kinds.iter().position(|known| *known == kind).unwrap_or_else(|| panic!("{kind}: {kinds:?}"));
    assert!(at("text-delta") < at("data-retract") && at("data-retract") < at("tripwire"), "{kinds:?}");
    let retract = &ran.all("data-retract")[0]["data"];
    let shown = &ran.all("step-start")[0]["payload"]["messageId"];
    assert_eq!((&retract["messageId"], &retract["processorId"]), (shown, &json!(processor)));
    assert_eq!(retract["reason"], ran.payload("tripwire")["reason"]);
    assert_eq!(ran.all("data-retract").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn proc_055_text_of_a_rejected_answer_is_taken_back_before_the_tripwire() {
    let found = r#"{"findings": [{"category": "hate", "score": 0.9}]}"#;
    let judge = Classifier::preset(Preset::Moderation, Arc::new(ScriptedModel::with_responses([found])));
    let world = world_with(["bad text"], |agent| agent.output_processor(judge)).await;
    taken_back(&world.run("hi").await, "moderation");
    let limiter = TokenLimiter::new(2).on_output_limit(OnOutputLimit::Abort);
    let world = world_with(["one two three four"], |agent| agent.output_processor(limiter)).await;
    taken_back(&world.run("hi").await, "token-limiter");
    let spy = Spy::new("last", &[Hook::OutputResult]).acting(Hook::OutputResult, 0, Act::Trip);
    let world = world_with(["bad text"], |agent| agent.output_processor(spy)).await;
    taken_back(&world.run("hi").await, "last");
    // Nothing was shown: nothing is taken back. A call that is on record stays.
    let spy = Spy::new("first", &[Hook::InputStep]).acting(Hook::InputStep, 0, Act::Trip);
    let world = world_with(["never"], |agent| agent.input_processor(spy)).await;
    assert!(world.run("hi").await.all("data-retract").is_empty());
    let spy = Spy::new("tools", &[Hook::ToolResult]).acting(Hook::ToolResult, 0, Act::Trip);
    let world = world_with([call(1)], |agent| agent.tool(crate::r#loop::echo()).output_processor(spy)).await;
    assert!(
        run_on(&world.agent, "hi", Some(&ThreadKey::new("ann", "2")), RunOptions::default())
            .await
            .all("data-retract")
            .is_empty()
    );
}
