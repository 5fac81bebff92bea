//! A daemon that dies at any step against one that never does: the journals are the same in the end,
//! the agent hears each prompt and each answer once.
//!
//! The world is a lane, a ledger, a holder and an agent in small. Every write and every send is a
//! step, and a crash may come before any of them; then all that was in memory is gone.

mod agent;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::fold::ApprovalMode;
use agent::{Act, Agent};

/// When the client closes the session: so many requests of the agent are answered by then, or all.
type CloseAt = Option<usize>;

/// One line of the ledger.
#[derive(Clone, Debug)]
enum Line {
    Request { number: u64, turn: Option<Box<str>>, id: Box<str>, method: Box<str>, frame: Bytes },
    Done(u64),
    Owed(Box<str>, Option<Bytes>),
    Settled { hop: Box<str>, sent: Option<(u64, Bytes)> },
    Notified { number: u64, frame: Bytes },
    Closing(CloseWhy),
}

/// The daemon is dead.
#[derive(Debug)]
struct Crashed;

struct Desk {
    // What outlives a daemon.
    journal: Vec<Record>,
    ledger: Vec<Line>,
    agent: Agent,
    /// What was acknowledged, and what was before that: the last word may be lost.
    acked: [u64; 2],
    // Memory.
    session: Session,
    /// Sent and not yet with the holder.
    wire: VecDeque<(u64, Bytes)>,
    tags: BTreeMap<u64, Tag>,
    next: u64,
    read_to: u64,
    hops: BTreeMap<Box<str>, String>,
    conn: u64,
    // The fault.
    steps: u64,
    crash_at: Option<u64>,
    luck: u64,
    rules: bool,
    close_at: CloseAt,
    /// The client waits for the answer to its close.
    closes: bool,
    /// Number of the daemon's own close.
    shut: Option<u64>,
}

impl Desk {
    /// `rules`: the policy says yes to every question.
    fn new(script: Vec<Vec<Act>>, rules: bool, close_at: CloseAt) -> Self {
        let agent = Agent {
            script,
            last: 0,
            output: Vec::new(),
            prompt: None,
            prompts: 0,
            next_id: 0,
            waits: BTreeSet::new(),
            stands_at: None,
            asked: Vec::new(),
            closed: 0,
        };
        let mut desk = Self {
            journal: Vec::new(),
            ledger: Vec::new(),
            agent,
            acked: [0, 0],
            session: Bench::cold(View::default()).session,
            wire: VecDeque::new(),
            tags: BTreeMap::new(),
            next: 1,
            read_to: 0,
            hops: BTreeMap::new(),
            conn: 1,
            steps: 0,
            crash_at: None,
            luck: 1,
            rules,
            close_at,
            closes: false,
            shut: None,
        };
        let first = First { client: able(1), id: "1".into(), spelling: "key".into() };
        let facts = desk.facts();
        let born = Born { first: Some(first), facts, ..born() };
        let effects = desk.handle(Input::Born(Box::new(born)));
        desk.carry_out(effects).unwrap();
        desk
    }

    fn facts(&self) -> AgentFacts {
        AgentFacts { approval: self.rules.then_some(ApprovalMode::AllowAll), ..facts() }
    }

    fn handle(&mut self, input: Input) -> Vec<Effect> {
        self.session.handle(input, Now { wall: Timestamp::UNIX_EPOCH, mono_ms: 0 })
    }

