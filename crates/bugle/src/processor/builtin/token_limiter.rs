//! Keeps prompts and answers within a number of tokens without losing what is live (PROC-100, STATE-076).

use std::collections::HashSet;

use async_trait::async_trait;

use super::{
    text_delta,
    tokens::{Count, turn_tokens},
    tool_call_filter::own_calls,
};
use crate::{
    chunk::{Chunk, ChunkBody, DataChunk, Payload},
    json::json,
    message::StoredMessage,
    model::{AssistantPart, PromptMessage},
    processor::{Chunks, Context, Hook, HookSet, LlmRequest, Outcome, Processor, ProcessorError},
    signal::{Signal, StateMode, lane_signals},
};

/// What every prompt costs beside its turns.
const PROMPT_FRAME: usize = 24;
/// What a turn costs beside its text, in tenths.
const TURN_FRAME_TENTHS: usize = 38;

/// Which old turns go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trim {
    /// From the newest on, whatever fits stays.
    #[default]
    BestFit,
    /// From the newest on, up to the first that does not fit.
    Contiguous,
}

/// What happens when an answer has become too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnOutputLimit {
    /// The rest is withheld; one `data-token-limit-reached` chunk tells.
    #[default]
    Truncate,
    /// The run is stopped.
    Abort,
}

/// In the input list it limits prompts, in the output list answers. Tokens are estimated.
///
/// Never goes: system messages, the run's own calls and results, its newest input. A call goes with its result, a lane's
/// snapshot with its deltas.
///
/// ```
/// use bugle::processor::builtin::{TokenLimiter, Trim};
/// let limiter = TokenLimiter::new(100_000).trim(Trim::Contiguous);
/// ```
#[derive(Debug, Clone)]
pub struct TokenLimiter {
    limit: usize,
    trim: Trim,
    output: OnOutputLimit,
}

#[derive(Debug, Default)]
struct Written {
    /// All that was written, as it is counted: however the model cuts it, it costs the same.
    count: Count,
    told: bool,
}

/// A lane's turns in a prompt.
type LaneTurns = (String, Vec<usize>);

impl TokenLimiter {
    /// A limiter.
    pub fn new(limit: usize) -> Self {
        Self { limit, trim: Trim::default(), output: OnOutputLimit::default() }
    }

    /// Which old turns go.
    #[must_use]
    pub fn trim(mut self, trim: Trim) -> Self {
        self.trim = trim;
        self
    }

    /// What happens to long answers.
    #[must_use]
    pub fn on_output_limit(mut self, output: OnOutputLimit) -> Self {
        self.output = output;
        self
    }

    /// The turns that stay, and the lanes that go. `own` are the calls of this run.
    fn fit(
        &self,
        prompt: &[PromptMessage],
        own: &HashSet<String>,
        lanes: &[LaneTurns],
        states: &HashSet<usize>,
    ) -> Result<(Vec<bool>, Vec<String>), ProcessorError> {
        let cost = |at: usize| turn_tokens(&prompt[at]) * 10 + TURN_FRAME_TENTHS;
        let is_system = |at: usize| matches!(prompt[at], PromptMessage::System { .. });
        let system: usize = (0..prompt.len()).filter(|at| is_system(*at)).map(cost).sum();
        let budget = self.limit.saturating_sub(PROMPT_FRAME) * 10;
        let refuse = |left: usize, what: &str| {
            ProcessorError::tripwire(format!("the prompt does not fit into {} tokens: {what}", self.limit))
                .with_metadata(
                    json!({ "systemTokens": system / 10, "limit": self.limit, "remainingBudget": left / 10 }),
                )
        };
        let Some(mut left) = budget.checked_sub(system) else {
            return Err(refuse(0, "the system messages alone are too long"));
        };
        // Turns that stay or go together.
        let mut units: Vec<(Vec<usize>, bool)> = Vec::new();
        let of_lane = |at: usize| lanes.iter().find(|(_, turns)| turns.contains(&at));
        let mut at = 0;
        while at < prompt.len() {
            let turn = at;
            at += 1;
            if is_system(turn) {
                continue;
            }
            if let Some((_, turns)) = of_lane(turn) {
                // A lane stands where its newest turn does.
                if turns.iter().max() == Some(&turn) {
                    units.push((turns.clone(), false));
                }
                continue;
            }
            let mut unit = vec![turn];
            let mut is_own = false;
            if let PromptMessage::Assistant { content, .. } = &prompt[turn] {
                is_own = content.iter().any(
                    |part| matches!(part, AssistantPart::ToolCall { tool_call_id, .. } if own.contains(tool_call_id)),
                );
                if let Some(PromptMessage::Tool { .. }) = prompt.get(at) {
                    unit.push(at);
                    at += 1;
                }
            }
            units.push((unit, is_own));
        }
        // The newest input stays, whatever it costs.
        let newest = units
            .iter()
            .rposition(|(unit, _)| matches!(prompt[unit[0]], PromptMessage::User { .. }) && !states.contains(&unit[0]));
        if let Some(newest) = newest {
            units[newest].1 = true;
        }
        let mut keep = vec![false; prompt.len()];
        for turn in (0..prompt.len()).filter(|turn| is_system(*turn)) {
            keep[turn] = true;
        }
        for (unit, _) in units.iter().filter(|(_, protected)| *protected) {
            let cost: usize = unit.iter().copied().map(cost).sum();
            let Some(rest) = left.checked_sub(cost) else {
                return Err(refuse(left, "the run's own messages are too long"));
            };
            left = rest;
            for turn in unit {
                keep[*turn] = true;
            }
        }
        for (unit, _) in units.iter().rev().filter(|(_, protected)| !protected) {
            let cost: usize = unit.iter().copied().map(cost).sum();
            match left.checked_sub(cost) {
                Some(rest) => {
                    left = rest;
                    for turn in unit {
                        keep[*turn] = true;
                    }
                }
                None if self.trim == Trim::Contiguous => break,
                None => {}
            }
        }
        if !(0..prompt.len()).any(|turn| keep[turn] && !is_system(turn)) && !units.is_empty() {
            return Err(refuse(left, "nothing of the conversation fits"));
        }
        let gone = lanes.iter().filter(|(_, turns)| turns.iter().any(|turn| !keep[*turn]));
        let gone = gone.map(|(lane, _)| lane.clone()).collect();
        Ok((keep, gone))
    }
}

