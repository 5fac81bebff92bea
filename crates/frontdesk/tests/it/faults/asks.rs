//! Questions of agents: answered from outside their session, once, by whoever is first, whatever died
//! in between.

use std::process::Output;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    Chance, SOON, agent_lives, begin_prompt, client, client_of, demo_desk, eventually, log, native,
    new_session, of_kind, openings, place, status, store,
};
use crate::acp::{ANSWER, Acp, Answers, Reply};
use crate::desk::Desk;

/// A person who looks at a question and says nothing.
pub(super) fn silent() -> Answers {
    Arc::new(|_| Reply::Silence)
}

fn words(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// The JSON that a command printed.
fn printed(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("no JSON: {out:?}"))
}

/// All open questions, as the command line tells them.
fn pending(desk: &Desk) -> Vec<Value> {
    let out = desk.cli(&["pending", "--json"]);
    assert!(out.status.success(), "{out:?}");
    printed(&out)["pending"].as_array().expect("a list").clone()
}

fn id(question: &Value) -> String {
    question["interaction"].as_str().expect("a question has an id").to_owned()
}

/// A silent client with a session that asks; the running prompt's words are about `title`.
fn asking(desk: &Desk, title: &str) -> (Acp, String, crate::acp::Pending) {
    let mut acp = client_of(desk, "demo", silent());
    let session = new_session(desk, &mut acp);
    let from = acp.mark();
    let running = begin_prompt(&mut acp, &session, &format!("ask {title}"));
    acp.wait_ask(from, "session/request_permission");
    (acp, session, running)
}

#[test]
fn what_waits_is_listed_oldest_first_and_answered_from_outside() {
    let desk = demo_desk().open();
    let (one, first, running) = asking(&desk, "May I build?");
    let (two, second, other) = asking(&desk, "May I push?");
    let open = pending(&desk);
    let titles: Vec<&str> = open.iter().filter_map(|it| it["title"].as_str()).collect();
    assert_eq!(titles, ["May I build?", "May I push?"], "{open:?}");
    for (question, session) in open.iter().zip([&first, &second]) {
        assert_eq!(question["sessionId"], **session);
        assert_eq!((&question["agent"], &question["kind"]), (&json!("demo"), &json!("permission")));
        assert_eq!(question["params"]["options"][0]["optionId"], "allow_once");
        assert_eq!(question["asked"][0]["name"], "desk:demo", "{question}");
        assert!(question["ageMs"].is_u64() && question["openedAt"].is_string());
        assert!(question["params"].get("sessionId").is_none());
    }
    let table = words(&desk.cli(&["pending"]).stdout);
    assert!(table.contains(&id(&open[0])) && table.contains("May I push?"), "{table}");
    assert!(!table.contains('\u{1b}'), "no colours where there is no terminal");

    // By its id: the choice that says yes for this once.
    let from = one.mark();
    let out = desk.cli(&["approve", &id(&open[0])]);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(words(&out.stdout), format!("answered {} with Allow once\n", id(&open[0])));
    assert_eq!(one.wait(running, ANSWER).expect("it goes on")["stopReason"], "end_turn");
    assert_eq!(one.text(&first, "agent_message_chunk", from), "Allowed (allow_once).");
    one.wait_frame(from, "the withdrawal", |frame| frame["method"] == "$/cancel_request");
    // By the beginning of its session.
    let out = desk.cli(&["deny", &second[..20], "--json"]);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(printed(&out)["answer"]["outcome"]["optionId"], "reject_once");
    assert_eq!(two.wait(other, ANSWER).expect("it goes on")["stopReason"], "end_turn");
    assert_eq!(pending(&desk), Vec::<Value>::new());

    let mut looker = client(&desk);
    let records = log(&mut looker, &first);
    let settled = of_kind(&records, "interaction_settled");
    assert_eq!(settled.len(), 1, "{settled:?}");
    let by = &settled[0]["by"];
    assert_eq!((&by["name"], &by["kind"]), (&json!("frontdesk-cli"), &json!("cli")), "{by}");
    assert!(by["client"].is_string());

    // Who is late is told who was first, when and with what; nothing else happens.
    let late = desk.cli(&["deny", &id(&open[0])]);
    let told = words(&late.stderr);
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    assert!(told.contains("\"Allow once\" by frontdesk-cli"), "{told}");
    let error = looker.err(
        "_frontdesk/answer",
        json!({ "sessionId": second, "interaction": id(&open[1]), "outcome": { "outcome": "cancelled" } }),
    );
    assert_eq!(error.code, -31018, "{error:?}");
    assert_eq!(error.data["settlement"]["answer"]["outcome"]["optionId"], "reject_once");
    assert_eq!(log(&mut looker, &first).len(), records.len());
}

