//! Answers of people who take no part, and questions that nobody is to be asked any more.

use super::scenarios::{ASK, choose, end_turn, hop_of};
use super::*;

const NOTHING: [&str; 0] = [];

fn open(bench: &Bench) -> Vec<String> {
    bench.session.open_questions().map(|(id, _, _)| id.to_owned()).collect()
}

fn decision(interaction: &str, option: &str) -> Input {
    Input::Decide(Box::new(Decision {
        interaction: interaction.to_owned(),
        by: json!({ "client": "k9", "name": "cli" }),
        result: choose(option).result().unwrap().to_owned(),
    }))
}

#[test]
fn an_answer_from_outside_settles_the_question_for_everybody_once() {
    let key = "01a22bb6-2da2-7132-b868-40a3a5d1f51f".parse().unwrap();
    let mut bench = Bench::live();
    bench.session = std::mem::replace(&mut bench.session, Bench::live().session).with_key(key);
    bench.join(2);
    bench.prompt(1, "3", "x");
    let hop = hop_of(&bench.agent(ASK));
    let id = open(&bench).remove(0);
    let opened = bench.session.view().seq;
    assert_eq!(id, format!("ask_01a22bb62da27132_{opened}"));
    let asked: Vec<usize> = bench.session.open_questions().map(|(.., to)| to.len()).collect();
    assert_eq!(asked, [2]);

    let may = |bench: &Bench, id: &str, option: &str| {
        bench.session.may_answer(id, choose(option).result().unwrap())
    };
    assert_eq!(may(&bench, &id, "never offered"), Err(NoAnswer::NotOffered));
    assert_eq!(may(&bench, "ask_1", "no"), Err(NoAnswer::NotOpen));
    assert_eq!(words(&bench.run(decision(&id, "never offered"))), NOTHING);
    assert_eq!(words(&bench.run(decision("ask_1", "no"))), NOTHING);
    assert_eq!(open(&bench).len(), 1, "it is still open");
    assert_eq!(may(&bench, &id, "no"), Ok(()));

    let effects = bench.run(decision(&id, "no"));
    let wanted = ["write interaction_settled", "sync", "reply ok"];
    let told = ["forget c1", "tell c1 $/cancel_request", "forget c2", "tell c2 $/cancel_request"];
    assert_eq!(words(&effects), [&wanted[..], &told[..]].concat());
    let Effect::Append(record) = &effects[0] else { panic!("{effects:?}") };
    let settled: Value = record.payload().unwrap();
    assert_eq!(settled["by"], json!({ "client": "k9", "name": "cli" }));
    assert_eq!(settled["answer"]["outcome"]["optionId"], "no");

    // Whoever is later changes nothing.
    assert_eq!(may(&bench, &id, "yes"), Err(NoAnswer::NotOpen));
    assert_eq!(words(&bench.run(decision(&id, "yes"))), NOTHING);
    let late = Input::Answer { conn: ConnId(1), hop, frame: choose("yes") };
    assert_eq!(words(&bench.run(late)), NOTHING);
    assert_eq!(bench.session.state(), Some(State::Running));
}

#[test]
fn what_is_asked_while_a_turn_is_being_cancelled_is_answered_as_cancelled() {
    let mut bench = Bench::live();
    let first = bench.prompt(1, "3", "x");
    bench.run(Input::Cancel { conn: ConnId(1) });
    let at_once =
        ["write interaction_opened", "sync", "write interaction_settled", "sync", "reply ok"];
    assert_eq!(words(&bench.agent(ASK)), at_once);
    assert_eq!(bench.session.state(), Some(State::Running), "nobody is waited for");
    // The same from a turn that was closed and still runs at the agent.
    bench.wait(10_000);
    assert_eq!(words(&bench.agent(ASK)), at_once);
    assert_eq!(bench.session.state(), Some(State::Idle));
    // The next turn may ask again.
    end_turn(&mut bench, sent(&first));
    bench.prompt(1, "4", "y");
    assert_eq!(words(&bench.agent(ASK)).last().unwrap(), "ask c1 session/request_permission");
}

#[test]
fn a_question_that_its_turn_leaves_open_is_answered_when_the_turn_ends() {
    let mut bench = Bench::live();
    let first = bench.prompt(1, "3", "x");
    bench.agent(ASK);
    let effects = end_turn(&mut bench, sent(&first));
    assert_eq!(
        words(&effects),
        [
            "write interaction_settled",
            "reply ok",
            "forget c1",
            "tell c1 $/cancel_request",
            "write turn_ended",
            "sync",
            "answer c1 3 ok"
        ]
    );
    let answered = effects.iter().find_map(|effect| match effect {
        Effect::Settle { frame: Some(frame), .. } => serde_json::from_slice::<Value>(frame).ok(),
        _ => None,
    });
    assert_eq!(answered.unwrap()["result"]["outcome"]["outcome"], "cancelled");
}