/// Where each lane's last snapshot and the deltas after it stand in the prompt, and where any state does.
fn lane_turns(messages: &[StoredMessage], thread: &str, prompt: &[PromptMessage]) -> (Vec<LaneTurns>, HashSet<usize>) {
    let mut lanes: Vec<String> = Vec::new();
    for message in messages {
        let state = message.content.meta("signal").and_then(|signal| signal.pointer("/metadata/state/id"));
        if let Some(lane) = state.and_then(crate::json::Value::as_str)
            && !lanes.iter().any(|known| known == lane)
        {
            lanes.push(lane.to_owned());
        }
    }
    let (mut found, mut states) = (Vec::new(), HashSet::new());
    for lane in lanes {
        let signals = lane_signals(messages, &lane, thread);
        for signal in &signals {
            let shown = Signal::to_prompt(&signal.signal);
            states.extend((0..prompt.len()).filter(|at| prompt[*at] == shown));
        }
        let Some(from) = signals.iter().rposition(|signal| signal.mode == StateMode::Snapshot) else { continue };
        let mut turns = Vec::new();
        for signal in &signals[from..] {
            let shown = Signal::to_prompt(&signal.signal);
            // The newest that reads so: an older state may read the same.
            if let Some(turn) = (0..prompt.len()).rev().find(|at| prompt[*at] == shown && !turns.contains(at)) {
                turns.push(turn);
            }
        }
        turns.sort_unstable();
        if !turns.is_empty() {
            found.push((lane, turns));
        }
    }
    (found, states)
}

