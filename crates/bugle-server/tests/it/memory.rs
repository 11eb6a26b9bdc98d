//! Threads, messages and working memory over HTTP (HTTP §8).

use axum::http::{Method, StatusCode};
use bugle::{
    ThreadKey,
    json::{Value, json},
    runtime::AbortOptions,
    storage::{MetadataChange, NewThread, ThreadUpdate},
};

use crate::support::Server;

async fn save(server: &Server, thread: &str, resource: &str, messages: &[(&str, &str, &str)]) {
    let create = json!({"threadId": thread, "resourceId": resource});
    assert_eq!(server.post("/api/memory/threads?agentId=plain", create).await.status, StatusCode::OK);
    let messages: Vec<Value> = messages
        .iter()
        .map(|(id, role, at)| {
            json!({"id": id, "role": role, "content": id, "threadId": thread, "resourceId": resource, "createdAt": at})
        })
        .collect();
    let saved = server.post("/api/memory/save-messages?agentId=plain", json!({"messages": messages})).await;
    assert_eq!(saved.status, StatusCode::OK, "{}", saved.text);
}

async fn three(server: &Server) {
    let messages = [
        ("m1", "user", "2026-01-01T00:00:01.000Z"),
        ("m2", "assistant", "2026-01-01T00:00:02.000Z"),
        ("m3", "user", "2026-01-01T00:00:03.000Z"),
    ];
    save(server, "t", "r", &messages).await;
}

fn ids(listed: &Value) -> Vec<&str> {
    listed["messages"].as_array().into_iter().flatten().filter_map(|one| one["id"].as_str()).collect()
}

fn query(parameters: &[(&str, String)]) -> String {
    form_urlencoded::Serializer::new("agentId=plain&".to_owned()).extend_pairs(parameters).finish()
}

#[tokio::test]
async fn mem_065_http_154_messages_are_filtered_by_role_time_and_metadata_and_widened_by_include() {
    let server = Server::new().await;
    three(&server).await;
    let read = |name: &'static str, value: Value| {
        let path = format!("/api/memory/threads/t/messages?{}", query(&[(name, value.to_string())]));
        let server = &server;
        async move { server.get(&path).await.json }
    };
    assert_eq!(ids(&read("filter", json!({"roles": ["user"]})).await), ["m1", "m3"]);
    let range = json!({"dateRange": {"start": "2026-01-01T00:00:01.000Z", "startExclusive": true}});
    assert_eq!(ids(&read("filter", range).await), ["m2", "m3"]);
    assert_eq!(ids(&read("filter", json!({"metadata": {"a": 1}})).await), Vec::<&str>::new());
    let around =
        query(&[("perPage", "0".into()), ("include", json!([{"id": "m2", "withPreviousMessages": 1}]).to_string())]);
    let listed = server.get(&format!("/api/memory/threads/t/messages?{around}")).await.json;
    assert_eq!(ids(&listed), ["m1", "m2"]);
    assert_eq!((&listed["perPage"], &listed["total"]), (&json!(0), &json!(3)));
    let paged = server.get("/api/memory/threads/t/messages?agentId=plain&perPage=2&page=0&resourceId=r").await.json;
    assert_eq!(ids(&paged), ["m2", "m3"]);
    let page = (&paged["total"], &paged["page"], &paged["perPage"], &paged["hasMore"]);
    assert_eq!(page, (&json!(3), &json!(0), &json!(2), &json!(true)));
}

#[tokio::test]
async fn ruling_20_include_reaches_no_thread_of_another_resource() {
    let server = Server::with_auth().await;
    for user in ["alice", "bob"] {
        let body = json!({"threadId": user, "resourceId": user});
        assert_eq!(server.post_as(user, "/api/memory/threads?agentId=plain", body).await.status, StatusCode::OK);
    }
    let message = json!({"id": "secret", "role": "user", "content": "secret", "threadId": "alice"});
    let saved =
        server.post_as("alice", "/api/memory/save-messages?agentId=plain", json!({"messages": [message]})).await;
    assert_eq!(saved.status, StatusCode::OK, "{}", saved.text);
    for include in [json!([{"id": "secret", "threadId": "alice"}]), json!([{"id": "secret"}])] {
        let path = format!("/api/memory/threads/bob/messages?{}", query(&[("include", include.to_string())]));
        let answer = server.get_as("bob", &path).await;
        assert!(!answer.text.contains("\"secret\""), "{}", answer.text);
    }
}

