//! Starting and ending: what is said, what is left, what is refused (CLI-063 … CLI-073).

use std::time::Duration;

use crate::support::{Project, Running};

#[test]
fn cli_030_dev_in_an_empty_directory_answers_hello() {
    let project = Project::empty();
    let server = project.serve(&["dev"]);
    assert_eq!(server.ready["agents"], serde_json::json!(["assistant", "planner"]));
    assert_eq!(server.ready["storage"], "file:bugle.db");
    let done = project.run(&["send", "hello"]).ok();
    assert_eq!(done.stdout, "ack: hello\n");
    let done = project.run(&["send", "[[call calculator {\"expression\":\"6*7\"}]] [[say done]]"]).ok();
    assert_eq!(done.stdout, "done\n");
    assert!(
        done.stderr.contains("* calculator {\"expression\":\"6*7\"}") && done.stderr.contains("42"),
        "{}",
        done.stderr
    );
    assert_eq!(server.stop().code, Some(0));
}

#[test]
fn cli_063_dev_says_what_it_serves_and_what_is_missing() {
    let project = Project::with_agent();
    project.file("agents/orders.md", "---\nmodel: openai/gpt-4o-mini\ntools: [notification-inbox]\n---\nHelp.\n");
    project.file("agents/bad.md", "---\nmodel: nowhere/x\n---\nHelp.\n");
    let running = Running::start(project.command(&["dev", "--port", "0"]));
    assert_eq!(running.line(), "bugle 0.1.0 (dev)");
    assert_eq!(running.line(), "");
    let api = running.line();
    assert!(api.starts_with("  API       http://127.0.0.1:") && api.ends_with("/api"), "{api:?}");
    assert_eq!(running.line(), "  agents    helper (scripted/scripted), orders (openai/gpt-4o-mini)");
    assert_eq!(running.line(), "  tools     orders: 1 tool");
    assert_eq!(running.line(), "  storage   file:bugle.db");
    assert_eq!(running.line(), "  auth      none, loopback only");
    assert_eq!(running.line(), "");
    assert_eq!(running.line(), "  try       bugle send \"Hello\"");
    // The file is there while the server runs, and names it.
    let file: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(project.path().join(".bugle/server.json")).unwrap()).unwrap();
    assert_eq!(file["pid"], running.pid());
    running.signal("INT");
    let done = running.wait();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(!project.path().join(".bugle/server.json").exists());
    let notes: Vec<&str> = done.stderr.lines().collect();
    assert!(notes[0].starts_with("! agents/bad.md:2:8: model: the provider \"nowhere\""), "{notes:?}");
    assert!(notes.contains(&"! orders: OPENAI_API_KEY is not set; its runs will fail"), "{notes:?}");
    assert!(notes.contains(&"! changes of files need a restart; reloading is not in this version"), "{notes:?}");
}

#[test]
fn cli_013_dev_serves_the_good_agents_and_404_for_the_faulty_one() {
    let project = Project::with_agent();
    project.file("agents/bad.md", "---\nmaxSteps: none\n---\nHelp.\n");
    let server = project.serve(&["dev"]);
    assert_eq!(server.ready["agents"], serde_json::json!(["helper"]));
    assert_eq!(project.run(&["send", "hello"]).ok().stdout, "ack: hello\n");
    let done = project.run(&["send", "hello", "-a", "bad"]);
    assert_eq!((done.code, done.stderr.as_str()), (Some(3), "error: Agent with id bad not found\n"));
}

#[test]
fn cli_064_an_address_in_use_is_code_2_and_names_the_holder() {
    let project = Project::with_agent();
    let server = project.serve(&["serve"]);
    let address = server.url().strip_prefix("http://").unwrap().to_owned();
    let own = project.run(&["serve", "--listen", &address]);
    let pid = server.running.pid();
    assert_eq!(own.code, Some(2));
    assert_eq!(
        own.stderr,
        format!(
            "error: {address} is in use by the Bugle of this project (pid {pid}); take a free port with --port 0\n"
        )
    );
    let other = Project::with_agent().run(&["serve", "--listen", &address]);
    assert_eq!(other.stderr, format!("error: {address} is in use by a Bugle; take a free port with --port 0\n"));
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    let third = project.run(&["serve", "--listen", &address]);
    assert_eq!(third.stderr, format!("error: {address} is in use; take a free port with --port 0\n"));
}

