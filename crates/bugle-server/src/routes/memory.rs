//! Threads, messages and working memory, as stored (HTTP §8).

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use bugle::{
    AgentHandle, MessageId, ThreadKey,
    json::{Object, Value, json},
    memory::{MemoryOptions, Scope},
    message::{MessageContent, Part, Role, StoredMessage, Thread},
    runtime::AbortOptions,
    storage::{
        CloneThread, Direction, IncludeMessage, MessageQuery, MetadataChange, NewThread, ResourceChange, ThreadOrder,
        ThreadQuery, ThreadUpdate,
    },
    time::Timestamp,
};

use super::{Answer, Route, answer, route};
use crate::{
    call::{Call, belongs, flag, object, text, whole},
    error::{Failure, Place},
    fields,
    shape::Issue,
};

pub(super) const ROUTES: &[Route] = &[
    route!(Get "/memory/status" "Whether there is memory", status, query: fields::MEMORY_QUERY),
    route!(Get "/memory/config" "An agent's memory options", config, query: fields::MEMORY_QUERY),
    route!(Get "/memory/search" "Semantic search: not supported", search, query: fields::SEARCH_QUERY),
    route!(Get "/memory/threads" "Threads, in pages", list_threads, query: fields::THREADS_QUERY),
    route!(Post "/memory/threads" "Creates a thread", create_thread, query: fields::MEMORY_QUERY, body: fields::NEW_THREAD),
    route!(Get "/memory/threads/{threadId}" "A thread", get_thread, query: fields::MEMORY_QUERY),
    route!(Patch "/memory/threads/{threadId}" "Changes title and metadata", update_thread, query: fields::MEMORY_QUERY, body: fields::PATCH_THREAD),
    route!(Delete "/memory/threads/{threadId}" "Deletes a thread and all that belongs to it", delete_thread, query: fields::MEMORY_QUERY),
    route!(Get "/memory/threads/{threadId}/messages" "A thread's messages, in pages", list_messages, query: fields::MESSAGES_QUERY),
    route!(Post "/memory/threads/{threadId}/clone" "Copies a thread", clone_thread, query: fields::MEMORY_QUERY, body: fields::CLONE_THREAD),
    route!(Post "/memory/threads/{threadId}/transfer" "Gives a thread to another resource", transfer_thread, query: fields::MEMORY_QUERY, body: fields::TRANSFER),
    route!(Get "/memory/threads/{threadId}/working-memory" "A thread's working memory", get_working_memory, query: fields::MEMORY_QUERY),
    route!(Post "/memory/threads/{threadId}/working-memory" "Replaces a thread's working memory", set_working_memory, query: fields::MEMORY_QUERY, body: fields::WORKING_MEMORY),
    route!(Post "/memory/messages/delete" "Deletes messages", delete_messages, query: fields::MEMORY_QUERY, body: fields::DELETE_MESSAGES),
    route!(Post "/memory/save-messages" "Stores messages", save_messages, query: fields::MEMORY_QUERY, body: fields::SAVE_MESSAGES),
];

/// How long a deletion waits for the thread's run to stop.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);

/// The memory options of the agent of the query, if it names one that has memory.
fn memory_options(call: &Call) -> Option<MemoryOptions> {
    let agent = call.bugle().agent(text(&call.query, "agentId")?).ok()?;
    agent.agent().memory().cloned()
}

async fn status(call: Call) -> Answer {
    let result = match text(&call.query, "agentId") {
        Some(id) => call.bugle().agent(id)?.agent().memory().is_some(),
        None => true,
    };
    Ok(answer(if result { json!({"result": true, "memoryType": "local"}) } else { json!({"result": false}) }))
}

async fn config(call: Call) -> Answer {
    let agent = call.agent_of_query()?;
    let Some(options) = agent.agent().memory() else { return Ok(answer(json!({"config": null}))) };
    let mut working_memory = json!({"enabled": options.working_memory.as_ref().is_some_and(|one| one.enabled)});
    if let Some(template) = options.working_memory.as_ref().and_then(|one| one.template.as_ref()) {
        working_memory["template"] = json!(template);
    }
    Ok(answer(json!({"config": {
        "lastMessages": options.last_messages,
        "semanticRecall": false,
        "generateTitle": options.generate_title.is_some(),
        "workingMemory": working_memory,
        "observationalMemory": {"enabled": false},
    }})))
}

async fn search(_: Call) -> Answer {
    Err(Failure::unsupported("This server has no semantic search."))
}

