//! The conversation as one run sees it: what was remembered, and what the run adds.

use super::parked::KeptMessage;
use crate::{
    id::{MessageId, ThreadKey},
    json::json,
    message::{MessageContent, Part, Role, StoredMessage, ToolState},
    signal::Signal,
    time::Timestamp,
};

/// The messages of a run, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    messages: Vec<StoredMessage>,
    marks: Vec<Mark>,
    /// The assistant message under construction.
    open: Option<usize>,
    thread: Option<ThreadKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Remembered,
    Context,
    Own,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    origin: Origin,
    /// Never stored: transient signals, context, feedback.
    ephemeral: bool,
    dirty: bool,
}

impl Transcript {
    /// Begins with what memory holds.
    pub(crate) fn new(remembered: Vec<StoredMessage>, thread: Option<ThreadKey>) -> Self {
        let marks = vec![Mark { origin: Origin::Remembered, ephemeral: false, dirty: false }; remembered.len()];
        Self { messages: remembered, marks, open: None, thread }
    }

    /// Begins a recovered run: of what memory holds, `own` are the run's rows, and `open` is its last answer.
    pub(crate) fn recovered(
        remembered: Vec<StoredMessage>,
        thread: Option<ThreadKey>,
        own: &[MessageId],
        open: &MessageId,
    ) -> Self {
        let mut transcript = Self::new(remembered, thread);
        for (message, mark) in transcript.messages.iter().zip(&mut transcript.marks) {
            if own.contains(&message.id) {
                mark.origin = Origin::Own;
            }
        }
        transcript.open =
            transcript.messages.iter().rposition(|message| message.id == *open && message.role == Role::Assistant);
        transcript
    }

    /// Begins a run that was parked: `kept` are the messages that no store holds.
    pub(crate) fn restored(
        remembered: Vec<StoredMessage>,
        kept: &[KeptMessage],
        thread: Option<ThreadKey>,
        own: &[MessageId],
        open: &MessageId,
    ) -> Self {
        let mut transcript = Self::recovered(remembered, thread, own, open);
        for KeptMessage { message, own, ephemeral } in kept {
            let known = transcript.messages.iter().any(|held| held.id == message.id);
            if known {
                continue;
            }
            let origin = match (own, ephemeral) {
                (true, _) => Origin::Own,
                (false, true) => Origin::Context,
                (false, false) => Origin::Remembered,
            };
            let at = transcript.messages.partition_point(|held| held.created_at <= message.created_at);
            transcript.messages.insert(at, message.clone());
            transcript.marks.insert(at, Mark { origin, ephemeral: *ephemeral, dirty: false });
        }
        transcript.open =
            transcript.messages.iter().rposition(|message| message.id == *open && message.role == Role::Assistant);
        transcript
    }

    /// What no store holds: all of a run that stores nothing, else what is never stored.
    pub(crate) fn kept(&self, all: bool) -> Vec<KeptMessage> {
        let kept = self.messages.iter().zip(&self.marks).filter(|(_, mark)| all || mark.ephemeral);
        kept.map(|(message, mark)| KeptMessage {
            message: message.clone(),
            own: mark.origin == Origin::Own,
            ephemeral: mark.ephemeral,
        })
        .collect()
    }

