use proptest::prelude::*;

use super::{book::LANES_MAX, history::wanted_ids, tracking::patch_lanes, *};
use crate::{
    id::{MessageId, ThreadKey},
    json::{Object, Value, json},
    message::{Role, StoredMessage, Thread},
    signal::Signal,
    time::Timestamp,
};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn thread() -> ThreadKey {
    ThreadKey::new("u1", "t1")
}

/// A stored state of lane `a`.
fn row(id: &str, mode: StateMode, version: u64, ms: i64) -> StoredMessage {
    let state = StateInput { mode, ..StateInput::snapshot("a", format!("key-{id}"), id) };
    let signal = state.signal("a", "t1", version, id.into(), at(ms)).unwrap();
    signal.to_stored(Some(&thread()), at(ms))
}

fn ids(signals: &[LaneSignal]) -> Vec<&str> {
    signals.iter().map(|signal| signal.id.as_str()).collect()
}

#[test]
fn state_003_004_wrong_states_are_refused_before_anything_is_stored() {
    let base = json!({"id": "a", "cacheKey": "k", "contents": "x"});
    let with = |name: &str, value: Value| {
        let mut state = base.clone();
        state[name] = value;
        StateInput::from_json(&state).and_then(|state| {
            state.lane(None)?;
            state.check()
        })
    };
    assert!(with("value", json!(1)).is_ok());
    for (name, value, code) in [
        ("id", json!(null), "state_id_required"),
        ("id", json!(" "), "state_id_required"),
        ("cacheKey", json!(""), "state_cache_key_required"),
        ("cacheKey", json!(null), "state_cache_key_required"),
        ("transient", json!(false), "state_not_transient"),
        ("mode", json!("weird"), "state_invalid"),
        ("tagName", json!("a b"), "state_invalid"),
        ("attributes", json!({"a b": 1}), "state_invalid"),
        ("attributes", json!({"a": {}}), "state_invalid"),
        ("contents", json!(null), "state_invalid"),
        ("contents", json!([{"type": "video"}]), "state_invalid"),
    ] {
        assert_eq!(with(name, value.clone()).unwrap_err().code, code, "{name}: {value}");
    }
}

#[test]
fn state_002_all_fields_of_a_state_are_read_and_kept() {
    let whole = json!({
        "id": "a", "cacheKey": "k", "contents": [{"type": "text", "text": "x"}], "mode": "delta", "value": {"n": 1},
        "delta": [2], "attributes": {"of": "y"}, "metadata": {"own": true}, "providerOptions": {"p": {"o": 1}},
        "tagName": "lamp",
    });
    let state = StateInput::from_json(&whole).unwrap();
    assert_eq!((state.mode, &state.value, &state.delta), (StateMode::Delta, &Some(json!({"n": 1})), &Some(json!([2]))));
    let signal = state.signal("a", "t1", 1, "s1".into(), at(0)).unwrap();
    let crate::model::PromptMessage::User { content, provider_options } = signal.to_prompt() else { panic!() };
    assert_eq!(json!(content)[0]["text"], "<lamp of=\"y\">x</lamp>");
    assert_eq!(json!(provider_options), json!({"p": {"o": 1}}));
    let least = StateInput::from_json(&json!({"id": "a", "cacheKey": "k", "contents": "x"})).unwrap();
    assert_eq!(least.mode, StateMode::Snapshot);
    assert_eq!(least.signal("a", "t1", 1, "s1".into(), at(0)).unwrap().tag_name, "state");
}

