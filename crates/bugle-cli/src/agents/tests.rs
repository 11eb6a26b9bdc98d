//! Agent files, right and wrong.

use super::*;
use crate::env::Env;

fn project(files: &[(&str, &str)], toml: &str) -> (tempfile::TempDir, Settings, Models) {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("agents")).unwrap();
    fs::write(directory.path().join("bugle.toml"), toml).unwrap();
    for (name, text) in files {
        fs::write(directory.path().join("agents").join(name), text).unwrap();
    }
    let env: Env = [("GROQ_API_KEY".to_owned(), "k".to_owned())].into_iter().collect();
    let settings = Settings::load(directory.path(), None, &env).unwrap();
    let models = Models::new(&settings, &env);
    (directory, settings, models)
}

fn loaded(settings: &Settings, models: &Models) -> Found {
    load(settings, models, &Webhooks::new(settings, &Env::default()))
}

const DEFAULT: &str =
    "[models]\ndefault = \"scripted/scripted\"\n[models.aliases]\nfast = \"groq/llama-3.3-70b-versatile\"\n";

fn problems(text: &str) -> Vec<String> {
    let (_directory, settings, models) = project(&[("a.md", text)], DEFAULT);
    let found = loaded(&settings, &models);
    assert_eq!(found.agents.is_empty(), !found.problems.is_empty());
    found.problems.iter().map(ToString::to_string).collect()
}

fn one(text: &str) -> Served {
    let (_directory, settings, models) = project(&[("a.md", text)], DEFAULT);
    let mut found = loaded(&settings, &models);
    assert_eq!(found.problems, []);
    found.agents.remove(0)
}

#[test]
fn cli_010_front_matter_is_optional_and_endings_do_not_matter() {
    let plain = one("Just help.\n");
    assert_eq!((plain.agent.id(), plain.agent.name(), plain.model.as_str()), ("a", "a", "scripted/scripted"));
    let text = "\u{feff}---\r\nname: Ann\r\ndescription: 'Answers: all'\r\nmodel: inherit\r\n---\r\n\r\nHelp.\r\n---\r\nMore {{x}}.\r\n";
    let served = one(text);
    assert_eq!(served.agent.name(), "Ann");
    let context = bugle::RequestContext::default();
    assert_eq!(served.agent.instructions(&context).as_deref(), Some("Help.\n---\nMore {{x}}."));
}

#[test]
fn cli_010_files_that_are_no_agents_are_left_alone() {
    let (_directory, settings, models) = project(
        &[
            ("README.md", "x"),
            ("_draft.md", "x"),
            (".hidden.md", "x"),
            ("notes.txt", "x"),
            ("b.md", "Help."),
            ("a.md", "Help."),
        ],
        DEFAULT,
    );
    let found = loaded(&settings, &models);
    let ids: Vec<_> = found.agents.iter().map(|served| served.agent.id().to_owned()).collect();
    assert_eq!((ids, found.problems.len()), (vec!["a".to_owned(), "b".to_owned()], 0));
}

#[test]
fn cli_015_an_agent_of_a_file_says_so() {
    assert_eq!(serde_json::json!(one("Help.").agent.source()), "fs");
}

#[test]
fn cli_011_all_fields_of_this_version_are_taken() {
    let served = one(
        "---\nid: orders\ndescription: Answers.\nmodel: [fast, scripted/scripted]\ntools: { notification-inbox: { description: Mail } }\nmaxSteps: 8\nmodelSettings: { temperature: 0.2 }\nproviderOptions: { openai: { store: false } }\ntoolChoice: required\nactiveTools: [notification-inbox]\ninterrupt: never\nonStepLimit: followUp\nmemory: { lastMessages: 3 }\nmetadata: { team: a }\nagents: []\nrequireToolApproval: false\n---\nHelp.",
    );
    let agent = &served.agent;
    assert_eq!((agent.id(), agent.name()), ("orders", "orders"));
    assert_eq!(served.model, "groq/llama-3.3-70b-versatile, scripted/scripted");
    assert_eq!(agent.memory().unwrap().last_messages.count(), 3);
    let options = agent.default_options();
    assert_eq!((options.max_steps, options.tool_call_concurrency), (Some(8), Some(10)));
    assert_eq!(options.model_settings.as_ref().unwrap().temperature, Some(0.2));
    assert_eq!(agent.tools()["notification-inbox"].description(), Some("Mail"));
}

