//! What a subagent sees of the parent's conversation (SUB §4).

use crate::{
    id::MessageId,
    message::{FilePart, MessageContent, Part, PromptOptions, Role, StoredMessage, TextPart, build_prompt_for},
    model::{AssistantPart, PromptMessage, UserPart},
    time::Timestamp,
};

/// The conversation as the parent's model last saw it, without calls, results, and thoughts (SUB-032, SUB-033).
///
/// `messages` are the parent's, the call of this delegation included; what the model said with that call is not part
/// of what it saw.
pub(super) fn forwarded(
    messages: &[StoredMessage],
    tool_call_id: &str,
    options: &PromptOptions,
    provider: Option<&str>,
) -> Vec<PromptMessage> {
    let is_call =
        |part: &Part| matches!(part, Part::ToolInvocation(call) if call.tool_invocation.tool_call_id == tool_call_id);
    let found = messages
        .iter()
        .enumerate()
        .rev()
        .find_map(|(index, message)| message.content.parts.iter().position(is_call).map(|part| (index, part)));
    let prompt = match found {
        Some((index, part)) => {
            let mut seen = messages[..index].to_vec();
            let mut answer = messages[index].clone();
            // Parts of this step begin at its step-start; the first step of an answer has none.
            let parts = &answer.content.parts[..part];
            let begin = parts.iter().rposition(|part| matches!(part, Part::StepStart(_))).unwrap_or(0);
            answer.content.parts.truncate(begin);
            answer.content.content = None;
            if !answer.content.parts.is_empty() {
                seen.push(answer);
            }
            build_prompt_for(&seen, options, provider)
        }
        None => build_prompt_for(messages, options, provider),
    };
    prompt.into_iter().filter_map(stripped).collect()
}

fn stripped(message: PromptMessage) -> Option<PromptMessage> {
    match message {
        PromptMessage::Tool { .. } => None,
        PromptMessage::Assistant { content, .. } => {
            // What a provider wants replayed belongs to the whole answer, of which this is a part.
            let kept = content.into_iter().filter_map(|part| match part {
                AssistantPart::Text { text, .. } => Some(AssistantPart::Text { text, provider_options: None }),
                file @ AssistantPart::File { .. } => Some(file),
                AssistantPart::Reasoning { .. } | AssistantPart::ToolCall { .. } => None,
            });
            let content: Vec<_> = kept.collect();
            (!content.is_empty()).then_some(PromptMessage::Assistant { content, provider_options: None })
        }
        // Rows of the system in a conversation are the parent's own (SUB-034).
        PromptMessage::System { .. } => None,
        user @ PromptMessage::User { .. } => Some(user),
    }
}

/// Context as messages of the sub-run, which never stores them.
pub(super) fn as_messages(context: Vec<PromptMessage>, now: Timestamp) -> Vec<StoredMessage> {
    context.into_iter().filter_map(|message| as_message(message, now)).collect()
}

fn as_message(message: PromptMessage, now: Timestamp) -> Option<StoredMessage> {
    let text = |text, provider_metadata| Part::Text(TextPart { text, provider_metadata, ..TextPart::default() });
    let file = |data, media_type, filename, provider_metadata| {
        Part::File(FilePart {
            data,
            mime_type: Some(media_type),
            filename,
            created_at: None,
            provider_metadata,
            extra: Default::default(),
        })
    };
    let (role, parts, provider_metadata) = match message {
        PromptMessage::System { content, provider_options } => {
            (Role::System, vec![text(content, None)], provider_options)
        }
        PromptMessage::User { content, provider_options } => {
            let parts = content.into_iter().map(|part| match part {
                UserPart::Text { text: said, provider_options } => text(said, provider_options),
                UserPart::File { data, media_type, filename, provider_options } => {
                    file(data, media_type, filename, provider_options)
                }
            });
            (Role::User, parts.collect(), provider_options)
        }
        PromptMessage::Assistant { content, provider_options } => {
            let parts = content.into_iter().filter_map(|part| match part {
                AssistantPart::Text { text: said, provider_options } => Some(text(said, provider_options)),
                AssistantPart::File { data, media_type } => Some(file(data, media_type, None, None)),
                // A filter may have put such parts in; without their results no provider takes them.
                AssistantPart::Reasoning { .. } | AssistantPart::ToolCall { .. } => None,
            });
            (Role::Assistant, parts.collect::<Vec<_>>(), provider_options)
        }
        PromptMessage::Tool { .. } => return None,
    };
    if parts.is_empty() {
        return None;
    }
    let content = MessageContent { format: 2, parts, provider_metadata, ..MessageContent::default() };
    Some(StoredMessage {
        id: MessageId::fresh(),
        role,
        created_at: now,
        thread_id: None,
        resource_id: None,
        kind: None,
        content,
    })
}
