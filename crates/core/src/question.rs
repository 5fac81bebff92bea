//! Open questions as people see them: their ids, and which answer a person's word means.
//!
//! Sources: ACP v1 "Requesting permission" (option kinds), "Elicitation" (actions).

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::envelope::Members;
use crate::ids::{Key, Seq};
use crate::record::{Kind, Record};

/// Letters of a session's key in the ids of its questions: its instant and the digits behind it.
const KEY_DIGITS: usize = 16;
/// The part of a hyphenated key that has these digits.
const KEY_PREFIX_BYTES: usize = 18;

/// What the ids of a session's questions begin with. No two sessions share it, so an id that was
/// kept for long never means another session's question.
#[must_use]
pub fn prefix_of(key: Key) -> String {
    let digits = key.uuid().simple().to_string();
    format!("ask_{}_", digits.get(..KEY_DIGITS).unwrap_or(&digits))
}

/// What the id of a question tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The beginning of its session's key, hyphenated; `None` in journals of older versions.
    pub key_prefix: Option<String>,
    /// The record that opened it.
    pub seq: Seq,
}

impl Named {
    /// Reads a whole id; `None` for everything else, beginnings of one too.
    #[must_use]
    pub fn read(id: &str) -> Option<Self> {
        let rest = id.strip_prefix("ask_")?;
        let (digits, seq) = match rest.split_once('_') {
            Some((digits, seq)) => (Some(digits), seq),
            None => (None, rest),
        };
        let seq = seq.bytes().all(|b| b.is_ascii_digit()).then(|| seq.parse().ok()).flatten()?;
        let Some(digits) = digits else { return Some(Self { key_prefix: None, seq }) };
        if digits.len() != KEY_DIGITS || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let padded = format!("{digits:0<32}").to_ascii_lowercase();
        let key = Key::new(uuid::Uuid::parse_str(&padded).ok()?).to_string();
        Some(Self { key_prefix: key.get(..KEY_PREFIX_BYTES).map(str::to_owned), seq })
    }
}

/// What a person means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish<'a> {
    /// Yes: for this once where that is offered.
    Allow,
    /// No: for this once where that is offered, else for ever, else the question is cancelled.
    Deny,
    /// The choice with this id, kind or name.
    Choice(&'a str),
}

/// Why no answer was found for a wish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoChoice {
    /// The wish means several choices, or none.
    #[error("failed to choose: {0}")]
    Unclear(String),
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, default)]
    options: Vec<Offered<'a>>,
}

/// One choice of a request for a permission. Source: ACP v1 `PermissionOption`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Offered<'a> {
    #[serde(borrow, default)]
    option_id: Option<&'a RawValue>,
    #[serde(default)]
    pub(crate) kind: String,
    #[serde(default)]
    name: String,
}

/// The choices in a request's params (JSON text) that can be chosen.
pub(crate) fn offered(params: &str) -> Vec<Offered<'_>> {
    let options = serde_json::from_str::<Params<'_>>(params).map(|params| params.options);
    let mut options = options.unwrap_or_default();
    options.retain(|option| option.option_id.is_some());
    options
}

impl Offered<'_> {
    /// The id as the agent spells it.
    fn raw_id(&self) -> &str {
        self.option_id.map_or("null", RawValue::get)
    }

    fn id(&self) -> String {
        serde_json::from_str(self.raw_id()).unwrap_or_else(|_| self.raw_id().to_owned())
    }

    /// The result that chooses it, as JSON text.
    pub(crate) fn selected(&self) -> String {
        format!(r#"{{"outcome":{{"outcome":"selected","optionId":{}}}}}"#, self.raw_id())
    }

    fn words(&self) -> String {
        format!("{} ({}: {})", self.id(), self.kind, self.name)
    }
}