    /// The text of the run's answers, from the message `from` on.
    pub(crate) fn answer_text(&self, from: Option<&MessageId>) -> String {
        let own = self.messages.iter().zip(&self.marks);
        let own = own.filter(|(message, mark)| {
            let feedback = message.content.meta("completionResult").is_some();
            mark.origin == Origin::Own && message.role == Role::Assistant && !feedback
        });
        let mut own: Vec<&StoredMessage> = own.map(|(message, _)| message).collect();
        if let Some(at) = from.and_then(|from| own.iter().position(|message| message.id == *from)) {
            own.drain(..at);
        } else if from.is_some() {
            // That answer has not begun.
            own.clear();
        }
        let parts = own.into_iter().flat_map(|message| &message.content.parts);
        let texts = parts.filter_map(|part| match part {
            Part::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// The message that holds a call, the newest if several do.
    pub(crate) fn with_call(&mut self, id: &str) -> Option<&mut StoredMessage> {
        let at = self.messages.iter().rposition(|message| holds_call(message, id))?;
        self.marks[at].dirty = !self.marks[at].ephemeral;
        Some(&mut self.messages[at])
    }

    /// The thread it belongs to.
    pub(crate) fn thread(&self) -> Option<&ThreadKey> {
        self.thread.as_ref()
    }

    /// All messages, for a prompt.
    pub(crate) fn messages(&self) -> &[StoredMessage] {
        &self.messages
    }

    /// Those that memory held.
    pub(crate) fn remembered(&self) -> Vec<StoredMessage> {
        self.of(Origin::Remembered)
    }

    /// Those of the run: its input and its answers.
    pub(crate) fn own(&self) -> Vec<StoredMessage> {
        self.of(Origin::Own)
    }

    /// The ids of the run's stored messages.
    pub(crate) fn own_ids(&self) -> Vec<MessageId> {
        let stored =
            self.messages.iter().zip(&self.marks).filter(|(_, mark)| mark.origin == Origin::Own && !mark.ephemeral);
        stored.map(|(message, _)| message.id.clone()).collect()
    }

    fn of(&self, origin: Origin) -> Vec<StoredMessage> {
        let own = self.messages.iter().zip(&self.marks).filter(|(_, mark)| mark.origin == origin);
        own.map(|(message, _)| message.clone()).collect()
    }

    /// The answers of the run.
    pub(crate) fn answers(&self) -> Vec<StoredMessage> {
        let answers = self.messages.iter().zip(&self.marks);
        let answers = answers.filter(|(message, mark)| mark.origin == Origin::Own && message.role == Role::Assistant);
        answers.map(|(message, _)| message.clone()).collect()
    }

    /// A time for the next message: now, but later than every one before it (SIG-042, MEM-055).
    pub(crate) fn next_time(&self, now: Timestamp) -> Timestamp {
        let newest = self.messages.iter().map(|message| message.created_at.as_millis()).max();
        Timestamp::from_millis(now.as_millis().max(newest.map_or(i64::MIN, |newest| newest + 1)))
    }

    /// The time of the newest message.
    pub(crate) fn newest(&self) -> Option<Timestamp> {
        self.messages.iter().map(|message| message.created_at).max()
    }

    /// The newest time it has given to a message: they grow, so that it is one of the last.
    pub(crate) fn newest_placed(&self) -> Option<Timestamp> {
        self.messages.iter().rev().take(4).map(|message| message.created_at).max()
    }

    /// Adds context that is never stored.
    pub(crate) fn add_context(&mut self, message: StoredMessage) {
        self.push(message, Mark { origin: Origin::Context, ephemeral: true, dirty: false });
    }

    /// Adds an input message of a plain run. System messages are never stored (MEM-052).
    pub(crate) fn add_input(&mut self, message: StoredMessage) {
        let ephemeral = message.role == Role::System;
        self.push(message, Mark { origin: Origin::Own, ephemeral, dirty: !ephemeral });
    }

    /// Adds an input message of a caller, or one that a guard has added, which has neither id nor time of its own.
    pub(crate) fn add_given(&mut self, mut message: StoredMessage, now: Timestamp) {
        if message.id.as_str().is_empty() {
            message.id = MessageId::fresh();
        }
        if message.created_at == Timestamp::default() {
            message.created_at = self.next_time(now);
        }
        if let Some(thread) = self.thread.as_ref().filter(|_| message.thread_id.is_none()) {
            message = message.on(thread);
        }
        self.add_input(message);
    }

    /// Adds feedback, which the model reads on the user's side (ruling 10); `stored` or for this run only.
    pub(crate) fn add_feedback(&mut self, message: StoredMessage, stored: bool) {
        self.push(message, Mark { origin: Origin::Own, ephemeral: !stored, dirty: stored });
    }

    /// A remembered message was changed: a client's result completed a call (MEM-057).
    pub(crate) fn touch(&mut self, id: &MessageId) {
        if let Some(at) = self.messages.iter().position(|message| message.id == *id) {
            self.marks[at].dirty = !self.marks[at].ephemeral;
        }
    }

    /// A remembered message as it is from now on; one that is not remembered is added as input.
    pub(crate) fn rewrite(&mut self, message: StoredMessage) {
        match self.messages.iter().position(|known| known.id == message.id) {
            Some(at) => {
                self.messages[at] = message;
                self.marks[at].dirty = !self.marks[at].ephemeral;
            }
            None => self.add_input(message),
        }
    }

    pub(crate) fn messages_mut(&mut self) -> &mut [StoredMessage] {
        &mut self.messages
    }

    /// Places a signal and gives it as placed. A transient one takes the place of an earlier copy (SIG-026).
    pub(crate) fn place(&mut self, signal: &Signal, now: Timestamp) -> Signal {
        if signal.transient {
            self.remove_transient(signal);
        } else if let Some(at) = self.messages.iter().position(|message| message.id == signal.id) {
            // A write that was reported as failed had happened: the row is there, and is this one.
            self.remove(at);
        }
        let placed = signal.placed(self.next_time(now));
        let mark = Mark { origin: Origin::Own, ephemeral: signal.transient, dirty: !signal.transient };
        self.push(placed.to_stored(self.thread.as_ref(), placed.created_at), mark);
        placed
    }

    fn remove_transient(&mut self, signal: &Signal) {
        let same = |message: &StoredMessage| {
            Signal::from_stored(message).is_some_and(|known| {
                known.transient
                    && (known.id == signal.id
                        || known.signal_type == signal.signal_type
                            && known.tag_name == signal.tag_name
                            && known.contents == signal.contents)
            })
        };
        while let Some(at) = self.messages.iter().position(same) {
            self.remove(at);
        }
    }

    fn remove(&mut self, at: usize) {
        self.messages.remove(at);
        self.marks.remove(at);
        self.open = self.open.and_then(|open| if open > at { Some(open - 1) } else { (open < at).then_some(open) });
    }

    fn push(&mut self, message: StoredMessage, mark: Mark) {
        self.messages.push(message);
        self.marks.push(mark);
    }

    /// Seals the answer under construction: what follows is another message (SIG-043). `false` if there is none.
    pub(crate) fn seal(&mut self) -> bool {
        let Some(open) = self.open.take() else { return false };
        let metadata = self.messages[open].content.metadata_mut();
        let mastra = metadata.entry("mastra").or_insert_with(|| json!({}));
        mastra["responseBoundary"] = json!(true);
        self.marks[open].dirty = true;
        true
    }

    /// The answer with this id, made if there is none.
    pub(crate) fn answer(&mut self, id: &MessageId, now: Timestamp) -> &mut StoredMessage {
        let at = match self.open {
            Some(at) if self.messages[at].id == *id => at,
            _ => {
                let created_at = self.next_time(now);
                let mut message = StoredMessage {
                    id: id.clone(),
                    role: Role::Assistant,
                    created_at,
                    thread_id: None,
                    resource_id: None,
                    kind: None,
                    content: MessageContent::default(),
                };
                if let Some(thread) = &self.thread {
                    message = message.on(thread);
                }
                self.push(message, Mark { origin: Origin::Own, ephemeral: false, dirty: true });
                self.messages.len() - 1
            }
        };
        self.open = Some(at);
        self.marks[at].dirty = true;
        &mut self.messages[at]
    }

    /// The answer under construction, if it has begun.
    pub(crate) fn open_answer(&mut self) -> Option<&mut StoredMessage> {
        let at = self.open?;
        self.marks[at].dirty = true;
        Some(&mut self.messages[at])
    }

    /// What has changed since the last call, for a commit.
    pub(crate) fn take_dirty(&mut self) -> Vec<StoredMessage> {
        let mut dirty = Vec::new();
        for (message, mark) in self.messages.iter_mut().zip(&mut self.marks) {
            if !mark.dirty || mark.ephemeral {
                continue;
            }
            if message.role == Role::Assistant {
                refresh_text(message);
                if message.content.parts.is_empty() {
                    continue;
                }
            }
            mark.dirty = false;
            dirty.push(message.clone());
        }
        dirty
    }

    /// Whether the message is one of the run.
    pub(crate) fn is_own(&self, id: &MessageId) -> bool {
        let found = self.messages.iter().position(|message| message.id == *id);
        found.is_some_and(|at| self.marks[at].origin == Origin::Own)
    }

    /// Takes a message out of the conversation of this run; a stored row stays. `false` if there is none.
    pub(crate) fn remove_message(&mut self, id: &MessageId) -> bool {
        let found = self.messages.iter().position(|message| message.id == *id);
        found.map(|at| self.remove(at)).is_some()
    }

    /// Changes a message of this run's conversation. `false` if there is none.
    pub(crate) fn replace_message(&mut self, message: StoredMessage) -> bool {
        let Some(at) = self.messages.iter().position(|known| known.id == message.id) else { return false };
        if self.messages[at] != message {
            self.messages[at] = message;
            self.marks[at].dirty = self.marks[at].origin == Origin::Own && !self.marks[at].ephemeral;
        }
        true
    }

    /// Whether there is a message with this id.
    pub(crate) fn has(&self, id: &MessageId) -> bool {
        self.messages.iter().any(|message| message.id == *id)
    }

    /// Fails with an id that two of `messages` have.
    pub(crate) fn check_ids(messages: &[StoredMessage]) -> Result<(), MessageId> {
        for (at, message) in messages.iter().enumerate() {
            let twice = messages[..at].iter().any(|other| other.id == message.id);
            if twice && !message.id.as_str().is_empty() {
                return Err(message.id.clone());
            }
        }
        Ok(())
    }

    /// Puts `messages` in the place of all, or of the run's answers: what is missing goes, changed ones change where they
    /// are, new ones come last (PROC-011). Gives the texts of new system messages, which are not placed.
    pub(crate) fn replace_all(&mut self, answers: bool, messages: Vec<StoredMessage>, now: Timestamp) -> Vec<String> {
        for at in (0..self.messages.len()).rev() {
            let is_answer = self.marks[at].origin == Origin::Own && self.messages[at].role == Role::Assistant;
            if (!answers || is_answer) && !messages.iter().any(|kept| kept.id == self.messages[at].id) {
                self.remove(at);
            }
        }
        let mut system = Vec::new();
        for mut message in messages {
            if self.has(&message.id) {
                self.replace_message(message);
                continue;
            }
            if message.role == Role::System {
                system.push(message.joined_text());
                continue;
            }
            if message.id.as_str().is_empty() {
                message.id = MessageId::fresh();
            }
            message.created_at = self.next_time(now);
            if let Some(thread) = &self.thread {
                message = message.on(thread);
            }
            self.push(message, Mark { origin: Origin::Own, ephemeral: false, dirty: true });
        }
        system.retain(|text| !text.is_empty());
        system
    }

    /// Puts messages of earlier, which are not stored again, before all others (STATE-036).
    pub(crate) fn put_back(&mut self, messages: Vec<StoredMessage>) {
        let count = messages.len();
        self.messages.splice(0..0, messages);
        let mark = Mark { origin: Origin::Context, ephemeral: true, dirty: false };
        self.marks.splice(0..0, std::iter::repeat_n(mark, count));
        self.open = self.open.map(|open| open + count);
    }

    /// How many parts the answer under construction has.
    pub(crate) fn open_answer_parts(&self) -> usize {
        self.open.map_or(0, |open| self.messages[open].content.parts.len())
    }

    /// Takes the last parts out of the answer under construction; an answer without any is none.
    pub(crate) fn truncate_open_answer(&mut self, parts: usize) {
        let Some(open) = self.open else { return };
        self.messages[open].content.parts.truncate(parts);
        self.marks[open].dirty = true;
        if parts == 0 {
            self.remove(open);
        }
    }

    /// Whether a call with this id exists already (LOOP-079).
    pub(crate) fn has_call(&self, id: &str) -> bool {
        self.messages.iter().any(|message| holds_call(message, id))
    }
}

fn holds_call(message: &StoredMessage, id: &str) -> bool {
    let is_it = |part: &Part| matches!(part, Part::ToolInvocation(call) if call.tool_invocation.tool_call_id == id);
    message.content.parts.iter().any(is_it)
}

/// The plain copy of an answer's text (MEM-040).
fn refresh_text(message: &mut StoredMessage) {
    let text: String = message
        .content
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) => Some(text.text.as_str()),
            _ => None,
        })
        .collect();
    message.content.content = (!text.is_empty()).then_some(text);
}

/// Whether a part is a call that ran or will run.
pub(crate) fn is_call(part: &Part, state: ToolState) -> bool {
    matches!(part, Part::ToolInvocation(call) if call.tool_invocation.state == state)
}
