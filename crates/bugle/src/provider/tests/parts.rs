//! What a provider brings along: processors, tools, subscriptions, defaults.

use super::*;
use crate::{
    processor::{Context, Hook, HookSet, LlmResponse, Outcome, OutputResult, Processor, Processors},
    run::RunOptions,
};

/// Notes when it is asked.
struct Noting(&'static str, Arc<Mutex<Vec<&'static str>>>);

#[async_trait]
impl Processor for Noting {
    fn id(&self) -> &str {
        self.0
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::LlmResponse, Hook::OutputResult])
    }
    async fn process_output_result(&self, _: &mut Context<'_>, _: &mut OutputResult) -> Outcome {
        self.1.lock().push(self.0);
        Ok(())
    }
    async fn process_llm_response(&self, _: &mut Context<'_>, _: &LlmResponse) -> Outcome {
        self.1.lock().push(self.0);
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Processing(Arc<Mutex<Vec<&'static str>>>);

impl SignalProvider for Processing {
    fn id(&self) -> &'static str {
        "processing"
    }
    fn input_processors(&self) -> Vec<SharedProcessor> {
        vec![Arc::new(Noting("theirs-in", self.0.clone()))]
    }
    fn output_processors(&self) -> Vec<SharedProcessor> {
        vec![Arc::new(Noting("theirs-out", self.0.clone()))]
    }
}

#[tokio::test(start_paused = true)]
async fn prov_001_proc_004_a_providers_processors_come_before_the_agents_own() {
    for per_run in [false, true] {
        let noted: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let own = |id| -> SharedProcessor { Arc::new(Noting(id, noted.clone())) };
        let (input, output) = (own("own-in"), own("own-out"));
        let agent = Agent::builder("helper")
            .model(Arc::new(ScriptedModel::with_responses(["one", "two"])))
            .provider(Arc::new(Processing(noted.clone())));
        let agent = if per_run {
            let list = |one: &SharedProcessor| Processors::new([one.clone()]).unwrap();
            let (input, output) = (list(&input), list(&output));
            agent.input_processors_per(move |_| input.clone()).output_processors_per(move |_| output.clone())
        } else {
            agent.shared_input_processor(input).shared_output_processor(output)
        };
        let agent = agent.build().unwrap();
        let context = crate::RequestContext::default();
        assert_eq!(agent.input_processors(&context).ids(), ["theirs-in", "own-in"]);
        assert_eq!(agent.output_processors(&context).ids(), ["theirs-out", "own-out"]);
        let bugle = Bugle::builder().agent(agent).storage(MemoryStorage::new()).build().await.unwrap();
        let helper = bugle.agent("helper").unwrap();
        helper.generate(run_input("hi"), None, RunOptions::default()).await.unwrap();
        let asked = noted.lock().clone();
        assert!(asked.contains(&"theirs-out") && asked.contains(&"theirs-in"), "they really take part: {asked:?}");
        let place = |id| asked.iter().position(|known| *known == id).unwrap();
        assert!(place("theirs-out") < place("own-out") && place("theirs-in") < place("own-in"), "{asked:?}");
        // PROC-003: a call's own list takes the place of all of these.
        noted.lock().clear();
        let none = RunOptions {
            input_processors: Some(Processors::default()),
            output_processors: Some(Processors::default()),
            ..RunOptions::default()
        };
        helper.generate(run_input("hi"), None, none).await.unwrap();
        assert_eq!(*noted.lock(), [] as [&str; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn prov_003_subscriptions_are_counted_listed_and_ended() {
    let world = world(Arc::new(github())).await;
    let subscribe = async |thread: &str, external: &str, metadata: Value| {
        let thread = ThreadKey::new("ann", thread);
        let metadata = metadata.as_object().cloned();
        world.bugle.subscribe_provider("helper", "github", &thread, external, None, metadata).await.unwrap()
    };
    let first = subscribe("t1", "acme/app", json!({"a": 1})).await;
    subscribe("t1", "acme/web", json!(null)).await;
    subscribe("t2", "acme/app", json!(null)).await;
    let again = subscribe("t1", "acme/app", json!({"b": 2})).await;
    assert_eq!((&again.id, again.subscribed_at), (&first.id, first.subscribed_at), "the first is given back");
    assert_eq!(again.metadata, json!({"a": 1, "b": 2}).as_object().cloned());
    let all = SubscriptionQuery::of_provider("github");
    let of_thread = SubscriptionQuery { thread_id: Some("t1".into()), ..all.clone() };
    let of_app = SubscriptionQuery { external_resource_ids: vec!["acme/app".into()], ..all.clone() };
    let one = SubscriptionQuery { thread_id: Some("t2".into()), ..of_app.clone() };
    let kept = world.bugle.provider_subscriptions();
    for (query, count) in [(&all, 3), (&of_thread, 2), (&of_app, 2), (&one, 1)] {
        assert_eq!(
            (kept.count_subscriptions(query).await.unwrap(), kept.list(query).await.unwrap().len()),
            (count, count)
        );
    }
    assert!(kept.has_subscription(&one).await.unwrap());
    assert_eq!(kept.unsubscribe(&one).await.unwrap(), 1);
    assert!(!kept.has_subscription(&one).await.unwrap());
    assert_eq!((kept.unsubscribe(&all).await.unwrap(), kept.unsubscribe(&all).await.unwrap()), (2, 0), "all of them");
    let owned = ThreadKey::unowned("t1");
    let nobody = world.bugle.subscribe_provider("helper", "github", &owned, "x", None, None).await;
    assert!(matches!(&nobody, Err(Error::Invalid { field, .. }) if field == "resourceId"), "{nobody:?}");
}

#[test]
fn prov_006_two_signals_tell_of_subscriptions() {
    let line = |signal: crate::signal::SignalInput| {
        let signal = signal.normalise(|| "s".into(), BEGIN).unwrap();
        let crate::model::PromptMessage::User { content, .. } = signal.to_prompt() else { panic!("{signal:?}") };
        let [crate::model::UserPart::Text { text, .. }] = content.as_slice() else { panic!("{content:?}") };
        (signal.signal_type, text.clone())
    };
    let (kind, xml) = line(webhook_subscribe_signal("acme/app"));
    assert_eq!(kind, crate::signal::SignalType::Reactive);
    assert!(xml.starts_with("<webhook-subscribe resource=\"acme/app\">"), "{xml}");
    let (kind, xml) = line(webhook_unsubscribe_signal("a\"b"));
    assert_eq!(kind, crate::signal::SignalType::Reactive);
    assert!(xml.starts_with("<webhook-unsubscribe resource=\"a&quot;b\">"), "{xml}");
}

#[tokio::test(start_paused = true)]
async fn prov_006_what_the_generic_webhook_does_by_default() {
    let provider = WebhookProvider::new(WebhookOptions::builder().build());
    assert_eq!(provider.id(), "webhook-signals");
    let world = world(Arc::new(provider.verified_by(Verifier::custom(|_| true)))).await;
    for external in ["a", "b"] {
        let thread = ThreadKey::new("ann", "t1");
        world.bugle.subscribe_provider("helper", "webhook-signals", &thread, external, None, None).await.unwrap();
    }
    let hook = async |body: Value| {
        world.bugle.take_webhook("webhook-signals", Vec::new(), Bytes::from(body.to_string())).await.unwrap().matched
    };
    assert_eq!(hook(json!({"resource": ["a", "b", "a"], "n": 1})).await, 2, "one for each subscription, each once");
    assert_eq!(hook(json!({"externalResourceId": "nobody follows it"})).await, 0);
    assert_eq!(hook(json!({"other": 1})).await, 0);
    let mut records = world.records().await;
    records.sort_by(|a, b| a.coalesce_key.cmp(&b.coalesce_key));
    let keys: Vec<_> = records.iter().map(|record| record.coalesce_key.as_deref().unwrap()).collect();
    assert_eq!(keys, ["webhook-signals:a", "webhook-signals:b"], "each by its own resource");
    for record in records {
        assert_eq!(
            (record.source.as_str(), record.kind.as_str(), record.priority.as_str()),
            ("webhook-signals", "webhook-event", "medium")
        );
        assert_eq!(record.payload, Some(json!({"resource": ["a", "b", "a"], "n": 1})));
        assert!(record.dedupe_key.unwrap().starts_with("webhook-signals:sha256-"));
    }
}

/// Says more than the webhook does.
#[derive(Debug)]
struct Shaping;

impl SignalProvider for Shaping {
    fn id(&self) -> &'static str {
        "shaping"
    }
    fn notification(&self, _: &ProviderEvent, to: &ProviderSubscription, made: NewNotification) -> NewNotification {
        let summary = format!("{} for {}", made.summary, to.external_resource_id);
        NewNotification { summary, dedupe_key: None, thread: ThreadKey::new("bob", "other"), ..made }
    }
}

#[tokio::test(start_paused = true)]
async fn prov_006_a_provider_may_shape_its_notifications_but_not_redirect_them() {
    let world = world(Arc::new(Shaping)).await;
    let thread = ThreadKey::new("ann", "t1");
    let to = world.bugle.subscribe_provider("helper", "shaping", &thread, "x", None, None).await.unwrap();
    let told = item(1).notification(&Shaping, &to);
    assert_eq!((told.summary.as_str(), &told.thread), ("item 1 for x", &thread));
    assert!(told.dedupe_key.is_some(), "PROV-012");
}

#[test]
fn prov_007_the_task_list_is_a_provider() {
    let agent = Agent::builder("worker").model(Arc::new(ScriptedModel::new())).provider(Arc::new(TaskSignals));
    let agent = agent.build().unwrap();
    assert_eq!(TaskSignals.id(), "task-signals");
    let tools: Vec<&str> = agent.tools().keys().map(String::as_str).collect();
    assert_eq!(tools, ["task_write", "task_update", "task_complete", "task_check"]);
    assert_eq!(agent.input_processors(&crate::RequestContext::default()).ids().len(), 1, "its lane");
}
