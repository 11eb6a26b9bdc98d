//! Running an agent and waiting for it (HTTP §5).

use super::{Answer, Route, answer, route};
use crate::{
    answer::generated,
    call::{Call, flag},
    fields,
    run_fields::run_request,
    sse,
};

pub(super) const ROUTES: &[Route] = &[
    route!(Post "/agents/{agentId}/generate" "Runs the agent and answers its result", generate, body: fields::RUN),
    route!(Post "/agents/{agentId}/generate/vnext" "Old name of generate", generate, body: fields::RUN),
    route!(Post "/agents/{agentId}/stream" "Runs the agent and streams it", stream, body: fields::RUN, streams: true),
    route!(Post "/agents/{agentId}/stream/vnext" "Old name of stream", stream, body: fields::RUN, streams: true),
    route!(Post "/agents/{agentId}/stream-until-idle" "Streams until nothing is left to do", stream, body: fields::RUN, streams: true),
];

async fn generate(call: Call) -> Answer {
    let agent = call.agent()?;
    let run = run_request(&call)?;
    // A client that leaves drops this future, which stops the run (HTTP-026).
    let output = agent.generate(run.input, run.thread.as_ref(), run.options).await?;
    Ok(answer(generated(&output)))
}

async fn stream(call: Call) -> Answer {
    let agent = call.agent()?;
    let run = run_request(&call)?;
    let stream = agent.stream(run.input, run.thread.as_ref(), run.options).await?;
    // There are no background tasks to wait for yet, so a run is idle when it has ended (HTTP-064).
    let lean = flag(&call.body, "lean").unwrap_or(false);
    Ok(sse::run(stream, call.bugle().clone(), call.app.options.keep_alive, lean))
}
