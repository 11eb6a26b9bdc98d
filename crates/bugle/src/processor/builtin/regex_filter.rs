//! Blocks, redacts or reports what matches a pattern, with presets for common secrets (PROC §10).

use std::fmt;

use async_trait::async_trait;

use super::{
    Redactor, Rule,
    blocks::{Block, Blocks, ended, said, unsigned},
    shown::{each_shown, each_string},
};
use crate::{
    chunk::Chunk,
    json::{Value, json},
    processor::{
        Chunks, Context, Flush, Hook, HookSet, Input, Outcome, OutputResult, OutputStep, Processor, ProcessorError,
        ToolResult,
    },
};

/// Name, pattern, characters within which a match is recognised, lookahead.
const PRESETS: [(&str, &str, usize, usize); 10] = [
    ("email", r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,4}\b", 384, 65),
    ("phone", r"(?:\+|\b)[0-9]{1,3}[ .-]?\(?[0-9]{2,4}\)?(?:[ .-]?[0-9]{2,4}){2,3}\b", 32, 6),
    ("credit-card", r"\b(?:[0-9][ -]?){12,18}[0-9]\b", 40, 3),
    ("ssn", r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b", 11, 1),
    ("ip-address", r"\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b", 15, 1),
    ("api-key", r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,128}", 132, 1),
    ("aws-key", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", 20, 1),
    ("github-token", r"\bgh[pousr]_[A-Za-z0-9]{36,255}", 260, 1),
    ("jwt", r"\beyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,1000}", 2100, 1),
    (
        "private-key",
        r"-----BEGIN [A-Z ]{0,24}PRIVATE KEY-----[A-Za-z0-9+/=\s]*(?:-----END [A-Z ]{0,24}PRIVATE KEY-----)?",
        60,
        60,
    ),
];

/// The names [`preset`] knows.
pub fn preset_names() -> Vec<&'static str> {
    PRESETS.iter().map(|(name, ..)| *name).collect()
}

/// A rule for a common secret: `email`, `phone`, `credit-card`, `ssn`, `ip-address`, `api-key`, `aws-key`,
/// `github-token`, `jwt`, `private-key`.
pub fn preset(name: &str) -> Option<Rule> {
    let (name, pattern, within, lookahead) = PRESETS.iter().find(|(known, ..)| *known == name)?;
    let made = match *name {
        // Its beginning is enough.
        "private-key" => Rule::recognised((*name).to_owned(), pattern, *within),
        name => Rule::new(name, pattern, *within),
    };
    Some(made.ok()?.with_lookahead(*lookahead))
}

/// What happens with a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnMatch {
    /// The run is stopped, the input rejected.
    Block,
    /// It is replaced by `[name]`. In a stream text is held back as long as it could be part of a match.
    #[default]
    Redact,
    /// It is logged.
    Warn,
}

/// Filters input, stream, tool results and answers by patterns. Without presets and rules it filters nothing.
///
/// ```
/// use bugle::processor::builtin::{OnMatch, RegexFilter, preset};
/// let filter = RegexFilter::new("no-secrets", vec![preset("email").unwrap()], OnMatch::Redact);
/// assert_eq!(filter.redact("Write to ann@example.com."), "Write to [email].");
/// ```
pub struct RegexFilter {
    id: String,
    rules: Vec<Rule>,
    on_match: OnMatch,
}

impl fmt::Debug for RegexFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegexFilter").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The blocks of text and of reasoning under way.
type Held = Blocks<Redactor>;

fn shown(rule: &Rule) -> String {
    format!("[{}]", rule.name)
}

impl RegexFilter {
    /// A filter.
    pub fn new(id: impl Into<String>, rules: Vec<Rule>, on_match: OnMatch) -> Self {
        Self { id: id.into(), rules, on_match }
    }

    /// The text with every match replaced.
    pub fn redact(&self, text: &str) -> String {
        Redactor::new().whole(&self.rules, text, &shown)
    }

    fn apply(&self, text: &mut String) -> Outcome {
        let found: Vec<&str> =
            self.rules.iter().filter(|rule| rule.is_match(text)).map(|rule| rule.name.as_str()).collect();
        if found.is_empty() {
            return Ok(());
        }
        match self.on_match {
            OnMatch::Block => Err(self.blocked(&found)),
            OnMatch::Redact => {
                *text = self.redact(text);
                Ok(())
            }
            OnMatch::Warn => {
                tracing::warn!(processor = self.id, rules = ?found, "text matches");
                Ok(())
            }
        }
    }

