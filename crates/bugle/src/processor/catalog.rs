//! Built-in processors by name, for configuration files (PROC §10, CLI-and-files `processors`).

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, de::DeserializeOwned};

use super::{
    SharedProcessor,
    builtin::{
        AgentsMd, BatchParts, Classifier, CostScope, MemoryInputFilter, MessageHistory, OnMatch, OnOutputLimit,
        PrefillErrorHandler, Preset, RegexFilter, ResponseCache, Rule, Strategy, StreamErrorRetry,
        StructuredOutputProcessor, SystemPromptScrubber, TokenCostControl, TokenLimiter, ToolCallFilter,
        TrailingAssistantGuard, Trim, UnicodeNormaliser, WorkingMemory, preset, preset_names,
    },
};
use crate::{
    json::{Object, Value},
    memory::{LastMessages, Scope, WorkingMemoryOptions},
    model::SharedModel,
};

/// The names that [`make`] knows.
pub const NAMES: [&str; 21] = [
    "agents-md-injector",
    "batch-parts",
    "language-detector",
    "memory-input-filter",
    "message-history",
    "model-selection",
    "moderation",
    "pii-detector",
    "prefill-error-handler",
    "prompt-injection-detector",
    "regex-filter",
    "response-cache",
    "stream-error-retry",
    "structured-output",
    "system-prompt-scrubber",
    "token-cost-control",
    "token-limiter",
    "tool-call-filter",
    "trailing-assistant-guard",
    "unicode-normalizer",
    "working-memory",
];

