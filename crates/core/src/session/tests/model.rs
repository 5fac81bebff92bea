//! Everybody at random: clients, agent, shell and clock. What must always hold is checked after
//! every step, and that nothing is left open is checked at the end.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Act {
    Attach(u64, bool),
    Detach(u64),
    Prompt(u64),
    Cancel(u64),
    CancelRequest(u64),
    SetMode(u64),
    Close(u64, bool),
    Ask,
    Read,
    Ext,
    Chunk,
    Withdraw,
    AnswerAsk(u64, bool),
    /// Somebody who takes no part answers the oldest question: with what was offered, or not.
    Decide(bool),
    AgentAnswers(bool),
    AgentEnds(bool),
    Gone,
    Take,
    ShellWorks(bool),
    Wait(u64),
    Lag(u64),
    Unload,
    Policy(crate::fold::ApprovalMode),
    Rename,
    Archive(bool),
    Branch(bool),
}

fn acts() -> impl Strategy<Value = Act> {
    let conn = 1u64..4;
    prop_oneof![
        (conn.clone(), any::<bool>()).prop_map(|(c, load)| Act::Attach(c, load)),
        conn.clone().prop_map(Act::Detach),
        conn.clone().prop_map(Act::Prompt),
        conn.clone().prop_map(Act::Prompt),
        conn.clone().prop_map(Act::Cancel),
        conn.clone().prop_map(Act::CancelRequest),
        conn.clone().prop_map(Act::SetMode),
        (conn.clone(), any::<bool>()).prop_map(|(c, force)| Act::Close(c, force)),
        Just(Act::Ask),
        Just(Act::Read),
        Just(Act::Ext),
        Just(Act::Chunk),
        Just(Act::Withdraw),
        (conn.clone(), any::<bool>()).prop_map(|(c, ok)| Act::AnswerAsk(c, ok)),
        any::<bool>().prop_map(Act::Decide),
        any::<bool>().prop_map(Act::AgentAnswers),
        any::<bool>().prop_map(Act::AgentEnds),
        Just(Act::Gone),
        Just(Act::Take),
        any::<bool>().prop_map(Act::ShellWorks),
        any::<bool>().prop_map(Act::ShellWorks),
        prop_oneof![Just(100u64), Just(10_000), Just(60_000), Just(2_000_000)].prop_map(Act::Wait),
        conn.prop_map(Act::Lag),
        Just(Act::Unload),
        proptest::sample::select(&crate::fold::ApprovalMode::ALL[..]).prop_map(Act::Policy),
        Just(Act::Rename),
        any::<bool>().prop_map(Act::Archive),
        any::<bool>().prop_map(Act::Branch),
    ]
}

/// The world around the machine.
struct World {
    bench: Bench,
    next_id: u64,
    /// Requests of clients that must be answered once: (connection, id).
    open: BTreeSet<(u64, String)>,
    here: BTreeSet<u64>,
    /// How often each slot's client has left.
    comings: BTreeMap<u64, u64>,
    /// Requests at the agent, in order, with their method.
    at_agent: Vec<(Tag, String)>,
    /// Questions of the agent that it waits for, by its id.
    agent_waits: BTreeSet<String>,
    /// Requests that clients were sent: hop to connections.
    hops: BTreeMap<Box<str>, BTreeSet<u64>>,
    /// Work for the shell: opens, shuts, catch-ups.
    work: Vec<Effect>,
    live: bool,
    last_seq: Seq,
    epoch: u64,
    started: BTreeSet<String>,
    ended: BTreeSet<String>,
}

impl World {
    fn new() -> Self {
        let bench = Bench::live();
        let last_seq = bench.session.view().seq;
        Self {
            bench,
            next_id: 100,
            open: BTreeSet::new(),
            here: BTreeSet::from([1]),
            comings: BTreeMap::new(),
            at_agent: Vec::new(),
            agent_waits: BTreeSet::new(),
            hops: BTreeMap::new(),
            work: Vec::new(),
            live: true,
            last_seq,
            epoch: 0,
            started: BTreeSet::new(),
            ended: BTreeSet::new(),
        }
    }

    fn id(&mut self) -> String {
        self.next_id += 1;
        self.next_id.to_string()
    }

    fn step(&mut self, input: Input) {
        let effects = self.bench.run(input);
        self.look(effects);
    }

