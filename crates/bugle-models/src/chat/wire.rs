//! What the Chat protocol sends, read without copying and with patience for what servers vary.

use std::{borrow::Cow, fmt, marker::PhantomData};

use bugle::json::without_lone_surrogates;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, value::RawValue};

/// An event of a stream, or the plain answer: both have the same frame.
#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) model: Text<'a>,
    #[serde(borrow, default)]
    pub(super) created: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) choices: Choices<'a>,
    #[serde(borrow, default)]
    pub(super) usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) object: Text<'a>,
}

/// The first choice. Bugle asks for one; a server that sends more says the same thing several ways.
#[derive(Default)]
pub(super) struct Choices<'a> {
    pub(super) first: Option<Choice<'a>>,
    /// There is a list, though it may be empty.
    pub(super) present: bool,
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    pub(super) index: Option<u64>,
    #[serde(borrow, default)]
    pub(super) delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub(super) message: Option<Box<Delta<'a>>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Text<'a>,
}

#[derive(Deserialize, Default)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default)]
    pub(super) content: Content<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning_content: Text<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning: Text<'a>,
    /// OpenRouter's form of reasoning, with what must be sent back.
    #[serde(default)]
    pub(super) reasoning_details: Option<Vec<Value>>,
    #[serde(borrow, default)]
    pub(super) refusal: Text<'a>,
    #[serde(borrow, default)]
    pub(super) tool_calls: Option<Vec<CallDelta<'a>>>,
}

#[derive(Deserialize)]
pub(super) struct CallDelta<'a> {
    #[serde(default)]
    pub(super) index: Option<u64>,
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) function: Option<FunctionDelta<'a>>,
}

#[derive(Deserialize)]
pub(super) struct FunctionDelta<'a> {
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    /// Text by the protocol; an object from some servers.
    #[serde(borrow, default)]
    pub(super) arguments: Option<&'a RawValue>,
}

impl FunctionDelta<'_> {
    /// The argument text.
    pub(super) fn arguments(&self) -> Result<Cow<'_, str>, serde_json::Error> {
        match self.arguments.map(RawValue::get) {
            None | Some("null") => Ok(Cow::Borrowed("")),
            Some(text) if text.starts_with('"') => match serde_json::from_str::<Text<'_>>(text) {
                Ok(text) => Ok(text.0),
                Err(_) => Ok(Cow::Owned(serde_json::from_str(&without_lone_surrogates(text))?)),
            },
            Some(json) => Ok(Cow::Borrowed(json)),
        }
    }
}

/// Text, borrowed where it holds no escapes. Anything but text reads as empty.
#[derive(Default)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl Text<'_> {
    /// The text, if there is any.
    pub(super) fn get(&self) -> Option<&str> {
        (!self.0.is_empty()).then_some(&*self.0)
    }
}

/// Text, or the parts that Mistral's reasoning models send.
#[derive(Default)]
pub(super) enum Content<'a> {
    #[default]
    None,
    Text(Cow<'a, str>),
    Parts(Vec<Part<'a>>),
}

#[derive(Deserialize)]
pub(super) struct Part<'a> {
    #[serde(borrow, default)]
    pub(super) text: Text<'a>,
    #[serde(borrow, default)]
    pub(super) thinking: Option<Vec<ThinkingPart<'a>>>,
}

#[derive(Deserialize)]
pub(super) struct ThinkingPart<'a> {
    #[serde(borrow, default)]
    pub(super) text: Text<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Content::deserialize(deserializer)? {
            Content::Text(text) => Self(text),
            Content::None | Content::Parts(_) => Self::default(),
        })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Content<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, parts or null")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Content::Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Content::Text(Cow::Owned(text.to_owned())))
            }
            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(Content::Text(Cow::Owned(text)))
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Content::None)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(Content::None)
            }
            // Some servers number what others name.
            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Content::Text(Cow::Owned(number.to_string())))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(Content::Text(Cow::Owned(number.to_string())))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(Content::None)
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(Content::Parts(parts))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<de::IgnoredAny, de::IgnoredAny>()?.is_some() {}
                Ok(Content::None)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Choices<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> de::Visitor<'de> for Visitor<'a> {
            type Value = Choices<'a>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of choices or null")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Choices::default())
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut choices = Choices { first: None, present: true };
                while let Some(choice) = seq.next_element::<Choice<'a>>()? {
                    if choices.first.is_none() && choice.index.unwrap_or(0) == 0 {
                        choices.first = Some(choice);
                    }
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_any(Visitor(PhantomData))
    }
}
