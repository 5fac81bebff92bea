//! The checker: one session's journal against what its clients were shown and what its agents said.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use super::super::{of_kind, records_in, same, stored, told};
use super::agents::Agents;
use super::counts::Counts;

/// A session as the rounds know it.
#[derive(Clone, Debug)]
pub(super) struct Room {
    pub(super) id: String,
    pub(super) native: String,
    pub(super) journal: PathBuf,
    /// Rounds since it was made or called back.
    pub(super) age: u64,
}

/// Which process of an instance was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    Agent,
    Holder,
}

/// What clients are shown of records: what people said, what agents said, remarks.
pub(super) fn items(records: &[Value]) -> Vec<String> {
    let mut out = Vec::new();
    for record in records {
        if record["kind"] == "note" && record["data"]["shown"] == true {
            let text = record["data"]["text"].as_str().unwrap_or_default();
            out.push(format!("agent:[frontdesk] {text}\n"));
        }
        out.extend(told(std::slice::from_ref(record)));
    }
    out
}

/// Whether every turn has ended and every question is settled.
pub(super) fn is_quiet(records: &[Value]) -> bool {
    let names = |kinds: &[&str], name: &str| -> BTreeSet<String> {
        let data = kinds.iter().flat_map(|kind| of_kind(records, kind));
        data.map(|data| data[name].to_string()).collect()
    };
    names(&["turn_queued", "turn_started"], "turn") == names(&["turn_ended"], "turn")
        && names(&["interaction_opened"], "interaction")
            == names(&["interaction_settled"], "interaction")
}

/// Whether an agent that nobody killed has noted more than the journal has of it.
pub(super) fn is_behind(
    records: &[Value],
    agents: &Agents,
    victims: &BTreeMap<String, Victim>,
    room: &Room,
) -> bool {
    said_in(records).iter().filter(|(instance, _)| !victims.contains_key(*instance)).any(
        |(instance, kept)| {
            let said = agents.talk(instance).and_then(|talk| talk.said.get(&room.native));
            said.is_some_and(|said| said.len() > kept.updates.len())
        },
    )
}

/// One look at one session.
pub(super) struct Check<'c> {
    pub(super) what: String,
    pub(super) counts: &'c mut Counts,
    pub(super) agents: &'c Agents,
    pub(super) victims: &'c BTreeMap<String, Victim>,
    pub(super) records: Vec<Value>,
}