async fn list_threads(call: Call) -> Answer {
    let query = &call.query;
    let (order, direction) = order(query);
    let per_page = per_page(query, 100);
    let page = call
        .bugle()
        .storage()
        .list_threads(ThreadQuery {
            resource_id: call.resource(text(query, "resourceId")).map(str::to_owned),
            metadata: object(query, "metadata").cloned().unwrap_or_default(),
            page: whole(query, "page").unwrap_or(0),
            per_page,
            order,
            direction: direction.unwrap_or_default(),
        })
        .await?;
    Ok(answer(json!({
        "threads": page.items,
        "total": page.total,
        "page": page.page,
        "perPage": shown(per_page),
        "hasMore": page.has_more,
    })))
}

/// `perPage`: absent = `default`, `false` = all.
fn per_page(query: &Object, default: u32) -> Option<u32> {
    match query.get("perPage") {
        Some(Value::Bool(false)) => None,
        _ => Some(whole(query, "perPage").unwrap_or(default)),
    }
}

fn shown(per_page: Option<u32>) -> Value {
    per_page.map_or(Value::Bool(false), Into::into)
}

/// `orderBy` as an object or as the old pair of parameters (HTTP-151).
fn order(query: &Object) -> (ThreadOrder, Option<Direction>) {
    let (field, direction) = match query.get("orderBy") {
        Some(Value::Object(order)) => (text(order, "field"), text(order, "direction")),
        Some(Value::String(field)) => (Some(field.as_str()), text(query, "sortDirection")),
        _ => (None, text(query, "sortDirection")),
    };
    let order = if field == Some("updatedAt") { ThreadOrder::UpdatedAt } else { ThreadOrder::CreatedAt };
    let direction = direction.map(|word| if word == "ASC" { Direction::Asc } else { Direction::Desc });
    (order, direction)
}

async fn create_thread(call: Call) -> Answer {
    call.agent_of_query()?;
    let Some(resource) = call.resource(text(&call.body, "resourceId")) else {
        return Err(Failure::field("resourceId", "Invalid input: expected string, received undefined"));
    };
    let thread = call
        .bugle()
        .storage()
        .create_thread(NewThread {
            id: text(&call.body, "threadId").filter(|id| !id.trim().is_empty()).map(str::to_owned),
            resource_id: resource.to_owned(),
            title: text(&call.body, "title").map(str::to_owned),
            metadata: object(&call.body, "metadata").cloned().map(without_lanes),
        })
        .await?;
    Ok(answer(thread))
}

/// A new thread has told no states, whatever its creator says.
fn without_lanes(mut metadata: Object) -> Object {
    if let Some(Value::Object(own)) = metadata.get_mut("mastra") {
        own.shift_remove("stateSignals");
    }
    metadata
}

async fn get_thread(call: Call) -> Answer {
    Ok(answer(call.thread_to_read().await?))
}

async fn update_thread(call: Call) -> Answer {
    call.agent_of_query()?;
    let thread = call.thread_to_write(text(&call.body, "resourceId")).await?;
    let metadata = object(&call.body, "metadata").cloned();
    let updated = call
        .bugle()
        .storage()
        .update_thread(ThreadUpdate {
            id: thread.id,
            title: text(&call.body, "title").map(str::to_owned),
            title_if_empty: false,
            metadata: metadata.map_or(MetadataChange::Keep, MetadataChange::Replace),
        })
        .await?;
    Ok(answer(updated))
}

