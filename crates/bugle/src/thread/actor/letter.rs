//! What an actor is told or asked, and what it makes of it.

use std::sync::{Arc, atomic::Ordering};

use tokio::sync::oneshot;

use super::{Actor, Waiting};
use crate::{
    agent::Agent,
    chunk::EventId,
    error::Error,
    id::{MessageId, RunId},
    message::StoredMessage,
    run::{Claimed, Resolution, RunOptions, RunOutput},
    runtime::{
        AbortOptions, ActiveBehavior, EditInput, IdleBehavior, Outcome, PendingInput, PromoteTo, Promoted, RunInput,
        SubscribeOptions,
    },
    signal::{Attributes, Signal},
    thread::{
        hub::RunClaim,
        input::{Input, Send as SendInput, json_size},
        journal::Op,
        log::{RunShared, StreamLog},
        machine::{INBOX_BYTES, INBOX_ENTRIES, Parked, ThreadEvent},
        queue_events::QueueEvents,
        subscription::Subscription,
    },
};

/// What an actor is told or asked.
#[derive(Debug)]
pub(crate) enum Letter {
    Send(Box<SendLetter>),
    /// Answered with the log and where the run's chunks begin.
    Direct {
        request: Box<DirectRequest>,
        reply: oneshot::Sender<Result<(Arc<StreamLog>, u64), Error>>,
    },
    Drain {
        run_id: RunId,
        /// Its caller has stopped it.
        stopping: bool,
        reply: oneshot::Sender<Vec<Input>>,
    },
    RunEnded(RunEnd),
    /// A person has decided about a parked run, or somebody gives it up.
    Resume(Box<ResumeRequest>),
    /// Whether the live run waits for this call, or for any: its id.
    LiveWait {
        tool_call_id: Option<String>,
        reply: oneshot::Sender<Option<RunId>>,
    },
    Cancel {
        ids: Vec<MessageId>,
        reply: oneshot::Sender<Vec<MessageId>>,
    },
    CancelGroup {
        agent_id: String,
        group: String,
        reply: oneshot::Sender<Vec<MessageId>>,
    },
    Abort {
        options: AbortOptions,
        reply: oneshot::Sender<bool>,
    },
    Promote {
        id: MessageId,
        to: PromoteTo,
        reply: oneshot::Sender<Result<Promoted, Error>>,
    },
    Edit {
        id: MessageId,
        edit: EditInput,
        reply: oneshot::Sender<Result<Signal, Error>>,
    },
    Pending {
        reply: oneshot::Sender<Vec<PendingInput>>,
    },
    Subscribe {
        options: SubscribeOptions,
        last_event: Option<EventId>,
        reply: oneshot::Sender<Subscription>,
    },
    /// Follow the length of the queue, or of one agent's group in it.
    QueueEvents {
        of: Option<(String, String)>,
        reply: oneshot::Sender<QueueEvents>,
    },
    Recover {
        reply: oneshot::Sender<()>,
    },
}

/// How a run has left its thread.
#[derive(Debug)]
pub(crate) struct RunEnd {
    pub(crate) run_id: RunId,
    /// Taken, but not placed.
    pub(crate) returned: Vec<Input>,
    pub(crate) failed_to_start: bool,
    /// The thread was not ours any more: what the run left is the new owner's.
    pub(crate) fenced: bool,
    pub(crate) left: Leftover,
    /// It waits for a person.
    pub(crate) parked: Option<Parked>,
}

impl RunEnd {
    /// An end that leaves nothing.
    pub(crate) fn new(run_id: RunId) -> Self {
        let left = Leftover::Nothing;
        Self { run_id, returned: Vec::new(), failed_to_start: false, fenced: false, left, parked: None }
    }
}

/// What is to become of a parked run.
#[derive(Debug)]
pub(crate) struct ResumeRequest {
    pub(crate) agent: Agent,
    pub(crate) options: Arc<RunOptions>,
    pub(crate) shared: Arc<RunShared>,
    pub(crate) output: Option<oneshot::Sender<RunOutput>>,
    pub(crate) streaming: bool,
    pub(crate) what: Resolution,
    pub(crate) messages: RunInput,
    /// Told once the run is ours and where its chunks are, or why it is not.
    pub(crate) claimed: oneshot::Sender<Claimed>,
}

