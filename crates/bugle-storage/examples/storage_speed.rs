//! How long an acceptance and a commit take: `cargo run --release -p bugle-storage --example storage_speed [DIRECTORY]`.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use bugle::{
    id::ThreadKey,
    message::{Role, StoredMessage},
    storage::{
        Accept, Commit, InboxEntry, InputMode, LeaseClaim, NewThread, RunChange, RunRecord, Storage, StorageError,
    },
    time::Timestamp,
};
use bugle_storage::libsql::{LibSql, LibSqlOptions, Synchronous};

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| std::env::temp_dir().display().to_string());
    let directory = Path::new(&directory).join(format!("bugle-speed-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let measured = runtime.block_on(measure(&directory));
    std::fs::remove_dir_all(&directory)?;
    measured
}

async fn measure(directory: &Path) -> Result<(), Failed> {
    for synchronous in [Synchronous::Normal, Synchronous::Full] {
        let path = directory.join(format!("{synchronous:?}.db"));
        let store = LibSqlOptions::builder().url(path.display().to_string()).synchronous(synchronous).build().open()?;
        report(&format!("{synchronous:?}: 1 caller"), &store, "alone", 1, 2000).await?;
        report(&format!("{synchronous:?}: 16 callers"), &store, "group", 16, 1000).await?;
        store.close().await;
    }
    Ok(())
}

/// Each caller accepts an input and commits it with its message and the run's record, `rounds` times, on a thread of its own.
#[allow(clippy::print_stdout)] // It is what the program is for.
async fn report(what: &str, store: &LibSql, name: &str, callers: usize, rounds: usize) -> Result<(), Failed> {
    let mut tasks = Vec::new();
    let begin = Instant::now();
    for caller in 0..callers {
        let (store, thread) = (store.clone(), ThreadKey::new("ann", format!("{name}-{caller}")));
        tasks.push(tokio::spawn(async move { caller_rounds(&store, thread, rounds).await }));
    }
    let (mut accept, mut commit, mut recent) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for task in tasks {
        let times = task.await??;
        accept += times[0];
        commit += times[1];
        recent += times[2];
    }
    let count = (callers * rounds) as f64;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / count;
    let wall = begin.elapsed().as_secs_f64() * 1e6 / count;
    println!(
        "{what}: accept {:.1} µs, commit {:.1} µs, recall of 10 {:.1} µs; {wall:.1} µs of wall time for the three",
        micros(accept),
        micros(commit),
        micros(recent)
    );
    Ok(())
}

async fn caller_rounds(store: &LibSql, thread: ThreadKey, rounds: usize) -> Result<[Duration; 3], StorageError> {
    let new = NewThread { id: Some(thread.thread_id.to_string()), resource_id: "ann".into(), ..NewThread::default() };
    store.create_thread(new).await?;
    let (mut accept, mut commit, mut recent) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for round in 0..rounds {
        let id = format!("{}-{round}", thread.thread_id);
        let begin = Instant::now();
        let claim = LeaseClaim::new(store.owner(), Duration::from_secs(30));
        let entries = vec![entry(&thread, &id)];
        store
            .accept(Accept {
                entries,
                thread: thread.clone(),
                claim: Some(claim),
                check_only: false,
                create_thread: false,
            })
            .await?;
        accept += begin.elapsed();

        let begin = Instant::now();
        let message =
            StoredMessage::text(id.as_str().into(), Role::Signal, "How is the weather in Oslo?", Timestamp::now());
        let record = RunRecord {
            run_id: format!("run-{}", thread.thread_id).into(),
            thread: thread.clone(),
            agent_id: "helper".into(),
            snapshot: serde_json::json!({"step": round, "usage": {"inputTokens": 10, "outputTokens": 20}}),
            updated_at: Timestamp::now(),
        };
        let step = Commit {
            consumed: vec![id.as_str().into()],
            messages: vec![message],
            run: RunChange::Save(record),
            ..Commit::new(thread.clone(), 1)
        };
        store.commit(step).await?;
        commit += begin.elapsed();

        let begin = Instant::now();
        store.recent_messages(&thread, 10).await?;
        recent += begin.elapsed();
    }
    Ok([accept, commit, recent])
}

fn entry(thread: &ThreadKey, id: &str) -> InboxEntry {
    let signal = bugle::Signal {
        id: id.into(),
        signal_type: bugle::signal::SignalType::User,
        tag_name: "user".into(),
        contents: "How is the weather in Oslo?".into(),
        attributes: None,
        metadata: None,
        provider_options: None,
        created_at: Timestamp::now(),
        accepted_at: Some(Timestamp::now()),
        transient: false,
    };
    InboxEntry {
        signal,
        thread: thread.clone(),
        agent_id: "helper".into(),
        mode: InputMode::Steer,
        run_id: "run-1".into(),
        options: serde_json::Value::Null,
        queue_owner_id: None,
        attempts: 0,
        position: 0,
    }
}
