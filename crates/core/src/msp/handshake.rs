//! `initialize`: what a client says, what it is granted, and the fingerprint it is shown.
//!
//! The fingerprint is the hash of a release's stable schema. The Python SDK refuses a host that
//! shows another one than its own release's, and cannot be told apart by its `clientInfo`, which
//! its caller chooses; the Rust SDK names itself and only warns. So the newest Python release's is
//! the default, the Rust SDK is shown its own, and `[msp] fingerprint` sets any other.

use serde_json::{Value, json};

use super::errors::MspError;
use super::params::{Params, Read as _};
use crate::fold::ClientInfo;

/// Stable fingerprints by release, oldest first.
pub const FINGERPRINTS: &[(&str, &str)] = &[
    ("1.3.1", "sha256:b1e6676d624e116e2c1b150fec3192200d2cbca8ed79898e44f8921759c7872f"),
    ("1.4.2", "sha256:61afea3112e0906e9dc3a536144278a74cb4b36fc6e20901a91d4432ba3568e2"),
    ("1.4.6", "sha256:eae467ab60cb9a5d5af4de616830f065e59375c987fd59269c8cc33ed2a1137f"),
    ("1.4.8", "sha256:4e3200c3c9dc0cd7919d11022630d43f9bc1c5cdda375381e90b0183b5665069"),
    ("1.4.9", "sha256:5d3b43e5ccdb7dc4f5a32c380f5f2cde0f10e3059b93610afb2e73f73b1d914c"),
    ("1.4.10", "sha256:5d3b43e5ccdb7dc4f5a32c380f5f2cde0f10e3059b93610afb2e73f73b1d914c"),
    ("1.4.11", "sha256:f282ad16e21520d0cda68cb190149b86e2b062eef1dd282749360c05aa3d1082"),
    ("1.4.12", "sha256:cfdb6d2525601b9bac76584ccb0610ab3a5539b5e4f51141f079b99b39fcb4e0"),
    ("1.4.13", "sha256:7fddaf646dbc317e5fcac0785e135eb04df14fbb0db1863089dfd6da21730e5b"),
    ("1.4.14", "sha256:c94c3d1f2f51e6424074b9ec43eac3eedcf532d3dcd77351ec1383a87d3049c6"),
];

/// The newest published Python release: what a client is shown that does not name itself.
pub const DEFAULT_RELEASE: &str = "1.4.13";

/// The name the Rust SDK gives itself; its version is its crate's.
const RUST_SDK: &str = "muse_code_sdk";

/// What is granted to whoever asks for it.
const GRANTABLE: &[&str] = &["sessionListStream", "sessionRename"];

/// Notifications that a client cannot opt out of.
const PROTECTED: &[&str] =
    &["approval/resolved", "userInput/settled", "view/gap", "session/leaveCompleted"];

/// What a client said in `initialize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initialize {
    /// Who it is: attribution, never a credential.
    pub client: ClientInfo,
    /// Its name for people, if it has one.
    pub title: Option<String>,
    /// Whether it asked for experimental methods, members and variants.
    pub experimental: bool,
    /// Notifications it does not want, by name.
    pub opted_out: Vec<String>,
    /// What it was granted.
    pub granted: Vec<String>,
}

/// What a host tells about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Version of this program.
    pub version: String,
    /// Absolute path of the home.
    pub home: String,
    /// `unix` or `windows`: a closed set, another word breaks the Rust SDK's handshake.
    pub family: &'static str,
    /// `macos`, `linux` or `windows`: closed as well.
    pub os: &'static str,
    /// `[msp] fingerprint` of the configuration.
    pub fingerprint: Option<String>,
}

