//! The lanes that ship with Bugle (STATE §9).

mod browser;
mod goal;
mod tasks;
mod working_memory;

pub use browser::BrowserLane;
pub use goal::{Goal, GoalLane, set_goal};
pub use tasks::{Task, TaskLane, TaskStatus, task_tools};
pub use working_memory::WorkingMemoryLane;
