//! How the model sees a signal (SIG §3): bare contents, or contents in an XML element.

use std::{
    borrow::Cow,
    collections::HashSet,
    fmt::Write as _,
    hash::{DefaultHasher, Hash, Hasher},
    sync::OnceLock,
};

use parking_lot::Mutex;
use serde_json::Value;

use super::{Attributes, ContentPart, Contents, Signal, SignalType, normalise::is_xml_name};
use crate::model::{PromptMessage, UserPart};

impl Signal {
    /// The user turn that shows the signal to the model. Never fails: illegal names of old rows are made legal (SIG-018).
    ///
    /// Tags inform the model; they prove no origin, since text of people can look like them (SIG-035).
    pub fn to_prompt(&self) -> PromptMessage {
        let content = if self.signal_type == SignalType::User && !has_effective(self.attributes.as_ref()) {
            match &self.contents {
                Contents::Text(text) => vec![text_part(text.clone())],
                Contents::Parts(parts) => parts.iter().map(user_part).collect(),
            }
        } else {
            self.tagged()
        };
        PromptMessage::User { content, provider_options: self.provider_options.clone() }
    }

    fn tagged(&self) -> Vec<UserPart> {
        let head = self.head();
        let parts = match &self.contents {
            Contents::Text(text) => return vec![text_part(wrap(&head, text))],
            Contents::Parts(parts) => parts,
        };
        let plain: Option<Vec<&str>> = parts
            .iter()
            .map(|part| match part {
                ContentPart::Text { text, provider_options: None } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        if let Some(texts) = plain {
            return vec![text_part(wrap(&head, &texts.join("\n")))];
        }
        let mut content = Vec::with_capacity(parts.len() + 1);
        let mut wrapped = false;
        for part in parts {
            content.push(match part {
                ContentPart::Text { text, provider_options } if !wrapped => {
                    wrapped = true;
                    UserPart::Text { text: wrap(&head, text), provider_options: provider_options.clone() }
                }
                other => user_part(other),
            });
        }
        if !wrapped {
            content.insert(0, text_part(wrap(&head, "")));
        }
        content
    }

    /// `tag` and its attributes, without the brackets.
    fn head(&self) -> String {
        let tag = legal_name(&self.tag_name);
        let mut head = tag.clone().into_owned();
        let mut repaired = matches!(tag, Cow::Owned(_));
        for (name, value) in effective(self.attributes.as_ref()) {
            let name = legal_name(name);
            repaired |= matches!(name, Cow::Owned(_));
            head.push(' ');
            head.push_str(&name);
            head.push_str("=\"");
            escape_into(&mut head, &attribute_text(value), true);
            head.push('"');
        }
        if repaired && first_time(&self.id) {
            tracing::warn!(signal = %self.id, "stored signal has an illegal XML name; illegal characters are shown as _");
        }
        head
    }
}

fn has_effective(attributes: Option<&Attributes>) -> bool {
    effective(attributes).next().is_some()
}

fn effective(attributes: Option<&Attributes>) -> impl Iterator<Item = (&String, &Value)> {
    attributes.into_iter().flatten().filter(|(_, value)| !value.is_null())
}

fn wrap(head: &str, text: &str) -> String {
    if text.is_empty() {
        return format!("<{head} />");
    }
    let tag = head.split(' ').next().unwrap_or(head);
    let mut out = String::with_capacity(head.len() + text.len() + tag.len() + 8);
    let _ = write!(out, "<{head}>");
    escape_into(&mut out, text, false);
    let _ = write!(out, "</{tag}>");
    out
}

/// SIG-032. Quotes only in attribute values; `'`, newline and tab stay.
fn escape_into(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' if quotes => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
}

fn attribute_text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        // Plain decimals: `3`, not `3.0` or `3e0` (SIG-033).
        Value::Number(number) if number.is_f64() => {
            Cow::Owned(number.as_f64().map_or_else(|| number.to_string(), |number| number.to_string()))
        }
        other => Cow::Owned(other.to_string()),
    }
}

