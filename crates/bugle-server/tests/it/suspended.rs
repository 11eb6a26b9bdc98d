//! Runs that wait for a person: answering them, whose they are, what is refused (HTTP §5.4, HTTP-102, HTTP-108).

use std::sync::Arc;

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use bugle::{
    Agent, Bugle, RunOptions, Tool,
    json::{Value, json},
    model::{Script, ScriptedModel},
    run::ApproveWhen,
    storage::MemoryStorage,
    subagent::Delegation,
};
use bugle_server::{Auth, ServerOptions, Token, router};
use bugle_storage::libsql::LibSql;

use crate::{
    golden::{agents, target, target_with},
    support::{Server, chunk, kinds},
};

const REMOVE: &str = "[[call delete-file {\"path\":\"/a\"}]] [[say finished]]";

fn on(thread: &str) -> Value {
    json!({"thread": thread, "resource": "ann"})
}

/// Starts a run that waits; gives its id and that of its call.
async fn park(server: &Server, thread: &str, prompt: &str) -> (String, String) {
    park_as(server, "", json!({"messages": prompt, "memory": on(thread)})).await
}

async fn park_as(server: &Server, user: &str, body: Value) -> (String, String) {
    let answer = server.post_as(user, "/api/agents/tooled/generate", body).await;
    assert_eq!((answer.status, &answer.json["finishReason"]), (StatusCode::OK, &json!("suspended")), "{}", answer.text);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&answer.json["runId"]), text(&answer.json["suspendPayload"]["toolCallId"]))
}

fn chunks(text: &str) -> Vec<Value> {
    text.split("\n\n").map(chunk).filter(|chunk| !chunk.is_null()).collect()
}

fn first<'a>(chunks: &'a [Value], kind: &str) -> &'a Value {
    chunks.iter().find(|chunk| chunk["type"] == kind).unwrap_or_else(|| panic!("no {kind} in {chunks:#?}"))
}

#[tokio::test]
async fn http_104_the_response_says_the_call_again_and_subscribers_do_not_hear_it_twice() {
    let server = target().await;
    let path = "/api/agents/tooled/threads/subscribe?threadId=t&resourceId=ann&eventIds=false";
    let mut watcher = server.open_frames(path, &[]).await;
    let (run, call) = park(&server, "t", REMOVE).await;
    let answer = server.post("/api/agents/tooled/approve-tool-call", json!({"runId": run, "toolCallId": call})).await;
    let own = chunks(&answer.text);
    let types: Vec<&str> = own.iter().filter_map(|chunk| chunk["type"].as_str()).collect();
    assert_eq!(types[..3], ["tool-call", "tool-result", "step-finish"], "{types:?}");
    assert_eq!(first(&own, "tool-call")["payload"]["args"], json!({"path": "/a"}));
    assert_eq!(first(&own, "tool-result")["payload"]["result"], json!({"deleted": "/a"}));
    let seen = watcher.until("\"type\":\"finish\"").await;
    assert_eq!(kinds(&seen).iter().filter(|kind| *kind == "tool-call").count(), 1);
}

#[tokio::test]
async fn http_108_answers_to_what_does_not_wait_are_refused_for_good() {
    let server = target().await;
    let agent = "/api/agents/tooled";
    let (run, call) = park(&server, "t", REMOVE).await;
    let post = async |route: &str, body: Value| server.post(&format!("{agent}/{route}"), body).await;
    for route in ["approve-tool-call", "decline-tool-call", "approve-tool-call-generate", "decline-tool-call-generate"]
    {
        let missing = post(route, json!({})).await;
        assert_eq!(missing.status, StatusCode::BAD_REQUEST);
        assert_eq!(missing.fields(), ["runId", "toolCallId"]);
        let unknown = post(route, json!({"runId": "no-such-run", "toolCallId": call})).await;
        assert_eq!(unknown.status, StatusCode::NOT_FOUND, "{}", unknown.text);
        let other = post(route, json!({"runId": run, "toolCallId": "other"})).await;
        assert_eq!(other.status, StatusCode::NOT_FOUND, "{}", other.text);
    }
    assert_eq!(post("resume-stream", json!({"runId": run})).await.fields(), ["resumeData"]);
    let unknown = post("resume-stream-until-idle", json!({"runId": "no-such-run", "resumeData": false})).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let on_thread = |call: &str| json!({"threadId": "t", "resourceId": "ann", "toolCallId": call, "approved": true});
    assert_eq!(post("send-tool-approval", on_thread("other")).await.status, StatusCode::NOT_FOUND);
    let elsewhere = json!({"threadId": "new", "resourceId": "ann", "toolCallId": call, "approved": true});
    assert_eq!(post("send-tool-approval", elsewhere).await.status, StatusCode::NOT_FOUND);
    let done = post("approve-tool-call-generate", json!({"runId": run, "toolCallId": call})).await;
    assert_eq!(done.json["text"], "finished", "{}", done.text);
    // Answered: not again.
    for route in ["approve-tool-call", "decline-tool-call-generate"] {
        let again = post(route, json!({"runId": run, "toolCallId": call})).await;
        assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.text);
    }
    assert_eq!(post("send-tool-approval", on_thread(&call)).await.status, StatusCode::CONFLICT);
    // An agent reaches its own runs only.
    let (run, call) = park(&server, "t2", REMOVE).await;
    let other = server.post("/api/agents/plain/approve-tool-call", json!({"runId": run, "toolCallId": call})).await;
    assert_eq!(other.status, StatusCode::NOT_FOUND, "{}", other.text);
}

