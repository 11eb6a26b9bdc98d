//! The contract every store fulfils. Call [`run_all`] with a factory of empty stores.
//!
//! Every assertion names the requirement it checks.

mod inbox;
mod messages;
mod notifications;
mod parked;
mod state;
mod threads;

use std::{future::Future, pin::Pin, sync::Arc};

use crate::{
    id::{MessageId, ThreadKey},
    json::Object,
    message::{Role, StoredMessage},
    signal::{Contents, Signal, SignalType},
    storage::{InboxEntry, InputMode, NewThread, SharedStorage, Storage, StorageError},
    time::Timestamp,
};

/// What a check answers; panics where the contract is broken.
pub type Checked = Result<(), StorageError>;

type Check = (&'static str, fn(SharedStorage) -> Pin<Box<dyn Future<Output = Checked> + Send>>);

macro_rules! checks {
    ($($module:ident::$name:ident),* $(,)?) => {
        vec![$((stringify!($name), |store| Box::pin($module::$name(store)))),*]
    };
}

/// Runs every check, each on a store of its own that `factory` makes empty.
///
/// # Panics
/// If the store breaks the contract.
pub async fn run_all<F, Made>(factory: F)
where
    F: Fn() -> Made,
    Made: Future<Output = SharedStorage>,
{
    let checks: Vec<Check> = checks![
        threads::mem_014_sto_051_create_keeps_owner_and_creation_time,
        threads::mem_015_updates_merge_and_none_is_lost,
        threads::mem_016_threads_are_paged,
        threads::mem_017_metadata_filters,
        threads::mem_019_sto_059_deletion_leaves_nothing,
        threads::mem_020_clones,
        threads::mem_022_transfer,
        threads::mem_023_runtime_keys_stay,
        threads::mem_031_title_only_if_empty,
        threads::mem_104_resource_changes_merge,
        threads::r39_text_comes_back_whole,
        state::state_026_tracking_is_a_patch_of_one_lane,
        state::state_081_a_lane_changes_only_as_expected,
        state::state_034_what_is_taken_back_leaves_its_lane,
        state::state_077_a_clone_has_lanes_of_its_own,
        state::prov_007_sto_058_thread_state_is_kept_by_kind,
        messages::mem_018_saving_touches_the_thread,
        messages::mem_043_sto_050_saving_again_replaces_and_keeps_the_time,
        messages::mem_044_messages_of_others_are_not_overwritten,
        messages::mem_045_messages_need_a_home,
        messages::mem_048_deletion,
        messages::mem_056_order_is_time_then_id,
        messages::mem_066_newest_page_oldest_first,
        messages::mem_067_pages_and_filters,
        messages::mem_068_includes_are_not_counted,
        messages::mem_070_cursors,
        messages::mem_071_other_resources_are_refused,
        messages::mem_072_hidden_signals_leave_full_pages,
        inbox::sig_500_entries_wait_in_order,
        inbox::sig_501_commit_places_input_with_its_message,
        inbox::sig_503_repeated_acceptance,
        inbox::sig_364_ownership_is_checked_before_every_write,
        inbox::sig_290_removal_names_what_was_there,
        inbox::ruling_23_waiting_input_is_edited_and_moved,
        inbox::ruling_33_rollback_returns_input_in_order,
        inbox::ruling_4_stale_epochs_are_refused,
        inbox::commits_are_whole_or_nothing,
        inbox::commits_create_their_thread,
        inbox::run_records_live_until_the_run_ends,
        inbox::r1_a_run_record_belongs_to_its_thread,
        inbox::r11_a_thread_at_work_is_not_transferred,
        inbox::leases_have_one_owner_and_growing_epochs,
        inbox::sig_405_the_lease_goes_with_the_last_commit_if_nothing_waits,
        inbox::sig_502_a_new_owner_is_told_what_was_left,
        inbox::ruling_25_acceptance_takes_the_lease,
        inbox::sig_502_unfinished_work_is_found,
        inbox::sig_170_overlapping_acceptances_keep_their_order,
        notifications::notif_004_110_111_records_are_stored_listed_and_updated,
        notifications::notif_030_031_033_records_of_one_key_merge,
        notifications::notif_035_parallel_records_of_one_key_are_one,
        notifications::notif_060_due_records_come_in_order,
        notifications::notif_075_claims_have_one_holder,
        notifications::notif_075_parallel_claims_take_each_record_once,
        notifications::notif_097_pages_follow_a_cursor_and_113_searches_are_literal,
        notifications::ruling_33_a_rollback_makes_notifications_pending_again,
        notifications::notif_018_what_is_taken_back_is_pending_again,
        notifications::notif_114_what_another_resource_waits_for_stays,
        notifications::prov_003_very_many_things_are_asked_for_at_once,
        notifications::prov_003_014_subscriptions_are_kept_and_polled_by_one,
    ];
    run(checks, factory).await;
}

/// As [`run_all`], for the part of the contract about parked runs.
///
/// # Panics
/// If the store breaks the contract.
pub async fn run_parked<F, Made>(factory: F)
where
    F: Fn() -> Made,
    Made: Future<Output = SharedStorage>,
{
    let checks: Vec<Check> = checks![
        parked::loop_100_a_parked_run_is_its_pair,
        parked::loop_116_of_two_who_go_on_one_does,
        parked::loop_118_parked_runs_are_listed_newest_first,
        parked::loop_121_giving_up_deletes_the_pair,
        parked::mem_019_a_deleted_thread_has_no_parked_run,
        parked::runs_without_a_thread_are_parked,
        parked::loop_007_nobody_elses_parked_run_is_overwritten,
    ];
    run(checks, factory).await;
}

async fn run<F, Made>(checks: Vec<Check>, factory: F)
where
    F: Fn() -> Made,
    Made: Future<Output = SharedStorage>,
{
    for (name, check) in checks {
        let store = factory().await;
        if let Err(error) = check(Arc::clone(&store)).await {
            panic!("{name} on {}: {error:?}", store.describe());
        }
    }
}

fn key() -> ThreadKey {
    ThreadKey::new("ann", "t1")
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_767_225_600_000 + millis)
}

