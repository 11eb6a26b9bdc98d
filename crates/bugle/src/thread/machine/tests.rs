//! Races of SIG §21, decided without a loop.

use std::collections::BTreeSet;

use super::{ThreadEffect as E, ThreadEvent as V, *};
use crate::{
    id::ThreadKey,
    run::RunOptions,
    runtime::{AbortOptions, ActiveBehavior, IdleBehavior},
    signal::{Contents, SignalInput},
    storage::{InboxEntry, InputMode},
    thread::input::Send,
    time::Timestamp,
};

/// A thread, and what it has said.
#[derive(Default)]
struct Bench {
    thread: ThreadMachine,
    ticket: Ticket,
    position: i64,
    said: Vec<ThreadEffect>,
}

impl Bench {
    fn apply(&mut self, event: ThreadEvent) {
        let effects = self.thread.apply(event);
        self.said.extend(effects);
    }

    fn input(id: &str, agent: &str, mode: InputMode) -> Input {
        let signal = SignalInput { id: Some(id.into()), ..SignalInput::message(id) };
        let signal = signal.normalise(MessageId::fresh, Timestamp::from_millis(0)).unwrap();
        let entry = InboxEntry {
            signal,
            thread: ThreadKey::new("u", "t"),
            agent_id: agent.into(),
            mode,
            run_id: format!("run-{id}").into(),
            options: serde_json::Value::Null,
            queue_owner_id: None,
            attempts: 0,
            position: 0,
        };
        Input::new(entry, RunOptions::default(), false)
    }

    fn send(&mut self, id: &str, agent: &str, mode: InputMode) {
        self.ticket += 1;
        let send = Send {
            ticket: self.ticket,
            input: Self::input(id, agent, mode),
            active: ActiveBehavior::Deliver,
            idle: IdleBehavior::Wake,
            active_attributes: None,
            idle_attributes: None,
            by_run: false,
        };
        self.apply(V::Send(Box::new(send)));
    }

    fn journal(&mut self, id: &str) {
        self.position += 1;
        self.apply(V::Journaled { id: id.into(), result: Journal::Appended { position: self.position } });
    }

    fn accept(&mut self, id: &str, mode: InputMode) {
        self.send(id, "a", mode);
        self.journal(id);
    }

    fn drain(&mut self, run: &str) {
        self.ticket += 1;
        self.apply(V::Drain { run_id: run.into(), stopping: false, ticket: self.ticket });
    }

    fn end(&mut self, run: &str) {
        self.apply(V::RunEnded { run_id: run.into(), returned: Vec::new(), failed_to_start: false });
    }

    fn cancel(&mut self, ids: &[&str]) -> Vec<String> {
        self.ticket += 1;
        let ids = ids.iter().map(|id| MessageId::from(*id)).collect();
        self.apply(V::Cancel { ticket: self.ticket, ids });
        let answer = self.said.iter().rev().find_map(|effect| match effect {
            E::Cancelled { ids, .. } => Some(ids.iter().map(ToString::to_string).collect()),
            _ => None,
        });
        answer.unwrap()
    }

    fn abort(&mut self, clear: bool) -> bool {
        self.ticket += 1;
        let options = AbortOptions { clear_pending_signals: clear, expected_run_id: None };
        self.apply(V::Abort { ticket: self.ticket, options });
        let answer = self.said.iter().rev().find_map(|effect| match effect {
            E::Aborted { stopped, .. } => Some(*stopped),
            _ => None,
        });
        answer.unwrap()
    }

    /// Runs that were started, with whether they start stopped.
    fn started(&self) -> Vec<(String, bool)> {
        let started = self.said.iter().filter_map(|effect| match effect {
            E::StartRun(start) => Some((start.run_id.to_string(), start.aborted)),
            _ => None,
        });
        started.collect()
    }

    /// All that runs have taken, in order.
    fn taken(&self) -> Vec<String> {
        let drained = self.said.iter().filter_map(|effect| match effect {
            E::Drained { inputs, .. } => Some(inputs.iter().map(|input| input.id().to_string())),
            _ => None,
        });
        drained.flatten().collect()
    }
}

use InputMode::{Queue, Steer};

