//! Plain calls: what is sent, what is repeated, what a refusal becomes.

use bugle_client::{Client, Error, Input, SuspendedQuery, ToolApproval};
use serde_json::{Value, json};

use crate::support::server;

const ACCEPTED: &str = r#"{"accepted":true,"action":"deliver","runId":"r1","signal":{"id":"s1","type":"user","tagName":"user","contents":"hi","createdAt":"2026-01-01T00:00:00.000Z"}}"#;

#[tokio::test]
async fn cli_054_what_the_network_lost_is_repeated_with_the_same_id() {
    let (url, requests) = server();
    let client = Client::builder(url).token("secret").build().unwrap();
    let sending =
        tokio::spawn(async move { client.agent("a b").thread("r", "t").send_message(Input::text("hi")).await });
    let answering = tokio::task::spawn_blocking(move || {
        let mut ids = Vec::new();
        for attempt in 0..3 {
            let request = requests.recv().unwrap();
            assert!(request.head.starts_with("POST /api/agents/a%20b/send-message "), "{}", request.head);
            assert_eq!(request.header("authorization"), Some("Bearer secret"));
            let body: Value = serde_json::from_str(&request.body).unwrap();
            ids.push(body["message"]["id"].clone());
            // The first two connections break without an answer.
            if attempt == 2 {
                request.json("200 OK", ACCEPTED);
            }
        }
        ids
    });
    let accepted = sending.await.unwrap().unwrap();
    assert_eq!((accepted.run_id.as_str(), accepted.signal.id.as_str()), ("r1", "s1"));
    let ids = answering.await.unwrap();
    assert!(ids[0].is_string() && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[tokio::test]
async fn an_answer_is_never_repeated_and_keeps_what_the_server_said() {
    let (url, requests) = server();
    let client = Client::new(url).unwrap();
    let sending = tokio::spawn(async move { client.agent("a").thread("r", "t").abort(None, false).await });
    let answering = tokio::task::spawn_blocking(move || {
        let body = r#"{"error":"Invalid request body","issues":[{"field":"threadId","message":"too long"}]}"#;
        requests.recv().unwrap().json("503 Service Unavailable\r\nretry-after: 1", body);
        requests
    });
    let requests = answering.await.unwrap();
    match sending.await.unwrap() {
        Err(Error::Status { status, message, body, retry_after }) => {
            assert_eq!((status, message.as_str()), (503, "Invalid request body: threadId: too long"));
            assert_eq!((body["issues"][0]["field"].as_str(), retry_after.unwrap().as_secs()), (Some("threadId"), 1));
        }
        other => panic!("{other:?}"),
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn nobody_there_is_said_with_the_address() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = Client::new(format!("http://me:pw@127.0.0.1:{port}")).unwrap();
    let error = client.agents().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!(error.to_string(), format!("no server at http://127.0.0.1:{port}"));
}

#[tokio::test]
async fn http_240_pending_promote_edit_and_cancel_speak_their_routes() {
    let (url, requests) = server();
    let thread = Client::new(url).unwrap().agent("a").thread("r", "t");
    let answering = tokio::task::spawn_blocking(move || {
        let mut seen = Vec::new();
        for body in [
            r#"{"pending":[]}"#,
            r#"{"promoted":true,"runId":"r1","to":"front"}"#,
            r#"{"signal":{"id":"s1","type":"user","tagName":"user","contents":"new","createdAt":"2026-01-01T00:00:00.000Z"}}"#,
            r#"{"cancelledSignalIds":["s1"]}"#,
        ] {
            let request = requests.recv().unwrap();
            let line = request.head.lines().next().unwrap().to_owned();
            let sent: Value = serde_json::from_str(&request.body).unwrap_or_default();
            request.json("200 OK", body);
            seen.push((line, sent));
        }
        seen
    });
    assert_eq!(thread.pending().await.unwrap(), []);
    let id = "s1".into();
    let promoted = thread.promote(&id, bugle::runtime::PromoteTo::Front).await.unwrap();
    assert_eq!(promoted.run_id.as_str(), "r1");
    let edit = bugle_client::EditInput { contents: Some("new".into()), attributes: None };
    assert_eq!(thread.edit(&id, &edit).await.unwrap().contents, "new".into());
    assert_eq!(thread.cancel_queued(std::slice::from_ref(&id)).await.unwrap(), [id]);
    let seen = answering.await.unwrap();
    let target = |mut more: Value| {
        more["threadId"] = "t".into();
        more["resourceId"] = "r".into();
        more
    };
    assert_eq!(
        seen,
        [
            ("GET /api/agents/a/threads/pending?threadId=t&resourceId=r HTTP/1.1".into(), Value::Null),
            (
                "POST /api/agents/a/promote-queued-message HTTP/1.1".into(),
                target(json!({"signalId": "s1", "to": "front"}))
            ),
            ("PATCH /api/agents/a/queued-messages/s1 HTTP/1.1".into(), target(json!({"contents": "new"}))),
            ("POST /api/agents/a/cancel-queued-messages HTTP/1.1".into(), target(json!({"signalIds": ["s1"]}))),
        ]
    );
}

#[tokio::test]
async fn http_099_approvals_speak_their_routes() {
    let (url, requests) = server();
    let agent = Client::new(url).unwrap().agent("a");
    let thread = agent.thread("r", "t");
    let answering = tokio::task::spawn_blocking(move || {
        let mut seen = Vec::new();
        for body in [
            r#"{"runs":[{"runId":"r1","status":"suspended","threadId":"t","resourceId":"r","suspendedAt":"2026-01-01T00:00:00.000Z","toolCalls":[{"toolCallId":"c1","toolName":"remove","args":{"path":"/a"},"requiresApproval":true}]}],"total":3}"#,
            r#"{"accepted":true,"runId":"r1","toolCallId":"c1"}"#,
            r#"{"accepted":true,"runId":"r1","toolCallId":"c1"}"#,
            r#"{"text":"done","finishReason":"stop","runId":"r1"}"#,
            r#"{"text":"not done","finishReason":"stop","runId":"r1"}"#,
            r#"{"discarded":true,"runId":"r 1"}"#,
        ] {
            let request = requests.recv().unwrap();
            let line = request.head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
            let sent: Value = serde_json::from_str(&request.body).unwrap_or_default();
            request.json("200 OK", body);
            seen.push((line, sent));
        }
        seen
    });
    let query = SuspendedQuery {
        thread_id: Some("t".into()),
        from: Some(bugle::time::Timestamp::from_millis(0)),
        per_page: Some(2),
        ..SuspendedQuery::default()
    };
    let waiting = agent.suspended_runs(&query).await.unwrap();
    let call = &waiting.runs[0].tool_calls[0];
    assert_eq!((waiting.total, call.tool_call_id.as_str(), call.requires_approval), (3, "c1", true));
    let accepted = thread.send_tool_approval(&ToolApproval::decline("c1", Some("no".into()))).await.unwrap();
    assert_eq!((accepted.run_id.as_str(), accepted.tool_call_id.as_deref()), ("r1", Some("c1")));
    thread.send_tool_approval(&ToolApproval::resume("c1", json!({"answer": "blue"}))).await.unwrap();
    let run = "r1".into();
    assert_eq!(agent.approve_generate(&run, "c1", serde_json::Map::new()).await.unwrap().text, "done");
    let declined = agent.decline_generate(&run, "c1", Some("no"), serde_json::Map::new()).await.unwrap();
    assert_eq!(declined.text, "not done");
    assert!(agent.discard_suspended_run(&"r 1".into()).await.unwrap());
    let seen = answering.await.unwrap();
    let on_thread = |mut more: Value| {
        more["threadId"] = "t".into();
        more["resourceId"] = "r".into();
        more
    };
    let post = |route: &str| format!("POST /api/agents/a/{route}");
    assert_eq!(
        seen,
        [
            (
                "GET /api/agents/a/suspended-runs?threadId=t&fromDate=1970-01-01T00%3A00%3A00.000Z&perPage=2".into(),
                Value::Null
            ),
            (post("send-tool-approval"), on_thread(json!({"toolCallId": "c1", "approved": false, "reason": "no"}))),
            (
                post("send-tool-approval"),
                on_thread(json!({"toolCallId": "c1", "approved": true, "resumeData": {"answer": "blue"}}))
            ),
            (post("approve-tool-call-generate"), json!({"runId": "r1", "toolCallId": "c1"})),
            (post("decline-tool-call-generate"), json!({"runId": "r1", "toolCallId": "c1", "reason": "no"})),
            ("DELETE /api/agents/a/suspended-runs/r%201".into(), Value::Null),
        ]
    );
}

#[tokio::test]
async fn http_104_a_run_that_goes_on_is_followed_to_its_end() {
    let (url, requests) = server();
    let agent = Client::new(url).unwrap().agent("a");
    let answering = tokio::task::spawn_blocking(move || {
        let mut seen = Vec::new();
        for _ in 0..3 {
            let mut request = requests.recv().unwrap();
            let line = request.head.lines().next().unwrap().to_owned();
            seen.push((line, serde_json::from_str::<Value>(&request.body).unwrap()));
            request.event_stream();
            request.write("data: {\"type\":\"text-delta\",\"runId\":\"r1\",\"payload\":{\"id\":\"t\",\"text\":\"a\"}}\n\ndata: [DONE]\n\n");
        }
        seen
    });
    let run = "r1".into();
    let none = serde_json::Map::new;
    for mut stream in [
        agent.approve(&run, "c1", none()).await.unwrap(),
        agent.decline(&run, "c1", Some("no"), none()).await.unwrap(),
        agent.resume(&run, None, json!(false), none()).await.unwrap(),
    ] {
        assert_eq!(stream.next().await.unwrap().unwrap().kind(), "text-delta");
        assert!(stream.next().await.is_none());
    }
    let post = |route: &str| format!("POST /api/agents/a/{route} HTTP/1.1");
    assert_eq!(
        answering.await.unwrap(),
        [
            (post("approve-tool-call"), json!({"runId": "r1", "toolCallId": "c1"})),
            (post("decline-tool-call"), json!({"runId": "r1", "toolCallId": "c1", "reason": "no"})),
            (post("resume-stream"), json!({"runId": "r1", "resumeData": false})),
        ]
    );
}
