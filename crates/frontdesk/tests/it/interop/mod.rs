//! Published agents, clients and SDKs, as they come from their registries.
//!
//! `scripts/test` downloads them once into a cache folder. Without that folder these tests say so
//! and pass, unless `CI` is set. The agents need no key: they talk to a scripted model server on
//! loopback (`tests/interop/tools/fake_model.py`).
//!
//! `direct` runs every agent and script without Frontdesk: when it fails, the fault is not ours.

mod acpx;
mod agentao;
mod codex;
mod direct;
mod kimi;
mod msp;
mod parts;
mod sdk_agents;
mod sdk_clients;
mod sdk_server;
