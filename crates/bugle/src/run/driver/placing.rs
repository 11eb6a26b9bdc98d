//! Input on its way into the run, past the guards, and what makes it durable.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::processor::Hook;

impl Driver {
    /// Takes what waits, past the guards.
    pub(super) async fn drain(&mut self) -> Option<RunEvent> {
        let taken = match &self.link {
            Some(link) => {
                let (reply, answer) = oneshot::channel();
                let run_id = self.shared.run_id.clone();
                // Stopped by its caller, it takes in no more than if the thread had stopped it (SIG-205, SIG-311).
                let stopping = self.shared.abort.is_cancelled();
                link.tell(Letter::Drain { run_id, stopping, reply }).await;
                // No answer: the actor has ended, so the runtime is stopping.
                answer.await.ok()?
            }
            None => Vec::new(),
        };
        let entries: Vec<InboxEntry> = taken.iter().map(|input| input.entry.clone()).collect();
        self.in_hand.extend(taken);
        let first = std::mem::take(&mut self.first_drain);
        if first {
            match self.judge_stored().await {
                Ok(()) => {}
                Err(Cut::TimedOut) => return Some(self.timed_out()),
                Err(Cut::Left | Cut::Aborted) => return None,
            }
        }
        let messages = if first { std::mem::take(&mut self.first_messages) } else { Vec::new() };
        let unguarded = !self.hooks.runner.has(Hook::Input);
        let results = if first && !unguarded { self.client_results() } else { Vec::new() };
        if unguarded || (entries.is_empty() && messages.is_empty() && results.is_empty()) {
            return Some(RunEvent::Drained { inputs: entries, rejected: Vec::new(), messages });
        }
        match Box::pin(self.guard(first, entries, messages, results)).await {
            Ok(event) => Some(event),
            // What was not judged goes back to the thread with the run's end.
            Err(Cut::TimedOut) => Some(self.timed_out()),
            Err(Cut::Left | Cut::Aborted) => None,
        }
    }

    /// Judges input that was taken (SIG-208), and with the first of it what a client has answered to stored calls.
    pub(super) async fn guard(
        &mut self,
        first: bool,
        entries: Vec<InboxEntry>,
        messages: Vec<StoredMessage>,
        results: Vec<StoredMessage>,
    ) -> Result<RunEvent, Cut> {
        let AtDesk { runner, mut desk, mut watch } = self.at_desk();
        let (mut event, added) = if first {
            let all = results.iter().cloned().chain(messages).collect();
            guard_first(runner, &mut desk, &mut watch, entries, all).await?
        } else {
            guard_later(runner, &mut desk, &mut watch, entries).await?
        };
        if !results.is_empty() {
            self.results_judged(&results, &mut event);
        }
        for content in added {
            let system = PromptMessage::System { content, provider_options: None };
            if !self.prepared.system.contains(&system) {
                self.prepared.system.push(system);
            }
        }
        Ok(event)
    }

    /// Judges the messages that came with a decision, and takes them in before anything is claimed: what was accepted is
    /// durable with the claim (ruling 6). `false` if this process leaves the run.
    pub(super) async fn take_in_pending(&mut self) -> bool {
        if self.claiming.is_none() || self.first_messages.is_empty() {
            return true;
        }
        let messages = std::mem::take(&mut self.first_messages);
        if !self.hooks.runner.has(Hook::Input) {
            for message in messages {
                self.machine.add_pending(message, None);
            }
            self.note_newest();
            return true;
        }
        let AtDesk { runner, mut desk, mut watch } = self.at_desk();
        for message in messages {
            match guard_pending(runner, &mut desk, &mut watch, message).await {
                Ok((messages, refused)) => {
                    for message in messages {
                        desk.machine.add_pending(message, refused.as_ref());
                    }
                }
                Err(_) => return false,
            }
        }
        self.note_newest();
        true
    }

    /// What others place on the thread comes after what the run holds.
    pub(super) fn note_newest(&self) {
        if let (Some(link), Some(newest)) = (&self.link, self.machine.transcript().newest()) {
            link.placed_up_to(newest);
        }
    }

    pub(super) async fn commit(&mut self) -> Option<RunEvent> {
        let (messages, entries) = self.machine.take_commit();
        let rollback = self.shared.is_rollback() && self.machine.is_stopping();
        if rollback {
            self.machine.drop_echoes();
        }
        let claims = self.machine.has_to_claim();
        let committed = if self.machine.is_parking() {
            let last = self.log.last_number() + self.machine.chunks_to_come();
            self.park(&messages, last).await
        } else if self.machine.is_ending() {
            let last = self.log.last_number() + self.machine.chunks_to_come();
            let ended = if rollback {
                let joined = self.machine.joined().cloned().collect();
                let placed = (self.machine.wake().cloned(), joined);
                self.committer.roll_back(self.machine.transcript().own_ids(), placed, (last, claims)).await
            } else if claims && !self.delegated && !self.committer.has_thread() {
                match self.unpark().await {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(CommitError::NotParked),
                    Err(error) => Err(error),
                }
            } else {
                self.committer.end(&messages, &entries, (last, claims)).await
            };
            if claims && ended.is_ok() {
                self.now_ours();
            }
            ended
        } else if claims {
            self.claim(&messages).await
        } else {
            self.committer.step(&messages, &entries, &self.machine.snapshot()).await
        };
        match committed {
            Ok(()) => {
                self.committed |= !entries.is_empty();
                if rollback {
                    // What others had sent goes back to the thread, in order (ruling 33).
                    give_back(&self.machine, &mut self.in_hand);
                    // So are notifications whose signal is gone: due at once.
                    self.inner.notifications.wake();
                } else {
                    self.in_hand.retain(|input| !entries.iter().any(|entry| entry.signal.id == *input.id()));
                }
                self.note_newest();
                Some(RunEvent::Committed)
            }
            Err(CommitError::Stale) => {
                tracing::warn!(run = %self.shared.run_id, "the thread has another owner; this run stops");
                self.shared.fence();
                None
            }
            Err(CommitError::NotParked) => {
                self.not_ours();
                None
            }
            Err(CommitError::Failed(error)) if claims => {
                // It stays parked, and its caller may try again.
                if let Some(claiming) = &mut self.claiming {
                    claiming.tell(Err(Error::Run(Box::new(error))));
                }
                None
            }
            Err(CommitError::Failed(error)) => {
                self.machine.restore_commit(&messages, entries);
                if self.machine.is_ending()
                    && let Some(hook) = &self.prepared.options.hooks.on_error
                {
                    // What was said is not stored (MEM-054).
                    guarded("onError", || hook(&error));
                }
                Some(RunEvent::CommitFailed(error))
            }
        }
    }
}
