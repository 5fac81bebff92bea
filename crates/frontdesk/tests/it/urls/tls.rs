//! `wss://` urls: real TLS before a real server, and everything that a certificate can have wrong.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use serde_json::json;
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{
    RootCertStore, ServerConfig, SupportedProtocolVersion, crypto, version,
};

use super::broken::{desk_at, error_of};
use super::{SOON, Server, client, new_session, place, quick, status, turn, urls_of, wait_up};
use crate::acp::{ANSWER, prompt};
use crate::desk::{AgentSpec, Desk};
use crate::faults::eventually;

/// An authority of the test's own, and its certificate in a file.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// A certificate with its key.
type Shown = (CertificateDer<'static>, PrivateKeyDer<'static>);

impl Authority {
    fn new() -> Self {
        Self::named("the right one")
    }

    fn named(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { issuer, folder: tempfile::tempdir().unwrap() };
        std::fs::write(authority.file(), authority.issuer.pem()).unwrap();
        authority
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    fn sign(&self, names: &[&str], years: (i32, i32)) -> Shown {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 1, 1);
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        (signed.der().clone(), PrivateKeyDer::Pkcs8(key.serialize_der().into()))
    }

    /// One that is right for this machine's own address.
    fn good(&self) -> Shown {
        self.sign(&["127.0.0.1", "localhost"], (2020, 2100))
    }

    /// The authority's own, shown by a server.
    fn itself(&self) -> Shown {
        let key = self.issuer.key().serialize_der();
        (self.issuer.der().clone(), PrivateKeyDer::Pkcs8(key.into()))
    }
}