impl Check<'_> {
    /// Everything that the journal and the agents tell of a session.
    pub(super) fn session(&mut self, room: &Room, store: &std::path::Path) {
        self.numbers();
        self.owners(store, &room.native);
        self.endings();
        self.losses();
        self.said(room);
        self.questions();
    }

    /// What a client was shown, against the journal: all of it, or as far as its connection lived.
    pub(super) fn shown(&mut self, who: &str, own: &str, found: &[String], whole: bool) {
        let own = format!("user:{own}");
        let mut wanted = items(&self.records);
        wanted.retain(|item| !item.starts_with(&own));
        self.counts.compared += found.len() as u64;
        let fits = if whole { found == wanted } else { wanted.starts_with(found) };
        self.counts.compare(found, &wanted, fits);
        if !fits {
            eprintln!("{}", self.counts);
            let upto = if whole { wanted.len() } else { found.len().min(wanted.len()) };
            same(found, &wanted[..upto], &format!("{}: what {who} was shown", self.what));
        }
    }

    /// Numbers without a gap; epochs that grow with each claim; one instance an epoch.
    fn numbers(&mut self) {
        let seqs: Vec<u64> = self.records.iter().filter_map(|it| it["seq"].as_u64()).collect();
        let wanted: Vec<u64> = (1..).take(self.records.len()).collect();
        assert_eq!(seqs, wanted, "{}: a journal has no gap and no double", self.what);
        let (mut last, mut owner) = (0, Value::Null);
        for record in &self.records {
            let epoch = record["epoch"].as_u64().unwrap_or_default();
            // What an agent's list says of a session that nobody has is no owner's.
            if epoch == 0 && record["kind"] == "metadata" && record["src"].is_null() {
                continue;
            }
            let is_claim = record["kind"] == "claimed";
            if is_claim {
                owner = record["data"]["instance"].clone();
            }
            let grows = if is_claim { epoch > last } else { epoch == last };
            let writer = &record["src"]["instance"];
            let writes = writer.is_null() || *writer == owner;
            if !grows || !writes {
                self.counts.double_owners += 1;
                eprintln!("{}", self.counts);
                panic!("{}: epoch {last}, owner {owner}, and then {record}", self.what);
            }
            last = epoch;
        }
    }

    /// No process ever opened the session while another one had it.
    fn owners(&mut self, store: &std::path::Path, native: &str) {
        let lines = stored(store, native);
        let opened: Vec<&Value> = lines.iter().filter(|line| line["event"] == "opened").collect();
        let doubles = opened.iter().filter(|line| line["alone"] != true).count();
        if doubles > 0 {
            self.counts.double_owners += doubles as u64;
            eprintln!("{}", self.counts);
            panic!("{}: two processes had {native} at once: {opened:?}", self.what);
        }
        let loaded = of_kind(&self.records, "loaded").len();
        assert!(opened.len() >= loaded, "{}: {loaded} loaded, but {opened:?}", self.what);
    }

    /// One ending a turn; and what agents were told of prompts.
    fn endings(&mut self) {
        let mut begun: BTreeMap<&str, &Value> = BTreeMap::new();
        let mut ended: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for record in &self.records {
            let data = &record["data"];
            let turn = data["turn"].as_str().unwrap_or_default();
            match record["kind"].as_str() {
                Some("turn_queued" | "turn_started") => _ = begun.insert(turn, &data["prompt"]),
                Some("turn_ended") => ended.entry(turn).or_default().push(data),
                _ => {}
            }
        }
        for (turn, prompt) in begun {
            let endings = ended.remove(turn).unwrap_or_default();
            let first = prompt[0]["text"].as_str().and_then(|text| text.lines().next());
            let heard = first.and_then(|it| self.agents.prompts.get(it)).copied().unwrap_or(0);
            let done = endings.first().is_some_and(|it| it["outcome"] == "completed");
            self.counts.unanswered += u64::from(endings.is_empty());
            self.counts.repeated += u64::from(endings.len() > 1) + u64::from(heard > 1);
            self.counts.lost += u64::from(done && heard == 0);
            if endings.len() != 1 || heard > 1 || (done && heard != 1) {
                eprintln!("{}", self.counts);
                panic!("{}: {turn} {first:?}: heard {heard} times, {endings:?}", self.what);
            }
        }
        assert!(ended.is_empty(), "{}: endings of nothing: {ended:?}", self.what);
    }

    /// A session is lost only with its instance, whatever was under way when a daemon died.
    fn losses(&mut self) {
        let mut owner = String::new();
        for (at, record) in self.records.iter().enumerate() {
            match record["kind"].as_str() {
                Some("claimed") => {
                    record["data"]["instance"].as_str().unwrap_or_default().clone_into(&mut owner);
                }
                Some("lost") => {
                    let is_killed = self.victims.contains_key(&owner);
                    let before = &self.records[at.saturating_sub(4)..=at];
                    assert!(is_killed, "{}: lost without need: {before:?}", self.what);
                }
                _ => {}
            }
        }
    }

    /// How much of what an instance said last may be missing: what was noted and not written any more
    /// when it was killed. With its holder dead, what was in the pipe is gone, too.
    fn may_lack(&self, instance: &str) -> usize {
        match self.victims.get(instance) {
            None => 0,
            Some(Victim::Agent) => 1,
            Some(Victim::Holder) => usize::MAX,
        }
    }

    /// What each instance said, against the updates that came from it, in order.
    fn said(&mut self, room: &Room) {
        for (instance, mut kept) in said_in(&self.records) {
            let talk = self.agents.talk(&instance).and_then(|talk| talk.said.get(&room.native));
            let mut said: Vec<String> = talk.into_iter().flatten().map(Value::to_string).collect();
            if kept.has_cut && self.victims.contains_key(&instance) {
                // An opening that the agent's end cut is no opening: what came with it is nobody's.
                said.retain(|update| !is_greeting(update));
                kept.updates.retain(|update| !is_greeting(update));
            }
            let kept = kept.updates;
            self.counts.said += said.len() as u64;
            let lacks = said.len().saturating_sub(kept.len());
            let fits = said.starts_with(&kept) && lacks <= self.may_lack(&instance);
            self.counts.compare(&said, &kept, fits);
            if !fits {
                eprintln!("{}", self.counts);
                same(&kept, &said, &format!("{}: what {instance} said", self.what));
            }
        }
    }

    /// Each question has one ending, and the agent was given it once.
    fn questions(&mut self) {
        let mut settled: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for data in of_kind(&self.records, "interaction_settled") {
            let name = data["interaction"].as_str().unwrap_or_default();
            settled.entry(name).or_default().push(data);
        }
        for record in self.records.iter().filter(|it| it["kind"] == "interaction_opened") {
            let data = &record["data"];
            let name = data["interaction"].as_str().unwrap_or_default();
            let instance = record["src"]["instance"].as_str().unwrap_or_default();
            let request = data["requestId"].as_str().unwrap_or_default();
            let question = self.agents.talk(instance).and_then(|it| it.asked.get(request));
            let answers = question.map(|it| it.answers.as_slice()).unwrap_or_default();
            let endings = settled.remove(name).unwrap_or_default();
            self.counts.unanswered += u64::from(endings.is_empty());
            let fits = match endings.as_slice() {
                [one] => self.is_answered_so(one, answers, instance),
                _ => false,
            };
            if !fits {
                self.counts.misanswered += 1;
                eprintln!("{}", self.counts);
                panic!("{}: {name} of {instance}: {endings:?}, {answers:?}", self.what);
            }
        }
        assert!(settled.is_empty(), "{}: answers to nothing: {settled:?}", self.what);
    }

    /// Whether what the agent was given is what the journal says.
    fn is_answered_so(&self, ending: &Value, given: &[Value], instance: &str) -> bool {
        let answered = ending["outcome"] == "answered";
        match given {
            // An agent that was killed may not have read it.
            [] => !answered || self.victims.contains_key(instance),
            [one] if answered => *one == ending["answer"],
            [one] => one.is_null() || one["outcome"]["outcome"] == "cancelled",
            _ => false,
        }
    }
}

