//! One request as handlers see it: checked, with its caller, and with typed access to what the shapes promise.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use axum::http::HeaderMap;
use base64::Engine;
use bugle::{
    AgentHandle, Bugle, RequestContext, RunId, ThreadKey,
    json::{Object, Value},
    message::Thread,
};

use crate::{
    error::{Failure, Place},
    options::ServerOptions,
    shape::Issue,
};

/// What all requests share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) bugle: Bugle,
    pub(crate) options: ServerOptions,
    /// The OpenAPI document.
    pub(crate) document: bytes::Bytes,
    /// Runs that were gone on with here.
    pub(crate) resumed: Resumed,
}

/// The runs that this process went on with last: for telling an answer that comes twice from one to a run that never was
/// (HTTP-108).
#[derive(Debug, Default)]
pub(crate) struct Resumed {
    runs: Mutex<VecDeque<RunId>>,
}

impl Resumed {
    const LEN_MAX: usize = 4096;

    pub(crate) fn add(&self, run: &RunId) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.contains(run) {
            return;
        }
        if runs.len() == Self::LEN_MAX {
            runs.pop_front();
        }
        runs.push_back(run.clone());
    }

    pub(crate) fn contains(&self, run: &RunId) -> bool {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).contains(run)
    }
}

/// Whose request it is. Without auth nobody's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    pub(crate) user: Option<Arc<str>>,
    /// The resource the caller is bound to.
    pub(crate) resource: Option<Arc<str>>,
}

/// A request that has passed its route's shapes.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) caller: Caller,
    pub(crate) path: Vec<(Box<str>, String)>,
    pub(crate) query: Object,
    pub(crate) body: Object,
    /// The body's bytes, on routes that ask for them.
    pub(crate) raw: bytes::Bytes,
    pub(crate) headers: HeaderMap,
}

impl Call {
    pub(crate) fn bugle(&self) -> &Bugle {
        &self.app.bugle
    }

    /// A path parameter; routes name the ones they have.
    pub(crate) fn path(&self, name: &str) -> &str {
        self.path.iter().find(|(key, _)| &**key == name).map_or("", |(_, value)| value)
    }

    /// The agent of the path (HTTP-034, HTTP-038).
    pub(crate) fn agent(&self) -> Result<AgentHandle, Failure> {
        Ok(self.bugle().agent(self.path("agentId"))?)
    }

    /// The agent of the query parameter `agentId`, which writes to memory need.
    pub(crate) fn agent_of_query(&self) -> Result<AgentHandle, Failure> {
        match text(&self.query, "agentId") {
            Some(id) => Ok(self.bugle().agent(id)?),
            None => Err(Failure::invalid(Place::Query, vec![Issue::new("agentId", "Agent ID is required")])),
        }
    }

    /// The resource that counts: the caller's own, else the one it names (HTTP-011).
    pub(crate) fn resource<'a>(&'a self, named: Option<&'a str>) -> Option<&'a str> {
        self.caller.resource.as_deref().or(named).filter(|resource| !resource.is_empty())
    }

    /// The thread that `fields` name with `threadId` and `resourceId` (SIG-361: the resource may be missing).
    pub(crate) fn thread(&self, fields: &Object) -> Option<ThreadKey> {
        let thread = text(fields, "threadId").filter(|id| !id.trim().is_empty())?;
        Some(match self.resource(text(fields, "resourceId")) {
            Some(resource) => ThreadKey::new(resource, thread),
            None => ThreadKey::unowned(thread),
        })
    }

    /// The thread of a body or query whose shape requires `threadId`, for operations that check its owner themselves.
    pub(crate) fn named_thread(&self, fields: &Object) -> Result<ThreadKey, Failure> {
        self.thread(fields).ok_or_else(|| Failure::field("threadId", "threadId is required"))
    }

    /// The thread of a query, if the caller may read it: another resource's is as good as none (ruling 20).
    pub(crate) async fn readable_thread(&self, fields: &Object) -> Result<ThreadKey, Failure> {
        let thread = self.thread(fields).ok_or_else(Failure::unknown_thread)?;
        match self.bugle().storage().get_thread(&thread.thread_id).await? {
            Some(stored) if !belongs(&stored, thread.resource_id.as_deref()) => Err(Failure::unknown_thread()),
            _ => Ok(thread),
        }
    }

