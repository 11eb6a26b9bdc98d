//! The body of an answer as events.

use bugle::model::{ModelError, ModelErrorKind, ModelEvent, ModelStream};
use futures::{StreamExt, stream};
use reqwest::Response;
use std::time::Duration;

use super::answer::Answer;
use crate::{
    http,
    secret::Scrubber,
    sse::{EventTooLong, SseEvent, SseParser},
};

/// How long the end of the body may lag behind the end of the answer and still leave the connection for the next
/// request.
const TAIL: Duration = Duration::from_millis(5);
/// The longest plain answer, in bytes.
const WHOLE_MAX: usize = 64 << 20;

struct Reading {
    provider: String,
    response: Response,
    parser: SseParser,
    answer: Answer,
    scrub: Scrubber,
    /// A failure to give out after the events before it.
    failed: Option<ModelError>,
    over: bool,
}

/// The events of a streamed answer.
pub(super) fn events(response: Response, answer: Answer, scrub: Scrubber) -> ModelStream {
    let provider = answer.provider().to_owned();
    let parser = SseParser::default();
    let reading = Reading { provider, response, parser, answer, scrub, failed: None, over: false };
    stream::unfold(reading, |mut reading| async move { Some((reading.next().await?, reading)) }).boxed()
}

/// The events of a plain answer.
pub(super) async fn whole(
    mut response: Response,
    mut answer: Answer,
    scrub: Scrubber,
) -> Result<ModelStream, ModelError> {
    let mut body = Vec::new();
    while let Some(bytes) = response.chunk().await.map_err(|error| http::body_error(&error, answer.provider()))? {
        if body.len() + bytes.len() > WHOLE_MAX {
            return Err(answer.nonsense("", &"longer than 64 MiB", &scrub));
        }
        body.extend_from_slice(&bytes);
    }
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(empty(answer.provider()));
    }
    answer.take(&body, false, &scrub)?;
    if !answer.understood {
        return Err(answer.nonsense(&String::from_utf8_lossy(&body), &"no choices", &scrub));
    }
    answer.finish()?;
    let events = std::mem::take(&mut answer.ready).into_iter().filter(|event| {
        // A plain answer brings whole calls.
        !matches!(
            event,
            ModelEvent::ToolInputStart { .. } | ModelEvent::ToolInputDelta { .. } | ModelEvent::ToolInputEnd { .. }
        )
    });
    Ok(stream::iter(events.map(Ok).collect::<Vec<_>>()).boxed())
}

fn empty(provider: &str) -> ModelError {
    ModelError::new(ModelErrorKind::Truncated, format!("{provider} answered 200 with an empty body"))
}

impl Reading {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.answer.ready.pop_front() {
                return Some(Ok(event));
            }
            if let Some(error) = self.failed.take() {
                self.over = true;
                return Some(Err(error));
            }
            if self.over {
                return None;
            }
            if let Err(error) = self.read().await {
                // The calls that were not complete are dropped with it (R31b).
                self.failed = Some(error);
            }
        }
    }

    /// Reads on until there is something to give out.
    async fn read(&mut self) -> Result<(), ModelError> {
        let bytes = match self.response.chunk().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return self.end(None),
            Err(error) => return self.end(Some(http::body_error(&error, &self.provider))),
        };
        self.parser.push(&bytes).map_err(|EventTooLong| {
            ModelError::new(ModelErrorKind::Protocol, format!("{} sent an event longer than 16 MiB", self.provider))
        })?;
        while let Some(event) = self.parser.next() {
            if take(&mut self.answer, event, &self.scrub)? {
                self.over = true;
                // Read to its end, the connection serves the next request.
                let _ = tokio::time::timeout(TAIL, self.response.chunk()).await;
                return self.answer.finish();
            }
        }
        Ok(())
    }

    /// The body has ended, or broken off.
    fn end(&mut self, broken: Option<ModelError>) -> Result<(), ModelError> {
        if broken.is_none()
            && let Some(event) = self.parser.last()
            && take(&mut self.answer, event, &self.scrub)?
        {
            self.over = true;
            return self.answer.finish();
        }
        // Servers that never say `[DONE]` exist; the reason is word enough.
        if self.answer.is_complete() {
            self.over = true;
            return self.answer.finish();
        }
        if let Some(broken) = broken {
            return Err(broken);
        }
        if !self.parser.saw_fields() {
            let rest = self.parser.unread();
            if rest.iter().all(u8::is_ascii_whitespace) {
                return Err(empty(&self.provider));
            }
            let rest = String::from_utf8_lossy(rest);
            return Err(self.answer.nonsense(&rest, &"no event stream", &self.scrub));
        }
        Err(self.answer.truncated())
    }
}

/// Takes an event; `true`: it was the last.
fn take(answer: &mut Answer, event: SseEvent<'_>, scrub: &Scrubber) -> Result<bool, ModelError> {
    let data = event.data.trim_ascii();
    if data == b"[DONE]" {
        return Ok(true);
    }
    if !data.is_empty() {
        answer.take(data, event.is_error, scrub)?;
    }
    Ok(false)
}
