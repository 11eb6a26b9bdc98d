//! Verifiers, webhooks, subscriptions and polls, on virtual time.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use serde_json::json;
use sha2::Sha256;

use super::*;
use crate::{
    AgentHandle,
    memory::MemoryOptions,
    model::ScriptedModel,
    notification::{DeliveryAction, DeliveryPolicy},
    storage::{NotificationQuery, NotificationRecord},
    time::{SharedClock, TimerClock, Timestamp},
};

const BEGIN: Timestamp = Timestamp::from_millis(1_767_225_600_000);

fn sign(secret: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn request(headers: &[(&str, &str)], body: &str) -> WebhookRequest {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    WebhookRequest { headers, body: Bytes::from(body.to_owned()), now: BEGIN }
}

#[test]
fn prov_011_githubs_own_example_is_accepted_and_nothing_else_is() {
    // From GitHub's documentation.
    let verifier = Verifier::hmac(Scheme::github(), vec![Secret::new("It's a Secret to Everybody")]);
    let right = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let name = "x-hub-signature-256";
    assert!(verifier.accepts(&request(&[(name, right)], "Hello, World!")));
    for (header, body) in [
        (Some(right), "Hello, World?"),
        (Some(&right[7..]), "Hello, World!"),
        (Some("sha256="), "Hello, World!"),
        (Some("sha256=zz"), "Hello, World!"),
        (Some("sha256=757107"), "Hello, World!"),
        (None, "Hello, World!"),
    ] {
        let headers: Vec<_> = header.map(|value| (name, value)).into_iter().collect();
        assert!(!verifier.accepts(&request(&headers, body)), "{header:?} {body}");
    }
    assert!(!Verifier::hmac(Scheme::github(), Vec::new()).accepts(&request(&[(name, right)], "Hello, World!")));
    let empty = hex(&sign(b"", &[b"x"]));
    let open = Verifier::hmac(Scheme::github(), vec![Secret::new("")]);
    assert!(!open.accepts(&request(&[(name, &format!("sha256={empty}"))], "x")), "an empty secret is everybody's");
    assert!(!format!("{verifier:?}").contains("Everybody"));
}

#[test]
fn prov_011_any_secret_is_good_while_one_is_replaced() {
    let verifier = Verifier::hmac(Scheme::github(), vec![Secret::new("new"), Secret::new("old")]);
    for (secret, fits) in [("new", true), ("old", true), ("older", false)] {
        let signature = format!("sha256={}", hex(&sign(secret.as_bytes(), &[b"body"])));
        assert_eq!(verifier.accepts(&request(&[("x-hub-signature-256", &signature)], "body")), fits, "{secret}");
    }
}

#[test]
fn prov_011_signed_times_may_be_off_by_five_minutes() {
    let seconds = BEGIN.as_millis() / 1000;
    let stripe = Verifier::hmac(Scheme::Timestamped { header: "stripe-signature".into() }, vec![Secret::new("s")]);
    let standard = Verifier::hmac(Scheme::StandardWebhooks, vec![Secret::new("whsec_c2VjcmV0")]);
    for (off, fits) in [(0, true), (-300, true), (300, true), (-301, false), (301, false)] {
        let time = (seconds + off).to_string();
        let right = hex(&sign(b"s", &[time.as_bytes(), b".", b"{}"]));
        let header = format!("t={time}, v1={}, v1={right}, v0=x", hex(&[0; 32]));
        assert_eq!(stripe.accepts(&request(&[("stripe-signature", &header)], "{}")), fits, "{off}");
        let right = sign(b"secret", &[b"msg_1", b".", time.as_bytes(), b".", b"{}"]);
        let right = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, right);
        let headers = [
            ("webhook-id", "msg_1"),
            ("webhook-timestamp", time.as_str()),
            ("webhook-signature", &*format!("v1,AAAA v1a,xx v1,{right}")),
        ];
        assert_eq!(standard.accepts(&request(&headers, "{}")), fits, "{off}");
        assert!(!standard.accepts(&request(&headers, "{ }")));
        assert!(!standard.accepts(&request(&headers[1..], "{}")), "the id is signed too");
    }
    let short = stripe.tolerance(Duration::from_secs(1));
    let time = (seconds - 2).to_string();
    let header = format!("t={time},v1={}", hex(&sign(b"s", &[time.as_bytes(), b".", b"{}"])));
    assert!(!short.accepts(&request(&[("stripe-signature", &header)], "{}")));
    let own = Verifier::custom(|request| request.header("x-key") == Some("k"));
    assert!(own.accepts(&request(&[("x-key", "k")], "")) && !own.accepts(&request(&[], "")));
}

