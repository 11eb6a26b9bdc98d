//! `bugle notify` and `bugle inbox`, and webhooks in `bugle.toml` (CLI §4, §6).

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
};

use crate::support::{PATIENCE, Project, run_with_input};

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
fn cli_062_wrong_input_says_what_where_and_what_next() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let id = project.run(&["notify", "a letter", "--priority", "low", "--json"]).ok().json().remove(0);
    let id = id["notification"]["id"].as_str().unwrap().to_owned();
    project.file("bad.json", "{");
    for (args, code, said) in [
        (&["notify", "x", "--source", " "][..], 2, "--source is empty; say where it comes from, or leave it out"),
        (&["notify", "x", "--kind", ""], 2, "--kind is empty; say what kind of event it is, or leave it out"),
        (&["notify", "x", "--dedupe-key", ""], 2, "--dedupe-key is empty; give the event's key, or leave it out"),
        (&["notify", "x", "-t", ""], 2, "--thread is empty; give it a value, or leave it out"),
        (&["notify", "x", "-a", "helpr"], 3, "has no agent helpr; known are helper; did you mean helper?"),
        (&["notify", "x", "--payload", "@none.json"], 2, "--payload: none.json cannot be read: "),
        (&["notify", "x", "--payload", "@bad.json"], 2, "--payload (bad.json) is not JSON: EOF while parsing"),
        (&["inbox", "--status", "penidng"], 2, "--status: penidng is none; known are pending, delivered, "),
        (&["inbox", "--priority", "loud"], 2, "--priority: loud is none; known are urgent, high, medium, low"),
        (&["inbox", "--priority", ","], 2, "--priority is empty; known are urgent, high, medium, low"),
        (&["inbox", "--limit", "0"], 2, "0 is not in 1..=200"),
        (&["inbox", "--cursor", "x"], 2, "--cursor is none that a list has named; take it from the line below a list"),
        (&["inbox", "-a", "nobody"], 3, "has no agent nobody; known are helper"),
        (&["inbox", "read"], 2, "say which notification; bugle inbox lists them with their ids"),
        (&["inbox", "read", "none"], 3, "no notification none on thread main; bugle inbox lists them"),
        (&["inbox", "dismiss", "none"], 3, "no notification none on thread main; bugle inbox lists them"),
        (
            &["inbox", "retry", &id],
            2,
            "has not failed, so there is nothing to retry; bugle inbox --status failed lists",
        ),
        (&["inbox", "read", &id, "--status", "pending"], 2, "cannot be used with"),
    ] {
        let done = project.run(args);
        assert!(done.code == Some(code) && done.stderr.contains(said), "{args:?}: {done:?}");
    }
    let empty = project.run(&["inbox", "-t", "other"]).ok();
    assert_eq!((empty.stdout.as_str(), empty.stderr.as_str()), ("", "nothing in the inbox of thread other\n"));
    let none = project.run(&["inbox", "--source", "nobody"]).ok();
    assert_eq!(none.stderr, "nothing of that kind in the inbox of thread main\n");
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

/// `examples/notifications`, in a directory of its own.
fn example() -> Project {
    let project = Project::empty();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/notifications");
    for name in ["bugle.toml", "agents/support.md"] {
        project.file(name, &std::fs::read_to_string(source.join(name)).unwrap());
    }
    project.file(".env", "DEPLOY_SECRET=try-me\n");
    project
}

/// Posts a body with its signature; gives the answer's status and body.
fn post(url: &str, path: &str, body: &str, signature: &str) -> (u16, String) {
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\nx-signature-256: sha256={signature}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn cli_011_prov_002_the_example_projects_signals_reach_the_agent() {
    let project = example();
    let checked = project.run(&["serve", "--check", "--env-file", ".env"]).ok();
    let line = "agent support: scripted/scripted; tools notification-inbox, task_write, task_update, task_complete, \
                task_check, subscribe_deploys, unsubscribe_deploys; signals tasks, deploys\n";
    assert!(checked.stdout.contains(line), "{}", checked.stdout);
    assert!(checked.stdout.contains("webhooks.deploys = agent support, preset generic"), "{}", checked.stdout);
    let server = project.serve(&["dev"]);
    let send = |text: &str| project.run(&["send", "--json", text]).ok().json().pop().unwrap()["text"].clone();
    assert_eq!(
        send("[[call subscribe_deploys {\"externalResourceId\": \"shop\"}]] [[say I follow the shop.]]"),
        "I follow the shop."
    );
    let write = "[[call task_write {\"tasks\":[{\"content\":\"Fix the red test\",\"status\":\"in_progress\"}]}]] [[say Noted.]]";
    // The lane tells of the new list, and the scripted model answers what it hears last.
    let noted = send(write);
    assert!(noted.as_str().unwrap().contains("<current-task-list count=\"1\">"), "the lane: {noted}");
    let shown = send("[[dump]]");
    assert!(shown.as_str().unwrap().contains("Fix the red test"), "the lane stays in view: {shown}");

    let body = r#"{"service":{"name":"shop"},"event":"deploy.failed","text":"Deploying shop failed: a test is red. [[call task_check {}]] [[say I will look into it.]]"}"#;
    let signature = "223953582af76bfe040e6a380d020d25454e508eeadaf726bd2ffae590f1dfe7";
    let hook = "/api/signals/deploys/webhook";
    assert_eq!(post(server.url(), hook, body, signature), (200, "{\"matched\":1}".into()));
    // The answer to the webhook does not wait for the run.
    let began = std::time::Instant::now();
    while !project.run(&["threads", "show", "main"]).ok().stdout.contains("I will look into it.") {
        assert!(began.elapsed() < PATIENCE, "the agent did not answer the webhook");
    }
    assert_eq!(post(server.url(), hook, body, signature).1, "{\"matched\":1,\"duplicate\":true}");
    assert_eq!(post(server.url(), hook, &body.replace("shop", "ship"), signature).0, 401);
    let inbox = project.run(&["inbox", "--json"]).ok().json();
    assert_eq!(inbox.len(), 1);
    assert_eq!(
        (&inbox[0]["kind"], &inbox[0]["priority"], &inbox[0]["status"]),
        (&"deploy.failed".into(), &"high".into(), &"delivered".into())
    );
}
