//! The HTTP API of Bugle from Rust: agents, live threads, what waits on them, and their history (HTTP-099).
//!
//! ```no_run
//! use bugle_client::{Client, Delivery, Input, SubscribeOptions};
//! # async fn f() -> Result<(), bugle_client::Error> {
//! let client = Client::new("http://127.0.0.1:4111")?;
//! let thread = client.agent("assistant").thread("user_123", "thread_456");
//!
//! let mut subscription = thread.subscribe(SubscribeOptions::default()).await?;
//! let sent = thread.send_message(Input::text("Compare that with the previous option.")).await?;
//! while let Some(delivery) = subscription.next().await {
//!     if let Delivery::Chunk { chunk, .. } = delivery
//!         && chunk.run_id.as_ref() == Some(&sent.run_id)
//!         && chunk.ends_run()
//!     {
//!         break;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Every call is cancelled by dropping its future. A network failure before an answer is repeated three times; input
//! carries an id, so a repeat is the same message (SIG-503). An answer, whatever its status, is never repeated.

mod agent;
mod client;
mod error;
mod http;
mod input;
mod notification;
mod sse;
mod subscription;
mod types;

pub use agent::{Agent, Thread};
pub use client::{Client, ClientBuilder, ThreadQuery};
pub use error::Error;
pub use input::{Input, Routing};
pub use notification::{InboxMark, InboxPage, InboxQuery, Notification, NotificationSent};
pub use subscription::{Delivery, RunStream, SubscribeOptions, Subscription};
pub use types::{
    Accepted, AgentInfo, ApprovalAccepted, EditInput, Generated, Page, Promoted, SuspendedCall, SuspendedQuery,
    SuspendedRun, SuspendedRuns, ToolApproval,
};
