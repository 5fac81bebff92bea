//! The types that the Session object refers to. Source: MSP schema, `types/Session` and its `$defs`.
//!
//! Open sets keep words of newer versions as they came; the one closed set, `ApprovalMode`
//! (`fold::ApprovalMode`), refuses them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::fold::ApprovalMode;

macro_rules! open_set {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $word:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$word_doc])* $word,)*
            /// A word of a newer version, kept as it came.
            Other(Box<str>),
        }

        impl $name {
            /// The word on the wire.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self { $(Self::$word => $text,)* Self::Other(text) => text }
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text { $($text => Self::$word,)* other => Self::Other(other.into()) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(|text| Self::from(text.as_str()))
            }
        }
    };
}

open_set! {
    /// Load state as this host knows it.
    SessionStatus {
        /// No instance of ours has it in memory.
        NotLoaded = "notLoaded",
        /// Loaded, and no turn runs.
        Idle = "idle",
        /// Loaded, and a turn runs.
        Running = "running",
    }
}

open_set! {
    /// Something waits for people.
    AttentionFlag {
        /// At least one permission is asked for.
        ApprovalPending = "approvalPending",
        /// At least one other question is open.
        InputPending = "inputPending",
    }
}

open_set! {
    /// What kind of session it is.
    SessionKind {
        /// A conversation with people.
        Root = "root",
        /// A child of another session.
        Subagent = "subagent",
    }
}

open_set! {
    /// How the name was set.
    SessionNameOrigin {
        /// Allocated, and never changed by anybody.
        Automatic = "automatic",
        /// Given by somebody.
        Custom = "custom",
    }
}

open_set! {
    /// Where the approval mode in force came from.
    ApprovalModeSource {
        /// Told when the session was made.
        Startup = "startup",
        /// Read back from the log.
        Replay = "replay",
        /// Changed by a command.
        ApprovalReconfigure = "approvalReconfigure",
    }
}

open_set! {
    /// Who answers questions.
    ReviewerAuthority {
        /// A program reviews them.
        AutoReview = "autoReview",
        /// People do.
        Human = "human",
        /// Nobody is asked: the policy answers.
        None = "none",
    }
}

open_set! {
    /// How a working tree came to the session.
    WorktreeOrigin {
        /// Made for the session.
        Created = "created",
        /// There before.
        Attached = "attached",
    }
}

/// The approval mode in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveApprovalModeState {
    /// The mode; a closed set.
    pub mode: ApprovalMode,
    /// Where it came from.
    pub source: ApprovalModeSource,
    /// The command that changed it last.
    #[serde(deserialize_with = "required_nullable")]
    pub last_command_id: Option<String>,
    /// Members of newer versions.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The permission state in force. Experimental.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectivePermissionState {
    /// The profile; `None` where it was told at the start and has no name.
    #[serde(deserialize_with = "required_nullable")]
    pub profile_id: Option<String>,
    /// Who answers.
    pub reviewer_authority: ReviewerAuthority,
    /// Whether somebody who may answer is there.
    pub reviewer_attached: bool,
    /// Members of newer versions, and `axes`, which Frontdesk does not know and never says.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A client in its own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// Where a fork came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkProvenance {
    /// The session it was forked from.
    pub session_id: String,
    /// The last event that both share; for display only.
    pub cut_cursor: String,
    /// Whether whoever forked chose the cut.
    pub cut_explicit: bool,
    /// The command that forked it.
    pub command_id: String,
}

/// Where a side chat came from. Frontdesk opens none, and keeps what a host tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SideProvenance {
    /// The session it stands beside.
    pub session_id: String,
    /// Where it began; for display only.
    pub cut_cursor: String,
    /// The command that opened it.
    pub command_id: String,
}

/// The working tree a session runs in. Experimental.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionWorktree {
    /// Its folder.
    pub path: String,
    /// How it came to the session.
    pub origin: WorktreeOrigin,
}

/// Reads a member that must be there and may be null.
pub(super) fn required_nullable<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Reads and writes; what comes out is what went in.
    fn same<T: Serialize + for<'de> Deserialize<'de>>(value: Value) {
        let read: T = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), value);
    }

    fn refused<T: for<'de> Deserialize<'de>>(value: Value) {
        assert!(serde_json::from_value::<T>(value.clone()).is_err(), "{value}");
    }

    #[test]
    fn known_and_unknown_words_of_open_sets_are_kept() {
        for word in ["notLoaded", "idle", "running", "needsInput"] {
            same::<SessionStatus>(json!(word));
        }
        for word in ["approvalPending", "inputPending", "admissionPending"] {
            same::<AttentionFlag>(json!(word));
        }
        for word in ["root", "subagent", "brandNew"] {
            same::<SessionKind>(json!(word));
        }
        for word in ["automatic", "custom", "brandNew"] {
            same::<SessionNameOrigin>(json!(word));
        }
        for word in ["startup", "replay", "approvalReconfigure", "brandNew"] {
            same::<ApprovalModeSource>(json!(word));
        }
        for word in ["autoReview", "human", "none", "brandNew"] {
            same::<ReviewerAuthority>(json!(word));
        }
        for word in ["created", "attached", "brandNew"] {
            same::<WorktreeOrigin>(json!(word));
        }
        assert!(matches!(SessionStatus::from("needsInput"), SessionStatus::Other(_)));
        assert_eq!(SessionStatus::from("idle"), SessionStatus::Idle);
        refused::<SessionStatus>(json!(7));
    }

    #[test]
    fn the_closed_set_refuses_what_it_does_not_know() {
        for mode in ApprovalMode::ALL {
            same::<EffectiveApprovalModeState>(
                json!({ "mode": mode.as_str(), "source": "startup", "lastCommandId": null }),
            );
        }
        refused::<EffectiveApprovalModeState>(
            json!({ "mode": "brandNew", "source": "startup", "lastCommandId": null }),
        );
    }

    #[test]
    fn required_members_must_be_there_also_where_they_may_be_null() {
        same::<EffectiveApprovalModeState>(
            json!({ "mode": "onRequest", "source": "brandNew", "lastCommandId": "c", "more": 1 }),
        );
        refused::<EffectiveApprovalModeState>(json!({ "mode": "onRequest", "source": "startup" }));
        same::<EffectivePermissionState>(
            json!({ "profileId": null, "reviewerAuthority": "human", "reviewerAttached": true }),
        );
        same::<EffectivePermissionState>(json!({
            "profileId": "p", "reviewerAuthority": "none", "reviewerAttached": false,
            "axes": { "network": "off" },
        }));
        refused::<EffectivePermissionState>(
            json!({ "reviewerAuthority": "human", "reviewerAttached": true }),
        );
    }

    #[test]
    fn provenance_and_worktree_have_all_their_members() {
        let fork =
            json!({ "sessionId": "p", "cutCursor": "v", "cutExplicit": true, "commandId": "c" });
        same::<ForkProvenance>(fork.clone());
        let side = json!({ "sessionId": "p", "cutCursor": "v", "commandId": "c" });
        same::<SideProvenance>(side.clone());
        refused::<ForkProvenance>(side);
        same::<ClientInfo>(json!({ "name": "zed", "version": "1" }));
        refused::<ClientInfo>(json!({ "name": "zed" }));
        same::<SessionWorktree>(json!({ "path": "/w", "origin": "attached" }));
        refused::<SessionWorktree>(json!({ "path": "/w" }));
    }
}
