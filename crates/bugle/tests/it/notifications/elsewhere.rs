//! Threads that another living process owns (NOTIF-082).

use std::time::Duration;

use bugle::{model::ScriptedModel, storage::LeaseClaim};

use super::{event, pass, record, world};

#[tokio::test(start_paused = true)]
async fn notif_082_a_thread_that_another_process_owns_uses_up_no_attempts() {
    let world = world(ScriptedModel::recording()).await;
    let claim = LeaseClaim::new("somebody else", Duration::from_secs(3600));
    world.storage.acquire_lease(&world.thread, &claim).await.unwrap();
    let mut ids = Vec::new();
    for priority in ["low", "medium", "high", "urgent"] {
        ids.push(world.agent.send_notification(event(priority, "CI failed")).await.unwrap().record.id);
    }
    // A long run: five failures would have taken less than ten minutes.
    pass(1200).await;
    for id in &ids {
        let waiting = record(&world.storage, id).await;
        assert_eq!((waiting.status.as_str(), waiting.delivery_attempts), ("pending", 0), "{waiting:?}");
        assert!(waiting.last_delivery_error.unwrap().contains("owned by another process"));
        assert!(waiting.deliver_at.is_some() || waiting.summary_at.is_some(), "it is due again");
    }
    world.storage.release_lease(&world.thread, "somebody else", None).await.unwrap();
    pass(120).await;
    for (id, (is_full, is_summarised)) in ids.iter().zip([(false, true), (false, true), (true, true), (true, false)]) {
        let told = record(&world.storage, id).await;
        assert_eq!(
            (told.status == "delivered", told.summary_signal_id.is_some()),
            (is_full, is_summarised),
            "{told:?}"
        );
        assert_eq!(told.delivery_attempts, 0);
    }
}