#[test]
fn wrong_answers_are_refused_and_the_question_stays_open() {
    let desk = demo_desk().open();
    let (one, session, running) = asking(&desk, "May I?");
    let question = id(&pending(&desk)[0]);
    let code = |args: &[&str]| desk.cli(args).status.code();
    assert_eq!(code(&["approve", &question, "maybe"]), Some(2));
    assert_eq!(code(&["approve", &question, "--content", "{}"]), Some(2));
    assert_eq!(code(&["approve", &question, "--content", "no json"]), Some(2));
    assert_eq!(code(&["approve", "01a22bb6-2da2-7132-b868-40a3a5d1f51f"]), Some(4));
    assert_eq!(code(&["approve", "ask_01a22bb62da27132_8"]), Some(1));
    let choices = words(&desk.cli(&["approve", &question, "maybe"]).stderr);
    assert!(choices.contains("allow_always") && choices.contains("Reject"), "{choices}");

    let mut other = client(&desk);
    let mut answer = |mut params: Value| {
        params["interaction"] = json!(question);
        other.err("_frontdesk/answer", params)
    };
    let selected =
        |option: &str| json!({ "outcome": { "outcome": "selected", "optionId": option } });
    let error = answer(selected("never offered"));
    assert_eq!(error.code, -32602);
    assert_eq!(error.data["options"][0]["optionId"], "allow_once", "{error:?}");
    assert_eq!(answer(json!({})).code, -32602);
    assert_eq!(answer(json!({ "action": "accept" })).code, -32602);
    assert_eq!(answer(json!({ "sessionId": "nobody", "outcome": {} })).code, -32002);
    let none = other.err(
        "_frontdesk/answer",
        json!({ "sessionId": session, "interaction": "ask_1", "outcome": { "outcome": "cancelled" } }),
    );
    assert_eq!((none.code, &none.data["interaction"]), (-32602, &json!("ask_1")), "{none:?}");
    // What its own client says is held to the same: it is told, and the question is still there.
    let asked = one.wait_ask(0, "session/request_permission");
    let from = one.mark();
    one.send(&json!({ "jsonrpc": "2.0", "id": asked.id, "result": selected("never offered") }));
    let note = one.wait_update(&session, from, "a remark", |it| {
        it["_meta"]["frontdesk"]["interaction"] == question.as_str()
    });
    assert_eq!(note["_meta"]["frontdesk"]["note"], true);
    assert_eq!(pending(&desk).len(), 1);
    assert!(!one.is_answered(running));
    // By name, in any case; a command with an id is carried out once.
    assert_eq!(code(&["approve", &session, "ALWAYS allow"]), Some(0));
    assert_eq!(one.wait(running, ANSWER).expect("it goes on")["stopReason"], "end_turn");
    assert_eq!(
        one.text(&session, "agent_message_chunk", from).lines().last(),
        Some("Allowed (allow_always).")
    );
}

