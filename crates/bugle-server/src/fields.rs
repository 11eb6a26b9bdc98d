//! The shapes of what clients send (HTTP §5.1, §6, §7, §8).

use crate::shape::{Field, Shape, optional, required};

const TEXT: &Shape = &Shape::Text;
const FLAG: &Shape = &Shape::Flag;
const NUMBER: &Shape = &Shape::Number;
const ANY: &Shape = &Shape::Any;
const OBJECT: &Shape = &Shape::Map(&Shape::Any);
const TEXTS: &Shape = &Shape::List(&Shape::Text);
const PAGE: &Shape = &Shape::Whole(0);

// Runs (HTTP §5.1).

static TEXT_OR_MESSAGE: Shape = Shape::Either(&[TEXT, OBJECT]);
static MESSAGES: Shape = Shape::Either(&[TEXT, &Shape::List(&TEXT_OR_MESSAGE), OBJECT]);
static SYSTEM: Shape = Shape::Either(&[TEXT, &Shape::List(&TEXT_OR_MESSAGE), OBJECT]);
static THREAD: Shape = Shape::Either(&[
    TEXT,
    &Shape::Fields(&[required("id", TEXT), optional("title", TEXT), optional("metadata", OBJECT)]),
]);
const MEMORY_FIELDS: [Field; 3] = [optional("resource", TEXT), optional("options", OBJECT), optional("readOnly", FLAG)];
static MEMORY: Shape = Shape::Fields(&{
    let [resource, options, read_only] = MEMORY_FIELDS;
    [required("thread", &THREAD), resource, options, read_only]
});
static ANY_MEMORY: Shape = Shape::Fields(&{
    let [resource, options, read_only] = MEMORY_FIELDS;
    [optional("thread", &THREAD), resource, options, read_only]
});
static MODEL_SETTINGS: Shape = Shape::Fields(&[
    optional("maxOutputTokens", &Shape::Whole(0)),
    optional("temperature", NUMBER),
    optional("topP", NUMBER),
    optional("topK", &Shape::Whole(0)),
    optional("presencePenalty", NUMBER),
    optional("frequencyPenalty", NUMBER),
    optional("stopSequences", TEXTS),
    optional("seed", NUMBER),
    optional("maxRetries", &Shape::Whole(0)),
    optional("headers", &Shape::Map(TEXT)),
    optional("reasoning", ANY),
]);
static TOOL_CHOICE: Shape = Shape::Either(&[
    &Shape::OneOf(&["auto", "none", "required"]),
    &Shape::Tagged("type", &[("tool", &[required("toolName", TEXT)])]),
]);
static CLIENT_TOOL: Shape =
    Shape::Fields(&[optional("id", TEXT), optional("description", TEXT), optional("inputSchema", ANY)]);
static STRUCTURED_OUTPUT: Shape = Shape::Fields(&[
    required("schema", OBJECT),
    optional("model", TEXT),
    optional("instructions", TEXT),
    optional("jsonPromptInjection", &Shape::Either(&[FLAG, &Shape::OneOf(&["system", "inline", "auto"])])),
    optional("errorStrategy", &Shape::OneOf(&["strict", "warn", "fallback"])),
    optional("fallbackValue", ANY),
]);
static VERSIONS: Shape = Shape::Fields(&[
    optional(
        "agents",
        &Shape::Map(&Shape::Fields(&[
            optional("versionId", TEXT),
            optional("status", &Shape::OneOf(&["draft", "published"])),
        ])),
    ),
    optional("defaultStatus", &Shape::OneOf(&["draft", "published"])),
]);
/// What of the delegation options is data (SUB §7).
static DELEGATION: Shape = Shape::Fields(&[
    optional("hookErrorStrategy", &Shape::OneOf(&["warn", "throw"])),
    optional("includeSubAgentToolResultsInModelContext", FLAG),
    optional("enableResultReferences", FLAG),
    optional("inheritMemory", FLAG),
    optional("includeParentSystem", FLAG),
    optional("maxDepth", &Shape::Whole(0)),
    optional("threadScope", &Shape::OneOf(&["call", "run", "parentThread", "shared"])),
]);
static UNTIL_IDLE: Shape = Shape::Either(&[FLAG, &Shape::Fields(&[optional("maxIdleMs", &Shape::Whole(1))])]);