/// What a configuration file offers to processors.
pub struct Surroundings<'a> {
    /// The directory that relative paths and instruction files are taken from.
    pub root: PathBuf,
    /// The model of a name, for judges. The error says what is wrong with the name.
    pub model: &'a dyn Fn(&str) -> Result<SharedModel, String>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct AgentsMdOptions {
    enabled: Option<bool>,
    root: Option<PathBuf>,
    max_tokens: Option<usize>,
    reminder_text: Option<String>,
    ignored: Vec<PathBuf>,
    nearest_only: bool,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct JudgeOptions {
    model: Option<String>,
    strategy: Option<String>,
    threshold: Option<f64>,
    last_message_only: bool,
    error_strategy: Option<String>,
    languages: Vec<String>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RegexOptions {
    presets: Option<Vec<String>>,
    rules: Vec<RuleOptions>,
    strategy: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RuleOptions {
    name: String,
    pattern: String,
    #[serde(default = "default_length")]
    max_length: usize,
}

fn default_length() -> usize {
    128
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct LimiterOptions {
    limit: Option<usize>,
    trim: Option<String>,
    strategy: Option<String>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct CostOptions {
    limit: Option<f64>,
    window_ms: Option<u64>,
    scope: Option<String>,
    input_price: Option<f64>,
    output_price: Option<f64>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct CacheOptions {
    entries: Option<usize>,
    ttl_ms: Option<u64>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RetryOptions {
    max_retries: Option<u32>,
    delay_ms: Option<u64>,
    matchers: Vec<String>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct UnicodeOptions {
    collapse_whitespace: Option<bool>,
    trim: Option<bool>,
    strip_control_chars: Option<bool>,
    preserve_emojis: Option<bool>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ScrubberOptions {
    words: Option<usize>,
    strategy: Option<String>,
    replacement: Option<String>,
    texts: Vec<String>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GuardOptions {
    text: Option<String>,
    providers: Option<Vec<String>>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct SelectionOptions {
    model: Option<String>,
    from_tokens: Option<usize>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct StructuredOptions {
    model: Option<String>,
    schema: Option<Value>,
    instructions: Option<String>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FilterOptions {
    exclude: Option<Vec<String>>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct BatchOptions {
    size: Option<usize>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct HistoryOptions {
    last_messages: Option<LastMessages>,
    filter_incomplete_tool_calls: Option<bool>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct WorkingOptions {
    scope: Scope,
    template: Option<String>,
    schema: Option<Value>,
    read_only: bool,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct NoOptions {}

/// The built-in processor of this name with these options; names and options as in [`NAMES`] and `docs/processors.md`.
///
/// ```
/// use bugle::{json::json, processor::catalog::{Surroundings, make}};
/// let none = |_: &str| Err("no models here".to_owned());
/// let around = Surroundings { root: ".".into(), model: &none };
/// let limiter = make("token-limiter", json!({"limit": 8000}).as_object().unwrap(), &around)?;
/// assert_eq!(limiter.id(), "token-limiter");
/// assert!(make("token-limiter", json!({"limt": 8000}).as_object().unwrap(), &around).is_err());
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// What is wrong, for the person who wrote the file; of an unknown name the known ones.
pub fn make(name: &str, options: &Object, around: &Surroundings<'_>) -> Result<SharedProcessor, String> {
    Ok(match name {
        "agents-md-injector" => {
            let options: AgentsMdOptions = read(options)?;
            let root = around.root.join(options.root.unwrap_or_default());
            let mut injector = AgentsMd::new(root).ignored(options.ignored);
            if options.enabled == Some(false) {
                injector = injector.enabled_if(|_| false);
            }
            if let Some(tokens) = options.max_tokens {
                injector = injector.max_tokens(tokens);
            }
            if let Some(text) = options.reminder_text {
                injector = injector.reminder_text(text);
            }
            Arc::new(if options.nearest_only { injector.nearest_only() } else { injector })
        }
        "batch-parts" => {
            let size = read::<BatchOptions>(options)?.size.unwrap_or(5);
            check(size > 0, || format!("size: {size} must be 1 or more"))?;
            Arc::new(BatchParts::new(size))
        }
        "moderation" | "pii-detector" | "prompt-injection-detector" | "language-detector" => {
            judge(name, options, around)?
        }
        "memory-input-filter" => {
            read::<NoOptions>(options)?;
            Arc::new(MemoryInputFilter)
        }
        "message-history" => {
            let options: HistoryOptions = read(options)?;
            let mut history = MessageHistory::new();
            if let Some(last) = options.last_messages {
                history = history.last_messages(last.count());
            }
            Arc::new(match options.filter_incomplete_tool_calls {
                Some(filter) => history.filter_incomplete_tool_calls(filter),
                None => history,
            })
        }
        "model-selection" => {
            let options: SelectionOptions = read(options)?;
            let model = needed_model(options.model.as_deref(), around)?;
            let from = options.from_tokens.unwrap_or(0);
            Arc::new(super::builtin::ModelSelection::for_long_conversations(from, model))
        }
        "prefill-error-handler" => {
            read::<NoOptions>(options)?;
            Arc::new(PrefillErrorHandler)
        }
        "regex-filter" => regex_filter(options)?,
        "response-cache" => {
            let options: CacheOptions = read(options)?;
            let keep = Duration::from_millis(options.ttl_ms.unwrap_or(300_000));
            Arc::new(ResponseCache::new(options.entries.unwrap_or(256), keep))
        }
        "stream-error-retry" => {
            let options: RetryOptions = read(options)?;
            let default = StreamErrorRetry::default();
            Arc::new(StreamErrorRetry {
                max_retries: options.max_retries.unwrap_or(default.max_retries),
                delay: options.delay_ms.map_or(default.delay, Duration::from_millis),
                matchers: options.matchers,
            })
        }
        "structured-output" => {
            let options: StructuredOptions = read(options)?;
            let model = needed_model(options.model.as_deref(), around)?;
            let schema = options.schema.ok_or("schema: is needed, a JSON Schema")?;
            check(schema.is_object(), || format!("schema: {schema} must be an object, a JSON Schema"))?;
            let reader = StructuredOutputProcessor::new(model, schema);
            Arc::new(match options.instructions {
                Some(text) => reader.instructions(text),
                None => reader,
            })
        }
        "system-prompt-scrubber" => {
            let options: ScrubberOptions = read(options)?;
            let default = SystemPromptScrubber::default();
            let words = options.words.unwrap_or(default.words);
            check(words >= 2, || format!("words: {words} must be 2 or more"))?;
            Arc::new(SystemPromptScrubber {
                words,
                on_match: on_match(options.strategy.as_deref())?,
                replacement: options.replacement.unwrap_or(default.replacement),
                texts: options.texts,
            })
        }
        "token-cost-control" => {
            let options: CostOptions = read(options)?;
            let limit = options
                .limit
                .filter(|limit| *limit > 0.0 && limit.is_finite())
                .ok_or("limit: is needed, a number above 0")?;
            let window = Duration::from_millis(options.window_ms.unwrap_or(86_400_000));
            let (input, output) = (options.input_price.unwrap_or(1.0), options.output_price.unwrap_or(1.0));
            check(!window.is_zero(), || "windowMs: 0 must be 1 or more".to_owned())?;
            for (name, price) in [("inputPrice", input), ("outputPrice", output)] {
                check(price >= 0.0 && price.is_finite(), || format!("{name}: {price} must be a number from 0"))?;
            }
            let scope = match options.scope.as_deref() {
                None | Some("resource") => CostScope::Resource,
                Some("thread") => CostScope::Thread,
                Some("run") => CostScope::Run,
                Some(other) => return Err(format!("scope: {other:?} must be resource, thread or run")),
            };
            Arc::new(TokenCostControl::priced(limit, window, input, output).per(scope))
        }
        "token-limiter" => {
            let options: LimiterOptions = read(options)?;
            let limit = options.limit.filter(|limit| *limit > 0).ok_or("limit: is needed, a number of tokens")?;
            let trim = match options.trim.as_deref() {
                None | Some("best-fit") => Trim::BestFit,
                Some("contiguous") => Trim::Contiguous,
                Some(other) => return Err(format!("trim: {other:?} must be best-fit or contiguous")),
            };
            let output = match options.strategy.as_deref() {
                None | Some("truncate") => OnOutputLimit::Truncate,
                Some("abort") => OnOutputLimit::Abort,
                Some(other) => return Err(format!("strategy: {other:?} must be truncate or abort")),
            };
            Arc::new(TokenLimiter::new(limit).trim(trim).on_output_limit(output))
        }
        "tool-call-filter" => Arc::new(ToolCallFilter { exclude: read::<FilterOptions>(options)?.exclude }),
        "trailing-assistant-guard" => {
            let options: GuardOptions = read(options)?;
            let default = TrailingAssistantGuard::default();
            Arc::new(TrailingAssistantGuard {
                text: options.text.unwrap_or(default.text),
                providers: options.providers.unwrap_or(default.providers),
            })
        }
        "unicode-normalizer" => {
            let options: UnicodeOptions = read(options)?;
            let default = UnicodeNormaliser::default();
            Arc::new(UnicodeNormaliser {
                collapse_whitespace: options.collapse_whitespace.unwrap_or(default.collapse_whitespace),
                trim: options.trim.unwrap_or(default.trim),
                strip_control_chars: options.strip_control_chars.unwrap_or(default.strip_control_chars),
                preserve_emojis: options.preserve_emojis.unwrap_or(default.preserve_emojis),
            })
        }
        "working-memory" => {
            let WorkingOptions { scope, template, schema, read_only } = read(options)?;
            if template.is_some() && schema.is_some() {
                return Err("template, schema: working memory has one of them, not both".to_owned());
            }
            if let Some(schema) = &schema {
                check(schema.is_object(), || format!("schema: {schema} must be an object, a JSON Schema"))?;
            }
            Arc::new(WorkingMemory::new(WorkingMemoryOptions { enabled: true, scope, template, schema, read_only }))
        }
        other => return Err(format!("there is no processor {other}; known are {}", NAMES.join(", "))),
    })
}

/// An option that is out of its range is refused, with the reason.
fn check(holds: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(reason()) }
}

fn read<T: DeserializeOwned>(options: &Object) -> Result<T, String> {
    serde_json::from_value(Value::Object(options.clone())).map_err(|error| error.to_string())
}

fn needed_model(name: Option<&str>, around: &Surroundings<'_>) -> Result<SharedModel, String> {
    (around.model)(name.ok_or("model: is needed, the name of a model")?)
}

fn judge(name: &str, options: &Object, around: &Surroundings<'_>) -> Result<SharedProcessor, String> {
    let options: JudgeOptions = read(options)?;
    let model = needed_model(options.model.as_deref(), around)?;
    check(name == "language-detector" || options.languages.is_empty(), || {
        format!("languages: {name} has none; they are an option of language-detector")
    })?;
    let preset = match name {
        "moderation" => Preset::Moderation,
        "pii-detector" => Preset::Pii,
        "prompt-injection-detector" => Preset::PromptInjection,
        _ if options.languages.is_empty() => return Err("languages: is needed, a list such as [en, de]".to_owned()),
        _ => Preset::Language(options.languages),
    };
    let mut classifier = Classifier::preset(preset, model);
    if let Some(strategy) = options.strategy {
        classifier = classifier.strategy(match strategy.as_str() {
            "block" => Strategy::Block,
            "warn" => Strategy::Warn,
            "filter" => Strategy::Filter,
            "redact" | "rewrite" => Strategy::Redact,
            other => return Err(format!("strategy: {other:?} must be block, warn, filter or redact")),
        });
    }
    if let Some(threshold) = options.threshold {
        check((0.0..=1.0).contains(&threshold), || format!("threshold: {threshold} must be from 0 to 1"))?;
        classifier = classifier.threshold(threshold);
    }
    if options.last_message_only {
        classifier = classifier.last_message_only();
    }
    match options.error_strategy.as_deref() {
        None => {}
        Some("strict") => classifier = classifier.strict(true),
        Some("warn") => classifier = classifier.strict(false),
        Some(other) => return Err(format!("errorStrategy: {other:?} must be strict or warn")),
    }
    Ok(Arc::new(classifier))
}

fn on_match(strategy: Option<&str>) -> Result<OnMatch, String> {
    match strategy {
        None | Some("redact") => Ok(OnMatch::Redact),
        Some("block") => Ok(OnMatch::Block),
        Some("warn") => Ok(OnMatch::Warn),
        Some(other) => Err(format!("strategy: {other:?} must be block, redact or warn")),
    }
}

fn regex_filter(options: &Object) -> Result<SharedProcessor, String> {
    let options: RegexOptions = read(options)?;
    let mut rules = Vec::new();
    for name in options.presets.unwrap_or_default() {
        let known = || format!("presets: there is no {name:?}; known are {}", preset_names().join(", "));
        rules.push(preset(&name).ok_or_else(known)?);
    }
    for rule in options.rules {
        check((1..=4096).contains(&rule.max_length), || {
            format!("rules: {}: maxLength: {} must be from 1 to 4096", rule.name, rule.max_length)
        })?;
        let made = Rule::new(rule.name.clone(), &rule.pattern, rule.max_length);
        rules.push(made.map_err(|error| format!("rules: {}: {error}", rule.name))?);
    }
    if rules.is_empty() {
        return Err("presets or rules: one of them is needed".to_owned());
    }
    Ok(Arc::new(RegexFilter::new("regex-filter", rules, on_match(options.strategy.as_deref())?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{json::json, model::ScriptedModel};

    #[test]
    fn cli_012_options_out_of_range_are_refused_with_field_and_reason() {
        let model = |_: &str| Ok(Arc::new(ScriptedModel::new()) as SharedModel);
        let around = Surroundings { root: "/repo".into(), model: &model };
        let rule = |length: usize| json!({"rules": [{"name": "x", "pattern": "x+", "maxLength": length}]});
        for (name, options, message) in [
            ("moderation", json!({"model": "m", "threshold": 1.5}), "threshold: 1.5 must be from 0 to 1"),
            ("moderation", json!({"model": "m", "threshold": -0.1}), "threshold: -0.1 must be from 0 to 1"),
            ("moderation", json!({"model": "m", "languages": ["en"]}), "languages: moderation has none"),
            ("structured-output", json!({"model": "m", "schema": "city"}), "schema: \"city\" must be an object"),
            ("token-cost-control", json!({"limit": 1, "inputPrice": -1}), "inputPrice: -1 must be a number from 0"),
            ("token-cost-control", json!({"limit": 1, "outputPrice": -0.5}), "outputPrice: -0.5 must be"),
            ("token-cost-control", json!({"limit": 1, "windowMs": 0}), "windowMs: 0 must be 1 or more"),
            ("batch-parts", json!({"size": 0}), "size: 0 must be 1 or more"),
            ("system-prompt-scrubber", json!({"words": 0}), "words: 0 must be 2 or more"),
            ("regex-filter", rule(0), "rules: x: maxLength: 0 must be from 1 to 4096"),
            ("regex-filter", rule(4097), "rules: x: maxLength: 4097 must be from 1 to 4096"),
            ("working-memory", json!({"schema": 1}), "schema: 1 must be an object"),
        ] {
            let error = make(name, options.as_object().unwrap(), &around).err().unwrap_or_default();
            assert!(error.starts_with(message), "{name}: {error:?}");
        }
        for (name, options) in [
            ("moderation", json!({"model": "m", "threshold": 0})),
            ("moderation", json!({"model": "m", "threshold": 1})),
            ("token-cost-control", json!({"limit": 1, "inputPrice": 0, "outputPrice": 0})),
            ("batch-parts", json!({"size": 1})),
            ("regex-filter", rule(1)),
        ] {
            assert!(make(name, options.as_object().unwrap(), &around).is_ok(), "{name}: {options}");
        }
    }

    #[test]
    fn cli_012_every_name_makes_a_processor_and_wrong_options_are_named() {
        let model = |name: &str| match name {
            "fast" => Ok(Arc::new(ScriptedModel::new()) as SharedModel),
            _ => Err(format!("no model {name}")),
        };
        let around = Surroundings { root: "/repo".into(), model: &model };
        for name in NAMES {
            let options = match name {
                "language-detector" => json!({"model": "fast", "languages": ["en"]}),
                "moderation" | "pii-detector" | "prompt-injection-detector" | "model-selection" => {
                    json!({"model": "fast"})
                }
                "regex-filter" => json!({"presets": ["email"], "rules": [{"name": "x", "pattern": "x+"}]}),
                "structured-output" => json!({"model": "fast", "schema": {"type": "object"}}),
                "token-limiter" | "token-cost-control" => json!({"limit": 10}),
                _ => json!({}),
            };
            let made = make(name, options.as_object().unwrap(), &around).unwrap();
            assert_eq!(made.id(), name);
            assert!(!made.hooks().is_empty());
            let mut wrong = options.as_object().unwrap().clone();
            wrong.insert("nonsense".into(), json!(1));
            let error = make(name, &wrong, &around).err().unwrap();
            assert!(error.contains("nonsense"), "{name}: {error}");
        }
        for (name, options, message) in [
            ("nope", json!({}), "there is no processor nope"),
            ("moderation", json!({}), "model: is needed"),
            ("moderation", json!({"model": "slow"}), "no model slow"),
            ("regex-filter", json!({"presets": ["mail"]}), "there is no \"mail\""),
            ("regex-filter", json!({"rules": [{"name": "x", "pattern": "("}]}), "the pattern is wrong"),
            ("token-limiter", json!({"limit": 0}), "limit: is needed"),
            ("message-history", json!({"lastMessages": -1}), "lastMessages must be a whole number"),
            ("working-memory", json!({"template": "x", "schema": {}}), "not both"),
        ] {
            let error = make(name, options.as_object().unwrap(), &around).err().unwrap();
            assert!(error.contains(message), "{error}");
        }
    }
}
