//! The script a fake-model request follows, and the little grammar it is written in.
//!
//! A script is a comma-separated list of `key=value` pairs. It is taken from the model name and
//! then overridden, key by key, by the first `fake/…` directive found in the text of the last
//! user message. See [`HELP`] for the keys.

use std::time::Duration;

use serde_json::Value;

pub const HELP: &str = "\
Script grammar (model name, or `fake/…` anywhere in the last user message, which overrides it):
  tokens=N      text tokens to emit, one SSE event each              [8]
  ttft_ms=X     wait before the first event, fractions allowed       [0]
  delay_ms=X    wait between two tokens, fractions allowed           [0]
  reasoning=N   reasoning tokens before anything else                [0]
  say=JSON      emit this text instead of tokens; a JSON string is split into words,
                any other JSON value is emitted as compact JSON in one token
  tool=NAME     call this tool instead of answering, until `steps` rounds of calls are answered
  args=JSON     arguments of the tool call                           [{}]
  steps=N       rounds of tool calls before the text answer          [1]
  parallel=N    tool calls in each round                             [1]
  status=N      answer with this HTTP error status instead
  hang=N        fall silent after N tokens, holding the connection (10 minutes at most)
  cut=N         break the connection after N tokens
Example: `fake/tokens=50,delay_ms=2,tool=add,args={\"a\":1,\"b\":2}`
A directive ends at the first character that cannot continue it; malformed keys are ignored.";

#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub tokens: u32,
    pub ttft: Duration,
    pub delay: Duration,
    pub reasoning: u32,
    pub say: Option<Vec<String>>,
    pub tool: Option<String>,
    pub args: String,
    pub steps: u32,
    pub parallel: u32,
    pub status: Option<u16>,
    pub hang: Option<u32>,
    pub cut: Option<u32>,
}

impl Default for Script {
    fn default() -> Self {
        Script {
            tokens: 8,
            ttft: Duration::ZERO,
            delay: Duration::ZERO,
            reasoning: 0,
            say: None,
            tool: None,
            args: "{}".into(),
            steps: 1,
            parallel: 1,
            status: None,
            hang: None,
            cut: None,
        }
    }
}

impl Script {
    /// The script for a request: the model name first, the last user message on top.
    pub fn resolve(model: &str, last_user_text: &str) -> Script {
        let mut script = Script::default();
        script.apply(model.strip_prefix("fake/").unwrap_or(model));
        if let Some(at) = last_user_text.find("fake/") {
            script.apply(&last_user_text[at + "fake/".len()..]);
        }
        script
    }

    /// Number of text tokens this script emits.
    pub fn text_len(&self) -> u32 {
        self.say.as_ref().map_or(self.tokens, |words| words.len() as u32)
    }

    /// The `i`th text token.
    pub fn text(&self, i: u32) -> String {
        match &self.say {
            Some(words) => words[i as usize].clone(),
            None => format!("w{i} "),
        }
    }

    fn apply(&mut self, mut rest: &str) {
        while let Some((key, after)) = rest.split_once('=') {
            if key.is_empty() || !key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') {
                return;
            }
            let (value, tail) = match key {
                "args" | "say" => match split_json(after) {
                    Some(parts) => parts,
                    None => return,
                },
                _ => split_word(after),
            };
            self.set(key, value);
            match tail.strip_prefix(',') {
                Some(next) => rest = next,
                None => return,
            }
        }
    }

    fn set(&mut self, key: &str, value: &str) {
        fn put<T: std::str::FromStr>(slot: &mut T, value: &str) {
            if let Ok(v) = value.parse() {
                *slot = v;
            }
        }
        match key {
            "tokens" => put(&mut self.tokens, value),
            "reasoning" => put(&mut self.reasoning, value),
            "steps" => put(&mut self.steps, value),
            "parallel" => put(&mut self.parallel, value),
            "ttft_ms" => self.ttft = millis(value).unwrap_or(self.ttft),
            "delay_ms" => self.delay = millis(value).unwrap_or(self.delay),
            "tool" => self.tool = (!value.is_empty()).then(|| value.to_owned()),
            "args" => self.args = value.to_owned(),
            "say" => self.say = words(value),
            "status" => self.status = value.parse().ok().filter(|s| (400..600).contains(s)),
            "hang" => self.hang = value.parse().ok(),
            "cut" => self.cut = value.parse().ok(),
            _ => {}
        }
    }
}

fn millis(value: &str) -> Option<Duration> {
    let ms: f64 = value.parse().ok()?;
    Duration::try_from_secs_f64(ms / 1e3).ok()
}

/// Splits off a plain value: letters, digits and `_ - .`.
fn split_word(s: &str) -> (&str, &str) {
    let end = s.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))).unwrap_or(s.len());
    s.split_at(end)
}

/// Splits off one JSON value.
fn split_json(s: &str) -> Option<(&str, &str)> {
    let mut values = serde_json::Deserializer::from_str(s).into_iter::<Value>();
    values.next()?.ok()?;
    Some(s.split_at(values.byte_offset()))
}

fn words(json: &str) -> Option<Vec<String>> {
    match serde_json::from_str(json).ok()? {
        Value::String(text) => Some(text.split_inclusive(' ').map(str::to_owned).collect()),
        other => Some(vec![other.to_string()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_name_with_and_without_prefix() {
        for name in ["fake/tokens=3,delay_ms=1.5", "tokens=3,delay_ms=1.5"] {
            let s = Script::resolve(name, "");
            assert_eq!((s.tokens, s.delay), (3, Duration::from_micros(1500)));
        }
        assert_eq!(Script::resolve("gpt-x", "hello = world"), Script::default());
    }

    #[test]
    fn the_last_user_message_overrides_key_by_key() {
        let s = Script::resolve("tokens=3,reasoning=2", "please fake/tokens=5 now, tokens=9");
        assert_eq!((s.tokens, s.reasoning), (5, 2));
    }

    #[test]
    fn json_values_end_where_the_json_ends() {
        let s = Script::resolve("", r#"fake/tool=add,args={"a":"x,y]","b":[1]},steps=2</user>"#);
        assert_eq!(s.tool.as_deref(), Some("add"));
        assert_eq!(s.args, r#"{"a":"x,y]","b":[1]}"#);
        assert_eq!(s.steps, 2);
        let s = Script::resolve("", r#"fake/say="one two","#);
        assert_eq!(s.say.unwrap(), ["one ", "two"]);
        assert_eq!(Script::resolve("", r#"fake/say={"score": 1}"#).say.unwrap(), [r#"{"score":1}"#]);
    }

    #[test]
    fn malformed_values_keep_the_defaults() {
        let s = Script::resolve("", "fake/tokens=x,status=200,delay_ms=-1,args=oops");
        assert_eq!(s, Script::default());
    }
}
