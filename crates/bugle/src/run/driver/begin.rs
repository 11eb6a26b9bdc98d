//! How a run begins: prepared, its machine made or restored, driven to its end.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;

/// Runs a run to its end, whatever the code of its agent does: a panic ends the run, not the thread.
pub(crate) async fn drive(seed: RunSeed) {
    let (shared, log, link) = (seed.shared.clone(), seed.log.clone(), seed.link.clone());
    let retry = matches!(seed.kind, SeedKind::Woken);
    // Boxed, as the parts below are: a run's task stays small while it waits.
    if AssertUnwindSafe(Box::pin(drive_to_end(seed))).catch_unwind().await.is_ok() {
        return;
    }
    let run_id = shared.run_id.clone();
    tracing::error!(run = %run_id, "a run panicked");
    if !shared.has_ended() {
        let error = ErrorInfo::new("RunPanic", "the run was stopped by a panic in the agent's code; see the log");
        let mut direct = failed_direct(&run_id, &error);
        let last = direct.remove(0);
        log.end_run(&shared, Some(last), DirectEnd { replaces_last: false, chunks: direct });
    }
    if let Some(link) = link {
        let left = Leftover::Unknown;
        link.tell(Letter::RunEnded(RunEnd { failed_to_start: retry, left, ..RunEnd::new(run_id) })).await;
    }
}