#[test]
fn cli_012_every_error_names_file_line_and_what_is_known() {
    assert_eq!(
        problems(
            "---\nid: 'no good'\nmodle: x/y\nmaxSteps: 0\ntools:\n  - notification-inbox\n  - Read\nmodel: fsat\nmemory: 5\ninterrupt: maybe\n---\n"
        ),
        [
            "agents/a.md:2:1: id: \"no good\" must be letters, digits, - and _, at most 63, beginning with a letter or digit",
            "agents/a.md:3:1: modle: unknown field; did you mean \"model\"?",
            "agents/a.md:4:1: maxSteps: must be a whole number from 1",
            "agents/a.md:7:5: tools: Read: unknown tool; known are notification-inbox",
            "agents/a.md:8:8: model: \"fsat\" is neither provider/model nor an alias under [models.aliases] (known are fast); did you mean fast?",
            "agents/a.md:9:1: memory: must be true, false, or options",
            "agents/a.md:10:1: interrupt: must be reasoning or never",
            "agents/a.md:12:1: the body is empty; write the instructions below the front matter",
        ]
    );
    assert!(problems("---\nname: x\nHelp.")[0].starts_with("agents/a.md:1:1: the front matter has no end"));
    assert!(problems("---\na: [1\n---\nHelp.")[0].contains("the front matter is not readable"));
    assert!(problems("---\nname: &a x\n---\nHelp.")[0].contains("the front matter is not readable"));
    assert!(problems("---\nmodel: nowhere/x\n---\nHelp.")[0].contains("is unknown; known are openai"));
}

#[test]
fn cli_012_two_agents_cannot_have_one_id() {
    let (_directory, settings, models) = project(&[("a.md", "Help."), ("b.md", "---\nid: a\n---\nHelp.")], DEFAULT);
    let found = loaded(&settings, &models);
    assert_eq!(found.agents.len(), 1);
    assert_eq!(
        found.problems[0].to_string(),
        "agents/b.md:2:1: a second agent with the id a; the first is agents/a.md"
    );
}

#[test]
fn what_this_version_lacks_is_refused_in_agent_files_too() {
    assert_eq!(
        problems(
            "---\nbackgroundTasks: all\ntools: { notification-inbox: { background: true }, mcp__x__y: {} }\n---\nHelp."
        ),
        [
            "agents/a.md:2:1: backgroundTasks is not in this version; remove it",
            "agents/a.md:3:32: tools.notification-inbox.background is not in this version; remove it",
            "agents/a.md:3:52: tools: mcp__x__y: tool servers are not in this version; remove it",
        ]
    );
}

#[test]
fn notif_041_a_file_may_say_how_notifications_are_delivered() {
    let policy = "notifications: { default: persist, priorities: { urgent: deliver }, sources: { mail: { action: discard, reason: spam } } }";
    assert_eq!(problems(&format!("---\n{policy}\n---\nHelp.")), Vec::<String>::new());
    for wrong in ["{ default: shout }", "{ priorities: { hgih: deliver } }", "{ other: 1 }", "deliver"] {
        let found = problems(&format!("---\nnotifications: {wrong}\n---\nHelp."));
        assert!(found.len() == 1 && found[0].starts_with("agents/a.md:2:1: notifications: "), "{found:?}");
    }
}