/// What a journal has of one instance.
#[derive(Debug, Default)]
struct Kept {
    updates: Vec<String>,
    /// It was claimed and not loaded, at least once.
    has_cut: bool,
}

/// The updates of each instance, in order.
fn said_in(records: &[Value]) -> BTreeMap<String, Kept> {
    let mut all: BTreeMap<String, Kept> = BTreeMap::new();
    let mut opening: Option<String> = None;
    for record in records {
        let data = &record["data"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match record["kind"].as_str() {
            Some("claimed") => {
                if let Some(cut) = opening.replace(text(&data["instance"])) {
                    all.entry(cut).or_default().has_cut = true;
                }
                all.entry(text(&data["instance"])).or_default();
            }
            Some("loaded") => opening = None,
            Some("update" | "turn_late") => {
                let kept = all.entry(text(&record["src"]["instance"])).or_default();
                kept.updates.push(data["update"].to_string());
            }
            _ => {}
        }
    }
    if let Some(cut) = opening {
        all.entry(cut).or_default().has_cut = true;
    }
    all
}

/// What the scripted agent says behind the answer of each opening.
fn is_greeting(update: &str) -> bool {
    update.contains("available_commands_update")
}

/// The records of a session, read as they are.
pub(super) fn read(room: &Room) -> Vec<Value> {
    records_in(&room.journal)
}
