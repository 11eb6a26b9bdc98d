//! How much a notification may say (NOTIF-006).

use super::*;
use crate::notification::fitted;

fn attributes(count: usize, bytes: usize) -> crate::json::Object {
    (0..count).map(|number| (format!("a{number}"), json!("x".repeat(bytes)))).collect()
}

#[tokio::test]
async fn notif_006_what_is_too_large_is_refused_with_its_field() {
    let long = |bytes: usize| "x".repeat(bytes);
    let source = |bytes| NewNotification { source: long(bytes), ..ci("low") };
    let kind = |bytes| NewNotification { kind: long(bytes), ..ci("low") };
    let summary = |bytes| NewNotification { summary: long(bytes), ..ci("low") };
    let source_id = |bytes| NewNotification { source_id: Some(long(bytes)), ..ci("low") };
    let dedupe = |bytes| NewNotification { dedupe_key: Some(long(bytes)), ..ci("low") };
    let coalesce = |bytes| NewNotification { coalesce_key: Some(long(bytes)), ..ci("low") };
    let many = |count| NewNotification { attributes: Some(attributes(count, 1)), ..ci("low") };
    let large = |bytes: usize| NewNotification { attributes: Some(attributes(1, bytes - 2)), ..ci("low") };
    let bounded: [(&str, usize, &dyn Fn(usize) -> NewNotification); 8] = [
        ("source", 256, &source),
        ("kind", 256, &kind),
        ("summary", 16 * 1024, &summary),
        ("sourceId", 256, &source_id),
        ("dedupeKey", 1024, &dedupe),
        ("coalesceKey", 1024, &coalesce),
        ("attributes", 64, &many),
        ("attributes", 1024, &large),
    ];
    for (field, max, of) in bounded {
        let courier = courier(false, woken);
        match all_taken(&courier, vec![ci("low"), of(max + 1)]).await {
            Err(Error::Invalid { field: named, message }) => {
                assert_eq!(named, field);
                assert!(message.contains("notification_invalid") && message.contains(&max.to_string()), "{message}");
                assert!(message.len() < 400, "{field}");
            }
            other => panic!("{field}: {other:?}"),
        }
        let listed = tool(&courier, json!({"action": "list"})).await.unwrap();
        assert_eq!(listed["notifications"], json!([]), "{field}: nothing is stored");
        taken(&courier, of(max)).await;
    }
    let shouted = all_taken(&courier(false, woken), vec![ci(&long(3_000_000))]).await.unwrap_err();
    assert!(shouted.to_string().len() < 400);
}

#[tokio::test]
async fn notif_006_what_comes_from_outside_is_cut() {
    let long = || "ü".repeat(20_000);
    let mut many = attributes(70, 1);
    many.insert("a0".into(), json!(long()));
    let new = fitted(NewNotification {
        source: long(),
        kind: long(),
        summary: long(),
        source_id: Some(long()),
        dedupe_key: Some(long()),
        coalesce_key: Some(long() + "!"),
        attributes: Some(many),
        ..ci("low")
    });
    for (text, max) in
        [(&new.source, 256), (&new.kind, 256), (&new.summary, 16 * 1024), (new.source_id.as_ref().unwrap(), 256)]
    {
        assert!(text.len() <= max && text.len() > max - 12 && text.ends_with("ü… [cut]"), "{}", text.len());
    }
    assert_ne!(new.dedupe_key, new.coalesce_key, "a long key stays one key");
    assert_eq!(new.attributes.as_ref().unwrap().len(), 64);
    let courier = courier(false, woken);
    taken(&courier, new).await;
    let fine = ci("low");
    assert_eq!(fitted(fine.clone()).summary, fine.summary);
}

#[tokio::test]
async fn notif_006_merging_adds_no_end_of_attributes() {
    let courier = courier(false, woken);
    for round in 0..3 {
        let named = (0..60).map(|number| (format!("a{round}-{number}"), json!(round))).collect();
        let new = NewNotification { coalesce_key: Some("k".into()), attributes: Some(named), ..ci("low") };
        let held = taken(&courier, new).await.attributes.unwrap();
        assert_eq!(held.len(), if round == 0 { 60 } else { 64 });
        assert_eq!(held["a0-0"], json!(0));
    }
}
