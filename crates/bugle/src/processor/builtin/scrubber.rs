//! Keeps the agent's instructions out of its answers (PROC §10): passages that repeat them word by word are found.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;

use super::{
    OnMatch,
    blocks::{Block, Blocks, ended, said, unsigned},
    shown::each_string,
};
use crate::{
    chunk::Chunk,
    processor::{Chunks, Context, Flush, Hook, HookSet, Outcome, OutputStep, Processor, ProcessorError},
};

/// Finds runs of words in answers that stand so in the agent's instructions. In a stream as many words are held back as
/// make a passage.
///
/// ```
/// use bugle::processor::builtin::{OnMatch, SystemPromptScrubber};
/// let scrubber = SystemPromptScrubber { words: 6, on_match: OnMatch::Block, ..SystemPromptScrubber::default() };
/// ```
#[derive(Debug, Clone)]
pub struct SystemPromptScrubber {
    /// How many words in a row are a passage. Default 8.
    pub words: usize,
    /// What happens with one. Default: redact.
    pub on_match: OnMatch,
    /// In the place of a passage.
    pub replacement: String,
    /// More texts that must not leave, beside the agent's instructions.
    pub texts: Vec<String>,
}

impl Default for SystemPromptScrubber {
    fn default() -> Self {
        Self { words: 8, on_match: OnMatch::Redact, replacement: "[instructions]".to_owned(), texts: Vec::new() }
    }
}

/// Words held back, each with the whitespace before it.
#[derive(Debug, Default)]
struct Window {
    known: Arc<HashSet<Vec<String>>>,
    partial: String,
    held: VecDeque<(String, String, bool)>,
    found: bool,
    /// The last word that left was part of a passage.
    in_passage: bool,
}

/// What the run keeps: the passages, and a window for each block of text or reasoning.
#[derive(Debug, Default)]
struct Kept {
    known: Option<Arc<HashSet<Vec<String>>>>,
    windows: Blocks<Window>,
}

fn normal(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn passages(texts: &[String], words: usize) -> HashSet<Vec<String>> {
    let mut known = HashSet::new();
    for text in texts {
        let all: Vec<String> = text.split_whitespace().map(normal).filter(|word| !word.is_empty()).collect();
        known.extend(all.windows(words).map(<[String]>::to_vec));
    }
    known
}

impl Window {
    fn push(&mut self, text: &str, words: usize, replacement: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            // A word ends where whitespace begins.
            if c.is_whitespace() && self.partial.chars().any(|held| !held.is_whitespace()) {
                out.push_str(&self.word(words, replacement));
            }
            self.partial.push(c);
        }
        out
    }

    fn word(&mut self, words: usize, replacement: &str) -> String {
        let raw = std::mem::take(&mut self.partial);
        let word = normal(raw.trim());
        self.held.push_back((raw, word, false));
        let with_words: Vec<usize> =
            (0..self.held.len()).rev().filter(|at| !self.held[*at].1.is_empty()).take(words).collect();
        if with_words.len() == words {
            let passage: Vec<String> = with_words.iter().rev().map(|at| self.held[*at].1.clone()).collect();
            if self.known.contains(&passage) {
                self.found = true;
                let first = with_words.last().copied().unwrap_or_default();
                self.held.iter_mut().skip(first).for_each(|(_, _, hit)| *hit = true);
            }
        }
        let mut out = String::new();
        while self.held.iter().filter(|(_, word, _)| !word.is_empty()).count() >= words {
            out.push_str(&self.leave(replacement));
        }
        out
    }

    fn leave(&mut self, replacement: &str) -> String {
        let Some((raw, _, hit)) = self.held.pop_front() else { return String::new() };
        let began = hit && !self.in_passage;
        self.in_passage = hit;
        match (hit, began) {
            (false, _) => raw,
            (true, true) => {
                let space: String = raw.chars().take_while(|c| c.is_whitespace()).collect();
                space + replacement
            }
            (true, false) => String::new(),
        }
    }

    fn finish(&mut self, words: usize, replacement: &str) -> String {
        let mut out = String::new();
        if !self.partial.is_empty() {
            out.push_str(&self.word(words, replacement));
        }
        while !self.held.is_empty() {
            out.push_str(&self.leave(replacement));
        }
        self.in_passage = false;
        out
    }
}

impl SystemPromptScrubber {
    fn texts(&self, cx: &Context<'_>) -> Vec<String> {
        let instructions = cx.agent().and_then(|agent| agent.agent().instructions(cx.request_context()));
        self.texts.iter().cloned().chain(instructions).collect()
    }

    /// The passages, once for the run.
    fn known(&self, cx: &mut Context<'_>) -> Arc<HashSet<Vec<String>>> {
        if let Some(known) = &cx.state::<Kept>().known {
            return known.clone();
        }
        let known = Arc::new(passages(&self.texts(cx), self.words.max(2)));
        cx.state::<Kept>().known = Some(known.clone());
        known
    }

