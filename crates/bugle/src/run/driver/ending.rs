//! How a run ends: its last chunks, its result, what its thread is told.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;

impl Driver {
    pub(super) async fn finish(
        mut self: Box<Self>,
        ending: Option<Ending>,
        output: Option<oneshot::Sender<RunOutput>>,
    ) {
        self.request = None;
        self.tool_abort.cancel();
        self.tools.abort_all();
        let run_id = self.shared.run_id.clone();
        let Some(ending) = ending else {
            // Nothing more is published (ruling 4); a direct caller is told.
            let error =
                ErrorInfo::new("RunLeft", "this process has stopped working on the run; another goes on with it");
            let end = DirectEnd { replaces_last: false, chunks: failed_direct(&run_id, &error) };
            self.log.end_run(&self.shared, None, end);
            let returned = std::mem::take(&mut self.in_hand);
            if let Some(link) = &self.link {
                let fenced = self.shared.is_fenced();
                let left = Leftover::Nothing;
                let parked = if self.machine.has_to_claim() && !fenced {
                    // Left before it was ours: it is parked still, if nobody else has taken it.
                    let known = resume::unknown(self.prepared.agent.id(), self.inner.clock.now());
                    let storage = self.inner.storage.clone();
                    resume::still_parked(&storage, &run_id, known).await
                } else {
                    None
                };
                let end = RunEnd { returned, fenced, left, parked, ..RunEnd::new(run_id) };
                link.tell(Letter::RunEnded(end)).await;
            }
            return;
        };
        let mut result = self.machine.output(&ending);
        let parked = (ending == Ending::Parked).then(|| self.parked());
        if parked.is_some() {
            result.parked = self.for_parent();
        }
        if let Ending::Failed(error) = &ending {
            self.tell_stream_hooks(error).await;
        }
        let hooks = &self.prepared.options.hooks;
        let (last, direct) = match &ending {
            Ending::Finished => {
                if let Some(hook) = &hooks.on_finish {
                    guarded("onFinish", || hook(&result));
                }
                let mut finish = self.machine.finish(None);
                finish.response = Some(response_value(&finish.metadata));
                let last = Chunk::agent(&run_id, Payload::Finish(Box::new(finish.clone())));
                if output.is_none() {
                    // Nobody reads this run directly.
                    (last, DirectEnd::default())
                } else {
                    let messages = Value::Array(to_model_messages(&result.response_messages));
                    if let Some(response) = finish.response.as_mut() {
                        response["messages"] = messages.clone();
                    }
                    finish.messages = Some(json!({ "nonUser": messages }));
                    let own = Chunk::agent(&run_id, Payload::Finish(Box::new(finish)));
                    (last, DirectEnd { replaces_last: true, chunks: vec![own] })
                }
            }
            Ending::Failed(error) => {
                if let Some(hook) = &hooks.on_error {
                    guarded("onError", || hook(error));
                }
                let last = Chunk::agent(&run_id, Payload::Error { error: error.clone() });
                let finish = self.machine.finish(Some(FinishReason::Error));
                let mut step = finish.clone();
                step.output.usage = Usage::default();
                step.consumed_signal_ids.clear();
                let step = Chunk::agent(&run_id, Payload::StepFinish(Box::new(step)));
                let own = Chunk::agent(&run_id, Payload::Finish(Box::new(finish)));
                (last, DirectEnd { replaces_last: false, chunks: vec![step, own] })
            }
            Ending::Aborted => {
                if let Some(hook) = &hooks.on_abort {
                    guarded("onAbort", || hook(&result));
                }
                let notice = Chunk::with_body(&run_id, ChunkBody::AbortNotice);
                let finish = self.machine.finish(Some(FinishReason::Aborted));
                let own = vec![
                    Chunk::agent(&run_id, Payload::Abort {}),
                    Chunk::agent(&run_id, Payload::Finish(Box::new(finish))),
                ];
                (notice, DirectEnd { replaces_last: true, chunks: own })
            }
            Ending::Tripped(tripwire) => {
                self.emit(Chunk::agent(&run_id, Payload::Tripwire(tripwire.clone())));
                let finish = self.machine.finish(Some(FinishReason::Tripwire));
                let last = Chunk::agent(&run_id, Payload::Finish(Box::new(finish)));
                (last, DirectEnd::default())
            }
            Ending::Parked => {
                // The last chunk says what is waited for; no `step-finish` or `finish` follows (LOOP-094).
                self.log.park_run(&self.shared, self.machine.last_park_chunk());
                return self.parked_and_told(result, output, parked).await;
            }
        };
        self.log.end_run(&self.shared, Some(last), direct);
        let title = (ending == Ending::Finished).then(|| self.prepared.title_task(&result)).flatten();
        let scoring = (ending == Ending::Finished).then(|| self.live_scores(&result)).flatten();
        if let Some(output) = output {
            // The caller may have gone.
            let _ = output.send(result);
        }
        if let Some(link) = &self.link {
            let returned = std::mem::take(&mut self.in_hand);
            // What could not be placed is tried again, after a while if nothing of the run was (SIG-207, SIG-255).
            let failed_to_start = !returned.is_empty() && !self.committed;
            let left = if self.committer.is_open() { Leftover::Record(None) } else { Leftover::Nothing };
            let end = RunEnd { returned, failed_to_start, left, ..RunEnd::new(run_id) };
            link.tell(Letter::RunEnded(end)).await;
        }
        if let Some(title) = title {
            let tasks = self.inner.hub.tasks.clone();
            tasks.spawn(title);
        }
        if let Some(scoring) = scoring {
            let tasks = self.inner.hub.tasks.clone();
            tasks.spawn(scoring);
        }
    }
}