#[tokio::test]
async fn r7_include_on_a_thread_of_nobody_reaches_no_thread_of_another_resource() {
    let server = Server::with_auth().await;
    let storage = server.bugle.storage();
    for (thread, resource) in [("alice", "alice"), ("shared", "")] {
        let new = NewThread { id: Some(thread.into()), resource_id: resource.into(), ..NewThread::default() };
        storage.create_thread(new).await.unwrap();
    }
    let message = json!({"id": "secret", "role": "user", "content": "hush", "threadId": "alice"});
    let saved =
        server.post_as("alice", "/api/memory/save-messages?agentId=plain", json!({"messages": [message]})).await;
    assert_eq!(saved.status, StatusCode::OK, "{}", saved.text);
    let list =
        |include: Value| format!("/api/memory/threads/shared/messages?{}", query(&[("include", include.to_string())]));
    for include in [json!([{"id": "secret"}]), json!([{"id": "secret", "threadId": "shared"}])] {
        let answer = server.get_as("bob", &list(include)).await;
        assert_eq!(ids(&answer.json), [""; 0], "{}", answer.text);
        assert!(!answer.text.contains("hush"), "{}", answer.text);
    }
    let named = server.get_as("bob", &list(json!([{"id": "secret", "threadId": "alice"}]))).await;
    assert_eq!(named.status, StatusCode::NOT_FOUND);
    let own = server.get_as("alice", &list(json!([{"id": "secret"}]))).await;
    assert_eq!(ids(&own.json), ["secret"], "{}", own.text);
}

#[tokio::test]
async fn r19_working_memory_on_a_thread_of_nobody_is_read_and_written_for_the_same_resource() {
    let server = Server::new().await;
    let new = NewThread { id: Some("shared".into()), ..NewThread::default() };
    server.bugle.storage().create_thread(new).await.unwrap();
    let path = "/api/memory/threads/shared/working-memory?agentId=noting";
    let nobodys = server.post(path, json!({"workingMemory": "x"})).await;
    assert_eq!((nobodys.status, nobodys.fields()), (StatusCode::BAD_REQUEST, vec!["resourceId"]));
    assert_eq!(server.bugle.storage().get_resource("").await.unwrap(), None);
    let set = server.post(path, json!({"workingMemory": "# Ada", "resourceId": "r"})).await;
    assert_eq!(set.status, StatusCode::OK, "{}", set.text);
    let read = server.get(&format!("{path}&resourceId=r")).await.json;
    assert_eq!(read["workingMemory"], "# Ada");
}

#[tokio::test]
async fn r17_ruling_32_messages_of_a_plain_run_in_progress_are_not_touched() {
    let server = Server::new().await;
    three(&server).await;
    let mut frames = server.subscribe("t", "r").await;
    let body = json!({"messages": "[[call get-weather {\"city\":\"Oslo\"}]] [[say one ;; hang]]", "memory": {"thread": "t", "resource": "r"}});
    let headers = [("content-type", "application/json")];
    let body = axum::body::Body::from(body.to_string());
    let stream = server.open(Method::POST, "/api/agents/plain/stream", &headers, body).await;
    frames.until("text-delta").await;
    let listed = server.get(&format!("/api/memory/threads/t/messages?{}", query(&[]))).await.json;
    let own = ids(&listed).into_iter().find(|id| !["m1", "m2", "m3"].contains(id)).map(str::to_owned);
    let delete = "/api/memory/messages/delete?agentId=plain";
    let own = own.expect("the run's first message is stored with its first step");
    let refused = server.post(delete, json!({"messageIds": [own]})).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text);
    let older = server.post(delete, json!({"messageIds": ["m1"]})).await;
    assert_eq!(older.status, StatusCode::OK, "{}", older.text);
    drop(stream);
}

#[tokio::test]
async fn r11_a_thread_with_waiting_input_is_not_transferred() {
    let server = Server::new().await;
    three(&server).await;
    let key = ThreadKey::new("r", "t");
    let path = "/api/memory/threads/t/transfer?agentId=plain";
    let mut frames = server.subscribe("t", "r").await;
    let body = json!({"message": "[[say one ;; hang]]", "threadId": "t", "resourceId": "r"});
    server.post("/api/agents/plain/send-message", body).await;
    frames.until("text-delta").await;
    let refused = server.post(path, json!({"resourceId": "bob"})).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text);
    let agent = server.bugle.agent("plain").unwrap();
    assert!(agent.abort_thread(&key, AbortOptions::default()).await.unwrap());
    frames.until("\"type\":\"abort\"").await;
}

