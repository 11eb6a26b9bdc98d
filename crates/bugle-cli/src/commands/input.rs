//! From flags and standard input to what is sent (CLI-052).

use std::{
    io::{IsTerminal as _, Read as _},
    path::Path,
};

use base64::Engine as _;
use bugle::{
    json::{Object, Value},
    signal::{Attributes, ContentPart, Contents},
};
use bugle_client::Input;

use crate::{args::InputFlags, exit::Failure};

/// The most that is read of a file or of standard input; the server's own limit comes on top.
const INPUT_LEN_MAX: u64 = 64 << 20;

/// The text that was given, or what standard input holds. `None`: none was given, and standard input is a terminal.
pub(super) async fn text(given: Option<&str>, reads_pipe: bool) -> Result<Option<String>, Failure> {
    let text = match given {
        Some("-") => read_stdin().await?,
        None if reads_pipe && !std::io::stdin().is_terminal() => read_stdin().await?,
        None => return Ok(None),
        Some(text) => text.to_owned(),
    };
    if text.trim().is_empty() {
        return Err(Failure::usage("the text is empty").hint("say something, or - to read standard input"));
    }
    Ok(Some(text))
}

async fn read_stdin() -> Result<String, Failure> {
    let read = tokio::task::spawn_blocking(|| {
        let mut text = String::new();
        std::io::stdin().lock().take(INPUT_LEN_MAX).read_to_string(&mut text).map(|_| text)
    });
    let text = read.await.map_err(|_| Failure::new(crate::exit::BUG, "reading standard input failed"))?;
    let text = text.map_err(|error| Failure::usage(format!("standard input cannot be read: {error}")))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// The input of `send` and `queue`.
pub(super) fn input(text: String, flags: &InputFlags, files: &[impl AsRef<Path>]) -> Result<Input, Failure> {
    let contents = if files.is_empty() {
        Contents::Text(text)
    } else {
        let mut parts = vec![ContentPart::Text { text, provider_options: None }];
        for path in files {
            parts.push(file(path.as_ref())?);
        }
        Contents::Parts(parts)
    };
    let mut input = match &flags.signal {
        Some(signal_type) => Input::signal(signal_type.clone(), contents),
        None => Input::new(contents),
    };
    input.tag_name.clone_from(&flags.tag);
    input.id = flags.id.as_deref().map(Into::into);
    input.attributes = attributes(&flags.attributes)?;
    input.metadata = flags.meta.as_deref().map(metadata).transpose()?;
    Ok(input)
}

/// `K=V` pairs.
pub(super) fn attributes(pairs: &[String]) -> Result<Option<Attributes>, Failure> {
    if pairs.is_empty() {
        return Ok(None);
    }
    let pairs = pairs.iter().map(|pair| match pair.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), Value::from(value))),
        _ => Err(Failure::usage(format!("--attr {pair}: no NAME=VALUE"))),
    });
    pairs.collect::<Result<Attributes, Failure>>().map(Some)
}

fn metadata(text: &str) -> Result<Object, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::usage(format!("--meta: no JSON object: {error}")))
}

fn file(path: &Path) -> Result<ContentPart, Failure> {
    let shown = path.display();
    let wrong = |error: &dyn std::fmt::Display| Failure::usage(format!("--file {shown}: {error}"));
    let length = std::fs::metadata(path).map_err(|error| wrong(&error))?.len();
    if length > INPUT_LEN_MAX {
        return Err(wrong(&"the file is too large to send"));
    }
    let bytes = std::fs::read(path).map_err(|error| wrong(&error))?;
    Ok(ContentPart::File {
        data: base64::engine::general_purpose::STANDARD.encode(bytes),
        media_type: media_type(path).to_owned(),
        filename: path.file_name().map(|name| name.to_string_lossy().into_owned()),
        provider_options: None,
    })
}

fn media_type(path: &Path) -> &'static str {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    match extension.as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "pdf" => "application/pdf",
        "json" => "application/json",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "md" => "text/markdown",
        "txt" | "log" | "rs" | "py" | "js" | "ts" | "toml" | "yaml" | "yml" => "text/plain",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_pairs_and_their_values_may_hold_equal_signs() {
        let pairs = ["name=Ann".to_owned(), "q=a=b".to_owned()];
        let attributes = attributes(&pairs).unwrap().unwrap();
        assert_eq!((attributes["name"].as_str(), attributes["q"].as_str()), (Some("Ann"), Some("a=b")));
        assert_eq!(super::attributes(&["name".to_owned()]).unwrap_err().code, 2);
        assert_eq!(metadata("[1]").unwrap_err().code, 2);
    }
}
