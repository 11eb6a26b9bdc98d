//! Every built-in processor, named in an agent's file and at work in a server (PROC §10, CLI-012).

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};

use crate::{
    kill::request,
    support::{Project, Server},
};

/// The agents: what stands in the front matter, and the instructions.
const AGENTS: [(&str, &str, &str); 21] = [
    ("agents-md", "inputProcessors:\n  - agents-md-injector: { maxTokens: 500, ignored: [other/AGENTS.md] }", "Help."),
    ("history", "inputProcessors:\n  - message-history: { lastMessages: 2 }", "Help."),
    ("filter", "inputProcessors:\n  - memory-input-filter", "Help."),
    ("working", "inputProcessors:\n  - working-memory: { scope: thread, template: '# My own template' }", "Help."),
    ("limiter", "inputProcessors:\n  - token-limiter: { limit: 200, trim: contiguous }", "Help."),
    ("short", "outputProcessors:\n  - token-limiter: { limit: 3, strategy: abort }", "Help."),
    ("tool-calls", "inputProcessors:\n  - tool-call-filter: { exclude: [read] }", "Help."),
    ("unicode", "inputProcessors:\n  - unicode-normalizer: { trim: false }", "Help."),
    (
        "structured",
        "outputProcessors:\n  - structured-output:\n      model: scripted/scripted\n      schema: { type: object, required: [city] }",
        "Help.",
    ),
    ("batch", "outputProcessors:\n  - batch-parts: { size: 100 }", "Help."),
    ("retry", "errorProcessors:\n  - stream-error-retry: { maxRetries: 1, delayMs: 1 }", "Help."),
    ("prefill", "errorProcessors:\n  - prefill-error-handler", "Help."),
    ("regex", "outputProcessors:\n  - regex-filter: { presets: [email], strategy: redact }", "Help."),
    (
        "scrubber",
        "outputProcessors:\n  - system-prompt-scrubber: { words: 5, replacement: '[hidden]' }",
        "Never tell anybody the code of the safe.",
    ),
    ("moderated", "inputProcessors:\n  - moderation: { model: scripted/scripted, threshold: 0.8 }", "Help."),
    ("private", "inputProcessors:\n  - pii-detector: { model: scripted/scripted, strategy: redact }", "Help."),
    ("injected", "inputProcessors:\n  - prompt-injection-detector: { model: scripted/scripted }", "Help."),
    ("english", "inputProcessors:\n  - language-detector: { model: scripted/scripted, languages: [en] }", "Help."),
    ("costly", "inputProcessors:\n  - token-cost-control: { limit: 1, scope: thread }", "Help."),
    (
        "trailing",
        "inputProcessors:\n  - trailing-assistant-guard: { text: '[[say guarded]]', providers: [scripted] }",
        "Help.",
    ),
    ("task-of-another", "inputProcessors: [unicode-normalizer]", "Help."),
];

/// A model elsewhere that numbers its answers.
struct Elsewhere {
    url: String,
    asked: Arc<AtomicUsize>,
}

impl Elsewhere {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { break };
                let mut reader = BufReader::new(stream);
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
                        break;
                    }
                    if let Some((name, value)) = line.split_once(':')
                        && name.eq_ignore_ascii_case("content-length")
                    {
                        length = value.trim().parse().unwrap_or(0);
                    }
                }
                let _ = reader.read_exact(&mut vec![0; length]);
                let text = format!("answer {}", count.fetch_add(1, Ordering::SeqCst) + 1);
                let message = json!({"role": "assistant", "content": text});
                let whole = json!({
                    "id": "c", "object": "chat.completion", "created": 0, "model": "m",
                    "choices": [{"index": 0, "message": message, "delta": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                });
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{whole}",
                    whole.to_string().len()
                );
                let _ = reader.get_mut().write_all(answer.as_bytes());
            }
        });
        Self { url, asked }
    }
}

struct Served<'a> {
    address: &'a str,
}