/// The result of a `session/request_permission` with these params (JSON text) that a wish means, as
/// JSON text; the id of an option keeps the agent's spelling.
///
/// # Errors
/// [`NoChoice`] with the choices where the wish does not name exactly one.
pub fn permission_result(params: &str, wish: Wish<'_>) -> Result<String, NoChoice> {
    let options = offered(params);
    let of_kind = |kind: &str| -> Vec<&Offered<'_>> {
        options.iter().filter(|option| option.kind == kind).collect()
    };
    let found = match wish {
        Wish::Choice(word) => choice(&options, word),
        Wish::Allow => {
            let once = of_kind("allow_once");
            if once.is_empty() { of_kind("allow_always") } else { once }
        }
        Wish::Deny => {
            let kinds = ["reject_once", "reject_always"];
            // Of several ways to say no the first is as good as any.
            match kinds.iter().find_map(|kind| of_kind(kind).into_iter().next()) {
                Some(option) => vec![option],
                None => return Ok(crate::policy::CANCELLED.to_owned()),
            }
        }
    };
    match found.as_slice() {
        [one] => Ok(one.selected()),
        found => {
            let all: Vec<String> = options.iter().map(Offered::words).collect();
            let offered =
                if all.is_empty() { "nothing is offered".to_owned() } else { all.join(", ") };
            Err(NoChoice::Unclear(match (wish, found.is_empty()) {
                (Wish::Choice(word), true) => format!("{word:?} is none of the choices: {offered}"),
                (Wish::Choice(word), false) => format!("{word:?} fits several choices: {offered}"),
                (_, true) => format!("no choice says yes; name one of: {offered}"),
                (_, false) => format!("several choices say yes; name one of: {offered}"),
            }))
        }
    }
}

/// The options that a word names: by id, else by kind, else by name; letters in any case.
fn choice<'o, 'a>(options: &'o [Offered<'a>], word: &str) -> Vec<&'o Offered<'a>> {
    let exact: Vec<_> = options.iter().filter(|option| option.id() == word).collect();
    if !exact.is_empty() {
        return exact;
    }
    let same = |text: &str| text.to_lowercase() == word.to_lowercase();
    let by = |of: &dyn Fn(&Offered<'_>) -> bool| -> Vec<&'o Offered<'a>> {
        options.iter().filter(|option| of(option)).collect()
    };
    let by_id = by(&|option| same(&option.id()));
    let by_kind = by(&|option| same(&option.kind));
    let by_name = by(&|option| same(&option.name));
    [by_id, by_kind, by_name].into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}

/// The result of a question in the params of `_frontdesk/answer` (JSON text): every member but those
/// that say which question, each in its own spelling. `None` if there is none.
#[must_use]
pub fn result_of(params: &str) -> Option<String> {
    let Members(members) = serde_json::from_str(params).ok()?;
    let mut result = String::from("{");
    for (name, value) in members {
        if matches!(&*name, "outcome" | "action" | "content") {
            if result.len() > 1 {
                result.push(',');
            }
            result.push_str(&crate::envelope::quote(&name));
            result.push(':');
            result.push_str(value.get());
        }
    }
    result.push('}');
    (result.len() > 2).then_some(result)
}

/// The name of the option that an answer chose, of those in a question's params.
#[must_use]
pub fn chosen_name<'a>(params: &'a Value, answer: &Value) -> Option<&'a str> {
    let id = answer["outcome"].get("optionId").filter(|id| !id.is_null())?;
    let mut options = params["options"].as_array()?.iter();
    options.find(|option| option["optionId"] == *id)?["name"].as_str()
}

/// How a question ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// When.
    pub at: Timestamp,
    /// `answered`, `cancelled`, `withdrawn`; `lost` where its instance ended.
    pub outcome: String,
    /// Who answered, as the record has it; null where nobody did.
    pub by: Value,
    /// The answer; null where there is none.
    pub answer: Value,
    /// Why, where the record says so.
    pub reason: Option<String>,
    /// The chosen option's name, where one was chosen.
    pub chosen: Option<String>,
}

/// What records say of one question, read in order.
#[derive(Clone, Debug)]
pub struct Inquest {
    interaction: String,
    opened: Option<Value>,
    settled: Option<Settlement>,
}

#[derive(Deserialize)]
struct Told {
    #[serde(default)]
    interaction: String,
    #[serde(default)]
    outcome: String,
    #[serde(default)]
    by: Value,
    #[serde(default)]
    answer: Value,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    params: Value,
}

impl Inquest {
    /// Looks for a question's end.
    #[must_use]
    pub fn of(interaction: &str) -> Self {
        Self { interaction: interaction.to_owned(), opened: None, settled: None }
    }

    /// Takes the next record; `false` when no further one matters.
    pub fn take(&mut self, record: &Record) -> bool {
        let about_one = matches!(record.kind, Kind::InteractionOpened | Kind::InteractionSettled);
        let ends_all = matches!(record.kind, Kind::Lost | Kind::Closed) && self.opened.is_some();
        if !about_one && !ends_all {
            return true;
        }
        let Some(mut told) = record.payload::<Told>() else { return true };
        if ends_all {
            told.outcome = "lost".to_owned();
            told.interaction.clone_from(&self.interaction);
        }
        if told.interaction != self.interaction {
            return true;
        }
        if record.kind == Kind::InteractionOpened {
            self.opened = Some(told.params);
            return true;
        }
        let id = told.answer["outcome"]["optionId"].as_str();
        let name = self.opened.as_ref().and_then(|asked| chosen_name(asked, &told.answer)).or(id);
        self.settled = Some(Settlement {
            at: record.at,
            outcome: told.outcome,
            by: told.by,
            chosen: name.map(str::to_owned),
            answer: told.answer,
            reason: told.reason,
        });
        false
    }

