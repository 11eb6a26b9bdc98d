//! Random trees of agents that delegate, ask people, fail, are stopped and die at any commit: nothing runs twice, what was
//! approved runs once, nothing is left unfinished, and every prompt is one a provider accepts.
//!
//! `BUGLE_TREES` says how many trees; a failure names its seed, `BUGLE_TREE` plays one seed alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bugle::{
    Agent, AgentHandle, RunOptions, ThreadKey, Tool,
    json::{Value, json},
    memory::MemoryOptions,
    message::{PromptOptions, build_prompt},
    model::{
        AssistantPart, LanguageModel, ModelError, ModelRequest, ModelResponse, PromptMessage, Script, ScriptedModel,
    },
    runtime::{Bugle, SubscribeOptions, SuspendedQuery, ToolApproval},
    storage::{ParkedQuery, Storage, ThreadQuery},
    tool::{Approval, ToolContext, ToolError},
};
use parking_lot::Mutex;

use crate::{faulty::Faulty, support::user_texts};

#[derive(Debug, Clone)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }
    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

#[derive(Debug, Clone)]
enum Call {
    Work,
    Danger,
    Boom,
    Delegate(Box<Node>),
}

/// An agent and what its model does, step by step; `fails` in the end instead of answering.
#[derive(Debug, Clone)]
struct Node {
    name: String,
    steps: Vec<Vec<Call>>,
    fails: bool,
}

impl Node {
    fn random(rng: &mut Rng, name: String, depth: usize) -> Self {
        let steps = (0..=rng.below(2))
            .map(|step| {
                (0..=rng.below(3))
                    .map(|at| match rng.below(10) {
                        0..=2 => Call::Danger,
                        3 => Call::Boom,
                        4..=7 if depth < 4 => {
                            Call::Delegate(Box::new(Self::random(rng, format!("{name}x{step}{at}"), depth + 1)))
                        }
                        _ => Call::Work,
                    })
                    .collect()
            })
            .collect();
        Self { name, steps, fails: depth > 0 && rng.chance(10) }
    }

    /// What runs if nobody dies or stops it. `approved` says which keys a person let pass.
    fn expected(&self, approved: &BTreeSet<String>, out: &mut BTreeSet<String>) {
        for (step, calls) in self.steps.iter().enumerate() {
            for (at, call) in calls.iter().enumerate() {
                let key = format!("{}-{step}-{at}", self.name);
                match call {
                    Call::Work | Call::Boom => drop(out.insert(key)),
                    Call::Danger if approved.contains(&key) => drop(out.insert(key)),
                    Call::Danger => {}
                    Call::Delegate(child) => child.expected(approved, out),
                }
            }
        }
    }
}

/// What has happened, in all processes.
#[derive(Debug, Default)]
struct Oracle {
    ran: Mutex<BTreeMap<String, usize>>,
    faults: Mutex<Vec<String>>,
}

impl Oracle {
    fn fault(&self, text: String) {
        self.faults.lock().push(text);
    }

    /// A provider takes the prompt.
    fn check(&self, who: &str, prompt: &[PromptMessage], asked: bool) {
        let mut open: Vec<&str> = Vec::new();
        for message in prompt {
            match message {
                PromptMessage::Tool { content } => {
                    let results: Vec<&str> = content.iter().map(|result| result.tool_call_id.as_str()).collect();
                    if results != open {
                        self.fault(format!("{who}: calls {open:?} are followed by results {results:?}"));
                    }
                    open.clear();
                }
                _ if !open.is_empty() => self.fault(format!("{who}: calls {open:?} have no results")),
                PromptMessage::Assistant { content, .. } => {
                    if content.is_empty() {
                        self.fault(format!("{who}: an empty assistant message"));
                    }
                    open = content
                        .iter()
                        .filter_map(|part| match part {
                            AssistantPart::ToolCall { tool_call_id, .. } => Some(tool_call_id.as_str()),
                            _ => None,
                        })
                        .collect();
                }
                PromptMessage::System { .. } | PromptMessage::User { .. } => {}
            }
        }
        if !open.is_empty() {
            self.fault(format!("{who}: calls {open:?} have no results"));
        }
        if asked && matches!(prompt.last(), None | Some(PromptMessage::Assistant { .. } | PromptMessage::System { .. }))
        {
            self.fault(format!("{who}: the prompt ends with {:?}", prompt.last()));
        }
    }
}