#[async_trait]
impl Processor for TokenLimiter {
    fn id(&self) -> &'static str {
        "token-limiter"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::LlmRequest, Hook::OutputStream])
    }

    async fn process_llm_request(&self, cx: &mut Context<'_>, request: &mut LlmRequest) -> Outcome {
        let total: usize = request.prompt.iter().map(|turn| turn_tokens(turn) * 10 + TURN_FRAME_TENTHS).sum();
        if total / 10 + PROMPT_FRAME <= self.limit {
            return Ok(());
        }
        let thread = cx.thread().map(|thread| thread.thread_id.to_string()).unwrap_or_default();
        let (lanes, states) = lane_turns(cx.messages(), &thread, &request.prompt);
        let (keep, gone) = self.fit(&request.prompt, &own_calls(cx), &lanes, &states)?;
        let mut kept = keep.into_iter();
        request.prompt.retain(|_| kept.next().unwrap_or(true));
        for lane in gone {
            cx.mark_lane_stale(&lane);
        }
        Ok(())
    }

    async fn process_output_stream(&self, cx: &mut Context<'_>, chunk: Chunk, out: &mut Chunks) -> Outcome {
        let text = match &chunk.body {
            ChunkBody::Payload(Payload::TextDelta { text, .. }) => text.clone(),
            // What a partial value says, text has said.
            ChunkBody::Object(_) if !cx.state::<Written>().told => {
                out.push(chunk);
                return Ok(());
            }
            ChunkBody::Object(_) => return Ok(()),
            _ => {
                out.push(chunk);
                return Ok(());
            }
        };
        let limit = self.limit;
        let written = cx.state::<Written>();
        let mut fits = written.count;
        written.count.add(&text);
        if written.count.tokens() <= limit {
            out.push(chunk);
            return Ok(());
        }
        if self.output == OnOutputLimit::Abort {
            return Err(ProcessorError::tripwire(format!("the answer is longer than {limit} tokens"))
                .with_metadata(json!({ "limit": limit })));
        }
        let first = !std::mem::replace(&mut written.told, true);
        if first {
            // What still fits of this delta.
            if let Some(Payload::TextDelta { id, .. }) = chunk.payload() {
                let mut part = String::new();
                for c in text.chars() {
                    fits.add(c.encode_utf8(&mut [0; 4]));
                    if fits.tokens() > limit {
                        break;
                    }
                    part.push(c);
                }
                if !part.is_empty() {
                    out.push(text_delta(cx.run_id(), id, part));
                }
            }
            let data = json!({ "limit": limit });
            cx.write(DataChunk { kind: "data-token-limit-reached".to_owned(), data, id: None, transient: Some(true) })
                .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ToolOutput, ToolResultTurn, UserPart};

    fn user(text: &str) -> PromptMessage {
        let text = UserPart::Text { text: text.to_owned(), provider_options: None };
        PromptMessage::User { content: vec![text], provider_options: None }
    }

    fn call(id: &str) -> [PromptMessage; 2] {
        let call = AssistantPart::ToolCall {
            tool_call_id: id.to_owned(),
            tool_name: "t".to_owned(),
            input: json!({}),
            provider_executed: None,
            provider_options: None,
        };
        let output = ToolOutput::Text("x".repeat(400));
        let result = ToolResultTurn { tool_call_id: id.to_owned(), tool_name: "t".to_owned(), output };
        [
            PromptMessage::Assistant { content: vec![call], provider_options: None },
            PromptMessage::Tool { content: vec![result] },
        ]
    }

    fn kept(limiter: &TokenLimiter, prompt: &[PromptMessage], own: &[&str], lanes: &[LaneTurns]) -> Vec<usize> {
        let own = own.iter().map(|id| (*id).to_owned()).collect();
        let (keep, _) = limiter.fit(prompt, &own, lanes, &HashSet::new()).unwrap();
        (0..prompt.len()).filter(|at| keep[*at]).collect()
    }

    #[test]
    fn proc_100_calls_go_with_their_results_and_the_runs_own_stay() {
        let [old_call, old_result] = call("old");
        let [own_call, own_result] = call("own");
        let system = PromptMessage::System { content: "s".repeat(40), provider_options: None };
        let prompt = [system, user(&"a".repeat(40)), old_call, old_result, user("now"), own_call, own_result];
        // 24 + (10+4) + own (105+8) + now (1+4): the old pair does not fit, the old text does.
        let limiter = TokenLimiter::new(180);
        assert_eq!(kept(&limiter, &prompt, &["own"], &[]), [0, 1, 4, 5, 6]);
        assert_eq!(kept(&limiter.clone().trim(Trim::Contiguous), &prompt, &["own"], &[]), [0, 4, 5, 6]);
        assert_eq!(kept(&TokenLimiter::new(1000), &prompt, &["own"], &[]), [0, 1, 2, 3, 4, 5, 6]);
        let own: HashSet<String> = ["own".to_owned()].into();
        let refused = TokenLimiter::new(100).fit(&prompt, &own, &[], &HashSet::new()).unwrap_err();
        let ProcessorError::Tripwire { retry, metadata, .. } = refused else { panic!() };
        assert!(!retry, "PROC-100: live results are never lost silently");
        let metadata = metadata.unwrap();
        assert_eq!((&metadata["limit"], &metadata["systemTokens"]), (&json!(100), &json!(13)));
    }

    #[test]
    fn state_076_a_lane_goes_or_stays_as_one() {
        let prompt = [user(&"s".repeat(200)), user(&"d".repeat(40)), user(&"h".repeat(40)), user("now")];
        let lanes = [("a".to_owned(), vec![0, 1])];
        let own = HashSet::new();
        let (keep, gone) = TokenLimiter::new(60).fit(&prompt, &own, &lanes, &[0, 1].into()).unwrap();
        assert_eq!((keep, gone), (vec![false, false, true, true], vec!["a".to_owned()]));
        let (keep, gone) = TokenLimiter::new(200).fit(&prompt, &own, &lanes, &[0, 1].into()).unwrap();
        assert_eq!((keep, gone), (vec![true; 4], vec![]));
    }
}
