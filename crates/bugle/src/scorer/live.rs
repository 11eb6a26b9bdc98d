//! Scoring runs once they have ended, beside the work (SCO §5).

use std::{fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::sync::Semaphore;

use super::{Scorer, ScorerError, ScorerInput};
use crate::{
    id::{RunId, ThreadKey},
    json::{Value, json},
};

/// Runs that one live scorer works on, or has waiting, at most; more are not scored.
const WAITING_MAX: usize = 1024;
/// Of them, so many at once.
const AT_ONCE: usize = 16;
/// The longest one score may take.
const TIME_MAX: Duration = Duration::from_mins(10);

/// Which runs are scored (SCO-081).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Sampling {
    /// All.
    #[default]
    Always,
    /// This share of them, from 0 to 1. The run's id decides, so the same run is always in or always out.
    Ratio(f64),
}

impl Sampling {
    /// Whether the run with this id is scored: its hash, as a number from 0 to 1, is below the rate.
    fn takes(self, run_id: &RunId) -> bool {
        match self {
            Self::Always => true,
            Self::Ratio(rate) => {
                let hash = sha256(run_id.as_str().as_bytes());
                let bits = hash[..6].iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
                (bits as f64) / ((1_u64 << 48) as f64) < rate
            }
        }
    }
}

type Filter = Arc<dyn Fn(&Value) -> bool + Send + Sync>;
type OnScore = Arc<dyn Fn(LiveScore) + Send + Sync>;

/// A scorer for runs that have ended: never delays a run and never fails one; what goes wrong is logged (SCO-080).
/// Runs that failed, were aborted, or wait for a person are not scored (SCO-084).
///
/// ```
/// use std::sync::Arc;
/// use bugle::{RunOptions, model::ScriptedModel, scorer::{LiveScorer, Sampling, rubric_scorer}};
/// let judge = Arc::new(ScriptedModel::new());
/// let polite = LiveScorer::new(Arc::new(rubric_scorer(judge, "is polite")))
///     .sampling(Sampling::Ratio(0.1))
///     .filter(|about| about["resourceId"] != "test")
///     .on_score(|scored| println!("{} got {}", scored.run_id, scored.score));
/// let options = RunOptions { scorers: Some([("polite".to_owned(), polite)].into()), ..RunOptions::default() };
/// assert!(options.scorers.is_some());
/// ```
#[derive(Clone)]
pub struct LiveScorer {
    scorer: Arc<dyn Scorer>,
    sampling: Sampling,
    filter: Option<Filter>,
    on_score: Option<OnScore>,
    at_once: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// What a live scorer gave.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveScore {
    /// The scorer.
    pub scorer_id: String,
    /// The agent.
    pub agent_id: String,
    /// The run.
    pub run_id: RunId,
    /// Its thread, if it has one.
    pub thread: Option<ThreadKey>,
    /// The score.
    pub score: f64,
    /// Why.
    pub reason: Option<String>,
}

impl fmt::Debug for LiveScorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveScorer")
            .field("scorer", &self.scorer.id())
            .field("sampling", &self.sampling)
            .finish_non_exhaustive()
    }
}

/// A run to be scored.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) agent_id: String,
    pub(crate) agent_name: String,
    pub(crate) thread: Option<ThreadKey>,
    pub(crate) input: ScorerInput,
}

impl LiveScorer {
    /// Scores all runs.
    pub fn new(scorer: Arc<dyn Scorer>) -> Self {
        Self {
            scorer,
            sampling: Sampling::Always,
            filter: None,
            on_score: None,
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }

    /// Scores some of them.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Scores those of which it says `true`; asked before sampling. It sees `{requestContext, entity: {id, name},
    /// entityType, source, threadId, resourceId}`. One that panics has said no (SCO-082).
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&Value) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    /// Called with each score.
    #[must_use]
    pub fn on_score(mut self, hook: impl Fn(LiveScore) + Send + Sync + 'static) -> Self {
        self.on_score = Some(Arc::new(hook));
        self
    }

    fn wants(&self, ended: &Ended) -> bool {
        if let Some(filter) = &self.filter {
            let thread = ended.thread.as_ref();
            let about = json!({
                "requestContext": ended.input.request_context,
                "entity": { "id": ended.agent_id, "name": ended.agent_name },
                "entityType": "AGENT",
                "source": "LIVE",
                "threadId": thread.map(|thread| &thread.thread_id),
                "resourceId": thread.and_then(|thread| thread.resource_id.as_ref()),
            });
            let said = std::panic::catch_unwind(AssertUnwindSafe(|| filter(&about)));
            let said = said.unwrap_or_else(|_| {
                tracing::error!(
                    scorer = self.scorer.id(),
                    "the filter of a live scorer panicked; the run is not scored"
                );
                false
            });
            if !said {
                return false;
            }
        }
        self.sampling.takes(&ended.input.run_id)
    }

    /// Whether it may want a run: its filter, which is asked before the sampling, or its sampling says which (SCO-082).
    pub(crate) fn may_want(&self, run_id: &RunId) -> bool {
        self.filter.is_some() || self.sampling.takes(run_id)
    }

