//! What a caller sends: a message of a person, or a signal of a system.

use bugle::{
    MessageId,
    json::{Object, Value, json},
    runtime::{ActiveBehavior, IdleBehavior},
    signal::{Attributes, Contents},
};

/// Input of a thread. Used for messages and signals alike; a signal has a type, too.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// What it says.
    pub contents: Contents,
    /// Shown to the model as XML attributes.
    pub attributes: Option<Attributes>,
    /// Never shown to the model; echoed and stored unchanged.
    pub metadata: Option<Object>,
    /// Makes sending it twice one message (SIG-503). One is made if none is given.
    pub id: Option<MessageId>,
    /// The type of a signal: `reactive`, `notification`, `state`, … Ignored for messages.
    pub signal_type: Option<String>,
    /// The XML element of a signal. Ignored for messages.
    pub tag_name: Option<String>,
    /// What it does while a run is active, and while none is.
    pub routing: Routing,
}

/// What input does (SIG-062). The server's defaults are deliver and wake.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Routing {
    /// While a run is active.
    pub if_active: Option<ActiveBehavior>,
    /// While none is.
    pub if_idle: Option<IdleBehavior>,
    /// Options of the run it starts, as the API names them (HTTP §5.1).
    pub stream_options: Option<Object>,
}

impl Input {
    /// Contents alone.
    pub fn new(contents: impl Into<Contents>) -> Self {
        Self {
            contents: contents.into(),
            attributes: None,
            metadata: None,
            id: None,
            signal_type: None,
            tag_name: None,
            routing: Routing::default(),
        }
    }

    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(text.into())
    }

    /// A signal of a type, such as `reactive`.
    pub fn signal(signal_type: impl Into<String>, contents: impl Into<Contents>) -> Self {
        Self { signal_type: Some(signal_type.into()), ..Self::new(contents) }
    }

    /// The input's id, made now if there is none, so that a repeat of the request is the same input.
    fn id(&self) -> MessageId {
        self.id.clone().unwrap_or_else(MessageId::fresh)
    }

    fn shared(&self) -> Object {
        let mut fields = Object::new();
        fields.insert("id".into(), json!(self.id()));
        fields.insert("contents".into(), json!(self.contents));
        if let Some(attributes) = &self.attributes {
            fields.insert("attributes".into(), json!(attributes));
        }
        if let Some(metadata) = &self.metadata {
            fields.insert("metadata".into(), json!(metadata));
        }
        fields
    }

    pub(crate) fn message_body(&self, resource: &str, thread: &str) -> Value {
        self.body(resource, thread, "message", self.shared())
    }

    pub(crate) fn signal_body(&self, resource: &str, thread: &str) -> Value {
        let mut fields = self.shared();
        fields.insert("type".into(), json!(self.signal_type.as_deref().unwrap_or("reactive")));
        if let Some(tag) = &self.tag_name {
            fields.insert("tagName".into(), json!(tag));
        }
        self.body(resource, thread, "signal", fields)
    }

    fn body(&self, resource: &str, thread: &str, key: &str, fields: Object) -> Value {
        let mut body = json!({"resourceId": resource, "threadId": thread, key: fields});
        self.routing.write(&mut body);
        body
    }
}

impl Routing {
    pub(crate) fn write(&self, body: &mut Value) {
        if let Some(behavior) = self.if_active {
            body["ifActive"] = json!({"behavior": behavior});
        }
        if self.if_idle.is_some() || self.stream_options.is_some() {
            let mut idle = Object::new();
            if let Some(behavior) = self.if_idle {
                idle.insert("behavior".into(), json!(behavior));
            }
            if let Some(options) = &self.stream_options {
                idle.insert("streamOptions".into(), json!(options));
            }
            body["ifIdle"] = Value::Object(idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_054_input_without_an_id_gets_one() {
        let body = Input::text("hi").message_body("r", "t");
        assert!(body["message"]["id"].as_str().is_some_and(|id| id.len() == 36));
        assert_eq!(body["message"]["contents"], "hi");
        assert_eq!((body.get("ifActive"), body.get("ifIdle")), (None, None));
    }

    #[test]
    fn http_079_a_signal_carries_type_tag_and_routing() {
        let mut input = Input::signal("reactive", "be brief");
        input.tag_name = Some("style".into());
        input.id = Some("s1".into());
        input.routing.if_active = Some(ActiveBehavior::Persist);
        input.routing.if_idle = Some(IdleBehavior::Discard);
        let expected = json!({
            "resourceId": "r", "threadId": "t",
            "signal": {"id": "s1", "contents": "be brief", "type": "reactive", "tagName": "style"},
            "ifActive": {"behavior": "persist"}, "ifIdle": {"behavior": "discard"},
        });
        assert_eq!(input.signal_body("r", "t"), expected);
    }
}
