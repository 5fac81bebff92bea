//! Asking instances whether they have a session: all at once, within `probe_ms`, one question about
//! one id at a time at each, however many ask. Starts, opens and writes nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::ids::InstanceId;
use frontdesk_core::place::{Said, Where, Word, call_back_at, fewest};
use frontdesk_core::status::{Heard, hear};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Node;
use super::urls::{Url, seat};
use crate::agent::instance::Instance;
use crate::config::AgentConfig;
use crate::conn::Conn;
use crate::lock::lock;

/// Ids that are remembered as unknown to all.
const UNKNOWN_MAX: usize = 4096;

type Answer = watch::Receiver<Option<Word>>;

/// Questions that are under way, and what was answered a moment ago.
#[derive(Debug, Default)]
pub struct Probes {
    open: Mutex<HashMap<(InstanceId, Box<str>), Answer>>,
    unknown: Mutex<Unknown>,
}

#[derive(Debug, Default)]
struct Unknown {
    until: HashMap<Box<str>, Instant>,
    /// Counts what may have made an unknown id a known one.
    changes: u64,
}

/// An instance that is asked, or would have to be.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Name of its agent.
    pub agent: String,
    /// How it is told from the agent's others, for people: its url, else the agent's name.
    pub name: String,
    whom: Whom,
}

#[derive(Clone, Debug)]
enum Whom {
    Running(Arc<Instance>),
    Behind(Arc<Url>),
}

impl Asked {
    /// A running instance.
    #[must_use]
    pub fn running(instance: Arc<Instance>) -> Self {
        let agent = instance.agent.name.clone();
        let name = instance.shown_url().unwrap_or_else(|| agent.clone());
        Self { agent, name, whom: Whom::Running(instance) }
    }

    fn at(agent: &AgentConfig, url: &Arc<Url>) -> Self {
        Self { agent: agent.name.clone(), name: url.shown(), whom: Whom::Behind(url.clone()) }
    }

    /// `None` for a url that nobody is connected to.
    fn instance(&self) -> Option<Arc<Instance>> {
        match &self.whom {
            Whom::Running(instance) => Some(instance.clone()),
            Whom::Behind(url) => url.instance(),
        }
    }

    /// Whether it can say anything: one that is away might.
    fn may_know(&self) -> bool {
        self.instance().is_none_or(|instance| instance.abilities().status)
    }
}

impl Probes {
    /// Whether all instances have called this id unknown a moment ago.
    fn is_unknown(&self, id: &str) -> bool {
        lock(&self.unknown).until.get(id).is_some_and(|until| *until > Instant::now())
    }

    /// An id may be known from now on: it is being made, opened, forked, closed or deleted.
    pub fn forget(&self, id: &str) {
        let mut unknown = lock(&self.unknown);
        unknown.until.remove(id);
        unknown.changes += 1;
    }

    /// Any id may be known from now on: an instance is there that was not asked.
    pub fn forget_all(&self) {
        let mut unknown = lock(&self.unknown);
        unknown.until.clear();
        unknown.changes += 1;
    }

    fn changes(&self) -> u64 {
        lock(&self.unknown).changes
    }

    fn note_unknown(&self, id: &str, before: u64, keep: Duration) {
        let mut unknown = lock(&self.unknown);
        if unknown.changes != before || keep.is_zero() {
            return;
        }
        let now = Instant::now();
        if unknown.until.len() >= UNKNOWN_MAX {
            unknown.until.retain(|_, until| *until > now);
        }
        if unknown.until.len() < UNKNOWN_MAX {
            unknown.until.insert(id.into(), now + keep);
        }
    }
}

impl Node {
    /// Who might know an id that our own table does not: running instances that answer the method,
    /// and urls that are away.
    #[must_use]
    pub fn askable(&self) -> Vec<Asked> {
        let running = self.running_instances().into_iter();
        let mut asked: Vec<Asked> = running
            .filter(|i| i.url.is_none() && i.has_ended().is_none())
            .map(Asked::running)
            .collect();
        for agent in self.agents.values() {
            asked.extend(self.urls_of(&agent.name).iter().map(|url| Asked::at(agent, url)));
        }
        asked.retain(Asked::may_know);
        asked
    }

    /// The urls of an agent that might know a session of it.
    #[must_use]
    pub fn askable_urls(&self, agent: &AgentConfig) -> Vec<Asked> {
        let mut asked: Vec<Asked> =
            self.urls_of(&agent.name).iter().map(|url| Asked::at(agent, url)).collect();
        asked.retain(Asked::may_know);
        asked
    }

