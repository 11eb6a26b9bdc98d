//! Stream chunks: what a run says to those who watch it (LOOP §14, HTTP §16).

mod payload;
mod size;
mod stream;

pub use payload::*;
pub(crate) use size::approximate_size;
pub use stream::{EventId, StreamChunk, encode_frame};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::id::RunId;

/// Who a chunk is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ChunkFrom {
    /// The agent's run.
    #[default]
    Agent,
    /// A tool's writer, or a delegated run.
    User,
    /// The runtime.
    System,
    /// A workflow (passed through).
    Workflow,
    /// A network (passed through).
    Network,
}

/// One chunk of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// The run it belongs to. Every chunk has one but those of background tasks (HTTP §10).
    pub run_id: Option<RunId>,
    /// Who it is from.
    pub from: ChunkFrom,
    /// What it says.
    pub body: ChunkBody,
    /// `from: "structured-output"`, `fallback`, and the like.
    pub metadata: Option<Value>,
}

/// The body of a chunk, by its shape on the wire.
#[derive(Debug, Clone, PartialEq)]
pub enum ChunkBody {
    /// `{type, payload}`.
    Payload(Payload),
    /// `{type: "abort"}` without a payload, as subscribers see it (HTTP-081).
    AbortNotice,
    /// `{type: "data-…", data, id?, transient?}`.
    Data(DataChunk),
    /// `{type: "object", object}`: a partial value.
    Object(Value),
    /// `{type: "object-result", object}`.
    ObjectResult(Value),
    /// A type this version does not know, passed through.
    Unknown {
        /// The type.
        kind: String,
        /// The payload, if any.
        payload: Option<Value>,
    },
}

/// A `data-…` chunk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataChunk {
    /// Starts with `data-`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What it says.
    pub data: Value,
    /// The writer's id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Not to be kept by those who show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transient: Option<bool>,
}

impl Chunk {
    /// A chunk of the agent's run.
    pub fn agent(run_id: &RunId, payload: Payload) -> Self {
        Self::with_body(run_id, ChunkBody::Payload(payload))
    }

    /// A chunk of the agent's run, of any shape.
    pub fn with_body(run_id: &RunId, body: ChunkBody) -> Self {
        Self { run_id: Some(run_id.clone()), from: ChunkFrom::Agent, body, metadata: None }
    }

    /// A `data-…` chunk that is not to be kept.
    pub fn transient_data(run_id: &RunId, kind: &str, data: Value) -> Self {
        let data = DataChunk { kind: kind.to_owned(), data, id: None, transient: Some(true) };
        Self::with_body(run_id, ChunkBody::Data(data))
    }

    /// The type on the wire.
    pub fn kind(&self) -> &str {
        match &self.body {
            ChunkBody::Payload(payload) => payload.kind(),
            ChunkBody::AbortNotice => "abort",
            ChunkBody::Data(data) => &data.kind,
            ChunkBody::Object(_) => "object",
            ChunkBody::ObjectResult(_) => "object-result",
            ChunkBody::Unknown { kind, .. } => kind,
        }
    }

    /// The typed payload, if the chunk has one.
    pub fn payload(&self) -> Option<&Payload> {
        match &self.body {
            ChunkBody::Payload(payload) => Some(payload),
            _ => None,
        }
    }

    /// Whether this chunk ends a run for subscribers (SIG-323).
    pub fn ends_run(&self) -> bool {
        match &self.body {
            ChunkBody::AbortNotice => true,
            ChunkBody::Payload(Payload::Finish(finish)) => finish.step_result.reason != FinishReason::ToolCalls,
            ChunkBody::Payload(Payload::Error { .. } | Payload::Abort {}) => true,
            _ => false,
        }
    }
}