/// What a run leaves in the store at its end, for its thread to settle.
#[derive(Debug)]
pub(crate) enum Leftover {
    /// Nothing, or what the next owner goes on with.
    Nothing,
    /// Its record: to be ended, with this message for readers of the conversation.
    Record(Option<Box<StoredMessage>>),
    /// Nobody knows: the run panicked. The journal says what it had not placed.
    Unknown,
    /// Its record could not be read while the store was away: to be tried again.
    Deferred,
}

/// Input on its way in.
#[derive(Debug)]
pub(crate) struct SendLetter {
    pub(crate) input: Input,
    pub(crate) active: ActiveBehavior,
    pub(crate) idle: IdleBehavior,
    pub(crate) active_attributes: Option<Attributes>,
    pub(crate) idle_attributes: Option<Attributes>,
    pub(crate) by_run: bool,
    /// Answered as soon as the thread has it; says what can be said at once (SIG-003).
    pub(crate) taken: oneshot::Sender<Result<(), Error>>,
    pub(crate) accepted: oneshot::Sender<Result<Outcome, Error>>,
    pub(crate) persisted: oneshot::Sender<Result<(), Error>>,
}

/// A plain run that asks for its turn.
#[derive(Debug)]
pub(crate) struct DirectRequest {
    pub(crate) agent: Agent,
    pub(crate) input: RunInput,
    pub(crate) options: Arc<RunOptions>,
    pub(crate) shared: Arc<RunShared>,
    pub(crate) output: Option<oneshot::Sender<RunOutput>>,
    /// Served before the queue (SIG-370).
    pub(crate) continuation: bool,
    pub(crate) streaming: bool,
    /// What it takes of the limit of what waits, in bytes; counted by its thread.
    pub(crate) size: usize,
    /// Keeps its id from others until it runs.
    pub(crate) claim: RunClaim,
    /// Tells the watcher of the caller's signal that it waits no more.
    #[expect(dead_code, reason = "held, not read")]
    pub(crate) waits: Option<tokio_util::sync::DropGuard>,
}