async fn drive_to_end(seed: RunSeed) {
    let RunSeed { agent, options, mut kind, shared, log, link, output, inner, streaming, delegated, detached } = seed;
    let run_id = shared.run_id.clone();
    let mut claiming = None;
    let mut known = Vec::new();
    let mut resolution = None;
    if let SeedKind::Resumed(seed) = &mut kind {
        let waits = Claiming::new(seed);
        match resume::load(&inner.storage, agent.id(), &run_id, seed).await {
            Ok(found) => {
                known = found.known;
                seed.nested = Some(Box::new(found.snapshot));
            }
            Err(error) => return resume::refuse(waits, error, agent.id(), &inner, link, run_id).await,
        }
        claiming = Some(waits);
        resolution = Some(seed.what.clone());
    } else {
        log.begin_run(&run_id);
    }
    let agent_id = agent.id().to_owned();
    let recorded = matches!(kind, SeedKind::Recorded);
    // Nobody but subscribers waits for it.
    let woken = match &kind {
        SeedKind::Direct(_) => false,
        SeedKind::Resumed(_) => output.is_none(),
        SeedKind::Woken | SeedKind::Recorded => true,
    };
    let prepared = Box::pin(prepare(&inner, agent, &options, kind, (link.as_ref(), detached.as_ref()), &run_id)).await;
    let mut prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) if claiming.is_some() => {
            let waits = claiming.take().expect("it is there");
            return resume::refuse(waits, Error::Run(Box::new(error)), &agent_id, &inner, link, run_id).await;
        }
        Err(error) => {
            let left = match (recorded, &link) {
                (true, Some(link)) => left_unread(&error, link.now(&inner.clock)),
                _ => Leftover::Nothing,
            };
            return fail_to_start(&shared, &log, link, output, &error, (woken && !recorded, left)).await;
        }
    };
    let (writer, written) = mpsc::channel(WRITES);
    let key = prepared.thread().cloned();
    let runner = runner(&prepared, &inner, &shared, key.as_ref());
    let settings = RunSettings {
        run_id: run_id.clone(),
        agent_id: prepared.agent.id().to_owned(),
        agent_name: prepared.agent.name().to_owned(),
        max_steps: prepared.max_steps(),
        given_steps: prepared.given_steps(),
        hard_steps: prepared.given_steps().unwrap_or(HARD_STEPS),
        has_iteration_hook: prepared.options.on_iteration_complete.is_some(),
        stop_when: prepared.options.stop_when.clone(),
        on_step_limit: prepared.options.on_step_limit.unwrap_or(prepared.agent.inner().on_step_limit),
        interruptible: prepared.agent.inner().interrupt == crate::agent::Interrupt::Reasoning,
        completion: prepared.completion.as_ref().map(|completion| completion.when),
        structured_output: prepared.options.structured_output.clone(),
        stores: !delegated && link.is_some() && prepared.stores(),
        judges: Hooks::judges(&runner),
        stored_options: prepared.options.to_stored(),
    };
    let history = std::mem::take(&mut prepared.history);
    let delegations = prepared.snapshot.as_ref().map(|snapshot| snapshot.delegation.clone()).unwrap_or_default();
    let delegations = Arc::new(DelegationState::from_record(delegations));
    let machine = match &prepared.snapshot {
        Some(snapshot) => {
            let open = snapshot.step.as_ref().map_or(&snapshot.message_id, |step| &step.message_id);
            let transcript = Transcript::restored(history, &snapshot.kept, key, &snapshot.own, open);
            match (resolution, &snapshot.step) {
                (Some(resolution), Some(step)) => {
                    RunMachine::resumed(settings, transcript, snapshot, step, resolution, known)
                }
                _ => RunMachine::recovered(settings, transcript, snapshot),
            }
        }
        None => {
            let mut transcript = Transcript::new(history, key);
            for id in &prepared.completed {
                transcript.touch(id);
            }
            for context in &prepared.options.context {
                transcript.add_context(context.clone());
            }
            RunMachine::new(settings, transcript, MessageId::fresh())
        }
    };
    let hooks = Hooks::new(runner, &prepared, link.as_ref().map(|link| &link.key));
    let total = prepared.options.model_settings.as_ref().and_then(|settings| settings.timeout?.total_ms);
    let committer = Committer::new(&inner, link.as_ref(), &prepared, &run_id, woken);
    let stops = Stops {
        shared: shared.clone(),
        caller: prepared.options.abort.clone().unwrap_or_default(),
        stop: inner.hub.stop.clone(),
        deadline: total.map(|ms| Instant::now() + Duration::from_secs_f64(ms / 1000.0)),
    };
    let mut driver = Box::new(Driver {
        first_messages: std::mem::take(&mut prepared.first_messages),
        prepared,
        shared,
        log,
        link,
        inner,
        streaming,
        machine,
        committer,
        in_hand: Vec::new(),
        committed: false,
        // Input of a run that goes on is judged one by one (SIG-208).
        first_drain: claiming.is_none(),
        request: None,
        model_index: 0,
        verdicts: Verdicts::default(),
        tools: JoinSet::new(),
        waiting_tools: VecDeque::new(),
        tool_messages: Arc::default(),
        running_tools: Vec::new(),
        tool_abort: CancellationToken::new(),
        tool_deadline: None,
        written,
        writer,
        hooks,
        stops,
        scope: None,
        delegations,
        detached,
        sequential: false,
        delegated,
        claiming,
        parked_at: Timestamp::default(),
    });
    driver.note_newest();
    let ending = if driver.take_in_pending().await { driver.run().await } else { None };
    driver.finish(ending, output).await;
}

/// The snapshot in a run's record.
pub(crate) fn read_snapshot(value: Value) -> Result<RunSnapshot, ErrorInfo> {
    serde_json::from_value(value).map_err(|error| {
        ErrorInfo::new("InvalidSnapshot", format!("the record of the run cannot be read ({error}); it is dropped"))
    })
}

/// The processors of a run, ready to work.
fn runner(prepared: &Prepared, inner: &Arc<Inner>, shared: &RunShared, thread: Option<&ThreadKey>) -> Runner {
    let (options, agent) = (&prepared.options, prepared.agent.inner());
    let info = RunInfo {
        run_id: shared.run_id.clone(),
        agent_id: prepared.agent.id().to_owned(),
        thread: thread.cloned(),
        request_context: options.request_context.clone(),
        abort: shared.abort.clone(),
        runtime: Some(Bugle { inner: inner.clone() }),
    };
    let retries = options.max_processor_retries.or(agent.max_processor_retries);
    Runner::new(prepared.processors.each_ref(), retries, info)
}
