//! `bugle notify` and `bugle inbox`, and webhooks in `bugle.toml` (CLI §4, §6).

use crate::support::{Project, run_with_input};

#[test]
fn notif_121_what_is_notified_wakes_the_agent_and_stands_in_the_inbox() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let payload = project.file("run.json", "{\"run\": 7}");
    let payload = format!("@{}", payload.display());
    let sent = project.run(&[
        "notify",
        "[[say seen]] CI failed",
        "--source",
        "github",
        "--kind",
        "ci",
        "--priority",
        "high",
        "--payload",
        &payload,
        "--json",
    ]);
    let sent = sent.ok().json().remove(0);
    assert_eq!((&sent["accepted"], &sent["decision"]["action"]), (&true.into(), &"deliver".into()));
    assert!(sent["runId"].is_string());
    let id = sent["notification"]["id"].as_str().unwrap();

    let piped = run_with_input(project.command(&["notify", "--priority", "low"]), "a letter\n").ok();
    assert!(piped.stdout.ends_with("in the inbox: pending (idle-low-summary)\n"), "{piped:?}");
    let listed = project.run(&["inbox", "--json"]).ok().json();
    assert_eq!(listed.len(), 2);
    let high = project.run(&["inbox", "--priority", "high,urgent"]).ok().stdout;
    assert_eq!(high, format!("{id}  delivered high   github/ci  [[say seen]] CI failed\n"));
    let page = project.run(&["inbox", "--limit", "1"]).ok();
    assert!(page.stderr.contains("--cursor "), "{page:?}");

    let read = project.run(&["inbox", "read", id]).ok().stdout;
    assert!(read.contains("seen") && read.contains("\"run\": 7"), "{read}");
    assert_eq!(project.run(&["inbox", "dismiss", id]).ok().stdout, format!("{id}  dismissed\n"));
    assert_eq!(project.run(&["inbox", "--status", "dismissed", "--json"]).ok().json().len(), 1);
    assert_ne!(project.run(&["inbox", "retry", id]).code, Some(0), "it has not failed");
    assert_eq!(project.run(&["inbox", "read", "none"]).code, Some(3));
    assert_eq!(project.run(&["inbox", "read"]).code, Some(2));
    assert_eq!(project.run(&["notify", "x", "--payload", "{"]).code, Some(2));
    assert_eq!(project.run(&["notify", "x", "--priority", "loud"]).code, Some(2));
}

#[test]
fn state_043_the_state_of_a_lane_is_told_from_the_terminal() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let none = project.run(&["state", "branch", "main"]);
    assert!(none.code == Some(3) && none.stderr.contains("bugle send -t main"), "{none:?}");
    project.run(&["send", "hello"]).ok();
    let quiet = ["state", "branch", "--if-idle", "persist"];
    let piped = run_with_input(project.command(&quiet), "main\n").ok();
    assert!(piped.stdout.starts_with("persist "), "{piped:?}");
    assert_eq!(run_with_input(project.command(&quiet), "main\n").ok().stdout, "unchanged\n");
    let json = project.run(&["state", "branch", "main", "--json"]).ok().json();
    assert_eq!(json[0]["type"], "skipped");
    let told = ["state", "branch", "topic", "--delta", "--key", "2", "--value", "{\"b\": 1}", "--json"];
    assert_eq!(project.run(&told).ok().json()[0]["action"], "wake");
    for wrong in [["state", "branch", "x", "--value", "{"], ["state", "branch", "x", "--tag", "a b"]] {
        assert_eq!(project.run(&wrong).code, Some(2), "{wrong:?}");
    }
    assert_eq!(project.run(&["state", "branch", ""]).code, Some(2));
}

#[test]
fn cli_035_webhooks_are_checked_before_anything_is_served() {
    let project = Project::with_agent();
    let hook = |agent: &str, secret: &str| {
        format!("[[webhooks]]\nid = \"gh\"\nagent = \"{agent}\"\npreset = \"github\"\nsecrets = [{secret}]\n")
    };
    for (toml, said) in [
        (hook("nobody", "\"s\""), "webhooks.agent: no agent \"nobody\""),
        (hook("helper", "\"env:NOT_SET\""), "the variable NOT_SET is not set"),
    ] {
        project.file("bugle.toml", &toml);
        let refused = project.run(&["serve", "--check"]);
        assert!(refused.code == Some(2) && refused.stderr.contains(said), "{refused:?}");
    }
    project.file("bugle.toml", &hook("helper", ""));
    let warned = project.run(&["serve", "--check"]).ok();
    assert!(warned.stderr.contains("gh has no secrets, so it has no route"), "{warned:?}");
}
