//! The HTTP API of Bugle: what `@mastra/client-js`, `@mastra/react`, Studio and curl speak.
//!
//! [`router`] is an axum router to mount anywhere; [`serve`] serves one until it is told to stop, and drains.
//!
//! From the outside in: `front` (CORS, auth) → `dispatch` (path, query, body, checked by `shape`) → `routes` (one
//! table that both routes and describes) → the runtime. `error` maps refusals to statuses, `sse` writes event streams.

mod answer;
mod call;
mod dispatch;
mod error;
mod fields;
mod front;
mod options;
mod routes;
mod run_fields;
mod serve;
mod shape;
pub mod sse;

pub use options::{Auth, ModelResolver, Origins, ServerOptions, Token};
pub use routes::router;
pub use serve::serve;
