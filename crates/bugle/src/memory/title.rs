//! Titles of threads, made by a model (MEM-030, MEM-031).

use std::{fmt::Write as _, time::Duration};

use futures::StreamExt;

use super::TitleOptions;
use crate::{
    id::ThreadKey,
    message::{Role, StoredMessage},
    model::{ModelEvent, ModelRequest, PromptMessage, SharedModel, UserPart},
    signal::{Signal, SignalType},
    storage::{SharedStorage, ThreadUpdate},
};

const INSTRUCTIONS: &str = "Give this conversation a title: at most eight words, in the language of the conversation, \
    saying what it is about. Answer with the title alone, without quotes and without a full stop.";
/// How much of the conversation the model reads, in characters.
const READ_MAX: usize = 4_000;
/// The longest title, in characters.
const TITLE_MAX: usize = 80;
const TIME_MAX: Duration = Duration::from_mins(1);

/// Makes a title for a thread that has none and at least `min_messages` messages of people, and writes it unless the
/// thread got one meanwhile (MEM-031). Gives the title if it was written.
///
/// Never fails a run: what goes wrong is logged and gives `None`. Takes up to a minute; dropping it writes nothing.
pub async fn generate_title(
    model: &SharedModel,
    messages: &[StoredMessage],
    options: &TitleOptions,
    storage: &SharedStorage,
    thread: &ThreadKey,
) -> Option<String> {
    let people = messages.iter().filter(|message| is_from_person(message)).count();
    if people < options.min_messages.max(1) as usize {
        return None;
    }
    match storage.get_thread(&thread.thread_id).await {
        Ok(Some(row)) if row.title.is_empty() => {}
        Ok(_) => return None,
        Err(error) => {
            tracing::warn!(%thread, %error, "no title: the thread could not be read");
            return None;
        }
    }
    let instructions = options.instructions.as_deref().unwrap_or(INSTRUCTIONS);
    let title = match tokio::time::timeout(TIME_MAX, ask(model, messages, instructions)).await {
        Ok(Ok(title)) => clean(&title)?,
        Ok(Err(error)) => {
            tracing::warn!(%thread, %error, "no title: the model failed");
            return None;
        }
        Err(_) => {
            tracing::warn!(%thread, "no title: the model took too long");
            return None;
        }
    };
    let update = ThreadUpdate {
        id: thread.thread_id.to_string(),
        title: Some(title.clone()),
        title_if_empty: true,
        ..ThreadUpdate::default()
    };
    match storage.update_thread(update).await {
        Ok(written) => (written.title == title).then_some(title),
        Err(error) => {
            tracing::warn!(%thread, %error, "no title: it could not be written");
            None
        }
    }
}

fn is_from_person(message: &StoredMessage) -> bool {
    match message.role {
        Role::User => true,
        Role::Signal => Signal::from_stored(message).is_some_and(|signal| signal.signal_type == SignalType::User),
        Role::Assistant | Role::System => false,
    }
}

async fn ask(
    model: &SharedModel,
    messages: &[StoredMessage],
    instructions: &str,
) -> Result<String, crate::model::ModelError> {
    let mut transcript = String::new();
    for message in messages {
        let speaker = match message.role {
            Role::Assistant => "assistant",
            _ if is_from_person(message) => "user",
            _ => continue,
        };
        let text = message.joined_text();
        if text.trim().is_empty() {
            continue;
        }
        let _ = writeln!(transcript, "{speaker}: {text}");
        if transcript.len() >= READ_MAX {
            transcript = transcript.chars().take(READ_MAX).collect();
            break;
        }
    }
    let prompt = vec![
        PromptMessage::System { content: instructions.to_owned(), provider_options: None },
        PromptMessage::User {
            content: vec![UserPart::Text { text: transcript, provider_options: None }],
            provider_options: None,
        },
    ];
    let mut answer = model.stream(ModelRequest { prompt, ..ModelRequest::default() }).await?.events;
    let mut title = String::new();
    while let Some(event) = answer.next().await {
        if let ModelEvent::TextDelta { text, .. } = event?
            && title.len() < 4 * TITLE_MAX
        {
            title.push_str(&text);
        }
    }
    Ok(title)
}

