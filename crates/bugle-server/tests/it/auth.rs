//! Who may do what (HTTP §13), and which pages may read it (HTTP-014 … HTTP-016).

use axum::{
    body::Body,
    http::{HeaderMap, Method, StatusCode},
};
use bugle::json::{Value, json};

use crate::support::Server;

#[tokio::test]
async fn http_210_http_211_http_212_tokens_open_and_close() {
    let server = Server::with_auth().await;
    for path in ["/api/agents", "/api/openapi.json", "/api/no-such-route", "/api/memory/threads"] {
        for headers in [&[][..], &[("authorization", "Bearer token-nobody")], &[("authorization", "token-alice")]] {
            let answer = server.send(Method::GET, path, headers, Body::empty()).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path} {headers:?}");
            assert_eq!(answer.json, json!({"error": "Invalid or expired token"}));
        }
        let answer = server.get_as("mallory", path).await;
        assert_eq!((answer.status, answer.json), (StatusCode::FORBIDDEN, json!({"error": "Access denied"})));
    }
    assert_eq!(server.get_as("alice", "/api/agents").await.status, StatusCode::OK);
    assert_eq!(server.get("/api/agents?apiKey=token-alice").await.status, StatusCode::OK);
}

#[tokio::test]
async fn http_215_http_216_what_is_open_to_all() {
    let server = Server::with_auth().await;
    assert_eq!(server.get("/health").await.json, json!({"success": true}));
    assert_eq!(server.get("/api/auth/capabilities").await.json, json!({"enabled": true, "login": null}));
    assert_eq!(Server::new().await.get("/api/auth/capabilities").await.json, json!({"enabled": false, "login": null}));
    let preflight = server.send(Method::OPTIONS, "/api/agents", &[("origin", "http://app")], Body::empty()).await;
    assert_eq!(preflight.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn loop_211_http_011_http_213_the_user_is_the_resource_whatever_the_request_says() {
    let server = Server::with_auth().await;
    for (thread, memory) in [("one", json!({"thread": "one"})), ("two", json!({"thread": "two", "resource": "bob"}))] {
        let body = json!({
            "messages": "[[say hi]]", "memory": memory, "requestContext": {"mastra__resourceId": "bob"},
        });
        let answer = server.post_as("alice", "/api/agents/plain/generate", body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        let stored = server.bugle.storage().get_thread(thread).await.unwrap().unwrap();
        assert_eq!(stored.resource_id, "alice");
    }
}

#[tokio::test]
async fn r1_a_run_id_that_is_live_or_waits_is_409_to_all_others() {
    let server = Server::with_auth().await;
    let stream = "/api/agents/plain/stream";
    let headers = [("content-type", "application/json"), ("authorization", "Bearer token-alice")];
    let body = |text: &str, thread: Option<&str>, run_id: &str| {
        let mut body = json!({"messages": text, "runId": run_id});
        if let Some(thread) = thread {
            body["memory"] = json!({"thread": thread});
        }
        body
    };
    let open = async |text: &str, thread: Option<&str>, run_id: &str| {
        let body = Body::from(body(text, thread, run_id).to_string());
        server.open(Method::POST, stream, &headers, body).await
    };
    let live = open("[[say one ;; hang]]", Some("t"), "live").await;
    let waiting = open("[[say two]]", Some("t"), "waiting").await;
    let unthreaded = open("[[say three ;; hang]]", None, "unthreaded").await;
    server.model.until_requested(2).await;
    for run_id in ["live", "waiting", "unthreaded"] {
        for thread in [Some("mine"), None] {
            let answer = server.post_as("bob", stream, body("[[say x]]", thread, run_id)).await;
            assert_eq!(answer.status, StatusCode::CONFLICT, "{run_id} {thread:?} {}", answer.text);
            assert_eq!(answer.json["runId"], run_id);
            assert!(answer.json["error"].as_str().unwrap().contains("choose another runId"), "{}", answer.text);
        }
        let queued = json!({
            "message": "x", "threadId": "mine", "ifIdle": {"streamOptions": {"runId": run_id}},
        });
        let answer = server.post_as("bob", "/api/agents/plain/queue-message", queued).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{run_id} {}", answer.text);
    }
    let again = server.post_as("alice", stream, body("[[say x]]", Some("t"), "waiting")).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "two waiting runs never share an id");
    let thread = server.bugle.thread_of_run(&"live".into()).unwrap();
    assert_eq!((thread.resource_id.as_deref(), &*thread.thread_id), (Some("alice"), "t"));

    // Once they have ended, their ids are free.
    drop((live, unthreaded));
    let text = axum::body::to_bytes(waiting.into_body(), usize::MAX).await.unwrap();
    assert!(text.ends_with(b"data: [DONE]\n\n"));
    let answer = server.post_as("bob", "/api/agents/plain/generate", body("[[say x]]", Some("mine"), "live")).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
}

#[tokio::test]
async fn r15_sig_061_who_is_bound_to_a_resource_is_routed_as_all_are() {
    for bound in [true, false] {
        let server = if bound { Server::with_auth().await } else { Server::new().await };
        let user = if bound { "alice" } else { "" };
        let post = async |body: Value| server.post_as(user, "/api/agents/plain/send-message", body).await;
        let to = |text: &str, thread: &str, run_id: &Value| json!({"message": text, "threadId": thread, "resourceId": "alice", "runId": run_id});
        let woken = post(json!({"message": "[[say one ;; hang]]", "threadId": "t", "resourceId": "alice"})).await;
        let run_id = woken.json["runId"].clone();
        server.model.until_requested(1).await;
        let wrong = post(to("x", "elsewhere", &run_id)).await;
        assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{bound} {}", wrong.text);
        assert!(wrong.json["error"].as_str().unwrap().contains("is not on thread elsewhere"), "{}", wrong.text);
        let alone = post(json!({"message": "joins", "runId": run_id})).await;
        assert_eq!((&alone.json["action"], &alone.json["runId"]), (&json!("deliver"), &run_id), "{}", alone.text);
        let ended = post(to("[[say two]]", "u", &json!("ended"))).await;
        assert_eq!(ended.json["action"], "wake", "{bound} {}", ended.text);
        let nowhere = post(json!({"message": "x", "runId": "ended"})).await;
        assert_eq!(nowhere.status, StatusCode::BAD_REQUEST, "{bound} {}", nowhere.text);
        if bound {
            let body = json!({"message": "x", "threadId": "t", "runId": run_id});
            let foreign = server.post_as("bob", "/api/agents/plain/send-message", body).await;
            assert_eq!(foreign.status, StatusCode::FORBIDDEN, "{}", foreign.text);
        }
    }
}

/// Everything that bob may try on a thread of alice's.
#[tokio::test]
async fn mem_140_http_214_ruling_20_threads_of_others_are_404_to_readers_and_403_to_writers() {
    let server = Server::with_auth().await;
    let body = json!({"messages": "[[say hi]]", "memory": {"thread": "t"}});
    assert_eq!(server.post_as("alice", "/api/agents/plain/generate", body).await.status, StatusCode::OK);
    let stored = server.get_as("alice", "/api/memory/threads/t/messages?agentId=plain").await;
    let message = stored.json["messages"][0]["id"].as_str().unwrap().to_owned();

    for path in [
        "/api/memory/threads/t?agentId=plain",
        "/api/memory/threads/t/messages?agentId=plain",
        "/api/memory/threads/t/messages?agentId=plain&resourceId=alice",
        "/api/agents/plain/threads/pending?threadId=t&resourceId=alice",
    ] {
        assert_eq!(server.get_as("bob", path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let on = |more: Value| {
        let mut body = json!({"threadId": "t", "resourceId": "alice"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (method, path, body) in [
        (
            Method::POST,
            "/api/agents/plain/generate",
            json!({"messages": "x", "memory": {"thread": "t", "resource": "alice"}}),
        ),
        (
            Method::POST,
            "/api/agents/plain/stream",
            json!({"messages": "x", "memory": {"thread": "t", "resource": "alice"}}),
        ),
        (Method::POST, "/api/agents/plain/send-message", on(json!({"message": "x"}))),
        (Method::POST, "/api/agents/plain/queue-message", on(json!({"message": "x"}))),
        (Method::POST, "/api/agents/plain/signals", on(json!({"signal": {"type": "user", "contents": "x"}}))),
        (Method::POST, "/api/agents/plain/queue-signal", on(json!({"signal": {"type": "user", "contents": "x"}}))),
        (
            Method::POST,
            "/api/agents/plain/signals",
            on(json!({"signal": {"type": "user", "contents": "x"}, "ifIdle": {"behavior": "persist"}})),
        ),
        (Method::POST, "/api/agents/plain/threads/subscribe", on(json!({}))),
        (Method::POST, "/api/agents/plain/threads/abort", on(json!({}))),
        (Method::POST, "/api/agents/plain/send-tool-approval", on(json!({"toolCallId": "c", "approved": true}))),
        (Method::POST, "/api/agents/plain/cancel-queued-messages", on(json!({"signalIds": ["m"]}))),
        (Method::POST, "/api/agents/plain/promote-queued-message", on(json!({"signalId": "m"}))),
        (Method::PATCH, "/api/agents/plain/queued-messages/m", on(json!({"contents": "x"}))),
        (Method::POST, "/api/memory/threads?agentId=plain", on(json!({}))),
        (Method::PATCH, "/api/memory/threads/t?agentId=plain", json!({"title": "mine"})),
        (Method::DELETE, "/api/memory/threads/t?agentId=plain", json!({})),
        (Method::POST, "/api/memory/threads/t/clone?agentId=plain", json!({})),
        (Method::POST, "/api/memory/threads/t/transfer?agentId=plain", json!({"resourceId": "bob"})),
        (Method::POST, "/api/memory/threads/t/working-memory?agentId=plain", json!({"workingMemory": "x"})),
        (Method::POST, "/api/memory/messages/delete?agentId=plain", json!({"messageIds": message})),
        (
            Method::POST,
            "/api/memory/save-messages?agentId=plain",
            json!({"messages": [{"threadId": "t", "resourceId": "alice", "role": "user", "content": "x"}]}),
        ),
    ] {
        let answer = server.json_as(method, "bob", path, body).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path} {}", answer.text);
    }
    let listed = server.get_as("bob", "/api/memory/threads?resourceId=alice&agentId=plain").await;
    assert_eq!(listed.json["threads"], json!([]));
    let after = server.get_as("alice", "/api/memory/threads/t/messages?agentId=plain").await;
    assert_eq!(after.json, stored.json, "bob has changed the thread");
}

#[tokio::test]
async fn mem_141_every_thread_of_a_batch_is_checked() {
    let server = Server::with_auth().await;
    for user in ["alice", "bob"] {
        let body = json!({"threadId": user, "resourceId": user});
        assert_eq!(server.post_as(user, "/api/memory/threads?agentId=plain", body).await.status, StatusCode::OK);
    }
    let message = |thread: &str, resource: &str| json!({"threadId": thread, "resourceId": resource, "role": "user", "content": "x"});
    for second in [
        message("alice", "alice"),
        message("alice", "bob"),
        json!({"threadId": "alice", "role": "user", "content": "x"}),
    ] {
        let batch = json!({"messages": [message("bob", "bob"), second]});
        let answer = server.post_as("bob", "/api/memory/save-messages?agentId=plain", batch).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.text);
    }
    for thread in ["alice", "bob"] {
        let stored = server.bugle.storage().recent_messages(&bugle::ThreadKey::unowned(thread), 9).await.unwrap();
        assert_eq!(stored, [], "{thread}: all or nothing");
    }
}

#[tokio::test]
async fn http_214_a_run_id_opens_no_thread_of_another_user() {
    let server = Server::with_auth().await;
    let mine = json!({"message": "[[say one ;; hang]]", "threadId": "t"});
    let sent = server.post_as("alice", "/api/agents/plain/send-message", mine).await;
    let run = &sent.json["runId"];
    let body = json!({"signal": {"type": "notification", "contents": "x"}, "runId": run});
    let answer = server.post_as("bob", "/api/agents/plain/signals", body.clone()).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.text);
    let answer = server.post_as("alice", "/api/agents/plain/signals", body).await;
    assert_eq!((answer.status, &answer.json["runId"]), (StatusCode::OK, run));
    let stop = server.post_as("alice", "/api/agents/plain/threads/abort", json!({"threadId": "t"})).await;
    assert_eq!(stop.json, json!({"aborted": true}));
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn http_014_http_015_http_016_cors() {
    let origin = [("origin", "http://app.example")];
    for server in [Server::new().await, Server::with_auth().await] {
        for path in ["/api/agents", "/api/no-such-route", "/health"] {
            let answer = server.send(Method::GET, path, &origin, Body::empty()).await;
            assert_eq!(header(&answer.headers, "access-control-allow-origin"), Some("http://app.example"));
            assert_eq!(header(&answer.headers, "access-control-allow-credentials"), Some("true"));
            assert_eq!(header(&answer.headers, "vary"), Some("Origin"));
        }
        let preflight = server.send(Method::OPTIONS, "/api/agents/plain/stream", &origin, Body::empty()).await;
        assert_eq!(preflight.status, StatusCode::NO_CONTENT);
        assert_eq!(
            header(&preflight.headers, "access-control-allow-methods"),
            Some("GET,POST,PUT,PATCH,DELETE,OPTIONS")
        );
        assert_eq!(header(&preflight.headers, "access-control-max-age"), Some("3600"));
    }
    assert_eq!(header(&Server::new().await.get("/api/agents").await.headers, "access-control-allow-origin"), Some("*"));
    let some = bugle_server::Origins::Only(vec!["http://app.example".into()]);
    let server = Server::with(bugle_server::ServerOptions::builder().origins(some).build()).await;
    let other = server.send(Method::GET, "/api/agents", &[("origin", "http://evil.example")], Body::empty()).await;
    assert_eq!(header(&other.headers, "access-control-allow-origin"), None);
    assert_eq!(header(&other.headers, "access-control-allow-credentials"), None);
}