#[test]
fn r01_the_second_wake_joins_the_first() {
    let mut bench = Bench::default();
    bench.send("one", "a", Steer);
    bench.send("two", "a", Steer);
    bench.journal("one");
    bench.drain("run-one");
    assert!(bench.taken().is_empty(), "a run takes nothing that is not durable");
    bench.journal("two");
    assert_eq!(bench.taken(), ["one", "two"]);
    assert_eq!(bench.started(), [("run-one".to_owned(), false)]);
}

#[test]
fn r12_r05_input_after_the_last_drain_gets_a_follow_up_run() {
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    bench.drain("run-one");
    bench.accept("two", Steer);
    bench.accept("three", Steer);
    bench.end("run-one");
    let runs = bench.started();
    assert_eq!(runs.len(), 2);
    assert_ne!(runs[1].0, "run-one");
    bench.drain(&runs[1].0);
    assert_eq!(bench.taken(), ["one", "two", "three"]);
}

#[test]
fn r18_cancel_against_drain() {
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    bench.drain("run-one");
    bench.accept("two", Steer);
    bench.accept("three", Steer);
    assert_eq!(bench.cancel(&["two"]), ["two"]);
    bench.drain("run-one");
    assert_eq!(bench.cancel(&["three", "two"]), [""; 0]);
    assert_eq!(bench.taken(), ["one", "three"]);
}

#[test]
fn sig_288_r20_an_entry_that_waits_for_the_lease_is_skipped() {
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    bench.drain("run-one");
    bench.accept("q1", Queue);
    bench.accept("q2", Queue);
    bench.thread.lease_gone();
    bench.end("run-one");
    assert!(matches!(bench.said.last(), Some(E::Claim)));
    assert_eq!(bench.cancel(&["q1"]), ["q1"]);
    bench.apply(V::Claimed(Ok(())));
    assert_eq!(bench.started().last().unwrap().0, "run-q2");
}

#[test]
fn r21_r23_abort_and_clear_before_the_run_began() {
    let mut bench = Bench::default();
    bench.send("one", "a", Steer);
    bench.send("two", "a", Steer);
    bench.send("three", "a", Queue);
    assert!(bench.abort(true));
    bench.send("after", "a", Steer);
    for id in ["one", "two", "three", "after"] {
        bench.journal(id);
    }
    assert_eq!(bench.started(), [("run-one".to_owned(), true)], "R23: it starts stopped");
    bench.drain("run-one");
    assert_eq!(bench.taken(), ["one"]);
    bench.end("run-one");
    let follow_up = bench.started()[1].0.clone();
    bench.drain(&follow_up);
    assert_eq!(bench.taken(), ["one", "after"], "R21: the clear took two and three only");
}

#[test]
fn r40_two_agents_share_one_queue() {
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    bench.drain("run-one");
    for (id, agent) in [("b1", "b"), ("a1", "a"), ("b2", "b")] {
        bench.send(id, agent, Queue);
        bench.journal(id);
    }
    for run in ["run-one", "run-b1", "run-a1", "run-b2"] {
        bench.drain(run);
        bench.end(run);
    }
    let order: Vec<String> = bench.started().into_iter().map(|(run, _)| run).collect();
    assert_eq!(order, ["run-one", "run-b1", "run-a1", "run-b2"]);
    assert!(bench.thread.is_idle(), "SIG-452");
}

#[test]
fn r28_what_a_lost_thread_held_is_its_new_owners() {
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    bench.drain("run-one");
    bench.accept("two", Steer);
    bench.accept("q1", Queue);
    bench.apply(V::LeaseLost { run_id: Some("run-one".into()) });
    bench.end("run-one");
    assert!(bench.thread.is_idle());
    assert_eq!(bench.started().len(), 1, "nothing of it runs here");
    // It comes back to us: the journal and the record say what is left, the run's input included.
    let left: Vec<Input> = [("one", Steer), ("two", Steer), ("q1", Queue)]
        .map(|(id, mode)| Input::of_journal(Bench::input(id, "a", mode).entry))
        .into();
    let runs = vec![RecoveredRun { run_id: "run-one".into(), agent_id: "a".into() }];
    bench.apply(V::Recovered { inputs: left, runs, leased: false });
    bench.apply(V::Claimed(Ok(())));
    assert_eq!(bench.started().last().unwrap().0, "run-one");
    bench.drain("run-one");
    assert_eq!(bench.taken(), ["one", "one", "two"]);
}

