//! Lists of processors (PROC-003, PROC-031).

use std::{fmt, sync::Arc};

use super::Processor;
use crate::error::Error;

/// A shared processor.
pub type SharedProcessor = Arc<dyn Processor>;

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

    /// Checks what [`Self::new`] does.
    pub(crate) fn check(&self) -> Result<(), Error> {
        Self::new(self.iter().cloned()).map(|_| ())
    }
}