macro_rules! run_fields {
    ($($first:expr),* $(,)?) => {
        Shape::Fields(&[
            $($first,)*
            optional("instructions", &SYSTEM),
            optional("system", &SYSTEM),
            optional("context", &Shape::List(&TEXT_OR_MESSAGE)),
            optional("maxSteps", &Shape::Whole(0)),
            optional("model", TEXT),
            optional("modelSettings", &MODEL_SETTINGS),
            optional("providerOptions", &Shape::Map(OBJECT)),
            optional("activeTools", TEXTS),
            optional("toolChoice", &TOOL_CHOICE),
            optional("requireToolApproval", FLAG),
            optional("toolCallConcurrency", &Shape::Whole(1)),
            optional("autoResumeSuspendedTools", FLAG),
            optional("delegation", &DELEGATION),
            optional("clientTools", &Shape::Map(&CLIENT_TOOL)),
            optional("structuredOutput", &STRUCTURED_OUTPUT),
            optional("versions", &VERSIONS),
            optional("untilIdle", &UNTIL_IDLE),
            optional("maxIdleMs", &Shape::Whole(1)),
            optional("includeRawChunks", FLAG),
            optional("lean", FLAG),
            optional("requestContext", OBJECT),
        ])
    };
}

/// `generate` and `stream`.
pub(crate) static RUN: Shape =
    run_fields!(required("messages", &MESSAGES), optional("runId", TEXT), optional("memory", &MEMORY));
/// Options of a run that input starts.
pub(crate) static STREAM_OPTIONS: Shape = run_fields!(optional("runId", TEXT), optional("memory", &ANY_MEMORY));

// Answers to runs that wait for a person (HTTP §5.4).

/// `approve-tool-call` and its kin.
pub(crate) static ANSWER_CALL: Shape = run_fields!(
    required("runId", TEXT),
    required("toolCallId", TEXT),
    optional("reason", TEXT),
    optional("memory", &ANY_MEMORY),
);
/// `resume-stream`.
pub(crate) static RESUME: Shape = run_fields!(
    required("runId", TEXT),
    required("resumeData", ANY),
    optional("toolCallId", TEXT),
    optional("memory", &ANY_MEMORY),
);
/// `observe`.
pub(crate) static OBSERVE: Shape = Shape::Fields(&[required("runId", TEXT), optional("offset", &Shape::Whole(0))]);
/// `recover`.
pub(crate) static RECOVER: Shape =
    Shape::Fields(&[required("runId", TEXT), optional("versions", &VERSIONS), optional("requestContext", OBJECT)]);

// Input (HTTP §6).

static PART: Shape = Shape::Tagged(
    "type",
    &[
        ("text", &[required("text", TEXT), optional("providerOptions", OBJECT)]),
        (
            "file",
            &[
                required("data", TEXT),
                required("mediaType", TEXT),
                optional("filename", TEXT),
                optional("providerOptions", OBJECT),
            ],
        ),
    ],
);
static PARTS: Shape = Shape::List(&PART);
static CONTENTS: Shape = Shape::Either(&[TEXT, &PARTS]);
static ATTRIBUTES: Shape = Shape::Map(&Shape::Either(&[TEXT, NUMBER, FLAG, &Shape::Null]));
static MESSAGE: Shape = Shape::Either(&[
    TEXT,
    &PARTS,
    &Shape::Fields(&[
        required("contents", &CONTENTS),
        optional("id", TEXT),
        optional("attributes", &ATTRIBUTES),
        optional("metadata", OBJECT),
        optional("providerOptions", OBJECT),
    ]),
]);
static SIGNAL: Shape = Shape::Fields(&[
    required("type", &Shape::OneOf(&["user", "reactive", "notification", "state", "user-message", "system-reminder"])),
    required("contents", &CONTENTS),
    optional("id", TEXT),
    optional("tagName", TEXT),
    optional("attributes", &ATTRIBUTES),
    optional("metadata", OBJECT),
    optional("createdAt", TEXT),
    optional("providerOptions", OBJECT),
    optional("transient", FLAG),
]);
static IF_ACTIVE: Shape = Shape::Fields(&[
    optional("behavior", &Shape::OneOf(&["deliver", "persist", "discard", "interrupt", "rollback"])),
    optional("attributes", &ATTRIBUTES),
]);
static IF_IDLE: Shape = Shape::Fields(&[
    optional("behavior", &Shape::OneOf(&["wake", "persist", "discard"])),
    optional("attributes", &ATTRIBUTES),
    optional("streamOptions", &STREAM_OPTIONS),
]);