    /// What the end of a block, or of a response, gives of what was held; whether a passage was in it.
    fn end(&self, cx: &Context<'_>, block: &Block, mut window: Window, out: &mut Chunks) -> Outcome<bool> {
        let ready = window.finish(self.words.max(2), &self.replacement);
        if window.found && self.on_match == OnMatch::Block {
            return Err(Self::blocked());
        }
        if !ready.is_empty() {
            out.push(block.delta(cx.run_id(), ready));
        }
        Ok(window.found)
    }

    fn judge(&self, known: &Arc<HashSet<Vec<String>>>, text: &mut String) -> Outcome {
        let words = self.words.max(2);
        let mut window = Window { known: known.clone(), ..Window::default() };
        let mut clean = window.push(text, words, &self.replacement);
        clean.push_str(&window.finish(words, &self.replacement));
        match (window.found, self.on_match) {
            (false, _) => {}
            (true, OnMatch::Block) => return Err(Self::blocked()),
            (true, OnMatch::Redact) => *text = clean,
            (true, OnMatch::Warn) => tracing::warn!("an answer repeats the agent's instructions"),
        }
        Ok(())
    }

    fn blocked() -> ProcessorError {
        ProcessorError::tripwire("the answer repeats the agent's instructions")
    }
}

#[async_trait]
impl Processor for SystemPromptScrubber {
    fn id(&self) -> &'static str {
        "system-prompt-scrubber"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::OutputStream, Hook::OutputStep])
    }

    async fn process_output_stream(&self, cx: &mut Context<'_>, mut chunk: Chunk, out: &mut Chunks) -> Outcome {
        if self.on_match == OnMatch::Warn {
            out.push(chunk);
            return Ok(());
        }
        if let Some((block, text)) = said(&chunk) {
            let known = self.known(cx);
            let window = cx.state::<Kept>().windows.of(&block, || Window { known, ..Window::default() });
            let ready = window.push(text, self.words.max(2), &self.replacement);
            if window.found && self.on_match == OnMatch::Block {
                return Err(Self::blocked());
            }
            if !ready.is_empty() {
                out.push(block.delta(cx.run_id(), ready));
            }
            return Ok(());
        }
        if let Some(block) = ended(&chunk)
            && let Some(window) = cx.state::<Kept>().windows.take(&block)
            && self.end(cx, &block, window, out)?
        {
            unsigned(&mut chunk);
        }
        out.push(chunk);
        Ok(())
    }

    async fn flush_output_stream(&self, cx: &mut Context<'_>, at: Flush, out: &mut Chunks) -> Outcome {
        // Another block may be open: each gives what it holds when it ends.
        if at == Flush::Text {
            return Ok(());
        }
        for (block, window) in cx.state::<Kept>().windows.take_all() {
            self.end(cx, &block, window, out)?;
        }
        Ok(())
    }

    async fn process_output_step(&self, cx: &mut Context<'_>, step: &mut OutputStep) -> Outcome {
        let known = self.known(cx);
        self.judge(&known, &mut step.text)?;
        self.judge(&known, &mut step.reasoning)?;
        if self.on_match != OnMatch::Redact {
            // Tools need their arguments as they are: they are judged, not changed.
            for call in &mut step.tool_calls {
                each_string(&mut call.args, &mut |text| self.judge(&known, text))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(known: &str, pieces: &[&str]) -> String {
        let mut window = Window { known: Arc::new(passages(&[known.to_owned()], 3)), ..Window::default() };
        let mut out: String = pieces.iter().map(|piece| window.push(piece, 3, "[x]")).collect();
        out.push_str(&window.finish(3, "[x]"));
        out
    }

    #[test]
    fn passages_are_found_across_pieces() {
        let known = "Never tell the code 1234.";
        assert_eq!(run(known, &["I must NEVER te", "ll the, code 1234 ok"]), "I must [x] ok");
        assert_eq!(run(known, &["never tell a lie"]), "never tell a lie");
        assert_eq!(run(known, &["  a\n\nb "]), "  a\n\nb ");
    }

    proptest! {
        #[test]
        fn proc_074_scrubbing_does_not_depend_on_the_chunks(
            words in proptest::collection::vec(prop_oneof![Just("one"), Just("two"), Just("three"), Just("four"), Just("é"), Just("\n"), Just("--")], 0..20),
            cuts in proptest::collection::vec(1usize..7, 0..40),
        ) {
            let text = words.join(" ");
            let known = "one two three four";
            let mut pieces = Vec::new();
            let mut rest = text.as_str();
            for cut in cuts {
                let end = rest.char_indices().nth(cut).map_or(rest.len(), |(place, _)| place);
                let (piece, later) = rest.split_at(end);
                pieces.push(piece);
                rest = later;
            }
            pieces.push(rest);
            prop_assert_eq!(run(known, &pieces), run(known, &[text.as_str()]));
        }
    }
}
