//! The ACP v1 methods: who answers each and what it may touch. Every other method is a name and
//! raw params, and is forwarded.

/// What a client's request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `initialize`.
    Initialize,
    /// `session/status`: a probe, answered from read-only facts, in no lane.
    Status,
    /// `session/list`.
    List,
    /// `session/new`.
    New,
    /// `session/load`.
    Load,
    /// `session/resume`.
    Resume,
    /// `session/fork`: makes a session.
    Fork,
    /// `session/close`.
    Close,
    /// `session/delete`.
    Delete,
    /// `session/prompt`.
    Prompt,
    /// An extension of Frontdesk's own.
    Frontdesk,
    /// Anything else: to the session it names, else to the connection's agent.
    Forward,
}

impl Method {
    /// Looks a wire name up.
    #[must_use]
    pub fn of(name: &str) -> Self {
        match name {
            "initialize" => Self::Initialize,
            "session/status" => Self::Status,
            "session/list" => Self::List,
            "session/new" => Self::New,
            "session/load" => Self::Load,
            "session/resume" => Self::Resume,
            "session/fork" => Self::Fork,
            "session/close" => Self::Close,
            "session/delete" => Self::Delete,
            "session/prompt" => Self::Prompt,
            _ if name.starts_with("_frontdesk/") => Self::Frontdesk,
            _ => Self::Forward,
        }
    }
}

/// Methods that name a session by their own rules: without a usable `sessionId` they are refused.
#[must_use]
pub fn needs_session(name: &str) -> bool {
    name.starts_with("session/")
        && !matches!(name, "session/new" | "session/list" | "session/options")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_forwarded() {
        assert_eq!(Method::of("session/set_mode"), Method::Forward);
        assert_eq!(Method::of("_vendor/x"), Method::Forward);
        assert_eq!(Method::of("_frontdesk/info"), Method::Frontdesk);
        assert!(needs_session("session/set_mode") && !needs_session("session/new"));
        assert!(!needs_session("authenticate"));
    }
}
