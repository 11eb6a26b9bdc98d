//! The runtime on a file: what was accepted is answered once and in order, whatever became of the process (SIG-502).

use std::{
    future::pending,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bugle::{
    Agent, Bugle, MessageId, Tool,
    json::json,
    memory::MemoryOptions,
    message::StoredMessage,
    model::{Gate, Script, ScriptedModel},
    runtime::{Action, Delivery, Message, SubscribeOptions},
    storage::Storage,
    tool::ToolContext,
};

use crate::support::{key, open};

/// A process: all its tasks die with it, wherever they stand.
fn process() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn bugle(path: &Path, model: &ScriptedModel, tool: Option<Tool>) -> Bugle {
    let mut agent =
        Agent::builder("plain").model(Arc::new(model.clone())).max_retries(0).memory(MemoryOptions::last(50));
    if let Some(tool) = tool {
        agent = agent.tool(tool);
    }
    Bugle::builder().storage(open(path)).agent(agent.build().unwrap()).build().await.unwrap()
}

fn message(id: &str) -> Message {
    Message { id: Some(id.into()), ..Message::from(id) }
}

async fn stored(path: &Path) -> Vec<StoredMessage> {
    open(path).recent_messages(&key("t"), u32::MAX).await.unwrap()
}

fn texts(stored: &[StoredMessage]) -> Vec<String> {
    stored.iter().map(StoredMessage::joined_text).collect()
}

/// Reads until so many runs have ended; gives their ids.
async fn ended(bugle: &Bugle, runs: usize, go: &Gate) -> Vec<String> {
    let agent = bugle.agent("plain").unwrap();
    let mut watching = agent.subscribe(&key("t"), SubscribeOptions::default()).await.unwrap();
    go.open();
    let mut ended = Vec::new();
    while ended.len() < runs {
        let Some(Delivery::Chunk(chunk)) = watching.next().await else { panic!("the stream ended") };
        if chunk.chunk.ends_run() {
            assert_eq!(chunk.chunk.kind(), "finish", "{:?}", chunk.chunk);
            ended.push(chunk.chunk.run_id.as_ref().unwrap().to_string());
        }
    }
    ended
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// All tasks are dropped where they stand.
    Killed,
    /// Stopped without waiting for anything.
    Stopped,
    /// Runs may go on to their end; what is queued stays.
    Drained,
}

fn a_queue_of_three_survives(end: End) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("first ").gate(&gate).text("answer")]);
    let first = process();
    let expected = first.block_on(async {
        let bugle = bugle(&path, &model, None).await;
        let agent = bugle.agent("plain").unwrap();
        let mut runs = Vec::new();
        let mut woken = agent.send_message(&key("t"), message("wake")).await.unwrap();
        runs.push(woken.accepted().await.unwrap().run_id.unwrap().to_string());
        gate.reached().await;
        for id in ["q1", "q2", "q3"] {
            let mut queued = agent.queue_message(&key("t"), message(id)).await.unwrap();
            let outcome = queued.accepted().await.unwrap();
            assert_eq!(outcome.action, Action::Deliver);
            runs.push(outcome.run_id.unwrap().to_string());
        }
        match end {
            End::Killed => {}
            End::Stopped => bugle.shutdown(Duration::ZERO).await,
            End::Drained => {
                bugle.drain();
                let refused = agent.send_message(&key("t"), message("too late")).await.unwrap_err();
                assert!(matches!(refused, bugle::Error::Draining));
                gate.open();
                bugle.shutdown(Duration::from_secs(60)).await;
            }
        }
        runs
    });
    first.shutdown_background();

    let go = Gate::new();
    let finished = usize::from(end == End::Drained);
    let answers = ["answer 1", "answer 2", "answer 3", "answer 4"].into_iter().skip(finished);
    let scripts: Vec<Script> = answers.map(|text| Script::new().gate(&go).text(text)).collect();
    let again = ScriptedModel::with_responses(scripts);
    let second = process();
    second.block_on(async {
        let bugle = bugle(&path, &again, None).await;
        let runs = ended(&bugle, 4 - finished, &go).await;
        assert_eq!(runs, expected[finished..], "{end:?}: the same runs, in order");
        bugle.shutdown(Duration::from_secs(10)).await;
        let first_answer = if finished == 1 { "first answer" } else { "answer 1" };
        let stored = stored(&path).await;
        assert_eq!(
            texts(&stored),
            ["wake", first_answer, "q1", "answer 2", "q2", "answer 3", "q3", "answer 4"],
            "{end:?}"
        );
        assert_eq!(again.requested(), 4 - finished);
        let store = open(&path);
        assert!(store.inbox(&key("t")).await.unwrap().is_empty());
        assert!(store.runs(&key("t")).await.unwrap().is_empty());
    });
}

#[test]
fn sig_258_sig_502_a_queue_of_three_survives_a_process_that_is_killed() {
    a_queue_of_three_survives(End::Killed);
}

#[test]
fn sig_502_a_queue_of_three_survives_a_process_that_is_stopped() {
    a_queue_of_three_survives(End::Stopped);
}

#[test]
fn sig_502_a_process_that_drains_starts_nothing_and_leaves_the_queue() {
    a_queue_of_three_survives(End::Drained);
}

#[test]
fn loop_255_a_tool_that_was_started_is_not_run_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let calls = Arc::new(AtomicUsize::new(0));
    let began = Arc::new(tokio::sync::Notify::new());
    let tool = || {
        let (calls, began) = (calls.clone(), began.clone());
        Tool::json("pay", move |_, _: ToolContext| {
            calls.fetch_add(1, Ordering::SeqCst);
            began.notify_one();
            pending()
        })
    };
    let model = ScriptedModel::with_responses([Script::new().call("pay", json!({"amount": 5}))]);
    let first = process();
    first.block_on(async {
        let bugle = bugle(&path, &model, Some(tool())).await;
        let agent = bugle.agent("plain").unwrap();
        let mut woken = agent.send_message(&key("t"), message("pay!")).await.unwrap();
        woken.accepted().await.unwrap();
        began.notified().await;
        let mut steering = agent.send_message(&key("t"), message("and then?")).await.unwrap();
        steering.accepted().await.unwrap();
    });
    first.shutdown_background();

    let go = Gate::new();
    let again = ScriptedModel::with_responses([Script::new().gate(&go).text("I do not know whether it was paid.")]);
    let second = process();
    second.block_on(async {
        let bugle = bugle(&path, &again, Some(tool())).await;
        ended(&bugle, 1, &go).await;
        bugle.shutdown(Duration::from_secs(10)).await;
        let stored = stored(&path).await;
        let placed: Vec<&MessageId> = stored.iter().map(|message| &message.id).collect();
        assert_eq!(placed.iter().filter(|id| id.as_str() == "and then?").count(), 1);
        let asked = serde_json::to_string(&again.requests()[0].prompt).unwrap();
        assert!(asked.contains("outcome unknown after a restart"), "{asked}");
        assert!(asked.contains("and then?"));
    });
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