/// TLS before a server: what arrives is carried there.
struct Front {
    url: String,
    /// Connections that got through TLS.
    through: Arc<AtomicUsize>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Front {
    fn before(server: &str, shown: Shown) -> Self {
        Self::with(server, shown, &[&version::TLS13, &version::TLS12], None)
    }

    fn with(
        server: &str,
        shown: Shown,
        versions: &[&'static SupportedProtocolVersion],
        clients_of: Option<&Authority>,
    ) -> Self {
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .unwrap();
        let builder = match clients_of {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.issuer.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let config = builder.with_single_cert(vec![shown.0], shown.1).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("wss://{}/acp", listener.local_addr().unwrap());
        let through = Arc::new(AtomicUsize::new(0));
        let (server, count): (SocketAddr, _) = (server.parse().unwrap(), through.clone());
        listener.set_nonblocking(true).unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, count) = (acceptor.clone(), count.clone());
                tokio::spawn(async move {
                    let Ok(mut here) = acceptor.accept(stream).await else { return };
                    count.fetch_add(1, Ordering::Relaxed);
                    let Ok(mut there) = tokio::net::TcpStream::connect(server).await else {
                        return;
                    };
                    let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
                });
            }
        });
        Self { url, through, runtime: Some(runtime) }
    }

    fn through(&self) -> usize {
        self.through.load(Ordering::Relaxed)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn desk_with(ca: &Path, urls: &[&str], setting: &str) -> Desk {
    let agent = AgentSpec::behind("far", urls).setting(&format!("ca = {}", json!(ca)));
    let desk = quick(Desk::builder().agent(agent.setting(setting)));
    // Whatever is logged of a connection is logged, and no secret.
    desk.env("FRONTDESK_LOG", "trace").limit("url_connect_ms", 5_000).open()
}

/// What is wrong with a server that shows this, and that nobody got to it.
fn wrong_with(authority: &Authority, shown: Shown) -> String {
    let store = tempfile::tempdir().unwrap();
    let server = Server::start(store.path(), &[]);
    let front = Front::before(&server.address(), shown);
    let desk = desk_with(&authority.file(), &[&front.url], "");
    let mut error = String::new();
    eventually("what is wrong", SOON, || {
        error = error_of(&desk, &front.url);
        error.starts_with("failed to agree on TLS")
    });
    assert_eq!(urls_of(&desk)[0]["up"], false);
    assert_eq!(front.through(), 0, "nothing is said to a server that was not proven: {error}");
    error
}

#[test]
fn a_server_behind_tls_is_used_like_any_other() {
    let (authority, store) = (Authority::new(), tempfile::tempdir().unwrap());
    let server = Server::start(store.path(), &["--token", "sesame"]);
    let front = Front::before(&server.address(), authority.good());
    let headers = "headers = { Authorization = 'Bearer sesame' }";
    let desk = desk_with(&authority.file(), &[&front.url], headers);
    wait_up(&desk, 1);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    turn(&mut client, &session, "say hello");
    // Many TLS records each way; what the agent says of it is as long.
    let long = "x".repeat(3 << 20);
    let asked = client.begin("session/prompt", prompt(&session, &format!("say {long}")));
    assert_eq!(client.wait(asked, ANSWER).expect("a turn")["stopReason"], "end_turn");
    let said = client.text(&session, "agent_message_chunk", 0);
    assert!(said.contains(&long), "all of it came back");
    let (word, meta) = status(&mut client, &session);
    assert_eq!((word.as_str(), &meta["source"]), ("active", &json!("owner")));
    client.ok("session/close", json!({ "sessionId": session }));
    client.ok("session/load", place(&desk, Some(&session)));
    turn(&mut client, &session, "say again");
    assert_eq!(front.through(), 1, "one connection");
    assert!(!desk.daemon_log().contains("sesame"), "no log has a header's value");
}

#[test]
fn a_connection_over_tls_that_breaks_is_made_again() {
    let (authority, store) = (Authority::new(), tempfile::tempdir().unwrap());
    let mut server = Server::start(store.path(), &[]);
    let front = Front::before(&server.address(), authority.good());
    let desk = desk_with(&authority.file(), &[&front.url], "");
    wait_up(&desk, 1);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    turn(&mut client, &session, "say hello");
    server.kill();
    wait_up(&desk, 0);
    server.run();
    wait_up(&desk, 1);
    client.ok("session/load", place(&desk, Some(&session)));
    turn(&mut client, &session, "say again");
    assert!(front.through() > 1);
}

#[test]
fn tls_of_version_1_2_is_spoken_too() {
    let (authority, store) = (Authority::new(), tempfile::tempdir().unwrap());
    let server = Server::start(store.path(), &[]);
    let front = Front::with(&server.address(), authority.good(), &[&version::TLS12], None);
    let desk = desk_with(&authority.file(), &[&front.url], "");
    wait_up(&desk, 1);
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let authority = Authority::new();
    let error = wrong_with(&authority, authority.sign(&["other.example"], (2020, 2100)));
    assert!(error.contains("for other.example, not for 127.0.0.1"), "{error}");
    let error = wrong_with(&authority, authority.sign(&[], (2020, 2100)));
    assert!(error.contains("for no name at all"), "{error}");
}

#[test]
fn a_certificate_of_an_issuer_that_is_not_named_is_refused() {
    let authority = Authority::new();
    let error = wrong_with(&authority, Authority::named("another").good());
    let file = authority.file().display().to_string();
    assert!(error.contains(&format!("not from an issuer in {file}; name the file")), "{error}");
    // One of the same name is another one all the same.
    let error = wrong_with(&authority, Authority::new().good());
    assert!(error.contains("another one of that name has signed it"), "{error}");
}

#[test]
fn a_certificate_that_is_not_valid_now_is_refused() {
    let authority = Authority::new();
    let error = wrong_with(&authority, authority.sign(&["127.0.0.1"], (2019, 2020)));
    assert!(error.contains("ended at 2020-01-01T00:00:00Z; have it renewed"), "{error}");
    let error = wrong_with(&authority, authority.sign(&["127.0.0.1"], (2100, 2101)));
    assert!(error.contains("begins at 2100-01-01T00:00:00Z; look at the clocks"), "{error}");
}

#[test]
fn an_authority_that_shows_its_own_certificate_is_refused() {
    let authority = Authority::new();
    let error = wrong_with(&authority, authority.itself());
    assert!(error.contains("an issuer's certificate as its own"), "{error}");
}

#[test]
fn without_a_file_the_issuers_of_the_system_count() {
    let (authority, other) = (Authority::new(), Authority::named("another"));
    let store = tempfile::tempdir().unwrap();
    let server = Server::start(store.path(), &[]);
    let known = Front::before(&server.address(), authority.good());
    let unknown = Front::before(&server.address(), other.good());
    let urls = [known.url.as_str(), unknown.url.as_str()];
    let desk = Desk::builder().agent(AgentSpec::behind("far", &urls));
    let desk = quick(desk).env("SSL_CERT_FILE", authority.file()).open();
    wait_up(&desk, 1);
    eventually("what is wrong with the other", SOON, || {
        error_of(&desk, &unknown.url).contains("an issuer that this machine does not trust")
    });
    assert_eq!((known.through(), unknown.through()), (1, 0));
}

#[test]
fn a_file_of_issuers_is_read_anew_for_each_connection() {
    let (authority, store) = (Authority::new(), tempfile::tempdir().unwrap());
    let server = Server::start(store.path(), &[]);
    let front = Front::before(&server.address(), authority.good());
    std::fs::remove_file(authority.file()).unwrap();
    let desk = desk_with(&authority.file(), &[&front.url], "");
    let file = authority.file().display().to_string();
    eventually("what is wrong", SOON, || {
        error_of(&desk, &front.url).starts_with(&format!("failed to use {file} as `ca`: No such"))
    });
    assert!(desk.daemon_log().contains("failed to find the file"), "said at the start too");
    // A renewal: the old authority first, both at last.
    let all = format!("{}{}", Authority::new().issuer.pem(), authority.issuer.pem());
    std::fs::write(authority.file(), all).unwrap();
    wait_up(&desk, 1);
}

#[test]
fn a_server_that_wants_a_certificate_of_ours_is_told_of() {
    for versions in [&[&version::TLS12], &[&version::TLS13]] {
        let (authority, store) = (Authority::new(), tempfile::tempdir().unwrap());
        let server = Server::start(store.path(), &[]);
        let shown = authority.good();
        let front = Front::with(&server.address(), shown, versions, Some(&authority));
        let desk = desk_with(&authority.file(), &[&front.url], "");
        let mut error = String::new();
        eventually("what is wrong", SOON, || {
            error = error_of(&desk, &front.url);
            error.contains("failed")
        });
        assert!(error.starts_with("failed to agree on TLS"), "{error}");
    }
}

#[test]
fn a_server_without_tls_at_a_wss_url_is_told_of_and_the_other_way_round() {
    let (authority, store) = (Authority::new(), tempfile::tempdir().unwrap());
    let server = Server::start(store.path(), &[]);
    let front = Front::before(&server.address(), authority.good());
    let without = format!("wss://{}/acp", server.address());
    let with = front.url.replace("wss://", "ws://");
    // One that answers whatever comes, as an HTTP server does.
    let talker = TcpListener::bind("127.0.0.1:0").unwrap();
    let answers = format!("wss://{}/", talker.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in talker.incoming().flatten() {
            let _ = stream.read(&mut [0; 1 << 10]);
            let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let desk = desk_with(&authority.file(), &[&without, &with, &answers], "");
    eventually("what is wrong with all", SOON, || {
        error_of(&desk, &without).contains("its address begins with ws://")
            && error_of(&desk, &answers).contains("what answers is not TLS")
            && error_of(&desk, &with).contains("its address begins with wss://")
    });
    // Whoever wants a session is told the same.
    let mut client = desk.acp_unbound(crate::acp::refuse_all());
    client.initialize(json!({}));
    let error = client.err("session/new", place(&desk, None));
    assert_eq!(error.code, -31001, "{error:?}");
    assert!(error.message.contains("its address begins with ws://"), "{error:?}");
}

#[test]
fn a_server_that_says_nothing_in_the_handshake_costs_the_others_nothing() {
    let store = tempfile::tempdir().unwrap();
    let server = Server::start(store.path(), &[]);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("wss://{}/", mute.local_addr().unwrap());
    let desk = desk_at(&[&silent, &server.url]);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    turn(&mut client, &session, "say fine");
    eventually("what is wrong", SOON, || {
        let error = error_of(&desk, &silent);
        error.contains("failed to connect within 1000 ms") && error.contains("greeting of TLS")
    });
}
