//! Wire errors: code, one plain sentence, data, and whether a retry can help.
//!
//! Causes stay in the log. Sources: JSON-RPC 2.0; ACP "Errors" (`-32000`, `-32002`, `-32800`).
//! Codes of our own lie outside every reserved range.

use serde_json::{Value, json};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, retryable: $retry:literal;)*) => {
        /// What went wrong, as a number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// All codes that Frontdesk itself answers with.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> i64 { match self { $(Self::$name => $code,)* } }

            /// Whether the same call may succeed later without any change.
            #[must_use]
            pub const fn is_retryable(self) -> bool { match self { $(Self::$name => $retry,)* } }
        }
    };
}

codes! {
    /// The line was not JSON.
    ParseError = -32700, retryable: false;
    /// JSON, but no message, or a message out of turn.
    InvalidRequest = -32600, retryable: false;
    /// Nobody serves the method.
    MethodNotFound = -32601, retryable: false;
    /// The parameters are wrong.
    InvalidParams = -32602, retryable: false;
    /// A fault of Frontdesk's own.
    Internal = -32603, retryable: true;
    /// The agent wants authentication.
    AuthRequired = -32000, retryable: false;
    /// The session is unknown, or not active on this connection.
    NotFound = -32002, retryable: false;
    /// The request was cancelled.
    Cancelled = -32800, retryable: false;
    /// The agent could not be started.
    AgentStart = -31001, retryable: true;
    /// The agent's instance ended before it answered.
    InstanceEnded = -31002, retryable: true;
    /// The agent did not answer in time.
    AgentTimeout = -31003, retryable: true;
    /// A bounded queue is full.
    QueueFull = -31004, retryable: true;
    /// Another process holds the session.
    HeldElsewhere = -31005, retryable: true;
    /// The daemon is stopping.
    Stopping = -31006, retryable: true;
    /// A frame was longer than the limit.
    FrameTooLarge = -31007, retryable: false;
    /// No attached client can do what the agent asks.
    NoCapableClient = -31008, retryable: true;
    /// Others are attached; say `force`.
    InUse = -31009, retryable: false;
    /// The journal could not be written.
    Storage = -31010, retryable: true;
    /// A cancelled turn has not ended at the agent yet.
    TurnStuck = -31011, retryable: true;
    /// A limit on connections or attachments is reached.
    TooMany = -31012, retryable: true;
    /// The journal is behind: the disk is full, or takes nothing at present.
    Behind = -31013, retryable: true;
    /// The journal is damaged: its history is not copied, cut or rewritten.
    Damaged = -31014, retryable: false;
    /// The question has its answer already, or needs none any more.
    Settled = -31018, retryable: false;
}

/// An error answer.
#[derive(Clone, Debug, PartialEq)]
pub struct WireError {
    /// The number.
    pub code: Code,
    /// One plain sentence for a person.
    pub message: String,
    /// More, for programs.
    pub data: Option<Value>,
}

impl WireError {
    /// An error without data.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The same error with data.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// `-32002` as the session-status RFD words it, with the id exactly as asked.
    #[must_use]
    pub fn not_found(session_id: &str) -> Self {
        Self::new(Code::NotFound, "Resource not found")
            .with_data(json!({ "sessionId": session_id }))
    }

    /// `-32601` for a method nobody serves.
    #[must_use]
    pub fn method_not_found(method: &str) -> Self {
        Self::new(Code::MethodNotFound, "Method not found").with_data(json!({ "method": method }))
    }

    /// JSON text of the error object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut error = json!({ "code": self.code.number(), "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        if self.code.number() > -32000 && self.code.is_retryable() {
            error["data"]["retryable"] = Value::Bool(true);
        }
        error.to_string()
    }
}

/// An agent's `-32002` in the words of one client: `data.sessionId` is the id as asked. Any other
/// error stays as it is. Takes and gives JSON text.
#[must_use]
pub fn not_found_as_asked(error: &str, asked: &str) -> Option<String> {
    let mut value: Value = serde_json::from_str(error).ok()?;
    if value.get("code").and_then(Value::as_i64) != Some(Code::NotFound.number()) {
        return None;
    }
    if !value.get("data").is_some_and(Value::is_object) {
        value["data"] = json!({});
    }
    value["data"]["sessionId"] = json!(asked);
    Some(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_codes_lie_outside_the_reserved_ranges() {
        for code in Code::ALL {
            let number = code.number();
            let standard = matches!(number, -32700 | -32600..=-32600 | -32603..=-32601 | -32000 | -32002 | -32800);
            let reserved =
                (-32768..=-32000).contains(&number) || (-32899..=-32800).contains(&number);
            assert!(standard || !reserved, "{code:?}");
        }
    }

    #[test]
    fn not_found_carries_the_id_as_asked() {
        let json = WireError::not_found("x\u{202e}\n\"").to_json();
        let value: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["code"], -32002);
        assert_eq!(value["data"]["sessionId"], "x\u{202e}\n\"");
        assert!(!json.contains('\n'));
    }

    #[test]
    fn our_own_retryable_errors_say_so() {
        let value: Value =
            serde_json::from_str(&WireError::new(Code::QueueFull, "full").to_json()).unwrap();
        assert_eq!(value["data"]["retryable"], true);
    }
}
