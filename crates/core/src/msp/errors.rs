//! The error registry of MSP: code, kind, data, and whether a retry can help.
//!
//! Clients branch on `data.kind`, never on the text, and both published SDKs refuse an error
//! without it. Source: the `ERRORS` table of the Python models 1.4.13.

use serde_json::{Map, Value, json};

use crate::errors::{Code, WireError};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $kind:literal, retryable: $retry:literal;)*) => {
        /// What went wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorKind { $($(#[$doc])* $name,)* }

        impl ErrorKind {
            /// All kinds that this face answers with.
            pub const ALL: &[ErrorKind] = &[$(ErrorKind::$name,)*];

            /// The number on the wire.
            #[must_use]
            pub const fn code(self) -> i64 { match self { $(Self::$name => $code,)* } }

            /// The word in `data.kind`.
            #[must_use]
            pub const fn word(self) -> &'static str { match self { $(Self::$name => $kind,)* } }

            /// Whether the same call may succeed later without any change.
            #[must_use]
            pub const fn is_retryable(self) -> bool { match self { $(Self::$name => $retry,)* } }
        }
    };
}

kinds! {
    /// The line was not JSON.
    ParseError = -32700, "parseError", retryable: false;
    /// JSON, but no message.
    InvalidRequest = -32600, "invalidRequest", retryable: false;
    /// A request before `initialize`.
    NotInitialized = -32600, "notInitialized", retryable: false;
    /// A second `initialize`.
    AlreadyInitialized = -32600, "alreadyInitialized", retryable: false;
    /// Nobody serves the method.
    MethodNotFound = -32601, "methodNotFound", retryable: false;
    /// An experimental method on a connection that did not ask for them.
    ExperimentalMethod = -32601, "experimentalRequired", retryable: false;
    /// The parameters are wrong.
    InvalidParams = -32602, "invalidParams", retryable: false;
    /// An experimental parameter on a connection that did not ask for them.
    ExperimentalParam = -32602, "experimentalRequired", retryable: false;
    /// A fault of Frontdesk's own.
    Internal = -32603, "internal", retryable: false;
    /// One event alone is longer than a frame may be.
    PageEventTooLarge = -32603, "pageEventTooLarge", retryable: false;
    /// Too much waits already.
    Overloaded = -32001, "overloaded", retryable: true;
    /// A frame was longer than the limit.
    InputTooLarge = -32002, "inputTooLarge", retryable: false;
    /// A cursor that was never given, or nothing at it.
    NotFound = -32011, "notFound", retryable: false;
    /// The id means no session.
    SessionNotFound = -32020, "sessionNotFound", retryable: false;
    /// Somebody else has the session.
    SessionInUse = -32021, "sessionInUse", retryable: false;
    /// The id means several sessions.
    SessionAmbiguous = -32022, "sessionAmbiguous", retryable: false;
    /// There is no such place to fork at.
    ForkBoundaryInvalid = -32023, "forkBoundaryInvalid", retryable: false;
    /// The session is not loaded.
    SessionNotLoaded = -32024, "sessionNotLoaded", retryable: false;
    /// The command was refused for good.
    CommandRejected = -32030, "commandRejected", retryable: false;
    /// The session takes no more commands now.
    Backpressured = -32031, "backpressured", retryable: true;
    /// The session has no such approval.
    ApprovalNotFound = -32050, "approvalNotFound", retryable: false;
    /// The approval has been decided.
    ApprovalAlreadyResolved = -32051, "approvalAlreadyResolved", retryable: false;
    /// The choice was not offered.
    ApprovalChoiceInvalid = -32052, "approvalChoiceInvalid", retryable: false;
    /// The approval asks for another requirement.
    ApprovalRequirementStale = -32053, "approvalRequirementStale", retryable: false;
    /// There is no compaction to start at.
    NoBoundary = -32042, "noBoundary", retryable: false;
}

/// An error answer: one plain sentence and data for programs.
#[derive(Clone, Debug, PartialEq)]
pub struct MspError {
    /// What it is.
    pub kind: ErrorKind,
    /// One plain sentence for a person.
    pub message: String,
    /// What stands in `data` beside `kind`.
    pub data: Map<String, Value>,
}

