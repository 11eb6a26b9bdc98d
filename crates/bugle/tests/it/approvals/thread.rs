//! A thread whose run waits: what is sent meanwhile, approvals over the subscription, its time.

use std::{sync::Arc, time::Duration};

use bugle::{
    Bugle, Error, RunOptions, ThreadKey,
    chunk::ChunkBody,
    json::json,
    model::{Script, ScriptedModel},
    processor::{Context, Hook, HookSet, Input, Outcome, Processor, ProcessorError},
    run::Decision,
    runtime::{Action, RunInput, ToolApproval},
};

use super::{Count, call_remove, done, remove, resumed, world};
use crate::{
    r#loop::input,
    support::{World, builder, world_of_two},
};

fn approve(id: &str) -> ToolApproval {
    ToolApproval { tool_call_id: Some(id.into()), approved: true, ..ToolApproval::default() }
}

#[tokio::test(start_paused = true)]
async fn sig_375_an_approval_is_seen_by_who_subscribes() {
    let count = Count::default();
    let world = world([call_remove("c1", "/a"), done()], &count).await;
    let mut watch = world.watch().await;
    let run_id = world.send("go").await.run_id.unwrap();
    watch.until("tool-call-approval").await;
    let accepted = world.agent.send_tool_approval(&world.thread, approve("c1")).await.unwrap();
    assert_eq!((&accepted.run_id, accepted.tool_call_id.as_deref()), (&run_id, Some("c1")));
    watch.until_end_of(&run_id).await;
    assert_eq!(watch.kinds().iter().filter(|kind| **kind == "start").count(), 1, "SIG-377");
    let after: Vec<&str> = watch.kinds().into_iter().skip_while(|kind| *kind != "tool-call-approval").skip(1).collect();
    assert_eq!(after[..3], ["tool-result", "step-finish", "step-start"]);
    let late = world.agent.send_tool_approval(&world.thread, approve("c1")).await.unwrap_err();
    assert!(matches!(late, Error::NoSuspendedThreadRun { .. }), "{late:?}");
    assert_eq!(late.id(), Some("AGENT_SEND_TOOL_APPROVAL_NO_ACTIVE_THREAD_RUN"));
    assert_eq!(count.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn sig_376_a_decline_gives_its_reason_and_data_comes_first() {
    let world = world([call_remove("c1", "/a"), done()], &Count::default()).await;
    let mut watch = world.watch().await;
    world.send("go").await;
    watch.until("tool-call-approval").await;
    let decline = ToolApproval { reason: Some("too risky".into()), ..ToolApproval::default() };
    let accepted = world.agent.send_tool_approval(&world.thread, decline).await.unwrap();
    assert_eq!(accepted.tool_call_id.as_deref(), Some("c1"), "the first that waits");
    let denied = watch.until("tool-output-denied").await;
    let denied = serde_json::to_value(&denied).unwrap();
    assert_eq!(denied["payload"]["approval"]["reason"], "too risky");
    watch.until("finish").await;

    let world = super::world([Script::new().call_as("c1", "ask", r#"{"q":"?"}"#), done()], &Count::default()).await;
    let mut watch = world.watch().await;
    world.send("go").await;
    watch.until("tool-call-suspended").await;
    let answer = ToolApproval { resume_data: Some(json!({"answer": "x"})), ..approve("c1") };
    world.agent.send_tool_approval(&world.thread, answer).await.unwrap();
    let result = serde_json::to_value(watch.until("tool-result").await).unwrap();
    assert_eq!(result["payload"]["result"]["answer"], "x");
}

#[tokio::test(start_paused = true)]
async fn sig_381_input_behind_a_suspended_run_waits_in_order_and_says_for_what() {
    let count = Count::default();
    let world = world([call_remove("c1", "/a"), done(), Script::new().text("queued answer")], &count).await;
    let mut watch = world.watch().await;
    let run_id = world.send("go").await.run_id.unwrap();
    watch.until("tool-call-approval").await;
    let one = world.send("one").await;
    assert_eq!((one.action, one.run_id.as_ref(), one.waiting_for), (Action::Deliver, Some(&run_id), Some("approval")));
    let waiting = watch.until("data-signal-waiting").await;
    let ChunkBody::Data(data) = &waiting.body else { panic!("no data: {waiting:?}") };
    assert_eq!(data.data, json!({"id": one.signal.id, "runId": run_id, "waitingFor": "approval"}));
    assert_eq!(data.transient, Some(true));
    let queued = world.queue("later").await;
    assert_eq!((queued.action, queued.waiting_for), (Action::Deliver, None));
    let two = world.send("two").await;
    assert_eq!(world.waiting().await, [one.signal.id, two.signal.id, queued.signal.id]);
    assert_eq!(world.model.requests().len(), 1, "SIG-104: no second run starts");
    world.agent.send_tool_approval(&world.thread, approve("c1")).await.unwrap();
    watch.until_end_of(&run_id).await;
    let kinds = watch.kinds_of(&run_id);
    let result = kinds.iter().position(|kind| *kind == "tool-result").unwrap();
    assert_eq!(
        kinds[result..result + 4],
        ["tool-result", "data-user-message", "data-user-message", "step-finish"],
        "SIG-206"
    );
    assert_eq!(world.asked(1), ["go", "one", "two"]);
    watch.until_end_of(&queued.run_id.unwrap()).await;
    assert_eq!(world.asked(2), ["go", "one", "two", "later"], "what is queued runs after it");
}

#[tokio::test(start_paused = true)]
async fn sig_107_another_agents_suspended_run_blocks_waking_and_lets_queue() {
    let model = ScriptedModel::with_responses([call_remove("c1", "/a"), done(), Script::new().text("other's")]);
    let count = Count::default();
    let agents =
        [builder("plain", &model).tool(remove(&count)).build().unwrap(), builder("other", &model).build().unwrap()];
    let world = crate::support::world_of(model, agents).await;
    let mut watch = world.watch().await;
    let run_id = world.send("go").await.run_id.unwrap();
    watch.until("tool-call-approval").await;
    let other = world.other();
    let blocked = crate::support::accepted(other.send_message(&world.thread, "hello").await.unwrap()).await;
    assert_eq!((blocked.action, blocked.run_id.as_ref()), (Action::Blocked, Some(&run_id)));
    let queued = crate::support::accepted(other.queue_message(&world.thread, "later").await.unwrap()).await;
    assert_eq!(queued.action, Action::Deliver);
    world.agent.send_tool_approval(&world.thread, approve("c1")).await.unwrap();
    watch.until_end_of(&queued.run_id.unwrap()).await;
    assert_eq!(world.texts().await.last().unwrap(), "other's");
}

#[tokio::test(start_paused = true)]
async fn sig_108_a_plain_run_does_not_wait_for_an_own_suspended_run() {
    let count = Count::default();
    let world = world([call_remove("c1", "/a"), Script::new().text("meanwhile"), done()], &count).await;
    let run_id = world.run("go").await.output.run_id;
    let beside = world.run("something else").await;
    assert_eq!(beside.output.text, "meanwhile");
    assert_eq!(world.agent.active_run_id(&world.thread), Some(run_id.clone()), "SIG-324: it waits still");
    let ran = resumed(&world.agent, &run_id, Decision::approve(None)).await;
    assert_eq!((ran.output.text.as_str(), count.get()), ("done", 1));
    assert_eq!(world.agent.active_run_id(&world.thread), None);
}

async fn world_for(ttl: Duration, scripts: impl IntoIterator<Item = Script>, count: &Count) -> World {
    let model = ScriptedModel::with_responses(scripts);
    let agent = builder("plain", &model).tool(remove(count)).build().unwrap();
    let storage: bugle::storage::SharedStorage = Arc::new(bugle::storage::MemoryStorage::new());
    let bugle = Bugle::builder().shared_storage(storage.clone()).suspended_ttl(ttl).agent(agent).build().await.unwrap();
    let agent = bugle.agent("plain").unwrap();
    World { bugle, agent, model, storage, thread: ThreadKey::new("user", "thread") }
}

#[tokio::test(start_paused = true)]
async fn sig_382_after_its_time_what_waits_behind_it_is_answered_and_it_can_still_be_resumed() {
    let count = Count::default();
    let scripts = [call_remove("c1", "/a"), Script::new().text("follow-up"), done()];
    let world = world_for(Duration::from_secs(60), scripts, &count).await;
    let mut watch = world.watch().await;
    let run_id = world.send("go").await.run_id.unwrap();
    watch.until("tool-call-approval").await;
    assert_eq!(world.send("still there?").await.action, Action::Deliver);
    let began = tokio::time::Instant::now();
    let finish = watch.until("finish").await;
    assert!(began.elapsed() >= Duration::from_secs(59), "{:?}", began.elapsed());
    assert_ne!(finish.run_id, Some(run_id.clone()), "a follow-up run has an id of its own");
    assert_eq!(world.texts().await.last().unwrap(), "follow-up");
    let ran = resumed(&world.agent, &run_id, Decision::approve(Some("c1"))).await;
    assert_eq!((ran.output.text.as_str(), count.get()), ("done", 1), "R39: from storage");
}

#[tokio::test(start_paused = true)]
async fn ruling_6_messages_of_an_approval_are_pending_input_of_the_run() {
    let count = Count::default();
    let world = world([call_remove("c1", "/a"), done()], &count).await;
    let run_id = world.run("go").await.output.run_id;
    let mut watch = world.watch().await;
    let approval = ToolApproval { messages: input("and tell me"), ..approve("c1") };
    let accepted = world.agent.send_tool_approval(&world.thread, approval).await.unwrap();
    assert_eq!(accepted.run_id, run_id, "SIG-380: the run that waits goes on");
    watch.until_end_of(&run_id).await;
    assert_eq!((world.asked(1), count.get()), (vec!["go".to_owned(), "and tell me".to_owned()], 1));
    assert_eq!(world.texts().await, ["go", "", "and tell me", "done"]);
}

#[derive(Debug)]
struct Guard;

#[async_trait::async_trait]
impl Processor for Guard {
    fn id(&self) -> &'static str {
        "guard"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input])
    }

    async fn process_input(&self, _: &mut Context<'_>, input: &mut Input) -> Outcome {
        if input.messages.iter().any(|message| message.joined_text() == "bad") {
            return Err(ProcessorError::tripwire("not allowed"));
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn ruling_34_messages_of_an_approval_pass_the_guards() {
    let count = Count::default();
    let model = ScriptedModel::with_responses([call_remove("c1", "/a"), done(), done()]);
    let agent = builder("plain", &model).tool(remove(&count)).input_processor(Guard).build().unwrap();
    let world = crate::support::world_of(model, [agent]).await;
    let run_id = world.run("go").await.output.run_id;
    let mut watch = world.watch().await;
    let mut messages = input("bad");
    messages.messages.extend(input("good").messages);
    let approval = ToolApproval { messages, ..approve("c1") };
    world.agent.send_tool_approval(&world.thread, approval).await.unwrap();
    watch.until("data-signal-rejected").await;
    watch.until_end_of(&run_id).await;
    assert_eq!((world.asked(1), count.get()), (vec!["go".to_owned(), "good".to_owned()], 1), "SIG-208");
    assert_eq!(world.texts().await, ["go", "", "bad", "good", "done"], "it is kept for people");
    let stored = world.stored().await;
    let blocked = stored.iter().find(|message| message.joined_text() == "bad").unwrap();
    assert_eq!(blocked.content.meta("blocked").unwrap()["reason"], "not allowed");
    world.run("more").await;
    assert_eq!(world.asked(2), ["go", "good", "more"], "left out of recall");
}

#[tokio::test(start_paused = true)]
async fn sig_378_a_run_whose_agent_is_not_here_blocks_nobody() {
    let count = Count::default();
    let first = world([call_remove("c1", "/a")], &count).await;
    let run_id = first.run("go").await.output.run_id;
    first.bugle.shutdown(Duration::ZERO).await;
    let model = ScriptedModel::with_responses([done()]);
    let other = builder("other", &model).build().unwrap();
    let bugle = Bugle::builder().shared_storage(first.storage.clone()).agent(other).build().await.unwrap();
    let agent = bugle.agent("other").unwrap();
    let world = World { bugle, agent, model, storage: first.storage.clone(), thread: first.thread.clone() };
    assert_eq!(world.send("hello").await.action, Action::Wake);
    assert_eq!(world.parked().await, [run_id], "it waits for its agent");
}

#[tokio::test(start_paused = true)]
async fn loop_110_a_run_that_cannot_be_read_stays_suspended() {
    let store = crate::faulty::Faulty::new();
    let count = Count::default();
    let world = super::world_again([call_remove("c1", "/a"), done()], &count, store.clone()).await;
    let run_id = world.run("go").await.output.run_id;
    // The caller's own look at it succeeds; the run's do not.
    store.fail_after("parked_run", 1, 2);
    let failed = world.agent.resume_stream(&run_id, Decision::approve(None), RunOptions::default()).await;
    assert!(matches!(failed, Err(Error::Storage(_))), "{failed:?}");
    let sent = world.send("are you there?").await;
    assert_eq!((sent.action, sent.run_id.as_ref()), (Action::Deliver, Some(&run_id)), "it waits behind the run");
    let ran = resumed(&world.agent, &run_id, Decision::approve(Some("c1"))).await;
    assert_eq!((ran.output.text.as_str(), count.get()), ("done", 1));
    assert_eq!(world.asked(1), ["go", "are you there?"]);
}

#[tokio::test(start_paused = true)]
async fn loop_007_a_run_id_that_waits_in_storage_is_taken() {
    let count = Count::default();
    let first = world([call_remove("c1", "/a")], &count).await;
    let run_id = first.run("go").await.output.run_id;
    first.bugle.shutdown(Duration::ZERO).await;
    let world = super::world_again([done()], &count, first.storage.clone()).await;
    let elsewhere = ThreadKey::new("mallory", "elsewhere");
    let options = || RunOptions { run_id: Some(run_id.clone()), ..RunOptions::default() };
    for thread in [Some(&elsewhere), None] {
        let taken = world.agent.stream(input("x"), thread, options()).await;
        assert!(matches!(taken, Err(Error::RunIdTaken { .. })), "{taken:?}");
    }
    assert_eq!(world.parked().await, [run_id]);
}

#[tokio::test(start_paused = true)]
async fn http_093_with_nothing_suspended_messages_go_on_as_a_run_of_their_own() {
    let world = world_of_two(ScriptedModel::with_responses([done()])).await;
    let approval = ToolApproval { messages: input("the result"), ..approve("c1") };
    let mut watch = world.watch().await;
    let accepted = world.agent.send_tool_approval(&world.thread, approval).await.unwrap();
    watch.until_end_of(&accepted.run_id).await;
    assert_eq!(accepted.tool_call_id.as_deref(), Some("c1"));
    let nothing = ToolApproval { messages: RunInput::default(), ..approve("c1") };
    let nothing = world.agent.send_tool_approval(&world.thread, nothing).await;
    assert!(matches!(nothing, Err(Error::NoSuspendedThreadRun { .. })), "{nothing:?}");
}

#[tokio::test(start_paused = true)]
async fn sig_330_who_subscribes_late_sees_the_suspended_run_from_its_start() {
    let world = world([call_remove("c1", "/a"), done()], &Count::default()).await;
    let run_id = world.run("go").await.output.run_id;
    let mut watch = world.watch().await;
    watch.until("tool-call-approval").await;
    assert_eq!(watch.kinds()[0], "start");
    world.agent.send_tool_approval(&world.thread, approve("c1")).await.unwrap();
    watch.until_end_of(&run_id).await;
    assert!(watch.kinds().contains(&"tool-result"));
}

#[tokio::test(start_paused = true)]
async fn loop_119_several_suspended_runs_need_the_call_to_be_named() {
    let world = world([call_remove("c1", "/a"), call_remove("c2", "/b"), done()], &Count::default()).await;
    let first = world.run("go").await.output.run_id;
    let second = world.run("go").await.output.run_id;
    let any = ToolApproval { approved: true, ..ToolApproval::default() };
    let unsure = world.agent.send_tool_approval(&world.thread, any).await.unwrap_err();
    let Error::AmbiguousSuspendedRuns { run_ids, .. } = &unsure else { panic!("{unsure:?}") };
    assert_eq!(run_ids.len(), 2);
    assert_eq!(unsure.id(), Some("AGENT_SEND_TOOL_APPROVAL_AMBIGUOUS_SUSPENDED_RUNS"));
    let accepted = world.agent.send_tool_approval(&world.thread, approve("c1")).await.unwrap();
    assert_eq!(accepted.run_id, first);
    assert_ne!(first, second);
    let target = world.agent.send_stream_resume(&world.thread, None, Decision::approve(None), RunOptions::default());
    let missing = target.await.unwrap_err();
    assert_eq!(missing.id(), Some("AGENT_SEND_STREAM_RESUME_MISSING_TARGET"), "LOOP-120");
}

#[tokio::test(start_paused = true)]
async fn sig_452_an_idle_suspended_thread_is_nobodys() {
    use bugle::storage::{Lease, LeaseClaim};
    let world = world([call_remove("c1", "/a"), done()], &Count::default()).await;
    let run_id = world.run("go").await.output.run_id;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let claim = LeaseClaim::new("somebody else", Duration::from_millis(10));
    let lease = world.storage.acquire_lease(&world.thread, &claim).await.unwrap();
    assert!(matches!(lease, Lease::Held { .. }), "{lease:?}");
    world.storage.release_lease(&world.thread, "somebody else", None).await.unwrap();
    let ran = resumed(&world.agent, &run_id, Decision::approve(None)).await;
    assert_eq!(ran.output.text, "done");
}
