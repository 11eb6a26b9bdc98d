//! `bugle approve` and `bugle decline`: answer a call that waits for a person (CLI-055).

use std::time::Duration;

use bugle::{
    RunId,
    json::{Object, Value, json},
};
use bugle_client::{
    Agent, SubscribeOptions, Subscription, SuspendedCall, SuspendedQuery, SuspendedRun, Thread, ToolApproval,
};

use super::{
    Session, command_with,
    connect::Connection,
    follow::{self, Rest},
};
use crate::{
    args::{Answer, Approve, Decline, Target},
    exit::{self, Failure},
    out::Style,
    render,
    text::short,
};

/// How long the thread is silent once it has said what it had to say of the runs so far.
const CAUGHT_UP: Duration = Duration::from_millis(300);
/// How long that may take altogether.
const CATCH_UP_MAX: Duration = Duration::from_secs(10);

pub(super) async fn approve(args: Approve, session: &Session) -> Result<u8, Failure> {
    run(&args.answer, true, None, &args.target, session).await
}

pub(super) async fn decline(args: Decline, session: &Session) -> Result<u8, Failure> {
    run(&args.answer, false, args.reason, &args.target, session).await
}

/// A call that waits, and its run.
struct Waiting<'a> {
    run: &'a SuspendedRun,
    call: &'a SuspendedCall,
}

async fn run(
    args: &Answer,
    approved: bool,
    reason: Option<String>,
    target: &Target,
    session: &Session,
) -> Result<u8, Failure> {
    let data = match &args.data {
        Some(text) => Some(
            serde_json::from_str::<Value>(text)
                .map_err(|error| Failure::usage(format!("--data is not JSON: {error}")))?,
        ),
        None => None,
    };
    let connection = Connection::new(target, session)?;
    let thread = connection.thread().await?;
    let runs = waiting_runs(&thread, args.run.as_deref()).await?;
    let all: Vec<Waiting<'_>> =
        runs.iter().flat_map(|run| run.tool_calls.iter().map(move |call| Waiting { run, call })).collect();
    if args.list {
        for waiting in &all {
            list(waiting, session);
        }
        return Ok(0);
    }
    let Some((call, waiting)) = choose(args.call.as_deref(), &all, &thread, target)? else {
        return Err(Failure::new(exit::NOT_FOUND, format!("nothing waits for an answer on thread {}", thread.id())));
    };
    if let Some(waiting) = waiting
        && !waiting.call.requires_approval
        && data.is_none()
    {
        let asks = waiting.call.suspend_payload.as_ref().map(|payload| short(&payload.to_string(), 120));
        let what =
            format!("{} does not wait for approval but for data: {}", waiting.call.tool_name, asks.unwrap_or_default());
        return Err(Failure::usage(what).hint("give it with --data JSON, or stop the run with: bugle abort"));
    }
    let approval = ToolApproval { tool_call_id: call, approved, reason, resume_data: data, ..ToolApproval::default() };
    let home = waiting.map(|waiting| waiting.run);
    let agent = thread.agent();
    // A run without a thread has nobody who follows it but whoever goes on with it.
    if let Some(run) = home.filter(|run| run.thread_id.is_none()) {
        return without_thread(agent, &run.run_id, &approval, session, target).await;
    }
    let thread = match home {
        Some(SuspendedRun { thread_id: Some(id), resource_id, .. }) => {
            agent.thread(resource_id.as_deref().unwrap_or(thread.resource()), id)
        }
        _ => thread,
    };
    let mut subscription = None;
    if args.wait {
        let mut opened = thread.subscribe(SubscribeOptions::default()).await?;
        catch_up(&mut opened).await;
        subscription = Some(opened);
    }
    let accepted = thread.send_tool_approval(&approval).await?;
    say(&approval, &accepted.run_id, accepted.tool_call_id.as_deref(), session);
    match subscription {
        None => Ok(0),
        Some(subscription) => Rest { thread, subscription, run: accepted.run_id, target, session }.follow().await,
    }
}

/// The runs of the thread that wait, or the run that is asked for, wherever it is.
async fn waiting_runs(thread: &Thread, run: Option<&str>) -> Result<Vec<SuspendedRun>, Failure> {
    let Some(run) = run else {
        return match thread.suspended_runs().await {
            Ok(found) => Ok(found.runs),
            // Nothing waits on a thread that is not there.
            Err(error) if error.status() == Some(404) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        };
    };
    let mut found = thread.agent().suspended_runs(&SuspendedQuery::default()).await?.runs;
    found.retain(|candidate| candidate.run_id.as_str() == run);
    if found.is_empty() {
        let what = format!("run {run} does not wait for an answer");
        return Err(Failure::new(exit::NOT_FOUND, what).hint("see what waits with: bugle approve --list"));
    }
    Ok(found)
}

