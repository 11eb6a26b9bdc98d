//! What must hold: kept beside the machines, from what callers are told and what the store holds.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    id::{MessageId, RunId},
    runtime::Action,
    storage::InputMode,
};

/// What is known of one input.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) sequence: usize,
    pub(super) agent: usize,
    pub(super) text: String,
    pub(super) transient: bool,
    /// The list it went to, once it was handed to the journal.
    pub(super) mode: Option<InputMode>,
    /// What its sender was told.
    pub(super) told: Option<Action>,
    pub(super) refused: bool,
    /// A write about it failed and happened all the same; nobody can tell.
    pub(super) unclear: bool,
    pub(super) cancelled: bool,
    pub(super) cleared: bool,
    /// Its removal was asked for.
    pub(super) leaving: bool,
    /// Taken out of the journal, whether somebody was told or not.
    pub(super) removed: bool,
    pub(super) given_up: bool,
    pub(super) rolled_back: bool,
    pub(super) persisted: Option<bool>,
    pub(super) edited: bool,
    pub(super) edits: Vec<String>,
    /// It may overtake others: promoted, or it interrupted.
    pub(super) jumps: bool,
    /// The runs whose commits placed it, with the order of placement.
    pub(super) placed: Vec<(RunId, usize)>,
}

/// What is known of one run.
#[derive(Debug, Default)]
pub(super) struct RunNote {
    /// The input that started it, if input did.
    pub(super) wake: Option<MessageId>,
    pub(super) direct: bool,
    pub(super) placed: Vec<MessageId>,
    /// Signals in the prompt of some request.
    pub(super) read: BTreeSet<MessageId>,
    pub(super) unanswered: BTreeSet<MessageId>,
    /// How it ended, each time it did.
    pub(super) ends: Vec<End>,
    /// A write of it failed for good.
    pub(super) write_failed: bool,
    /// The write of its end is in the store.
    pub(super) end_landed: bool,
    pub(super) rolled_back: bool,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// With an answer that is stored.
    Finished,
    /// With an answer that could not be stored (MEM-054).
    FinishedUnstored,
    Failed,
    Aborted,
    RolledBack,
}

/// All that is known.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    pub(super) inputs: BTreeMap<MessageId, Record>,
    pub(super) runs: BTreeMap<RunId, RunNote>,
    pub(super) placements: usize,
    ran: BTreeMap<(RunId, String), usize>,
    sequence: usize,
    pub(super) faults: Vec<String>,
}

/// What the store holds in the end.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// Text of each signal row.
    pub(super) rows: BTreeMap<MessageId, String>,
    pub(super) waiting: BTreeSet<MessageId>,
    pub(super) runs: usize,
}

impl Oracle {
    pub(super) fn fault(&mut self, what: impl Into<String>) {
        self.faults.push(what.into());
    }

    /// Numbers what is handed to the journal.
    pub(super) fn next_sequence(&mut self) -> usize {
        self.sequence += 1;
        self.sequence
    }

    /// A call has run: how often by now.
    pub(super) fn ran(&mut self, run: &RunId, call: &str) -> usize {
        let times = self.ran.entry((run.clone(), call.to_owned())).or_default();
        *times += 1;
        *times
    }

    pub(super) fn run(&mut self, id: &RunId) -> &mut RunNote {
        self.runs.entry(id.clone()).or_default()
    }

    /// A commit that places these is in the store.
    pub(super) fn place(&mut self, run: &RunId, ids: &[MessageId]) {
        for id in ids {
            self.placements += 1;
            let at = self.placements;
            if let Some(record) = self.inputs.get_mut(id)
                && record.placed.iter().all(|(by, _)| by != run)
            {
                record.placed.push((run.clone(), at));
            }
            let note = self.run(run);
            if !note.placed.contains(id) {
                note.placed.push(id.clone());
            }
        }
    }

    /// A rollback of `run` is in the store.
    pub(super) fn rolled_back(&mut self, run: &RunId) {
        self.run(run).rolled_back = true;
        let placed = std::mem::take(&mut self.run(run).placed);
        let wake = self.run(run).wake.clone();
        for id in placed {
            let Some(record) = self.inputs.get_mut(&id) else { continue };
            record.placed.retain(|(by, _)| by != run);
            if wake.as_ref() == Some(&id) {
                record.rolled_back = true;
            }
        }
        if let Some(record) = wake.and_then(|wake| self.inputs.get_mut(&wake)) {
            record.rolled_back = true;
        }
    }