impl Serialize for Chunk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Envelope<'a, T> {
            #[serde(flatten)]
            body: T,
            #[serde(skip_serializing_if = "Option::is_none")]
            run_id: &'a Option<RunId>,
            #[serde(skip_serializing_if = "Option::is_none")]
            from: Option<ChunkFrom>,
            #[serde(skip_serializing_if = "Option::is_none")]
            metadata: &'a Option<Value>,
        }
        #[derive(Serialize)]
        struct Plain<'a> {
            #[serde(rename = "type")]
            kind: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            object: Option<&'a Value>,
            #[serde(skip_serializing_if = "Option::is_none")]
            payload: Option<&'a Value>,
        }
        let (run_id, metadata) = (&self.run_id, &self.metadata);
        let plain = |object, payload| Plain { kind: self.kind(), object, payload };
        let from = Some(self.from);
        match &self.body {
            ChunkBody::Payload(body) => Envelope { body, run_id, from, metadata }.serialize(serializer),
            // Data chunks have no `from` (HTTP-080).
            ChunkBody::Data(body) => Envelope { body, run_id, from: None, metadata }.serialize(serializer),
            // Subscribers get nothing but its run (HTTP §16).
            ChunkBody::AbortNotice => {
                Envelope { body: plain(None, None), run_id, from: None, metadata }.serialize(serializer)
            }
            ChunkBody::Object(object) | ChunkBody::ObjectResult(object) => {
                Envelope { body: plain(Some(object), None), run_id, from, metadata }.serialize(serializer)
            }
            ChunkBody::Unknown { payload, .. } => {
                Envelope { body: plain(None, payload.as_ref()), run_id, from, metadata }.serialize(serializer)
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    #[serde(rename = "type")]
    kind: String,
    run_id: Option<RunId>,
    #[serde(default)]
    from: ChunkFrom,
    payload: Option<Value>,
    data: Option<Value>,
    id: Option<String>,
    transient: Option<bool>,
    object: Option<Value>,
    metadata: Option<Value>,
}

impl<'de> Deserialize<'de> for Chunk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        let body = if wire.kind.starts_with("data-") {
            ChunkBody::Data(DataChunk {
                kind: wire.kind,
                data: wire.data.unwrap_or_default(),
                id: wire.id,
                transient: wire.transient,
            })
        } else {
            match (wire.kind.as_str(), wire.payload) {
                ("object", _) => ChunkBody::Object(wire.object.unwrap_or_default()),
                ("object-result", _) => ChunkBody::ObjectResult(wire.object.unwrap_or_default()),
                ("abort", None) => ChunkBody::AbortNotice,
                (kind, Some(payload)) => match Payload::read(kind, &payload) {
                    Some(payload) => ChunkBody::Payload(payload),
                    None => ChunkBody::Unknown { kind: wire.kind, payload: Some(payload) },
                },
                (_, None) => ChunkBody::Unknown { kind: wire.kind, payload: None },
            }
        };
        Ok(Self { run_id: wire.run_id, from: wire.from, body, metadata: wire.metadata })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn loop_190_chunks_of_every_shape_survive_a_round_trip() {
        for value in [
            json!({"type": "text-delta", "payload": {"id": "txt-0", "text": "a"}, "runId": "r", "from": "AGENT"}),
            json!({"type": "data-user-message", "data": {"id": "s"}, "transient": true, "runId": "r"}),
            json!({"type": "abort", "runId": "r"}),
            json!({"type": "abort", "payload": {}, "runId": "r", "from": "AGENT"}),
            json!({"type": "object", "object": {"a": 1}, "runId": "r", "from": "AGENT"}),
            json!({"type": "goal", "payload": {"objective": "x"}, "runId": "r", "from": "AGENT"}),
        ] {
            let chunk: Chunk = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(serde_json::to_value(&chunk).unwrap(), value);
        }
        let known: Chunk =
            serde_json::from_value(json!({"type": "start", "runId": "r", "payload": {"id": "a", "messageId": "m"}}))
                .unwrap();
        assert_eq!(known.payload(), Some(&Payload::Start { id: "a".into(), message_id: "m".into() }));
    }

    #[test]
    fn sig_323_a_run_ends_with_finish_error_or_abort_but_not_where_tools_are_called() {
        let ends = |value: serde_json::Value| serde_json::from_value::<Chunk>(value).unwrap().ends_run();
        let finish = |reason: &str| {
            let result = json!({"reason": reason, "isContinued": false});
            let payload = json!({"messageId": "m", "stepResult": result, "output": {"text": ""}});
            json!({"type": "finish", "payload": payload, "runId": "r"})
        };
        for reason in ["stop", "length", "error", "other", "suspended"] {
            assert!(ends(finish(reason)), "{reason}");
        }
        assert!(!ends(finish("tool-calls")), "client tools: their results go on with it");
        assert!(ends(json!({"type": "error", "payload": {"error": {"name": "E", "message": "m"}}, "runId": "r"})));
        assert!(ends(json!({"type": "abort", "runId": "r"})));
        assert!(ends(json!({"type": "abort", "payload": {}, "runId": "r"})));
        assert!(!ends(json!({"type": "text-delta", "payload": {"id": "t", "text": "a"}, "runId": "r"})));
        assert!(!ends(json!({"type": "data-signal", "data": {}, "runId": "r"})));
    }
}
