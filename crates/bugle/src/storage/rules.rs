//! The rules of storage that need no store: merging, filters, ownership, cloning, sameness of signals.
//!
//! Every backend uses them, so that all of them decide alike.

use serde_json::Value;

use crate::{
    id::MessageId,
    json::Object,
    message::{Part, Resource, Role, StoredMessage, Thread},
    signal::{ContentPart, Contents, LaneChange, Signal, lane_signals, patch_lanes, tracked_lanes},
    storage::{
        Accept, CloneThread, ClonedThread, Commit, IncludeMessage, LeaseClaim, MessageQuery, MetadataChange, NewThread,
        ResourceChange, StorageError, ThreadQuery, ThreadUpdate,
    },
    time::Timestamp,
};

/// The metadata keys of a thread that a replacing caller cannot touch (HTTP-153).
const OWNED_KEYS: [&str; 2] = ["mastra", "workingMemory"];

/// Refuses a resource that does not own the thread (MEM-013, SIG-363). A thread without resource is anyone's.
pub fn check_owner(thread: &Thread, given: Option<&str>) -> Result<(), StorageError> {
    let given = given.unwrap_or_default();
    if thread.resource_id.is_empty() || thread.resource_id == given {
        return Ok(());
    }
    Err(StorageError::ThreadOwnership {
        thread: thread.id.clone(),
        owner: thread.resource_id.clone(),
        given: given.to_owned(),
    })
}

/// Refuses to overwrite a message of another thread or resource (MEM-044).
pub fn check_message_owner(
    id: &MessageId,
    stored: (&str, Option<&str>),
    new: (&str, Option<&str>),
) -> Result<(), StorageError> {
    let same_resource = match stored.1 {
        None | Some("") => true,
        Some(owner) => new.1 == Some(owner),
    };
    if stored.0 == new.0 && same_resource { Ok(()) } else { Err(StorageError::MessageOwnership { id: id.clone() }) }
}

/// The thread a message names, and its resource; `thread_owner` looks up the thread's resource (MEM-045).
pub fn check_message_home(
    message: &StoredMessage,
    thread_owner: impl FnOnce(&str) -> Result<Option<String>, StorageError>,
) -> Result<&str, StorageError> {
    let Some(thread) = message.thread_id.as_deref().filter(|id| !id.is_empty()) else {
        return Err(StorageError::Invalid(format!("message {} names no thread; set threadId", message.id)));
    };
    if message.id.is_empty() {
        return Err(StorageError::Invalid("a message has an empty id".into()));
    }
    let Some(owner) = thread_owner(thread)? else {
        return Err(StorageError::NotFound { what: "thread", id: thread.to_owned() });
    };
    if message.resource_id.as_deref().is_none_or(str::is_empty) && !owner.is_empty() {
        return Err(StorageError::Invalid(format!("message {} names no resource; set resourceId", message.id)));
    }
    Ok(thread)
}

/// The thread as it is to be written (MEM-014).
pub fn create_or_update_thread(
    existing: Option<Thread>,
    new: NewThread,
    now: Timestamp,
) -> Result<Thread, StorageError> {
    let Some(mut thread) = existing else {
        return Ok(Thread {
            id: new.id.unwrap_or_else(|| MessageId::fresh().to_string()),
            resource_id: new.resource_id,
            title: new.title.unwrap_or_default(),
            metadata: new.metadata,
            created_at: now,
            updated_at: now,
        });
    };
    check_owner(&thread, Some(&new.resource_id))?;
    if let Some(title) = new.title {
        thread.title = title;
    }
    if let Some(metadata) = new.metadata {
        change_metadata(&mut thread.metadata, MetadataChange::Merge(metadata));
    }
    thread.updated_at = now.max(thread.updated_at);
    Ok(thread)
}

