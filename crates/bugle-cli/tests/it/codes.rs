//! Every exit code that this version can reach (CLI §8), and the form of errors.

use std::time::{Duration, Instant};

use crate::support::{Project, fixed_server, run_with_input};

#[test]
fn cli_050_send_without_a_server_is_code_6_within_a_second() {
    let project = Project::empty();
    // A port that nobody has: bound, then given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let start = Instant::now();
    let done = project.run(&["send", "hello", "-s", &url, "-a", "x"]);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(done.code, Some(6), "{done:?}");
    assert_eq!(done.stderr, format!("error: no server at {url}; start one with: bugle dev\n"));
    assert_eq!(done.stdout, "");
}

#[test]
fn cli_062_an_error_is_a_json_line_with_json() {
    let project = Project::empty();
    let done = project.run(&["--json", "send", "hello", "-s", "http://127.0.0.1:1", "-a", "x"]);
    let error: serde_json::Value = serde_json::from_str(done.stderr.trim()).unwrap();
    assert_eq!(error["error"]["code"], "unavailable");
    assert_eq!(error["error"]["hint"], "start one with: bugle dev");
    assert_eq!((done.code, done.stdout.as_str()), (Some(6), ""));
    let usage = project.run(&["--json", "send", "--no-such-flag"]);
    assert_eq!(usage.code, Some(2));
    assert!(serde_json::from_str::<serde_json::Value>(usage.stderr.trim()).unwrap()["error"]["message"].is_string());
}

#[test]
fn cli_070_statuses_of_a_server_become_codes() {
    let project = Project::empty();
    for (status, code) in [
        ("400 Bad Request", 2),
        ("413 Payload Too Large", 2),
        ("404 Not Found", 3),
        ("401 Unauthorized", 4),
        ("403 Forbidden", 4),
        ("409 Conflict", 5),
        ("429 Too Many Requests", 5),
        ("503 Service Unavailable", 6),
    ] {
        let url = fixed_server(status, "{\"error\":\"no\"}");
        let done = project.run(&["send", "hello", "-s", &url, "-a", "x", "--no-wait"]);
        assert_eq!(done.code, Some(code), "{status}: {done:?}");
        assert!(done.stderr.starts_with("error: no"), "{done:?}");
    }
}

#[test]
fn cli_070_input_that_is_blocked_is_code_5_and_stored_or_dropped_input_is_code_0() {
    let project = Project::empty();
    let signal =
        r#""signal":{"id":"s","type":"user","tagName":"user","contents":"hi","createdAt":"2026-01-01T00:00:00.000Z"}"#;
    for (action, code) in [("blocked", 5), ("persist", 0), ("discard", 0)] {
        let body = format!("{{\"accepted\":true,\"action\":\"{action}\",\"runId\":\"r\",{signal}}}");
        let url = fixed_server("200 OK", body.leak());
        let done = project.run(&["send", "hi", "-s", &url, "-a", "x", "--no-wait"]);
        assert_eq!(done.code, Some(code), "{done:?}");
        assert_eq!(done.stdout, format!("{action} run r signal s\n"));
    }
}

#[test]
fn cli_052_empty_text_and_wrong_flags_are_code_2() {
    let project = Project::empty();
    for args in [
        &["send", "  ", "-a", "x"][..],
        &["send", "-a", "x"],
        &["send", "x", "--attr", "noequals", "-a", "x"],
        &["send", "x", "--meta", "[1]", "-a", "x"],
        &["send", "x", "--if-active", "shout", "-a", "x"],
        &["send", "x", "--file", "none.png", "-a", "x"],
        &["send", "x", "--timeout", "soon"],
        &["watch", "--runs", "0"],
        &["chat"],
        &["doctor"],
        &[],
    ] {
        let done = project.run(args);
        assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{args:?}: {done:?}");
    }
    let done = run_with_input(project.command(&["send", "-", "-a", "x"]), "\n");
    assert_eq!(done.code, Some(2), "{done:?}");
}

