//! Tool calls put together from deltas that may lack index, id or both (R27, R33b).

use std::collections::VecDeque;

use bugle::model::ModelEvent;
use uuid::Uuid;

use super::{strict::StrictTools, wire::CallDelta};

/// The calls of one answer, in the order in which they began.
pub(super) struct Calls {
    calls: Vec<Call>,
    strict: StrictTools,
}

struct Call {
    /// Unique in the answer.
    id: String,
    /// As the provider said it.
    provider_id: String,
    index: Option<u64>,
    name: String,
    arguments: String,
    /// [`ModelEvent::ToolInputStart`] has been sent.
    started: bool,
}

impl Calls {
    pub(super) fn new(strict: StrictTools) -> Self {
        Self { calls: Vec::new(), strict }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Takes the deltas of one event.
    pub(super) fn deltas(
        &mut self,
        deltas: &[CallDelta<'_>],
        ready: &mut VecDeque<ModelEvent>,
    ) -> Result<(), serde_json::Error> {
        for (place, delta) in deltas.iter().enumerate() {
            let function = delta.function.as_ref();
            let name = function.and_then(|function| function.name.get());
            let arguments = function.map(super::wire::FunctionDelta::arguments).transpose()?.unwrap_or_default();
            let at = match self.find(delta, name, &arguments, place) {
                Some(at) => at,
                None => self.add(delta),
            };
            let call = &mut self.calls[at];
            if call.name.is_empty()
                && let Some(name) = name
            {
                name.clone_into(&mut call.name);
            }
            call.arguments.push_str(&arguments);
            if call.started {
                if !arguments.is_empty() {
                    let delta = arguments.into_owned();
                    ready.push_back(ModelEvent::ToolInputDelta { id: call.id.clone(), delta });
                }
            } else if !call.name.is_empty() {
                call.start(ready);
            }
        }
        Ok(())
    }

    /// The call that a delta goes on with; `None`: it begins one.
    fn find(&self, delta: &CallDelta<'_>, name: Option<&str>, arguments: &str, place: usize) -> Option<usize> {
        let at = match (delta.index, delta.id.get()) {
            (Some(index), _) => self.calls.iter().rposition(|call| call.index == Some(index))?,
            (None, Some(id)) => self.calls.iter().rposition(|call| call.provider_id == id)?,
            // Nothing says which. A second entry in one event, or another name, is another call.
            (None, None) if name.is_some() && place > 0 => return None,
            (None, None) => self.calls.len().checked_sub(1)?,
        };
        let (call, Some(name)) = (&self.calls[at], name) else { return Some(at) };
        // A name where there is one already: either repeated with each delta, or the next call under a worn number.
        let other_id = delta.id.get().is_some_and(|id| !call.provider_id.is_empty() && call.provider_id != id);
        let other_name = !call.name.is_empty() && call.name != name;
        let complete = !call.name.is_empty() && !arguments.is_empty() && call.is_complete();
        (!(other_id || other_name || complete)).then_some(at)
    }

    fn add(&mut self, delta: &CallDelta<'_>) -> usize {
        let provider_id = delta.id.get().unwrap_or_default().to_owned();
        let taken = provider_id.is_empty() || self.calls.iter().any(|call| call.id == provider_id);
        let id = if taken { made_up_id() } else { provider_id.clone() };
        let (name, arguments) = (String::new(), String::new());
        self.calls.push(Call { id, provider_id, index: delta.index, name, arguments, started: false });
        self.calls.len() - 1
    }

    /// Completes all calls. `Err`: one has no name.
    pub(super) fn finish(&mut self, ready: &mut VecDeque<ModelEvent>) -> Result<(), ()> {
        for call in std::mem::take(&mut self.calls) {
            if call.name.is_empty() {
                return Err(());
            }
            ready.push_back(ModelEvent::ToolInputEnd { id: call.id.clone() });
            let Call { id, name, arguments, .. } = call;
            let input = self.strict.read_back(&name, arguments);
            let call = ModelEvent::ToolCall { id, name, input, provider_executed: false, provider_metadata: None };
            ready.push_back(call);
        }
        Ok(())
    }
}

impl Call {
    fn start(&mut self, ready: &mut VecDeque<ModelEvent>) {
        self.started = true;
        let (id, name) = (self.id.clone(), self.name.clone());
        ready.push_back(ModelEvent::ToolInputStart { id, name, provider_executed: false });
        if !self.arguments.is_empty() {
            let delta = self.arguments.clone();
            ready.push_back(ModelEvent::ToolInputDelta { id: self.id.clone(), delta });
        }
    }

    fn is_complete(&self) -> bool {
        serde_json::from_str::<serde::de::IgnoredAny>(&self.arguments).is_ok()
    }
}

/// An id for a call that has none of its own: nine letters and digits, the one form that every provider takes back.
fn made_up_id() -> String {
    let mut number = Uuid::new_v4().as_u128();
    let mut digit = || {
        let digit = (number % 36) as u32;
        number /= 36;
        char::from_digit(digit, 36).unwrap_or('0')
    };
    (0..9).map(|_| digit()).collect()
}