#[test]
fn an_error_or_a_client_that_goes_is_no_answer() {
    let desk = demo_desk().open();
    // It refuses what it is asked: method not found.
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let mut two = client_of(&desk, "demo", silent());
    two.ok("session/resume", place(&desk, Some(&session)));
    let running = begin_prompt(&mut one, &session, "ask May I?");
    let asked = two.wait_ask(0, "session/request_permission");
    assert_eq!(one.wait_ask(0, "session/request_permission").id, asked.id, "one id for all");
    drop(two);
    eventually("the question of nobody", SOON, || {
        let open = pending(&desk);
        open.len() == 1 && open[0]["asked"] == json!([])
    });
    // Who comes is asked again, for the same question.
    let before = id(&pending(&desk)[0]);
    let mut three = client_of(&desk, "demo", silent());
    three.ok("session/resume", place(&desk, Some(&session)));
    three.wait_ask(0, "session/request_permission");
    assert_eq!(id(&pending(&desk)[0]), before);
    assert!(!one.is_answered(running));
    assert_eq!(status(&mut one, &session).1["state"], "requires_action");
    let out = desk.cli(&["approve", &session]);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(one.wait(running, ANSWER).expect("it goes on")["stopReason"], "end_turn");
    assert_eq!(of_kind(&log(&mut one, &session), "interaction_settled").len(), 1);
}

#[test]
fn a_question_outlives_its_clients_and_the_daemon_and_is_answered_from_outside() {
    let mut desk = demo_desk().open();
    let (one, session, _) = asking(&desk, "May I?");
    let before = pending(&desk);
    drop(one);
    desk.kill9();
    desk.start();
    let open = pending(&desk);
    assert_eq!((open.len(), id(&open[0])), (1, id(&before[0])), "the same question");
    assert_eq!(open[0]["openedAt"], before[0]["openedAt"]);
    assert_eq!(open[0]["asked"], json!([]));
    let out = desk.cli(&["deny", &id(&open[0])]);
    assert!(out.status.success(), "{out:?}");
    let mut two = client(&desk);
    eventually("the end of the turn", SOON, || status(&mut two, &session).1["state"] == "idle");
    let records = log(&mut two, &session);
    assert_eq!(of_kind(&records, "turn_ended")[0]["outcome"], "completed");
    assert_eq!(of_kind(&records, "interaction_settled")[0]["by"]["kind"], "cli");
    // It is explained by the journal, also where nothing runs any more.
    desk.kill_all();
    desk.start();
    let late = desk.cli(&["approve", &id(&open[0])]);
    let told = words(&late.stderr);
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    assert!(told.contains("\"Reject\" by frontdesk-cli"), "{told}");
}

#[test]
fn forms_are_filled_in_declined_and_cancelled_from_outside() {
    let desk = demo_desk().open();
    let mut one = desk.acp("demo", silent());
    one.initialize(json!({ "elicitation": { "form": {} } }));
    let session = new_session(&desk, &mut one);
    let content = r#"{"answer":"main"}"#;
    let commands: [(&[&str], Value); 3] = [
        (
            &["approve", "--content", content],
            json!({ "action": "accept", "content": { "answer": "main" } }),
        ),
        (&["deny"], json!({ "action": "decline" })),
        (&["deny", "--cancel"], json!({ "action": "cancel" })),
    ];
    for (command, wanted) in commands {
        let from = one.mark();
        let running = begin_prompt(&mut one, &session, "elicit Which branch?");
        one.wait_ask(from, "elicitation/create");
        let open = pending(&desk);
        assert_eq!(
            (&open[0]["kind"], &open[0]["title"]),
            (&json!("elicitation"), &json!("Which branch?"))
        );
        // A form that needs fields is not approved without them, nor by a choice.
        for wrong in [&["approve", &session][..], &["approve", &session, "yes"]] {
            assert_eq!(desk.cli(wrong).status.code(), Some(2), "{wrong:?}");
        }
        let question = id(&open[0]);
        let args: Vec<&str> =
            command[..1].iter().chain([&question.as_str()]).chain(&command[1..]).copied().collect();
        let out = desk.cli(&args);
        assert!(out.status.success(), "{args:?}: {out:?}");
        assert_eq!(one.wait(running, ANSWER).expect("it goes on")["stopReason"], "end_turn");
        let said = one.text(&session, "agent_message_chunk", from);
        let told: Value =
            serde_json::from_str(said.strip_prefix("The form came back: ").expect("it came"))
                .unwrap();
        assert_eq!(told, wanted);
    }
}

