//! Notifications and webhooks over HTTP (HTTP §12, NOTIF-121, PROV-010 … PROV-013).

use std::sync::Arc;

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use bugle::{
    Agent, Bugle, ThreadKey,
    json::{Value, json},
    memory::MemoryOptions,
    model::ScriptedModel,
    provider::{Secret, Verifier, WebhookOptions, WebhookPreset, WebhookProvider},
    storage::MemoryStorage,
};
use bugle_server::{ServerOptions, router};

use crate::support::{Server, kinds};

fn event(priority: &str) -> Value {
    json!({"resourceId": "ann", "threadId": "t1", "source": "github", "kind": "ci-status", "summary": "CI failed",
        "priority": priority, "payload": {"run": 7}})
}

const INBOX: &str = "/api/agents/plain/notifications";

#[tokio::test]
async fn notif_121_a_notification_wakes_the_agent_and_stands_in_the_inbox() {
    let server = Server::new().await;
    let mut frames = server.subscribe("t1", "ann").await;
    let sent = server.post(INBOX, event("high")).await;
    assert_eq!(sent.status, StatusCode::OK, "{}", sent.text);
    let body = &sent.json;
    assert_eq!((&body["accepted"], &body["action"]), (&json!(true), &json!("wake")));
    assert_eq!(body["decision"], json!({"action": "deliver", "reason": "idle-high"}));
    assert!(body["runId"].is_string());
    assert_eq!(body["record"]["status"], "delivered");
    let id = body["notificationId"].as_str().unwrap();
    let seen = kinds(&frames.until("\"type\":\"finish\"").await);
    assert!(seen.contains(&"data-signal".to_owned()), "{seen:?}");

    let listed = server.get(&format!("{INBOX}?threadId=t1&resourceId=ann&status=delivered,pending")).await;
    assert_eq!(listed.json["notifications"][0]["id"], id);
    assert_eq!(
        (&listed.json["notifications"][0]["payload"], &listed.json["hasMore"]),
        (&json!({"run": 7}), &json!(false))
    );
    for (action, status) in [("seen", "seen"), ("dismiss", "dismissed"), ("archive", "archived")] {
        let marked =
            server.post(&format!("{INBOX}/{id}/{action}"), json!({"threadId": "t1", "resourceId": "ann"})).await;
        assert_eq!(marked.json["notification"]["status"], status, "{}", marked.text);
    }
    let retried = server.post(&format!("{INBOX}/{id}/retry"), json!({"threadId": "t1"})).await;
    assert_eq!((retried.status, retried.fields()), (StatusCode::BAD_REQUEST, vec!["id"]));
    let none = server.post(&format!("{INBOX}/none/seen"), json!({"threadId": "t1"})).await;
    assert_eq!(none.status, StatusCode::NOT_FOUND);
    let others = server.get("/api/agents/noting/notifications?resourceId=ann").await;
    assert_eq!(others.json["notifications"], json!([]), "an inbox is an agent's own");
}

#[tokio::test]
async fn notif_120_the_agents_route_takes_and_gives_the_fields_of_the_controllers() {
    let server = Server::new().await;
    let body = json!({"source": "github", "kind": "ci-status", "summary": "CI failed", "priority": "low",
        "payload": {"run": 7}, "sourceId": "run-7", "dedupeKey": "d", "coalesceKey": "c", "attributes": {"branch": "main"},
        "metadata": {"m": 1}});
    let nobody = server.post("/api/agent-controller/plain/sessions/ann/notifications", body.clone()).await;
    assert_eq!(nobody.status, StatusCode::NOT_FOUND, "agents have the route, and controllers are not there");
    let mut addressed = body.clone();
    addressed["resourceId"] = json!("ann");
    addressed["threadId"] = json!("t1");
    let sent = server.post(INBOX, addressed.clone()).await.json;
    assert_eq!((&sent["accepted"], &sent["runId"]), (&json!(false), &json!(null)), "no signal was emitted");
    assert_eq!((&sent["decision"]["action"], &sent["notificationId"]), (&json!("summarize"), &sent["record"]["id"]));
    for (field, value) in body.as_object().unwrap() {
        assert_eq!(&sent["record"][field], value, "{field}");
    }
    addressed["priority"] = json!("urgent");
    let woken = server.post(INBOX, addressed).await.json;
    assert_eq!(
        (&woken["accepted"], &woken["notificationId"]),
        (&json!(true), &sent["notificationId"]),
        "merged, and sent"
    );
    assert!(woken["runId"].is_string());
}