/// Plays a node's plan; which step it is at, the prompt tells.
#[derive(Debug)]
struct TreeModel {
    node: Node,
    oracle: Arc<Oracle>,
}

#[async_trait]
impl LanguageModel for TreeModel {
    fn provider(&self) -> &'static str {
        "tree"
    }
    fn model_id(&self) -> &str {
        &self.node.name
    }
    async fn stream(&self, request: ModelRequest) -> Result<ModelResponse, ModelError> {
        self.oracle.check(&self.node.name, &request.prompt, true);
        let last = request.prompt.iter().rposition(|message| matches!(message, PromptMessage::User { .. }));
        let after = &request.prompt[last.unwrap_or_default()..];
        let step = after.iter().filter(|message| matches!(message, PromptMessage::Assistant { .. })).count();
        let bye = user_texts(&after[..1]) == ["bye"];
        let mut script = Script::new();
        match self.node.steps.get(step).filter(|_| !bye) {
            Some(calls) => {
                for (at, call) in calls.iter().enumerate() {
                    let key = format!("{}-{step}-{at}", self.node.name);
                    let (name, input) = match call {
                        Call::Work => ("work".to_owned(), json!({ "key": key })),
                        Call::Danger => ("danger".to_owned(), json!({ "key": key })),
                        Call::Boom => ("boom".to_owned(), json!({ "key": key })),
                        Call::Delegate(child) => (format!("agent-{}", child.name), json!({ "prompt": "go" })),
                    };
                    script = script.call_as(&key, &name, &input.to_string());
                }
            }
            None if self.node.fails && !bye => script = script.fail_with(400, "boom"),
            None => script = script.text("done"),
        }
        ScriptedModel::with_responses([script]).stream(request).await
    }
}

fn tools(oracle: &Arc<Oracle>) -> [Tool; 3] {
    ["work", "danger", "boom"].map(|name| {
        let oracle = oracle.clone();
        let tool = Tool::json(name, move |input: Value, _: ToolContext| {
            let key = input["key"].as_str().unwrap_or_default().to_owned();
            *oracle.ran.lock().entry(key).or_default() += 1;
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if name == "boom" { Err(ToolError::failed("boom")) } else { Ok(json!({ "did": name })) }
            }
        });
        if name == "danger" { tool.with_approval(Approval::Always) } else { tool }
    })
}

fn agent_of(node: &Node, oracle: &Arc<Oracle>, top: bool) -> Agent {
    let model = TreeModel { node: node.clone(), oracle: oracle.clone() };
    let steps = RunOptions { max_steps: Some(20), ..RunOptions::default() };
    let mut builder = Agent::builder(node.name.clone()).model(Arc::new(model)).max_retries(0).default_options(steps);
    if top {
        builder = builder.memory(MemoryOptions::last(500));
    }
    for tool in tools(oracle) {
        builder = builder.tool(tool);
    }
    for call in node.steps.iter().flatten() {
        if let Call::Delegate(child) = call {
            builder = builder.agent(child.name.clone(), agent_of(child, oracle, false));
        }
    }
    builder.build().unwrap()
}

struct Tree {
    rng: Rng,
    top: Node,
    oracle: Arc<Oracle>,
    store: Arc<Faulty>,
    bugle: Bugle,
    agent: AgentHandle,
    thread: ThreadKey,
    deaths: usize,
    /// At which turn the run is stopped, if it is.
    abort_at: Option<usize>,
    aborted: bool,
    approved: BTreeSet<String>,
}