fn object(value: serde_json::Value) -> Object {
    match value {
        serde_json::Value::Object(object) => object,
        other => panic!("not an object: {other}"),
    }
}

fn new_thread(id: &str, resource: &str) -> NewThread {
    NewThread { id: Some(id.into()), resource_id: resource.into(), ..NewThread::default() }
}

/// A message as stores give it back.
fn message(id: &str, millis: i64) -> StoredMessage {
    let mut message = StoredMessage::text(id.into(), Role::User, format!("text of {id}"), at(millis)).on(&key());
    message.kind = Some("v2".into());
    message
}

fn ids(messages: &[StoredMessage]) -> Vec<&str> {
    messages.iter().map(|message| message.id.as_str()).collect()
}

fn signal(id: &str, text: &str) -> Signal {
    Signal {
        id: id.into(),
        signal_type: SignalType::User,
        tag_name: "user".into(),
        contents: Contents::Text(text.into()),
        attributes: None,
        metadata: None,
        provider_options: None,
        created_at: at(0),
        accepted_at: Some(at(1)),
        transient: false,
    }
}

fn entry(id: &str) -> InboxEntry {
    InboxEntry {
        signal: signal(id, &format!("says {id}")),
        thread: key(),
        agent_id: "helper".into(),
        mode: InputMode::Queue,
        run_id: format!("run-of-{id}").into(),
        options: serde_json::json!({"maxSteps": 3}),
        queue_owner_id: None,
        attempts: 0,
        position: 0,
    }
}

fn entry_ids(entries: &[InboxEntry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.signal.id.as_str()).collect()
}

fn message_ids(ids: &[&str]) -> Vec<MessageId> {
    ids.iter().map(|id| MessageId::from(*id)).collect()
}

async fn with_thread(store: &dyn Storage) -> Checked {
    store.create_thread(new_thread("t1", "ann")).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::storage::{MemoryStorage, SharedStorage};

    #[tokio::test]
    async fn memory_fulfils_the_contract() {
        super::run_all(|| async { Arc::new(MemoryStorage::new()) as SharedStorage }).await;
        super::run_parked(|| async { Arc::new(MemoryStorage::new()) as SharedStorage }).await;
    }
}