fn github() -> WebhookProvider {
    WebhookProvider::new(
        WebhookOptions::builder()
            .id("github")
            .preset(WebhookPreset::GitHub)
            .secrets(vec![Secret::new("secret")])
            .build(),
    )
}

fn read(provider: &WebhookProvider, event: &str, body: Value) -> Vec<ProviderEvent> {
    let headers = [("x-github-event", event), ("x-github-delivery", "d1")];
    provider.read_webhook(&request(&headers, &body.to_string())).unwrap()
}

#[test]
fn prov_006_githubs_events_are_told_in_a_line() {
    let repository = json!({"full_name": "acme/app"});
    let sender = json!({"login": "ann"});
    for (event, body, kind, summary, priority) in [
        (
            "push",
            json!({"ref": "refs/heads/main", "commits": [{}, {}], "head_commit": {"message": "Fix it\n\nlong"}}),
            "push",
            "ann pushed 2 commits to main of acme/app: Fix it",
            "medium",
        ),
        (
            "pull_request",
            json!({"action": "review_requested", "pull_request": {"number": 7, "title": "Add x"}}),
            "pull_request.review_requested",
            "pull request #7 review requested in acme/app by ann: Add x",
            "medium",
        ),
        (
            "workflow_run",
            json!({"action": "completed", "workflow_run": {"name": "CI", "head_branch": "main", "conclusion": "failure"}}),
            "workflow_run.completed",
            "CI on main of acme/app: failure",
            "high",
        ),
        ("star", json!({"action": "created"}), "star.created", "star created in acme/app by ann", "medium"),
    ] {
        let mut body = body;
        body["repository"] = repository.clone();
        body["sender"] = sender.clone();
        let events = read(&github(), event, body.clone());
        let [told] = events.as_slice() else { panic!("{event}: {events:?}") };
        assert_eq!((told.kind.as_str(), told.summary.as_str(), told.priority.as_str()), (kind, summary, priority));
        assert_eq!(told.external_resource_ids, ["acme/app", "acme"]);
        assert_eq!((told.source.as_str(), told.delivery_id.as_str(), &told.payload), ("github", "d1", &Some(body)));
    }
    assert_eq!(read(&github(), "ping", json!({"zen": "x"})), []);
    assert_eq!(read(&github(), "push", json!({})).len(), 1, "whatever is missing");
}

#[test]
fn prov_006_plain_json_is_read_where_the_options_say() {
    let provider = WebhookProvider::new(
        WebhookOptions::builder()
            .id("deploys")
            .external_id("/service/name".to_owned())
            .kind("/event".to_owned())
            .summary("/text".to_owned())
            .priority("urgent".to_owned())
            .build(),
    );
    assert!(provider.verifier().is_none(), "CLI-035: without secrets there is no route");
    let of = |provider: &WebhookProvider, body: Value| {
        provider.read_webhook(&request(&[], &body.to_string())).unwrap().pop().unwrap()
    };
    let event = of(&provider, json!({"service": {"name": ["a", "b", "a"]}, "event": "down", "text": "A is down"}));
    assert_eq!(event.external_resource_ids, ["a", "b"]);
    assert_eq!((event.kind.as_str(), event.summary.as_str(), event.priority.as_str()), ("down", "A is down", "urgent"));
    assert!(event.delivery_id.starts_with("sha256-"), "PROV-012: the body's hash");
    let plain = WebhookProvider::new(WebhookOptions::builder().id("any").build());
    let event = of(&plain, json!({"resource": "x"}));
    assert_eq!((event.kind.as_str(), event.summary.as_str()), ("webhook-event", "webhook-event from any: x"));
    assert_eq!(of(&plain, json!({"externalResourceId": 7})).external_resource_ids, ["7"]);
    assert_eq!(of(&plain, json!({"other": 1})).external_resource_ids, [] as [&str; 0]);
    assert!(plain.read_webhook(&request(&[], "{")).is_err());
}

