//! Hides old tool traffic from the prompt (PROC §10).

use std::collections::HashSet;

use async_trait::async_trait;

use crate::{
    message::{Part, StoredMessage},
    model::{AssistantPart, PromptMessage},
    processor::{Context, Hook, HookSet, LlmRequest, Outcome, Processor},
};

/// Takes calls and their results out of prompts, always both; those of the run under way stay. What is stored stays.
///
/// ```
/// use bugle::processor::builtin::ToolCallFilter;
/// let all = ToolCallFilter::default();
/// let some = ToolCallFilter { exclude: Some(vec!["search".into()]) };
/// ```
#[derive(Debug, Clone, Default)]
pub struct ToolCallFilter {
    /// Only calls of these tools are hidden; of all without.
    pub exclude: Option<Vec<String>>,
}

impl ToolCallFilter {
    /// The prompt without old traffic; `kept` are calls that stay whatever they are.
    pub fn apply(&self, prompt: &mut Vec<PromptMessage>, kept: &HashSet<String>) {
        let hides = |id: &str, name: &str| {
            !kept.contains(id)
                && self.exclude.as_ref().is_none_or(|exclude| exclude.iter().any(|excluded| excluded == name))
        };
        prompt.retain_mut(|turn| match turn {
            PromptMessage::Assistant { content, .. } => {
                content.retain(|part| match part {
                    AssistantPart::ToolCall { tool_call_id, tool_name, .. } => !hides(tool_call_id, tool_name),
                    _ => true,
                });
                content.iter().any(|part| !matches!(part, AssistantPart::Reasoning { .. }))
            }
            PromptMessage::Tool { content } => {
                content.retain(|result| !hides(&result.tool_call_id, &result.tool_name));
                !content.is_empty()
            }
            PromptMessage::System { .. } | PromptMessage::User { .. } => true,
        });
    }
}

/// The calls of the run under way.
pub(super) fn own_calls(cx: &Context<'_>) -> HashSet<String> {
    let own = cx.messages().iter().filter(|message| cx.is_of_this_run(message));
    own.flat_map(calls).collect()
}

fn calls(message: &StoredMessage) -> impl Iterator<Item = String> {
    message.content.parts.iter().filter_map(|part| match part {
        Part::ToolInvocation(call) => Some(call.tool_invocation.tool_call_id.clone()),
        _ => None,
    })
}

#[async_trait]
impl Processor for ToolCallFilter {
    fn id(&self) -> &'static str {
        "tool-call-filter"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::LlmRequest])
    }

    async fn process_llm_request(&self, cx: &mut Context<'_>, request: &mut LlmRequest) -> Outcome {
        let kept = own_calls(cx);
        self.apply(&mut request.prompt, &kept);
        Ok(())
    }
}