/// What a run start does to an existing thread: keys it brings are merged in if they differ (MEM-012). `true` if it did.
pub fn touch_existing_thread(thread: &mut Thread, new: &NewThread, now: Timestamp) -> Result<bool, StorageError> {
    check_owner(thread, Some(&new.resource_id))?;
    let Some(given) = &new.metadata else { return Ok(false) };
    let same = |(key, value): (&String, &Value)| {
        key == "mastra" || thread.metadata.as_ref().and_then(|m| m.get(key)) == Some(value)
    };
    if given.iter().all(same) {
        return Ok(false);
    }
    change_metadata(&mut thread.metadata, MetadataChange::Merge(given.clone()));
    thread.updated_at = now.max(thread.updated_at);
    Ok(true)
}

/// Changes a thread in place (MEM-015, MEM-031).
pub fn update_thread(thread: &mut Thread, update: ThreadUpdate, now: Timestamp) {
    if let Some(title) = update.title
        && (!update.title_if_empty || thread.title.is_empty())
    {
        thread.title = title;
    }
    change_metadata(&mut thread.metadata, update.metadata);
    thread.updated_at = now.max(thread.updated_at);
}

/// Changes the tracking of lanes in a thread; `false`, and nothing, if one is not as expected (STATE-026).
pub fn track_lanes(thread: &mut Thread, changes: &[LaneChange], now: Timestamp) -> bool {
    let changed = patch_lanes(&mut thread.metadata, changes);
    if changed {
        thread.updated_at = now.max(thread.updated_at);
    }
    changed
}

/// The signals among these rows that are states of a lane and were blocked by a guard: no lane keeps them (STATE-034).
pub fn blocked_states<'a>(rows: impl IntoIterator<Item = &'a StoredMessage>) -> Vec<MessageId> {
    let is_state = |row: &&StoredMessage| {
        let signal = row.content.meta("signal").filter(|_| row.role == Role::Signal && row.is_blocked());
        signal.is_some_and(|signal| signal.pointer("/metadata/state").is_some())
    };
    rows.into_iter().filter(is_state).map(|row| row.id.clone()).collect()
}

/// Takes signals out of the lanes of their thread; `signals` are the thread's signals, as far as they are known. `false` if no
/// lane had any of them.
pub fn untrack(thread: &mut Thread, gone: &[MessageId], signals: &[StoredMessage], now: Timestamp) -> bool {
    let changes: Vec<LaneChange> = tracked_lanes(thread)
        .into_iter()
        .filter_map(|(lane, tracking)| {
            let rows = lane_signals(signals, &lane, &thread.id);
            let without = tracking.without(gone, &rows, now)?;
            Some(LaneChange { lane, expected: Some(tracking), tracking: Some(without) })
        })
        .collect();
    !changes.is_empty() && track_lanes(thread, &changes, now)
}

/// How many of a thread's newest messages are looked through for what a lane had before ([`untrack`]).
pub const LANE_ROWS: u32 = 500;

/// Whether a lane of the thread has any of these signals.
pub fn tracks(thread: &Thread, ids: &[MessageId]) -> bool {
    tracked_lanes(thread).iter().any(|(_, tracking)| {
        let named = tracking.last_signal_id.iter().chain(&tracking.last_snapshot_signal_id);
        named.chain(tracking.active_copies.iter().map(|copy| &copy.id)).any(|id| ids.contains(id))
    })
}

/// Refuses thread state that the reference cannot read (STO-079).
pub fn check_thread_state(value: &Value) -> Result<(), StorageError> {
    if value.is_object() || value.is_array() {
        return Ok(());
    }
    Err(StorageError::Invalid("thread state must be an object or a list".into()))
}

fn change_metadata(metadata: &mut Option<Object>, change: MetadataChange) {
    match change {
        MetadataChange::Keep => {}
        MetadataChange::Merge(mut given) => {
            given.shift_remove("mastra");
            metadata.get_or_insert_default().extend(given);
        }
        MetadataChange::Replace(mut given) => {
            let mut old = metadata.take().unwrap_or_default();
            for key in OWNED_KEYS {
                given.shift_remove(key);
                if let Some(value) = old.shift_remove(key) {
                    given.insert(key.to_owned(), value);
                }
            }
            *metadata = Some(given);
        }
        MetadataChange::Own(given) => {
            let target = metadata.get_or_insert_default();
            for (key, value) in given {
                if value.is_null() {
                    target.shift_remove(&key);
                } else {
                    target.insert(key, value);
                }
            }
        }
    }
}