impl MspError {
    /// An error without further data.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), data: Map::new() }
    }

    /// The same error with one more member of `data`.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.data.insert(name.to_owned(), value.into());
        self
    }

    /// `-32601` for a method nobody serves.
    #[must_use]
    pub fn method_not_found(method: &str) -> Self {
        Self::new(ErrorKind::MethodNotFound, format!("the method {method:?} is not served"))
    }

    /// `-32602` with a sentence that names the parameter.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidParams, message)
    }

    /// `-32020` with the id exactly as asked.
    #[must_use]
    pub fn session_not_found(asked: &str) -> Self {
        Self::new(ErrorKind::SessionNotFound, "there is no such session").with("sessionId", asked)
    }

    /// `-32030`: a command that is refused for good. `reason` is in snake case.
    #[must_use]
    pub fn rejected(command: &str, reason: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::CommandRejected, message)
            .with("commandId", command)
            .with("reason", reason)
    }

    /// What an ACP error of our own is on this face. The numbers mean other things here (`-32002`
    /// is a frame that is too large), so no code is ever passed on.
    #[must_use]
    pub fn from_acp(error: &WireError, asked: &str) -> Self {
        let kind = match error.code {
            Code::NotFound => return Self::session_not_found(asked),
            Code::ParseError => ErrorKind::ParseError,
            Code::InvalidRequest => ErrorKind::InvalidRequest,
            Code::MethodNotFound => ErrorKind::MethodNotFound,
            Code::InvalidParams => ErrorKind::InvalidParams,
            Code::HeldElsewhere | Code::InUse => ErrorKind::SessionInUse,
            Code::FrameTooLarge => ErrorKind::InputTooLarge,
            Code::QueueFull | Code::TooMany | Code::Stopping => ErrorKind::Overloaded,
            Code::TurnStuck | Code::Behind => ErrorKind::Backpressured,
            _ => ErrorKind::Internal,
        };
        let error = Self::new(kind, error.message.clone());
        match kind {
            ErrorKind::SessionInUse => error.with("sessionId", asked),
            // How many commands are taken now.
            ErrorKind::Backpressured => error.with("capacity", 0),
            _ => error,
        }
    }

    /// Reads an error object that [`Self::to_json`] gave; `None` if it is none.
    #[must_use]
    pub fn read(value: &Value) -> Option<Self> {
        let code = value.get("code")?.as_i64()?;
        let mut data = value.get("data")?.as_object()?.clone();
        let word = data.remove("kind")?;
        data.remove("retryable");
        let known = ErrorKind::ALL.iter();
        let kind = known.copied().find(|kind| kind.code() == code && word == kind.word())?;
        Some(Self { kind, message: value.get("message")?.as_str()?.to_owned(), data })
    }

    /// JSON text of the error object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut data = Map::new();
        data.insert("kind".into(), json!(self.kind.word()));
        if self.kind.is_retryable() {
            data.insert("retryable".into(), json!(true));
        }
        data.extend(self.data.clone());
        json!({ "code": self.kind.code(), "message": self.message, "data": data }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_kind_and_says_when_a_retry_helps() {
        for kind in ErrorKind::ALL {
            let error = MspError::new(*kind, "x").with("sessionId", "s");
            let value: Value = serde_json::from_str(&error.to_json()).unwrap();
            assert_eq!(MspError::read(&value), Some(error));
            assert_eq!(value["data"]["kind"], kind.word());
            assert_eq!(value["code"], kind.code());
            assert_eq!(value["data"].get("retryable").is_some(), kind.is_retryable());
        }
    }

    #[test]
    fn an_acp_code_never_leaks() {
        let error = MspError::from_acp(&WireError::not_found("n-1"), "S");
        assert_eq!((error.kind.code(), error.data["sessionId"].as_str()), (-32020, Some("S")));
        let error = MspError::from_acp(&WireError::new(Code::Behind, "full"), "S");
        assert_eq!((error.kind, &error.data["capacity"]), (ErrorKind::Backpressured, &json!(0)));
        for code in Code::ALL {
            let error = MspError::from_acp(&WireError::new(*code, "x"), "S");
            assert!(ErrorKind::ALL.contains(&error.kind), "{code:?}");
            assert!(*code != Code::NotFound || error.kind == ErrorKind::SessionNotFound);
        }
    }
}
