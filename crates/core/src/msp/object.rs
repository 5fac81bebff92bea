//! The Session object, made from a view. Source: MSP schema, `types/Session`.
//!
//! Required-nullable members are always there. Additive-optional ones are left out where nothing is
//! known, and are never null. What only the fold knows is not in list rows. Of a session that no
//! instance has, nothing is said that only a live one can prove.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::words::{
    ApprovalModeSource, AttentionFlag, ClientInfo, EffectiveApprovalModeState,
    EffectivePermissionState, ForkProvenance, ReviewerAuthority, SessionKind, SessionNameOrigin,
    SessionStatus, SessionWorktree, SideProvenance, WorktreeOrigin, required_nullable,
};
use crate::fold::{ApprovalMode, NameOrigin, Origin, Policy, View};
use crate::ids::Key;

/// The session object that every lifecycle method returns or lists: 26 members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Its key.
    pub session_id: String,
    /// Absolute path of its journal.
    pub path: String,
    /// Load state as this host knows it.
    pub status: SessionStatus,
    /// The foreground turn while `status` is `running`.
    #[serde(deserialize_with = "required_nullable")]
    pub active_turn_id: Option<String>,
    /// When it began, RFC 3339.
    pub created_at: String,
    /// When it last changed, RFC 3339; never before `created_at`.
    pub updated_at: String,
    /// Its folder.
    #[serde(deserialize_with = "required_nullable")]
    pub workspace_root: Option<String>,
    /// Provider of its model.
    #[serde(deserialize_with = "required_nullable")]
    pub provider_id: Option<String>,
    /// Its model.
    #[serde(deserialize_with = "required_nullable")]
    pub model_id: Option<String>,
    /// Turns that have ended.
    pub turn_count: u64,
    /// Where it was forked from.
    #[serde(deserialize_with = "required_nullable")]
    pub forked_from: Option<ForkProvenance>,
    /// The session it is a side chat of; not required of others, and always said by Frontdesk.
    #[serde(default)]
    pub side_from: Option<SideProvenance>,
    /// The approval mode in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_mode: Option<EffectiveApprovalModeState>,
    /// The permission state in force. Experimental; only of loaded sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission_state: Option<EffectivePermissionState>,
    /// What waits for people; only of loaded sessions, and never empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<Vec<AttentionFlag>>,
    /// The last content, RFC 3339; never before `created_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity_at: Option<String>,
    /// Its allocated name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How it came by its name. Fold only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_origin: Option<SessionNameOrigin>,
    /// The short title that was generated for it. Fold only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated_name: Option<String>,
    /// Its display title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The beginning of its first prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_user_prompt: Option<String>,
    /// Branch of its workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// What kind of session it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<SessionKind>,
    /// The top-level session that a subagent belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_session_id: Option<String>,
    /// The client that had it made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by_client: Option<ClientInfo>,
    /// The working tree it runs in. Experimental.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<SessionWorktree>,
    /// Members of newer versions, kept as they came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What carries a Session object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The answer to start, resume or fork.
    Ack,
    /// The `session/started` notification.
    Started,
    /// The answer to `session/read`.
    Read,
    /// A row of `session/list`.
    Row,
    /// The row in a `session/listChanged` notification.
    ListChanged,
}

impl Carrier {
    /// All carriers.
    pub const ALL: [Self; 5] = [Self::Ack, Self::Started, Self::Read, Self::Row, Self::ListChanged];

    /// Whether it carries what only the fold of the whole journal knows.
    #[must_use]
    pub fn is_fold(self) -> bool {
        match self {
            Self::Ack | Self::Started | Self::Read => true,
            Self::Row | Self::ListChanged => false,
        }
    }
}

/// Load state, with what only a loaded session has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded<'a> {
    /// No instance of ours has it, or not provably.
    No,
    /// An instance has it.
    Yes {
        /// The turn that runs.
        turn: Option<&'a str>,
        /// A client that may answer questions takes part.
        reviewer_attached: bool,
    },
}

/// What a Session object is made from.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// The session.
    pub key: Key,
    /// What its records add up to.
    pub view: &'a View,
    /// Absolute path of its journal.
    pub path: &'a str,
    /// Load state.
    pub loaded: Loaded<'a>,
    /// The policy, where it may be claimed (`policy::effective`).
    pub policy: Option<&'a Policy>,
    /// When the journal was first seen: for one whose beginning cannot be read.
    pub seen_at: Timestamp,
}