impl Served<'_> {
    fn post(&self, path: &str, body: &Value) -> String {
        let (status, answer) =
            request(self.address, "POST", &format!("/api/agents/{path}"), &body.to_string()).expect("an answer");
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// The answer to messages on a thread of the agent's own.
    fn ask(&self, agent: &str, messages: &Value) -> Value {
        let memory = json!({"thread": format!("thread of {agent}"), "resource": "ann"});
        let answer = self.post(&format!("{agent}/generate"), &json!({"messages": messages, "memory": memory}));
        serde_json::from_str(&answer).unwrap()
    }

    fn text(&self, agent: &str, message: &str) -> String {
        self.ask(agent, &json!(message))["text"].as_str().unwrap_or_default().to_owned()
    }

    /// What the model reads: role and text of each turn.
    fn dump(&self, agent: &str, messages: &Value) -> Vec<(String, String)> {
        let text = self.ask(agent, messages)["text"].as_str().unwrap().to_owned();
        let turns: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{agent}: {text}"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        turns.iter().map(|turn| (text(&turn["role"]), text(&turn["text"]))).collect()
    }

    /// The chunks of a stream.
    fn stream(&self, agent: &str, message: &str) -> Vec<Value> {
        let memory = json!({"thread": format!("stream of {agent}"), "resource": "ann"});
        let answer = self.post(&format!("{agent}/stream"), &json!({"messages": message, "memory": memory}));
        let lines = answer.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

fn roles(turns: &[(String, String)]) -> Vec<&str> {
    turns.iter().map(|(role, _)| role.as_str()).collect()
}

/// A finished call of a tool that read a file, and a question.
fn after_reading(path: &str) -> Value {
    json!([
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": [{"type": "tool-call", "toolCallId": "c1", "toolName": "read", "input": {"path": path}}]},
        {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c1", "toolName": "read",
            "output": {"type": "text", "value": "contents"}}]},
        {"role": "user", "content": "[[dump]]"},
    ])
}

fn project(elsewhere: &Elsewhere) -> Project {
    let project = Project::empty();
    for (name, lists, instructions) in AGENTS {
        let text = format!("---\nmodel: {{ id: scripted/scripted, maxRetries: 0 }}\n{lists}\n---\n{instructions}\n");
        project.file(&format!("agents/{name}.md"), &text);
    }
    for (name, list) in [
        ("cached", "response-cache: { entries: 8, ttlMs: 60000 }"),
        ("selecting", "model-selection: { model: scripted/scripted, fromTokens: 20 }"),
    ] {
        let model = format!("{{ id: custom/m, url: '{}', maxRetries: 0 }}", elsewhere.url);
        let text = format!("---\nmodel: {model}\ninputProcessors:\n  - {list}\n---\nHelp.\n");
        project.file(&format!("agents/{name}.md"), &text);
    }
    project.file("AGENTS.md", "Rules of the root.\n");
    project.file("other/AGENTS.md", "Ignored rules.\n");
    project
}

fn serve(project: &Project) -> (Server, String) {
    let server = project.serve(&["serve"]);
    let address = server.url().strip_prefix("http://").unwrap().to_owned();
    (server, address)
}

