//! Following input until the run that took it has ended (CLI-053): by run id, and by the echo, which is what counts
//! when a follow-up run takes the input (SIG-155).

use std::time::Duration;

use bugle::{
    MessageId, RunId,
    chunk::{Chunk, ChunkBody, FinishReason, Payload, Usage},
    json::{Value, json},
    message::Role,
    runtime::Action,
};
use bugle_client::{Accepted, Client, Delivery, Subscription, Thread};

use super::{
    Session, command_with,
    connect::Connection,
    desk::{Desk, Heard, hear},
};
use crate::{
    args::Target,
    exit::{self, Failure},
    out::Style,
    render::Answer,
};

/// How long silence lasts before storage is asked what became of the input.
const SILENCE: Duration = Duration::from_secs(2);

/// Input on its way.
pub(super) struct Follow<'a> {
    pub(super) client: &'a Client,
    pub(super) thread: Thread,
    pub(super) subscription: Subscription,
    pub(super) accepted: Accepted,
    /// The id was in the store before: this is a repeat.
    pub(super) known: bool,
    pub(super) target: &'a Target,
    pub(super) session: &'a Session,
}

/// How a run ended.
struct Ended {
    reason: Option<String>,
    usage: Usage,
    failure: Option<Failure>,
}

/// Prints what was accepted, for `--no-wait`.
pub(super) fn accepted_only(accepted: &Accepted, session: &Session) -> Result<u8, Failure> {
    if session.out.json {
        session.out.json_line(&accepted_line(accepted));
    } else {
        let action = action_name(accepted.action);
        session.out.line(&format!("{action} run {} signal {}", accepted.run_id, accepted.signal.id));
    }
    outcome(accepted)
}