    /// Asks them all at once; one word for each, in their order. Takes at most `probe_ms`. With
    /// `briefly`, what all called unknown within `probe_negative_ms` is not asked again.
    pub async fn ask_all(&self, asked: &[Asked], id: &str, briefly: bool) -> Vec<Word> {
        if briefly && self.probes.is_unknown(id) {
            return vec![Word::Unknown; asked.len()];
        }
        let before = self.probes.changes();
        let until = tokio::time::Instant::now() + Duration::from_millis(self.limits.probe_ms);
        for asked in asked {
            if let Whom::Behind(url) = &asked.whom {
                url.first_attempt(until).await;
            }
        }
        let answers: Vec<Option<Answer>> = asked
            .iter()
            .map(|asked| asked.instance().map(|instance| self.question(&instance, id)))
            .collect();
        let mut words = Vec::with_capacity(answers.len());
        for answer in answers {
            let Some(mut answer) = answer else {
                words.push(Word::Nothing);
                continue;
            };
            // A question that is dropped unanswered closes its channel.
            let heard = tokio::time::timeout_at(until, answer.wait_for(Option::is_some)).await;
            words.push(
                heard.ok().and_then(Result::ok).and_then(|word| *word).unwrap_or(Word::Nothing),
            );
        }
        if briefly && !words.is_empty() && words.iter().all(|word| *word == Word::Unknown) {
            let keep = Duration::from_millis(self.limits.probe_negative_ms);
            self.probes.note_unknown(id, before, keep);
        }
        words
    }

    /// The question to one instance about one id: the one that is under way, or a new one.
    fn question(&self, instance: &Arc<Instance>, id: &str) -> Answer {
        let key = (instance.id.clone(), Box::from(id));
        let mut open = lock(&self.probes.open);
        if let Some(answer) = open.get(&key).filter(|answer| answer.has_changed().is_ok()) {
            return answer.clone();
        }
        let (told, answer) = watch::channel(None);
        open.insert(key.clone(), answer.clone());
        drop(open);
        let (instance, limits) = (instance.clone(), self.limits.clone());
        let probes = self.probes.clone();
        let id = id.to_owned();
        tokio::spawn(async move {
            let until = tokio::time::Instant::now() + Duration::from_millis(limits.probe_ms);
            // It waits while too many about other ids are under way there.
            let turn = tokio::time::timeout_at(until, instance.probes.acquire()).await;
            let probe = probe(&instance, &id);
            tokio::pin!(probe);
            let word = match turn {
                Ok(Ok(_)) => tokio::time::timeout_at(until, &mut probe).await.ok(),
                // Nobody waits for it any more, so it is not asked at all.
                Ok(Err(_)) | Err(_) => Some(Word::Nothing),
            };
            // Whoever comes from here on asks anew.
            lock(&probes.open).remove(&key);
            told.send_replace(Some(word.unwrap_or(Word::Nothing)));
            if word.is_none() {
                // It keeps its place among the questions there, so that one that hangs gets no more
                // and more of them.
                while instance.is_silent(limits.probe_ms / 2) {
                    let rest = Duration::from_millis(limits.agent_open_ms);
                    if tokio::time::timeout(rest, &mut probe).await.is_ok() {
                        break;
                    }
                }
            }
        });
        answer
    }

    /// Where a session that is not loaded here may be called back, by what the agent's urls say.
    pub async fn locate(&self, agent: &AgentConfig, native: &str) -> Place {
        let urls = self.urls_of(&agent.name);
        let asked: Vec<Asked> = urls.iter().map(|url| Asked::at(agent, url)).collect();
        let can_say = |asked: &Asked| asked.instance().is_some() && asked.may_know();
        // Before they are asked: what one still has to open it may open behind its word.
        let owes = |asked: &Asked| asked.instance().is_some_and(|i| i.owes_opening(native));
        let owing: Vec<bool> = asked.iter().map(owes).collect();
        let words = if asked.iter().any(can_say) {
            let mut words = self.ask_all(&asked, native, false).await;
            for (word, asked) in words.iter_mut().zip(&asked) {
                if !can_say(asked) {
                    *word = Word::Nothing;
                }
            }
            words
        } else {
            vec![Word::Nothing; urls.len()]
        };
        for ((word, asked), owes) in words.iter().zip(&asked).zip(owing) {
            // Its own word: whatever was in doubt there is not any more.
            if matches!(word, Word::Cold | Word::Unknown)
                && !owes
                && let Some(instance) = asked.instance().filter(|it| it.keeps(native))
            {
                self.give_back(&instance, native).await;
            }
        }
        let recorded = urls.iter().position(|url| url.may_have(native));
        match call_back_at(recorded, &words) {
            Where::At(at) => Place::Only(urls[at].clone()),
            Where::Anywhere => {
                // By its own word, else by its list.
                let knows = |at: &usize| match words[*at] {
                    Word::Cold => true,
                    Word::Loaded | Word::Unknown => false,
                    Word::Nothing => self.lists.is_at(&agent.name, native, *at) == Some(true),
                };
                Place::Any((0..urls.len()).filter(knows).map(|at| urls[at].clone()).collect())
            }
            Where::Split(several) => {
                let names: Vec<String> = several.iter().map(|at| urls[*at].shown()).collect();
                tracing::error!(agent = %agent.name, session = native, ?names, "several urls say that they have one session; nobody opens it");
                Place::Split(names)
            }
        }
    }
}