impl Actor {
    pub(super) fn letter(&mut self, letter: Letter) {
        match letter {
            Letter::Send(send) => self.send(*send),
            Letter::Direct { request, reply } => {
                let mut request = request;
                if !self.machine.is_idle() {
                    let input = &request.input;
                    request.size = json_size(&input.messages) + json_size(&request.options.to_stored());
                    let results = input.tool_results.iter().map(|result| json_size(&result.result));
                    request.size += results.sum::<usize>();
                }
                let waiting: usize = self.direct.values().map(|waiting| waiting.size).sum();
                let too_much = !self.direct.is_empty() && waiting + request.size > INBOX_BYTES;
                if self.direct.len() >= INBOX_ENTRIES || too_much {
                    let _ = reply.send(Err(Error::InputLimit(self.key.clone())));
                    return;
                }
                let _ = reply.send(Ok((self.thread.log.clone(), self.thread.log.live())));
                let event = ThreadEvent::Direct {
                    run_id: request.shared.run_id.clone(),
                    agent_id: request.agent.id().to_owned(),
                    continuation: request.continuation,
                };
                request.shared.wait_at(self.withdrawn.clone());
                self.direct.insert(request.shared.run_id.clone(), *request);
                self.feed(event);
            }
            Letter::Drain { run_id, stopping, reply } => {
                let ticket = self.ticket(Waiting::Drain(reply));
                self.feed(ThreadEvent::Drain { run_id, stopping, ticket });
            }
            Letter::RunEnded(end) => {
                let RunEnd { run_id, mut returned, failed_to_start, fenced, left, parked } = end;
                let run = self.run.take();
                self.inner.hub.run_ended(&run_id);
                if run.is_some_and(|run| run.released.load(Ordering::Acquire)) {
                    self.lease_went();
                }
                match left {
                    Leftover::Nothing => {}
                    Leftover::Record(message) => self.end_record(&run_id, message),
                    Leftover::Unknown => {
                        self.end_record(&run_id, None);
                        self.feed(ThreadEvent::Crashed { run_id: run_id.clone() });
                        self.journal.push(Op::Recover);
                    }
                    Leftover::Deferred => self.feed(ThreadEvent::Deferred { run_id: run_id.clone() }),
                }
                if fenced {
                    returned.clear();
                    self.epoch = 0;
                    self.resync = true;
                    self.feed(ThreadEvent::LeaseLost { run_id: Some(run_id.clone()) });
                    // Nobody may own the thread now: then what the run left is ours after all.
                    self.journal.push(Op::Claim);
                }
                match parked.filter(|_| !fenced) {
                    Some(parked) => self.feed(ThreadEvent::Parked { run_id, parked, returned }),
                    None => self.feed(ThreadEvent::RunEnded { run_id, returned, failed_to_start }),
                }
            }
            Letter::Resume(request) => self.resume(*request),
            Letter::LiveWait { tool_call_id, reply } => {
                let live = self.run.as_ref().filter(|run| run.shared.is_waiting_for(tool_call_id.as_deref()));
                // The asker may have gone.
                let _ = reply.send(live.map(|run| run.shared.run_id.clone()));
            }
            Letter::Cancel { ids, reply } => {
                let ticket = self.ticket(Waiting::Ids(reply));
                self.feed(ThreadEvent::Cancel { ticket, ids });
            }
            Letter::CancelGroup { agent_id, group, reply } => {
                let ticket = self.ticket(Waiting::Ids(reply));
                self.feed(ThreadEvent::CancelGroup { ticket, agent_id, group });
            }
            Letter::Abort { options, reply } => {
                let ticket = self.ticket(Waiting::Aborted(reply));
                self.feed(ThreadEvent::Abort { ticket, options });
            }
            Letter::Promote { id, to, reply } => {
                let ticket = self.ticket(Waiting::Promoted(reply));
                self.feed(ThreadEvent::Promote { ticket, id, to });
            }
            Letter::Edit { id, edit, reply } => {
                let ticket = self.ticket(Waiting::Edited(reply));
                let EditInput { contents, attributes } = edit;
                self.feed(ThreadEvent::Edit { ticket, id, contents, attributes });
            }
            Letter::Pending { reply } => {
                let waiting = self.machine.waiting().into_iter().map(|(mode, run_id, input)| PendingInput {
                    signal_id: input.id().clone(),
                    mode,
                    agent_id: input.entry.agent_id.clone(),
                    accepted_at: input.entry.signal.accepted_at,
                    run_id,
                    signal: input.entry.signal.clone(),
                });
                // The asker may have gone.
                let _ = reply.send(waiting.collect());
            }
            Letter::Subscribe { options, last_event, reply } => {
                self.thread.subscribed();
                let subscription =
                    Subscription::new(self.thread.log.clone(), self.thread.clone(), &options, last_event);
                let _ = reply.send(subscription);
            }
            Letter::QueueEvents { of, reply } => {
                // One that nobody takes ends at once.
                let _ = reply.send(QueueEvents::new(self.thread.clone(), of));
            }
            Letter::Recover { reply } => {
                self.recovering.push(reply);
                self.journal.push(Op::Recover);
            }
        }
    }

    fn send(&mut self, letter: SendLetter) {
        let SendLetter {
            mut input,
            active,
            idle,
            active_attributes,
            idle_attributes,
            by_run,
            taken,
            accepted,
            persisted,
        } = letter;
        let running = self.run.as_ref().map(|run| run.options.clone()).or_else(|| self.machine.reserved_options());
        if let Some(running) = running {
            if !input.own_options {
                // It waits behind this run and takes over its options, never its context or callbacks (SIG-252).
                let request_context = input.options.request_context.clone();
                input.options = Arc::new(RunOptions { request_context, ..running.for_follow_up() });
            } else if input.options.inherit_request_context {
                Arc::make_mut(&mut input.options).request_context.fill_from(&running.request_context);
            }
        }
        input.entry.options = input.options.to_stored();
        let ticket = self.ticket(Waiting::Sent { taken: Some(taken), accepted, persisted: Some(persisted) });
        let send = SendInput { ticket, input, active, idle, active_attributes, idle_attributes, by_run };
        self.feed(ThreadEvent::Send(Box::new(send)));
        if let Some(Waiting::Sent { taken, .. }) = self.replies.get_mut(&ticket)
            && let Some(taken) = taken.take()
        {
            let _ = taken.send(Ok(()));
        }
    }

    /// Takes out the direct runs whose callers have left (HTTP-026).
    pub(super) fn withdraw(&mut self) {
        let left = self.direct.values().filter(|request| request.shared.abort.is_cancelled());
        for run_id in left.map(|request| request.shared.run_id.clone()).collect::<Vec<_>>() {
            self.feed(ThreadEvent::Withdrawn { run_id });
        }
    }
}