    fn blocked(&self, found: &[&str]) -> ProcessorError {
        ProcessorError::tripwire(format!("the text holds what must not be there: {}", found.join(", ")))
            .with_metadata(json!({ "rules": found }))
    }

    /// Strings anywhere in a value, names of fields among them.
    fn apply_value(&self, value: &mut Value) -> Outcome {
        each_string(value, &mut |text| self.apply(text))
    }

    /// What the end of a block, or of a response, gives of what was held.
    fn end(&self, cx: &Context<'_>, block: &Block, mut redactor: Redactor, out: &mut Chunks) -> Outcome<bool> {
        let ready = redactor.finish(&self.rules, &shown);
        if self.on_match == OnMatch::Block && !redactor.found.is_empty() {
            return Err(self.blocked(&redactor.found.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        if !ready.is_empty() {
            out.push(block.delta(cx.run_id(), ready));
        }
        Ok(!redactor.found.is_empty())
    }
}

#[async_trait]
impl Processor for RegexFilter {
    fn id(&self) -> &str {
        &self.id
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input, Hook::OutputStream, Hook::OutputStep, Hook::ToolResult, Hook::OutputResult])
    }

    async fn process_input(&self, _: &mut Context<'_>, input: &mut Input) -> Outcome {
        input.messages.iter_mut().try_for_each(|message| each_shown(message, &mut |text| self.apply(text)))
    }

    async fn process_output_stream(&self, cx: &mut Context<'_>, mut chunk: Chunk, out: &mut Chunks) -> Outcome {
        if self.on_match == OnMatch::Warn {
            out.push(chunk);
            return Ok(());
        }
        if let Some((block, text)) = said(&chunk) {
            let redactor = cx.state::<Held>().of(&block, Redactor::new);
            let ready = redactor.push(&self.rules, text, &shown);
            if self.on_match == OnMatch::Block && !redactor.found.is_empty() {
                return Err(self.blocked(&redactor.found.iter().map(String::as_str).collect::<Vec<_>>()));
            }
            if !ready.is_empty() {
                out.push(block.delta(cx.run_id(), ready));
            }
            return Ok(());
        }
        if let Some(block) = ended(&chunk)
            && let Some(redactor) = cx.state::<Held>().take(&block)
            && self.end(cx, &block, redactor, out)?
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
        for (block, redactor) in cx.state::<Held>().take_all() {
            // When the run is aborted, what is held may be the beginning of a match that never came to its end.
            if at == Flush::Step {
                self.end(cx, &block, redactor, out)?;
            }
        }
        Ok(())
    }

    async fn process_output_step(&self, _: &mut Context<'_>, step: &mut OutputStep) -> Outcome {
        self.apply(&mut step.text)?;
        self.apply(&mut step.reasoning)?;
        if self.on_match != OnMatch::Redact {
            // Tools need their arguments as they are: they are judged, not changed.
            for call in &mut step.tool_calls {
                self.apply_value(&mut call.args)?;
            }
        }
        Ok(())
    }

    async fn process_tool_result(&self, _: &mut Context<'_>, result: &mut ToolResult) -> Outcome {
        self.apply_value(&mut result.result)
    }

    async fn process_output_result(&self, _: &mut Context<'_>, result: &mut OutputResult) -> Outcome {
        self.apply(&mut result.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_find_what_they_are_for() {
        for (name, text) in [
            ("email", "ann.lee+x@mail.example.co"),
            ("phone", "+49 30 1234 5678"),
            ("credit-card", "4111-1111-1111-1111"),
            ("ssn", "555-12-3456"),
            ("ip-address", "192.168.0.1"),
            ("api-key", "sk-abcdefghijklmnop"),
            ("aws-key", "AKIAIOSFODNN7EXAMPLE"),
            ("github-token", "ghp_0123456789abcdefghijABCDEFGHIJ012345"),
            ("jwt", "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl"),
            ("private-key", "-----BEGIN RSA PRIVATE KEY-----\nMII=\n-----END RSA PRIVATE KEY-----"),
        ] {
            let filter = RegexFilter::new("f", vec![preset(name).unwrap()], OnMatch::Redact);
            assert_eq!(filter.redact(&format!("a {text} b")), format!("a [{name}] b"));
            assert_eq!(filter.redact("nothing to see in 2026, version 1.2.3"), "nothing to see in 2026, version 1.2.3");
        }
        assert!(Rule::new("empty", "a*", 3).is_err());
    }
}