macro_rules! target_fields {
    ($first:expr) => {
        Shape::Fields(&[
            $first,
            optional("resourceId", TEXT),
            optional("threadId", TEXT),
            optional("runId", TEXT),
            optional("ifActive", &IF_ACTIVE),
            optional("ifIdle", &IF_IDLE),
            optional("requestContext", OBJECT),
        ])
    };
}

/// `send-message`, `queue-message`. Which of the target's fields must be there depends on the caller too.
pub(crate) static SEND_MESSAGE: Shape = target_fields!(required("message", &MESSAGE));
/// `signals`, `queue-signal`.
pub(crate) static SEND_SIGNAL: Shape = target_fields!(required("signal", &SIGNAL));
static STATE: Shape = Shape::Fields(&[
    required("id", TEXT),
    required("cacheKey", TEXT),
    required("contents", &CONTENTS),
    optional("mode", &Shape::OneOf(&["snapshot", "delta"])),
    optional("value", ANY),
    optional("delta", ANY),
    optional("attributes", &ATTRIBUTES),
    optional("metadata", OBJECT),
    optional("providerOptions", OBJECT),
    optional("tagName", TEXT),
]);
/// `state-signals`.
pub(crate) static SEND_STATE: Shape = Shape::Fields(&[
    required("state", &STATE),
    optional("resourceId", TEXT),
    required("threadId", TEXT),
    optional("ifActive", &IF_ACTIVE),
    optional("ifIdle", &IF_IDLE),
    optional("requestContext", OBJECT),
]);

/// `threads/subscribe`.
pub(crate) static SUBSCRIBE: Shape =
    Shape::Fields(&[required("threadId", TEXT), optional("resourceId", TEXT), optional("eventIds", FLAG)]);
/// Event ids may be asked for in the query too (HTTP-243).
pub(crate) const EVENT_IDS_QUERY: &[Field] = &[optional("eventIds", FLAG), CONTEXT];
/// The same as query parameters (HTTP-245).
pub(crate) const SUBSCRIBE_QUERY: &[Field] =
    &[required("threadId", TEXT), optional("resourceId", TEXT), optional("eventIds", FLAG), CONTEXT];
/// `threads/abort`.
pub(crate) static ABORT: Shape = Shape::Fields(&[
    required("threadId", TEXT),
    optional("resourceId", TEXT),
    optional("expectedRunId", TEXT),
    optional("clearPendingSignals", FLAG),
]);
/// `cancel-queued-messages`.
pub(crate) static CANCEL: Shape =
    Shape::Fields(&[required("threadId", TEXT), optional("resourceId", TEXT), required("signalIds", TEXTS)]);
/// `promote-queued-message`.
pub(crate) static PROMOTE: Shape = Shape::Fields(&[
    required("threadId", TEXT),
    optional("resourceId", TEXT),
    required("signalId", TEXT),
    optional("to", &Shape::OneOf(&["run", "front"])),
]);
/// `queued-messages/:signalId`.
pub(crate) static EDIT: Shape = Shape::Fields(&[
    required("threadId", TEXT),
    optional("resourceId", TEXT),
    optional("contents", &CONTENTS),
    optional("attributes", &ATTRIBUTES),
]);
/// `threads/pending`.
pub(crate) const THREAD_QUERY: &[Field] = &[required("threadId", TEXT), optional("resourceId", TEXT), CONTEXT];
/// `send-tool-approval`.
pub(crate) static TOOL_APPROVAL: Shape = Shape::Fields(&[
    required("resourceId", TEXT),
    required("threadId", TEXT),
    required("toolCallId", TEXT),
    required("approved", FLAG),
    optional("reason", TEXT),
    optional("declineContext", &Shape::Fields(&[optional("reason", TEXT), optional("message", TEXT)])),
    optional("resumeData", ANY),
    optional("messages", &Shape::List(OBJECT)),
    optional("streamOptions", &STREAM_OPTIONS),
    optional("requestContext", OBJECT),
]);