    fn look(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Append(record) => self.record(&record),
                Effect::Answer { conn, id, .. } => {
                    let known = self.open.remove(&(conn.0, id.to_string()));
                    assert!(
                        known || !self.here.contains(&conn.0),
                        "answered twice or never asked: {conn} {id}"
                    );
                }
                Effect::Send { tag, frame, .. } => {
                    assert!(self.live, "a request to an agent that is not there");
                    let method = frame.method.to_string();
                    if method == "session/prompt" {
                        let running = self.at_agent.iter().filter(|(_, m)| *m == method).count();
                        assert_eq!(running, 0, "two prompts at the agent at once");
                    }
                    self.at_agent.push((tag, method));
                }
                Effect::Settle { frame: Some(frame), .. } => {
                    if let Ok(Message::Response(answer)) = Message::parse(frame) {
                        let id = answer.id().unwrap().to_owned();
                        assert!(self.agent_waits.remove(&id), "the agent was answered twice: {id}");
                    }
                }
                Effect::Tell { conn, hop: Some(hop), .. } => {
                    self.hops.entry(hop).or_default().insert(conn.0);
                }
                Effect::Forget { conn, hop } => {
                    self.hops.entry(hop).or_default().remove(&conn.0);
                }
                Effect::Open { .. }
                | Effect::Shut { .. }
                | Effect::CatchUp { .. }
                | Effect::TakenBack { .. }
                | Effect::Find { .. }
                | Effect::EndStuck => self.work.push(effect),
                Effect::Tell { .. }
                | Effect::Owe { .. }
                | Effect::Settle { frame: None, .. }
                | Effect::Notify(_)
                | Effect::Sync
                | Effect::CancelSent(_)
                | Effect::LetGo { .. }
                | Effect::Joined { .. }
                | Effect::Left { .. } => {}
            }
        }
        let (view, lease) = (self.bench.session.view(), self.bench.session.lease());
        if lease.phase().is_cold() || lease.phase() == Phase::Suspect {
            assert_eq!(view.suspect.as_ref(), lease.doubt(), "the journal knows of every doubt");
        }
        assert!(lease.epoch() >= self.epoch, "epochs only grow");
        self.epoch = lease.epoch();
        let work = |wanted: fn(&Effect) -> bool| self.work.iter().filter(|e| wanted(e)).count();
        assert!(work(|e| matches!(e, Effect::Open { .. })) <= 1, "two opens at once");
        assert!(work(|e| matches!(e, Effect::Shut { .. })) <= 1, "two shuts at once");
    }

    fn record(&mut self, record: &Record) {
        assert_eq!(record.seq, self.last_seq + 1);
        self.last_seq = record.seq;
        let data: Value = record.payload().unwrap();
        let turn = data["turn"].as_str().unwrap_or_default().to_owned();
        match record.kind {
            Kind::TurnStarted => assert!(self.started.insert(turn), "a turn began twice"),
            Kind::TurnEnded => assert!(self.ended.insert(turn), "a turn ended twice"),
            _ => {}
        }
    }

    /// A connection's number is never used again: who comes back has a new one.
    fn conn(&self, slot: u64) -> u64 {
        slot + 10 * self.comings.get(&slot).copied().unwrap_or_default()
    }

    fn act(&mut self, act: Act) {
        let act = match act {
            Act::Attach(slot, load) => Act::Attach(self.conn(slot), load),
            Act::Detach(slot) => {
                let conn = self.conn(slot);
                *self.comings.entry(slot).or_default() += 1;
                Act::Detach(conn)
            }
            Act::Prompt(slot) => Act::Prompt(self.conn(slot)),
            Act::SetMode(slot) => Act::SetMode(self.conn(slot)),
            Act::Close(slot, force) => Act::Close(self.conn(slot), force),
            Act::Cancel(slot) => Act::Cancel(self.conn(slot)),
            Act::CancelRequest(slot) => Act::CancelRequest(self.conn(slot)),
            Act::AnswerAsk(slot, valid) => Act::AnswerAsk(self.conn(slot), valid),
            Act::Lag(slot) => Act::Lag(self.conn(slot)),
            other => other,
        };
        match act {
            Act::Attach(conn, load) => {
                let id = self.id();
                self.here.insert(conn);
                self.open.insert((conn, id.clone()));
                let how = if load { How::Load } else { How::Resume };
                let attach = Attach {
                    client: client(conn),
                    id: id.into(),
                    how,
                    spelling: "n".into(),
                    params: Bytes::new(),
                    from: Mark::default(),
                };
                self.step(Input::Attach(attach));
            }
            Act::Detach(conn) => {
                self.here.remove(&conn);
                self.open.retain(|(owner, _)| *owner != conn);
                self.step(Input::Detach { conn: ConnId(conn) });
            }
            Act::Prompt(conn) if self.here.contains(&conn) => {
                let id = self.id();
                self.open.insert((conn, id.clone()));
                self.step(Input::Prompt { conn: ConnId(conn), frame: prompt(&id, "x") });
            }
            Act::SetMode(conn) if self.here.contains(&conn) => {
                let id = self.id();
                self.open.insert((conn, id.clone()));
                let text = format!(
                    r#"{{"id":{id},"method":"session/set_mode","params":{{"sessionId":"n","modeId":"m"}}}}"#
                );
                self.step(Input::Forward { conn: ConnId(conn), frame: frame(&text) });
            }
            Act::Close(conn, force) if self.here.contains(&conn) => {
                let id = self.id();
                self.open.insert((conn, id.clone()));
                self.step(Input::Close { conn: ConnId(conn), id: id.into(), force });
            }
            Act::Cancel(conn) => self.step(Input::Cancel { conn: ConnId(conn) }),
            Act::CancelRequest(conn) => {
                let id =
                    self.open.iter().find(|(owner, _)| *owner == conn).map(|(_, id)| id.clone());
                if let Some(id) = id {
                    self.step(Input::CancelRequest { conn: ConnId(conn), id: id.into() });
                }
            }
            Act::Ask => self.agent_asks(
                "session/request_permission",
                r#","options":[{"optionId":"yes","kind":"allow_once"}]"#,
            ),
            Act::Read => self.agent_asks("fs/read_text_file", r#","path":"/x""#),
            Act::Ext => self.agent_asks("_x/y", ""),
            Act::Chunk if self.live => {
                let effects = self.bench.agent(r#"{"method":"session/update","params":{"sessionId":"n","update":{"sessionUpdate":"agent_message_chunk"}}}"#);
                self.look(effects);
            }
            Act::Withdraw if self.live => {
                if let Some(id) = self.agent_waits.first().cloned() {
                    let text =
                        format!(r#"{{"method":"$/cancel_request","params":{{"requestId":{id}}}}}"#);
                    let effects = self.bench.agent(&text);
                    self.look(effects);
                }
            }
            Act::AnswerAsk(conn, valid) => self.client_answers(conn, valid),
            Act::Decide(valid) => self.decide(valid),
            Act::AgentAnswers(well) => self.agent_answers(well),
            Act::AgentEnds(proven) if self.live => {
                self.live = false;
                self.at_agent.clear();
                self.agent_waits.clear();
                self.step(Input::Ended { why: "died".into(), detail: Value::Null, proven });
            }
            Act::Gone if !self.live => {
                self.step(Input::Gone { at: Place::Instance("i".into()) });
            }
            Act::Take => {
                let by = By { client: "k9".into(), name: "taker".into() };
                self.step(Input::Take { by });
            }
            Act::ShellWorks(well) => self.shell_works(well),
            Act::Wait(ms) => {
                let effects = self.bench.wait(ms);
                self.look(effects);
            }
            Act::Lag(conn) => self.step(Input::Lagging { conn: ConnId(conn) }),
            Act::Unload => self.step(Input::Unload { why: CloseWhy::Idle }),
            Act::Policy(mode) => self.step(Input::Policy { mode, command_id: None }),
            Act::Rename => {
                let name = "n".to_owned();
                self.step(Input::Rename(Rename { name, by: None, command_id: None }));
            }
            Act::Archive(archived) => self.step(Input::Archive { archived }),
            Act::Branch(main) => {
                let branch = main.then(|| "main".to_owned());
                let workspace = crate::workspace::Workspace { branch, worktree: None };
                self.step(Input::Workspace(workspace));
            }
            Act::Prompt(_)
            | Act::SetMode(_)
            | Act::Close(..)
            | Act::Chunk
            | Act::Withdraw
            | Act::Gone
            | Act::AgentEnds(_) => {}
        }
    }

    fn agent_asks(&mut self, method: &str, more: &str) {
        if !self.live {
            return;
        }
        let id = self.id();
        self.agent_waits.insert(id.clone());
        let text =
            format!(r#"{{"id":{id},"method":"{method}","params":{{"sessionId":"n"{more}}}}}"#);
        let effects = self.bench.agent(&text);
        self.look(effects);
    }

    fn client_answers(&mut self, conn: u64, valid: bool) {
        let asked =
            self.hops.iter().find(|(_, conns)| conns.contains(&conn)).map(|(hop, _)| hop.clone());
        let Some(hop) = asked.filter(|_| self.here.contains(&conn)) else { return };
        self.hops.entry(hop.clone()).or_default().remove(&conn);
        let text = if valid {
            r#"{"id":"h","result":{"outcome":{"outcome":"selected","optionId":"yes"}}}"#
        } else {
            r#"{"id":"h","error":{"code":-32601,"message":"no"}}"#
        };
        self.step(Input::Answer { conn: ConnId(conn), hop, frame: frame(text) });
    }

    fn decide(&mut self, valid: bool) {
        let open: Vec<String> =
            self.bench.session.open_questions().map(|(id, ..)| id.to_owned()).collect();
        let Some(interaction) = open.first().cloned() else { return };
        let option = if valid { "yes" } else { "never" };
        let result = format!(r#"{{"outcome":{{"outcome":"selected","optionId":"{option}"}}}}"#);
        assert_eq!(self.bench.session.may_answer(&interaction, &result).is_ok(), valid);
        let waits = self.agent_waits.len();
        let by = Value::Null;
        self.step(Input::Decide(Box::new(Decision { interaction, by, result })));
        let left = self.bench.session.open_questions().count();
        assert_eq!(open.len() - left, usize::from(valid), "an answer settles its question");
        assert_eq!(waits - self.agent_waits.len(), usize::from(valid), "the agent has it");
    }

    fn agent_answers(&mut self, well: bool) {
        if self.at_agent.is_empty() {
            return;
        }
        let (tag, _) = self.at_agent.remove(0);
        let text = if well {
            r#"{"id":1,"result":{"stopReason":"end_turn"}}"#
        } else {
            r#"{"id":1,"error":{"code":-32603,"message":"x"}}"#
        };
        let effects = self.bench.answered(tag, frame(text));
        self.look(effects);
    }

    fn shell_works(&mut self, well: bool) {
        if self.work.is_empty() {
            return;
        }
        match self.work.remove(0) {
            Effect::Open { .. } if well => {
                self.live = true;
                self.step(Input::Opening { facts: facts(), mode: OpenMode::Resume });
                self.step(Input::Started { result: "{}".into() });
            }
            Effect::Open { .. } => self.step(Input::StartFailed {
                failure: StartFailure::Agent(r#"{"code":-32603,"message":"busy"}"#.into()),
                doubt: self.next_id.is_multiple_of(2),
            }),
            Effect::Shut { .. } => {
                self.live = false;
                self.at_agent.clear();
                self.agent_waits.clear();
                self.step(Input::Closed { let_go: well });
            }
            // Else another session of the instance has a turn.
            Effect::EndStuck if well => self.step(Input::Unload { why: CloseWhy::Stuck }),
            Effect::EndStuck => {}
            Effect::CatchUp { conn, from, .. } => {
                let seq = if well { self.last_seq } else { from.seq };
                self.step(Input::CaughtUp { conn, seq });
            }
            other => panic!("{other:?}"),
        }
    }

    /// Lets everything that was begun come to its end.
    fn settle(&mut self) {
        self.bench.mono_ms += 1;
        self.step(Input::Stop { grace_ms: 0 });
        for _ in 0..10_000 {
            if self.work.is_empty() {
                break;
            }
            self.shell_works(true);
        }
        self.act(Act::AgentEnds(true));
        for _ in 0..10_000 {
            if self.work.is_empty() {
                break;
            }
            self.shell_works(true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn everybody_gets_one_answer_and_every_turn_one_ending(script in proptest::collection::vec(acts(), 0..80)) {
        let mut world = World::new();
        for act in script {
            world.act(act);
        }
        world.settle();
        prop_assert!(world.open.is_empty(), "unanswered: {:?}", world.open);
        let unfinished: Vec<_> = world.started.difference(&world.ended).collect();
        prop_assert!(unfinished.is_empty(), "turns without an ending: {unfinished:?}");
        let view = world.bench.session.view();
        prop_assert!(view.open_turn.is_none() && view.open_interactions.is_empty(), "{view:?}");
        prop_assert!(view.queued_turns.is_empty(), "{view:?}");
    }

    #[test]
    fn a_wall_clock_that_jumps_changes_stamps_and_nothing_else(
        script in proptest::collection::vec(acts(), 0..60),
        walls in proptest::collection::vec(-30_000_000_000_000i64..200_000_000_000_000, 1..20),
    ) {
        let mut steady = World::new();
        let mut jumping = World::new();
        jumping.bench.walls = walls;
        for act in script {
            steady.act(act.clone());
            jumping.act(act);
            let due = |world: &World| world.bench.session.deadline_ms();
            prop_assert_eq!(due(&steady), due(&jumping), "what is due is due on the steady clock");
        }
        steady.settle();
        jumping.settle();
        prop_assert_eq!(steady.bench.trace, jumping.bench.trace);
    }
}
