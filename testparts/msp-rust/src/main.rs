//! A client made with the published Rust MSP SDK; prints one JSON report.
//!
//! usage: msp-rust MUSE SESSION
//!
//! MUSE is started as the SDK starts its host. Every result is read into the SDK's own types; for
//! methods that its facade does not have, over its raw connection. Nothing is judged here but that.

use std::error::Error;
use std::time::Duration;

use muse_code_sdk::connection::StdioTransport;
use muse_code_sdk::connection::{Connection, ConnectionError};
use muse_code_sdk::handshake::Handshake;
use muse_code_sdk::msp::{
    ApprovalListPendingResult, ClientInfo, InitializeParams, SessionListResult, SessionReadResult,
    ViewPageResult, ViewSubscribeResult,
};
use muse_code_sdk::spawn::{SpawnOptions, spawn_muse};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Longest wait for one answer.
const WAIT: Duration = Duration::from_secs(30);

async fn call<T: DeserializeOwned>(
    connection: &Connection,
    method: &str,
    params: Value,
) -> Result<(T, Value), Box<dyn Error>> {
    let params = params.as_object().cloned().filter(|params: &Map<_, _>| !params.is_empty());
    let result = tokio::time::timeout(WAIT, connection.request(method, params)).await??;
    let value = serde_json::to_value(&result)?;
    let typed =
        serde_json::from_value(value.clone()).map_err(|e| format!("{method}: {e}: {value}"))?;
    Ok((typed, value))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (muse, session) = (args.next().ok_or("MUSE?")?, args.next().ok_or("SESSION?")?);
    let mut options = SpawnOptions::default();
    options.muse_bin = Some(muse.into());
    let mut child = spawn_muse(options)?;
    let (stdin, stdout) =
        (child.take_stdin().ok_or("no stdin")?, child.take_stdout().ok_or("no stdout")?);
    let (connection, driver) = Connection::new(StdioTransport::new(stdin, stdout));
    let mut heard = connection.subscribe_notifications();
    let mut wrong = connection.subscribe_protocol_errors();
    tokio::spawn(driver.run());
    let params = InitializeParams {
        client_info: ClientInfo {
            name: "muse_code_sdk".into(),
            version: "1.4.14".into(),
            title: Some("Muse Code Rust SDK".into()),
        },
        capabilities: None,
    };
    let ready = Handshake::new(connection.clone()).initialize(params).await?;
    let warned = ready.fingerprint_warning.is_some();

    let (list, _) = call::<SessionListResult>(&connection, "session/list", json!({})).await?;
    let named = json!({ "sessionId": session });
    let (read, _) = call::<SessionReadResult>(&connection, "session/read", named.clone()).await?;
    let whole = json!({ "sessionId": session, "excludeItems": false });
    let (_, whole) = call::<SessionReadResult>(&connection, "session/read", whole).await?;
    let asked = json!({ "sessionId": session, "limit": 200 });
    let (page, _) = call::<ViewPageResult>(&connection, "view/page", asked).await?;
    let (_, pending) =
        call::<ApprovalListPendingResult>(&connection, "approval/listPending", named.clone())
            .await?;
    let start = json!({ "sessionId": session, "after": format!("v:{session}:0") });
    let (follow, _) = call::<ViewSubscribeResult>(&connection, "view/subscribe", start).await?;
    let mut replayed = Vec::new();
    loop {
        let event = tokio::time::timeout(WAIT, heard.recv()).await??;
        let params = Value::Object(event.params.unwrap_or_default());
        let at_head = params["viewCursor"] == json!(follow.view_cursor);
        replayed.push(event.method);
        if at_head {
            break;
        }
    }
    let unknown = connection.request("turn/start", None).await;
    let kind = match unknown {
        Err(ConnectionError::Msp(error)) => json!(format!("{:?}", error.kind())),
        Err(other) => json!(format!("{other:?}")),
        Ok(_) => json!("served"),
    };
    connection.close().await;
    let exit = child.close().await?;
    let report = json!({
        "warned": warned,
        "server": ready.initialize_result.server_info.name,
        "sessions": list.sessions.len(),
        "nextCursor": list.next_cursor,
        "read": read.session,
        "history": whole["history"]["items"].as_array().map(Vec::len),
        "pages": page.events.len(),
        "pending": pending,
        "replayed": replayed,
        "turnStart": kind,
        "wrong": wrong.try_recv().is_ok(),
        "exit": exit.exit_code,
    });
    println!("{report}");
    Ok(())
}
