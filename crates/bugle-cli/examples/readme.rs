//! The Rust example of the README: follow a thread, ask, and change your mind while the agent thinks.

#![allow(clippy::print_stdout, reason = "an example that shows its answer")]

use std::sync::Arc;

use bugle::{
    Agent, Bugle, ThreadKey,
    chunk::Payload,
    memory::MemoryOptions,
    model::ScriptedModel,
    runtime::{Delivery, SubscribeOptions},
};

#[tokio::main]
async fn main() -> Result<(), bugle::Error> {
    let agent = Agent::builder("guide")
        .instructions("Help people plan trips.")
        .model(Arc::new(ScriptedModel::new())) // or bugle_models::resolve("openai/gpt-4o-mini", …)
        .memory(MemoryOptions::default())
        .build()?;
    let bugle = Bugle::builder().agent(agent).storage(bugle_storage::libsql::LibSql::open(":memory:")?).build().await?;

    let guide = bugle.agent("guide")?;
    let thread = ThreadKey::new("user_123", "trip");
    let mut watching = guide.subscribe(&thread, SubscribeOptions::default()).await?;

    guide.send_message(&thread, "Plan a day in Oslo. [[slow-think 200 50 ;; say Here is the long plan.]]").await?;
    while let Some(Delivery::Chunk(chunk)) = watching.next().await {
        match chunk.chunk.payload() {
            // The agent is thinking: steer it. The request is cut short and asked again with both messages.
            Some(Payload::ReasoningStart { .. }) => {
                guide.send_message(&thread, "One line, please. [[say Oslo: a fjord, a museum, soup.]]").await?;
            }
            Some(Payload::TextDelta { text, .. }) => print!("{text}"),
            Some(Payload::Finish(_)) => break,
            _ => {}
        }
    }
    println!();
    bugle.shutdown(std::time::Duration::from_secs(1)).await;
    Ok(())
}
