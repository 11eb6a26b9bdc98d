//! Identifiers: cheap to clone, ordered, and the same text on the wire and in storage.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl<T: Into<Arc<str>>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl std::ops::Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }
    };
}

string_id! {
    /// One execution of an agent's loop.
    RunId
}
string_id! {
    /// A stored message. A signal's id is the id of the message it becomes (SIG-040).
    MessageId
}

impl RunId {
    /// A fresh random id (UUID v4, LOOP-007).
    pub fn random() -> Self {
        #[cfg(test)]
        if let Some(number) = numbered::next() {
            return format!("run-{number:05}").into();
        }
        uuid::Uuid::new_v4().to_string().into()
    }
}

impl MessageId {
    /// A fresh id that sorts after the ones made before it (UUID v7, MEM-056).
    pub fn fresh() -> Self {
        #[cfg(test)]
        if let Some(number) = numbered::next() {
            return format!("message-{number:05}").into();
        }
        uuid::Uuid::now_v7().to_string().into()
    }
}

/// Ids in the order they are made, so that a simulated history can be played again.
#[cfg(test)]
pub(crate) mod numbered {
    use std::cell::Cell;

    thread_local!(static NEXT: Cell<Option<u64>> = const { Cell::new(None) });

    /// From now on this thread's ids are numbers, from 1.
    pub(crate) fn start() {
        NEXT.set(Some(1));
    }

    pub(super) fn next() -> Option<u64> {
        let next = NEXT.get();
        NEXT.set(next.map(|next| next + 1));
        next
    }
}

/// Names one conversation: the unit that has at most one run at a time.
///
/// The same thread id under two resources is two threads (SIG-360).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadKey {
    /// Who the conversation belongs to: a user, a room, a document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_id: Option<Arc<str>>,
    /// The thread's id.
    pub thread_id: Arc<str>,
}

impl ThreadKey {
    /// The thread `thread` of `resource`.
    ///
    /// ```
    /// let key = bugle::ThreadKey::new("user_123", "thread_456");
    /// assert_eq!(key.lease_key(), "user_123\0thread_456");
    /// ```
    pub fn new(resource: impl Into<Arc<str>>, thread: impl Into<Arc<str>>) -> Self {
        Self { resource_id: Some(resource.into()), thread_id: thread.into() }
    }

    /// A thread that belongs to no resource (SIG-361).
    pub fn unowned(thread: impl Into<Arc<str>>) -> Self {
        Self { resource_id: None, thread_id: thread.into() }
    }

    /// The key under which the thread is leased: resource, NUL, thread (SIG §1).
    pub fn lease_key(&self) -> String {
        format!("{}\0{}", self.resource_id.as_deref().unwrap_or_default(), self.thread_id)
    }
}

impl fmt::Display for ThreadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.resource_id.as_deref().unwrap_or("-"), self.thread_id)
    }
}
