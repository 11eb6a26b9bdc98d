//! How many tokens a text is, roughly: no tokenizer is asked, so that every model is counted alike.

use crate::model::{AssistantPart, PromptMessage, UserPart};

/// A rough count: four characters of ASCII are a token, any other character is one.
///
/// ```
/// assert_eq!(bugle::processor::builtin::estimate_tokens("twelve chars"), 3);
/// ```
pub fn estimate_tokens(text: &str) -> usize {
    let mut count = Count::default();
    count.add(text);
    count.tokens()
}

/// Counts a text that comes in pieces as [`estimate_tokens`] counts the whole.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Count {
    ascii: usize,
    other: usize,
}

impl Count {
    pub(super) fn add(&mut self, text: &str) {
        self.ascii += text.bytes().filter(u8::is_ascii).count();
        self.other += text.chars().filter(|c| !c.is_ascii()).count();
    }

    pub(super) fn tokens(self) -> usize {
        self.ascii.div_ceil(4) + self.other
    }
}

/// What one turn costs without its frame.
pub(super) fn turn_tokens(turn: &PromptMessage) -> usize {
    match turn {
        PromptMessage::System { content, .. } => estimate_tokens(content),
        PromptMessage::User { content, .. } => content
            .iter()
            .map(|part| match part {
                UserPart::Text { text, .. } => estimate_tokens(text),
                // A file costs what providers charge for a picture; its bytes are not text.
                UserPart::File { .. } => 1000,
            })
            .sum(),
        PromptMessage::Assistant { content, .. } => content
            .iter()
            .map(|part| match part {
                AssistantPart::Text { text, .. } | AssistantPart::Reasoning { text, .. } => estimate_tokens(text),
                AssistantPart::File { .. } => 1000,
                AssistantPart::ToolCall { tool_name, input, .. } => {
                    estimate_tokens(tool_name) + estimate_tokens(&input.to_string())
                }
            })
            .sum(),
        PromptMessage::Tool { content } => content
            .iter()
            .map(|result| estimate_tokens(&result.tool_name) + estimate_tokens(&result.output.to_text()))
            .sum(),
    }
}