impl Initialize {
    /// Reads the params.
    ///
    /// # Errors
    /// `-32602` if `clientInfo` or a capability is not of its type.
    pub fn read(params: &Params) -> Result<Self, MspError> {
        let info = params.object("clientInfo")?.ok_or_else(|| {
            MspError::invalid("params.clientInfo must be an object with name and version")
        })?;
        let text = |name: &str| -> Result<String, MspError> {
            let value = info.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
            value.map(ToOwned::to_owned).ok_or_else(|| {
                MspError::invalid(format!("params.clientInfo.{name} must be a string"))
            })
        };
        let (name, version) = (text("name")?, text("version")?);
        if !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') {
            return Err(MspError::invalid(
                "params.clientInfo.name must be of small letters, digits and underscores",
            ));
        }
        let none = serde_json::Map::new();
        let wants = params.object("capabilities")?.unwrap_or(&none);
        let requested = wants.strings("requestedCapabilities")?;
        Ok(Self {
            client: ClientInfo { name, version },
            title: info.get("title").and_then(Value::as_str).map(ToOwned::to_owned),
            experimental: wants.flag("experimentalApi")?.unwrap_or(false),
            opted_out: wants.strings("optOutNotificationMethods")?,
            granted: GRANTABLE
                .iter()
                .filter(|name| requested.iter().any(|asked| asked == *name))
                .map(|name| (*name).to_owned())
                .collect(),
        })
    }

    /// Whether a capability was granted.
    #[must_use]
    pub fn has(&self, capability: &str) -> bool {
        self.granted.iter().any(|granted| granted == capability)
    }

    /// Whether the client is sent a notification of this name.
    #[must_use]
    pub fn wants(&self, method: &str) -> bool {
        PROTECTED.contains(&method) || !self.opted_out.iter().any(|out| out == method)
    }

    /// The fingerprint this client is shown.
    #[must_use]
    pub fn fingerprint<'a>(&self, host: &'a Host) -> &'a str {
        if let Some(configured) = &host.fingerprint {
            return configured;
        }
        let of = |version: &str| {
            FINGERPRINTS.iter().find(|(known, _)| *known == version).map(|(_, print)| *print)
        };
        let own = (self.client.name == RUST_SDK).then(|| of(&self.client.version)).flatten();
        own.or_else(|| of(DEFAULT_RELEASE)).unwrap_or_default()
    }

    /// The result of `initialize`.
    #[must_use]
    pub fn result(&self, host: &Host) -> Value {
        json!({
            "serverInfo": { "name": "frontdesk", "version": host.version },
            "userAgent": format!("frontdesk/{} ({})", host.version, host.os),
            "museHome": host.home,
            "platformFamily": host.family,
            "platformOs": host.os,
            "schema": { "version": 1, "fingerprint": self.fingerprint(host) },
            "grantedCapabilities": self.granted,
            "experimentalApi": self.experimental,
            "sessionDurability": "durable",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(params: Value) -> Result<Initialize, MspError> {
        let Value::Object(params) = params else { panic!("no object") };
        Initialize::read(&params)
    }

    fn host() -> Host {
        Host { family: "unix", os: "linux", home: "/h".into(), ..Host::default() }
    }

    #[test]
    fn the_rust_sdk_is_shown_its_own_fingerprint_and_everybody_else_the_newest_python_one() {
        let shown = |name: &str, version: &str| {
            let said = read(json!({ "clientInfo": { "name": name, "version": version } })).unwrap();
            said.fingerprint(&host()).to_owned()
        };
        assert!(shown("muse_code_sdk", "1.4.14").starts_with("sha256:c94c3d1f"));
        assert!(shown("muse_code_sdk", "1.4.9").starts_with("sha256:5d3b43e5"));
        assert!(shown("muse_code_sdk", "9.9.9").starts_with("sha256:7fddaf64"));
        assert!(shown("my_tool", "1.4.14").starts_with("sha256:7fddaf64"));
    }

    #[test]
    fn a_configured_fingerprint_is_shown_to_all() {
        let said = read(json!({ "clientInfo": { "name": "muse_code_sdk", "version": "1.4.14" } }));
        let host = Host { fingerprint: Some("sha256:00".into()), ..host() };
        assert_eq!(said.unwrap().result(&host)["schema"]["fingerprint"], "sha256:00");
    }

    #[test]
    fn only_what_is_known_is_granted_and_what_is_protected_cannot_be_refused() {
        let said = read(json!({
            "clientInfo": { "name": "a_b1", "version": "1" },
            "capabilities": {
                "requestedCapabilities": ["sessionListStream", "userShell", "nonsense"],
                "optOutNotificationMethods": ["item/delta", "approval/resolved", "nonsense"],
            },
        }))
        .unwrap();
        assert_eq!(said.granted, ["sessionListStream"]);
        assert!(!said.wants("item/delta") && said.wants("approval/resolved"));
        assert!(said.wants("item/started") && !said.experimental);
    }

    #[test]
    fn a_client_without_a_proper_name_is_refused() {
        for bad in [
            json!({}),
            json!({ "clientInfo": null }),
            json!({ "clientInfo": { "name": "x" } }),
            json!({ "clientInfo": { "name": "Has Space", "version": "1" } }),
            json!({ "clientInfo": { "name": "x", "version": 1 } }),
            json!({ "clientInfo": { "name": "x", "version": "1" }, "capabilities": 3 }),
        ] {
            let error = read(bad.clone()).unwrap_err();
            assert_eq!(error.kind.code(), -32602, "{bad}");
        }
    }
}