impl Tree {
    async fn new(seed: u64) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let top = Node::random(&mut rng, "n".to_owned(), 0);
        let oracle = Arc::new(Oracle::default());
        let store = Faulty::new();
        let (bugle, agent) = Self::process(&top, &oracle, &store).await;
        let thread = ThreadKey::new("user", "thread");
        let abort_at = rng.chance(15).then(|| rng.below(6));
        let mut tree = Self {
            rng,
            abort_at,
            top,
            oracle,
            store,
            bugle,
            agent,
            thread,
            deaths: 0,
            aborted: false,
            approved: BTreeSet::new(),
        };
        tree.plan_death();
        tree
    }

    async fn process(top: &Node, oracle: &Arc<Oracle>, store: &Arc<Faulty>) -> (Bugle, AgentHandle) {
        let agent = agent_of(top, oracle, true);
        let bugle = Bugle::builder().shared_storage(store.clone()).agent(agent).build().await.unwrap();
        let agent = bugle.agent(&top.name).unwrap();
        (bugle, agent)
    }

    fn plan_death(&mut self) {
        if self.deaths < 3 && self.rng.chance(40) {
            self.store.die_after(1 + self.rng.below(9));
        }
    }

    async fn restart(&mut self) {
        self.bugle.shutdown(Duration::ZERO).await;
        self.store = self.store.again();
        (self.bugle, self.agent) = Self::process(&self.top, &self.oracle, &self.store).await;
        self.plan_death();
    }

    async fn waiting(&self) -> Option<Value> {
        let runs = self.agent.list_suspended_runs(SuspendedQuery::default()).await.unwrap().runs;
        runs.first().map(|run| serde_json::to_value(run).unwrap())
    }

    async fn over(&self) -> bool {
        self.agent.active_run_id(&self.thread).is_none()
            && self.store.runs(&self.thread).await.unwrap().is_empty()
            && self.store.inbox(&self.thread).await.unwrap().is_empty()
            && self.store.list_parked(ParkedQuery::default()).await.unwrap().items.is_empty()
    }

    /// Answers one of the calls that wait.
    async fn answer(&mut self, run: &Value) {
        if self.rng.chance(2) {
            self.aborted = true;
            let _ = self.agent.abort_thread(&self.thread, Default::default()).await;
            return;
        }
        let calls = run["toolCalls"].as_array().unwrap();
        let call = &calls[self.rng.below(calls.len())];
        let key = call["args"]["key"].as_str().unwrap_or_default().to_owned();
        let approved = self.rng.chance(70);
        let id = if self.rng.chance(50) { call["toolCallId"].as_str().unwrap().to_owned() } else { key.clone() };
        let approval = ToolApproval { tool_call_id: Some(id), approved, ..ToolApproval::default() };
        // Whoever dies before it hears the answer may have been obeyed.
        let new = approved && self.approved.insert(key.clone());
        if self.agent.send_tool_approval(&self.thread, approval).await.is_err() && new {
            self.approved.remove(&key);
        }
    }

    async fn play(&mut self) {
        let mut sent = self.agent.send_message(&self.thread, "go").await.unwrap();
        tokio::select! {
            accepted = sent.accepted() => drop(accepted),
            () = self.store.dead() => {}
        }
        let mut turns = 0;
        loop {
            turns += 1;
            assert!(turns < 500, "the tree does not end");
            if self.store.is_dead() {
                self.deaths += 1;
                self.restart().await;
            }
            if self.over().await {
                return;
            }
            if let Some(run) = self.waiting().await {
                if self.rng.chance(15) {
                    self.restart().await;
                    continue;
                }
                let store = self.store.clone();
                tokio::select! {
                    biased;
                    () = store.dead() => {}
                    () = self.answer(&run) => {}
                }
                continue;
            }
            if self.abort_at == Some(turns) {
                self.aborted = true;
                let store = self.store.clone();
                tokio::select! {
                    _ = self.agent.abort_thread(&self.thread, Default::default()) => {}
                    () = store.dead() => {}
                }
                continue;
            }
            let followed = async {
                let mut watch = self.agent.subscribe(&self.thread, SubscribeOptions::default()).await.ok()?;
                watch.next().await
            };
            tokio::select! {
                _ = tokio::time::timeout(Duration::from_secs(1), followed) => {}
                () = self.store.dead() => {}
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn check(&mut self) {
        let ran = self.oracle.ran.lock().clone();
        for (key, count) in &ran {
            if *count > 1 {
                self.oracle.fault(format!("{key} ran {count} times"));
            }
        }
        let ran: BTreeSet<String> = ran.into_keys().collect();
        if self.deaths == 0 && !self.aborted {
            let mut expected = BTreeSet::new();
            self.top.expected(&self.approved, &mut expected);
            if ran != expected {
                let (missing, more): (Vec<_>, Vec<_>) =
                    (expected.difference(&ran).collect(), ran.difference(&expected).collect());
                self.oracle.fault(format!("not run: {missing:?}; run unexpectedly: {more:?}"));
            }
        }
        if let Some(key) = ran.iter().find(|key| self.is_danger(key) && !self.approved.contains(*key)) {
            self.oracle.fault(format!("{key} ran without leave"));
        }
        let threads = self.store.list_threads(ThreadQuery::default()).await.unwrap().items;
        for thread in threads {
            let key = ThreadKey::new(thread.resource_id.as_str(), thread.id.as_str());
            let rows = self.store.recent_messages(&key, u32::MAX).await.unwrap();
            self.oracle.check(&thread.id, &build_prompt(&rows, &PromptOptions::default()), false);
        }
        let output = self.agent.generate(super::input("bye"), Some(&self.thread), RunOptions::default()).await;
        if output.as_ref().map(|output| output.text.as_str()).ok() != Some("done") {
            self.oracle.fault(format!("the thread does not go on: {output:?}"));
        }
        if !self.bugle.active_runs().is_empty() {
            self.oracle.fault("a run is left".to_owned());
        }
    }

    fn is_danger(&self, key: &str) -> bool {
        fn find(node: &Node, key: &str) -> bool {
            node.steps.iter().enumerate().any(|(step, calls)| {
                calls.iter().enumerate().any(|(at, call)| match call {
                    Call::Danger => key == format!("{}-{step}-{at}", node.name),
                    Call::Delegate(child) => find(child, key),
                    Call::Work | Call::Boom => false,
                })
            })
        }
        find(&self.top, key)
    }
}

/// What the trees have seen, so that none passes for having done nothing.
#[derive(Debug, Default)]
struct Seen {
    ran: usize,
    approved: usize,
    deaths: usize,
    aborted: usize,
    exact: usize,
}

async fn play(seed: u64, seen: &mut Seen) {
    let mut tree = Tree::new(seed).await;
    tree.play().await;
    // Whatever is checked now is no matter of life and death.
    tree.deaths = tree.deaths.max(usize::from(tree.store.is_dead()));
    tree.store = tree.store.again();
    tree.bugle.shutdown(Duration::ZERO).await;
    (tree.bugle, tree.agent) = Tree::process(&tree.top, &tree.oracle, &tree.store).await;
    tree.check().await;
    seen.ran += tree.oracle.ran.lock().len();
    seen.approved += tree.approved.len();
    seen.deaths += tree.deaths;
    seen.aborted += usize::from(tree.aborted);
    seen.exact += usize::from(tree.deaths == 0 && !tree.aborted);
    let faults = tree.oracle.faults.lock().clone();
    assert!(
        faults.is_empty(),
        "seed {seed}, {} deaths, aborted {}: {faults:#?}\n{:#?}",
        tree.deaths,
        tree.aborted,
        tree.top
    );
    tree.bugle.shutdown(Duration::ZERO).await;
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn random_trees_of_agents_keep_their_promises() {
    let seeds = match number("BUGLE_TREE") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BUGLE_TREES").unwrap_or(60),
    };
    let (mut seen, count) = (Seen::default(), seeds.end - seeds.start);
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            // Virtual time: a tree that hangs is found at once.
            let played = tokio::time::timeout(Duration::from_secs(3600), play(seed, &mut seen)).await;
            assert!(played.is_ok(), "seed {seed} hangs");
        });
    }
    println!("{count} trees: {seen:?}");
    let least =
        [seen.ran / 10, seen.approved, seen.deaths, seen.aborted, seen.exact].into_iter().min().unwrap_or_default();
    assert!(count < 60 || least > 0, "nothing was tried: {seen:?}");
}