struct World {
    bugle: Bugle,
    agent: AgentHandle,
    model: ScriptedModel,
}

async fn world(provider: SharedProvider) -> World {
    let clock: SharedClock = Arc::new(TimerClock::starting_at(BEGIN));
    let model = ScriptedModel::recording();
    let agent = Agent::builder("helper")
        .model(Arc::new(model.clone()))
        .memory(MemoryOptions::last(50))
        .notifications(DeliveryPolicy::new().priority("low", DeliveryAction::Persist))
        .provider(provider)
        .build()
        .unwrap();
    let storage = MemoryStorage::with_clock(clock.clone());
    let bugle = Bugle::builder().agent(agent).storage(storage).clock(clock).build().await.unwrap();
    World { agent: bugle.agent("helper").unwrap(), bugle, model }
}

impl World {
    async fn records(&self) -> Vec<NotificationRecord> {
        self.bugle.notifications(&NotificationQuery::all()).await.unwrap().records
    }

    async fn hook(&self, delivery: &str, body: &Value) -> Result<WebhookTaken, WebhookError> {
        let body = body.to_string();
        let signature = format!("sha256={}", hex(&sign(b"secret", &[body.as_bytes()])));
        let headers =
            [("x-hub-signature-256", signature.as_str()), ("x-github-event", "push"), ("x-github-delivery", delivery)];
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.bugle.take_webhook("github", headers, Bytes::from(body)).await
    }

    async fn subscribe(&self, thread: &str, external: &str, options: Option<Value>) {
        let thread = ThreadKey::new("ann", thread);
        self.bugle.subscribe_provider("helper", "github", &thread, external, options, None).await.unwrap();
    }
}

fn push() -> Value {
    json!({"repository": {"full_name": "acme/app"}, "sender": {"login": "bob"}, "ref": "refs/heads/main", "commits": [1]})
}

#[tokio::test(start_paused = true)]
async fn prov_012_a_repeated_delivery_tells_nobody_again() {
    let world = world(Arc::new(github())).await;
    world.subscribe("t1", "acme/app", None).await;
    world.subscribe("t2", "acme", Some(json!({"priority": "low"}))).await;
    world.subscribe("t3", "acme/web", None).await;
    assert_eq!(world.hook("d1", &push()).await.unwrap(), WebhookTaken { matched: 2, duplicate: false });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut records = world.records().await;
    records.sort_by(|a, b| a.thread_id.cmp(&b.thread_id));
    let of: Vec<_> =
        records.iter().map(|one| (one.thread_id.as_str(), one.status.as_str(), one.priority.as_str())).collect();
    assert_eq!(of, [("t1", "delivered", "medium"), ("t2", "pending", "low")], "PROV-014: their own options");
    assert_eq!(world.model.requested(), 1);
    assert_eq!(world.hook("d1", &push()).await.unwrap(), WebhookTaken { matched: 2, duplicate: true });
    let again = world.hook("d2", &push()).await.unwrap();
    assert_eq!(again, WebhookTaken { matched: 2, duplicate: true }, "an overheard body under a fresh name, unsigned");
    let mut other = push();
    other["after"] = json!("2f1c");
    assert_eq!(world.hook("d1", &other).await.unwrap(), WebhookTaken { matched: 2, duplicate: false });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((world.records().await.len(), world.model.requested()), (4, 2));
    let nobody = json!({"repository": {"full_name": "other/app"}});
    assert_eq!(world.hook("d3", &nobody).await.unwrap().matched, 0);
}

