//! Notifications whose signal is taken back before a run has it (NOTIF-018).

use bugle::{
    MessageId,
    model::{Gate, Script, ScriptedModel},
    notification::NotificationOptions,
    runtime::{AbortOptions, CancelSelector},
};

use super::{event, pass, record, world_with};
use crate::support::World;

/// A run that works, an urgent notification for it, and the signal that waits.
async fn waiting(options: NotificationOptions) -> (World, Gate, String, MessageId) {
    let gate = Gate::new();
    let script = Script::new().text("one").gate(&gate);
    let model = ScriptedModel::with_responses([script, "told".into(), "and more".into()]);
    let world = world_with(model, options, |agent| agent).await;
    world.send("hi").await;
    gate.reached().await;
    let told = world.agent.send_notification(event("urgent", "CI failed")).await.unwrap().record;
    assert_eq!(told.status, "delivered");
    let signal = told.delivered_signal_id.unwrap();
    assert_eq!(world.waiting().await, std::slice::from_ref(&signal));
    (world, gate, told.id, signal)
}

async fn shown(world: &World) -> usize {
    world.texts().await.iter().filter(|text| *text == "CI failed").count()
}

#[tokio::test(start_paused = true)]
async fn notif_018_what_is_cancelled_or_cleared_is_pending_again() {
    for clears in [false, true] {
        let (world, gate, id, signal) = waiting(NotificationOptions::builder().dispatch(false).build()).await;
        if clears {
            let options = AbortOptions { clear_pending_signals: true, ..AbortOptions::default() };
            assert!(world.agent.abort_thread(&world.thread, options).await.unwrap());
        } else {
            let which = CancelSelector::Signals(vec![signal.clone()]);
            assert_eq!(world.agent.cancel_queued(&world.thread, which).await.unwrap(), [signal]);
        }
        let taken_back = record(&world.storage, &id).await;
        assert_eq!(
            (taken_back.status.as_str(), &taken_back.delivered_signal_id, taken_back.delivered_at),
            ("pending", &None, None),
            "cleared: {clears}"
        );
        gate.open();
        pass(5).await;
        assert_eq!(shown(&world).await, 0, "cleared: {clears}");
        let report = world.bugle.dispatch_notifications(10).await.unwrap();
        assert_eq!((report.claimed, report.delivered.len()), (0, 0), "who stopped it wants quiet: cleared: {clears}");
    }
}

#[tokio::test(start_paused = true)]
async fn notif_018_what_is_taken_back_waits_in_the_inbox_and_wakes_nobody() {
    let (world, gate, id, signal) = waiting(NotificationOptions::default()).await;
    let which = CancelSelector::Signals(vec![signal]);
    assert_eq!(world.agent.cancel_queued(&world.thread, which).await.unwrap().len(), 1);
    gate.open();
    pass(300).await;
    assert_eq!((record(&world.storage, &id).await.status.as_str(), shown(&world).await), ("pending", 0));
    assert_eq!(world.model.requested(), 1);
}