/// `POST …/notifications` (NOTIF-121). Whether `resourceId` must be there depends on the caller too.
pub(crate) static NOTIFICATION: Shape = Shape::Fields(&[
    required("source", TEXT),
    required("kind", TEXT),
    required("summary", TEXT),
    optional("resourceId", TEXT),
    optional("threadId", TEXT),
    optional("priority", &Shape::OneOf(&["low", "medium", "high", "urgent"])),
    optional("payload", ANY),
    optional("sourceId", TEXT),
    optional("dedupeKey", TEXT),
    optional("dedupeWindowMs", &Shape::Whole(0)),
    optional("coalesceKey", TEXT),
    optional("attributes", &ATTRIBUTES),
    optional("metadata", OBJECT),
    optional("ifActive", &IF_ACTIVE),
    optional("ifIdle", &IF_IDLE),
    optional("requestContext", OBJECT),
]);
/// `…/notifications/:notificationId/seen` and its like.
pub(crate) static NOTIFICATION_MARK: Shape = Shape::Fields(&[required("threadId", TEXT), optional("resourceId", TEXT)]);
/// `GET …/notifications`. `status` and `priority` are lists, comma-separated.
pub(crate) const NOTIFICATIONS_QUERY: &[Field] = &[
    optional("threadId", TEXT),
    RESOURCE_ID,
    optional("status", TEXT),
    optional("priority", TEXT),
    optional("source", TEXT),
    optional("search", TEXT),
    optional("limit", &Shape::Whole(0)),
    optional("cursor", TEXT),
    CONTEXT,
];

// Tools (HTTP §7).

/// `execute`.
pub(crate) static EXECUTE: Shape = Shape::Fields(&[required("data", ANY), optional("requestContext", OBJECT)]);

// Memory (HTTP §8).

/// `POST /memory/threads`.
pub(crate) static NEW_THREAD: Shape = Shape::Fields(&[
    optional("resourceId", TEXT),
    optional("threadId", TEXT),
    optional("title", TEXT),
    optional("metadata", OBJECT),
]);
/// `PATCH /memory/threads/:threadId`.
pub(crate) static PATCH_THREAD: Shape =
    Shape::Fields(&[optional("title", TEXT), optional("metadata", OBJECT), optional("resourceId", TEXT)]);
/// `…/clone`.
pub(crate) static CLONE_THREAD: Shape = Shape::Fields(&[
    optional("newThreadId", TEXT),
    optional("resourceId", TEXT),
    optional("title", TEXT),
    optional("metadata", OBJECT),
    optional(
        "options",
        &Shape::Fields(&[
            optional("messageLimit", &Shape::Whole(0)),
            optional(
                "messageFilter",
                &Shape::Fields(&[
                    optional("startDate", TEXT),
                    optional("endDate", TEXT),
                    optional("messageIds", TEXTS),
                ]),
            ),
        ]),
    ),
]);
/// `…/transfer`.
pub(crate) static TRANSFER: Shape = Shape::Fields(&[required("resourceId", TEXT)]);
static MESSAGE_ID: Shape = Shape::Either(&[TEXT, &Shape::Fields(&[required("id", TEXT)])]);
/// `/memory/messages/delete`.
pub(crate) static DELETE_MESSAGES: Shape = Shape::Fields(&[required(
    "messageIds",
    &Shape::Either(&[TEXT, &Shape::List(&MESSAGE_ID), &Shape::Fields(&[required("id", TEXT)])]),
)]);
/// `/memory/save-messages`.
pub(crate) static SAVE_MESSAGES: Shape = Shape::Fields(&[required(
    "messages",
    &Shape::List(&Shape::Fields(&[
        required("threadId", TEXT),
        optional("resourceId", TEXT),
        required("role", &Shape::OneOf(&["user", "assistant", "system", "signal"])),
        required("content", &Shape::Either(&[TEXT, OBJECT])),
        optional("id", TEXT),
        optional("createdAt", TEXT),
        optional("type", TEXT),
    ])),
)]);
/// `POST …/working-memory`.
pub(crate) static WORKING_MEMORY: Shape =
    Shape::Fields(&[required("workingMemory", TEXT), optional("resourceId", TEXT)]);