#[tokio::test]
async fn notif_121_pages_filters_and_searches() {
    let server = Server::new().await;
    for number in 0..5 {
        let mut low = event("low");
        low["summary"] = json!(format!("event {number}"));
        low["threadId"] = json!(format!("t{}", number % 2));
        server.post(INBOX, low).await;
    }
    let mut seen = Vec::new();
    let mut path = format!("{INBOX}?resourceId=ann&limit=2");
    loop {
        let page = server.get(&path).await;
        let records = page.json["notifications"].as_array().unwrap().clone();
        seen.extend(records.iter().map(|record| record["summary"].as_str().unwrap().to_owned()));
        let Some(next) = page.json["nextCursor"].as_str() else { break };
        path = format!("{INBOX}?resourceId=ann&limit=2&cursor={next}");
    }
    seen.sort();
    assert_eq!(seen, ["event 0", "event 1", "event 2", "event 3", "event 4"]);
    for (filter, count) in [
        ("threadId=t0&resourceId=ann", 3),
        ("resourceId=ann&search=EVENT%203", 1),
        ("resourceId=ann&priority=high,urgent", 0),
        ("resourceId=ann&source=github&limit=200", 5),
        ("resourceId=ann&limit=0", 0),
    ] {
        let found = server.get(&format!("{INBOX}?{filter}")).await;
        assert_eq!(found.json["notifications"].as_array().map(Vec::len), Some(count), "{filter}: {}", found.text);
    }
    for (query, field) in
        [("", "threadId"), ("resourceId=ann&status=new", "status"), ("resourceId=ann&cursor=x", "cursor")]
    {
        let refused = server.get(&format!("{INBOX}?{query}")).await;
        assert_eq!((refused.status, refused.fields()), (StatusCode::BAD_REQUEST, vec![field]), "{query}");
    }
}