#[test]
fn proc_010_cli_012_every_built_in_works_from_a_file_by_its_name() {
    let elsewhere = Elsewhere::start();
    let project = project(&elsewhere);
    let (_server, address) = serve(&project);
    let served = Served { address: &address };

    // The reminder is the newest that the model reads, and what it acknowledges.
    let shown = served.ask("agents-md", &after_reading("other/x.ts"))["text"].as_str().unwrap().to_owned();
    assert!(shown.contains("dynamic-agents-md") && shown.contains(">Rules of the root.<"), "{shown}");
    assert!(!shown.contains("Ignored"), "{shown}");

    for text in ["one", "two", "three"] {
        served.text("history", text);
    }
    assert_eq!(roles(&served.dump("history", &json!("[[dump]]"))), ["system", "user", "assistant", "user"]);

    served.text("filter", "one");
    let resent = json!([{"role": "user", "content": "one"}, {"role": "assistant", "content": "ack: one"},
        {"role": "user", "content": "[[dump]]"}]);
    assert_eq!(roles(&served.dump("filter", &resent)), ["system", "user", "assistant", "user"], "nothing twice");

    let turns = served.dump("working", &json!("[[dump]]"));
    assert!(turns.iter().any(|(role, text)| role == "system" && text.contains("# My own template")), "{turns:?}");
    let tools = served.text("working", "[[tools]]");
    assert_eq!(tools, "updateWorkingMemory");

    let long = "word ".repeat(400);
    let messages = json!([{"role": "user", "content": long}, {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "[[dump]]"}]);
    let turns = served.dump("limiter", &messages);
    assert!(!turns.iter().any(|(_, text)| text.contains("word word")) && turns.len() >= 2, "{turns:?}");
    let stopped = served.ask("short", &json!("[[say twelve words are more than three tokens, that much is clear]]"));
    assert_eq!(stopped["tripwire"]["processorId"], "token-limiter", "{stopped}");

    // Calls of earlier runs are hidden; those of the run under way are not.
    let later = |agent: &str| {
        assert!(roles(&served.dump(agent, &after_reading("x.ts"))).contains(&"tool"), "{agent}");
        served.dump(agent, &json!("[[dump]]"))
    };
    let turns = later("tool-calls");
    assert!(!roles(&turns).contains(&"tool"), "{turns:?}");
    let turns = later("task-of-another");
    assert!(roles(&turns).contains(&"tool"), "without the filter it is there: {turns:?}");

    let turns = served.dump("unicode", &json!("\u{fb01}ne \t \u{ff21} [[dump]]"));
    assert_eq!(turns.last().unwrap().1, "fine A [[dump]]");

    let answer = served.ask("structured", &json!("[[say {\"city\": \"Oslo\"}]]"));
    assert_eq!(answer["object"], json!({"city": "Oslo"}), "{answer}");

    let deltas = |agent: &str| {
        let chunks = served.stream(agent, "[[slow 6 1]]");
        chunks.iter().filter(|chunk| chunk["type"] == "text-delta").count()
    };
    assert_eq!((deltas("batch"), deltas("history")), (1, 6));

    let chunks = served.stream("retry", "[[fail 503 busy]]");
    let reasons: Vec<&Value> =
        chunks.iter().filter(|c| c["type"] == "step-finish").map(|c| &c["payload"]["stepResult"]["reason"]).collect();
    assert_eq!(reasons, ["retry", "error"]);
    let text = served.text("prefill", "[[fail 400 This model does not support assistant message prefill.]]");
    assert!(text.starts_with("ack: "), "with a reminder it goes on: {text:?}");

    assert_eq!(served.text("regex", "[[say write to ann@example.com now]]"), "write to [email] now");
    assert_eq!(served.text("scrubber", "[[say So: never tell anybody the code of the safe.]]"), "So: [hidden]");

    // The judge answers what the text makes it say.
    let verdict = |category: &str, score: f64| {
        format!("[[say {}]]", json!({"findings": [{"category": category, "score": score}]}))
    };
    for (agent, id, category) in [
        ("moderated", "moderation", "violence"),
        ("injected", "prompt-injection-detector", "injection"),
        ("english", "language-detector", "other-language"),
    ] {
        let stopped = served.ask(agent, &json!(verdict(category, 0.9)));
        assert_eq!((&stopped["tripwire"]["processorId"], &stopped["text"]), (&json!(id), &json!("")), "{stopped}");
        let passed = served.ask(agent, &json!("[[say {\"findings\": []}]]"));
        assert!(passed["tripwire"].is_null(), "{passed}");
    }
    let passed = served.ask("moderated", &json!(verdict("violence", 0.7)));
    assert!(passed["tripwire"].is_null(), "below the threshold: {passed}");
    let secret = "[[say {\"findings\": [{\"category\": \"name\", \"score\": 1, \"passages\": [\"Ann Lee\"]}]}]]";
    let redacted = served.text("private", &format!("Ann Lee {secret}"));
    assert!(redacted.contains("[name]") && !redacted.contains("Ann"), "{redacted}");

    assert_eq!(served.text("costly", "one"), "ack: one");
    let stopped = served.ask("costly", &json!("two"));
    assert_eq!(stopped["tripwire"]["processorId"], "token-cost-control", "{stopped}");

    let open = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I am"}]);
    assert_eq!(served.ask("trailing", &open)["text"], "guarded");

    let ask = |thread: &str| {
        let body = json!({"messages": "same", "memory": {"thread": thread, "resource": "ann"}});
        let answer: Value = serde_json::from_str(&served.post("cached/generate", &body)).unwrap();
        answer["text"].clone()
    };
    assert_eq!((ask("a"), ask("b")), (json!("answer 1"), json!("answer 1")), "replayed");
    assert_eq!(elsewhere.asked.load(Ordering::SeqCst), 1);
    assert_eq!(served.text("selecting", "hi"), "answer 2", "a short conversation");
    let long = format!("{} [[say the other model]]", "word ".repeat(100));
    assert_eq!(served.text("selecting", &long), "the other model", "a long one");
}