#[test]
fn sig_502_a_look_at_the_store_does_not_revive_a_run_that_has_ended_meanwhile() {
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    bench.drain("run-one");
    bench.end("run-one");
    let inputs = vec![Input::of_journal(Bench::input("one", "a", Steer).entry)];
    let runs = vec![RecoveredRun { run_id: "run-one".into(), agent_id: "a".into() }];
    bench.apply(V::Recovered { inputs, runs, leased: false });
    assert_eq!(bench.started().len(), 1);
    assert!(bench.thread.is_idle());
}

#[test]
fn sig_502_what_a_dead_process_left_is_not_overtaken_by_the_input_that_finds_it() {
    let mut bench = Bench::default();
    // A fresh process is asked for something; the answer to its claim brings what was left.
    bench.send("new", "a", Queue);
    let left: Vec<Input> = [("q1", 1), ("q2", 2)]
        .map(|(id, position)| InboxEntry { position, ..Bench::input(id, "a", Queue).entry })
        .map(Input::of_journal)
        .into();
    let runs = vec![RecoveredRun { run_id: "run-one".into(), agent_id: "a".into() }];
    bench.apply(V::Recovered { inputs: left, runs, leased: true });
    bench.journal("new");
    for run in ["run-one", "run-q1", "run-q2", "run-new"] {
        bench.drain(run);
        bench.end(run);
    }
    let order: Vec<String> = bench.started().into_iter().map(|(run, _)| run).collect();
    assert_eq!(order, ["run-one", "run-q1", "run-q2", "run-new"]);
    assert!(bench.thread.is_idle(), "SIG-452");
}

#[test]
fn sig_502_input_that_wakes_a_thread_with_an_unfinished_run_joins_that_run_and_is_told_so() {
    let mut bench = Bench::default();
    bench.send("new", "a", Steer);
    let runs = vec![RecoveredRun { run_id: "run-one".into(), agent_id: "a".into() }];
    bench.apply(V::Recovered { inputs: Vec::new(), runs, leased: true });
    bench.journal("new");
    bench.drain("run-one");
    assert_eq!(bench.taken(), ["new"]);
    let told = bench.said.iter().find_map(|effect| match effect {
        E::Routed { routed, .. } => Some((routed.action, routed.run_id.clone())),
        _ => None,
    });
    assert_eq!(told, Some((Action::Deliver, Some("run-one".into()))));
}

#[test]
fn cli_072_a_draining_process_starts_nothing() {
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    bench.drain("run-one");
    bench.accept("q1", Queue);
    bench.thread.hold(true);
    bench.end("run-one");
    assert_eq!(bench.started().len(), 1);
    assert!(!bench.thread.is_idle());
}

#[test]
fn sig_451_every_input_is_in_at_most_one_list() {
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    for n in 0..30 {
        bench.accept(&format!("s{n}"), if n % 2 == 0 { Steer } else { Queue });
        let waiting: Vec<String> = bench.thread.waiting().iter().map(|(_, _, input)| input.id().to_string()).collect();
        assert_eq!(waiting.iter().collect::<BTreeSet<_>>().len(), waiting.len());
    }
}

#[test]
fn sig_255_what_a_panicking_run_had_taken_comes_back_from_the_journal_and_is_given_up_in_the_end() {
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    for attempts in 0..3 {
        let run = bench.started().last().unwrap().0.clone();
        bench.drain(&run);
        bench.apply(V::Crashed { run_id: run.as_str().into() });
        bench.apply(V::RunEnded { run_id: run.into(), returned: Vec::new(), failed_to_start: true });
        let mut again = Bench::input("one", "a", Steer);
        again.entry.attempts = attempts;
        bench.apply(V::Recovered { inputs: vec![again], runs: Vec::new(), leased: false });
        bench.apply(V::RetryDue);
    }
    assert_eq!(bench.taken(), ["one", "one", "one"]);
    assert!(bench.said.iter().any(|effect| matches!(effect, E::GiveUp(input) if input.entry.attempts == 3)));
    assert!(bench.thread.is_idle());
}