/// Changes a resource in place (MEM-101, MEM-104).
pub fn change_resource(resource: &mut Resource, change: ResourceChange, now: Timestamp) -> Result<(), StorageError> {
    match change {
        ResourceChange::WorkingMemory(text) => resource.working_memory = text,
        ResourceChange::MergeWorkingMemory(change) => {
            let mut target = match resource.working_memory.as_deref().map(str::trim) {
                None | Some("") => Object::new(),
                Some(text) => serde_json::from_str(text).map_err(|_| {
                    StorageError::Invalid(format!(
                        "the working memory of resource {} is not a JSON object; replace it instead of merging",
                        resource.id
                    ))
                })?,
            };
            deep_merge(&mut target, change);
            resource.working_memory = Some(Value::Object(target).to_string());
        }
        ResourceChange::Metadata(change) => resource.metadata.get_or_insert_default().extend(change),
    }
    resource.updated_at = now.max(resource.updated_at);
    Ok(())
}

/// A resource nobody has written yet.
pub fn new_resource(id: &str, now: Timestamp) -> Resource {
    Resource { id: id.to_owned(), working_memory: None, metadata: None, created_at: now, updated_at: now }
}

fn deep_merge(target: &mut Object, change: Object) {
    for (key, value) in change {
        match (target.get_mut(&key), value) {
            (_, Value::Null) => {
                target.shift_remove(&key);
            }
            (Some(Value::Object(inner)), Value::Object(change)) => deep_merge(inner, change),
            (_, Value::Object(change)) => {
                let mut inner = Object::new();
                deep_merge(&mut inner, change);
                target.insert(key, Value::Object(inner));
            }
            (_, value) => {
                target.insert(key, value);
            }
        }
    }
}

/// Checks a metadata filter (MEM-017).
pub fn check_metadata_filter(filter: &Object) -> Result<(), StorageError> {
    for (key, value) in filter {
        let mut bytes = key.bytes();
        let starts = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        if !starts || key.len() > 128 || !bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(StorageError::Invalid(format!(
                "metadata key {key:?} cannot be filtered by: it must match ^[A-Za-z_][A-Za-z0-9_]*$, 128 characters at most (INVALID_METADATA_KEY)"
            )));
        }
        if value.is_object() || value.is_array() {
            return Err(StorageError::Invalid(format!(
                "metadata filter {key:?} must be a string, number, boolean or null (INVALID_METADATA_VALUE)"
            )));
        }
    }
    Ok(())
}

/// Whether metadata has all values of a checked filter; null also matches an absent key.
pub fn metadata_matches(metadata: Option<&Object>, filter: &Object) -> bool {
    filter.iter().all(|(key, wanted)| {
        let value = metadata.and_then(|metadata| metadata.get(key)).unwrap_or(&Value::Null);
        match (value, wanted) {
            (Value::Number(value), Value::Number(wanted)) => value == wanted || value.as_f64() == wanted.as_f64(),
            _ => value == wanted,
        }
    })
}

/// Checks a thread query (MEM-016, MEM-017).
pub fn check_thread_query(query: &ThreadQuery) -> Result<(), StorageError> {
    check_metadata_filter(&query.metadata)?;
    check_page(query.page, query.per_page)
}

/// Checks a message query (MEM-017, MEM-067).
pub fn check_message_query(query: &MessageQuery) -> Result<(), StorageError> {
    if query.thread_ids.is_empty() || query.thread_ids.iter().any(|id| id.trim().is_empty()) {
        return Err(StorageError::Invalid(
            "threadId must be a non-empty string, or a list of such (INVALID_THREAD_ID)".into(),
        ));
    }
    check_metadata_filter(&query.metadata)?;
    check_page(query.page, query.per_page)
}