    /// What must hold once everything is quiet. `restarted`: nothing an earlier process left may remain.
    pub(super) fn judge(&mut self, stored: &Stored, restarted: bool) {
        let mut faults = Vec::new();
        let mut say = |id: &MessageId, record: &Record, what: &str| faults.push(format!("{id}: {what}: {record:?}"));
        for (id, record) in &self.inputs {
            let in_store = stored.rows.contains_key(id);
            let waits = stored.waiting.contains(id);
            let taken = record.told.is_some_and(|told| matches!(told, Action::Wake | Action::Deliver));
            let placed = in_store || (record.transient && !record.placed.is_empty());
            let ends =
                [placed && !record.given_up, record.cancelled, record.cleared, record.rolled_back, record.given_up];
            let ended = ends.iter().filter(|end| **end).count();
            if taken && !record.unclear {
                if waits && restarted {
                    say(id, record, "still waits although all is quiet (SIG-451)");
                } else if ended == 0 && !waits && !record.removed {
                    say(id, record, "was accepted and is lost (SIG-451)");
                } else if ended == 0 && waits {
                    say(id, record, "was accepted and waits for nobody (SIG-453)");
                } else if ended > 1 {
                    say(id, record, "ended in more than one way (SIG-451, R18)");
                }
            }
            if record.told == Some(Action::Discard) && (in_store || waits || !record.placed.is_empty()) {
                say(id, record, "was discarded and is stored");
            }
            if record.told == Some(Action::Persist) && record.persisted == Some(true) && !in_store {
                say(id, record, "was persisted and is not stored (SIG-130)");
            }
            if record.told == Some(Action::Persist) && !record.placed.is_empty() {
                say(id, record, "was persisted and taken in by a run");
            }
            if record.told == Some(Action::Blocked) && (in_store || waits) {
                say(id, record, "was blocked and is stored");
            }
            if record.refused && record.told.is_none() && !record.unclear && (in_store || waits) {
                say(id, record, "was refused and is stored");
            }
            if record.placed.len() > 1 && !record.unclear {
                say(id, record, "was placed by more than one run (SIG-503)");
            }
            if let Some(text) = stored.rows.get(id).filter(|text| **text != record.text && !record.edits.contains(text))
            {
                say(id, record, &format!("is stored as {text:?}"));
            }
            self.judge_answer(id, record, &mut say);
        }
        self.judge_order(&mut faults);
        for (run, note) in &self.runs {
            let finished = note.ends.iter().filter(|end| **end == End::Finished).count();
            if finished > 1 {
                faults.push(format!("run {run} finished {finished} times: {note:?}"));
            }
        }
        if restarted && stored.runs > 0 {
            faults.push(format!("{} records of runs remain", stored.runs));
        }
        if stored.runs > 0 && !restarted && !self.runs.values().any(|note| note.write_failed) {
            faults.push(format!("{} records of runs remain although all is quiet", stored.runs));
        }
        self.faults.append(&mut faults);
    }

    /// Answered once: by the run that placed it, or by nobody if that run was stopped or failed.
    fn judge_answer(&self, id: &MessageId, record: &Record, say: &mut impl FnMut(&MessageId, &Record, &str)) {
        if record.unclear || record.rolled_back {
            return;
        }
        let finished = record
            .placed
            .iter()
            .filter(|(run, _)| self.runs.get(run).is_some_and(|note| note.ends.contains(&End::Finished)));
        if finished.count() > 1 {
            say(id, record, "was answered twice");
        }
        let Some((run, _)) = record.placed.last() else { return };
        let Some(note) = self.runs.get(run) else { return };
        match note.ends.last() {
            // Its process died when the end was stored, and before anybody saw it.
            None if note.end_landed => {}
            None => say(id, record, &format!("was placed by run {run}, which never ended: {note:?}")),
            Some(End::Finished | End::FinishedUnstored) if !note.read.contains(id) && !note.unanswered.contains(id) => {
                say(id, record, &format!("was placed by run {run} and never read by a model: {note:?}"));
            }
            _ => {}
        }
    }

    /// Each list is first in, first out (SIG-160 to 163).
    fn judge_order(&self, faults: &mut Vec<String>) {
        let mut lists: BTreeMap<(bool, usize), Vec<(usize, usize, &MessageId)>> = BTreeMap::new();
        for (id, record) in &self.inputs {
            let (Some(mode), Some((_, at))) = (record.mode, record.placed.last()) else { continue };
            if record.jumps || record.unclear || record.refused {
                continue;
            }
            let queue = mode == InputMode::Queue;
            // All agents share the queue; each has its own pending input.
            let agent = if queue { 0 } else { record.agent };
            lists.entry((queue, agent)).or_default().push((record.sequence, *at, id));
        }
        for ((queue, _), mut list) in lists {
            list.sort_unstable();
            for pair in list.windows(2) {
                if pair[0].1 > pair[1].1 {
                    let list = if queue { "queue" } else { "pending input" };
                    faults.push(format!("{} overtook {} in the {list} (SIG-160)", pair[1].2, pair[0].2));
                }
            }
        }
    }
}