#[test]
fn ruling_24_a_run_is_stopped_only_by_input_that_was_accepted() {
    let interrupts = |bench: &mut Bench, id: &str| {
        bench.ticket += 1;
        let send = Send {
            ticket: bench.ticket,
            input: Bench::input(id, "a", Steer),
            active: ActiveBehavior::Interrupt,
            idle: IdleBehavior::Wake,
            active_attributes: None,
            idle_attributes: None,
            by_run: false,
        };
        bench.apply(V::Send(Box::new(send)));
    };
    let stops = |bench: &Bench| bench.said.iter().filter(|effect| matches!(effect, E::AbortRun { .. })).count();
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    bench.drain("run-one");
    interrupts(&mut bench, "refused");
    bench.apply(V::Journaled { id: "refused".into(), result: Journal::Failed });
    assert_eq!(stops(&bench), 0);
    interrupts(&mut bench, "two");
    assert_eq!(stops(&bench), 0);
    bench.journal("two");
    assert_eq!(stops(&bench), 1);
    bench.end("run-one");
    assert_eq!(bench.started().last().unwrap().0, "run-two");
}

#[test]
fn http_079_interrupts_sent_at_once_are_told_the_run_that_takes_them_all() {
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    bench.drain("run-one");
    for id in ["two", "three", "four"] {
        bench.ticket += 1;
        let send = Send {
            ticket: bench.ticket,
            input: Bench::input(id, "a", Steer),
            active: ActiveBehavior::Interrupt,
            idle: IdleBehavior::Wake,
            active_attributes: None,
            idle_attributes: None,
            by_run: false,
        };
        bench.apply(V::Send(Box::new(send)));
    }
    // The first one is refused in the end; the others have been promised its run.
    bench.apply(V::Journaled { id: "two".into(), result: Journal::Failed });
    bench.journal("three");
    bench.journal("four");
    bench.end("run-one");
    let run = bench.started().last().unwrap().0.clone();
    bench.drain(&run);
    assert_eq!(bench.taken()[1..], ["four", "three"]);
    let told: Vec<String> = bench
        .said
        .iter()
        .filter_map(|effect| match effect {
            E::Routed { routed, .. } if routed.action == Action::Deliver => {
                routed.run_id.as_ref().map(ToString::to_string)
            }
            _ => None,
        })
        .collect();
    assert_eq!(told, [run.clone(), run]);
}

#[test]
fn sig_509_all_of_an_input_counts_and_an_edit_too() {
    let refused = |bench: &Bench| matches!(bench.said.last(), Some(E::Refused { why: Refusal::Limit, .. }));
    let mut bench = Bench::default();
    bench.accept("one", Steer);
    bench.drain("run-one");
    bench.accept("small", Queue);
    let mut big = Bench::input("big", "a", Queue);
    big.entry.options = serde_json::json!({ "system": "x".repeat(INBOX_BYTES - 4096) });
    bench.ticket += 1;
    let send = Send {
        ticket: bench.ticket,
        input: big,
        active: ActiveBehavior::Deliver,
        idle: IdleBehavior::Wake,
        active_attributes: None,
        idle_attributes: None,
        by_run: false,
    };
    bench.apply(V::Send(Box::new(send)));
    bench.journal("big");
    bench.ticket += 1;
    let contents = Some(Contents::Text("y".repeat(8192)));
    bench.apply(V::Edit { ticket: bench.ticket, id: "small".into(), contents, attributes: None });
    assert!(refused(&bench));
    bench.ticket += 1;
    let attributes = Some([("a".to_owned(), serde_json::json!("z".repeat(8192)))].into_iter().collect());
    bench.apply(V::Edit { ticket: bench.ticket, id: "small".into(), contents: None, attributes });
    assert!(refused(&bench));
    let small = bench.thread.inputs().find(|input| input.id().to_string() == "small").unwrap();
    assert_eq!(small.entry.signal.contents, Contents::Text("small".into()), "as it was");
}