fn check_page(page: u32, per_page: Option<u32>) -> Result<(), StorageError> {
    if per_page.is_none() && page > 0 {
        return Err(StorageError::Invalid("page must be 0 when perPage is false: there is one page with all".into()));
    }
    Ok(())
}

/// Refuses an empty id (MEM-048).
pub fn check_delete_ids(ids: &[MessageId]) -> Result<(), StorageError> {
    if ids.iter().any(|id| id.trim().is_empty()) {
        return Err(StorageError::Invalid("a message id to delete is empty".into()));
    }
    Ok(())
}

/// First index and whether a page follows, for `total` items.
pub fn page_bounds(page: u32, per_page: Option<u32>, total: usize) -> (usize, bool) {
    match per_page {
        None => (0, false),
        Some(size) => {
            let first = (page as usize).saturating_mul(size as usize).min(total);
            (first, size > 0 && first + (size as usize) < total)
        }
    }
}

/// Whether a query shows this message, page bounds, cursors and includes apart.
pub fn message_matches(message: &StoredMessage, query: &MessageQuery) -> bool {
    let in_bounds = query
        .start
        .is_none_or(|(start, exclusive)| message.created_at > start || (!exclusive && message.created_at == start))
        && query
            .end
            .is_none_or(|(end, exclusive)| message.created_at < end || (!exclusive && message.created_at == end));
    let of_resource = query.resource_id.is_none() || message.resource_id == query.resource_id;
    let of_role = query.roles.is_empty() || query.roles.contains(&message.role);
    in_bounds
        && of_resource
        && of_role
        && message_is_visible(message, query)
        && (query.metadata.is_empty() || metadata_matches(message.content.metadata.as_ref(), &query.metadata))
}

/// Whether a query may include a message of `thread`: it says whose messages it wants, or the thread is one of its own
/// or is named by the request (MEM-068).
pub fn may_include(query: &MessageQuery, include: &IncludeMessage, thread: Option<&str>) -> bool {
    query.resource_id.is_some()
        || thread.is_some_and(|thread| {
            query.thread_ids.iter().any(|own| own == thread) || include.thread_id.as_deref() == Some(thread)
        })
}

/// Whether the hiding rules of a query leave this message visible (MEM-072, HTTP-163).
pub fn message_is_visible(message: &StoredMessage, query: &MessageQuery) -> bool {
    if message.role != Role::Signal {
        return true;
    }
    let kind = message.content.meta("signal").and_then(|signal| signal.get("type")).and_then(Value::as_str);
    let hidden_type = kind.is_some_and(|kind| query.hide_signal_types.iter().any(|hidden| hidden == kind));
    let hidden_tag = message.kind.as_ref().is_some_and(|tag| query.hide_signal_tags.contains(tag));
    !hidden_type && !hidden_tag
}