#[test]
fn a_form_that_nobody_attached_can_show_waits_and_is_answered_from_outside() {
    let mut desk = demo_desk().open();
    // The one whose abilities the agent was told has left; who is there shows no forms.
    let mut one = desk.acp("demo", silent());
    one.initialize(json!({ "elicitation": { "form": {} } }));
    let session = new_session(&desk, &mut one);
    let mut two = client_of(&desk, "demo", silent());
    two.ok("session/resume", place(&desk, Some(&session)));
    drop(one);
    eventually("that it has left", SOON, || {
        two.ok("_frontdesk/who", json!({ "sessionId": session }))["clients"]
            .as_array()
            .is_some_and(|clients| clients.len() == 1)
    });
    let content = r#"{"answer":"main"}"#;
    let commands: [(&[&str], Value); 2] = [
        (&["approve", content], json!({ "action": "accept", "content": { "answer": "main" } })),
        (&["deny"], json!({ "action": "decline" })),
    ];
    for (command, wanted) in commands {
        let from = two.mark();
        let running = begin_prompt(&mut two, &session, "elicit Which branch?");
        let note = two
            .wait_update(&session, from, "a remark", |it| it["_meta"]["frontdesk"]["note"] == true);
        let open = pending(&desk);
        let question = id(&open[0]);
        let text = note["content"]["text"].as_str().unwrap();
        assert!(text.contains("Which branch?") && text.contains(&question), "{text}");
        assert_eq!((&open[0]["kind"], &open[0]["asked"]), (&json!("elicitation"), &json!([])));
        assert_eq!(status(&mut two, &session).1["state"], "requires_action");
        assert!(two.asked(from).is_empty(), "nobody is asked");
        let table = words(&desk.cli(&["pending"]).stdout);
        assert!(
            table.contains("no attached client can answer")
                && table.contains("--content and answer")
        );
        for incomplete in [&["approve", &session][..], &["approve", &session, r#"{"x":1}"#]] {
            assert_eq!(desk.cli(incomplete).status.code(), Some(2), "{incomplete:?}");
        }
        let args: Vec<&str> =
            command[..1].iter().chain([&question.as_str()]).chain(&command[1..]).copied().collect();
        let out = desk.cli(&args);
        assert!(out.status.success(), "{args:?}: {out:?}");
        assert_eq!(two.wait(running, ANSWER).expect("it goes on")["stopReason"], "end_turn");
        let said = two.text(&session, "agent_message_chunk", from);
        let (_, told) = said.split_once("The form came back: ").expect("it came");
        assert_eq!(serde_json::from_str::<Value>(told).unwrap(), wanted);
    }
    // It outlives the daemon too, and who comes and can show it is asked.
    let _running = begin_prompt(&mut two, &session, "elicit And now?");
    eventually("the question", SOON, || pending(&desk).len() == 1);
    let question = id(&pending(&desk)[0]);
    drop(two);
    desk.kill9();
    desk.start();
    assert_eq!(id(&pending(&desk)[0]), question);
    let mut three = desk.acp("demo", silent());
    three.initialize(json!({ "elicitation": { "form": {} } }));
    three.ok("session/resume", place(&desk, Some(&session)));
    let asked = three.wait_ask(0, "elicitation/create");
    assert_eq!(asked.params["message"], "And now?");
    three.send(&json!({ "jsonrpc": "2.0", "id": asked.id, "result": { "action": "decline" } }));
    eventually("its answer", SOON, || pending(&desk).is_empty());
}

#[test]
fn of_answers_in_the_same_moment_one_counts_and_the_rest_are_told() {
    let mut chance = Chance::new("answers_in_the_same_moment");
    let desk = demo_desk().open();
    let (mut one, mut two) =
        (client_of(&desk, "demo", silent()), client_of(&desk, "demo", silent()));
    let session = new_session(&desk, &mut one);
    two.ok("session/resume", place(&desk, Some(&session)));
    let mut outside: Vec<Acp> = (0..3).map(|_| client(&desk)).collect();
    let mut winners = [0_usize; 2];
    for round in 0..25 {
        let (from, from_two) = (one.mark(), two.mark());
        let running = begin_prompt(&mut one, &session, "ask May I?");
        let asked = one.wait_ask(from, "session/request_permission");
        two.wait_ask(from_two, "session/request_permission");
        let open = one.ok("_frontdesk/pending", json!({ "sessionId": session }));
        let question = id(&open["pending"][0]);
        let result =
            |option: &str| json!({ "outcome": { "outcome": "selected", "optionId": option } });
        let by_client = json!({ "jsonrpc": "2.0", "id": asked.id, "result": result("allow_once") });
        let mut sent = Vec::new();
        let place = chance.below(4) as usize;
        for (at, acp) in outside.iter_mut().enumerate() {
            if at == place {
                two.send(&by_client);
            }
            let mut params = result("reject_once");
            params["interaction"] = json!(question);
            sent.push(acp.begin("_frontdesk/answer", params));
        }
        if place == outside.len() {
            two.send(&by_client);
        }
        let answers: Vec<_> =
            outside.iter().zip(sent).map(|(acp, sent)| acp.wait(sent, ANSWER)).collect();
        assert_eq!(one.wait(running, ANSWER).expect("it goes on")["stopReason"], "end_turn");
        let won = answers.iter().filter(|answer| answer.is_ok()).count();
        assert!(won <= 1, "round {round}: {answers:?}");
        let chosen = if won == 1 { "reject_once" } else { "allow_once" };
        winners[won] += 1;
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!(error.code, -31018, "{error:?}");
            assert_eq!(error.data["settlement"]["answer"]["outcome"]["optionId"], chosen);
        }
        let said = one.text(&session, "agent_message_chunk", from);
        assert!(said.contains(&format!("({chosen}).")), "round {round}: {said}");
    }
    println!("won by the client {}, from outside {}", winners[0], winners[1]);
    let settled = log(&mut one, &session);
    assert_eq!(of_kind(&settled, "interaction_settled").len(), 25);
}

