//! Tries a request again whose stream broke off (PROC §10).

use std::time::Duration;

use async_trait::async_trait;

use crate::processor::{ApiFailure, Context, Hook, HookSet, Outcome, Processor, Recovery};

/// Error texts of failures that pass.
const TRANSIENT: [&str; 8] = [
    "overloaded",
    "ended before the answer was complete",
    "connection reset",
    "connection closed",
    "broken pipe",
    "timed out",
    "temporarily unavailable",
    "internal server error",
];

/// Tries a failed request again if the failure looks transient: also one that came after text had been shown, which the
/// runtime itself never repeats (LOOP-048).
///
/// ```
/// use bugle::processor::builtin::StreamErrorRetry;
/// let retry = StreamErrorRetry { max_retries: 1, ..StreamErrorRetry::default() };
/// ```
#[derive(Debug, Clone)]
pub struct StreamErrorRetry {
    /// How often in one run. Default 2; the run's own budget counts too (PROC-061).
    pub max_retries: u32,
    /// The wait before a try, doubled each time. Default 500 ms.
    pub delay: Duration,
    /// Texts that count as transient too, compared without case.
    pub matchers: Vec<String>,
}

impl Default for StreamErrorRetry {
    fn default() -> Self {
        Self { max_retries: 2, delay: Duration::from_millis(500), matchers: Vec::new() }
    }
}

#[derive(Debug, Default)]
struct Tries(u32);

impl StreamErrorRetry {
    fn is_transient(&self, failure: &ApiFailure) -> bool {
        let text = failure.error.message.to_lowercase();
        failure.error.is_retryable == Some(true)
            || failure.error.status_code.is_some_and(|status| matches!(status, 408 | 409 | 429) || status >= 500)
            || TRANSIENT.iter().any(|known| text.contains(known))
            || self.matchers.iter().any(|known| text.contains(&known.to_lowercase()))
    }
}

#[async_trait]
impl Processor for StreamErrorRetry {
    fn id(&self) -> &'static str {
        "stream-error-retry"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::ApiError])
    }

    async fn process_api_error(&self, cx: &mut Context<'_>, failure: &ApiFailure) -> Outcome<Recovery> {
        let tried = cx.state::<Tries>().0;
        if tried >= self.max_retries || !self.is_transient(failure) {
            return Ok(Recovery::GiveUp);
        }
        cx.state::<Tries>().0 += 1;
        tokio::time::sleep(self.delay * 2u32.saturating_pow(tried.min(10))).await;
        Ok(Recovery::Retry)
    }
}