/// Whether a message of this id is stored already; only asked for ids that were given.
pub(super) async fn is_stored(connection: &Connection, id: Option<&MessageId>) -> Result<bool, Failure> {
    let Some(id) = id else { return Ok(false) };
    match connection.client.messages(&connection.thread, Some(&connection.resource), 0, 100).await {
        Ok(page) => Ok(page.items.iter().any(|message| message.id == *id)),
        Err(error) if error.status() == Some(404) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn accepted_line(accepted: &Accepted) -> Value {
    json!({
        "type": "accepted",
        "action": accepted.action,
        "runId": accepted.run_id,
        "signalId": accepted.signal.id,
    })
}

fn action_name(action: Option<Action>) -> &'static str {
    match action {
        Some(Action::Wake) => "wake",
        Some(Action::Deliver) => "deliver",
        Some(Action::Persist) => "persist",
        Some(Action::Discard) => "discard",
        Some(Action::Blocked) => "blocked",
        None => "accepted",
    }
}

/// CLI-070: what no run takes is no failure, unless it was blocked.
fn outcome(accepted: &Accepted) -> Result<u8, Failure> {
    match accepted.action {
        Some(Action::Blocked) => Err(Failure::new(exit::CONFLICT, "blocked: no run can take this input now")),
        _ => Ok(0),
    }
}

impl Follow<'_> {
    pub(super) async fn run(mut self) -> Result<u8, Failure> {
        let out = self.session.out;
        if out.json {
            out.json_line(&accepted_line(&self.accepted));
        }
        if matches!(self.accepted.action, Some(Action::Persist | Action::Discard | Action::Blocked)) {
            let code = outcome(&self.accepted)?;
            if out.json {
                self.result(None, "", &Usage::default());
            } else {
                let said = match self.accepted.action {
                    Some(Action::Persist) => "persist: stored; no run answers it",
                    _ => "discard: dropped, as asked",
                };
                out.note(Style::Dim, said);
            }
            return Ok(code);
        }
        if let Some(waiting) = &self.accepted.waiting_for {
            let what = format!("the run waits for a person ({waiting}) and takes this in afterwards");
            let hint = format!("see what waits with: {} --list", command_with(self.target, "approve"));
            return Err(Failure::new(exit::CONFLICT, what).hint(hint));
        }
        let mut answer = Answer::new(out);
        let mut run = self.accepted.run_id.clone();
        let mut taken = false;
        // What the person at this terminal was asked.
        let mut asked: Option<Box<Chunk>> = None;
        // Something may have passed by unseen: then silence is a reason to ask.
        let mut unsure = self.known;
        let mut desk = Desk::of_terminal(out);
        loop {
            let hearing = hear(&mut self.subscription, &mut desk, &self.thread);
            let heard = if unsure {
                match tokio::time::timeout(SILENCE, hearing).await {
                    Ok(heard) => heard,
                    Err(_) => match self.ask_store(&mut answer, taken).await? {
                        Some(code) => return Ok(code),
                        None => continue,
                    },
                }
            } else {
                hearing.await
            };
            let delivery = match heard {
                Heard::Delivery(delivery) => delivery,
                // Nobody will answer what was asked.
                Heard::Silence => match asked.take() {
                    Some(chunk) => return Err(waits(&chunk, self.target)),
                    None => continue,
                },
            };
            let (event_id, chunk, json) = match delivery {
                Some(Delivery::Chunk { event_id, chunk, json }) => (event_id, chunk, json),
                Some(Delivery::Gap { .. }) => {
                    out.note(Style::Yellow, "! events are missing; the answer may have a hole");
                    unsure = true;
                    continue;
                }
                Some(Delivery::Lost { reason }) => {
                    out.note(Style::Yellow, &format!("! the connection was lost ({reason}); coming back"));
                    continue;
                }
                Some(Delivery::Back) => {
                    unsure = true;
                    continue;
                }
                Some(Delivery::Ended(error)) => return Err(error.into()),
                None => return Err(Failure::new(exit::UNAVAILABLE, "the subscription ended")),
            };
            if is_echo_of(&chunk, &self.accepted.signal.id) {
                taken = true;
                unsure = false;
                if let Some(echoed) = &chunk.run_id {
                    run = echoed.clone();
                }
            }
            if chunk.run_id.as_ref() != Some(&run) {
                continue;
            }
            if out.json {
                out.json_line(&with_event_id(json, event_id.as_deref()));
            }
            if taken {
                answer.chunk(&chunk);
            }
            if taken {
                match &mut desk {
                    Some(desk) => {
                        desk.chunk(&chunk);
                        asked = if desk.has_question() { asked } else { None };
                    }
                    None if is_question(&chunk) => {
                        answer.end();
                        return Err(waits(&chunk, self.target));
                    }
                    None => {}
                }
                if is_question(&chunk) {
                    asked = Some(chunk);
                    continue;
                }
            }
            let Some(ended) = ended(&chunk) else { continue };
            if !taken {
                // The run has ended without it; a follow-up run takes it, unless somebody took it back.
                unsure = true;
                continue;
            }
            answer.end();
            if out.json {
                self.result_of(&run, ended.reason.as_deref(), answer.text(), &ended.usage);
            }
            return ended.failure.map_or(Ok(0), Err);
        }
    }

    /// Nothing has come for a while: where is the input? `Some` if it is answered, and the answer printed.
    async fn ask_store(&self, answer: &mut Answer, taken: bool) -> Result<Option<u8>, Failure> {
        let id = &self.accepted.signal.id;
        let pending = self.thread.pending().await?;
        if pending.iter().any(|entry| entry.signal_id == *id) {
            return Ok(None);
        }
        let page = match self.client.messages(self.thread.id(), Some(self.thread.resource()), 0, 100).await {
            Ok(page) => page,
            Err(error) if error.status() == Some(404) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(at) = page.items.iter().position(|message| message.id == *id) else {
            let what = "the message was taken back before it was answered";
            return Err(Failure::new(exit::NO, what));
        };
        let after = page.items[at + 1..].iter().take_while(|message| message.role == Role::Assistant);
        let text: Vec<String> = after.map(bugle::message::StoredMessage::joined_text).collect();
        let text = text.join("\n");
        if text.is_empty() {
            // It is in the transcript and being worked on.
            return Ok(None);
        }
        if !taken || answer.text().is_empty() {
            answer.stored(&text);
        }
        answer.end();
        if self.session.out.json {
            self.result(None, &text, &Usage::default());
        }
        Ok(Some(0))
    }

    fn result(&self, reason: Option<&str>, text: &str, usage: &Usage) {
        self.result_of(&self.accepted.run_id, reason, text, usage);
    }

    fn result_of(&self, run: &RunId, reason: Option<&str>, text: &str, usage: &Usage) {
        result_line(run, reason, text, usage, self.session);
    }
}

fn result_line(run: &RunId, reason: Option<&str>, text: &str, usage: &Usage, session: &Session) {
    let line = json!({"type": "result", "runId": run, "finishReason": reason, "text": text, "usage": usage});
    session.out.json_line(&line);
}

/// Whether a run waits for a person now.
fn is_question(chunk: &Chunk) -> bool {
    matches!(chunk.payload(), Some(Payload::ToolCallApproval { .. } | Payload::ToolCallSuspended { .. }))
}

/// A run waits for a person who is not here: what they can do.
fn waits(chunk: &Chunk, target: &Target) -> Failure {
    let (what, answer, call) = match chunk.payload() {
        Some(Payload::ToolCallApproval { tool_name, tool_call_id, .. }) => {
            (format!("{tool_name} waits for a person's approval"), "", tool_call_id.as_str())
        }
        Some(Payload::ToolCallSuspended { tool_name, tool_call_id, .. }) => {
            (format!("{tool_name} waits for a person's answer"), " --data JSON", tool_call_id.as_str())
        }
        _ => ("the run waits for a person".into(), "", ""),
    };
    let command = command_with(target, &format!("approve {call}"));
    Failure::new(exit::CONFLICT, what).hint(format!("answer with: {command}{answer}"))
}

/// What a chunk of a run that was answered means for whoever answered: `None` while it goes on.
pub(super) fn settled(
    chunk: &Chunk,
    run: &RunId,
    answer: &mut Answer,
    target: &Target,
    session: &Session,
) -> Option<Result<u8, Failure>> {
    if is_question(chunk) {
        answer.end();
        return Some(Err(waits(chunk, target)));
    }
    let ended = ended(chunk)?;
    answer.end();
    if session.out.json {
        result_line(run, ended.reason.as_deref(), answer.text(), &ended.usage, session);
    }
    Some(ended.failure.map_or(Ok(0), Err))
}

/// The rest of a run that goes on with an answer.
pub(super) struct Rest<'a> {
    pub(super) thread: Thread,
    pub(super) subscription: Subscription,
    pub(super) run: RunId,
    pub(super) target: &'a Target,
    pub(super) session: &'a Session,
}