static ORDER_BY: Shape = Shape::Either(&[
    &Shape::OneOf(&["createdAt", "updatedAt"]),
    &Shape::Fields(&[
        optional("field", &Shape::OneOf(&["createdAt", "updatedAt"])),
        optional("direction", &Shape::OneOf(&["ASC", "DESC"])),
    ]),
]);
static FILTER: Shape = Shape::Fields(&[
    optional(
        "dateRange",
        &Shape::Fields(&[
            optional("start", TEXT),
            optional("end", TEXT),
            optional("startExclusive", FLAG),
            optional("endExclusive", FLAG),
        ]),
    ),
    optional("roles", &Shape::List(&Shape::OneOf(&["user", "assistant", "system", "signal"]))),
    optional("metadata", OBJECT),
]);
static INCLUDE: Shape = Shape::List(&Shape::Fields(&[
    required("id", TEXT),
    optional("threadId", TEXT),
    optional("withPreviousMessages", &Shape::Whole(0)),
    optional("withNextMessages", &Shape::Whole(0)),
]));
/// `perPage`: a number, or `false` for all.
static PER_PAGE: Shape = Shape::Either(&[&Shape::Whole(0), FLAG]);

const CONTEXT: Field = optional("requestContext", TEXT);
const AGENT_ID: Field = optional("agentId", TEXT);
const RESOURCE_ID: Field = optional("resourceId", TEXT);

/// No parameters but the request context.
pub(crate) const CONTEXT_QUERY: &[Field] = &[CONTEXT];
/// `GET /agents`.
pub(crate) const AGENTS_QUERY: &[Field] = &[optional("partial", FLAG), CONTEXT];
/// `GET /agents/:agentId`.
pub(crate) const AGENT_QUERY: &[Field] =
    &[optional("status", &Shape::OneOf(&["draft", "published"])), optional("versionId", TEXT), CONTEXT];
/// `GET /agents/:agentId/suspended-runs`.
pub(crate) const SUSPENDED_QUERY: &[Field] = &[
    optional("threadId", TEXT),
    RESOURCE_ID,
    optional("fromDate", TEXT),
    optional("toDate", TEXT),
    optional("perPage", &Shape::Whole(1)),
    optional("page", PAGE),
    CONTEXT,
];
/// Routes of one memory thread.
pub(crate) const MEMORY_QUERY: &[Field] = &[AGENT_ID, RESOURCE_ID, CONTEXT];
/// `GET /memory/threads`.
pub(crate) const THREADS_QUERY: &[Field] = &[
    AGENT_ID,
    RESOURCE_ID,
    optional("metadata", OBJECT),
    optional("page", PAGE),
    optional("perPage", &PER_PAGE),
    optional("orderBy", &ORDER_BY),
    optional("sortDirection", &Shape::OneOf(&["ASC", "DESC"])),
    CONTEXT,
];
/// `GET /memory/threads/:threadId/messages`.
pub(crate) const MESSAGES_QUERY: &[Field] = &[
    AGENT_ID,
    RESOURCE_ID,
    optional("page", PAGE),
    optional("perPage", &PER_PAGE),
    optional("orderBy", &ORDER_BY),
    optional("filter", &FILTER),
    optional("include", &INCLUDE),
    optional("includeSystemReminders", FLAG),
    CONTEXT,
];
/// `GET /memory/search`.
pub(crate) const SEARCH_QUERY: &[Field] = &[
    AGENT_ID,
    RESOURCE_ID,
    optional("searchQuery", TEXT),
    optional("threadId", TEXT),
    optional("limit", &Shape::Whole(1)),
    CONTEXT,
];