#[tokio::test]
async fn notif_006_wrong_bodies_name_their_fields_and_store_nothing() {
    let server = Server::new().await;
    for (change, field) in [
        (json!({"source": null}), "source"),
        (json!({"summary": "  "}), "summary"),
        (json!({"priority": "zzz"}), "priority"),
        (json!({"attributes": {"a b": 1}}), "attributes.a b"),
        (json!({"attributes": {"a": {"b": 1}}}), "attributes.a"),
        (json!({"threadId": ""}), "threadId"),
        (json!({"resourceId": null}), "resourceId"),
        (json!({"payload": "x".repeat(300_000)}), "payload"),
        (json!({"ifIdle": {"behavior": "shout"}}), "ifIdle.behavior"),
    ] {
        let mut body = event("high");
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        let refused = server.post(INBOX, body).await;
        assert_eq!((refused.status, refused.fields()), (StatusCode::BAD_REQUEST, vec![field]), "{}", refused.text);
    }
    assert_eq!(server.get(&format!("{INBOX}?resourceId=ann")).await.json["notifications"], json!([]));
    assert_eq!(server.post("/api/agents/none/notifications", event("high")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn notif_121_inboxes_belong_to_their_resource() {
    let server = Server::with_auth().await;
    let mut mine = event("low");
    mine["threadId"] = json!("alices");
    let sent = server.post_as("alice", INBOX, mine.clone()).await;
    assert_eq!(sent.json["record"]["resourceId"], "alice", "HTTP-213: whatever the body says");
    let id = sent.json["notificationId"].as_str().unwrap().to_owned();
    // The thread is alice's once it is written; a summary is being written at this moment.
    let owned =
        bugle::storage::NewThread { id: Some("alices".into()), resource_id: "alice".into(), ..Default::default() };
    server.bugle.storage().create_thread(owned).await.unwrap();
    assert_eq!(server.post_as("bob", INBOX, mine).await.status, StatusCode::FORBIDDEN);
    let mark = server.post_as("bob", &format!("{INBOX}/{id}/dismiss"), json!({"threadId": "alices"})).await;
    assert_eq!(mark.status, StatusCode::FORBIDDEN);
    assert_eq!(server.get_as("bob", &format!("{INBOX}?threadId=alices")).await.status, StatusCode::NOT_FOUND);
    let all = server.get_as("bob", &format!("{INBOX}?resourceId=alice")).await;
    assert_eq!(all.json["notifications"], json!([]), "bob is bob");
    let own = server.get_as("alice", INBOX).await;
    assert_eq!(own.json["notifications"][0]["id"], id.as_str());
    let unknown = server.send(Method::GET, INBOX, &[], Body::empty()).await;
    assert_eq!(unknown.status, StatusCode::UNAUTHORIZED);
}

/// GitHub's own example of a signature.
const SECRET: &str = "It's a Secret to Everybody";

async fn hooked() -> Server {
    let model = ScriptedModel::recording();
    let agent = Agent::builder("plain").model(Arc::new(model.clone())).memory(MemoryOptions::last(20)).build().unwrap();
    let github = WebhookProvider::new(
        WebhookOptions::builder().id("github").preset(WebhookPreset::GitHub).secrets(vec![Secret::new(SECRET)]).build(),
    );
    let open = WebhookProvider::new(WebhookOptions::builder().id("open").build())
        .verified_by(Verifier::custom(|request| request.header("x-key") == Some("k")));
    let unsigned = WebhookProvider::new(WebhookOptions::builder().id("unsigned").build());
    let bugle = Bugle::builder()
        .agent(agent)
        .storage(MemoryStorage::new())
        .provider("plain", Arc::new(github))
        .provider("plain", Arc::new(open))
        .provider("plain", Arc::new(unsigned))
        .build()
        .await
        .unwrap();
    let thread = ThreadKey::new("ann", "t1");
    bugle.subscribe_provider("plain", "open", &thread, "acme", None, None).await.unwrap();
    let token = bugle_server::Token::builder().secret("token-ann").user("ann").resource("ann").build();
    let options = ServerOptions::builder().auth(bugle_server::Auth::Tokens(vec![token])).build();
    Server { router: router(bugle.clone(), options), bugle, model }
}

#[tokio::test]
async fn prov_008_010_only_signed_webhooks_come_in_and_they_need_no_token() {
    let server = hooked().await;
    let post = async |path: &str, headers: &[(&str, &str)], body: &str| {
        server.send(Method::POST, path, headers, Body::from(body.to_owned())).await
    };
    let github = "/api/signals/github/webhook";
    let signed = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let right = post(github, &[("x-hub-signature-256", signed)], "Hello, World!").await;
    assert_eq!(right.status, StatusCode::BAD_REQUEST, "it is believed, but is no JSON: {}", right.text);
    for headers in [vec![("x-hub-signature-256", signed)], vec![]] {
        let refused = post(github, &headers, "Hello, World?").await;
        assert_eq!((refused.status, refused.json), (StatusCode::UNAUTHORIZED, json!({"error": "Unauthorized"})));
    }
    for path in ["/api/signals/unsigned/webhook", "/api/signals/none/webhook"] {
        assert_eq!(post(path, &[], "{}").await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let long = " ".repeat((1 << 20) + 1);
    assert_eq!(post("/api/signals/open/webhook", &[("x-key", "k")], &long).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    let other = post("/api/signals/a/b/webhook", &[], "{}").await;
    assert_eq!(other.status, StatusCode::UNAUTHORIZED, "only that one path is open");
}

#[tokio::test]
async fn prov_012_a_senders_retry_is_a_duplicate() {
    let server = hooked().await;
    let headers = [("x-key", "k"), ("webhook-id", "msg_1"), ("content-type", "application/json")];
    let path = "/api/signals/open/webhook";
    let body = r#"{"resource": "acme", "text": 1}"#;
    let first = server.send(Method::POST, path, &headers, Body::from(body)).await;
    assert_eq!((first.status, first.json), (StatusCode::OK, json!({"matched": 1})));
    let again = server.send(Method::POST, path, &headers, Body::from(body)).await;
    assert_eq!((again.status, again.json), (StatusCode::OK, json!({"matched": 1, "duplicate": true})));
    let fresh = [("x-key", "k"), ("webhook-id", "msg_2")];
    let replayed = server.send(Method::POST, path, &fresh, Body::from(body)).await;
    assert_eq!(replayed.json, json!({"matched": 1, "duplicate": true}), "no signature covers the name");
    let nobody = server.send(Method::POST, path, &headers[..1], Body::from(r#"{"resource": "other"}"#)).await;
    assert_eq!(nobody.json, json!({"matched": 0}));
}

#[tokio::test]
async fn prov_013_a_webhook_that_is_larger_than_a_payload_is_told_of_once() {
    let server = hooked().await;
    let body = json!({"resource": "acme", "text": "x".repeat(300 * 1024)}).to_string();
    let send = || server.send(Method::POST, "/api/signals/open/webhook", &[("x-key", "k")], Body::from(body.clone()));
    let first = send().await;
    assert_eq!((first.status, first.json), (StatusCode::OK, json!({"matched": 1})));
    assert_eq!(send().await.json, json!({"matched": 1, "duplicate": true}));
    let records = server.bugle.notifications(&bugle::storage::NotificationQuery::all()).await.unwrap().records;
    assert_eq!(records[0].payload.as_ref().unwrap()["omitted"], true);
}