#[test]
fn state_005_010_013_metadata_is_merged_and_stored_as_captured() {
    let state = StateInput {
        value: Some(json!({"open": true})),
        attributes: Some([("type".to_owned(), json!("browser"))].into()),
        metadata: json!({"own": 1, "value": "old", "state": {"id": "x", "version": 9, "kept": true}})
            .as_object()
            .cloned(),
        ..StateInput::snapshot("browser", "k1", "Browser open & <ready>")
    };
    let signal = state.signal("browser", "t1", 1, "s1".into(), at(1000)).unwrap();
    let stored = json!(signal.to_stored(Some(&thread()), at(1000)));
    assert_eq!((&stored["role"], &stored["type"]), (&json!("signal"), &json!("state")));
    assert_eq!(stored["content"]["parts"][0]["text"], "Browser open & <ready>");
    assert_eq!(
        stored["content"]["metadata"]["signal"]["metadata"],
        json!({"own": 1, "value": {"open": true},
            "state": {"kept": true, "id": "browser", "cacheKey": "k1", "mode": "snapshot", "threadId": "t1", "version": 1}})
    );
    let crate::model::PromptMessage::User { content, .. } = signal.to_prompt() else { panic!() };
    assert_eq!(
        json!(content)[0]["text"],
        "<state type=\"browser\">Browser open &amp; &lt;ready&gt;</state>",
        "STATE-013"
    );
}

#[test]
fn state_020_022_023_024_tracking_grows_as_captured() {
    let first = Tracking::after(None, ("s".into(), StateMode::Snapshot, 1), &"fc0f".into(), at(0));
    let second = Tracking::after(Some(&first), ("d1".into(), StateMode::Delta, 2), &"b462".into(), at(1));
    assert_eq!(
        json!(second),
        json!({"currentCacheKey": "d1", "currentMode": "delta", "version": 2, "lastSignalId": "b462",
            "lastSnapshotSignalId": "fc0f", "updatedAt": "1970-01-01T00:00:00.001Z", "activeCopies": [
                {"id": "fc0f", "cacheKey": "s", "mode": "snapshot", "version": 1},
                {"id": "b462", "cacheKey": "d1", "mode": "delta", "version": 2}]})
    );
    assert_eq!(Tracking::read(&json!(second)), Some(second.clone()));
    let mut tracking = second;
    for n in 3..100u64 {
        let id = format!("d{n}");
        tracking = Tracking::after(Some(&tracking), (id.clone(), StateMode::Delta, n), &id.into(), at(2));
    }
    assert_eq!((tracking.active_copies.len(), tracking.truncated), (64, true));
    assert_eq!(tracking.active_copies[0].id, "fc0f".into(), "the snapshot stays");
    let fresh = Tracking::after(Some(&tracking), ("s2".into(), StateMode::Snapshot, 100), &"s2".into(), at(3));
    assert_eq!((fresh.active_copies.len(), fresh.truncated), (1, false));
}

#[test]
fn state_013_the_prompt_form() {
    let state = |contents: Value, attributes: Value, tag: &str| {
        let state = json!({"id": "a", "cacheKey": "k", "contents": contents, "attributes": attributes, "tagName": tag});
        let state = StateInput::from_json(&state).unwrap();
        let signal = state.signal("a", "t1", 1, "s".into(), at(0)).unwrap();
        let crate::model::PromptMessage::User { content, .. } = signal.to_prompt() else { panic!() };
        json!(content)
    };
    for (contents, attributes, tag, shown) in [
        (
            json!("Browser open & <ready>"),
            json!({"type": "browser"}),
            "state",
            "<state type=\"browser\">Browser open &amp; &lt;ready&gt;</state>",
        ),
        (json!(""), json!({"count": 0}), "current-task-list", "<current-task-list count=\"0\" />"),
        (json!("snap"), json!(null), "state", "<state>snap</state>"),
        (
            json!(" a "),
            json!({"q": "\"<", "n": null, "ok": true, "f": 1.5}),
            "state",
            "<state q=\"&quot;&lt;\" ok=\"true\" f=\"1.5\"> a </state>",
        ),
        (
            json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
            json!(null),
            "state",
            "<state>a\nb</state>",
        ),
    ] {
        let parts = state(contents, attributes, tag);
        assert_eq!(parts.as_array().unwrap().len(), 1, "{parts}");
        assert_eq!(parts[0]["text"], shown);
    }
    let file = json!({"type": "file", "data": "aGk=", "mediaType": "image/png"});
    let kinds =
        |parts: &Value| -> Vec<Value> { parts.as_array().unwrap().iter().map(|part| part["type"].clone()).collect() };
    let both = state(json!([{"type": "text", "text": "look"}, file]), json!(null), "state");
    assert_eq!((kinds(&both), &both[0]["text"]), (vec![json!("text"), json!("file")], &json!("<state>look</state>")));
    let alone = state(json!([file]), json!(null), "state");
    assert_eq!((kinds(&alone), &alone[0]["text"]), (vec![json!("text"), json!("file")], &json!("<state />")));
}

