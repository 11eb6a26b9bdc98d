//! Races of SIG §21 that need the loop. Others are beside the thread's machine, or with what they race against.

use std::time::Duration;

use bugle::{
    ThreadKey,
    model::{Gate, Script, ScriptedModel},
    runtime::Action,
};

use crate::support::{accepted, agent, message, world, world_on};

#[tokio::test(start_paused = true)]
async fn r01_two_wakes_are_one_run() {
    let store = crate::faulty::Faulty::new();
    let model = ScriptedModel::with_responses(["answer"]);
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let hold = store.hold("accept");
    let mut first = world.agent.send_message(&world.thread, "one").await.unwrap();
    let mut second = world.agent.send_message(&world.thread, "two").await.unwrap();
    hold.open();
    let (first, second) = (first.accepted().await.unwrap(), second.accepted().await.unwrap());
    assert_eq!((first.action, second.action), (Action::Wake, Action::Deliver));
    assert_eq!(first.run_id, second.run_id);
    watcher.until("finish").await;
    assert_eq!(world.model.requested(), 1);
    assert_eq!(world.asked(0), ["one", "two"]);
}

#[tokio::test(start_paused = true)]
async fn r05_input_after_the_last_look_gets_a_follow_up_run() {
    let store = crate::faulty::Faulty::new();
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let run = world.send("one").await.run_id.unwrap();
    gate.reached().await;
    // The run writes its end: it has looked for the last time.
    let hold = store.hold("commit");
    gate.open();
    hold.reached().await;
    let late = world.send("two").await;
    assert_eq!((late.action, late.run_id.as_ref()), (Action::Deliver, Some(&run)));
    hold.open();
    watcher.until_end_of(&run).await;
    let end = watcher.until("finish").await;
    assert_ne!(end.run_id.as_ref(), Some(&run), "SIG-155: the echo's run is authoritative");
    assert_eq!(world.texts().await, ["one", "a", "two", "b"]);
    assert_eq!(watcher.echoes(), ["one", "two"]);
}

#[tokio::test(start_paused = true)]
async fn r07_input_against_the_first_content_is_taken_in_once_either_way() {
    // Wherever it falls, it is either an interrupt or a boundary.
    for turns in 0..40 {
        let gate = Gate::new();
        let model = ScriptedModel::with_responses([
            Script::new().think("hm").gate(&gate).text("a b c d"),
            "second".into(),
            "third".into(),
        ]);
        let world = world(model).await;
        let mut watcher = world.watch().await;
        let run = world.send("one").await.run_id.unwrap();
        gate.reached().await;
        gate.open();
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        world.send("two").await;
        watcher.until_end_of(&run).await;
        if watcher.echoes().len() == 1 {
            watcher.until("finish").await;
        }
        assert_eq!(watcher.echoes(), ["one", "two"], "after {turns} turns");
        assert_eq!(world.model.requested(), 2, "after {turns} turns");
        assert_eq!(world.asked(1), ["one", "two"], "after {turns} turns");
        let kept = world.texts().await;
        let interrupted = world.model.cancelled() == 1;
        assert_eq!(kept.contains(&"a b c d".to_owned()), !interrupted, "after {turns} turns: {kept:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn r25_queued_input_against_the_end_of_a_run_is_never_stranded() {
    for turns in 0..60 {
        let world = world(ScriptedModel::with_responses(["one", "two"])).await;
        let mut watcher = world.watch().await;
        world.send("first").await;
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        let queued = world.queue("second").await.run_id.unwrap();
        watcher.until_end_of(&queued).await;
        assert_eq!(world.texts().await, ["first", "one", "second", "two"], "after {turns} turns");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sig_451_sig_454_everything_accepted_is_placed_once_under_load() {
    const SENDERS: usize = 8;
    const EACH: usize = 40;
    let model = ScriptedModel::new();
    let world = std::sync::Arc::new(
        world_on(model.clone(), [agent("plain", &model)], std::sync::Arc::new(bugle::storage::MemoryStorage::new()))
            .await,
    );
    let mut watcher = world.watch().await;
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..SENDERS {
        let world = world.clone();
        senders.spawn(async move {
            for n in 0..EACH {
                let message = message(&format!("{sender}-{n}"));
                let sent = if n % 3 == 0 {
                    world.agent.queue_message(&world.thread, message).await
                } else {
                    world.agent.send_message(&world.thread, message).await
                };
                accepted(sent.unwrap()).await;
                if n % 7 == 0 {
                    world.agent.abort_thread(&world.thread, Default::default()).await.unwrap();
                }
            }
        });
    }
    senders.join_all().await;
    let mut echoed = std::collections::HashSet::new();
    while echoed.len() < SENDERS * EACH {
        watcher.next().await;
        let ids = watcher.echoed();
        watcher.chunks.clear();
        for id in ids {
            assert!(echoed.insert(id.clone()), "{id} was echoed twice");
        }
    }
    let stored = world.stored().await;
    let placed: Vec<_> = stored.iter().filter(|message| echoed.contains(&message.id)).collect();
    assert_eq!(placed.len(), SENDERS * EACH);
    for sender in 0..SENDERS {
        for queued in [true, false] {
            let of_sender = placed.iter().filter_map(|message| {
                let (from, n) = message.id.as_str().split_once('-')?;
                let n: usize = n.parse().ok()?;
                (from == sender.to_string() && n.is_multiple_of(3) == queued).then_some(n)
            });
            let order: Vec<usize> = of_sender.collect();
            assert!(!queued || order.is_sorted(), "SIG-163: {order:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sig_509_input_that_meets_the_end_of_an_idle_thread_is_not_lost() {
    let world = world(ScriptedModel::new()).await;
    for n in 0..50_u64 {
        // The actor ends 30 s after its last work; this comes around that moment.
        let thread = ThreadKey::new("user", "same");
        let outcome = accepted(world.agent.send_message(&thread, n.to_string().as_str()).await.unwrap()).await;
        assert_eq!(outcome.action, Action::Wake, "{n}");
        tokio::time::sleep(Duration::from_millis(29_990 + n)).await;
    }
    let stored = world.storage.recent_messages(&ThreadKey::new("user", "same"), u32::MAX).await.unwrap();
    assert_eq!(stored.len(), 100);
}