/// The id to answer, and what is known of its call. The inner id of a delegated call is not listed; the server knows it
/// (ruling 7).
fn choose<'a>(
    named: Option<&str>,
    all: &'a [Waiting<'a>],
    thread: &Thread,
    target: &Target,
) -> Result<Option<(String, Option<&'a Waiting<'a>>)>, Failure> {
    if let Some(id) = named {
        let mut fitting = all.iter().filter(|waiting| waiting.call.tool_call_id == id);
        let first = fitting.next();
        // Without a call of that id the only run that waits is meant.
        let only = || all.first().filter(|only| all.iter().all(|other| other.run.run_id == only.run.run_id));
        return match (first, fitting.next()) {
            (Some(_), Some(_)) => Err(several(all, &format!("call {id} waits in several runs"), "name one with --run")),
            (Some(one), None) => Ok(Some((id.to_owned(), Some(one)))),
            (None, _) => Ok(Some((id.to_owned(), only().filter(|only| only.run.thread_id.is_none())))),
        };
    }
    match all {
        [] => Ok(None),
        [one] => Ok(Some((one.call.tool_call_id.clone(), Some(one)))),
        _ => {
            let what = format!("several calls wait on thread {}", thread.id());
            Err(several(all, &what, &format!("name one: {} CALL", command_with(target, "approve"))))
        }
    }
}

fn several(all: &[Waiting<'_>], what: &str, hint: &str) -> Failure {
    let calls: Vec<String> = all
        .iter()
        .map(|waiting| {
            format!("{} ({}, run {})", waiting.call.tool_call_id, waiting.call.tool_name, waiting.run.run_id)
        })
        .collect();
    Failure::usage(format!("{what}: {}", calls.join(", "))).hint(hint)
}

fn list(waiting: &Waiting<'_>, session: &Session) {
    let Waiting { run, call } = waiting;
    if session.out.json {
        let mut line = json!({"runId": run.run_id, "threadId": run.thread_id, "suspendedAt": run.suspended_at});
        if let (Value::Object(line), Value::Object(call)) = (&mut line, json!(call)) {
            line.extend(call);
        }
        session.out.json_line(&line);
        return;
    }
    let (kind, about) = match &call.suspend_payload {
        Some(payload) if !call.requires_approval => ("data", payload),
        _ => ("approval", call.args.as_ref().unwrap_or(&Value::Null)),
    };
    let about = short(&about.to_string(), 80);
    let name = short(&call.tool_name, 60);
    session.out.line(&format!("{}  {kind:<8}  {name} {about}  run {}", short(&call.tool_call_id, 80), run.run_id));
}

/// Reads what the thread says again of the runs so far, so that what comes later is new.
async fn catch_up(subscription: &mut Subscription) {
    let reading = async { while let Ok(Some(_)) = tokio::time::timeout(CAUGHT_UP, subscription.next()).await {} };
    let _ = tokio::time::timeout(CATCH_UP_MAX, reading).await;
}

fn say(approval: &ToolApproval, run: &RunId, call: Option<&str>, session: &Session) {
    let call = call.unwrap_or(&approval.tool_call_id);
    if session.out.json {
        session.out.json_line(&json!({"accepted": true, "runId": run, "toolCallId": call}));
        return;
    }
    let done = match (&approval.resume_data, approval.approved) {
        (Some(_), _) => "answered",
        (None, true) => "approved",
        (None, false) => "declined",
    };
    session.out.note(Style::Dim, &format!("{done} {call} of run {run}"));
}

/// Goes on with a run that has no thread: its stream is here, so its end is waited for.
async fn without_thread(
    agent: &Agent,
    run: &RunId,
    approval: &ToolApproval,
    session: &Session,
    target: &Target,
) -> Result<u8, Failure> {
    let call = approval.tool_call_id.as_str();
    let mut stream = match &approval.resume_data {
        Some(data) => agent.resume(run, Some(call), data.clone(), Object::new()).await?,
        None if approval.approved => agent.approve(run, call, Object::new()).await?,
        None => agent.decline(run, call, approval.reason.as_deref(), Object::new()).await?,
    };
    say(approval, run, None, session);
    let mut answer = render::Answer::new(session.out);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        if session.out.json {
            session.out.json_line(&json!(chunk));
        }
        answer.chunk(&chunk);
        if let Some(code) = follow::settled(&chunk, run, &mut answer, target, session) {
            return code;
        }
    }
    answer.end();
    Err(Failure::new(exit::UNAVAILABLE, "the stream ended before the run"))
}