#[test]
fn state_021_026_foreign_keys_stay_and_broken_ones_count_as_empty() {
    let change = |lane: &str| {
        let tracking = Tracking { current_cache_key: "k".into(), version: 1, ..Tracking::default() };
        vec![LaneChange { lane: lane.into(), expected: None, tracking: Some(tracking) }]
    };
    for broken in [json!({"mine": 1, "mastra": 7}), json!({"mine": 1, "mastra": {"stateSignals": []}})] {
        let mut metadata = broken.as_object().cloned();
        assert!(patch_lanes(&mut metadata, &change("a")));
        assert_eq!(metadata.as_ref().unwrap()["mine"], 1);
        assert_eq!(metadata.unwrap()["mastra"]["stateSignals"]["a"]["version"], 1);
    }
    let mut none = None;
    assert!(patch_lanes(&mut none, &change("a")) && !patch_lanes(&mut none, &change("a")));
}

#[test]
fn state_025_long_keys_are_hashed() {
    let long = "x".repeat(257);
    assert_eq!(lane_key("short"), "short");
    let hashed = lane_key(&long);
    assert!(hashed.starts_with("sha256:") && hashed.len() == 71, "{hashed}");
    assert_eq!(hashed, lane_key(&long));
}

#[test]
fn state_030_the_table() {
    let tracking =
        |mode| Tracking { current_cache_key: "k".into(), current_mode: mode, version: 4, ..Tracking::default() };
    let state = |mode, key: &str| StateInput { mode, cache_key: key.into(), ..StateInput::snapshot("a", "", "x") };
    let snapshot = state(StateMode::Snapshot, "k");
    let of = |tracking: &Tracking, state: &StateInput, window| decide(state, Some(tracking), window).unwrap();
    let current = tracking(Some(StateMode::Snapshot));
    assert_eq!(of(&current, &snapshot, None), Decision::Skip);
    assert_eq!(of(&current, &state(StateMode::Snapshot, "other"), None), Decision::Accept { version: 5 });
    assert_eq!(of(&current, &state(StateMode::Delta, "k"), None), Decision::Accept { version: 5 });
    let mut shown = row("s", StateMode::Snapshot, 4, 0);
    shown.content.metadata.as_mut().unwrap()["signal"]["metadata"]["state"]["cacheKey"] = json!("k");
    let window = lane_signals(&[shown], "a", "t1");
    assert_eq!(of(&current, &snapshot, Some(&window)), Decision::Skip);
    assert_eq!(of(&current, &snapshot, Some(&[])), Decision::Accept { version: 4 }, "STATE-031");
    let old = tracking(None);
    assert_eq!(of(&old, &snapshot, Some(&window)), Decision::Skip);
    assert_eq!(of(&old, &snapshot, Some(&[])), Decision::Accept { version: 5 });
    assert_eq!(of(&old, &snapshot, None), Decision::Accept { version: 5 });
    assert_eq!(decide(&snapshot, None, None).unwrap(), Decision::Accept { version: 1 });
    // STATE-082
    let based = |base: u64| StateInput {
        metadata: json!({"state": {"baseVersion": base}}).as_object().cloned(),
        ..state(StateMode::Delta, "new")
    };
    assert_eq!(of(&current, &based(4), None), Decision::Accept { version: 5 });
    assert_eq!(decide(&based(3), Some(&current), None).unwrap_err().code, "state_stale_base");
}