/// Makes the copy of a thread (MEM-020, MEM-021). `messages` are the source's, oldest first.
pub fn clone_of(source: &Thread, messages: Vec<StoredMessage>, clone: CloneThread, now: Timestamp) -> ClonedThread {
    let mut chosen: Vec<StoredMessage> = messages
        .into_iter()
        .filter(|message| {
            clone.start.is_none_or(|start| message.created_at >= start)
                && clone.end.is_none_or(|end| message.created_at <= end)
                && clone.message_ids.as_ref().is_none_or(|ids| ids.contains(&message.id))
        })
        .collect();
    if let Some(limit) = clone.message_limit {
        chosen.drain(..chosen.len().saturating_sub(limit as usize));
    }
    let id = clone.new_thread_id.unwrap_or_else(|| MessageId::fresh().to_string());
    let resource_id = clone.resource_id.unwrap_or_else(|| source.resource_id.clone());
    let title = clone.title.unwrap_or_else(|| match source.title.as_str() {
        "" => String::new(),
        title => format!("Clone of {title}"),
    });
    let mut metadata = clone.metadata.unwrap_or_default();
    if let Some(memory) = source.metadata.as_ref().and_then(|metadata| metadata.get("workingMemory")) {
        metadata.entry("workingMemory").or_insert_with(|| memory.clone());
    }
    let mut origin = Object::new();
    origin.insert("sourceThreadId".into(), source.id.clone().into());
    origin.insert("clonedAt".into(), now.to_string().into());
    if let Some(last) = chosen.last() {
        origin.insert("lastMessageId".into(), last.id.to_string().into());
    }
    metadata.insert("clone".into(), Value::Object(origin));
    let mut message_id_map = std::collections::HashMap::with_capacity(chosen.len());
    for message in &mut chosen {
        let fresh = MessageId::fresh();
        message_id_map.insert(std::mem::replace(&mut message.id, fresh.clone()), fresh);
        message.thread_id = Some(id.clone());
        message.resource_id = Some(resource_id.clone());
        if let Some(metadata) = &mut message.content.metadata {
            metadata.shift_remove("pendingToolApprovals");
            metadata.shift_remove("suspendedTools");
            // A state is one of the thread it lies on (STATE-077).
            if let Some(state) = metadata.get_mut("signal").and_then(|signal| signal.pointer_mut("/metadata/state"))
                && state.get("threadId").and_then(Value::as_str) == Some(source.id.as_str())
                && let Some(state) = state.as_object_mut()
            {
                state.insert("threadId".into(), id.clone().into());
            }
        }
    }
    clone_lanes(source, &mut metadata, &message_id_map);
    let thread = Thread { id, resource_id, title, metadata: Some(metadata), created_at: now, updated_at: now };
    ClonedThread { thread, cloned_messages: chosen, message_id_map }
}

/// Tracking of lanes goes along as far as the states do, under their new ids (STATE-077).
fn clone_lanes(source: &Thread, metadata: &mut Object, ids: &std::collections::HashMap<MessageId, MessageId>) {
    let mut lanes = Object::new();
    for (lane, mut tracking) in tracked_lanes(source) {
        // A lane whose latest state stays behind is not known on the copy.
        let Some(last) = tracking.last_signal_id.as_ref().and_then(|id| ids.get(id)).cloned() else { continue };
        tracking.last_signal_id = Some(last);
        tracking.last_snapshot_signal_id = tracking.last_snapshot_signal_id.and_then(|id| ids.get(&id).cloned());
        tracking.active_copies.retain_mut(|copy| {
            let copied = ids.get(&copy.id).cloned();
            copied.map(|id| copy.id = id).is_some()
        });
        if let Ok(record) = serde_json::to_value(tracking) {
            lanes.insert(lane, record);
        }
    }
    if !lanes.is_empty() {
        let mut own = Object::new();
        own.insert("stateSignals".into(), Value::Object(lanes));
        metadata.insert("mastra".into(), Value::Object(own));
    }
}

/// Names what a signal says, so that a repeated acceptance can be told from another signal with its id (SIG-503).
/// Times are left out, since a retry has others. Stable across versions and processes; not cryptographic.
pub fn signal_fingerprint(signal: &Signal) -> String {
    let mut value = serde_json::to_value(signal).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        for time in ["createdAt", "acceptedAt"] {
            fields.shift_remove(time);
        }
    }
    let mut hash = Fnv::default();
    hash.value(&value);
    format!("{:032x}", hash.0)
}

/// FNV-1a with 128 bits, over JSON with sorted keys.
struct Fnv(u128);

impl Default for Fnv {
    fn default() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }

    fn text(&mut self, text: &str) {
        self.bytes(&(text.len() as u64).to_le_bytes());
        self.bytes(text.as_bytes());
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => self.text(&value.to_string()),
            Value::String(text) => {
                self.bytes(b"\"");
                self.text(text);
            }
            Value::Array(items) => {
                self.bytes(b"[");
                for item in items {
                    self.value(item);
                }
                self.bytes(b"]");
            }
            Value::Object(fields) => {
                self.bytes(b"{");
                let mut keys: Vec<&String> = fields.keys().collect();
                keys.sort_unstable();
                for key in keys {
                    self.text(key);
                    self.value(&fields[key]);
                }
                self.bytes(b"}");
            }
        }
    }
}

