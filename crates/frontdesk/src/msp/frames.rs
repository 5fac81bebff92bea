//! Frames as MSP has them.

use bytes::Bytes;
use frontdesk_core::envelope::quote;
use frontdesk_core::msp::MspError;
use jiff::Timestamp;
use serde_json::Value;

/// A notification, with the time it was sent.
pub(super) fn notification(method: &str, params: &Value) -> Bytes {
    let at = Timestamp::now().as_millisecond();
    Bytes::from(format!(
        r#"{{"jsonrpc":"2.0","method":{},"params":{params},"emittedAtMs":{at}}}"#,
        quote(method)
    ))
}

/// An error answer; `id` is JSON text.
pub(super) fn failure(id: &str, error: &MspError) -> Bytes {
    frontdesk_core::envelope::Frame::failure(id, &error.to_json())
}