#[test]
fn state_070_072_073_074_075_076_079_history_is_resolved_by_version() {
    let rows =
        [row("d2", StateMode::Delta, 3, 5), row("d1", StateMode::Delta, 2, 5), row("s1", StateMode::Snapshot, 1, 5)];
    let view = LaneView::resolve("a", &thread(), &rows, &[], None, false);
    assert_eq!(ids(&view.active), ["s1", "d1", "d2"], "STATE-072: three states of one millisecond");
    assert_eq!(view.last_snapshot.as_ref().unwrap().id, "s1".into());
    assert_eq!((ids(&view.deltas), view.has_snapshot), (vec!["d1", "d2"], true));
    // The window has lost all but the last delta.
    let mut tracking = Tracking::after(None, ("s".into(), StateMode::Snapshot, 1), &"s1".into(), at(5));
    for (n, id) in [(2, "d1"), (3, "d2")] {
        tracking = Tracking::after(Some(&tracking), (id.into(), StateMode::Delta, n), &id.into(), at(5));
    }
    let window = lane_signals(&rows[..1], "a", "t1");
    assert_eq!(wanted_ids(&window, Some(&tracking)), ["s1".into(), "d1".into()], "STATE-073");
    let view = LaneView::resolve("a", &thread(), &rows[..1], &rows[1..], Some(tracking.clone()), false);
    assert_eq!((ids(&view.active), view.has_snapshot), (vec!["s1", "d1", "d2"], false), "STATE-074");
    assert_eq!(ids(&view.deltas), ["d1", "d2"]);
    // An older snapshot in the window does not hide the latest (STATE-079).
    let older = lane_signals(&[row("s0", StateMode::Snapshot, 0, 1)], "a", "t1");
    assert_eq!(wanted_ids(&older, Some(&tracking)).len(), 3);
    assert!(wanted_ids(&lane_signals(&rows, "a", "t1"), Some(&tracking)).is_empty(), "storage is not touched");
    let gone = LaneView::resolve("a", &thread(), &[], &[], Some(tracking), false);
    assert_eq!((gone.last_snapshot, gone.has_snapshot), (None, false), "STATE-075");
    assert!(LaneView::resolve("a", &ThreadKey::new("u1", "t2"), &rows, &[], None, false).active.is_empty());
    let stale = LaneView::resolve("a", &thread(), &rows, &[], None, true);
    assert!(!stale.has_snapshot, "STATE-076");
}

#[test]
fn state_081_a_run_comes_after_who_was_faster() {
    let mut book = LaneBook::new(thread());
    book.begin(Vec::new());
    let mine = book.accept("a", &StateInput::snapshot("a", "k1", "x"), &[], at(1)).unwrap().unwrap();
    let theirs = Tracking::after(None, ("t".into(), StateMode::Snapshot, 1), &"theirs".into(), at(2));
    let moved = book.rebase(vec![("a".into(), theirs.clone())]);
    assert_eq!(moved, [(mine.id.clone(), 2)]);
    let changes = book.changes();
    assert_eq!(changes[0].expected, Some(theirs));
    assert_eq!(changes[0].tracking.as_ref().unwrap().version, 2);
    assert_eq!(changes[0].tracking.as_ref().unwrap().active_copies[0].version, 2);
    let mut stored = mine.to_stored(Some(&thread()), at(1));
    set_version(&mut stored, 2);
    assert_eq!(lane_signals(&[stored], "a", "t1")[0].version, Some(2));
}

#[test]
fn state_024_state_081_a_delta_of_a_run_keeps_what_who_was_faster_told() {
    let mut book = LaneBook::new(thread());
    let base = Tracking::after(None, ("k1".into(), StateMode::Snapshot, 1), &"s1".into(), at(0));
    book.begin(vec![("a".into(), base.clone())]);
    let mine = book.accept("a", &StateInput::delta("a", "d", "x"), &[], at(2)).unwrap().unwrap();
    let theirs = Tracking::after(Some(&base), ("k2".into(), StateMode::Snapshot, 2), &"s2".into(), at(1));
    book.rebase(vec![("a".into(), theirs)]);
    let tracking = book.changes().remove(0).tracking.unwrap();
    assert_eq!((tracking.version, tracking.last_snapshot_signal_id), (3, Some("s2".into())));
    let copies: Vec<_> = tracking.active_copies.iter().map(|copy| (copy.id.to_string(), copy.version)).collect();
    assert_eq!(copies, [("s2".to_owned(), 2), (mine.id.to_string(), 3)]);
}

