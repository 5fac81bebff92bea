//! The policy for questions: what becomes of a request for a permission before people are asked, and
//! when a policy may be claimed at all.
//!
//! A policy covers questions that an agent asks. What an agent does without asking it does not see;
//! so it is only told of sessions whose agent is known to ask. `docs/policy.md` has the whole.

use crate::agent::modes::skips_questions;
use crate::fold::{ApprovalMode, Policy, View};
use crate::question::offered;

/// The answer to a request for a permission whose asker is to go on without. Source: ACP v1
/// "Cancellation".
pub(crate) const CANCELLED: &str = r#"{"outcome":{"outcome":"cancelled"}}"#;

/// The policy that is really in force for a session, as far as it can be claimed: Frontdesk was told
/// one, the agent is known to ask (it has here, or its entry says `asks = true`), and the agent is
/// not in a mode of its own that skips questions. Source: DESIGN section 7.
#[must_use]
pub fn effective(view: &View, agent_asks: bool) -> Option<&Policy> {
    let asks = view.has_asked || agent_asks;
    let skips = view.mode_id.as_deref().is_some_and(skips_questions);
    view.policy.as_ref().filter(|_| asks && !skips)
}

/// What a policy answers to a `session/request_permission` with these params (JSON text), as the
/// JSON text of the result. `None`: people are asked.
///
/// A yes is given for this once where the agent offers that, and for ever only where it offers
/// nothing else; a no is never for ever. Where there is no such option the question is cancelled,
/// or, where yes was meant, left to people. Source: ACP v1 "Requesting permission".
#[must_use]
pub fn ruling(mode: ApprovalMode, params: &str) -> Option<String> {
    let kinds: &[&str] = match mode {
        ApprovalMode::AllowAll => &["allow_once", "allow_always"],
        ApprovalMode::DenyUnmatched => &["reject_once"],
        ApprovalMode::PromptUnmatched | ApprovalMode::OnRequest => return None,
    };
    let options = offered(params);
    let named = |kind: &&str| options.iter().find(|option| option.kind == *kind);
    match kinds.iter().find_map(named) {
        Some(option) => Some(option.selected()),
        None if mode == ApprovalMode::DenyUnmatched => Some(CANCELLED.to_owned()),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = r#"{"options":[{"optionId":"aa","kind":"allow_always"},{"optionId":"a1","kind":"allow_once"},{"optionId":"ra","kind":"reject_always"},{"optionId":"r\u00e9","kind":"reject_once"}]}"#;

    fn selected(id: &str) -> Option<String> {
        Some(format!(r#"{{"outcome":{{"outcome":"selected","optionId":"{id}"}}}}"#))
    }

    #[test]
    fn yes_is_for_once_and_no_never_for_ever() {
        assert_eq!(ruling(ApprovalMode::AllowAll, ALL), selected("a1"));
        // The id keeps its spelling.
        assert_eq!(ruling(ApprovalMode::DenyUnmatched, ALL), selected("r\\u00e9"));
        for mode in [ApprovalMode::PromptUnmatched, ApprovalMode::OnRequest] {
            assert_eq!(ruling(mode, ALL), None);
        }
    }

    #[test]
    fn a_lasting_yes_is_given_only_where_there_is_no_other() {
        let lasting = r#"{"options":[{"optionId":"aa","kind":"allow_always"},{"optionId":"ra","kind":"reject_always"}]}"#;
        assert_eq!(ruling(ApprovalMode::AllowAll, lasting), selected("aa"));
        let cancelled = Some(CANCELLED.to_owned());
        assert_eq!(ruling(ApprovalMode::DenyUnmatched, lasting), cancelled);
        // Nothing that can be told to be a yes: people are asked.
        for odd in [
            r#"{"options":[]}"#,
            "{}",
            "null",
            r#"{"options":[{"optionId":"x","kind":"later"},{"optionId":"y"}]}"#,
            r#"{"options":[{"kind":"allow_once"}]}"#,
            r#"{"options":7}"#,
        ] {
            assert_eq!(ruling(ApprovalMode::AllowAll, odd), None, "{odd}");
            assert_eq!(ruling(ApprovalMode::DenyUnmatched, odd), cancelled, "{odd}");
        }
    }

    #[test]
    fn a_policy_is_claimed_only_where_it_is_known_to_decide() {
        let policy =
            Policy { mode: ApprovalMode::OnRequest, source: "startup".into(), command_id: None };
        let mut view = View { policy: Some(policy.clone()), ..View::default() };
        assert_eq!(effective(&view, false), None, "nobody knows whether it asks");
        assert_eq!(effective(&view, true), Some(&policy));
        view.has_asked = true;
        assert_eq!(effective(&view, false), Some(&policy));
        view.mode_id = Some("bypassPermissions".into());
        assert_eq!(effective(&view, true), None, "it acts without asking");
        view.mode_id = Some("plan".into());
        assert_eq!(effective(&view, true), Some(&policy));
        view.policy = None;
        assert_eq!(effective(&view, true), None, "nobody said one");
    }
}