impl Session {
    /// The object of a session for a carrier, experimental members included: see
    /// [`Session::strip_experimental`].
    #[must_use]
    pub fn of(source: &Source<'_>, carrier: Carrier) -> Self {
        let view = source.view;
        let created_at = created_at(source);
        let not_before = |at: Timestamp| at.max(created_at).to_string();
        let fold = carrier.is_fold();
        let (status, turn) = match &source.loaded {
            Loaded::No => (SessionStatus::NotLoaded, None),
            Loaded::Yes { turn: None, .. } => (SessionStatus::Idle, None),
            Loaded::Yes { turn: Some(turn), .. } => (SessionStatus::Running, Some(*turn)),
        };
        let forked_from = view.forked_from.as_ref().map(|from| ForkProvenance {
            session_id: from.session_id.clone(),
            cut_cursor: from.cut_cursor.clone(),
            cut_explicit: from.cut_explicit,
            command_id: from.command_id.clone(),
        });
        // Neither a fork nor a child was opened by a handshake of its own.
        let stamped = forked_from.is_none() && view.parent.is_none();
        let client = view.created_by_client.as_ref().filter(|_| stamped);
        Self {
            session_id: source.key.to_string(),
            path: source.path.to_owned(),
            status,
            active_turn_id: turn.map(ToOwned::to_owned),
            created_at: created_at.to_string(),
            updated_at: not_before(view.updated_at.unwrap_or(created_at)),
            workspace_root: Some(view.cwd.clone()).filter(|cwd| !cwd.is_empty()),
            provider_id: view.provider_id.clone(),
            model_id: view.model_id.clone(),
            turn_count: view.turn_count,
            forked_from,
            side_from: None,
            approval_mode: source.policy.map(approval_mode),
            permission_state: permission_state(source),
            attention: attention(source),
            last_activity_at: view.last_activity_at.map(not_before),
            name: view.name.clone(),
            name_origin: view.name_origin.filter(|_| fold).map(name_origin),
            generated_name: view.generated_name.clone().filter(|_| fold),
            title: view.title.clone().or_else(|| view.name.clone()),
            first_user_prompt: view.first_user_prompt.as_deref().map(|line| line.trim().to_owned()),
            branch: view.branch.clone(),
            kind: kind(view),
            parent_session_id: view.parent.clone(),
            created_by_client: client
                .map(|c| ClientInfo { name: c.name.clone(), version: c.version.clone() }),
            worktree: view.worktree.as_ref().map(|tree| SessionWorktree {
                path: tree.path.clone(),
                origin: WorktreeOrigin::from(tree.origin.as_str()),
            }),
            extra: Map::new(),
        }
    }

    /// Takes out what a connection that did not ask for the experimental surface must not see.
    pub fn strip_experimental(&mut self) {
        self.permission_state = None;
        self.worktree = None;
        if let Some(flags) = &mut self.attention {
            flags.retain(|flag| !matches!(flag, AttentionFlag::Other(_)));
            if flags.is_empty() {
                self.attention = None;
            }
        }
    }
}

/// A fork begins at the instant in its own id; other sessions when their records say, and one whose
/// beginning cannot be read at the instant in its id, or when it was first seen.
fn created_at(source: &Source<'_>) -> Timestamp {
    let millis = source.key.unix_millis().and_then(|ms| i64::try_from(ms).ok());
    let minted = millis.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let told = source.view.created_at;
    if source.view.forked_from.is_some() {
        return minted.or(told).unwrap_or(source.seen_at);
    }
    told.or(minted).unwrap_or(source.seen_at)
}

fn kind(view: &View) -> Option<SessionKind> {
    match (&view.parent, view.origin) {
        (Some(_), _) => Some(SessionKind::Subagent),
        (None, Origin::Created) => Some(SessionKind::Root),
        // An agent's list does not say which of its sessions are children.
        (None, Origin::Adopted) => None,
    }
}

fn name_origin(origin: NameOrigin) -> SessionNameOrigin {
    match origin {
        NameOrigin::Automatic => SessionNameOrigin::Automatic,
        NameOrigin::Custom => SessionNameOrigin::Custom,
    }
}

fn approval_mode(policy: &Policy) -> EffectiveApprovalModeState {
    EffectiveApprovalModeState {
        mode: policy.mode,
        source: ApprovalModeSource::from(policy.source.as_str()),
        last_command_id: policy.command_id.clone(),
        extra: Map::new(),
    }
}

fn permission_state(source: &Source<'_>) -> Option<EffectivePermissionState> {
    let Loaded::Yes { reviewer_attached, .. } = source.loaded else { return None };
    let asks = match source.policy?.mode {
        ApprovalMode::PromptUnmatched | ApprovalMode::OnRequest => true,
        ApprovalMode::AllowAll | ApprovalMode::DenyUnmatched => false,
    };
    Some(EffectivePermissionState {
        profile_id: None,
        reviewer_authority: if asks { ReviewerAuthority::Human } else { ReviewerAuthority::None },
        reviewer_attached: asks && reviewer_attached,
        extra: Map::new(),
    })
}

fn attention(source: &Source<'_>) -> Option<Vec<AttentionFlag>> {
    if source.loaded == Loaded::No {
        return None;
    }
    let (approvals, inputs) = source.view.open_questions();
    let approvals = (approvals > 0).then_some(AttentionFlag::ApprovalPending);
    let inputs = (inputs > 0).then_some(AttentionFlag::InputPending);
    let flags: Vec<_> = approvals.into_iter().chain(inputs).collect();
    Some(flags).filter(|flags| !flags.is_empty())
}

#[cfg(test)]
#[path = "object_tests.rs"]
mod tests;
