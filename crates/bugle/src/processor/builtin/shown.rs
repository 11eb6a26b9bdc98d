//! What a model reads of a message besides its text: attributes of signals, calls and their results, thoughts.

use crate::{
    json::{Object, Value},
    message::{Part, StoredMessage, ToolInvocation},
    processor::Outcome,
};

/// What looks at a string, and may change it.
pub(super) type Look<'a> = &'a mut dyn FnMut(&mut String) -> Outcome;

/// Every string of a message that a prompt shows.
pub(super) fn each_shown(message: &mut StoredMessage, look: Look<'_>) -> Outcome {
    for part in &mut message.content.parts {
        if let Part::Text(text) = part {
            look(&mut text.text)?;
        }
    }
    if let Some(text) = &mut message.content.content {
        look(text)?;
    }
    each_beside(message, look)
}

/// Every string of a message that a prompt shows and that is not its text.
pub(super) fn each_beside(message: &mut StoredMessage, look: Look<'_>) -> Outcome {
    for part in &mut message.content.parts {
        match part {
            Part::Reasoning(thought) => {
                look(&mut thought.reasoning)?;
                for text in thought.details.iter_mut().filter_map(|detail| detail.get_mut("text")) {
                    each_string(text, look)?;
                }
            }
            Part::ToolInvocation(part) => {
                each_of_call(&mut part.tool_invocation, look)?;
                // What the model reads in the place of the result (LOOP-074).
                let mastra = part.provider_metadata.as_mut().and_then(|metadata| metadata.get_mut("mastra"));
                if let Some(output) = mastra.and_then(|mastra| mastra.get_mut("modelOutput")) {
                    each_string(output, look)?;
                }
            }
            Part::File(file) => file.filename.as_mut().map_or(Ok(()), &mut *look)?,
            Part::Text(_) | Part::StepStart(_) | Part::Error(_) | Part::Other(_) => {}
        }
    }
    // Calls of rows older than parts (MEM-040).
    if let Some(Value::Array(calls)) = message.content.extra.get_mut("toolInvocations") {
        for call in calls {
            for name in ["args", "result", "errorText"] {
                if let Some(value) = call.get_mut(name) {
                    each_string(value, look)?;
                }
            }
        }
    }
    let metadata = message.content.metadata.as_mut();
    if let Some(signal) = metadata.and_then(|metadata| metadata.get_mut("signal")) {
        for name in ["attributes", "contents"] {
            if let Some(value) = signal.get_mut(name) {
                each_string(value, look)?;
            }
        }
    }
    Ok(())
}

fn each_of_call(call: &mut ToolInvocation, look: Look<'_>) -> Outcome {
    each_string(&mut call.args, look)?;
    if let Some(result) = &mut call.result {
        each_string(result, look)?;
    }
    if let Some(text) = &mut call.error_text {
        look(text)?;
    }
    // Why a person declined is told, too (LOOP-112).
    match call.approval.as_mut().and_then(|approval| approval.get_mut("reason")) {
        Some(reason) => each_string(reason, look),
        None => Ok(()),
    }
}

/// Strings anywhere in a value, names of fields among them. Numbers are left alone.
pub(super) fn each_string(value: &mut Value, look: Look<'_>) -> Outcome {
    match value {
        Value::String(text) => look(text),
        Value::Array(items) => items.iter_mut().try_for_each(|item| each_string(item, look)),
        Value::Object(fields) => {
            let mut renamed = false;
            let mut names = Vec::with_capacity(fields.len());
            for name in fields.keys() {
                let mut new = name.clone();
                look(&mut new)?;
                renamed |= new != *name;
                names.push(new);
            }
            if renamed {
                *fields = names
                    .into_iter()
                    .zip(std::mem::take(fields))
                    .map(|(name, (_, value))| (name, value))
                    .collect::<Object>();
            }
            fields.values_mut().try_for_each(|field| each_string(field, look))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}
