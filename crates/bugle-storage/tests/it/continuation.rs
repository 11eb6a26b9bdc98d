//! Agents go on with the conversations in a file of the reference (STO §7 item 2).

use std::{collections::BTreeMap, path::Path, sync::Arc};

use bugle::{
    Agent, Bugle, RunOptions, ThreadKey,
    memory::MemoryOptions,
    message::{Role, StoredMessage},
    model::{PromptMessage, Script, ScriptedModel},
    notification::NotificationOptions,
    runtime::RunInput,
    storage::{Storage, ThreadQuery},
};
use serde_json::Value;

use crate::support::{golden, open, raw};

/// A row: its columns by name, quoted.
type Row = BTreeMap<String, String>;

/// All rows of the reference's tables.
fn dump(path: &Path) -> BTreeMap<String, Vec<Row>> {
    let connection = raw(path);
    let mut tables = connection
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'bugle\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'")
        .unwrap();
    let tables: Vec<String> = tables.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let rows_of = |table: &String| {
        let mut columns = connection.prepare(&format!("SELECT name FROM pragma_table_info('{table}')")).unwrap();
        let columns: Vec<String> = columns.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let quoted: Vec<String> = columns.iter().map(|column| format!("quote(\"{column}\")")).collect();
        let mut rows =
            connection.prepare(&format!("SELECT {} FROM {table} ORDER BY rowid", quoted.join(", "))).unwrap();
        let rows = rows.query_map((), |row| {
            columns.iter().enumerate().map(|(at, name)| Ok((name.clone(), row.get(at)?))).collect::<Result<Row, _>>()
        });
        rows.unwrap().map(Result::unwrap).collect::<Vec<_>>()
    };
    tables.iter().map(|table| (table.clone(), rows_of(table))).collect()
}

/// Every call is answered in the next turn, and nothing else is: what providers insist on (MEM-084).
fn check_prompt(prompt: &[PromptMessage], thread: &str) {
    let prompt = serde_json::to_value(prompt).unwrap();
    let turns = prompt.as_array().unwrap();
    let ids = |turn: &Value, kind: &str, field: &str| -> Vec<String> {
        let parts = turn["content"].as_array().cloned().unwrap_or_default();
        let parts = parts.iter().filter(|part| kind.is_empty() || part["type"] == kind);
        parts.filter_map(|part| part[field].as_str().map(str::to_owned)).collect()
    };
    let mut open: Vec<String> = Vec::new();
    for turn in turns {
        if turn["role"] == "tool" {
            let results = ids(turn, "", "toolCallId");
            assert!(!results.is_empty(), "{thread}: {turn}");
            assert_eq!(results, open, "{thread}: results of these calls, in order");
            open.clear();
            continue;
        }
        assert_eq!(open, Vec::<String>::new(), "{thread}: calls without results");
        if turn["role"] == "assistant" {
            let own: Vec<Value> = turn["content"].as_array().unwrap().clone();
            let here = own.iter().filter(|part| part["type"] == "tool-call" && part["providerExecuted"] != true);
            open = here.map(|part| part["toolCallId"].as_str().unwrap().to_owned()).collect();
        }
    }
    assert_eq!(open, Vec::<String>::new(), "{thread}");
    let last = turns.last().unwrap();
    assert_eq!(last["role"], "user", "{thread}");
    assert!(last.to_string().contains("go on"), "{thread}: {last}");
    let first = turns.iter().find(|turn| turn["role"] != "system").unwrap();
    assert_eq!(first["role"], "user", "{thread}: {first}");
}

#[tokio::test]
async fn sto_7_2_every_conversation_of_the_reference_goes_on_and_nothing_else_changes() {
    let (_directory, path) = golden();
    // Whatever opening adds is there before.
    let store = open(&path);
    let threads = store.list_threads(ThreadQuery { per_page: None, ..ThreadQuery::default() }).await.unwrap().items;
    store.close().await;
    assert!(threads.len() > 10);
    let before = dump(&path);

    let model = ScriptedModel::with_responses(threads.iter().map(|_| Script::new().text("I go on")));
    let agent =
        Agent::builder("made-up").model(Arc::new(model.clone())).memory(MemoryOptions::last(20)).build().unwrap();
    // Notifications of the file that are due would be delivered: that is another change than this test's.
    let notifications = NotificationOptions::builder().dispatch(false).build();
    let builder = Bugle::builder().agent(agent).storage(open(&path)).notifications(notifications);
    let bugle = builder.build().await.unwrap();
    let handle = bugle.agent("made-up").unwrap();
    for (at, thread) in threads.iter().enumerate() {
        let key = ThreadKey::new(thread.resource_id.as_str(), thread.id.as_str());
        let message = StoredMessage::text("".into(), Role::User, "go on", Default::default());
        let input = RunInput { messages: vec![message], tool_results: Vec::new() };
        let output = handle.generate(input, Some(&key), RunOptions::default()).await;
        assert_eq!(output.unwrap_or_else(|error| panic!("{}: {error}", thread.id)).text, "I go on");
        check_prompt(&model.requests()[at].prompt, &thread.id);
    }
    bugle.shutdown(std::time::Duration::from_secs(5)).await;

    let mut after = dump(&path);
    for (table, old) in &before {
        let new = after.get_mut(table).unwrap();
        let without = |row: &Row, left_out: &str| -> Row {
            row.iter()
                .filter(|(name, _)| name.as_str() != left_out)
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        match table.as_str() {
            "mastra_messages" => {
                let added = new.split_off(old.len());
                assert_eq!(added.len(), 2 * threads.len());
                assert_eq!(new, old);
            }
            // MEM-018.
            "mastra_threads" => {
                let strip = |rows: &[Row]| rows.iter().map(|row| without(row, "updatedAt")).collect::<Vec<_>>();
                assert_eq!(strip(new), strip(old));
            }
            _ => assert_eq!(new, old, "{table}"),
        }
    }
    assert_eq!(after.len(), before.len());

    // What was added reads back as a conversation.
    let store = open(&path);
    for thread in &threads {
        let key = ThreadKey::new(thread.resource_id.as_str(), thread.id.as_str());
        let rows = store.recent_messages(&key, 2).await.unwrap();
        let texts: Vec<String> = rows.iter().map(StoredMessage::joined_text).collect();
        assert_eq!(texts, ["go on", "I go on"], "{}", thread.id);
        assert!(rows[0].created_at < rows[1].created_at);
    }
}