    /// Whether it was asked at all.
    #[must_use]
    pub fn was_asked(&self) -> bool {
        self.opened.is_some() || self.settled.is_some()
    }

    /// Its end, if it has one.
    #[must_use]
    pub fn settlement(&self) -> Option<&Settlement> {
        self.settled.as_ref()
    }
}

impl Settlement {
    /// Who, when and with what, as one plain sentence.
    #[must_use]
    pub fn words(&self) -> String {
        let at = self.at;
        let text = |name: &str| self.by[name].as_str();
        let who = match (text("name"), text("client"), text("policy")) {
            (_, _, Some(mode)) => format!("the policy {mode}"),
            (Some(name), Some(key), _) => format!("{name} (client {key})"),
            (_, Some(key), _) => format!("client {key}"),
            _ => "somebody".to_owned(),
        };
        let action = self.answer["action"].as_str();
        let word = self.answer["outcome"]["outcome"].as_str();
        let what = self.chosen.as_deref().or(action).or(word).unwrap_or("an answer");
        match self.outcome.as_str() {
            "answered" => format!("the question was answered with {what:?} by {who} at {at}"),
            "cancelled" => {
                format!("the question was cancelled at {at}, and nobody's answer counts")
            }
            "withdrawn" => {
                format!("the question was withdrawn at {at}: its agent waits for no answer")
            }
            _ => format!("the agent that asked is gone since {at}, and so is its question"),
        }
    }