async fn delete_thread(call: Call) -> Answer {
    let agent = call.agent_of_query()?;
    let thread = call.thread_to_write(None).await?;
    // A run of it is stopped first, and what waits goes with the thread (MEM-019).
    let key = key(&thread);
    agent.abort_thread(&key, AbortOptions { clear_pending_signals: true, expected_run_id: None }).await?;
    // What it stores last must not come after the deletion.
    let ended = async {
        while agent.active_run_id(&key).is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(STOP_TIME_MAX, ended).await.is_err() {
        return Err(Failure::conflict("The thread's run has not stopped yet; delete the thread again in a moment"));
    }
    if !call.bugle().storage().delete_thread(&thread.id).await? {
        return Err(Failure::unknown_thread());
    }
    Ok(answer(json!({"result": "Thread deleted"})))
}

fn key(thread: &Thread) -> ThreadKey {
    if thread.resource_id.is_empty() {
        ThreadKey::unowned(thread.id.as_str())
    } else {
        ThreadKey::new(thread.resource_id.as_str(), thread.id.as_str())
    }
}

async fn list_messages(call: Call) -> Answer {
    let thread = call.thread_to_read().await?;
    let query = &call.query;
    let per_page = per_page(query, 40);
    let (_, direction) = order(query);
    let include = included(&call).await?;
    let mut messages = MessageQuery {
        thread_ids: vec![thread.id],
        page: whole(query, "page").unwrap_or(0),
        per_page,
        direction: direction.unwrap_or_default(),
        newest_page_first: direction != Some(Direction::Asc),
        include,
        ..MessageQuery::default()
    };
    if !thread.resource_id.is_empty() {
        messages.resource_id = call.resource(text(query, "resourceId")).map(str::to_owned);
    }
    if flag(query, "includeSystemReminders") != Some(true) {
        messages.hide_signal_tags = vec!["system-reminder".into()];
    }
    if let Some(filter) = object(query, "filter") {
        let range = object(filter, "dateRange");
        let bound = |name: &str, exclusive: &str| -> Result<_, Failure> {
            let Some(at) = range.and_then(|range| text(range, name)) else { return Ok(None) };
            let exclusive = range.and_then(|range| flag(range, exclusive)).unwrap_or(false);
            Ok(Some((time(&format!("filter.dateRange.{name}"), at, Place::Query)?, exclusive)))
        };
        messages.start = bound("start", "startExclusive")?;
        messages.end = bound("end", "endExclusive")?;
        messages.roles =
            filter.get("roles").cloned().and_then(|roles| serde_json::from_value(roles).ok()).unwrap_or_default();
        messages.metadata = object(filter, "metadata").cloned().unwrap_or_default();
    }
    let page = call.bugle().storage().list_messages(messages).await?;
    Ok(answer(json!({
        "messages": page.items,
        "total": page.total,
        "page": page.page,
        "perPage": shown(per_page),
        "hasMore": page.has_more,
        "uiMessages": null,
    })))
}

/// What `include` asks for, as far as the caller may read it: threads of others are as good as none (ruling 20).
async fn included(call: &Call) -> Result<Vec<IncludeMessage>, Failure> {
    let Some(list) = call.query.get("include") else { return Ok(Vec::new()) };
    let list: Vec<IncludeMessage> = serde_json::from_value(list.clone())
        .map_err(|error| Failure::invalid(Place::Query, vec![Issue::new("include", error.to_string())]))?;
    let resource = call.resource(text(&call.query, "resourceId"));
    let ids: Vec<MessageId> = list.iter().map(|one| one.id.clone()).collect();
    let found = call.bugle().storage().get_messages(&ids).await?;
    let homes: HashMap<MessageId, String> =
        found.into_iter().filter_map(|message| Some((message.id, message.thread_id?))).collect();
    // What a request names does not count, but where the message is.
    let mut readable: HashMap<String, bool> = HashMap::new();
    for id in list.iter().filter_map(|one| one.thread_id.as_ref()).chain(homes.values()) {
        if !readable.contains_key(id) {
            let thread = call.bugle().storage().get_thread(id).await?;
            readable.insert(id.clone(), thread.is_some_and(|thread| belongs(&thread, resource)));
        }
    }
    if list.iter().filter_map(|one| one.thread_id.as_ref()).any(|id| readable.get(id) != Some(&true)) {
        return Err(Failure::unknown_thread());
    }
    let included = list.into_iter().filter_map(|one| {
        let home = homes.get(&one.id).filter(|home| readable.get(*home) == Some(&true))?;
        Some(IncludeMessage { thread_id: Some(home.clone()), ..one })
    });
    Ok(included.collect())
}

fn time(field: &str, text: &str, place: Place) -> Result<Timestamp, Failure> {
    let at = Timestamp::parse(text);
    at.ok_or_else(|| Failure::invalid(place, vec![Issue::new(field, "expected an ISO 8601 date and time")]))
}

async fn clone_thread(call: Call) -> Answer {
    call.agent_of_query()?;
    let source = match call.thread_to_write(None).await {
        Err(failure) if failure.is_not_found() => return Err(Failure::not_found("Source thread not found")),
        other => other?,
    };
    let options = object(&call.body, "options");
    let filter = options.and_then(|options| object(options, "messageFilter"));
    let bound = |name: &str| -> Result<_, Failure> {
        let at = filter.and_then(|filter| text(filter, name));
        at.map(|at| time(&format!("options.messageFilter.{name}"), at, Place::Body)).transpose()
    };
    let ids = filter.and_then(|filter| filter.get("messageIds")).and_then(Value::as_array);
    let cloned = call
        .bugle()
        .storage()
        .clone_thread(CloneThread {
            source_thread_id: source.id,
            new_thread_id: text(&call.body, "newThreadId").map(str::to_owned),
            resource_id: call.resource(text(&call.body, "resourceId")).map(str::to_owned),
            title: text(&call.body, "title").map(str::to_owned),
            metadata: object(&call.body, "metadata").cloned(),
            message_limit: options.and_then(|options| whole(options, "messageLimit")),
            start: bound("startDate")?,
            end: bound("endDate")?,
            message_ids: ids.map(|ids| ids.iter().filter_map(Value::as_str).map(Into::into).collect()),
        })
        .await?;
    Ok(answer(cloned))
}

async fn transfer_thread(call: Call) -> Answer {
    let agent = call.agent_of_query()?;
    if call.caller.resource.is_some() {
        return Err(Failure::forbidden("Thread transfer requires a privileged (non-resource-scoped) context"));
    }
    let thread = call.thread_to_write(None).await?;
    let key = key(&thread);
    if let Some(run) = agent.active_run_id(&key) {
        return Err(Failure::conflict(format!("Thread {} has a run in progress, {run}; abort it first", thread.id)));
    }
    let to = text(&call.body, "resourceId").unwrap_or_default();
    Ok(answer(call.bugle().storage().transfer_thread(&thread.id, to).await?))
}

async fn delete_messages(call: Call) -> Answer {
    let agent = call.agent_of_query()?;
    let ids = message_ids(call.body.get("messageIds").unwrap_or(&Value::Null));
    if ids.iter().any(|id| id.is_empty()) {
        return Err(Failure::field("messageIds", "a message id must not be empty"));
    }
    let stored = call.bugle().storage().get_messages(&ids).await?;
    check_messages(&call, &agent, &stored).await?;
    call.bugle().storage().delete_messages(&ids).await?;
    let count = ids.len();
    let noun = if count == 1 { "message" } else { "messages" };
    Ok(answer(json!({"success": true, "message": format!("{count} {noun} deleted successfully")})))
}

/// An id, ids, or objects that have one.
fn message_ids(value: &Value) -> Vec<MessageId> {
    let one = |value: &Value| value.as_str().or_else(|| value.get("id")?.as_str()).map(MessageId::from);
    match value {
        Value::Array(list) => list.iter().filter_map(one).collect(),
        value => one(value).into_iter().collect(),
    }
}

/// Every message must be on a known thread of the caller's (HTTP-157), and in no run in progress (ruling 32).
async fn check_messages(call: &Call, agent: &AgentHandle, messages: &[StoredMessage]) -> Result<(), Failure> {
    let mut by_thread: indexmap::IndexMap<&str, Vec<MessageId>> = indexmap::IndexMap::new();
    for message in messages {
        by_thread.entry(message.thread_id.as_deref().unwrap_or_default()).or_default().push(message.id.clone());
    }
    for (id, ids) in by_thread {
        match call.bugle().storage().get_thread(id).await? {
            Some(thread) if belongs(&thread, call.resource(text(&call.query, "resourceId"))) => {
                agent.check_editable(&key(&thread), &ids).await?;
            }
            Some(_) => return Err(Failure::foreign_thread()),
            None => return Err(Failure::forbidden("Access denied: message belongs to no known thread")),
        }
    }
    Ok(())
}

async fn save_messages(call: Call) -> Answer {
    let agent = call.agent_of_query()?;
    let list = call.body.get("messages").and_then(Value::as_array);
    let mut messages = Vec::new();
    for (index, value) in list.into_iter().flatten().enumerate() {
        let fields = value.as_object().cloned().unwrap_or_default();
        messages.push(read_message(&call, &fields).map_err(|failure| failure.under(&format!("messages.{index}")))?);
    }
    let mut homes = HashSet::new();
    for message in &messages {
        if !homes.insert((message.thread_id.as_deref(), message.resource_id.as_deref())) {
            continue;
        }
        let key = ThreadKey {
            resource_id: message.resource_id.as_deref().map(Into::into),
            thread_id: message.thread_id.as_deref().unwrap_or_default().into(),
        };
        call.check_writable(&key).await?;
    }
    // Known ids are overwritten: those must not be in a run in progress.
    let ids: Vec<MessageId> = messages.iter().map(|message| message.id.clone()).collect();
    let known = call.bugle().storage().get_messages(&ids).await?;
    check_messages(&call, &agent, &known).await?;
    call.bugle().storage().save_messages(messages.clone()).await?;
    Ok(answer(json!({"messages": messages})))
}

/// HTTP-158: id and time are filled in.
fn read_message(call: &Call, fields: &Object) -> Result<StoredMessage, Failure> {
    let Some(resource) = call.resource(text(fields, "resourceId")) else {
        return Err(Failure::field("resourceId", "Invalid input: expected string, received undefined"));
    };
    let created_at = match text(fields, "createdAt") {
        Some(at) => time("createdAt", at, Place::Body)?,
        None => Timestamp::now(),
    };
    let content = match fields.get("content") {
        Some(Value::String(text)) => MessageContent {
            parts: vec![Part::text(text.as_str(), Some(created_at))],
            content: Some(text.clone()),
            ..MessageContent::default()
        },
        Some(content) => {
            serde_json::from_value(content.clone()).map_err(|error| Failure::field("content", error.to_string()))?
        }
        None => MessageContent::default(),
    };
    let role = fields.get("role").and_then(|role| serde_json::from_value::<Role>(role.clone()).ok());
    Ok(StoredMessage {
        id: text(fields, "id").filter(|id| !id.is_empty()).map_or_else(MessageId::fresh, Into::into),
        role: role.ok_or_else(|| Failure::field("role", "expected user, assistant, system or signal"))?,
        created_at,
        thread_id: text(fields, "threadId").map(str::to_owned),
        resource_id: Some(resource.to_owned()),
        kind: text(fields, "type").map(str::to_owned),
        content,
    })
}

/// HTTP-160: answers also for a thread that does not exist yet, which Studio asks for.
async fn get_working_memory(call: Call) -> Answer {
    let thread = match call.thread_to_read().await {
        Ok(thread) => Some(thread),
        Err(failure) if failure.is_not_found() => None,
        Err(failure) => return Err(failure),
    };
    let options = memory_options(&call).and_then(|memory| memory.working_memory).filter(|options| options.enabled);
    let Some(options) = options else {
        return Ok(answer(json!({
            "workingMemory": null, "source": "thread", "workingMemoryTemplate": null, "threadExists": thread.is_some(),
        })));
    };
    let (source, held) = match options.scope {
        Scope::Thread => {
            let held = thread.as_ref().and_then(|thread| thread.metadata.as_ref()?.get("workingMemory").cloned());
            ("thread", held)
        }
        Scope::Resource => {
            let held = match remembering(&call, thread.as_ref(), text(&call.query, "resourceId")) {
                Some(id) => call.bugle().storage().get_resource(id).await?.and_then(|resource| resource.working_memory),
                None => None,
            };
            ("resource", held.map(Value::String))
        }
    };
    let template = match (&options.template, &options.schema) {
        (Some(template), _) => json!({"format": "markdown", "content": template}),
        (None, Some(schema)) => json!({"format": "json", "content": schema.to_string()}),
        (None, None) => Value::Null,
    };
    Ok(answer(json!({
        "workingMemory": held,
        "source": source,
        "workingMemoryTemplate": template,
        "threadExists": thread.is_some(),
    })))
}

/// The resource whose working memory a thread shows: the caller's, else the thread's owner.
fn remembering<'a>(call: &'a Call, thread: Option<&'a Thread>, named: Option<&'a str>) -> Option<&'a str> {
    let owner = thread.map(|thread| thread.resource_id.as_str()).filter(|owner| !owner.is_empty());
    call.resource(named).or(owner)
}

async fn set_working_memory(call: Call) -> Answer {
    call.agent_of_query()?;
    let thread = call.thread_to_write(text(&call.body, "resourceId")).await?;
    let options = memory_options(&call).and_then(|memory| memory.working_memory).filter(|options| options.enabled);
    let Some(options) = options else {
        return Err(Failure::bad_request("Working memory is not enabled for this agent"));
    };
    let value = text(&call.body, "workingMemory").unwrap_or_default().to_owned();
    match options.scope {
        Scope::Thread => {
            let change = Object::from_iter([("workingMemory".to_owned(), Value::String(value))]);
            let update =
                ThreadUpdate { id: thread.id, metadata: MetadataChange::Own(change), ..ThreadUpdate::default() };
            call.bugle().storage().update_thread(update).await?;
        }
        Scope::Resource => {
            let named = text(&call.body, "resourceId").or_else(|| text(&call.query, "resourceId"));
            let Some(resource) = remembering(&call, Some(&thread), named) else {
                return Err(Failure::field("resourceId", "the thread is nobody's; say whose working memory this is"));
            };
            let change = ResourceChange::WorkingMemory(Some(value));
            call.bugle().storage().update_resource(resource, change).await?;
        }
    }
    Ok(answer(json!({"success": true})))
}
