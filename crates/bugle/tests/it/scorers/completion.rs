//! Task completion in the loop (SCO §3).

use std::sync::{Arc, Mutex};

use bugle::{
    RunOptions, Tool,
    chunk::FinishReason,
    json::{Value, json},
    memory::MemoryOptions,
    message::Role,
    model::Script,
    run::StopCondition,
    runtime::RunInput,
    scorer::{Score, ScorerInput, TaskCompletion, When},
};

use super::{by, checks, holds, passed};
use crate::r#loop::{Ran, call, echo, prompt, run_on, world_with};

fn steps(max: u32) -> RunOptions {
    RunOptions { max_steps: Some(max), ..RunOptions::default() }
}

fn step_finishes(ran: &Ran) -> Vec<Value> {
    ran.all("step-finish").iter().map(|chunk| chunk["payload"].clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn sco_030_sco_040_sco_045_sco_048_the_check_comes_after_the_text_and_before_step_finish() {
    let completion = TaskCompletion::all(vec![holds("DONE")]);
    let world = world_with(["not yet", "all DONE"], |agent| agent.is_task_complete(completion)).await;
    let ran = world.run("work").await;
    // The order of stream-is-task-complete.http.
    assert_eq!(
        ran.kinds(),
        [
            "start",
            "step-start",
            "text-start",
            "text-delta",
            "text-delta",
            "text-end",
            "is-task-complete",
            "step-finish",
            "step-start",
            "text-start",
            "text-delta",
            "text-delta",
            "text-end",
            "is-task-complete",
            "step-finish",
            "finish",
        ]
    );
    let failed = &checks(&ran)[0];
    assert_eq!(
        *failed,
        json!({
            "iteration": 1, "passed": false,
            "results": [{"score": 0, "passed": false, "reason": "no DONE", "scorerId": "holds", "scorerName": "holds", "duration": 0}],
            "duration": 0, "timedOut": false, "reason": "no DONE", "maxIterationReached": false, "suppressFeedback": false,
        })
    );
    assert_eq!(
        checks(&ran)[1]["results"][0],
        json!({"score": 1, "passed": true, "scorerId": "holds", "scorerName": "holds", "duration": 0})
    );
    let finishes = step_finishes(&ran);
    let flags =
        |finish: &Value| (finish["stepResult"]["isContinued"].clone(), finish["isTaskCompleteCheckFailed"].clone());
    assert_eq!(flags(&finishes[0]), (json!(true), json!(true)));
    assert_eq!(flags(&finishes[1]), (json!(false), json!(false)));
    assert_eq!(finishes[1]["messageId"], format!("{}-2", finishes[0]["messageId"].as_str().unwrap()));
    assert_eq!((ran.output.text.as_str(), ran.output.finish_reason), ("all DONE", FinishReason::Stop));
}

#[tokio::test(start_paused = true)]
async fn sco_042_sco_043_sco_044_sco_r7_the_feedback_is_stored_and_read_on_the_users_side() {
    let completion = TaskCompletion::all(vec![holds("DONE"), by("fine", |_| Ok(Score::pass().because("nice")))]);
    let world = world_with(["not yet", "DONE"], |agent| agent.is_task_complete(completion)).await;
    world.run("work").await;
    let second = prompt(&world.model.requests()[1]);
    let roles: Vec<&str> = second.as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
    let told = world.asked(1).pop().unwrap();
    assert_eq!(
        told,
        "# Completion check: the task is not complete\n\n1 of 2 checks passed; all have to pass. Duration: 0 ms.\n\n\
         - holds (holds): score 0, not passed\n  no DONE\n- fine (fine): score 1, passed\n\n\
         Continue working on the task, until these checks pass."
    );
    let stored = world.stored().await;
    let texts: Vec<String> = world.texts().await;
    assert_eq!(texts, ["work", "not yet", told.as_str(), "DONE"]);
    let feedback = &stored[2];
    assert_eq!(feedback.content.meta("mode"), Some(&json!("stream")));
    assert_eq!(feedback.content.meta("completionResult"), Some(&json!({"passed": false, "suppressFeedback": false})));
}

#[tokio::test(start_paused = true)]
async fn sco_042_a_later_run_still_reads_the_feedback_on_the_users_side() {
    let completion = TaskCompletion::all(vec![holds("DONE")]);
    let world = world_with(["not yet", "DONE", "hello"], |agent| agent.is_task_complete(completion)).await;
    world.run("work").await;
    let off = RunOptions { is_task_complete: Some(TaskCompletion::all(Vec::new())), ..RunOptions::default() };
    let ran = world.run_with("and now?", off).await;
    // SCO §3: an empty list turns the check off, and the call's replaces the agent's.
    assert_eq!(checks(&ran), Vec::<Value>::new());
    let third = prompt(&world.model.requests()[2]);
    let roles: Vec<&str> = third.as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant", "user"]);
}

#[tokio::test(start_paused = true)]
async fn sco_043_sco_r3_suppressed_feedback_reaches_the_model_and_is_not_stored() {
    let completion = TaskCompletion::all(vec![holds("DONE")]).suppress_feedback();
    let world = world_with(["not yet", "DONE"], |agent| agent.is_task_complete(completion)).await;
    let ran = world.run("work").await;
    assert!(world.asked(1).pop().unwrap().contains("no DONE"));
    assert_eq!(world.texts().await, ["work", "not yet", "DONE"]);
    assert_eq!(checks(&ran)[0]["suppressFeedback"], true);
}

#[tokio::test(start_paused = true)]
async fn sco_041_the_step_limit_ends_the_loop_with_the_last_text_and_without_an_error() {
    let check = || TaskCompletion::all(vec![holds("DONE")]);
    let world = world_with(["one", "two", "three"], |agent| agent.is_task_complete(check())).await;
    let ran = world.run_with("work", steps(2)).await;
    assert_eq!((world.model.requested(), passed(&ran)), (2, vec![(1, false), (2, false)]));
    let reached: Vec<Value> = checks(&ran).iter().map(|check| check["maxIterationReached"].clone()).collect();
    assert_eq!(reached, [json!(false), json!(true)]);
    assert_eq!(
        (ran.output.text.as_str(), ran.output.finish_reason, &ran.output.error),
        ("two", FinishReason::Stop, &None)
    );
    assert!(world.texts().await.pop().unwrap().ends_with("The limit of steps is reached; the work ends here."));

    // Unset, there are five.
    let world = world_with(["1", "2", "3", "4", "5", "6"], |agent| agent.is_task_complete(check())).await;
    let ran = world.run("work").await;
    assert_eq!((world.model.requested(), checks(&ran).len()), (5, 5));
    assert_eq!(checks(&ran)[4]["maxIterationReached"], true, "also at the default limit (SCO-045)");

    // So does `stopWhen`, once the check says that there is more to do.
    let world = world_with(["1", "2", "3", "4"], |agent| agent.is_task_complete(check())).await;
    let stop_when = vec![StopCondition(Arc::new(|steps| steps.len() >= 3))];
    let ran = world.run_with("work", RunOptions { stop_when, ..RunOptions::default() }).await;
    assert_eq!((world.model.requested(), checks(&ran).len(), ran.output.text.as_str()), (3, 3, "3"));
}

#[tokio::test(start_paused = true)]
async fn sco_030_sco_033_iterations_that_end_in_tool_calls_are_not_checked_and_scorers_see_the_run() {
    let seen: Arc<Mutex<Vec<ScorerInput>>> = Arc::default();
    let kept = seen.clone();
    let spy = by("spy", move |run| {
        kept.lock().unwrap().push(run.clone());
        Ok(Score::pass())
    });
    let completion = TaskCompletion::all(vec![spy]);
    let world = world_with([call(1), Script::new().text("done")], |agent| {
        agent.name("Plain").tool(echo()).is_task_complete(completion)
    })
    .await;
    let mut options = steps(7);
    options
        .request_context
        .set("theme", "dark")
        .set("mastra__resourceId", "user")
        .set("MastraMemory", json!({"live": true}));
    let ran = world.run_with("the task", options).await;
    assert_eq!(passed(&ran), [(2, true)], "the iteration is the turn of the loop (ruling 16)");
    let run = seen.lock().unwrap().remove(0);
    assert_eq!((run.run_id.clone(), run.text().as_str(), run.iteration()), (ran.output.run_id.clone(), "done", 2));
    let input = &run.input;
    for (field, value) in [
        ("maxIterations", json!(7)),
        ("originalTask", json!("the task")),
        ("selectedPrimitive", json!({"id": "stream", "type": "agent"})),
        ("primitiveResult", json!("done")),
        ("threadId", json!("thread")),
        ("resourceId", json!("user")),
        ("runId", json!(ran.output.run_id)),
        ("networkName", json!("Plain")),
    ] {
        assert_eq!(input[field], value, "{field}");
    }
    let messages = input["messages"].as_array().unwrap();
    assert_eq!(
        (messages.len(), &messages[0]["content"]["format"], &messages[0]["role"]),
        (2, &json!(2), &json!("user"))
    );
    // SCO-R5: no live objects, no identity.
    let context = &run.request_context;
    let keys: Vec<&str> = context.keys().map(String::as_str).collect();
    assert_eq!(keys, ["theme", "toolCalls", "toolResults", "agentId", "agentName"]);
    assert_eq!((&context["agentId"], &context["agentName"]), (&json!("plain"), &json!("Plain")));
}

#[tokio::test(start_paused = true)]
async fn sco_033_without_a_text_the_task_is_unknown() {
    let seen: Arc<Mutex<Option<String>>> = Arc::default();
    let kept = seen.clone();
    let spy = by("spy", move |run| {
        *kept.lock().unwrap() = run.task();
        Ok(Score::pass())
    });
    let world = world_with(["done"], |agent| agent.is_task_complete(TaskCompletion::all(vec![spy]))).await;
    world.agent.generate(RunInput::default(), None, RunOptions::default()).await.unwrap();
    assert_eq!(seen.lock().unwrap().as_deref(), Some("Unknown task"));
}

#[tokio::test(start_paused = true)]
async fn sco_031_sco_r12_errors_and_aborts_are_not_scored() {
    let completion = || TaskCompletion::all(vec![by("never", |_| panic!("there is no answer to judge"))]);
    let world = world_with([Script::new().fail_with(400, "no")], |agent| agent.is_task_complete(completion())).await;
    let ran = world.run("work").await;
    assert_eq!((world.model.requested(), checks(&ran).len()), (1, 0));
    assert_eq!(ran.output.finish_reason, FinishReason::Error);

    let error = Script::new().text("half").finish(FinishReason::Error);
    let world = world_with([error], |agent| agent.is_task_complete(completion())).await;
    let ran = world.run("work").await;
    assert_eq!((world.model.requested(), checks(&ran).len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn sco_051_every_iteration_can_be_checked_and_a_pass_ends_the_run() {
    let called = || {
        by("called", |run| {
            Ok(if run.request_context["toolResults"][0]["result"] == json!({"echo": {"n": 2}}) {
                Score::pass()
            } else {
                Score::fail("call it with 2")
            })
        })
    };
    let completion = TaskCompletion::all(vec![called()]).when(When::Iteration);
    let world = world_with([call(1), call(2), call(3)], |agent| agent.tool(echo()).is_task_complete(completion)).await;
    let ran = world.run("work").await;
    assert_eq!((passed(&ran), world.model.requested()), (vec![(1, false), (2, true)], 2));
    assert_eq!(ran.output.finish_reason, FinishReason::ToolCalls);
    let second = prompt(&world.model.requests()[1]);
    let roles: Vec<&str> = second.as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
    assert!(world.asked(1).pop().unwrap().contains("call it with 2"));
    let stored: Vec<Role> = world.stored().await.iter().map(|message| message.role).collect();
    assert_eq!(stored.len(), 4, "{stored:?}");
}

#[tokio::test(start_paused = true)]
async fn sco_031_sco_051_an_iteration_of_working_memory_alone_is_not_checked() {
    let update = Script::new().call("updateWorkingMemory", json!({"memory": "# Notes"}));
    let completion = TaskCompletion::all(vec![holds("DONE")]).when(When::Iteration);
    let memory = MemoryOptions::default().merged(Some(&json!({"workingMemory": {"enabled": true}}))).unwrap();
    let world =
        world_with([update, Script::new().text("DONE")], |agent| agent.memory(memory).is_task_complete(completion))
            .await;
    let ran = world.run("work").await;
    assert_eq!(passed(&ran), [(2, true)]);
}

#[tokio::test(start_paused = true)]
async fn sco_046_sco_r12_on_complete_is_awaited_after_every_check_and_its_failures_change_nothing() {
    for fails in [0, 1, 2] {
        let seen: Arc<Mutex<Vec<(bool, Option<String>)>>> = Arc::default();
        let kept = seen.clone();
        let completion = TaskCompletion::all(vec![holds("DONE")]).on_complete(move |result| {
            let kept = kept.clone();
            async move {
                tokio::time::sleep(std::time::Duration::from_secs(5)).await;
                kept.lock().unwrap().push((result.complete, result.completion_reason));
                assert_ne!(fails, 2, "as told");
                if fails == 1 { Err("as told".into()) } else { Ok(()) }
            }
        });
        let world = world_with(["not yet", "DONE"], |agent| agent.is_task_complete(completion)).await;
        let ran = world.run("work").await;
        assert_eq!(ran.output.text, "DONE");
        assert_eq!(*seen.lock().unwrap(), [(false, Some("no DONE".to_owned())), (true, None)]);
    }
}

#[tokio::test(start_paused = true)]
async fn sco_049_it_works_without_memory_and_in_generate() {
    let completion = || TaskCompletion::all(vec![holds("DONE")]);
    let world = world_with(["not yet", "DONE"], |agent| agent.is_task_complete(completion())).await;
    let ran = run_on(&world.agent, "work", None, RunOptions::default()).await;
    assert_eq!((passed(&ran), ran.output.text.as_str()), (vec![(1, false), (2, true)], "DONE"));
    assert_eq!(world.stored().await, []);

    let world = world_with(["not yet", "DONE"], |agent| agent.is_task_complete(completion())).await;
    let output =
        world.agent.generate(crate::r#loop::input("work"), Some(&world.thread), RunOptions::default()).await.unwrap();
    assert_eq!(
        (output.text.as_str(), world.model.requested()),
        ("DONE", 2),
        "text is the last answer's (SCO-048, SCO-R12)"
    );
}

#[tokio::test(start_paused = true)]
async fn sco_047_input_that_waits_postpones_the_check() {
    let completion = TaskCompletion::all(vec![holds("DONE")]);
    let gate = bugle::model::Gate::new();
    let scripts = [Script::new().text("DONE ").gate(&gate).text("nearly"), Script::new().text("DONE")];
    let world = world_with(scripts, |agent| agent.is_task_complete(completion)).await;
    let mut watcher = world.watch().await;
    world.send("first").await;
    gate.reached().await;
    world.send("second").await;
    gate.open();
    watcher.until("finish").await;
    let iterations: Vec<Value> = watcher
        .chunks
        .iter()
        .filter(|chunk| chunk.kind() == "is-task-complete")
        .map(|chunk| serde_json::to_value(chunk).unwrap()["payload"]["iteration"].clone())
        .collect();
    assert_eq!(iterations, [json!(2)]);
}

#[tokio::test(start_paused = true)]
async fn sco_051_a_client_tool_leaves_the_answer_to_the_client() {
    let client = Tool::client("ask").with_input_schema(json!({"type": "object"}));
    let completion = TaskCompletion::all(vec![holds("DONE")]);
    let world =
        world_with([Script::new().call("ask", json!({}))], |agent| agent.tool(client).is_task_complete(completion))
            .await;
    let ran = world.run("work").await;
    assert_eq!((checks(&ran), ran.output.finish_reason), (Vec::<Value>::new(), FinishReason::ToolCalls));
}