impl Node {
    /// A place for one session of an agent behind urls, at the only url that may have it, else at one
    /// that knows it, else at any; and whether the agent there may have it in memory already.
    ///
    /// # Errors
    /// If that url, or all of them, are away or full, or several say that they have the session.
    pub async fn reserve_for(
        &self,
        agent: &AgentConfig,
        native: &str,
    ) -> Result<(Arc<Instance>, bool), WireError> {
        match self.locate(agent, native).await {
            Place::Only(url) => {
                let kept = url.may_have(native);
                Ok((self.reserve_url(agent, &url).await?, kept))
            }
            Place::Any(knowing) => {
                let up: Vec<_> = knowing.iter().filter_map(|url| url.instance()).collect();
                let seats: Vec<_> = up.iter().map(seat).collect();
                if let Some(at) = fewest(&seats)
                    && up[at].reserve(agent.sessions_max())
                {
                    return Ok((up[at].clone(), false));
                }
                Ok((self.reserve_any_url(agent).await?, false))
            }
            Place::Split(urls) => {
                let text = format!(
                    "several instances of agent {} say that they have this session ({}); close it at all but one of them first",
                    agent.name,
                    urls.join(", ")
                );
                let data = json!({ "agent": agent.name, "urls": urls });
                Err(WireError::new(Code::HeldElsewhere, text).with_data(data))
            }
        }
    }

    /// An instance that can be asked about a session of its agent: of one behind urls the one that
    /// has it or knows it.
    pub async fn instance_for(
        self: &Arc<Self>,
        agent: &Arc<AgentConfig>,
        native: &str,
        conn: &Arc<Conn>,
    ) -> Option<(Arc<Instance>, bool)> {
        if agent.urls.is_empty() {
            return self.any_instance(agent, Some(conn), true).await;
        }
        let (instance, _) = self.reserve_for(agent, native).await.ok()?;
        instance.unreserve();
        Some((instance, false))
    }
}

/// Where a session may be called back.
#[derive(Debug)]
pub enum Place {
    /// At this url only.
    Only(Arc<Url>),
    /// Anywhere, best at one of these: they know it. Empty where nobody said so.
    Any(Vec<Arc<Url>>),
    /// Nowhere: these say that they have it.
    Split(Vec<String>),
}

/// One question.
async fn probe(instance: &Instance, id: &str) -> Word {
    let params = json!({ "sessionId": id }).to_string();
    match instance.call("session/status", &params, u64::MAX / 2).await {
        Ok(frame) => word_of(&frame),
        Err(_) => Word::Nothing,
    }
}

fn word_of(frame: &Frame) -> Word {
    match (frame.result().map(hear), frame.error()) {
        (Some(Heard::Loaded), _) => Word::Loaded,
        (Some(Heard::Cold), _) => Word::Cold,
        (_, Some(error)) if is_not_found(error) => Word::Unknown,
        (Some(Heard::Malformed) | None, _) => Word::Nothing,
    }
}

fn is_not_found(error: &str) -> bool {
    let value: Value = serde_json::from_str(error).unwrap_or_default();
    value.get("code").and_then(Value::as_i64) == Some(Code::NotFound.number())
}

/// Words with the names of those who said them.
#[must_use]
pub fn said<'a>(asked: &'a [Asked], words: &[Word]) -> Vec<Said<'a>> {
    let pair = |(asked, word): (&'a Asked, &Word)| Said {
        agent: &asked.agent,
        name: &asked.name,
        word: *word,
    };
    asked.iter().zip(words).map(pair).collect()
}
