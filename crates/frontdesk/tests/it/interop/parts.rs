//! Where the downloaded parts are, and how each agent is set up for a run without a key.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::desk::AgentSpec;

/// The folder that `scripts/interop-install` filled.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    cache: PathBuf,
    node: PathBuf,
}

/// Leaves a test early when the parts are not there; see [`find`].
macro_rules! parts {
    () => {
        match $crate::interop::parts::find() {
            Some(parts) => parts,
            None => return,
        }
    };
}
pub(crate) use parts;

/// The downloaded parts, if they are there. In CI they must be.
pub(crate) fn find() -> Option<&'static Parts> {
    static FOUND: OnceLock<Option<Parts>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let cache = match std::env::var_os("FRONTDESK_TEST_CACHE") {
            Some(folder) => PathBuf::from(folder),
            None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/interop"),
        };
        let cache = cache.canonicalize().ok().filter(|it| it.join(".ready").is_file())?;
        Some(Parts { node: which::which("node").ok()?, cache })
    });
    if found.is_none() {
        let ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!ci, "the interop parts are missing; CI must run scripts/test");
        eprintln!("skipped: run scripts/test (the downloaded agents and SDKs are missing)");
    }
    found.as_ref()
}

/// The folder of our own scripts.
pub(crate) fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop")
}

impl Parts {
    fn npm(&self, part: &str, rest: &str) -> PathBuf {
        self.cache.join(part).join("node_modules").join(rest)
    }

    /// The interpreter that has the Python SDK.
    pub(crate) fn python(&self) -> PathBuf {
        self.cache.join("sdk-py/bin/python")
    }

    /// The interpreter that has the Python MSP SDK.
    pub(crate) fn msp_python(&self) -> PathBuf {
        self.cache.join("msp-py/bin/python")
    }

    /// Our client made with the Rust MSP SDK.
    pub(crate) fn msp_rust(&self) -> PathBuf {
        self.cache.join("msp-rust/target/debug/msp-rust")
    }

    /// The machine's own Node.js.
    pub(crate) fn node(&self) -> &Path {
        &self.node
    }

    /// Node.js 22, which some packages need.
    pub(crate) fn node22(&self) -> PathBuf {
        self.npm("node22", "node/bin/node")
    }

    /// The folder of the TypeScript SDK.
    pub(crate) fn ts_sdk(&self) -> PathBuf {
        self.npm("sdk-ts", "@agentclientprotocol/sdk")
    }

    /// The WebSocket library that the TypeScript SDK's server needs.
    pub(crate) fn ws(&self) -> PathBuf {
        self.npm("ws", "ws")
    }

    /// The client `acpx`, to be run by [`Parts::node22`].
    pub(crate) fn acpx(&self) -> PathBuf {
        self.npm("acpx", ".bin/acpx")
    }

    /// Our agent made with the Python SDK.
    pub(crate) fn python_agent(&self) -> AgentSpec {
        AgentSpec::new("pysdk", [self.python(), scripts().join("python/agent.py")])
    }

    /// Our agent made with the TypeScript SDK.
    pub(crate) fn ts_agent(&self) -> AgentSpec {
        AgentSpec::new("tssdk", [self.node.clone(), scripts().join("node/agent.mjs")])
            .env("ACP_SDK", self.ts_sdk())
    }

    /// The example agent that the TypeScript SDK's package has with it.
    pub(crate) fn ts_example(&self) -> AgentSpec {
        let example = self.ts_sdk().join("dist/examples/agent.js");
        AgentSpec::new("tsexample", [self.node.as_path(), &example])
    }

