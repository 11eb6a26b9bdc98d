//! The script language: the prompt tells the model what to answer. The conformance suite's model speaks the same.

use std::time::Duration;

use serde_json::json;

use super::{
    super::{AssistantPart, ModelRequest, PromptMessage, UserPart},
    script::{Script, ScriptStep},
};

/// A message as the Chat protocol would carry it.
struct Turn {
    role: &'static str,
    text: String,
}

/// Splits `a [[x]] b [[y [[z]] w]]` into `x` and `y [[z]] w`.
pub fn script_blocks(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let mut blocks = Vec::new();
    let (mut depth, mut start, mut at) = (0_usize, 0, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"[[" => {
                if depth == 0 {
                    start = at + 2;
                }
                depth += 1;
                at += 2;
            }
            b"]]" if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    blocks.push(text[start..at].trim().to_owned());
                }
                at += 2;
            }
            _ => at += 1,
        }
    }
    blocks
}

/// Splits a block at `;;`, but not inside nested brackets, into verbs and their arguments.
fn actions(block: &str) -> Vec<(&str, &str)> {
    let bytes = block.as_bytes();
    let mut pieces = Vec::new();
    let (mut depth, mut start, mut at) = (0_i64, 0, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"[[" => depth += 1,
            b"]]" => depth -= 1,
            b";;" if depth == 0 => {
                pieces.push(&block[start..at]);
                start = at + 2;
            }
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
    }
    pieces.push(&block[start..]);
    let pieces = pieces.into_iter().map(str::trim).filter(|piece| !piece.is_empty());
    pieces.map(|action| action.split_once(char::is_whitespace).map_or((action, ""), |(v, a)| (v, a.trim()))).collect()
}

/// The answer to `request`.
pub(super) fn script_for(request: &ModelRequest) -> Script {
    let turns = turns(&request.prompt);
    let last = turns.iter().rposition(|turn| turn.role == "user");
    let text = last.map_or("", |last| turns[last].text.as_str());
    let after = &turns[last.map_or(0, |last| last + 1)..];
    let taken = after.iter().filter(|turn| turn.role == "assistant").count();
    if let Some(block) = script_blocks(text).get(taken) {
        return actions(block)
            .into_iter()
            .fold(Script::new(), |script, (verb, argument)| action(script, verb, argument, &turns, request));
    }
    let results: Vec<&str> = after.iter().filter(|turn| turn.role == "tool").map(|turn| turn.text.as_str()).collect();
    if results.is_empty() {
        return Script::new().text(&format!("ack: {text}"));
    }
    Script::new().text(&format!("tools: {}", results.join(" | ")))
}

fn action(script: Script, verb: &str, argument: &str, turns: &[Turn], request: &ModelRequest) -> Script {
    match verb {
        "say" => script.text(argument),
        "think" => script.think(argument),
        "slow" | "slow-think" => {
            let mut numbers = argument.split_whitespace();
            let count = numbers.next().and_then(|count| count.parse().ok()).unwrap_or(0);
            let every = millis(numbers.next().unwrap_or_default());
            script.step(ScriptStep::Words { count, sent: 0, every, reasoning: verb == "slow-think" })
        }
        "call" => {
            let (name, input) = argument.split_once(char::is_whitespace).unwrap_or((argument, ""));
            if name.is_empty() {
                return script.fail_with(400, "call needs the name of a tool: [[call TOOL {…}]]");
            }
            let input = match input.trim() {
                "" => "{}".to_owned(),
                input => input.to_owned(),
            };
            script.step(ScriptStep::Call { id: None, name: name.to_owned(), input })
        }
        "dump" => {
            let seen: Vec<_> = turns.iter().map(|turn| json!({ "role": turn.role, "text": turn.text })).collect();
            script.step(ScriptStep::Text(json!(seen).to_string()))
        }
        "tools" => {
            let mut names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
            names.sort_unstable();
            script.step(ScriptStep::Text(names.join(",")))
        }
        "wait" => script.wait(millis(argument)),
        "fail" => {
            let digits = argument.bytes().take_while(u8::is_ascii_digit).count();
            let message = argument[digits..].trim();
            match argument[..digits].parse() {
                Ok(status) if message.is_empty() => script.fail_with(status, &format!("scripted failure {status}")),
                Ok(status) => script.fail_with(status, message),
                Err(_) => script.fail_with(400, "fail needs an HTTP status: [[fail 503 busy]]"),
            }
        }
        "hang" => script.hang(),
        _ => script.fail_with(400, &format!("unknown script verb: {verb}")),
    }
}

fn millis(text: &str) -> Duration {
    Duration::try_from_secs_f64(text.parse::<f64>().unwrap_or(0.0) / 1000.0).unwrap_or_default()
}

/// How many messages the prompt has on the wire.
pub(super) fn turn_count(prompt: &[PromptMessage]) -> u64 {
    let count = |message: &PromptMessage| match message {
        PromptMessage::Tool { content } => content.len(),
        PromptMessage::System { .. } | PromptMessage::User { .. } | PromptMessage::Assistant { .. } => 1,
    };
    prompt.iter().map(count).sum::<usize>() as u64
}

fn turns(prompt: &[PromptMessage]) -> Vec<Turn> {
    let mut turns = Vec::with_capacity(prompt.len());
    for message in prompt {
        match message {
            PromptMessage::System { content, .. } => turns.push(Turn { role: "system", text: content.clone() }),
            PromptMessage::User { content, .. } => {
                let texts = content.iter().filter_map(|part| match part {
                    UserPart::Text { text, .. } => Some(text.as_str()),
                    UserPart::File { .. } => None,
                });
                turns.push(Turn { role: "user", text: texts.collect::<Vec<_>>().join("\n") });
            }
            PromptMessage::Assistant { content, .. } => {
                let texts = content.iter().filter_map(|part| match part {
                    AssistantPart::Text { text, .. } => Some(text.as_str()),
                    _ => None,
                });
                turns.push(Turn { role: "assistant", text: texts.collect() });
            }
            PromptMessage::Tool { content } => {
                turns.extend(content.iter().map(|result| Turn { role: "tool", text: result.output.to_text() }));
            }
        }
    }
    turns
}