#[test]
fn cli_011_signals_wire_providers_to_the_agent() {
    let toml = format!(
        "{DEFAULT}[[webhooks]]\nid = \"deploys\"\nagent = \"a\"\nsecrets = [\"s\"]\nsubscriptions = [{{ resource = \"r\", thread = \"t\", external-id = \"web\" }}]\n"
    );
    let files =
        [("a.md", "---\nsignals: [tasks, deploys]\n---\nHelp."), ("b.md", "---\nsignals: [deploys]\n---\nHelp.")];
    let (_directory, settings, models) = project(&files, &toml);
    let webhooks = Webhooks::new(&settings, &Env::default());
    let found = load(&settings, &models, &webhooks);
    assert_eq!(found.problems, []);
    let (first, second) = (&found.agents[0], &found.agents[1]);
    assert_eq!(
        (first.signals.as_slice(), second.signals.as_slice()),
        (&["tasks".to_owned(), "deploys".to_owned()][..], &["deploys".to_owned()][..])
    );
    let tools: Vec<&str> = first.agent.tools().keys().map(String::as_str).collect();
    assert_eq!(
        tools,
        ["task_write", "task_update", "task_complete", "task_check", "subscribe_deploys", "unsubscribe_deploys"]
    );
    let context = bugle::RequestContext::default();
    assert_eq!(first.agent.input_processors(&context).ids().len(), 1, "the lane of the tasks");
    assert!(second.agent.tools().contains_key("subscribe_deploys"));
    // The subscriptions of the configuration are the webhook's own agent's.
    let fixed = |agent: &str| webhooks.provider("deploys", agent).unwrap().fixed_subscriptions().len();
    assert_eq!((fixed("a"), fixed("b")), (1, 0));
    assert_eq!(webhooks.checked(&["a", "b"]).unwrap().len(), 1);
}

