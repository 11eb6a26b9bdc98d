//! Goes on after a provider refused a prompt that ends with the model's own turn (PROC §10).

use async_trait::async_trait;

use crate::{
    processor::{ApiFailure, Context, Hook, HookSet, Outcome, Processor, Recovery},
    signal::{Attributes, SignalInput},
};

/// Tries once more with a reminder to continue, if the provider refused the last turn.
///
/// ```
/// use bugle::processor::builtin::PrefillErrorHandler;
/// let handler = PrefillErrorHandler;
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct PrefillErrorHandler;

#[derive(Debug, Default)]
struct Done(bool);

fn is_prefill_error(failure: &ApiFailure) -> bool {
    let body = failure.error.response_body.as_deref().unwrap_or_default();
    let text = format!("{} {body}", failure.error.message).to_lowercase();
    text.contains("prefill")
        || text.contains("must end with a user message")
        || text.contains("conversation must end with a user")
        || text.contains("last message must be from the user")
}

#[async_trait]
impl Processor for PrefillErrorHandler {
    fn id(&self) -> &'static str {
        "prefill-error-handler"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::ApiError])
    }

    async fn process_api_error(&self, cx: &mut Context<'_>, failure: &ApiFailure) -> Outcome<Recovery> {
        if !is_prefill_error(failure) || std::mem::replace(&mut cx.state::<Done>().0, true) {
            return Ok(Recovery::GiveUp);
        }
        let attributes: Attributes = [("type".to_owned(), "continue".into())].into();
        let text = "Go on from where your last answer ended.";
        let reminder = SignalInput { attributes: Some(attributes), ..SignalInput::new("reactive", text) };
        cx.send_signal(reminder).await?;
        Ok(Recovery::Retry)
    }
}