    /// A choice of the world's.
    fn chance(&mut self, bound: u64) -> u64 {
        self.luck = self.luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.luck >> 33) % bound
    }

    /// Something that lasts is about to happen.
    fn step(&mut self) -> Result<(), Crashed> {
        self.steps += 1;
        if self.crash_at == Some(self.steps) { Err(Crashed) } else { Ok(()) }
    }

    fn note(&mut self, line: Line) -> Result<(), Crashed> {
        self.step()?;
        self.ledger.push(line);
        Ok(())
    }

    fn send(&mut self, number: u64, frame: Bytes) -> Result<(), Crashed> {
        self.step()?;
        self.wire.push_back((number, frame));
        Ok(())
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// As the lane does: what is appended up to a sync is written before anything else of it.
    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), Crashed> {
        let mut rest: VecDeque<Effect> = effects.into();
        while !rest.is_empty() {
            let end =
                rest.iter().position(|e| matches!(e, Effect::Sync)).map_or(rest.len(), |at| at + 1);
            let segment: Vec<Effect> = rest.drain(..end).collect();
            for effect in &segment {
                if let Effect::Append(record) = effect {
                    self.step()?;
                    assert_eq!(record.seq, self.journal.len() as u64 + 1);
                    self.journal.push(record.clone());
                }
            }
            for effect in segment {
                self.perform(effect)?;
            }
        }
        Ok(())
    }

    fn perform(&mut self, effect: Effect) -> Result<(), Crashed> {
        match effect {
            Effect::Send { tag, frame, turn, .. } => {
                let number = self.number();
                let id: Box<str> = frame.id().unwrap().into();
                let text = frame.spliced(Some(&number.to_string()), Some("\"n\""));
                let method = frame.method.clone();
                self.note(Line::Request { number, turn, id, method, frame: text.clone() })?;
                self.tags.insert(number, tag);
                self.send(number, text)
            }
            Effect::Notify(frame) => {
                let number = self.number();
                self.note(Line::Notified { number, frame: frame.clone() })?;
                self.send(number, frame)
            }
            Effect::Owe { hop, frame } => self.note(Line::Owed(hop, frame)),
            Effect::Settle { hop, frame: None } => self.note(Line::Settled { hop, sent: None }),
            Effect::Settle { hop, frame: Some(frame) } => {
                let number = self.number();
                let sent = Some((number, frame.clone()));
                self.note(Line::Settled { hop, sent })?;
                self.send(number, frame)
            }
            Effect::Tell { conn, frame, hop: Some(hop), .. } if conn.0 == self.conn => {
                self.hops.insert(hop, method(&frame));
                Ok(())
            }
            Effect::Forget { hop, .. } => {
                self.hops.remove(&hop);
                Ok(())
            }
            Effect::Shut { why } => {
                self.note(Line::Closing(why))?;
                let number = self.number();
                let frame = Bytes::from(format!(
                    r#"{{"id":{number},"method":"session/close","params":{{"sessionId":"n"}}}}"#
                ));
                let (id, method) = ("null".into(), "session/close".into());
                self.note(Line::Request { number, turn: None, id, method, frame: frame.clone() })?;
                self.shut = Some(number);
                self.send(number, frame)
            }
            Effect::CatchUp { conn, .. } => {
                let seq = self.session.view().seq;
                let effects = self.handle(Input::CaughtUp { conn, seq });
                self.carry_out(effects)
            }
            Effect::Open { .. } => panic!("a closed session is called back"),
            Effect::Answer { conn, id, .. } if conn.0 == self.conn && &*id == "77" => {
                assert!(self.closes, "a close is answered twice");
                self.closes = false;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The client closes the session, or asks again behind a crash.
    fn close(&mut self) -> Result<(), Crashed> {
        self.closes = true;
        let close = Input::Close { conn: ConnId(self.conn), id: "77".into(), force: true };
        let effects = self.handle(close);
        self.carry_out(effects)
    }

    /// The next thing that somebody does; `false` if nobody has anything to do.
    fn go(&mut self) -> Result<bool, Crashed> {
        // The client asks for everything first, each thing once.
        let taken = |record: &&Record| matches!(record.kind, Kind::TurnStarted | Kind::TurnQueued);
        let taken = self.journal.iter().filter(taken);
        let ids = taken.map(|record| record.payload::<Value>().unwrap()["requestId"].to_string());
        let asked = ids.collect::<BTreeSet<_>>().len();
        if asked < self.agent.script.len() && !self.closes {
            let frame = prompt(&asked.to_string(), &format!("p{asked}"));
            let effects = self.handle(Input::Prompt { conn: ConnId(self.conn), frame });
            self.carry_out(effects)?;
            return Ok(true);
        }
        while let Some((number, frame)) = self.wire.pop_front() {
            self.agent.hear(number, &frame);
        }
        if self.session.phase() == Phase::Cold {
            // Its messages do not come here any more.
            return Ok(false);
        }
        if self.read_some()? {
            return Ok(true);
        }
        if self.session.phase() != Phase::Live {
            return Ok(false);
        }
        let settled = |line: &Line| match line {
            Line::Settled { hop, .. } => Some(hop.clone()),
            _ => None,
        };
        let settled: BTreeSet<Box<str>> = self.ledger.iter().filter_map(settled).collect();
        if self.close_at.is_some_and(|count| settled.len() >= count || self.hops.is_empty()) {
            self.close()?;
            return Ok(true);
        }
        // Files first, since a crash answers for a client that may have written one.
        let files = self.hops.iter().find(|(_, method)| method.starts_with("fs/"));
        let Some(hop) = files.or(self.hops.iter().next()).map(|(hop, _)| hop.clone()) else {
            return Ok(false);
        };
        self.hops.remove(&hop);
        let answer = frame(
            r#"{"id":"h","result":{"content":"c","outcome":{"outcome":"selected","optionId":"yes"}}}"#,
        );
        let effects = self.handle(Input::Answer { conn: ConnId(self.conn), hop, frame: answer });
        self.carry_out(effects)?;
        Ok(true)
    }

    /// Reads a few frames as one batch, and acknowledges them when all is done.
    fn read_some(&mut self) -> Result<bool, Crashed> {
        let count = 1 + self.chance(4);
        let next: Vec<(u64, String)> = self
            .agent
            .output
            .iter()
            .filter(|(end, _)| *end > self.read_to)
            .take(usize::try_from(count).unwrap())
            .cloned()
            .collect();
        let Some((last, _)) = next.last().cloned() else { return Ok(false) };
        let mut effects = Vec::new();
        let mut done = Vec::new();
        for (end, text) in next {
            let source = Source { instance: InstanceId("i".into()), end, part: 0 };
            let at = Position { source };
            let message = Message::parse(Bytes::from(text)).unwrap();
            if let Message::Response(frame) = message {
                let number: u64 = frame.id().unwrap().parse().unwrap();
                if self.shut == Some(number) {
                    effects.extend(self.handle(Input::Closed { let_go: true }));
                    done.push(number);
                    continue;
                }
                // An answer that was dealt with before is late.
                let Some(tag) = self.tags.remove(&number) else { continue };
                effects.extend(self.handle(Input::AgentAnswer { tag, frame, at }));
                done.push(number);
            } else {
                effects.extend(self.handle(Input::Agent { message, at, about: None }));
            }
        }
        self.read_to = last;
        self.carry_out(effects)?;
        for number in done {
            self.note(Line::Done(number))?;
        }
        self.step()?;
        self.acked = [self.acked[1], last];
        Ok(true)
    }

    /// Everything in memory is gone; the next daemon takes up what lasts.
    fn take_up(&mut self) -> Result<(), Crashed> {
        // Some of what was on its way had arrived, and in order.
        for _ in 0..self.chance(self.wire.len() as u64 + 1) {
            if let Some((number, frame)) = self.wire.pop_front() {
                self.agent.hear(number, &frame);
            }
        }
        self.wire.clear();
        self.tags.clear();
        self.hops.clear();
        self.shut = None;
        let from = self.acked[usize::from(self.chance(2) == 0)];
        self.acked = [from, from];
        self.read_to = from;
        let (parts, unsent) = self.balance();
        self.conn += 10;
        let mut view = View::default();
        view.extend(&self.journal);
        if view.loaded_by.is_none() {
            // The close was recorded; whoever asks again is told so.
            self.session = Bench::cold(view).session;
            self.closes = false;
            return Ok(());
        }
        for (number, frame) in unsent {
            self.send(number, frame)?;
        }
        let mut ends = Ends::new("i", parts.owed.iter().map(|(hop, _)| hop.clone()).collect(), 64);
        ends.extend(&self.journal);
        assert!(ends.is_loaded());
        let parts = Carry { ends, ..parts };
        let now = Now { wall: Timestamp::UNIX_EPOCH, mono_ms: 0 };
        let carried = Session::carried(view, parts, Arc::new(Limits::default()), now);
        self.session = carried.session;
        self.tags = carried.sent.into_iter().map(|(tag, number)| (number, tag)).collect();
        // Tags of what is sent now come with the effects.
        self.carry_out(carried.effects)?;
        if self.closes {
            // It goes on where it was, and asks again what was not answered.
            let rejoin = Rejoin {
                client: able(self.conn),
                id: "8".into(),
                spelling: "key".into(),
                seen: Some(Mark::default()),
                prompts: Vec::new(),
            };
            let effects = self.handle(Input::Rejoin(Box::new(rejoin)));
            self.carry_out(effects)?;
            return self.close();
        }
        let attach = Attach {
            client: able(self.conn),
            id: "7".into(),
            how: How::Resume,
            spelling: "key".into(),
            params: Bytes::from_static(b"{}"),
            from: Mark::default(),
        };
        let effects = self.handle(Input::Attach(attach));
        self.carry_out(effects)
    }

    /// What the ledger adds up to: what the machine needs, and what the holder lacks.
    fn balance(&mut self) -> (Carry, Vec<(u64, Bytes)>) {
        let mut carry = Carry { facts: self.facts(), ..Carry::default() };
        let mut unsent = Vec::new();
        let mut done = BTreeSet::new();
        self.next = self.agent.last + 1;
        for line in self.ledger.clone() {
            let sent = match line {
                // Its answer is nobody's, and it is asked again.
                Line::Request { number, method, .. } if &*method == "session/close" => {
                    self.next = self.next.max(number + 1);
                    None
                }
                Line::Request { number, turn, id, method, frame } => {
                    let params = Bytes::new();
                    carry.requests.push(SentRequest { number, turn, id, method, params });
                    Some((number, frame))
                }
                Line::Done(number) => {
                    done.insert(number);
                    None
                }
                Line::Owed(hop, frame) => {
                    carry.owed.push((hop, frame));
                    None
                }
                Line::Settled { hop, sent } => {
                    carry.owed.retain(|(other, _)| *other != hop);
                    carry.answered.insert(hop);
                    sent
                }
                Line::Notified { number, frame } => Some((number, frame)),
                Line::Closing(why) => {
                    carry.closing = Some(why);
                    None
                }
            };
            if let Some((number, frame)) = sent {
                self.next = self.next.max(number + 1);
                if number > self.agent.last {
                    unsent.push((number, frame));
                }
            }
        }
        carry.requests.retain(|request| !done.contains(&request.number));
        (carry, unsent)
    }

    /// The journal of a closed session has every word of its agent, one ending of everything, and the
    /// close as its last record.
    fn has_all_that_was_said(&self) {
        let said = self.agent.output.iter().filter(|(_, text)| text.contains("session/update"));
        let said: Vec<u64> = said.map(|(end, _)| *end).collect();
        let of = |kinds: &[Kind]| -> Vec<&Record> {
            self.journal.iter().filter(|record| kinds.contains(&record.kind)).collect()
        };
        let words = of(&[Kind::Update, Kind::TurnLate]).into_iter();
        let words: Vec<u64> = words.map(|record| record.src.as_ref().unwrap().end).collect();
        assert_eq!(words, said, "{:#?}", lines(&self.journal));
        let names = |kinds: &[Kind], name: &str| -> Vec<String> {
            let data = of(kinds).into_iter().map(|it| it.payload::<Value>().unwrap());
            data.map(|data| data[name].to_string()).collect()
        };
        let begun = names(&[Kind::TurnStarted, Kind::TurnQueued], "turn");
        let begun: BTreeSet<String> = begun.into_iter().collect();
        let ended = names(&[Kind::TurnEnded], "turn");
        assert_eq!(ended.len(), begun.len(), "{:#?}", lines(&self.journal));
        assert_eq!(ended.into_iter().collect::<BTreeSet<_>>(), begun);
        let asked = names(&[Kind::InteractionOpened], "interaction");
        let settled = names(&[Kind::InteractionSettled], "interaction");
        assert_eq!(asked.len(), settled.len());
        assert_eq!(of(&[Kind::Lost]).len(), 0);
        assert_eq!(names(&[Kind::Closed], "reason"), ["\"client\""]);
        assert_eq!(self.journal.last().unwrap().kind, Kind::Closed);
    }

    /// To the end, through these crashes: each so many steps after the one before.
    fn run(&mut self, crashes: &[u64]) {
        let mut crashes = crashes.iter();
        let mut is_down = false;
        self.crash_at = crashes.next().map(|after| self.steps + after);
        for _ in 0..10_000 {
            let went = if is_down { self.take_up().map(|()| true) } else { self.go() };
            match went {
                Ok(false) => return,
                Ok(true) => is_down = false,
                Err(Crashed) => {
                    is_down = true;
                    self.crash_at = crashes.next().map(|after| self.steps + after);
                }
            }
        }
        panic!("it never ends: {:?}", self.agent.waits);
    }
}

/// The same client however often it comes back: its key and name are in records.
fn able(conn: u64) -> Client {
    let can = ClientAbilities { read_text_file: true, write_text_file: true, ..client(1).can };
    Client { conn: ConnId(conn), can, ..client(1) }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => Just(Act::Chunk),
        2 => Just(Act::Ask),
        2 => Just(Act::AskAndGoOn),
        2 => Just(Act::Read),
        1 => Just(Act::Write),
        1 => Just(Act::Withdraw),
        1 => Just(Act::Other),
    ]
}

/// The records as lines, so that a difference can be read.
fn lines(journal: &[Record]) -> Vec<String> {
    let line = |record: &Record| {
        let mut line = Vec::new();
        record.write_line(&mut line);
        String::from_utf8(line).unwrap()
    };
    journal.iter().map(line).collect()
}

fn same_in_the_end(
    script: &[Vec<Act>],
    (rules, close_at): (bool, CloseAt),
    crashes: &[u64],
    luck: u64,
) {
    let mut calm = Desk::new(script.to_vec(), rules, close_at);
    calm.run(&[]);
    let mut rough = Desk::new(script.to_vec(), rules, close_at);
    rough.luck = luck;
    rough.run(crashes);
    for desk in [&calm, &rough] {
        let is_closed = usize::from(close_at.is_some());
        assert_eq!(desk.agent.closed, is_closed, "it was closed once");
        assert!(!desk.closes && (is_closed == 0 || desk.session.phase() == Phase::Cold));
        let heard = desk.agent.prompts;
        assert!(heard == script.len() || is_closed == 1, "each prompt was heard once: {heard}");
        assert!(desk.agent.waits.is_empty() && desk.agent.prompt.is_none());
        assert_eq!(desk.session.view().turn_count, heard as u64);
        assert!(desk.session.asks.is_empty() && desk.session.passes.is_empty());
    }
    if close_at.is_none() {
        return assert_eq!(lines(&rough.journal), lines(&calm.journal));
    }
    // What an agent says on its way out depends on how much it has heard.
    calm.has_all_that_was_said();
    rough.has_all_that_was_said();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_daemon_that_dies_leaves_the_journal_of_one_that_does_not(
        script in proptest::collection::vec(proptest::collection::vec(act(), 0..7), 1..4),
        crashes in proptest::collection::vec(1..40_u64, 0..6),
        luck in any::<u64>(),
        rules in any::<bool>(),
        close_at in proptest::option::of(0..4_usize),
    ) {
        same_in_the_end(&script, (rules, close_at), &crashes, luck);
    }
}

#[test]
fn a_crash_at_every_single_step_is_survived() {
    use Act::{Ask, AskAndGoOn, Chunk, Other, Read, Withdraw, Write};
    let script = [
        vec![Chunk, Ask, Chunk, Read, AskAndGoOn, Chunk, Withdraw, Other, Chunk],
        vec![AskAndGoOn, AskAndGoOn, Write, Chunk],
        vec![],
    ];
    for close_at in [None, Some(0), Some(1), Some(3)] {
        let mut calm = Desk::new(script.to_vec(), false, close_at);
        calm.run(&[]);
        assert!(calm.steps > 20, "{}", calm.steps);
        for at in 1..=calm.steps {
            for luck in 0..4 {
                same_in_the_end(&script, (luck == 3, close_at), &[at], luck);
                same_in_the_end(&script, (luck == 2, close_at), &[at, 1 + luck], luck);
            }
        }
    }
}