    /// The same for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut json = json!({
            "outcome": self.outcome,
            "at": self.at.to_string(),
            "by": self.by,
            "answer": self.answer,
            "reason": self.reason,
        });
        if let Some(json) = json.as_object_mut() {
            json.retain(|_, value| !value.is_null());
        }
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";

    fn params(options: &[(&str, &str, &str)]) -> String {
        let options: Vec<_> = options
            .iter()
            .map(|(id, name, kind)| serde_json::json!({ "optionId": id, "name": name, "kind": kind }))
            .collect();
        serde_json::json!({ "options": options }).to_string()
    }

    fn chosen(params: &str, wish: Wish<'_>) -> String {
        match permission_result(params, wish) {
            Ok(result) => {
                let result: serde_json::Value = serde_json::from_str(&result).unwrap();
                let outcome = &result["outcome"];
                let word = outcome["optionId"].as_str().or(outcome["outcome"].as_str());
                word.unwrap().to_owned()
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn an_id_names_its_session_and_its_record() {
        let id = format!("{}12", prefix_of(KEY.parse().unwrap()));
        assert_eq!(id, "ask_01a22bb62da27132_12");
        let named = Named::read(&id).unwrap();
        assert_eq!((named.key_prefix.as_deref(), named.seq), (Some("01a22bb6-2da2-7132"), 12));
        assert!(KEY.starts_with(&named.key_prefix.unwrap()));
        assert_eq!(Named::read("ask_7"), Some(Named { key_prefix: None, seq: 7 }));
        for bad in ["", "ask_", "ask_x", "ask_01a2_1", "ask_01a22bb62da27132_", "ask_1_2_3", "a_1"]
        {
            assert_eq!(Named::read(bad), None, "{bad}");
        }
        assert_eq!(Named::read("ask_01a22bb62da2713é_1"), None);
        assert_eq!(Named::read("ask_99999999999999999999999"), None);
    }

    #[test]
    fn yes_is_for_once_where_that_is_offered() {
        let both = params(&[("all", "Always", "allow_always"), ("one", "Yes", "allow_once")]);
        assert_eq!(chosen(&both, Wish::Allow), "one");
        let always = params(&[("all", "Always", "allow_always"), ("no", "No", "reject_once")]);
        assert_eq!(chosen(&always, Wish::Allow), "all");
        let two = params(&[("a", "Yes", "allow_once"), ("b", "Yes, and more", "allow_once")]);
        assert!(chosen(&two, Wish::Allow).contains("several choices say yes"));
        let none = params(&[("no", "No", "reject_once")]);
        let told = chosen(&none, Wish::Allow);
        assert!(told.contains("no choice says yes") && told.contains("no (reject_once: No)"));
        assert!(chosen("{}", Wish::Allow).contains("nothing is offered"));
    }

    #[test]
    fn no_is_for_once_then_for_ever_then_the_question_is_cancelled() {
        let both = params(&[("never", "Never", "reject_always"), ("no", "No", "reject_once")]);
        assert_eq!(chosen(&both, Wish::Deny), "no");
        assert_eq!(chosen(&params(&[("never", "Never", "reject_always")]), Wish::Deny), "never");
        assert_eq!(chosen(&params(&[("y", "Yes", "allow_once")]), Wish::Deny), "cancelled");
        assert_eq!(chosen("null", Wish::Deny), "cancelled");
    }

    #[test]
    fn a_choice_is_named_by_id_kind_or_name() {
        let all = params(&[
            ("p1", "Allow once", "allow_once"),
            ("P1", "Allow it all", "allow_always"),
            ("n", "Reject", "reject_once"),
        ]);
        assert_eq!(chosen(&all, Wish::Choice("P1")), "P1");
        assert_eq!(chosen(&all, Wish::Choice("N")), "n");
        assert_eq!(chosen(&all, Wish::Choice("ALLOW_ALWAYS")), "P1");
        assert_eq!(chosen(&all, Wish::Choice("allow ONCE")), "p1");
        assert!(chosen(&all, Wish::Choice("allow")).contains("none of the choices"));
        let twins = params(&[("a", "Yes", "x"), ("b", "yes", "y")]);
        assert!(chosen(&twins, Wish::Choice("YES")).contains("several choices"));
    }

    #[test]
    fn the_id_of_a_choice_keeps_its_spelling() {
        let odd = r#"{"options":[{"optionId":"\u0061","kind":"allow_once","name":"x"}]}"#;
        let result = permission_result(odd, Wish::Allow).unwrap();
        assert!(result.contains(r#""optionId":"\u0061""#), "{result}");
    }

    fn record(seq: u64, kind: Kind, data: &Value) -> Record {
        Record {
            v: crate::record::RECORD_VERSION,
            seq,
            epoch: 1,
            at: Timestamp::from_second(i64::try_from(seq).unwrap()).unwrap(),
            kind,
            src: None,
            data: bytes::Bytes::from(data.to_string()),
        }
    }

    #[test]
    fn the_records_tell_who_answered_when_and_with_what() {
        let options = json!([{ "optionId": "y", "name": "Allow it" }]);
        let asked = |id: &str| json!({ "interaction": id, "params": { "options": options } });
        let yes = json!({ "outcome": { "outcome": "selected", "optionId": "y" } });
        let by = json!({ "client": "k1", "name": "Zed" });
        let records = [
            record(1, Kind::InteractionOpened, &asked("ask_1")),
            record(2, Kind::InteractionOpened, &asked("ask_2")),
            record(
                3,
                Kind::InteractionSettled,
                &json!({ "interaction": "ask_2", "outcome": "answered", "by": by, "answer": yes }),
            ),
            record(4, Kind::Lost, &json!({ "reason": "killed" })),
        ];
        let end = |id: &str| {
            let mut inquest = Inquest::of(id);
            let _ = records.iter().all(|record| inquest.take(record));
            (inquest.was_asked(), inquest.settlement().map(Settlement::words))
        };
        let (_, answered) = end("ask_2");
        let words = "the question was answered with \"Allow it\" by Zed (client k1) at 1970-01-01T00:00:03Z";
        assert_eq!(answered.as_deref(), Some(words));
        let (_, lost) = end("ask_1");
        assert!(lost.unwrap().contains("gone since 1970-01-01T00:00:04Z"));
        assert_eq!(end("ask_9"), (false, None));
    }

    #[test]
    fn an_answer_is_all_that_does_not_say_which_question() {
        let params = r#"{"sessionId":"s","interaction":"ask_1","outcome":{"outcome":"selected","optionId":"\u0061","x":1.0},"_meta":{}}"#;
        let result = result_of(params).unwrap();
        assert_eq!(result, r#"{"outcome":{"outcome":"selected","optionId":"\u0061","x":1.0}}"#);
        let form = r#"{"action":"accept","interaction":"i","content":{"n":1e2}}"#;
        assert_eq!(result_of(form).unwrap(), r#"{"action":"accept","content":{"n":1e2}}"#);
        assert_eq!(result_of(r#"{"interaction":"i"}"#), None);
        assert_eq!(result_of("7"), None);
    }
}