#[test]
fn cli_035_a_webhooks_secret_that_cannot_be_one_is_refused() {
    let of = |preset: &str, secrets: &str| {
        let toml = format!(
            "{DEFAULT}[[webhooks]]\nid = \"deploys\"\nagent = \"a\"\npreset = \"{preset}\"\nsecrets = {secrets}\n"
        );
        let (_directory, settings, _) = project(&[("a.md", "Help.")], &toml);
        let problems = Webhooks::new(&settings, &Env::default()).checked(&["a"]).err().unwrap_or_default();
        problems.into_iter().map(|problem| problem.message).collect::<Vec<_>>()
    };
    assert_eq!(of("generic", r#"["s", "  "]"#), ["webhooks.secrets: number 2: it is blank"]);
    assert_eq!(
        of("standard-webhooks", r#"["whsec_ab!"]"#),
        ["webhooks.secrets: number 1: what follows whsec_ is not base64"]
    );
    assert_eq!(of("standard-webhooks", r#"["whsec_c2VjcmV0"]"#), [] as [String; 0]);
    assert_eq!(of("github", r#"["whsec_ab!"]"#), [] as [String; 0]);
}

#[test]
fn cli_012_an_unknown_signal_provider_is_an_error_that_names_the_known_ones() {
    let toml = format!("{DEFAULT}[[webhooks]]\nid = \"deploys\"\nagent = \"a\"\n");
    let file = "---\nsignals:\n  - task\n  - deploys\n  - deploys\n  - [x]\n---\nHelp.";
    let (_directory, settings, models) = project(&[("a.md", file)], &toml);
    let said: Vec<String> = loaded(&settings, &models).problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "agents/a.md:3:5: signals: there is no provider task; known are tasks, deploys (others are [[webhooks]] of bugle.toml); did you mean \"tasks\"?",
            "agents/a.md:5:5: signals: deploys is in the list twice",
            "agents/a.md:6:5: signals: must be a name",
        ]
    );
    assert_eq!(
        problems_of("signals: tasks"),
        ["agents/a.md:2:1: signals: must be a list of names: tasks, and ids of [[webhooks]]"]
    );
    for nothing in ["[]", "false", "~"] {
        assert_eq!(problems_of(&format!("signals: {nothing}")), [] as [String; 0]);
    }
}

#[test]
fn cli_011_012_processors_are_named_with_their_options() {
    let file = "---\ninputProcessors:\n  - unicode-normalizer\n  - token-limiter: { limit: 1000 }\n\
                outputProcessors:\n  - regex-filter: { presets: [email] }\nerrorProcessors: [stream-error-retry]\n\
                maxProcessorRetries: 2\n---\nHelp.";
    let (_directory, settings, models) = project(&[("a.md", file)], DEFAULT);
    let found = loaded(&settings, &models);
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    let (agent, context) = (&found.agents[0].agent, bugle::RequestContext::default());
    assert_eq!(agent.input_processors(&context).ids(), ["unicode-normalizer", "token-limiter"]);
    assert_eq!(agent.output_processors(&context).ids(), ["regex-filter"]);
    assert_eq!(agent.error_processors(&context).ids(), ["stream-error-retry"]);
    let wrong = problems(
        "---\ninputProcessors:\n  - token-limitr\n  - token-limiter: { limt: 1 }\n  - token-limiter\noutputProcessors: x\n---\nHelp.",
    );
    assert!(
        wrong[0].starts_with(
            "agents/a.md:3:5: inputProcessors: there is no processor token-limitr; did you mean \"token-limiter\"?"
        ),
        "{wrong:?}"
    );
    assert!(wrong[1].starts_with("agents/a.md:4:5: inputProcessors.token-limiter: unknown field `limt`"), "{wrong:?}");
    assert_eq!(wrong[2], "agents/a.md:5:5: inputProcessors.token-limiter: limit: is needed, a number of tokens");
    assert_eq!(wrong[3], "agents/a.md:6:1: outputProcessors: must be a list of names, or of NAME: OPTIONS");
}

#[test]
fn cli_012_processors_in_lists_where_they_never_work_and_options_out_of_range() {
    let wrong = problems(
        "---\ninputProcessors:\n  - system-prompt-scrubber\noutputProcessors:\n  - agents-md-injector\n  - \
         prefill-error-handler\n  - message-history\nerrorProcessors:\n  - regex-filter: { presets: [email] }\n---\nHelp.",
    );
    assert_eq!(
        wrong,
        [
            "agents/a.md:3:5: inputProcessors: system-prompt-scrubber: none of its hooks ever runs in inputProcessors; it \
             belongs to outputProcessors",
            "agents/a.md:5:5: outputProcessors: agents-md-injector: none of its hooks ever runs in outputProcessors; it \
             belongs to inputProcessors",
            "agents/a.md:9:5: errorProcessors: regex-filter: none of its hooks ever runs in errorProcessors; it belongs to \
             inputProcessors or outputProcessors",
        ]
    );
    let wrong = problems("---\noutputProcessors:\n  - batch-parts: { size: 0 }\n---\nHelp.");
    assert_eq!(wrong, ["agents/a.md:3:5: outputProcessors.batch-parts: size: 0 must be 1 or more"]);
}

fn many(files: &[(&str, &str)]) -> (Vec<Served>, Vec<String>) {
    let (_directory, settings, models) = project(files, DEFAULT);
    let found = loaded(&settings, &models);
    (found.agents, found.problems.iter().map(ToString::to_string).collect())
}

/// Key and id of an agent's subagents.
fn subagents(served: &Served) -> Vec<(String, String)> {
    served.agent.agents().iter().map(|(key, agent)| (key.clone(), agent.id().to_owned())).collect()
}

#[test]
fn cli_012_sub_165_files_name_each_other_and_themselves() {
    let (agents, problems) = many(&[
        ("lead.md", "---\nagents: [research, lead]\n---\nLead."),
        (
            "research.md",
            "---\nname: Researcher\ndescription: Finds.\nagents: { boss: lead, peer: writer-1 }\nmaxSteps: 3\n---\nFind.",
        ),
        ("w.md", "---\nid: writer-1\nmemory: false\n---\nWrite."),
    ]);
    assert_eq!(problems, Vec::<String>::new());
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(key, id)| ((*key).to_owned(), (*id).to_owned())).collect()
    };
    assert_eq!(subagents(&agents[0]), pairs(&[("research", "research"), ("lead", "lead")]));
    assert_eq!(subagents(&agents[1]), pairs(&[("boss", "lead"), ("peer", "writer-1")]));
    let research = &agents[0].agent.agents()["research"];
    assert_eq!(
        (research.name(), research.description(), research.max_steps()),
        ("Researcher", Some("Finds."), Some(3))
    );
    assert!(research.has_memory() && !agents[1].agent.agents()["peer"].has_memory());
}

#[test]
fn cli_012_an_unknown_or_faulty_subagent_is_an_error_with_its_place() {
    let (agents, problems) = many(&[
        ("a.md", "---\nagents:\n  - reserch\n  - b\n---\nHelp."),
        ("b.md", "---\nagents: { x: c }\n---\nHelp."),
        ("c.md", "---\nmaxSteps: 0\n---\nHelp."),
        ("d.md", "---\nagents: [research]\n---\nHelp."),
        ("research.md", "Find."),
    ]);
    assert_eq!(
        problems,
        [
            "agents/c.md:2:1: maxSteps: must be a whole number from 1",
            "agents/a.md:3:5: agents: reserch: unknown agent; known are a, b, d, research; did you mean research?",
            "agents/b.md:2:14: agents: c cannot be delegated to, since agents/c.md has errors",
        ]
    );
    let ids: Vec<&str> = agents.iter().map(|served| served.agent.id()).collect();
    assert_eq!(ids, ["d", "research"], "whoever needs a faulty agent is left out with it");
    assert_eq!(problems_of("agents: research"), ["agents/a.md:2:1: agents: must be a list of ids, or fields KEY: ID"]);
    assert_eq!(
        problems_of("agents: [a, a, [b]]"),
        ["agents/a.md:2:13: agents: \"a\" is there twice, or empty", "agents/a.md:2:16: agents: must be ids of agents"]
    );
}

/// The problems of a file with this line in its front matter.
fn problems_of(line: &str) -> Vec<String> {
    problems(&format!("---\n{line}\n---\nHelp."))
}

#[test]
fn cli_011_tools_may_need_approval() {
    let approval = |text: &str| {
        let served = one(&format!("---\n{text}\n---\nHelp."));
        format!("{:?}", served.agent.tools()["notification-inbox"].approval())
    };
    assert_eq!(approval("tools: [notification-inbox]"), "None");
    assert_eq!(approval("tools: { notification-inbox: { approval: true } }"), "Always");
    assert_eq!(approval("tools: { '*': { approval: true } }"), "Always");
    assert_eq!(approval("tools: { notification-inbox: { approval: false } }"), "None");
    assert_eq!(
        problems_of("tools: { notification-inbox: { approval: maybe } }"),
        ["agents/a.md:2:32: tools.notification-inbox.approval: must be true or false"]
    );
    let all = one("---\nrequireToolApproval: true\n---\nHelp.");
    assert_eq!(all.agent.default_options().require_tool_approval, Some(true));
    assert_eq!(problems_of("requireToolApproval: 1"), ["agents/a.md:2:1: requireToolApproval: must be true or false"]);
}

#[test]
fn cli_011_sub_070_delegation_options_that_can_be_written_down() {
    let served = one(
        "---\ndelegation:\n  hookErrorStrategy: throw\n  enableResultReferences: true\n  maxDepth: 3\n  threadScope: parentThread\n---\nHelp.",
    );
    let delegation = &served.agent.default_options().delegation;
    let written = serde_json::to_value(delegation).unwrap();
    assert_eq!(
        written,
        serde_json::json!({"hookErrorStrategy": "throw", "enableResultReferences": true, "maxDepth": 3, "threadScope": "parentThread"})
    );
    assert_eq!(one("Help.").agent.default_options().delegation.max_depth, Some(8), "runs.max-delegation-depth");
    assert_eq!(
        problems("---\ndelegation:\n  maxDepth: deep\n  enableResultReference: true\n  inheritMemory: 1\n---\nHelp."),
        [
            "agents/a.md:3:3: delegation.maxDepth: must be a whole number from 0",
            "agents/a.md:4:3: delegation.enableResultReference: unknown field; did you mean \"enableResultReferences\"?",
            "agents/a.md:5:3: delegation.inheritMemory: must be true or false",
        ]
    );
}

#[test]
fn cli_011_sco_060_is_task_complete_takes_rubrics() {
    let text = "---\nisTaskComplete:\n  scorers:\n    - rubric: [names sources, { description: is short, required: false }]\n    - { rubric: \"- a\\n- b\", model: fast }\n  strategy: any\n  timeout: 90s\n  suppressFeedback: true\n---\nHelp.";
    let completion = one(text).agent.task_completion().unwrap().clone();
    assert_eq!(completion.scorers.iter().map(|scorer| scorer.id()).collect::<Vec<_>>(), ["rubric-scorer"; 2]);
    assert_eq!((completion.strategy, completion.timeout.as_secs()), (bugle::scorer::Strategy::Any, 90));
    assert!(completion.suppress_feedback && completion.parallel);
    assert!(one("---\nisTaskComplete: false\n---\nHelp.").agent.task_completion().is_none());
    // A judge's key is missed as a model's is.
    let other = "---\nisTaskComplete: { scorers: [{ rubric: [a], model: openai/gpt-4o-mini }] }\n---\nHelp.";
    assert_eq!(one(other).missing, ["OPENAI_API_KEY is not set; its runs will fail"]);
    assert_eq!(
        problems(
            "---\nisTaskComplete:\n  scorers:\n    - rubric: []\n    - model: fsat\n      rubric: [a]\n    - rubrik: [a]\n    - x\n  strategy: most\n  timeout: soon\n  parallel: 1\n  timeuot: 3\n---\nHelp."
        ),
        [
            "agents/a.md:4:7: isTaskComplete.scorers.rubric: must say at least one thing that has to be so",
            "agents/a.md:5:14: isTaskComplete.scorers.model: \"fsat\" is neither provider/model nor an alias under [models.aliases] (known are fast); did you mean fast?",
            "agents/a.md:7:7: isTaskComplete.scorers.rubrik: unknown field; known are rubric, model",
            "agents/a.md:7:7: isTaskComplete.scorers: rubric is missing",
            "agents/a.md:8:7: isTaskComplete.scorers: must be fields: rubric, and model if not the agent's",
            "agents/a.md:9:3: isTaskComplete.strategy: must be all or any",
            "agents/a.md:10:3: isTaskComplete.timeout: must be a duration, such as 60s",
            "agents/a.md:11:3: isTaskComplete.parallel: must be true or false",
            "agents/a.md:12:3: isTaskComplete.timeuot: unknown field; did you mean \"timeout\"?",
        ]
    );
    assert_eq!(
        problems_of("isTaskComplete: { strategy: all }"),
        ["agents/a.md:2:1: isTaskComplete: scorers is missing; such as scorers: [{ rubric: [names its sources] }]"]
    );
}

#[test]
fn cli_011_a_file_of_another_tool_loads_with_one_warning() {
    let (_directory, settings, models) = project(
        &[("helper.md", "---\nname: helper\ndescription: Helps.\nmodel: inherit\ncolor: red\nhooks: {}\n---\nHelp.")],
        DEFAULT,
    );
    let found = loaded(&settings, &models);
    assert_eq!((found.agents.len(), found.problems.len()), (1, 0));
    assert_eq!(found.warnings, ["agents/helper.md: color, hooks of another tool has no meaning here"]);
}

#[test]
fn cli_064_a_missing_key_is_known_before_the_first_run() {
    assert_eq!(
        one("---\nmodel: openai/gpt-4o-mini\n---\nHelp.").missing,
        ["OPENAI_API_KEY is not set; its runs will fail"]
    );
    assert!(one("---\nmodel: fast\n---\nHelp.").missing.is_empty());
    assert!(one("---\nmodel: ollama/qwen3\n---\nHelp.").missing.is_empty());
}

#[test]
fn loop_220_a_model_can_be_at_an_address_of_its_own() {
    let served = one(
        "---\nmodel: { id: custom/m, url: 'http://127.0.0.1:1/v1', apiKey: 'env:GROQ_API_KEY', maxRetries: 0 }\n---\nHelp.",
    );
    assert_eq!(served.model, "custom/m");
    assert_eq!(
        problems("---\nmodel: { id: custom/m, url: 'http://127.0.0.1:1/v1', apiKey: 'env:NONE', x: 1 }\n---\nHelp."),
        ["agents/a.md:2:74: model.x: unknown field"]
    );
}

#[test]
fn cli_012_without_any_model_the_error_says_where_to_put_one() {
    let (_directory, settings, models) = project(&[("a.md", "Help.")], "");
    let found = loaded(&settings, &models);
    assert_eq!(
        found.problems[0].to_string(),
        "agents/a.md:1:1: model: no default model; set `default` under [models] in bugle.toml, or `model:` here"
    );
}