    /// Scores a run, if it is one of those.
    pub(crate) async fn score(&self, ended: &Ended) {
        if !self.wants(ended) {
            return;
        }
        let (scorer, run) = (self.scorer.id(), &ended.input.run_id);
        let Ok(_place) = self.waiting.try_acquire() else {
            return tracing::warn!(scorer, %run, "too many runs wait to be scored; this one is not");
        };
        // Never closed.
        let Ok(_turn) = self.at_once.acquire().await else { return };
        let judged = AssertUnwindSafe(async { self.scorer.score(&ended.input).await }).catch_unwind();
        match tokio::time::timeout(TIME_MAX, judged).await {
            Ok(Ok(Ok(score))) if score.score.is_finite() => {
                tracing::debug!(scorer, %run, score = score.score, "a run was scored");
                let Some(hook) = &self.on_score else { return };
                let scored = LiveScore {
                    scorer_id: scorer.to_owned(),
                    agent_id: ended.agent_id.clone(),
                    run_id: run.clone(),
                    thread: ended.thread.clone(),
                    score: score.score,
                    reason: score.reason,
                };
                if std::panic::catch_unwind(AssertUnwindSafe(|| hook(scored))).is_err() {
                    tracing::error!(scorer, "the hook of a live scorer panicked");
                }
            }
            Ok(Ok(Ok(score))) => tracing::error!(scorer, %run, score = score.score, "a score is no finite number"),
            Ok(Ok(Err(ScorerError::NotScorable(reason)))) => tracing::debug!(scorer, %run, reason, "not scorable"),
            Ok(Ok(Err(error))) => tracing::error!(scorer, %run, %error, "a run could not be scored"),
            Ok(Err(_)) => tracing::error!(scorer, %run, "a scorer panicked"),
            Err(_) => tracing::error!(scorer, %run, "a scorer took too long"),
        }
    }
}

#[rustfmt::skip]
const ROUNDS: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

/// SHA-256, for sampling alone: no secret is involved, and a dependency for one hash is too much.
fn sha256(data: &[u8]) -> [u8; 32] {
    #[rustfmt::skip]
    let mut state: [u32; 8] = [
        0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19,
    ];
    let mut padded = data.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend(((data.len() as u64) * 8).to_be_bytes());
    for block in padded.chunks_exact(64) {
        let mut words = [0_u32; 64];
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        for at in 16..64 {
            let (low, high) = (words[at - 15], words[at - 2]);
            let low = low.rotate_right(7) ^ low.rotate_right(18) ^ (low >> 3);
            let high = high.rotate_right(17) ^ high.rotate_right(19) ^ (high >> 10);
            words[at] = words[at - 16].wrapping_add(low).wrapping_add(words[at - 7]).wrapping_add(high);
        }
        let mut s = state;
        for (round, word) in ROUNDS.iter().zip(words) {
            let sum1 = s[4].rotate_right(6) ^ s[4].rotate_right(11) ^ s[4].rotate_right(25);
            let choice = (s[4] & s[5]) ^ (!s[4] & s[6]);
            let one = s[7].wrapping_add(sum1).wrapping_add(choice).wrapping_add(*round).wrapping_add(word);
            let sum0 = s[0].rotate_right(2) ^ s[0].rotate_right(13) ^ s[0].rotate_right(22);
            let majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
            s.rotate_right(1);
            s[4] = s[4].wrapping_add(one);
            s[0] = one.wrapping_add(sum0).wrapping_add(majority);
        }
        for (word, added) in state.iter_mut().zip(s) {
            *word = word.wrapping_add(added);
        }
    }
    let mut hash = [0; 32];
    for (bytes, word) in hash.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(hash: [u8; 32]) -> String {
        hash.chunks_exact(4).fold(String::new(), |text, four| {
            let word = four.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
            text + &format!("{word:08x}")
        })
    }

    #[test]
    fn sco_081_the_hash_is_sha_256() {
        assert_eq!(hex(sha256(b"")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hex(sha256(b"abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let long = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(sha256(long)), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }

    #[test]
    fn sco_081_a_ratio_takes_its_share_and_the_same_runs_each_time() {
        let runs: Vec<RunId> = (0..2000).map(|number| format!("run-{number}").as_str().into()).collect();
        let taken = |rate: f64| runs.iter().filter(|run| Sampling::Ratio(rate).takes(run)).count();
        assert_eq!((taken(0.0), taken(1.0)), (0, 2000));
        let quarter = taken(0.25);
        assert!((400..600).contains(&quarter), "{quarter}");
        let (some, more) = (Sampling::Ratio(0.25), Sampling::Ratio(0.5));
        assert!(runs.iter().all(|run| !some.takes(run) || more.takes(run)), "who is in at 0.25 is in at 0.5");
        // abc hashes to ba7816bf8f01…, which is 0.728… of 2^48.
        assert!(Sampling::Ratio(0.7285).takes(&"abc".into()) && !Sampling::Ratio(0.728).takes(&"abc".into()));
    }
}