    /// Refuses a thread of another resource with 403 (HTTP-012).
    pub(crate) async fn check_writable(&self, thread: &ThreadKey) -> Result<(), Failure> {
        match self.bugle().storage().get_thread(&thread.thread_id).await? {
            Some(stored) if !belongs(&stored, thread.resource_id.as_deref()) => Err(Failure::foreign_thread()),
            _ => Ok(()),
        }
    }

    /// The stored thread of the path, for reading: 404 if there is none or it is another resource's (ruling 20).
    pub(crate) async fn thread_to_read(&self) -> Result<Thread, Failure> {
        let thread = self.stored_thread().await?;
        if belongs(&thread, self.resource(text(&self.query, "resourceId"))) {
            Ok(thread)
        } else {
            Err(Failure::unknown_thread())
        }
    }

    /// The stored thread of the path, for writing: 403 if it is another resource's.
    pub(crate) async fn thread_to_write(&self, named: Option<&str>) -> Result<Thread, Failure> {
        let thread = self.stored_thread().await?;
        let named = named.or_else(|| text(&self.query, "resourceId"));
        if belongs(&thread, self.resource(named)) { Ok(thread) } else { Err(Failure::foreign_thread()) }
    }

    async fn stored_thread(&self) -> Result<Thread, Failure> {
        let thread = self.bugle().storage().get_thread(self.path("threadId")).await?;
        thread.ok_or_else(Failure::unknown_thread)
    }

    /// What the client says for the run's dynamic values, under what the server knows (HTTP-010). `named` is the
    /// request context of a nested object, which comes before that of the body and of the query.
    pub(crate) fn request_context(&self, named: Option<&Value>) -> RequestContext {
        let mut context = RequestContext::default();
        if let Some(resource) = &self.caller.resource {
            context.set("mastra__resourceId", &**resource);
        }
        if let Some(user) = &self.caller.user {
            context.set("mastra__user", bugle::json::json!({"id": &**user}));
        }
        let of_query = text(&self.query, "requestContext").and_then(context_of_text).map(Value::Object);
        for given in [named, self.body.get("requestContext"), of_query.as_ref()].into_iter().flatten() {
            if let Value::Object(values) = given {
                context.fill_from(&RequestContext::from_client(values.clone()));
            }
        }
        context
    }
}

/// Whether `resource` may see the thread: it is its own, the thread is nobody's, or nobody in particular asks.
pub(crate) fn belongs(thread: &Thread, resource: Option<&str>) -> bool {
    thread.resource_id.is_empty() || resource.is_none_or(|resource| resource == thread.resource_id)
}

/// The text at `name`, if there is one.
pub(crate) fn text<'a>(fields: &'a Object, name: &str) -> Option<&'a str> {
    fields.get(name).and_then(Value::as_str)
}

/// The whole number at `name`, which a shape has checked.
pub(crate) fn whole(fields: &Object, name: &str) -> Option<u32> {
    fields.get(name).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok())
}

/// Whether `name` is `true`.
pub(crate) fn flag(fields: &Object, name: &str) -> Option<bool> {
    fields.get(name).and_then(Value::as_bool)
}

/// The object at `name`.
pub(crate) fn object<'a>(fields: &'a Object, name: &str) -> Option<&'a Object> {
    fields.get(name).and_then(Value::as_object)
}

/// A request context as JSON or as base64 of JSON.
fn context_of_text(text: &str) -> Option<Object> {
    if let Ok(Value::Object(values)) = serde_json::from_str(text) {
        return Some(values);
    }
    // A `+` of base64 that the client did not escape has become a space.
    let bytes = base64::engine::general_purpose::STANDARD.decode(text.replace(' ', "+")).ok()?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(values)) => Some(values),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bugle::json::json;

    use super::*;

    #[test]
    fn http_010_a_request_context_in_the_query_is_json_or_base64_of_json() {
        let expected = json!({"theme": "dark?>"});
        let encoded = base64::engine::general_purpose::STANDARD.encode(expected.to_string());
        for text in [expected.to_string(), encoded.clone(), encoded.replace('+', " ")] {
            assert_eq!(context_of_text(&text).map(Value::Object), Some(expected.clone()));
        }
        assert_eq!(context_of_text("nonsense"), None);
    }
}