/// The name if it is legal, else one made of it (SIG-018).
fn legal_name(name: &str) -> Cow<'_, str> {
    if is_xml_name(name) {
        return Cow::Borrowed(name);
    }
    let mut legal: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') { c } else { '_' }).collect();
    if !is_xml_name(&legal) {
        legal.insert(0, '_');
    }
    Cow::Owned(legal)
}

/// Whether this row was not reported before. Only keeps the log readable; forgets all once it holds 1,024.
fn first_time(id: &str) -> bool {
    static REPORTED: OnceLock<Mutex<HashSet<u64>>> = OnceLock::new();
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    let mut reported = REPORTED.get_or_init(Mutex::default).lock();
    if reported.len() >= 1024 {
        reported.clear();
    }
    reported.insert(hasher.finish())
}

fn text_part(text: String) -> UserPart {
    UserPart::Text { text, provider_options: None }
}

fn user_part(part: &ContentPart) -> UserPart {
    match part.clone() {
        ContentPart::Text { text, provider_options } => UserPart::Text { text, provider_options },
        ContentPart::File { data, media_type, filename, provider_options } => {
            UserPart::File { data, media_type, filename, provider_options }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::{signal::SignalInput, time::Timestamp};

    /// Signals and the content they render to, row by row of SIG §3; one text part is written as a bare string.
    pub(crate) fn rows() -> Vec<(Signal, Value)> {
        let file = json!({"type": "file", "data": "QQ==", "mediaType": "image/png"});
        let text = |text: &str| json!({"type": "text", "text": text});
        let opted = |text: &str| json!({"type": "text", "text": text, "providerOptions": {"p": {"k": 1}}});
        [
            // The table of renderings.
            (json!({"type": "user", "contents": "Hi <b>"}), json!("Hi <b>")),
            (
                json!({"type": "user", "contents": "Hi <b> & \"q\"",
                    "attributes": {"name": "J\"a<n>e&", "n": 3, "b": true, "f": false, "e": "", "z": null}}),
                json!(
                    "<user name=\"J&quot;a&lt;n&gt;e&amp;\" n=\"3\" b=\"true\" f=\"false\" e=\"\">Hi &lt;b&gt; &amp; \"q\"</user>"
                ),
            ),
            (json!({"type": "user", "contents": ""}), json!("")),
            (json!({"type": "user", "contents": []}), json!([])),
            (json!({"type": "notification", "contents": ""}), json!("<notification />")),
            (json!({"type": "notification", "contents": "", "attributes": {"a": 1}}), json!("<notification a=\"1\" />")),
            (json!({"type": "reactive", "contents": "x"}), json!("<system-reminder>x</system-reminder>")),
            (
                json!({"type": "reactive", "tagName": "skill", "contents": "Triage the new issue.", "attributes": {"name": "triage"}}),
                json!("<skill name=\"triage\">Triage the new issue.</skill>"),
            ),
            (
                json!({"type": "notification", "contents": [text("a"), text("b")]}),
                json!("<notification>a\nb</notification>"),
            ),
            (
                json!({"type": "notification", "contents": [file.clone(), text("b"), text("c")], "attributes": {"k": "v"}}),
                json!([file.clone(), text("<notification k=\"v\">b</notification>"), text("c")]),
            ),
            (
                json!({"type": "user", "contents": [file.clone()], "attributes": {"k": "v"}}),
                json!([text("<user k=\"v\" />"), file.clone()]),
            ),
            // SIG-037.
            (
                json!({"type": "user", "contents": "Use the latest customer note too.", "attributes": {"name": "Jane", "sentFrom": "slack"}}),
                json!("<user name=\"Jane\" sentFrom=\"slack\">Use the latest customer note too.</user>"),
            ),
            (
                json!({"type": "notification", "contents": "c", "attributes": {"source": "github", "pr": "123"}}),
                json!("<notification source=\"github\" pr=\"123\">c</notification>"),
            ),
            (
                json!({"type": "reactive", "contents": "c", "attributes": {"type": "dynamic-agents-md", "path": "packages/ui/AGENTS.md"}}),
                json!("<system-reminder type=\"dynamic-agents-md\" path=\"packages/ui/AGENTS.md\">c</system-reminder>"),
            ),
            // The table of cases.
            (json!({"type": "user", "contents": "a", "attributes": {}}), json!("a")),
            (json!({"type": "user", "contents": "a", "attributes": {"x": null}}), json!("a")),
            (json!({"type": "user", "contents": [text("a")]}), json!("a")),
            (json!({"type": "user", "contents": [opted("a")]}), json!([opted("a")])),
            (json!({"type": "user", "contents": [text("<"), file.clone()]}), json!([text("<"), file.clone()])),
            (
                json!({"type": "state", "contents": [opted("<a>"), text("<b>")]}),
                json!([opted("<state>&lt;a&gt;</state>"), text("<b>")]),
            ),
            (
                json!({"type": "state", "contents": [text(""), file.clone()]}),
                json!([text("<state />"), file.clone()]),
            ),
            (json!({"type": "state", "contents": [text(""), text("")]}), json!("<state>\n</state>")),
            (json!({"type": "state", "contents": []}), json!("<state />")),
            // SIG-032, SIG-033.
            (
                json!({"type": "state", "contents": "it's\n\t&amp;", "attributes": {"z": 1.5, "a": 3.0, "m": "a\n'b'"}}),
                json!("<state z=\"1.5\" a=\"3\" m=\"a\n'b'\">it's\n\t&amp;amp;</state>"),
            ),
        ]
        .into_iter()
        .enumerate()
        .map(|(index, (input, expected))| {
            let id = format!("sig-{index}").as_str().into();
            let signal = SignalInput::from_json(&input).unwrap().normalise(|| id, Timestamp::from_millis(5)).unwrap();
            (signal, expected)
        })
        .collect()
    }

    pub(crate) fn content_json(message: &PromptMessage) -> Value {
        let PromptMessage::User { content, .. } = message else { panic!("not a user turn: {message:?}") };
        match content.as_slice() {
            [UserPart::Text { text, provider_options: None }] => json!(text),
            parts => serde_json::to_value(parts).unwrap(),
        }
    }

    #[test]
    fn sig_030_sig_031_sig_035_every_row_renders_as_the_tables_say() {
        for (signal, expected) in rows() {
            assert_eq!(content_json(&signal.to_prompt()), expected, "{signal:?}");
        }
    }

    #[test]
    fn sig_036_signal_options_go_on_the_message() {
        let input = json!({"type": "user", "contents": "a", "providerOptions": {"p": {"cache": true}}});
        let signal = SignalInput::from_json(&input).unwrap().normalise(|| "s".into(), Timestamp::default()).unwrap();
        let turn = serde_json::to_value(signal.to_prompt()).unwrap();
        assert_eq!(turn["providerOptions"], json!({"p": {"cache": true}}));
    }

    #[test]
    fn sig_018_sig_511_illegal_names_of_old_rows_are_made_legal() {
        let (mut signal, _) = rows().swap_remove(0);
        signal.tag_name = "1 tag:x".into();
        signal.attributes = Some([("bad attr".to_owned(), json!(1)), ("é".to_owned(), json!({"a": "b"}))].into());
        assert_eq!(
            content_json(&signal.to_prompt()),
            json!("<_1_tag_x bad_attr=\"1\" _=\"{&quot;a&quot;:&quot;b&quot;}\">Hi &lt;b&gt;</_1_tag_x>")
        );
        signal.tag_name = String::new();
        signal.attributes = Some([("-".to_owned(), json!(1))].into());
        assert_eq!(content_json(&signal.to_prompt()), json!("<_ _-=\"1\">Hi &lt;b&gt;</_>"));
    }
}