fn elicit(mode: &str) -> String {
    format!(
        r#"{{"id":6,"method":"elicitation/create","params":{{"sessionId":"n","mode":"{mode}","message":"Which \"branch\"?"}}}}"#
    )
}

fn decided(interaction: &str, result: &str) -> Input {
    let by = json!({ "client": "k9", "name": "cli" });
    Input::Decide(Box::new(Decision {
        interaction: interaction.to_owned(),
        by,
        result: result.to_owned(),
    }))
}

#[test]
fn an_elicitation_that_nobody_can_show_waits_and_is_answered_from_outside() {
    let mut bench = Bench::live();
    bench.join(2);
    bench.prompt(1, "3", "x");
    let effects = bench.agent(&elicit("form"));
    let remarks = ["tell c1 session/update", "tell c2 session/update"];
    let opened = ["write interaction_opened", "sync"];
    assert_eq!(words(&effects), [&opened[..], &remarks].concat());
    let id = open(&bench).remove(0);
    let Some(Effect::Tell { frame, .. }) = effects.last() else { panic!("{effects:?}") };
    let told: Value = serde_json::from_slice(frame).unwrap();
    let told = told["params"]["update"]["content"]["text"].as_str().unwrap();
    assert!(told.contains(&format!("`frontdesk approve {id}`")), "{told}");
    assert!(told.contains(r#"can show: "Which \"branch\"?"."#), "{told}");
    assert_eq!(bench.session.state(), Some(State::RequiresAction));
    // Time answers nothing, and nor does what is no answer.
    assert_eq!(words(&bench.wait(3_600_000)), NOTHING);
    let no_answer = r#"{"outcome":{"outcome":"cancelled"}}"#;
    assert_eq!(words(&bench.run(decided(&id, no_answer))), NOTHING);
    let effects = bench.run(decided(&id, r#"{"action":"accept","content":{"n":1e2}}"#));
    assert_eq!(words(&effects), ["write interaction_settled", "sync", "reply ok"]);
    let reply = effects.iter().find_map(|effect| match effect {
        Effect::Settle { frame: Some(frame), .. } => Some(frame.clone()),
        _ => None,
    });
    let reply = String::from_utf8(reply.unwrap().to_vec()).unwrap();
    assert!(reply.contains(r#""id":6,"#) && reply.contains(r#"{"n":1e2}"#), "{reply}");
    assert_eq!(bench.session.state(), Some(State::Running));
}

#[test]
fn an_elicitation_that_waits_is_asked_of_who_comes_and_can_show_it() {
    let mut bench = Bench::live();
    bench.prompt(1, "3", "x");
    bench.agent(&elicit("url"));
    let come = |bench: &mut Bench, conn: u64, form: bool, url: bool| {
        bench.attach(conn, How::Load);
        let can = &mut bench.session.clients.get_mut(&ConnId(conn)).unwrap().client.can;
        (can.elicitation_form, can.elicitation_url) = (form, url);
        let seq = bench.session.view().seq;
        let mut effects = bench.run(Input::CaughtUp { conn: ConnId(conn), seq });
        effects.retain(|effect| match effect {
            Effect::Tell { frame, hop, .. } => {
                hop.is_some() || String::from_utf8_lossy(frame).contains(r#""interaction":"#)
            }
            _ => false,
        });
        words(&effects)
    };
    // One that shows forms does not show addresses.
    assert_eq!(come(&mut bench, 2, true, false), ["tell c2 session/update"]);
    assert_eq!(come(&mut bench, 3, false, true), ["ask c3 elicitation/create"]);
    assert_eq!(come(&mut bench, 4, false, false), NOTHING, "somebody is asked");
    let form = words(&bench.agent(&elicit("form")));
    assert_eq!(form[2..], ["ask c2 elicitation/create"]);
    let odd = words(&bench.agent(&elicit("voice")));
    assert_eq!(odd[2..], ["ask c2 elicitation/create", "ask c3 elicitation/create"]);
}

#[test]
fn an_elicitation_that_waits_ends_with_its_turn() {
    let mut bench = Bench::live();
    bench.prompt(1, "3", "x");
    bench.agent(&elicit("form"));
    let effects = words(&bench.run(Input::Cancel { conn: ConnId(1) }));
    assert!(effects.contains(&"reply ok".to_owned()), "{effects:?}");
    assert_eq!(open(&bench), Vec::<String>::new());
}
