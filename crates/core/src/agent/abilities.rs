//! What the two sides say of themselves in `initialize`, read tolerantly.
//!
//! Called once for each answer of an agent and each greeting of a client. Nothing here fails: what
//! is missing or of a wrong shape is simply not offered. Source: ACP v1 "Initialization"; v1 mixes
//! booleans and markers, where a marker `{}` means yes and anything else no.

use serde_json::Value;

use super::quirks::Quirks;

/// Which protocol's shape an answer to `initialize` has. The number in it is not to be trusted:
/// some agents echo the number they were asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// ACP v1, also where nothing tells.
    #[default]
    V1,
    /// ACP v2: it has `capabilities` and no `agentCapabilities`.
    V2,
}

/// The kinds of content a prompt may hold besides text and links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptKinds {
    /// `image` blocks.
    pub image: bool,
    /// `audio` blocks.
    pub audio: bool,
    /// `resource` blocks (embedded context).
    pub embedded_context: bool,
}

impl PromptKinds {
    /// The first kind of content in a prompt that is not offered. Kinds we do not know pass: a newer
    /// agent may know them.
    #[must_use]
    pub fn missing(&self, params: &str) -> Option<&'static str> {
        #[derive(serde::Deserialize)]
        struct Params<'a> {
            #[serde(borrow)]
            prompt: Vec<Block<'a>>,
        }
        #[derive(serde::Deserialize)]
        struct Block<'a> {
            #[serde(borrow, rename = "type")]
            kind: std::borrow::Cow<'a, str>,
        }
        let params: Params<'_> = serde_json::from_str(params).ok()?;
        params.prompt.iter().find_map(|block| match block.kind.as_ref() {
            "image" if !self.image => Some("image"),
            "audio" if !self.audio => Some("audio"),
            "resource" if !self.embedded_context => Some("resource"),
            _ => None,
        })
    }
}

/// What an agent offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// The shape of its answer.
    pub shape: Shape,
    /// `protocolVersion` as it said it; `None` if it is no number.
    pub version: Option<u64>,
    /// `session/load`.
    pub load: bool,
    /// `session/resume`.
    pub resume: bool,
    /// `session/list`.
    pub list: bool,
    /// `session/close`.
    pub close: bool,
    /// `session/delete`.
    pub delete: bool,
    /// `session/fork`.
    pub fork: bool,
    /// `session/status`.
    pub status: bool,
    /// What its prompts may hold.
    pub prompt: PromptKinds,
    /// Whether it names a way to log in.
    pub has_auth_methods: bool,
    /// `logout`.
    pub logout: bool,
    /// `agentInfo.name`, or `info.name` in v2.
    pub name: Option<String>,
    /// `agentInfo.version`, or `info.version` in v2.
    pub agent_version: Option<String>,
}

impl Abilities {
    /// Reads the `result` of an agent's answer to `initialize`.
    #[must_use]
    pub fn from_result(result: &Value) -> Self {
        let is_v2 =
            result.get("capabilities").is_some() && result.get("agentCapabilities").is_none();
        let info = if is_v2 { &result["info"] } else { &result["agentInfo"] };
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
        let mut abilities = if is_v2 {
            Self::from_v2(&result["capabilities"])
        } else {
            Self::from_v1(&result["agentCapabilities"])
        };
        abilities.version = result["protocolVersion"].as_u64();
        abilities.has_auth_methods =
            result["authMethods"].as_array().is_some_and(|methods| !methods.is_empty());
        abilities.name = text(&info["name"]);
        abilities.agent_version = text(&info["version"]);
        abilities
    }

    fn from_v1(capabilities: &Value) -> Self {
        let session = &capabilities["sessionCapabilities"];
        let prompt = &capabilities["promptCapabilities"];
        Self {
            shape: Shape::V1,
            load: is_true(&capabilities["loadSession"]),
            resume: session["resume"].is_object(),
            list: session["list"].is_object(),
            close: session["close"].is_object(),
            delete: session["delete"].is_object(),
            fork: session["fork"].is_object(),
            status: session["status"].is_object(),
            prompt: PromptKinds {
                image: is_true(&prompt["image"]),
                audio: is_true(&prompt["audio"]),
                embedded_context: is_true(&prompt["embeddedContext"]),
            },
            logout: capabilities["auth"]["logout"].is_object(),
            ..Self::default()
        }
    }

    /// In v2 the marker `session` brings list, resume and close with it; there is no load.
    fn from_v2(capabilities: &Value) -> Self {
        let session = &capabilities["session"];
        let prompt = &session["prompt"];
        let serves = session.is_object();
        Self {
            shape: Shape::V2,
            load: false,
            resume: serves,
            list: serves,
            close: serves,
            delete: session["delete"].is_object(),
            fork: session["fork"].is_object(),
            status: session["status"].is_object(),
            prompt: PromptKinds {
                image: prompt["image"].is_object(),
                audio: prompt["audio"].is_object(),
                embedded_context: prompt["embeddedContext"].is_object(),
            },
            logout: true,
            ..Self::default()
        }
    }

    /// What it can really do: without the methods it only advertises, with those it hides.
    #[must_use]
    pub fn with_quirks(mut self, quirks: &Quirks) -> Self {
        self.load |= quirks.load_hidden;
        self.resume = (self.resume || quirks.resume_hidden) && !quirks.resume_mnf;
        self.list = (self.list || quirks.list_hidden) && !quirks.list_null;
        self.close &= !quirks.close_mnf;
        self
    }

    /// Whether a session can be called back at all once it is unloaded.
    #[must_use]
    pub const fn can_reopen(&self) -> bool {
        self.load || self.resume
    }
}

/// What a client can do for agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientAbilities {
    /// `fs/read_text_file`.
    pub read_text_file: bool,
    /// `fs/write_text_file`.
    pub write_text_file: bool,
    /// All `terminal/*` methods.
    pub terminal: bool,
    /// `elicitation/create` with a form.
    pub elicitation_form: bool,
    /// `elicitation/create` with an address to visit.
    pub elicitation_url: bool,
}

impl ClientAbilities {
    /// Reads the `params` of a client's `initialize`, of either version.
    #[must_use]
    pub fn from_params(params: &Value) -> Self {
        let v1 = &params["clientCapabilities"];
        let asks = if v1.is_object() { v1 } else { &params["capabilities"] };
        Self {
            read_text_file: is_true(&v1["fs"]["readTextFile"]),
            write_text_file: is_true(&v1["fs"]["writeTextFile"]),
            terminal: is_true(&v1["terminal"]),
            elicitation_form: asks["elicitation"]["form"].is_object(),
            elicitation_url: asks["elicitation"]["url"].is_object(),
        }
    }

    /// Whether a client with these abilities can take a request of this method. Methods that need
    /// no ability of their own (permission requests, extensions) can be taken by any client.
    #[must_use]
    pub fn can_take(&self, method: &str) -> bool {
        match method {
            "fs/read_text_file" => self.read_text_file,
            "fs/write_text_file" => self.write_text_file,
            "elicitation/create" => self.elicitation_form || self.elicitation_url,
            method if method.starts_with("terminal/") => self.terminal,
            _ => true,
        }
    }
}

fn is_true(value: &Value) -> bool {
    value.as_bool() == Some(true)
}