#[test]
fn proc_010_cli_012_wrong_options_are_refused_with_file_line_field_and_reason() {
    let project = Project::with_agent();
    let needed = |name: &str| match name {
        "language-detector" => "model: scripted/scripted, languages: [en], ",
        "moderation" | "pii-detector" | "prompt-injection-detector" | "model-selection" => "model: scripted/scripted, ",
        "regex-filter" => "presets: [email], ",
        "structured-output" => "model: scripted/scripted, schema: { type: object }, ",
        "token-limiter" | "token-cost-control" => "limit: 10, ",
        _ => "",
    };
    let names = bugle::processor::catalog::NAMES;
    for name in names {
        let list = format!("inputProcessors:\n  - unicode-normalizer\n  - {name}: {{ {}nonsense: 1 }}", needed(name));
        let list = if name == "unicode-normalizer" {
            list.replace("  - unicode-normalizer\n", "  - batch-parts\n")
        } else {
            list
        };
        project.file(&format!("agents/{name}.md"), &format!("---\nmodel: scripted/scripted\n{list}\n---\nHelp.\n"));
    }
    for (name, options, _) in VALUES {
        let list = format!("outputProcessors:\n  - {name}: {{ {options} }}");
        project
            .file(&format!("agents/value-{name}.md"), &format!("---\nmodel: scripted/scripted\n{list}\n---\nHelp.\n"));
    }
    let refused = project.run(&["serve", "--check"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for name in names {
        let said = format!("agents/{name}.md:5:5: inputProcessors.{name}: unknown field `nonsense`");
        assert!(refused.stderr.contains(&said), "{said}\n{}", refused.stderr);
    }
    for (name, _, reason) in VALUES {
        let said = format!("agents/value-{name}.md:4:5: outputProcessors.{name}: {reason}");
        assert!(refused.stderr.contains(&said), "{said}\n{}", refused.stderr);
    }
}

/// Options with wrong values, and what is said of them.
const VALUES: [(&str, &str, &str); 11] = [
    ("batch-parts", "size: many", "invalid type: string \"many\""),
    ("message-history", "lastMessages: true", "lastMessages must be a whole number from 0, or false"),
    ("model-selection", "model: nowhere/x", ""),
    (
        "moderation",
        "model: scripted/scripted, strategy: shout",
        "strategy: \"shout\" must be block, warn, filter or redact",
    ),
    ("pii-detector", "strategy: block", "model: is needed, the name of a model"),
    ("regex-filter", "rules: [{ name: x, pattern: '(' }]", "rules: x: the pattern is wrong"),
    ("structured-output", "model: scripted/scripted", "schema: is needed, a JSON Schema"),
    ("system-prompt-scrubber", "strategy: hide", "strategy: \"hide\" must be block, redact or warn"),
    ("token-cost-control", "limit: 0", "limit: is needed, a number above 0"),
    ("token-limiter", "limit: 5, trim: all", "trim: \"all\" must be best-fit or contiguous"),
    ("working-memory", "template: x, schema: {}", "template, schema: working memory has one of them, not both"),
];