impl Driver {
    /// Tells those who wait that the run is parked.
    async fn parked_and_told(
        mut self: Box<Self>,
        result: RunOutput,
        output: Option<oneshot::Sender<RunOutput>>,
        parked: Option<crate::thread::Parked>,
    ) {
        if let Some(output) = output {
            // The caller may have gone.
            let _ = output.send(result);
        }
        if let Some(link) = &self.link {
            let returned = std::mem::take(&mut self.in_hand);
            let end = RunEnd { returned, parked, ..RunEnd::new(self.shared.run_id.clone()) };
            link.tell(Letter::RunEnded(end)).await;
        }
    }
}

/// After a rollback: what others had sent goes back to the thread, in order, before what was not placed (ruling 33).
pub(crate) fn give_back(machine: &RunMachine, in_hand: &mut Vec<Input>) {
    in_hand.retain(|input| !machine.has_placed(input.id()));
    let joined = machine.joined().map(|entry| Input::of_journal(entry.clone()));
    in_hand.splice(0..0, joined.collect::<Vec<_>>());
}

pub(super) fn response_value(metadata: &ResponseMetadata) -> Value {
    json!({
        "id": metadata.id,
        "timestamp": metadata.timestamp,
        "modelId": metadata.model_id,
        "modelMetadata": metadata.model_metadata,
    })
}

/// How a direct stream ends that never got a run, or lost it.
pub(crate) fn failed_direct(run_id: &RunId, error: &ErrorInfo) -> Vec<Chunk> {
    vec![
        Chunk::agent(run_id, Payload::Error { error: error.clone() }),
        Chunk::agent(run_id, Payload::Finish(Box::new(bare_finish(FinishReason::Error)))),
    ]
}

/// How a direct stream ends that was stopped while it waited for its turn.
pub(crate) fn aborted_direct(run_id: &RunId) -> Vec<Chunk> {
    vec![
        Chunk::agent(run_id, Payload::Abort {}),
        Chunk::agent(run_id, Payload::Finish(Box::new(bare_finish(FinishReason::Aborted)))),
    ]
}

/// The `finish` of a run that did nothing.
pub(super) fn bare_finish(reason: FinishReason) -> StepFinishPayload {
    StepFinishPayload {
        message_id: MessageId::fresh(),
        step_result: StepResult {
            reason,
            raw_reason: None,
            is_continued: false,
            warnings: Vec::new(),
            message_id: None,
            stop_cause: None,
        },
        metadata: ResponseMetadata::default(),
        output: StepOutput::default(),
        messages: None,
        response: None,
        processor_retry_count: 0,
        is_task_complete_check_failed: None,
        consumed_signal_ids: Vec::new(),
        unanswered_signal_ids: Vec::new(),
        warnings: Vec::new(),
    }
}

/// What becomes of a record that no run could go on from: nothing while the store is away, else it is ended, with the
/// error for those who read the conversation.
pub(super) fn left_unread(error: &ErrorInfo, now: Timestamp) -> Leftover {
    if error.name == "StorageError" {
        return Leftover::Deferred;
    }
    let mut message = StoredMessage::text(MessageId::fresh(), Role::Assistant, "", now);
    message.content.parts = vec![Part::Error(ErrorPart {
        error: json!({ "name": error.name, "message": error.message }),
        created_at: Some(now.as_millis()),
        extra: Default::default(),
    })];
    Leftover::Record(Some(Box::new(message)))
}

/// The run could not begin; what waits for it is tried again by SIG-255.
pub(super) async fn fail_to_start(
    shared: &RunShared,
    log: &StreamLog,
    link: Option<ThreadLink>,
    output: Option<oneshot::Sender<RunOutput>>,
    error: &ErrorInfo,
    (retry, left): (bool, Leftover),
) {
    let run_id = shared.run_id.clone();
    let mut direct = failed_direct(&run_id, error);
    let last = direct.remove(0);
    log.end_run(shared, Some(last), DirectEnd { replaces_last: false, chunks: direct });
    if let Some(output) = output {
        let _ = output.send(RunOutput::failed(run_id.clone(), error.clone()));
    }
    if let Some(link) = link {
        link.tell(Letter::RunEnded(RunEnd { failed_to_start: retry, left, ..RunEnd::new(run_id) })).await;
    }
}