    /// codex-acp with a home of its own.
    pub(crate) fn codex(&self, rig: &Rig) -> AgentSpec {
        let config = format!(
            "model = \"fake-model\"\nmodel_provider = \"fake\"\n\
             approval_policy = \"on-request\"\nsandbox_mode = \"workspace-write\"\n\
             [model_providers.fake]\nname = \"Fake\"\nbase_url = \"{}/v1\"\n\
             wire_api = \"responses\"\nenv_key = \"FAKE_KEY\"\n\
             request_max_retries = 0\nstream_max_retries = 0\n",
            rig.model.url
        );
        rig.file(".codex/config.toml", &config);
        // The package's wrapper would be one more process; the binary has the machine in its name.
        let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
        let program = self.npm("codex", &format!(".bin/codex-acp-linux-{machine}"));
        AgentSpec::new("codex", [program]).env("HOME", rig.home()).env("FAKE_KEY", "x")
    }

    /// agentao with a home of its own.
    pub(crate) fn agentao(&self, rig: &Rig) -> AgentSpec {
        let program = self.cache.join("agentao/bin/agentao");
        AgentSpec::new("agentao", [program.as_path(), Path::new("--acp")])
            .env("HOME", rig.home())
            .env("OPENAI_BASE_URL", format!("{}/v1", rig.model.url))
            .env("OPENAI_API_KEY", "x")
            .env("OPENAI_MODEL", "fake-model")
    }

    /// kimi-code with a home of its own.
    pub(crate) fn kimi(&self, rig: &Rig) -> AgentSpec {
        let config = format!(
            "default_model = \"fake\"\ntelemetry = false\n\
             [providers.fakeprov]\ntype = \"openai\"\nbase_url = \"{}/v1\"\napi_key = \"x\"\n\
             [models.fake]\nprovider = \"fakeprov\"\nmodel = \"fake-model\"\n\
             max_context_size = 128000\n",
            rig.model.url
        );
        rig.file(".kimi-code/config.toml", &config);
        let command = [self.node22(), self.npm("kimi", ".bin/kimi"), PathBuf::from("acp")];
        let node = self.node22();
        let path = std::env::var("PATH").unwrap_or_default();
        AgentSpec::new("kimi", command)
            .env("HOME", rig.home())
            .env("PATH", format!("{}:{path}", node.parent().unwrap().display()))
    }
}

/// What a real agent needs around it: a model server, a home, a work folder that is a git one.
pub(crate) struct Rig {
    pub(crate) model: FakeModel,
    root: TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let root = tempfile::Builder::new().prefix("fdrig").tempdir_in("/tmp").unwrap();
        for folder in ["home", "work"] {
            std::fs::create_dir(root.path().join(folder)).unwrap();
        }
        let git = Command::new("git").arg("init").arg("-q").arg(root.path().join("work")).status();
        assert!(git.is_ok_and(|status| status.success()), "git is needed for these tests");
        Self { model: FakeModel::start(root.path()), root }
    }

    /// The agent's `HOME`.
    pub(crate) fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    /// The sessions' folder.
    pub(crate) fn work(&self) -> PathBuf {
        self.root.path().join("work")
    }

    /// The folder as text, for `cwd`.
    pub(crate) fn cwd(&self) -> String {
        self.work().display().to_string()
    }

    /// Parameters of `session/new` in the work folder.
    pub(crate) fn new_params(&self) -> Value {
        json!({ "cwd": self.cwd(), "mcpServers": [] })
    }

    /// Parameters of `session/load` and `session/resume` in the work folder.
    pub(crate) fn open_params(&self, session: &str) -> Value {
        json!({ "sessionId": session, "cwd": self.cwd(), "mcpServers": [] })
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.home().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

/// The scripted model server; ends with the value.
pub(crate) struct FakeModel {
    child: Child,
    pub(crate) url: String,
    log: PathBuf,
}

impl FakeModel {
    fn start(root: &Path) -> Self {
        let log = root.join("model.jsonl");
        let mut child = Command::new("python3")
            .arg(scripts().join("tools/fake_model.py"))
            .arg("--log")
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").map(str::to_owned);
        Self { url: url.unwrap_or_else(|| panic!("no address, but {line:?}")), child, log }
    }

    /// The newest user words of every model call so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        entries
            .filter(|entry| entry["kind"] == "POST")
            .map(|entry| entry["user"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

impl Drop for FakeModel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