#[test]
fn prov_012_only_a_signed_name_tells_deliveries_apart() {
    let secrets = || vec![Secret::new("s")];
    let of = |provider: WebhookProvider| {
        let told = provider.read_webhook(&request(&[("webhook-id", "m1")], r#"{"resource":"x"}"#)).unwrap().pop();
        let told = told.unwrap();
        (told.delivery_id, told.repetition_key.is_some_and(|key| key.starts_with("sha256-")))
    };
    let options = |preset, scheme: Option<Scheme>| {
        let options = WebhookOptions::builder().id("any").preset(preset).secrets(secrets());
        WebhookProvider::new(options.maybe_scheme(scheme).build())
    };
    let timed = Scheme::Timestamped { header: "x-signature".into() };
    assert_eq!(of(options(WebhookPreset::Generic, None)), ("m1".into(), true));
    assert_eq!(of(options(WebhookPreset::Generic, Some(timed))), ("m1".into(), true));
    assert_eq!(of(options(WebhookPreset::Generic, Some(Scheme::StandardWebhooks))), ("m1".into(), false));
    assert_eq!(of(options(WebhookPreset::StandardWebhooks, None)), ("m1".into(), false));
    let own = |preset| options(preset, None).verified_by(Verifier::custom(|_| true));
    assert_eq!(of(own(WebhookPreset::Generic)), ("m1".into(), true));
    assert_eq!(of(own(WebhookPreset::StandardWebhooks)), ("m1".into(), false));
}

#[tokio::test(start_paused = true)]
async fn prov_013_what_is_too_large_or_blank_is_made_to_fit() {
    let world = world(Arc::new(github())).await;
    world.subscribe("t1", "acme/app", Some(json!({"priority": "hight"}))).await;
    let mut body = push();
    body["commits"] = json!(["x".repeat(300 * 1024)]);
    assert_eq!(world.hook("d1", &body).await.unwrap(), WebhookTaken { matched: 1, duplicate: false });
    let [record] = <[_; 1]>::try_from(world.records().await).unwrap();
    let payload = record.payload.unwrap();
    assert_eq!((&payload["omitted"], &payload["limit"]), (&json!(true), &json!(PAYLOAD_MAX)));
    assert!(payload["bytes"].as_u64().unwrap() > 300 * 1024, "{payload}");
    assert_eq!((record.priority.as_str(), record.source_id.as_deref()), ("medium", Some("d1")));

    let options = WebhookOptions::builder().id("any").kind("/kind".to_owned()).summary("/text".to_owned()).build();
    let blank = request(&[], r#"{"resource":"x","kind":" ","text":""}"#);
    let event = WebhookProvider::new(options).read_webhook(&blank).unwrap().pop().unwrap();
    assert_eq!((event.kind.as_str(), event.summary.as_str()), ("webhook-event", "webhook-event from any: x"));
    let held = world.bugle.provider_subscriptions().list(&SubscriptionQuery::default()).await.unwrap();
    let bare = ProviderEvent { source: " ".into(), kind: String::new(), summary: "\n".into(), ..event };
    let any = WebhookProvider::new(WebhookOptions::builder().id("any").build());
    let told = bare.notification(&any, &held[0]);
    assert_eq!((&*told.source, &*told.kind, &*told.summary), ("any", "event", "event from any"));
}

#[tokio::test(start_paused = true)]
async fn prov_006_a_webhook_concerns_a_thousand_things_at_most() {
    let any = WebhookProvider::new(WebhookOptions::builder().id("any").build());
    let world = world(Arc::new(any.verified_by(Verifier::custom(|_| true)))).await;
    world.bugle.subscribe_provider("helper", "any", &ThreadKey::new("ann", "t1"), "x999", None, None).await.unwrap();
    let hook = async |count: usize| {
        let things: Vec<String> = (0..count).map(|number| format!("x{number}")).collect();
        world.bugle.take_webhook("any", Vec::new(), Bytes::from(json!({"resource": things}).to_string())).await
    };
    match hook(1001).await {
        Err(WebhookError::Unreadable(reason)) => {
            assert!(reason.contains("1001") && reason.contains("1000"), "{reason}");
        }
        other => panic!("PROV-013: it is not to be sent again: {other:?}"),
    }
    assert_eq!(world.records().await.len(), 0);
    assert_eq!(hook(1000).await.unwrap().matched, 1);
    let [record] = <[_; 1]>::try_from(world.records().await).unwrap();
    assert_eq!(record.summary, "webhook-event from any: x0, x1, x2, x3, x4 and 995 more");
    let long = "x".repeat(1025);
    let refused =
        world.bugle.subscribe_provider("helper", "any", &ThreadKey::new("ann", "t1"), &long, None, None).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn notif_006_what_a_webhook_maps_is_cut_and_not_refused() {
    let options = WebhookOptions::builder().id("any").kind("/kind".to_owned()).summary("/text".to_owned()).build();
    let provider = WebhookProvider::new(options).verified_by(Verifier::custom(|_| true));
    let world = world(Arc::new(provider)).await;
    world.bugle.subscribe_provider("helper", "any", &ThreadKey::new("ann", "t1"), "x", None, None).await.unwrap();
    let body = json!({"resource": "x", "kind": "k".repeat(500_000), "text": "t".repeat(500_000)}).to_string();
    let named = vec![("webhook-id".to_owned(), "w".repeat(5000))];
    assert_eq!(world.bugle.take_webhook("any", named, Bytes::from(body)).await.unwrap().matched, 1);
    let [record] = <[_; 1]>::try_from(world.records().await).unwrap();
    assert!(record.summary.len() == 16 * 1024 && record.summary.ends_with("t… [cut]"));
    assert!(record.kind.len() == 256 && record.source_id.unwrap().len() == 256);
}

#[test]
fn prov_011_a_secret_that_anybody_could_guess_is_none() {
    for (secret, scheme, wrong) in [
        (" \t\n", Scheme::github(), Some("it is blank")),
        ("", Scheme::StandardWebhooks, Some("it is blank")),
        ("whsec_", Scheme::StandardWebhooks, Some("what follows whsec_ is not base64")),
        ("whsec_a b", Scheme::StandardWebhooks, Some("what follows whsec_ is not base64")),
        ("whsec_c2VjcmV0", Scheme::StandardWebhooks, None),
        ("whsec_a b", Scheme::github(), None),
        ("plain", Scheme::StandardWebhooks, None),
    ] {
        assert_eq!(Secret::new(secret).check(&scheme).err(), wrong, "{secret:?}");
    }
    let blank = Verifier::hmac(Scheme::github(), vec![Secret::new("  ")]);
    let signature = format!("sha256={}", hex(&sign(b"  ", &[b"x"])));
    assert!(!blank.accepts(&request(&[("x-hub-signature-256", &signature)], "x")));
}

/// Says of each webhook an event that makes no notification, and one that does.
#[derive(Debug)]
struct Odd(Verifier);

impl SignalProvider for Odd {
    fn id(&self) -> &'static str {
        "odd"
    }
    fn verifier(&self) -> Option<&Verifier> {
        Some(&self.0)
    }
    fn read_webhook(&self, _: &WebhookRequest) -> Result<Vec<ProviderEvent>, ProviderError> {
        let mut odd = item(1);
        odd.attributes = Some([("no name".to_owned(), json!(1))].into_iter().collect());
        let both = [odd, item(2)].map(|event| ProviderEvent { external_resource_ids: vec!["x".into()], ..event });
        Ok(both.into())
    }
}

#[tokio::test(start_paused = true)]
async fn prov_013_an_event_that_makes_no_notification_is_not_to_be_sent_again() {
    let world = world(Arc::new(Odd(Verifier::custom(|_| true)))).await;
    world.bugle.subscribe_provider("helper", "odd", &ThreadKey::new("ann", "t1"), "x", None, None).await.unwrap();
    let taken = world.bugle.take_webhook("odd", Vec::new(), Bytes::new()).await;
    assert!(matches!(taken, Err(WebhookError::Invalid(_))), "{taken:?}");
    let told: Vec<_> = world.records().await.into_iter().map(|record| record.summary).collect();
    assert_eq!(told, ["item 2"], "the others are taken in");
}

#[tokio::test(start_paused = true)]
async fn prov_011_each_agent_of_a_shared_id_has_its_own_secret() {
    let hook = |secret: &str| -> SharedProvider {
        let options = WebhookOptions::builder().id("github").preset(WebhookPreset::GitHub);
        Arc::new(WebhookProvider::new(options.secrets(vec![Secret::new(secret)]).build()))
    };
    let model = Arc::new(ScriptedModel::recording());
    let agent = |id: &str| Agent::builder(id).model(model.clone()).memory(MemoryOptions::last(5));
    let bugle = Bugle::builder()
        .agent(agent("first").provider(hook("one")).build().unwrap())
        .agent(agent("second").provider(hook("secret")).build().unwrap())
        .agent(
            agent("third")
                .provider(Arc::new(WebhookProvider::new(WebhookOptions::builder().id("github").build())))
                .build()
                .unwrap(),
        )
        .storage(MemoryStorage::new())
        .build()
        .await
        .unwrap();
    for agent in ["first", "second", "third"] {
        let thread = ThreadKey::new("ann", agent);
        bugle.subscribe_provider(agent, "github", &thread, "acme/app", None, None).await.unwrap();
    }
    let world = World { agent: bugle.agent("second").unwrap(), bugle, model: ScriptedModel::new() };
    assert_eq!(world.hook("d1", &push()).await.unwrap().matched, 1);
    let told: Vec<_> = world.records().await.into_iter().map(|record| (record.agent_id, record.thread_id)).collect();
    assert_eq!(told, [(Some("second".to_owned()), "second".to_owned())], "who knows one secret speaks to one agent");
}

#[tokio::test(start_paused = true)]
async fn prov_010_wrong_webhooks_leave_nothing() {
    let world = world(Arc::new(github())).await;
    world.subscribe("t1", "acme/app", None).await;
    let body = Bytes::from(push().to_string());
    let unknown = world.bugle.take_webhook("other", Vec::new(), body.clone()).await;
    assert!(matches!(unknown, Err(WebhookError::Unknown)), "{unknown:?}");
    let headers = vec![("x-hub-signature-256".to_owned(), format!("sha256={}", hex(&[7; 32])))];
    let refused = world.bugle.take_webhook("github", headers, body).await;
    assert!(matches!(refused, Err(WebhookError::Refused)), "{refused:?}");
    let text = "no json";
    let signature = format!("sha256={}", hex(&sign(b"secret", &[text.as_bytes()])));
    let headers = vec![("x-hub-signature-256".to_owned(), signature)];
    let unreadable = world.bugle.take_webhook("github", headers, Bytes::from(text)).await;
    assert!(matches!(unreadable, Err(WebhookError::Unreadable(_))), "{unreadable:?}");
    assert_eq!(world.records().await, []);
}

#[tokio::test(start_paused = true)]
async fn prov_016_the_tools_are_bound_to_the_calling_runs_thread() {
    let world = world(Arc::new(github())).await;
    let thread = ThreadKey::new("ann", "t1");
    let call = |tool: &str| format!("[[call {tool} {{\"externalResourceId\":\"acme/app\"}}]] [[say done]]");
    let run = world.agent.generate(run_input(&call("subscribe_github")), Some(&thread), Default::default());
    run.await.unwrap();
    let kept = world.bugle.provider_subscriptions().list(&SubscriptionQuery::of_provider("github")).await.unwrap();
    let [made] = kept.as_slice() else { panic!("{kept:?}") };
    assert_eq!(
        (
            made.agent_id.as_str(),
            made.resource_id.as_str(),
            made.thread_id.as_str(),
            made.external_resource_id.as_str()
        ),
        ("helper", "ann", "t1", "acme/app")
    );
    assert_eq!(world.bugle.subscription_durability(), Durability::Process, "a store in memory survives nothing");
    let run = world.agent.generate(run_input(&call("unsubscribe_github")), Some(&thread), Default::default());
    run.await.unwrap();
    assert_eq!(world.bugle.provider_subscriptions().list(&SubscriptionQuery::default()).await.unwrap(), []);
}

fn run_input(text: &str) -> crate::runtime::RunInput {
    let message = crate::message::StoredMessage::text("".into(), crate::message::Role::User, text, BEGIN);
    crate::runtime::RunInput { messages: vec![message], ..Default::default() }
}

fn item(number: usize) -> ProviderEvent {
    ProviderEvent {
        external_resource_ids: Vec::new(),
        source: "feed".into(),
        kind: "item".into(),
        summary: format!("item {number}"),
        priority: "low".into(),
        payload: None,
        delivery_id: format!("item-{number}"),
        repetition_key: None,
        coalesce_key: None,
        attributes: None,
    }
}

/// Finds one event per poll; fails when it is told to.
#[derive(Debug, Default)]
struct Feed {
    polls: AtomicUsize,
    failing: AtomicUsize,
    /// The item that makes no notification, if any.
    odd: AtomicUsize,
    started: AtomicUsize,
    stopped: AtomicUsize,
    at: Mutex<Vec<Duration>>,
    origin: Mutex<Option<tokio::time::Instant>>,
}

#[async_trait]
impl SignalProvider for Feed {
    fn id(&self) -> &'static str {
        "feed"
    }
    fn poll_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(10))
    }
    async fn start(&self, _: &ProviderContext) -> Result<(), ProviderError> {
        self.started.fetch_add(1, Ordering::SeqCst);
        *self.origin.lock() = Some(tokio::time::Instant::now());
        Ok(())
    }
    async fn stop(&self) {
        self.stopped.fetch_add(1, Ordering::SeqCst);
    }
    async fn poll(&self, held: &[ProviderSubscription], _: &ProviderContext) -> Result<Vec<Polled>, ProviderError> {
        let number = self.polls.fetch_add(1, Ordering::SeqCst);
        let origin = self.origin.lock().unwrap();
        self.at.lock().push(origin.elapsed());
        if self.failing.load(Ordering::SeqCst) > 0 {
            self.failing.fetch_sub(1, Ordering::SeqCst);
            return Err(ProviderError("the feed is down".into()));
        }
        let odd = self.odd.load(Ordering::SeqCst);
        let event = |cursor: usize| ProviderEvent {
            attributes: (cursor == odd).then(|| [("no name".to_owned(), json!(1))].into_iter().collect()),
            ..item(cursor)
        };
        Ok(held
            .iter()
            .map(|one| {
                let cursor = one.cursor.as_deref().and_then(|cursor| cursor.parse().ok()).unwrap_or(0) + 1;
                let _ = number;
                Polled {
                    subscription_id: one.id.clone(),
                    events: vec![event(cursor)],
                    cursor: Some(cursor.to_string()),
                }
            })
            .collect())
    }
}