#[test]
fn state_002_a_thread_has_so_many_lanes_and_their_ids_a_length() {
    let mut book = LaneBook::new(thread());
    let tracking = Tracking::after(None, ("k".into(), StateMode::Snapshot, 1), &"s".into(), at(0));
    book.begin((0..LANES_MAX).map(|n| (format!("lane-{n}"), tracking.clone())).collect());
    let full = book.accept("new", &StateInput::snapshot("new", "k", "x"), &[], at(1)).unwrap_err();
    assert_eq!(full.code, "state_too_many_lanes");
    assert!(book.accept("lane-7", &StateInput::snapshot("lane-7", "k2", "x"), &[], at(1)).unwrap().is_some());
    let long = book.accept("a", &StateInput::snapshot("x".repeat(257), "k", "x"), &[], at(1)).unwrap_err();
    assert_eq!((long.code, long.field.as_deref()), ("state_invalid", Some("id")));
}

/// Any JSON, small.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::from),
        "[a-zé<&\"]{0,6}".prop_map(Value::String),
        Just(json!("snapshot")),
        Just(json!("delta")),
        Just(json!("a")),
        Just(json!("t1")),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = prop_oneof![
            "[a-z]{0,4}".boxed(),
            Just("state".to_owned()).boxed(),
            Just("id".to_owned()).boxed(),
            Just("mode".to_owned()).boxed(),
            Just("version".to_owned()).boxed(),
            Just("threadId".to_owned()).boxed(),
            Just("signal".to_owned()).boxed(),
            Just("metadata".to_owned()).boxed(),
            Just("mastra".to_owned()).boxed(),
            Just("stateSignals".to_owned()).boxed(),
            Just("contents".to_owned()).boxed(),
            Just("parts".to_owned()).boxed(),
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            proptest::collection::vec((key, inner), 0..5)
                .prop_map(|fields| fields.into_iter().collect::<Object>().into()),
        ]
    })
}

proptest! {
    #[test]
    fn state_070_no_row_and_no_thread_breaks_the_lanes(metadata in any_json(), meta in any_json(), version in any_json()) {
        let mut message = StoredMessage::text("m".into(), Role::Signal, "x", at(1));
        message.content.metadata = json!({"signal": {"metadata": {"state": meta, "value": metadata.clone()}, "version": version}})
            .as_object().cloned();
        let signals = lane_signals(std::slice::from_ref(&message), "a", "t1");
        let _ = LaneView::resolve("a", &thread(), &[message.clone()], &[message.clone()], Tracking::read(&metadata), false);
        let _ = Signal::from_stored(&message).map(|signal| signal.to_prompt());
        prop_assert!(signals.len() <= 1);
        let mut held = json!({"mastra": {"stateSignals": metadata}}).as_object().cloned();
        let row = Thread { id: "t1".into(), resource_id: String::new(), title: String::new(), metadata: held.clone(),
            created_at: at(0), updated_at: at(0) };
        let known = tracked_lanes(&row).into_iter().find(|(lane, _)| lane == "a").map(|(_, tracking)| tracking);
        let change = LaneChange { lane: "a".into(), expected: known,
            tracking: Some(Tracking { current_cache_key: "k".into(), version: 7, ..Tracking::default() }) };
        prop_assert!(patch_lanes(&mut held, &[change]), "a lane can always be written again");
        let ids: Vec<MessageId> = signals.into_iter().map(|signal| signal.id).collect();
        prop_assert!(ids.len() <= 1);
    }
}