#[tokio::test]
async fn http_012_bound_callers_answer_list_and_give_up_their_own_runs_alone() {
    let token = |user: &str| Token::builder().secret(format!("token-{user}")).user(user).resource(user).build();
    let auth = Auth::Tokens(vec![token("alice"), token("bob")]);
    let server = target_with(ServerOptions::builder().auth(auth).build()).await;
    let prompt = |thread: &str| json!({"messages": REMOVE, "memory": {"thread": thread}});
    let (run, call) = park_as(&server, "alice", prompt("hers")).await;
    let agent = "/api/agents/tooled";
    let answer = json!({"runId": run, "toolCallId": call});
    for route in ["approve-tool-call", "decline-tool-call", "approve-tool-call-generate", "decline-tool-call-generate"]
    {
        let refused = server.post_as("bob", &format!("{agent}/{route}"), answer.clone()).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{route}: {}", refused.text);
    }
    for route in ["resume-stream", "resume-stream-until-idle"] {
        let body = json!({"runId": run, "resumeData": {}});
        assert_eq!(server.post_as("bob", &format!("{agent}/{route}"), body).await.status, StatusCode::FORBIDDEN);
    }
    // Whatever resource he names.
    let approval = json!({"threadId": "hers", "resourceId": "alice", "toolCallId": call, "approved": true});
    let refused = server.post_as("bob", &format!("{agent}/send-tool-approval"), approval).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text);
    let run_path = format!("{agent}/suspended-runs/{run}");
    let refused = server.json_as(Method::DELETE, "bob", &run_path, Value::Null).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let list = async |user: &str, query: &str| server.get_as(user, &format!("{agent}/suspended-runs{query}")).await;
    assert_eq!(list("bob", "?resourceId=alice").await.json, json!({"runs": [], "total": 0}));
    assert_eq!(list("bob", "?threadId=hers").await.status, StatusCode::NOT_FOUND, "ruling 20");
    assert_eq!(list("alice", "?threadId=hers").await.json["total"], 1);
    assert_eq!(list("alice", "").await.json["runs"][0]["runId"], json!(run));
    let done = server.post_as("alice", &format!("{agent}/approve-tool-call-generate"), answer).await;
    assert_eq!(done.json["text"], "finished", "{}", done.text);
    // Without a thread there still is a caller.
    let (run, call) = park_as(&server, "alice", json!({"messages": REMOVE})).await;
    let body = json!({"runId": run, "toolCallId": call});
    let refused = server.post_as("bob", &format!("{agent}/approve-tool-call"), body).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text);
}