#[test]
fn cli_003_a_faulty_bugle_toml_stops_every_command_with_all_its_errors() {
    let project = Project::with_agent();
    project.file("bugle.toml", "[lease]\ntll = \"15s\"\n[server]\nlisten = 5\n[otel]\nendpoint = \"http://x\"\n");
    for command in ["dev", "serve", "watch"] {
        let done = project.run(&[command]);
        assert_eq!(done.code, Some(2), "{done:?}");
        let lines: Vec<&str> = done.stderr.lines().collect();
        assert_eq!(
            lines,
            [
                "error: bugle.toml:2:1: lease.tll: unknown key; did you mean \"ttl\"?",
                "error: bugle.toml:4:1: server.listen: must be a text",
                "error: bugle.toml:6:1: otel.endpoint is not in this version; remove it",
            ]
        );
    }
}

#[test]
fn cli_013_serve_refuses_a_faulty_agent_with_file_line_and_field() {
    let project = Project::with_agent();
    project.file("agents/bad.md", "---\nmodel: scripted/scripted\nmaxStep: 3\n---\nHelp.\n");
    let done = project.run(&["serve", "--port", "0"]);
    assert_eq!(done.code, Some(2));
    assert_eq!(done.stderr, "error: agents/bad.md:3:1: maxStep: unknown field; did you mean \"maxSteps\"?\n");
}

#[test]
fn cli_030_serve_refuses_a_project_without_agents() {
    let done = Project::empty().run(&["serve", "--port", "0"]);
    assert_eq!(done.code, Some(2));
    assert!(done.stderr.contains("no agents in") && done.stderr.contains("bugle dev"), "{}", done.stderr);
}

#[test]
fn cli_031_listening_on_all_addresses_without_auth_refuses() {
    let done = Project::with_agent().run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(done.code, Some(2));
    assert!(done.stderr.contains("can be reached from other machines"), "{}", done.stderr);
}

#[test]
fn mcp_files_are_refused_and_not_ignored() {
    let project = Project::with_agent();
    project.file(".mcp.json", "{\"mcpServers\":{}}");
    let done = project.run(&["serve", "--port", "0"]);
    assert_eq!(done.code, Some(2));
    assert!(done.stderr.starts_with("error: .mcp.json: tool servers are not in this version"), "{}", done.stderr);
    project.file("bugle.toml", "[mcp]\nfiles = []\n");
    project.run(&["serve", "--check"]).ok();
}

#[test]
fn cli_002_check_prints_every_effective_setting_with_its_origin_and_no_secret() {
    let project = Project::with_agent();
    project.file(
        "bugle.toml",
        "[auth]\nmode = \"tokens\"\n[[auth.tokens]]\ntoken = \"a-secret-of-the-user\"\nuser = \"ann\"\n[server]\nkeep-alive = \"5s\"\n",
    );
    let mut command = project.command(&["serve", "--check", "--json"]);
    command.env("BUGLE_STORAGE_SYNCHRONOUS", "full").env("BUGLE_SERVER_LISTN", "x");
    let done = run_with_input(command, "").ok();
    let rows = done.json();
    let row = |key: &str| rows.iter().find(|row| row["key"] == key).unwrap().clone();
    assert_eq!(
        (row("server.keep-alive")["value"].as_str(), row("server.keep-alive")["origin"].as_str()),
        (Some("5s"), Some("bugle.toml:7:1"))
    );
    assert_eq!(row("storage.synchronous")["origin"], "BUGLE_STORAGE_SYNCHRONOUS");
    assert_eq!(row("server.prefix")["origin"], "default");
    assert!(row("auth.tokens")["value"].as_str().unwrap().starts_with("***"));
    assert!(!done.stdout.contains("a-secret"));
    assert!(done.stderr.contains("did you mean BUGLE_SERVER_LISTEN?"), "{}", done.stderr);
}