#[test]
fn cli_072_the_first_signal_drains_and_a_second_ends_at_once() {
    let project = Project::with_agent();
    project.file("bugle.toml", "[server]\ndrain-timeout = \"20s\"\n");
    let server = project.serve(&["serve"]);
    let watch = Running::start(project.command(&["watch", "--json"]));
    project.run(&["send", "[[slow 3000 20]]", "--no-wait"]).ok();
    watch.line_where(|line| line.contains("text-delta"));
    server.running.signal("TERM");
    // Draining is visible from outside: new input is refused, and nothing of it is kept.
    let refused = (0..500).find_map(|_| {
        let done = project.run(&["send", "too late", "--no-wait", "-s", server.url()]);
        (done.code != Some(0)).then_some(done)
    });
    let refused = refused.unwrap();
    assert_eq!(refused.code, Some(6), "{refused:?}");
    assert!(refused.stderr.contains("draining"), "{refused:?}");
    server.running.signal("INT");
    let done = server.running.wait();
    assert_eq!(done.code, Some(130), "{done:?}");
}

#[test]
fn cli_071_sigint_ends_the_command_and_not_the_run() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let watch = Running::start(project.command(&["watch", "--json", "--runs", "1"]));
    let send = Running::start(project.command(&["send", "--json", "[[slow-think 100000 20]]"]));
    send.line_where(|line| line.contains("reasoning-delta"));
    send.signal("INT");
    let done = send.wait();
    assert_eq!(done.code, Some(130));
    assert!(done.stderr.contains("the run goes on; stop it with: bugle abort"), "{done:?}");
    // The run is still there to be steered to its end.
    let steered = project.run(&["send", "--json", "[[say the end]]"]).ok();
    assert_eq!(steered.json()[0]["action"], "deliver");
    let finish = watch.line_where(|line| line.contains("\"type\":\"finish\""));
    assert!(finish.contains("\"stop\""), "{finish}");
    assert_eq!(watch.wait().code, Some(0));
}

#[test]
fn cli_070_a_timeout_is_code_7_and_the_run_goes_on() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let done = project.run(&["send", "[[hang]]", "--timeout", "300ms"]);
    assert_eq!(done.code, Some(7), "{done:?}");
    assert!(done.stderr.contains("--timeout passed; the run goes on"), "{done:?}");
    let stopped = project.run(&["abort"]).ok();
    assert!(stopped.stdout.starts_with("stopped run "), "{stopped:?}");
    let nothing = project.run(&["abort"]);
    assert_eq!((nothing.code, nothing.stderr.as_str()), (Some(1), "error: nothing is running on thread main\n"));
}

#[test]
fn cli_032_tokens_let_in_and_keep_out() {
    let project = Project::with_agent();
    project.file(
        "bugle.toml",
        "[auth]\nmode = \"tokens\"\n[[auth.tokens]]\ntoken = \"env:ANN\"\nuser = \"ann\"\n[[auth.tokens]]\ntoken = \"mallory-token-0001\"\nuser = \"mallory\"\nallow = false\n",
    );
    project.file("keys.env", "ANN=ann-token-00000001\n");
    let server = project.serve(&["serve", "--env-file", "keys.env"]);
    let with = |token: &str| project.run(&["send", "hi", "-a", "helper", "--token", token]);
    assert_eq!(with("ann-token-00000001").ok().stdout, "ack: hi\n");
    assert_eq!((with("wrong").code, with("mallory-token-0001").code), (Some(4), Some(4)));
    let mut command = project.command(&["threads", "--json"]);
    command.env("BUGLE_TOKEN", "ann-token-00000001");
    let threads = Running::start(command).wait().ok();
    assert_eq!(threads.json()[0]["resourceId"], "ann");
    drop(server);
}

#[test]
fn cli_005_dev_reads_dot_env_and_serve_does_not() {
    let project = Project::with_agent();
    project.file("agents/orders.md", "---\nmodel: openai/gpt-4o-mini\n---\nHelp.\n");
    project.file(".env", "OPENAI_API_KEY=k\n");
    let dev = project.serve(&["dev"]);
    assert!(!dev.stop().stderr.contains("OPENAI_API_KEY"));
    let serve = project.serve(&["serve"]);
    assert!(serve.stop().stderr.contains("OPENAI_API_KEY is not set"));
}

#[test]
fn cli_060_a_closed_reader_is_no_error() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let mut command = project.command(&["send", "[[slow 200 5]]"]);
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let start = std::time::Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(0));
}