#[tokio::test]
async fn http_101_the_list_is_filtered_and_paged() {
    let server = target().await;
    for thread in ["t1", "t2", "t3"] {
        park(&server, thread, REMOVE).await;
    }
    let list = async |query: &str| server.get(&format!("/api/agents/tooled/suspended-runs{query}")).await;
    let threads = |answer: &Value| -> Vec<String> {
        let runs = answer["runs"].as_array().unwrap();
        runs.iter().map(|run| run["threadId"].as_str().unwrap().to_owned()).collect()
    };
    let all = list("?resourceId=ann").await.json;
    assert_eq!((threads(&all).len(), &all["total"]), (3, &json!(3)));
    let page = list("?perPage=2&page=1").await.json;
    assert_eq!((threads(&page).len(), &page["total"]), (1, &json!(3)), "HTTP-101: the total is before paging");
    assert_eq!(threads(&list("?threadId=t2").await.json), ["t2"]);
    assert_eq!(list("?resourceId=bob").await.json["total"], 0);
    assert_eq!(list("?fromDate=2000-01-01T00:00:00Z&toDate=2001-01-01T00:00:00Z").await.json["total"], 0);
    for (query, field) in [
        ("?perPage=0", "perPage"),
        ("?page=-1", "page"),
        ("?fromDate=yesterday", "fromDate"),
        ("?fromDate=2002-01-01T00:00:00Z&toDate=2001-01-01T00:00:00Z", "fromDate"),
    ] {
        let wrong = list(query).await;
        assert_eq!((wrong.status, wrong.fields()), (StatusCode::BAD_REQUEST, vec![field]), "{query}");
    }
    assert_eq!(list("?threadId=never").await.status, StatusCode::NOT_FOUND);
    let without_memory = server.get("/api/agents/researcher/suspended-runs?threadId=t1").await;
    assert_eq!(without_memory.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn loop_121_a_run_that_is_given_up_leaves_a_thread_that_goes_on() {
    let server = target().await;
    let (run, call) = park(&server, "t", REMOVE).await;
    let path = format!("/api/agents/tooled/suspended-runs/{run}");
    let delete = async || server.send(Method::DELETE, &path, &[], Body::empty()).await;
    let gone = delete().await;
    assert_eq!((gone.status, &gone.json["discarded"]), (StatusCode::OK, &json!(true)), "{}", gone.text);
    assert_eq!(delete().await.status, StatusCode::NOT_FOUND);
    let late = server.post("/api/agents/tooled/approve-tool-call", json!({"runId": run, "toolCallId": call})).await;
    assert_eq!(late.status, StatusCode::NOT_FOUND, "{}", late.text);
    let next = server.post("/api/agents/tooled/generate", json!({"messages": "[[say on]]", "memory": on("t")})).await;
    assert_eq!(next.json["text"], "on", "{}", next.text);
}

#[tokio::test]
async fn loop_090_a_run_may_ask_for_approval_of_every_tool() {
    let server = target().await;
    let prompt = "[[call get-weather {\"city\":\"Oslo\"}]] [[say cold]]";
    let (run, call) =
        park_as(&server, "", json!({"messages": prompt, "memory": on("t"), "requireToolApproval": true})).await;
    let done = server.post("/api/agents/tooled/approve-tool-call-generate", json!({"runId": run, "toolCallId": call}));
    assert_eq!(done.await.json["text"], "cold");
}

#[tokio::test]
async fn loop_117_a_run_is_answered_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let open = async || {
        let model = ScriptedModel::recording();
        let mut builder = Bugle::builder().storage(LibSql::open(path.to_str().unwrap()).unwrap());
        for agent in agents::all(Arc::new(model.clone())).unwrap() {
            builder = builder.agent(agent);
        }
        let bugle = builder.build().await.unwrap();
        Server { router: router(bugle.clone(), ServerOptions::default()), bugle, model }
    };
    let server = open().await;
    let (run, call) = park(&server, "t", REMOVE).await;
    server.bugle.shutdown(std::time::Duration::from_secs(5)).await;
    drop(server);
    let server = open().await;
    let listed = server.get("/api/agents/tooled/suspended-runs?threadId=t&resourceId=ann").await.json;
    assert_eq!(listed["runs"][0]["toolCalls"][0]["toolCallId"], json!(call));
    let path = "/api/agents/tooled/threads/subscribe?threadId=t&resourceId=ann&eventIds=false";
    let mut watcher = server.open_frames(path, &[]).await;
    let approval = json!({"threadId": "t", "resourceId": "ann", "toolCallId": call, "approved": true});
    let accepted = server.post("/api/agents/tooled/send-tool-approval", approval).await;
    assert_eq!(accepted.json, json!({"accepted": true, "runId": run, "toolCallId": call}), "{}", accepted.text);
    let seen = watcher.until("\"type\":\"finish\"").await;
    let kinds = kinds(&seen);
    assert!(kinds.contains(&"tool-result".to_owned()) && !kinds.contains(&"start".to_owned()), "{kinds:?}");
    assert_eq!(server.model.requested(), 1, "only what comes after the tool is asked");
}

#[tokio::test]
async fn durable_runs_are_said_not_to_be_here() {
    let server = target().await;
    let observe = server.post("/api/agents/tooled/observe", json!({"runId": "r", "offset": 3})).await;
    assert_eq!(observe.status, StatusCode::NOT_FOUND);
    let recover = server.post("/api/agents/tooled/recover", json!({"runId": "r"})).await;
    assert_eq!(recover.status, StatusCode::BAD_REQUEST);
    assert!(recover.json["error"].as_str().unwrap().contains("not a durable agent"), "{}", recover.text);
    assert_eq!(server.post("/api/agents/nobody/observe", json!({"runId": "r"})).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn http_040_options_of_delegation_are_checked() {
    let server = target().await;
    let ask = async |delegation: Value| {
        let body = json!({"messages": "[[say hi]]", "autoResumeSuspendedTools": true, "delegation": delegation});
        server.post("/api/agents/parent/generate", body).await
    };
    let fine = ask(json!({"hookErrorStrategy": "throw", "maxDepth": 2, "threadScope": "parentThread"})).await;
    assert_eq!(fine.json["text"], "hi", "{}", fine.text);
    for (delegation, field) in [
        (json!({"maxDepth": 9}), "delegation.maxDepth"),
        (json!({"threadScope": "mine"}), "delegation.threadScope"),
        (json!({"inheritMemory": "yes"}), "delegation.inheritMemory"),
    ] {
        let wrong = ask(delegation).await;
        assert_eq!((wrong.status, wrong.fields()), (StatusCode::BAD_REQUEST, vec![field]));
    }
}

#[tokio::test]
async fn loop_090_a_caller_may_not_waive_the_approvals_of_an_agent() {
    let model = Arc::new(ScriptedModel::recording());
    let agent = |id: &str, options: RunOptions| {
        let tool = Tool::json("look", |_, _| async { Ok(json!("seen")) });
        Agent::builder(id).model(model.clone()).tool(tool).default_options(options).build().unwrap()
    };
    let all = RunOptions { require_tool_approval: Some(true), ..RunOptions::default() };
    let some = RunOptions { approve_when: Some(ApproveWhen(Arc::new(|_| true))), ..RunOptions::default() };
    let bugle = Bugle::builder()
        .agent(agent("all", all))
        .agent(agent("some", some))
        .agent(agent("none", RunOptions::default()))
        .storage(MemoryStorage::new());
    let bugle = bugle.build().await.unwrap();
    let server = Server { router: router(bugle.clone(), ServerOptions::default()), bugle, model: (*model).clone() };
    for (id, asked, reason) in [
        ("all", false, "suspended"),
        ("some", false, "suspended"),
        ("none", false, "stop"),
        ("none", true, "suspended"),
        ("some", true, "suspended"),
    ] {
        let body = json!({"messages": "[[call look {}]] [[say done]]", "requireToolApproval": asked});
        let answer = server.post(&format!("/api/agents/{id}/generate"), body).await;
        assert_eq!(answer.json["finishReason"], reason, "{id} {asked}: {}", answer.text);
    }
}

#[tokio::test]
async fn sub_034_sub_165_a_caller_has_no_more_of_delegations_than_the_agent_allows() {
    for (own, asked, requests, shows_system) in [
        (Delegation { max_depth: Some(0), ..Delegation::default() }, json!({"maxDepth": 8}), 0, false),
        (Delegation { max_depth: Some(1), ..Delegation::default() }, json!({"maxDepth": 0}), 0, false),
        (Delegation::default(), json!({"includeParentSystem": true, "maxDepth": 8}), 1, false),
        (Delegation { include_parent_system: Some(true), ..Delegation::default() }, json!({}), 1, true),
        (
            Delegation { include_parent_system: Some(true), ..Delegation::default() },
            json!({"includeParentSystem": true}),
            1,
            true,
        ),
        (
            Delegation { include_parent_system: Some(true), ..Delegation::default() },
            json!({"includeParentSystem": false}),
            1,
            false,
        ),
    ] {
        let case = format!("{own:?} {asked}");
        let call = Script::new().call("agent-helper", json!({"prompt": "go"}));
        let (model, child) = (ScriptedModel::with_responses([call, Script::from("ok")]), ScriptedModel::recording());
        let helper = Agent::builder("helper").description("Helps.").model(Arc::new(child.clone())).build().unwrap();
        let lead = Agent::builder("lead").instructions("You know the secret.").model(Arc::new(model.clone()));
        let options = RunOptions { delegation: own, ..RunOptions::default() };
        let lead = lead.agent("helper", helper).default_options(options).build().unwrap();
        let bugle = Bugle::builder().agent(lead).storage(MemoryStorage::new()).build().await.unwrap();
        let server = Server { router: router(bugle.clone(), ServerOptions::default()), bugle, model };
        let body = json!({"messages": "hi", "delegation": asked});
        let answer = server.post("/api/agents/lead/generate", body).await;
        assert_eq!(answer.json["text"], "ok", "{case}: {}", answer.text);
        let seen = child.requests();
        let shown = seen.iter().any(|request| format!("{request:?}").contains("You know the secret."));
        assert_eq!((seen.len(), shown), (requests, shows_system), "{case}");
    }
}
