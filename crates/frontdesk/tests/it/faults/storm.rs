//! A storm: many editors over shims and many plain clients at one daemon that is killed.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::json;

use super::{
    Chance, SOON, begin_prompt, client, demo_desk, endings, eventually, log, native, new_session,
    place, same, seen, store, stored, told,
};
use crate::acp::{Acp, Pending, refuse_all};
use crate::desk::Desk;

/// Editors over shims, and as many clients on the socket.
const CLIENTS: usize = 64;
/// Sessions that they share: 16 clients each, as many as may have prompts in one session.
const SESSIONS: usize = 8;
/// Longest wait for one of so many answers.
const ANSWER: Duration = Duration::from_secs(120);

/// A client that is in a session, and its prompt.
struct Guest {
    acp: Acp,
    session: usize,
    from: usize,
    own: String,
    asked: Option<Pending>,
}

impl Guest {
    fn come(desk: &Desk, mut acp: Acp, session: usize, id: &str, name: &str) -> Self {
        acp.initialize(json!({}));
        let from = acp.mark();
        acp.ok("session/load", place(desk, Some(id)));
        Self { acp, session, from, own: format!("say {name}"), asked: None }
    }
}

fn on_socket(desk: &Desk, name: &str) -> Acp {
    let socket = UnixStream::connect(desk.socket()).expect("the daemon is there");
    let hello = json!({ "frontdesk": 1, "face": "acp", "kind": "test", "agent": "demo" });
    Acp::connect(name, socket, &hello, refuse_all())
}

#[test]
fn a_storm_of_clients_over_daemons_that_die_loses_and_repeats_nothing() {
    let mut chance = Chance::new("a_storm_of_clients");
    let mut desk = demo_desk().setting("sessions_per_instance = 4").open();
    let mut maker = client(&desk);
    let sessions: Vec<(String, String)> = (0..SESSIONS)
        .map(|_| {
            let id = new_session(&desk, &mut maker);
            let native = native(&mut maker, &id);
            (id, native)
        })
        .collect();
    let come = |at: usize, acp: Acp, name: String| {
        Guest::come(&desk, acp, at % SESSIONS, &sessions[at % SESSIONS].0, &name)
    };
    let mut editors: Vec<Guest> = (0..CLIENTS)
        .map(|at| come(at, desk.acp_lasting("demo", refuse_all()), format!("editor {at}")))
        .collect();
    let mut plain: Vec<Guest> =
        (0..CLIENTS).map(|at| come(at, on_socket(&desk, "plain"), format!("plain {at}"))).collect();
    for guest in editors.iter_mut().chain(&mut plain) {
        let (id, words) = (&sessions[guest.session].0, guest.own.clone());
        guest.asked = Some(begin_prompt(&mut guest.acp, id, &words));
    }
    for _ in 0..2 {
        chance.pause(150);
        desk.kill9();
        desk.start();
    }
    for guest in &editors {
        let asked = guest.asked.expect("it prompts");
        let result = guest.acp.wait(asked, ANSWER).expect("an editor's prompt succeeds");
        assert_eq!(result["stopReason"], "end_turn");
    }
    let mut looker = client(&desk);
    let mut items: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (at, (id, native)) in sessions.iter().enumerate() {
        // Prompts of clients that are gone run all the same.
        let quiet = json!({ "sessionId": id });
        eventually("the end of the last turn", ANSWER, || {
            looker.ok("session/status", quiet.clone())["_meta"]["frontdesk"]["state"] == "idle"
        });
        let records = log(&mut looker, id);
        endings(&records);
        items.insert(at, told(&records));
        let heard = stored(&store(&desk), native);
        let mut prompts: Vec<String> = heard
            .iter()
            .filter(|line| line["event"] == "prompt")
            .map(|line| line["content"][0]["text"].to_string())
            .collect();
        let all = prompts.len();
        prompts.sort();
        prompts.dedup();
        assert_eq!(prompts.len(), all, "each prompt reached the agent once");
        assert!(all >= CLIENTS / SESSIONS, "{all} prompts of {id}");
        let alone = heard.iter().filter(|line| line["event"] == "opened");
        assert!(alone.clone().all(|line| line["alone"] == true), "one owner");
        assert_eq!(alone.count(), 1, "opened once, whoever died");
    }
    for guest in &editors {
        let id = &sessions[guest.session].0;
        let own = format!("user:{}", guest.own);
        let mut wanted = items[&guest.session].clone();
        wanted.retain(|item| *item != own);
        eventually("what the others said", SOON, || {
            guest.acp.updates(id, guest.from).iter().filter(|it| is_talk(it)).count()
                >= wanted.len()
        });
        same(&seen(&guest.acp.updates(id, guest.from)), &wanted, &guest.own);
    }
    for guest in &plain {
        let own = format!("user:{}", guest.own);
        let mut wanted = items[&guest.session].clone();
        wanted.retain(|item| *item != own);
        let found = seen(&guest.acp.updates(&sessions[guest.session].0, guest.from));
        same(&found, &wanted[..found.len().min(wanted.len())], &guest.own);
    }
}

fn is_talk(update: &serde_json::Value) -> bool {
    !seen(std::slice::from_ref(update)).is_empty()
}
