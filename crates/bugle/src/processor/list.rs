//! Lists of processors (PROC-003, PROC-031).

use std::{fmt, sync::Arc};

use super::{Hook, Part, Processor};
use crate::error::Error;

/// A shared processor.
pub type SharedProcessor = Arc<dyn Processor>;

/// The lists that processors are configured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// What works up to the request.
    Input,
    /// What works after it.
    Output,
    /// What works on failed requests only.
    Error,
}

impl List {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Input, Self::Output, Self::Error];

    /// Its name in agent files and errors.
    ///
    /// ```
    /// assert_eq!(bugle::processor::List::Input.name(), "inputProcessors");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Input => "inputProcessors",
            Self::Output => "outputProcessors",
            Self::Error => "errorProcessors",
        }
    }

    /// The hooks that run from it only; [`Hook::ApiError`] runs from every list (PROC-060).
    pub(crate) const fn hooks(self) -> &'static [Hook] {
        match self {
            Self::Input => &[Hook::Input, Hook::InputStep, Hook::State, Hook::LlmRequest, Hook::LlmResponse],
            Self::Output => &[Hook::OutputStream, Hook::OutputStep, Hook::ToolResult, Hook::OutputResult],
            Self::Error => &[],
        }
    }

    /// Whether a processor does anything here: one of its hooks runs from the list, or it is a part of the framework that
    /// may stand in it.
    pub fn suits(self, processor: &dyn Processor) -> bool {
        let hooks = processor.hooks();
        match (processor.part(), self) {
            (Some(Part::MessageHistory { .. }), Self::Input | Self::Output) => return true,
            (Some(_), _) => return self == Self::Input,
            (None, _) => {}
        }
        !hooks.only(self.hooks()).is_empty() || hooks.has(Hook::ApiError)
    }

    /// Why a processor cannot stand in this list: none of its hooks would ever run. `None` if one does. Of a processor
    /// without any hooks nothing is said: it is ignored (PROC-001).
    ///
    /// ```
    /// use bugle::processor::{List, builtin::BatchParts};
    /// assert_eq!(List::Output.refuses(&BatchParts::new(5)), None);
    /// assert!(List::Input.refuses(&BatchParts::new(5)).unwrap().ends_with("it belongs to outputProcessors"));
    /// ```
    pub fn refuses(self, processor: &dyn Processor) -> Option<String> {
        let ignored = processor.hooks().is_empty() && processor.part().is_none();
        if ignored || self.suits(processor) {
            return None;
        }
        let fit: Vec<&str> = Self::ALL.into_iter().filter(|list| list.suits(processor)).map(Self::name).collect();
        Some(format!("none of its hooks ever runs in {}; it belongs to {}", self.name(), fit.join(" or ")))
    }
}

impl fmt::Debug for dyn Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Processor({})", self.id())
    }
}

/// Processors in the order in which they work. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Processors(Arc<Vec<SharedProcessor>>);

impl Processors {
    /// These processors.
    ///
    /// # Errors
    /// [`Error::Configuration`] if two different ones have one id: they would share their state (PROC-031).
    pub fn new(list: impl IntoIterator<Item = SharedProcessor>) -> Result<Self, Error> {
        let list: Vec<SharedProcessor> = list.into_iter().collect();
        for (at, one) in list.iter().enumerate() {
            let same_id = |other: &&SharedProcessor| other.id() == one.id() && !Arc::ptr_eq(other, one);
            if list[..at].iter().any(|other| same_id(&other)) {
                return Err(Error::configuration(format!(
                    "two processors have the id {:?}; give one of them another id, or pass the same instance twice",
                    one.id()
                )));
            }
        }
        Ok(Self(Arc::new(list)))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &SharedProcessor> {
        self.0.iter()
    }

    /// Their ids, in order.
    pub fn ids(&self) -> Vec<String> {
        self.iter().map(|processor| processor.id().to_owned()).collect()
    }

    /// Adds one at the end; ids are checked when the agent is built.
    pub(crate) fn push(&mut self, processor: SharedProcessor) {
        Arc::make_mut(&mut self.0).push(processor);
    }

    /// These behind `first` (PROC-004); ids are checked when the agent is built.
    pub(crate) fn behind(&self, mut first: Vec<SharedProcessor>) -> Self {
        first.extend(self.iter().cloned());
        Self(Arc::new(first))
    }

    /// Checks what [`Self::new`] does, and that each does something in this list.
    pub(crate) fn check(&self, list: List) -> Result<(), Error> {
        for processor in self.iter() {
            if let Some(reason) = list.refuses(&**processor) {
                return Err(Error::configuration(format!("{}: {reason}", processor.id())));
            }
        }
        Self::new(self.iter().cloned()).map(|_| ())
    }
}