#[tokio::test(start_paused = true)]
async fn prov_001_prov_004_polls_follow_their_cursor_and_skip_when_nobody_has_subscribed() {
    let feed = Arc::new(Feed::default());
    let world = world(feed.clone()).await;
    tokio::time::sleep(Duration::from_secs(35)).await;
    assert_eq!((feed.started.load(Ordering::SeqCst), feed.polls.load(Ordering::SeqCst)), (1, 0));
    let thread = ThreadKey::new("ann", "t1");
    world.bugle.subscribe_provider("helper", "feed", &thread, "x", None, None).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let mut told: Vec<String> = world.records().await.into_iter().map(|record| record.summary).collect();
    told.sort();
    assert_eq!(told, ["item 1", "item 2", "item 3"]);
    world.bugle.shutdown(Duration::ZERO).await;
    assert_eq!(feed.stopped.load(Ordering::SeqCst), 1, "PROV-015");
}

#[tokio::test(start_paused = true)]
async fn prov_004_an_event_that_makes_no_notification_does_not_stop_the_polls() {
    let feed = Arc::new(Feed::default());
    feed.odd.store(2, Ordering::SeqCst);
    let world = world(feed.clone()).await;
    let thread = ThreadKey::new("ann", "t1");
    world.bugle.subscribe_provider("helper", "feed", &thread, "x", None, None).await.unwrap();
    tokio::time::sleep(Duration::from_secs(35)).await;
    let mut told: Vec<String> = world.records().await.into_iter().map(|record| record.summary).collect();
    told.sort();
    assert_eq!(told, ["item 1", "item 3"], "the cursor goes on");
}