/// Whether a stored message says what the signal says: for messages whose placement is not on record, such as those the
/// reference wrote (SIG-503).
pub fn message_holds(message: &StoredMessage, signal: &Signal) -> bool {
    let said: Vec<&str> = message
        .content
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) => Some(text.text.as_str()),
            Part::File(file) => Some(file.data.as_str()),
            _ => None,
        })
        .collect();
    let given: Vec<&str> = match &signal.contents {
        Contents::Text(text) => vec![text.as_str()],
        Contents::Parts(parts) => parts
            .iter()
            .map(|part| match part {
                ContentPart::Text { text, .. } => text.as_str(),
                ContentPart::File { data, .. } => data.as_str(),
            })
            .collect(),
    };
    matches!(message.role, Role::Signal | Role::User) && said == given
}

/// A thread's lease as a store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseState {
    /// Who holds it; nobody after a release.
    pub owner: Option<String>,
    /// Grows with every change of owner, never shrinks (ruling 39).
    pub epoch: u64,
    /// When it runs out unless renewed.
    pub expires_at: Timestamp,
}

impl LeaseState {
    /// Whether `owner` may take or keep it. `is_alive` tells of another owner whether its process lives (ruling 26).
    pub fn is_free_for(&self, owner: &str, now: Timestamp, is_alive: impl FnOnce(&str) -> bool) -> bool {
        match self.owner.as_deref() {
            None => true,
            Some(holder) if holder == owner => true,
            Some(holder) => self.expires_at <= now || !is_alive(holder),
        }
    }

    /// Takes or renews it: the state to keep, or `None` if another living owner holds it.
    pub fn claim(
        existing: Option<&Self>,
        claim: &LeaseClaim,
        now: Timestamp,
        is_alive: impl FnOnce(&str) -> bool,
    ) -> Option<Self> {
        let expires_at = now.plus(claim.ttl);
        let Some(existing) = existing else {
            return Some(Self { owner: Some(claim.owner.clone()), epoch: 1, expires_at });
        };
        if !existing.is_free_for(&claim.owner, now, is_alive) {
            return None;
        }
        // An epoch is one owner's: if it is still the same, nobody else has had the lease.
        let stays = existing.owner.as_deref() == Some(&claim.owner)
            || existing.owner.is_none() && claim.kept == Some(existing.epoch);
        let epoch = if stays { existing.epoch } else { existing.epoch + 1 };
        Some(Self { owner: Some(claim.owner.clone()), epoch, expires_at })
    }
}

/// Checks that all entries of an [`Accept`] are of its thread.
pub fn check_accept(accept: &Accept) -> Result<(), StorageError> {
    if accept.entries.iter().any(|entry| entry.thread != accept.thread) {
        return Err(StorageError::Invalid("the entries of one acceptance must be of one thread".into()));
    }
    Ok(())
}

/// Completes the messages of a commit with its thread and resource, and refuses those of another thread.
pub fn complete_commit(commit: &mut Commit) -> Result<(), StorageError> {
    for message in &mut commit.messages {
        let home = message.thread_id.get_or_insert_with(|| commit.thread.thread_id.to_string());
        if **home != *commit.thread.thread_id {
            return Err(StorageError::Invalid(format!("message {} is not of the commit's thread", message.id)));
        }
        if message.resource_id.is_none() {
            message.resource_id = commit.thread.resource_id.as_deref().map(str::to_owned);
        }
    }
    if let Some(thread) = &mut commit.create_thread {
        let id = thread.id.get_or_insert_with(|| commit.thread.thread_id.to_string());
        if **id != *commit.thread.thread_id {
            return Err(StorageError::Invalid(format!("thread {id} to create is not the commit's thread")));
        }
    }
    Ok(())
}

/// The next place at the end of a thread's journal: microseconds, so that it grows without being remembered.
pub fn next_position(last_waiting: Option<i64>, now_micros: i64) -> i64 {
    last_waiting.map_or(now_micros, |last| now_micros.max(last + 1))
}