impl Rest<'_> {
    /// Prints it until it ends, or waits for a person again.
    pub(super) async fn follow(mut self) -> Result<u8, Failure> {
        let out = self.session.out;
        let mut answer = Answer::new(out);
        while let Some(delivery) = self.subscription.next().await {
            match delivery {
                Delivery::Chunk { event_id, chunk, json } if chunk.run_id.as_ref() == Some(&self.run) => {
                    if out.json {
                        out.json_line(&with_event_id(json, event_id.as_deref()));
                    }
                    answer.chunk(&chunk);
                    if let Some(code) = settled(&chunk, &self.run, &mut answer, self.target, self.session) {
                        return code;
                    }
                }
                Delivery::Chunk { .. } | Delivery::Back => {}
                Delivery::Gap { .. } => {
                    answer.end();
                    let what = format!("events are missing; the end of run {} may be among them", self.run);
                    let hint = format!("see the thread with: bugle threads show {}", self.thread.id());
                    return Err(Failure::new(exit::UNAVAILABLE, what).hint(hint));
                }
                Delivery::Lost { reason } => {
                    out.note(Style::Yellow, &format!("! the connection was lost ({reason}); coming back"));
                }
                Delivery::Ended(error) => return Err(error.into()),
            }
        }
        Err(Failure::new(exit::UNAVAILABLE, "the subscription ended"))
    }
}

/// Whether a chunk is the echo of a signal: the run that has it took the input.
fn is_echo_of(chunk: &Chunk, id: &MessageId) -> bool {
    match &chunk.body {
        ChunkBody::Data(data) => {
            matches!(data.kind.as_str(), "data-user-message" | "data-signal")
                && data.data.get("id").and_then(Value::as_str) == Some(id.as_str())
        }
        _ => false,
    }
}

/// A chunk as it came, with its event id (CLI-061).
pub(super) fn with_event_id(mut json: Value, event_id: Option<&str>) -> Value {
    if let Some(id) = event_id {
        json["eventId"] = id.into();
    }
    json
}

/// How the run ended, if this chunk ends it.
fn ended(chunk: &Chunk) -> Option<Ended> {
    let no = |what: String| Some(Failure::new(exit::NO, what));
    let (reason, usage, failure) = match &chunk.body {
        ChunkBody::AbortNotice | ChunkBody::Payload(Payload::Abort {}) => {
            (Some("aborted".to_owned()), Usage::default(), no("the run was aborted".into()))
        }
        ChunkBody::Payload(Payload::Error { error }) => {
            (Some("error".to_owned()), Usage::default(), no(format!("the run failed: {}", error.message)))
        }
        ChunkBody::Payload(Payload::Finish(finish)) => {
            let reason = finish.step_result.reason;
            let failure = match reason {
                FinishReason::Error => no("the run failed".into()),
                FinishReason::Aborted => no("the run was aborted".into()),
                FinishReason::Tripwire => no("a processor stopped the run".into()),
                FinishReason::ToolCalls => no("the run waits for tools that this command does not have".into()),
                _ => None,
            };
            let name = serde_json::to_value(reason).ok().and_then(|name| name.as_str().map(str::to_owned));
            (name, finish.output.usage.clone(), failure)
        }
        _ => return None,
    };
    Some(Ended { reason, usage, failure })
}