/// The first line of what the model said, without quotes around it.
fn clean(said: &str) -> Option<String> {
    let line = said.lines().map(str::trim).find(|line| !line.is_empty())?;
    let bare = line.trim_matches(|c: char| matches!(c, '"' | '\'' | '“' | '”' | '*' | '#' | '`') || c.is_whitespace());
    let title: String = bare.chars().take(TITLE_MAX).collect();
    Some(title.trim_end().to_owned()).filter(|title| !title.is_empty())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        model::{Script, ScriptedModel},
        signal::SignalInput,
        storage::{MemoryStorage, NewThread},
    };

    async fn store(title: &str) -> (SharedStorage, ThreadKey) {
        let storage: SharedStorage = Arc::new(MemoryStorage::default());
        let thread = NewThread {
            id: Some("t".into()),
            resource_id: "r".into(),
            title: Some(title.into()),
            ..NewThread::default()
        };
        storage.create_thread(thread).await.unwrap();
        (storage, ThreadKey::new("r", "t"))
    }

    fn exchange() -> Vec<StoredMessage> {
        let sent = SignalInput::message("How is Oslo?").normalise(|| "s".into(), Default::default()).unwrap();
        let answer = StoredMessage::text("a".into(), Role::Assistant, "Cold.", Default::default());
        vec![sent.to_stored(None, Default::default()), answer]
    }

    async fn title(storage: &SharedStorage) -> String {
        storage.get_thread("t").await.unwrap().unwrap().title
    }

    #[tokio::test]
    async fn mem_030_an_untitled_thread_gets_a_title() {
        let (storage, thread) = store("").await;
        let scripted = ScriptedModel::with_responses([Script::new().text("\"Weather in Oslo\"\nand more")]);
        let model: SharedModel = Arc::new(scripted.clone());
        let made = generate_title(&model, &exchange(), &TitleOptions::default(), &storage, &thread).await;
        assert_eq!(made.as_deref(), Some("Weather in Oslo"));
        assert_eq!(title(&storage).await, "Weather in Oslo");
        let asked = serde_json::to_string(&scripted.requests()[0].prompt).unwrap();
        assert!(asked.contains("user: How is Oslo?\\nassistant: Cold."), "{asked}");
    }

    #[tokio::test]
    async fn mem_030_a_titled_or_short_thread_asks_no_model() {
        let scripted = ScriptedModel::with_responses([Script::new().text("New")]);
        let model: SharedModel = Arc::new(scripted.clone());
        let (storage, thread) = store("Mine").await;
        assert_eq!(generate_title(&model, &exchange(), &TitleOptions::default(), &storage, &thread).await, None);
        let (untitled, thread) = store("").await;
        let later = TitleOptions { min_messages: 2, ..TitleOptions::default() };
        assert_eq!(generate_title(&model, &exchange(), &later, &untitled, &thread).await, None);
        let nobody = &exchange()[1..];
        assert_eq!(generate_title(&model, nobody, &TitleOptions::default(), &untitled, &thread).await, None);
        assert_eq!((scripted.requested(), title(&storage).await), (0, "Mine".to_owned()));
    }

    #[tokio::test]
    async fn mem_030_a_failing_model_gives_no_title() {
        let (storage, thread) = store("").await;
        let model: SharedModel = Arc::new(ScriptedModel::with_responses([Script::new().fail_with(500, "down")]));
        assert_eq!(generate_title(&model, &exchange(), &TitleOptions::default(), &storage, &thread).await, None);
        assert_eq!(title(&storage).await, "");
    }

    #[tokio::test]
    async fn mem_031_a_title_given_meanwhile_stays() {
        let (storage, thread) = store("").await;
        let gate = crate::model::Gate::new();
        let model: SharedModel =
            Arc::new(ScriptedModel::with_responses([Script::new().gate(&gate).text("Made by the model")]));
        let messages = exchange();
        let options = TitleOptions::default();
        let make = generate_title(&model, &messages, &options, &storage, &thread);
        let meanwhile = async {
            gate.reached().await;
            let update =
                ThreadUpdate { id: "t".into(), title: Some("Given by a person".into()), ..ThreadUpdate::default() };
            storage.update_thread(update).await.unwrap();
            gate.open();
        };
        let (made, ()) = tokio::join!(make, meanwhile);
        assert_eq!((made, title(&storage).await), (None, "Given by a person".to_owned()));
    }

    #[test]
    fn mem_030_titles_are_one_short_line() {
        assert_eq!(clean("\n  **A title**  \nmore"), Some("A title".to_owned()));
        assert_eq!(clean(&"x".repeat(200)).map(|title| title.len()), Some(TITLE_MAX));
        assert_eq!((clean("  \n"), clean("\"\"")), (None, None));
    }
}
