//! Random histories over the machine of a thread and those of its runs: nothing lost, nothing twice, nothing stuck.
//!
//! A simulator without clock, threads or channels plays a seeded history: senders, cancels, aborts, plain runs, two
//! agents, models and tools that answer in any order, a store that fails or answers late, and processes that die at any
//! point and are rebuilt from the store. [`world`] says what may happen, [`process`] stands for the thread's actor,
//! [`run`] for the run's driver, and [`oracle`] for what callers were promised: SIG-450 to 454 after every transition,
//! and at the quiet end of a history that every accepted input has ended in exactly one way.
//!
//! `BUGLE_HISTORIES=1000000` plays more of them; `BUGLE_SEED=…` plays one and prints its trace.

mod oracle;
mod process;
mod rng;
mod run;
mod world;

use world::{Sabotage, World};

/// Histories of the normal test.
const HISTORIES: u64 = 20_000;
/// Seeds count from here, unless `BUGLE_FIRST_SEED` says otherwise.
const FIRST: u64 = 1;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// How many wishes the history of this seed has.
fn length(seed: u64) -> usize {
    match seed % 8 {
        0 => 20,
        1..=4 => 3,
        _ => 6,
    }
}

fn faults(seed: u64, sabotage: Sabotage) -> Vec<String> {
    World::new(seed, false, sabotage).play(length(seed))
}

/// The trace of a history, and what was wrong with it.
fn told(seed: u64, sabotage: Sabotage) -> String {
    let mut world = World::new(seed, true, sabotage);
    let faults = world.play(length(seed));
    let faults = faults.join("\n  ");
    format!("{}\nseed {seed}:\n  {faults}\nreplay with BUGLE_SEED={seed}", world.take_trace())
}

#[test]
fn sig_450_to_454_hold_in_random_histories() {
    if let Some(seed) = number("BUGLE_SEED") {
        let told = told(seed, Sabotage::None);
        assert!(faults(seed, Sabotage::None).is_empty(), "{told}");
        return;
    }
    let first = number("BUGLE_FIRST_SEED").unwrap_or(FIRST);
    let count = number("BUGLE_HISTORIES").unwrap_or(HISTORIES);
    // Each history has one thread; several are played at a time.
    let lanes = std::thread::available_parallelism().map_or(1, |lanes| lanes.get().min(8)) as u64;
    let play = |lane: u64| {
        let mut found: Vec<(u64, String)> = Vec::new();
        for seed in (first + lane..first + count).step_by(lanes as usize) {
            found.extend(faults(seed, Sabotage::None).into_iter().next().map(|fault| (seed, fault)));
            if found.len() == 20 {
                break;
            }
        }
        found
    };
    let found: Vec<(u64, String)> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|lane| scope.spawn(move || play(lane))).collect();
        lanes.into_iter().flat_map(|lane| lane.join().expect("a history panicked")).collect()
    });
    let Some((shortest, _)) = found.iter().min_by_key(|(seed, _)| (length(*seed), *seed)) else { return };
    let list = found.iter().map(|(seed, fault)| format!("{seed}: {fault:.300}")).collect::<Vec<_>>().join("\n");
    panic!("{}\n\nhistories that failed:\n{list}", told(*shortest, Sabotage::None));
}

/// The checker finds bugs that are there.
#[test]
fn sig_451_bugs_put_in_on_purpose_are_found() {
    let bugs = [
        Sabotage::LoseDrained,
        Sabotage::ForgetAppend,
        Sabotage::ForgetRemoval,
        Sabotage::ForgetEnd,
        Sabotage::DrainTwice,
        Sabotage::HideEcho,
        Sabotage::SwapAppends,
        Sabotage::ForgetClaim,
    ];
    for bug in bugs {
        let found = (FIRST..=2000).find(|seed| !faults(*seed, bug).is_empty());
        assert!(found.is_some(), "{bug:?} was not found in 2000 histories");
    }
}
