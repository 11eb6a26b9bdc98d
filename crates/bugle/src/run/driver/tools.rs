//! Runs the calls of a step: so many at once, each with an outcome, and what they write.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;

impl Driver {
    /// Runs the calls of a step, with the step's own tools.
    pub(super) async fn start_tools(
        &mut self,
        runs: Vec<ToolRun>,
        events: &mut VecDeque<RunEvent>,
    ) -> Result<(), Flow> {
        if !self.shape_again(events).await? {
            // They wait for the end that is coming, which cancels them.
            self.waiting_tools = runs.into();
            return Ok(());
        }
        let here = runs.iter().any(|run| self.hooks.tools.runs_here(&run.name));
        self.tool_messages = if here { self.machine.transcript().messages().into() } else { Arc::default() };
        self.sequential = self.hooks.tools.is_sequential(&runs);
        self.scope = Some(Arc::new(self.scope()));
        self.waiting_tools = runs.into();
        self.next_tools();
        Ok(())
    }

    pub(super) fn next_tools(&mut self) {
        if self.waiting_tools.is_empty() {
            return;
        }
        let Some(scope) = self.scope.clone() else { return };
        let limit = self.prepared.options.tool_call_concurrency.unwrap_or(10).max(1) as usize;
        let limit = if self.sequential { 1 } else { limit };
        while self.tools.len() < limit {
            let Some(run) = self.waiting_tools.pop_front() else { return };
            let context = CallContext {
                run_id: self.shared.run_id.clone(),
                agent_id: self.prepared.agent.id().to_owned(),
                thread: self.prepared.thread().cloned(),
                messages: self.tool_messages.clone(),
                request_context: self.prepared.options.request_context.clone(),
                abort: self.tool_abort.clone(),
                written: self.writer.clone(),
                runtime: Bugle { inner: self.inner.clone() },
                scope: scope.clone(),
            };
            let tools = self.hooks.tools.clone();
            self.running_tools.push(run.index);
            let index = run.index;
            self.tools.spawn(async move {
                // Whatever of the tool panics, the call has an outcome (LOOP-080).
                let outcome = AssertUnwindSafe(tools.run(run, context)).catch_unwind().await;
                (index, outcome.unwrap_or_else(|panic| panicked(&*panic)))
            });
        }
    }

    /// What delegations of this step need to know.
    fn scope(&self) -> Scope {
        let prepared = &self.prepared;
        let memory = prepared.agent.memory();
        let (depth, limit) =
            self.detached.as_ref().map_or((0, u32::MAX), |detached| (detached.depth, detached.depth_limit));
        let forwards = prepared.options.delegation.include_parent_system == Some(true);
        let own = prepared.options.delegation.max_depth.unwrap_or(DEFAULT_DEPTH);
        Scope {
            agent_name: prepared.agent.name().to_owned(),
            options: prepared.options.delegation.clone(),
            state: self.delegations.clone(),
            iteration: self.machine.turn(),
            streaming: self.streaming,
            system: if forwards { prepared.system.clone() } else { Vec::new() },
            prompt_options: PromptOptions {
                filter_incomplete_tool_calls: prepared.memory.filter_incomplete_tool_calls,
                max_tool_result_bytes: prepared.options.max_tool_result_bytes,
            },
            provider: prepared.models.get(self.model_index).map(|entry| entry.model.provider().to_owned()),
            depth,
            depth_limit: own.min(limit),
            lends_memory: memory.is_some() && !prepared.memory.read_only,
        }
    }

    /// How long tools that ignore an abort are waited for. The deeper a run, the sooner it lets go, so that the one
    /// above hears of its end.
    pub(super) fn tool_grace(&self) -> Duration {
        let depth = self.detached.as_ref().map_or(0, |detached| detached.depth);
        TOOL_GRACE / (depth + 1)
    }

    pub(super) async fn tool_ended(
        &mut self,
        done: Result<(usize, ToolOutcome), tokio::task::JoinError>,
        events: &mut VecDeque<RunEvent>,
    ) -> Result<(), Flow> {
        // What the tool wrote comes before its result.
        while let Ok(written) = self.written.try_recv() {
            self.show_written(written, events).await?;
        }
        // A task that was cut off has been answered for already.
        if let Ok((index, outcome)) = done {
            self.running_tools.retain(|running| *running != index);
            if let Some(record) = self.delegations.take_change() {
                events.push_back(RunEvent::Delegated(record));
            }
            if self.sequential && matches!(outcome, ToolOutcome::Parked(_)) {
                // What comes after it waits for the decision (LOOP-095), or for one of its own (R35a).
                for run in std::mem::take(&mut self.waiting_tools) {
                    let waits = self.hooks.tools.waits_too(&run, &self.prepared.options.request_context);
                    let outcome = waits.map_or(ToolOutcome::NotStarted, ToolOutcome::Parked);
                    events.push_back(RunEvent::ToolDone { index: run.index, outcome });
                }
            }
            events.push_back(RunEvent::ToolDone { index, outcome });
        }
        if self.running_tools.is_empty() {
            self.tool_deadline = None;
        }
        self.next_tools();
        Ok(())
    }

    /// The grace time of an abort is over: deaf tools are let go (SIG-312).
    pub(super) fn let_tools_go(&mut self, events: &mut VecDeque<RunEvent>) {
        self.tool_deadline = None;
        self.tools.abort_all();
        for index in std::mem::take(&mut self.running_tools) {
            events.push_back(RunEvent::ToolDone { index, outcome: ToolOutcome::Interrupted });
        }
    }

    pub(super) async fn show_written(&mut self, written: Written, events: &mut VecDeque<RunEvent>) -> Result<(), Flow> {
        let run_id = Some(self.shared.run_id.clone());
        let Written { tool_call_id, what } = written;
        let body = match what {
            WrittenWhat::Output(output) => {
                let tool_name = self.machine.tool_name(&tool_call_id);
                ChunkBody::Payload(Payload::ToolOutput { output, tool_call_id, tool_name })
            }
            WrittenWhat::Data(data) => {
                let body = ChunkBody::Data(data);
                let chunk = Chunk { run_id, from: ChunkFrom::User, body, metadata: None };
                return Box::pin(self.emit_written(&tool_call_id, chunk, events)).await;
            }
        };
        self.emit(Chunk { run_id, from: ChunkFrom::User, body, metadata: None });
        Ok(())
    }
}
