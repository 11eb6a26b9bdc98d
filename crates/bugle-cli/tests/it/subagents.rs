//! Agents that delegate: the example project, the demo, rubrics in files.

use std::path::Path;

use serde_json::Value;

use crate::support::Project;

/// `examples/subagents`, in a directory of its own.
fn example() -> Project {
    let project = Project::empty();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/subagents");
    for name in ["bugle.toml", "agents/lead.md", "agents/research.md", "agents/writing.md"] {
        project.file(name, &std::fs::read_to_string(source.join(name)).unwrap());
    }
    project
}

/// The payloads of the chunks of this type.
fn payloads(lines: &[Value], kind: &str) -> Vec<Value> {
    lines.iter().filter(|line| line["type"] == kind).map(|line| line["payload"].clone()).collect()
}

#[test]
fn cli_012_sub_104_the_example_project_delegates_and_hands_results_on_by_reference() {
    let project = example();
    let _server = project.serve(&["serve"]);
    let text = concat!(
        "How do otters sleep?\n",
        "[[call agent-research {\"prompt\": \"Look it up. [[say They hold hands.]]\"}]]",
        "[[call agent-writing {\"prompt\": \"Write. [[dump]]\", \"contextFromRefs\": [\"research-1\"]}]]",
        "[[say Done.]]"
    );
    let lines = project.run(&["send", "--json", text]).ok().json();
    let results = payloads(&lines, "tool-result");
    assert_eq!(
        (results[0]["toolName"].as_str(), results[0]["result"]["text"].as_str()),
        (Some("agent-research"), Some("They hold hands."))
    );
    assert_eq!(results[0]["result"]["ref"], "research-1");
    let written = results[1]["result"]["text"].as_str().unwrap();
    assert!(written.contains("They hold hands.") && written.contains("Write plain sentences"), "{written}");
    assert_eq!(lines.last().unwrap()["text"], "Done.");
}

#[test]
fn cli_011_sco_060_a_rubric_of_a_file_judges_the_answer() {
    let project = example();
    let _server = project.serve(&["serve"]);
    let reply = |second: bool| {
        let entry = |number: u32, satisfied: bool| {
            format!("{{\"criterion\":\"{number}\",\"satisfied\":{satisfied},\"required\":true,\"reasoning\":\"seen\"}}")
        };
        format!("{{\"criteria\":[{},{}],\"overallAssessment\":\"fine\"}}", entry(1, true), entry(2, second))
    };
    // The scripted judge does what the first block of the task says, as the agent did before it.
    let send = |text: String| project.run(&["send", "--json", "-a", "writing", "-t", "rubric", &text]).ok().json();
    let check = payloads(&send(format!("[[say {}]]", reply(true))), "is-task-complete").remove(0);
    assert_eq!(
        (check["passed"].as_bool(), check["results"][0]["scorerId"].as_str()),
        (Some(true), Some("rubric-scorer"))
    );
    let checks = payloads(&send(format!("[[say {}]]", reply(false))), "is-task-complete");
    assert_eq!(checks[0]["passed"], false);
    let reason = checks[0]["results"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("✗ [required] is shorter than a page: seen"), "{reason}");
}

#[test]
fn cli_030_the_demo_planner_delegates_to_its_researcher() {
    let project = Project::empty();
    let _server = project.serve(&["dev"]);
    let text = "[[call agent-researcher {\"prompt\": \"Look. [[call calculator {\\\"expression\\\":\\\"6*7\\\"}]] [[say 42]]\"}]] [[say Done.]]";
    let lines = project.run(&["send", "--json", "-a", "planner", text]).ok().json();
    let result = payloads(&lines, "tool-result").remove(0);
    assert_eq!(
        (result["toolName"].as_str(), result["result"]["text"].as_str()),
        (Some("agent-researcher"), Some("42"))
    );
    assert_eq!(result["result"]["subAgentToolResults"][0]["result"]["value"], 42.0);
    assert_eq!(lines.last().unwrap()["text"], "Done.");
}

#[test]
fn sub_165_a_cycle_of_files_ends_at_the_depth_limit() {
    let project = Project::empty();
    project.file(
        "bugle.toml",
        "[models]\ndefault = \"scripted/scripted\"\n[agents]\ndefault = \"ping\"\n[runs]\nmax-delegation-depth = 2\n",
    );
    project.file("agents/ping.md", "---\ndescription: Asks pong.\nagents: [pong]\n---\nPing.\n");
    project.file("agents/pong.md", "---\ndescription: Asks ping.\nagents: [ping]\n---\nPong.\n");
    let _server = project.serve(&["serve"]);
    let call = |key: &str, inner: &str, say: &str| {
        let prompt = serde_json::to_string(inner).unwrap();
        format!("[[call agent-{key} {{\"prompt\": {prompt}}}]] [[say {say}]]")
    };
    let text = call("pong", &call("ping", &call("pong", "never asked", "too deep"), "pong is done"), "ping is done");
    let lines = project.run(&["send", "--json", &text]).ok().json();
    let result = payloads(&lines, "tool-result").remove(0)["result"].clone();
    assert_eq!(result["text"], "pong is done");
    let inner = &result["subAgentToolResults"][0]["result"];
    assert_eq!(inner["text"], "too deep");
    let refused = inner["subAgentToolResults"][0].to_string();
    assert!(refused.contains("\"isError\":true") && refused.contains('2'), "{refused}");
}

#[test]
fn cli_055_sub_120_an_approval_of_the_example_travels_up_and_outlives_the_server() {
    let project = example();
    let text = concat!(
        "Anything new?\n",
        "[[call agent-research {\"prompt\": \"Look. [[call notification-inbox {\\\"action\\\": \\\"list\\\"}]] [[say No news.]]\"}]]",
        "[[say Done.]]"
    );
    let server = project.serve(&["serve"]);
    // Nobody is there to ask.
    let waiting = project.run(&["send", text]);
    assert_eq!(waiting.code, Some(5), "{waiting:?}");
    assert!(waiting.stderr.contains("bugle approve"), "{waiting:?}");
    drop(server);
    let _server = project.serve(&["serve"]);
    let list = project.run(&["approve", "--list", "--json"]).ok().json();
    assert_eq!((list.len(), list[0]["toolName"].as_str()), (1, Some("notification-inbox")), "{list:?}");
    let approved = project.run(&["approve", "--wait"]).ok();
    assert!(approved.stdout.contains("Done."), "{approved:?}");
    assert_eq!(project.run(&["approve", "--list", "--json"]).ok().stdout, "");
}