#[tokio::test(start_paused = true)]
async fn prov_015_failing_polls_back_off_to_ten_intervals() {
    let feed = Arc::new(Feed::default());
    feed.failing.store(6, Ordering::SeqCst);
    let world = world(feed.clone()).await;
    let thread = ThreadKey::new("ann", "t1");
    world.bugle.subscribe_provider("helper", "feed", &thread, "x", None, None).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10 + 20 + 40 + 80 + 100 + 100 + 105)).await;
    let at = feed.at.lock().clone();
    let waits: Vec<u64> = at.windows(2).map(|pair| pair[1].saturating_sub(pair[0]).as_secs()).collect();
    assert_eq!(waits, [20, 40, 80, 100, 100, 100]);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(world.records().await.len(), 2, "it goes on where it was");
}

#[tokio::test(start_paused = true)]
async fn prov_015_a_deleted_thread_hears_no_more() {
    let world = world(Arc::new(github())).await;
    world.subscribe("t1", "acme/app", None).await;
    world.hook("d1", &push()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.bugle.storage().delete_thread("t1").await.unwrap();
    assert_eq!(world.hook("d2", &push()).await.unwrap().matched, 0);
}

#[tokio::test(start_paused = true)]
async fn prov_002_a_tool_of_the_agent_wins_over_the_providers() {
    let own = Tool::json("subscribe_github", |_, _| async { Ok(json!("own")) }).described("own");
    let agent = Agent::builder("helper")
        .model(Arc::new(ScriptedModel::new()))
        .tool(own)
        .provider(Arc::new(github()))
        .build()
        .unwrap();
    assert_eq!(agent.tools()["subscribe_github"].description(), Some("own"));
    assert!(agent.tools().contains_key("unsubscribe_github"));
    let unknown = Bugle::builder().agent(agent).provider("none", Arc::new(github())).build().await;
    assert!(unknown.is_err());
}

/// Tells of itself when it starts.
#[derive(Debug)]
struct Hello;

#[async_trait]
impl SignalProvider for Hello {
    fn id(&self) -> &'static str {
        "hello"
    }
    fn poll_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(10))
    }
    async fn start(&self, context: &ProviderContext) -> Result<(), ProviderError> {
        let event = NewNotification::new(ThreadKey::new("ann", "t1"), "hello", "started", "here I am").priority("low");
        context.notify(event).await.map(drop).map_err(|error| ProviderError(error.to_string()))
    }
}

#[tokio::test(start_paused = true)]
async fn prov_005_a_provider_tells_its_agent_and_nobody_else() {
    let world = world(Arc::new(Hello)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let records = world.records().await;
    let told: Vec<_> = records.iter().map(|one| (one.summary.as_str(), one.agent_id.as_deref())).collect();
    assert_eq!(told, [("here I am", Some("helper"))]);
    let stranger = ProviderContext { bugle: world.bugle.clone(), agent_id: "gone".into() };
    let event = NewNotification::new(ThreadKey::new("ann", "t1"), "hello", "started", "lost").priority("low");
    assert!(matches!(stranger.notify(event).await, Err(Error::UnknownAgent(id)) if id == "gone"));
    assert_eq!(world.records().await.len(), 1);
}

mod parts;