#[test]
fn an_answer_that_comes_too_late_reaches_no_agent_and_is_counted() {
    let desk = demo_desk().open();
    let (mut one, session, running) = asking(&desk, "May I?");
    let old = one.wait_ask(0, "session/request_permission");
    let late =
        |acp: &mut Acp| acp.ok("_frontdesk/info", json!({}))["counters"]["late_replies"].clone();
    assert_eq!(late(&mut one), 0);
    let native = native(&mut one, &session);
    let first = openings(&store(&desk), &native)[0].1;
    let killed = std::process::Command::new("kill").args(["-9", &first.to_string()]).status();
    assert!(killed.expect("kill runs").success());
    assert_eq!(one.wait(running, ANSWER).expect_err("its agent died").code, -31002);
    assert_eq!(pending(&desk), Vec::<Value>::new(), "the question died with it");
    // The next instance asks something else; the old yes is not for that.
    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "ask May I delete it?");
    let new = one.wait_ask(from, "session/request_permission");
    assert_ne!(new.id, old.id);
    let yes = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
    one.send(&json!({ "jsonrpc": "2.0", "id": old.id, "result": yes }));
    eventually("the late answer in the count", SOON, || late(&mut one) == 1);
    assert_eq!(pending(&desk).len(), 1);
    assert!(!one.is_answered(running) && !agent_lives(first));
    let out = desk.cli(&["deny", &session]);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(one.wait(running, ANSWER).expect("it goes on")["stopReason"], "end_turn");
    assert_eq!(one.text(&session, "agent_message_chunk", from), "Not allowed (reject_once).");
}