#[tokio::test]
async fn http_153_metadata_is_replaced_but_for_what_the_runtime_owns() {
    let server = Server::new().await;
    three(&server).await;
    let own = json!({"mastra": {"lane": 1}}).as_object().unwrap().clone();
    let update = ThreadUpdate { id: "t".into(), metadata: MetadataChange::Own(own), ..ThreadUpdate::default() };
    server.bugle.storage().update_thread(update).await.unwrap();
    let path = "/api/memory/threads/t?agentId=plain";
    for (metadata, expected) in [
        (json!({"a": 1}), json!({"a": 1, "mastra": {"lane": 1}})),
        (json!({"b": 2, "mastra": "mine"}), json!({"b": 2, "mastra": {"lane": 1}})),
    ] {
        let changed = server.json_as(Method::PATCH, "", path, json!({"metadata": metadata})).await;
        assert_eq!(changed.json["metadata"], expected, "{}", changed.text);
    }
    let foreign = server.json_as(Method::PATCH, "", path, json!({"title": "x", "resourceId": "other"})).await;
    assert_eq!(foreign.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn http_156_http_157_http_158_clone_delete_and_save_refuse_what_is_not_there_or_not_theirs() {
    let server = Server::new().await;
    three(&server).await;
    save(&server, "other", "s", &[("o1", "user", "2026-01-01T00:00:01.000Z")]).await;
    let missing = server.post("/api/memory/threads/none/clone?agentId=plain", json!({})).await;
    assert_eq!((missing.status, missing.json), (StatusCode::NOT_FOUND, json!({"error": "Source thread not found"})));
    let options = json!({"options": {"messageLimit": 1}, "newThreadId": "copy"});
    let copy = server.post("/api/memory/threads/t/clone?agentId=plain", options.clone()).await.json;
    assert_eq!((&copy["thread"]["id"], copy["clonedMessages"].as_array().unwrap().len()), (&json!("copy"), 1));
    assert_eq!(copy["messageIdMap"]["m3"], copy["clonedMessages"][0]["id"]);
    let taken = server.post("/api/memory/threads/t/clone?agentId=plain", options).await;
    assert_eq!(taken.status, StatusCode::CONFLICT, "{}", taken.text);

    let theirs =
        json!({"messages": [{"id": "o1", "role": "user", "content": "mine", "threadId": "t", "resourceId": "r"}]});
    assert_eq!(server.post("/api/memory/save-messages?agentId=plain", theirs).await.status, StatusCode::FORBIDDEN);
    let two = json!({"messageIds": [{"id": "m1"}, "m2"]});
    let deleted = server.post("/api/memory/messages/delete?agentId=plain", two).await;
    assert_eq!(deleted.json, json!({"success": true, "message": "2 messages deleted successfully"}));
    assert_eq!(ids(&server.get("/api/memory/threads/t/messages?agentId=plain").await.json), ["m3"]);
}

#[tokio::test]
async fn http_155_mem_019_deleting_a_thread_stops_its_run() {
    let server = Server::new().await;
    let mut frames = server.subscribe("t", "r").await;
    let body = json!({"message": "[[say one ;; hang]]", "threadId": "t", "resourceId": "r"});
    assert_eq!(server.post("/api/agents/plain/send-message", body).await.status, StatusCode::OK);
    frames.until("text-delta").await;
    let deleted = server.json_as(Method::DELETE, "", "/api/memory/threads/t?agentId=plain", json!({})).await;
    assert_eq!(deleted.json, json!({"result": "Thread deleted"}), "{}", deleted.text);
    server.model.until_cancelled(1).await;
    frames.until("\"type\":\"abort\"").await;
    assert_eq!(server.get("/api/memory/threads/t?agentId=plain").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn http_160_working_memory_is_read_and_replaced() {
    let server = Server::new().await;
    let path = "/api/memory/threads/t/working-memory?agentId=noting";
    let before = server.get(path).await.json;
    assert_eq!((&before["workingMemory"], &before["threadExists"]), (&Value::Null, &json!(false)));
    three(&server).await;
    let set = server.post(path, json!({"workingMemory": "# Ada"})).await;
    assert_eq!(set.json, json!({"success": true}), "{}", set.text);
    let after = server.get(path).await.json;
    assert_eq!((&after["workingMemory"], &after["source"]), (&json!("# Ada"), &json!("resource")));
    let config = server.get("/api/memory/config?agentId=noting").await.json;
    assert_eq!(config["config"]["workingMemory"], json!({"enabled": true}));
    let off = server.post("/api/memory/threads/t/working-memory?agentId=plain", json!({"workingMemory": "x"})).await;
    assert_eq!(off.status, StatusCode::BAD_REQUEST);
    assert_eq!(server.get("/api/memory/status?agentId=forgetful").await.json, json!({"result": false}));
}
