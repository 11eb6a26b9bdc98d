//! The agent loop: one machine without IO, and the driver that performs its effects.
//!
//! `prepare` resolves what a run needs, `machine` decides, `driver` performs; `request` asks the model, `tools` runs
//! calls, `commit` writes, `completion` judges. A woken run, a queued run, `stream`, `generate` and a recovered run are
//! the same machine with other options.

pub(crate) mod commit;
mod completion;
mod driver;
mod guard;
pub(crate) mod interchange;
pub(crate) mod machine;
mod options;
mod output;
pub(crate) mod parked;
mod prepare;
mod request;
mod response;
pub(crate) mod settings;
mod snapshot;
pub(crate) mod structured;
mod tools;
pub(crate) mod transcript;

#[cfg(test)]
pub(crate) use driver::give_back;
pub(crate) use driver::{Claimed, Resolution, ResumeSeed, parked_of};
pub(crate) use driver::{RunSeed, SeedKind, aborted_direct, drive, failed_direct};
pub(crate) use machine::ToolOutcome;
pub use options::*;
pub use output::*;
pub(crate) use parked::DelegatedResume;
pub use parked::{
    APPROVAL_SCHEMA, Decision, DelegatedPark, KeptMessage, NOT_APPROVED, ParkKind, ParkedCall, ParkedStep, StepCall,
    StepCallState, SurfaceCall,
};
pub use snapshot::{RunSnapshot, SnapshotPhase};
pub(crate) use tools::CallContext;
