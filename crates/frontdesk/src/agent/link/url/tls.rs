//! TLS towards urls: whose certificates count, and what went wrong in words that say what to do.
//!
//! TLS 1.2 and 1.3 by rustls. A certificate is checked always: issuer, time and name. There is no
//! way around it, and nothing of a WebSocket is said before.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, RootCertStore, crypto,
};

use super::printable;
use super::wire::Counted;

/// Longest file of certificates that an agent's entry names, in bytes.
const CA_BYTES_MAX: u64 = 1 << 20;
/// What to do about a server that may have no TLS at all.
const MAYBE_PLAIN: &str = "if the server has no TLS, its address begins with ws://";

/// Why a server is not trusted, or TLS is not spoken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of the entry's `ca` cannot be used.
    #[error("failed to use {path} as `ca`: {why}", path = .path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No certificate of an issuer is known.
    #[error(
        "failed to trust any server: no issuer's certificate is installed here; install the system's (the package is often ca-certificates), or name the right one as `ca` in the agent's entry"
    )]
    NoRoots,
    /// The handshake did not succeed; the text says why, and what to do.
    #[error("failed to agree on TLS: {0}")]
    Handshake(String),
    /// The connection broke before there was TLS.
    #[error("failed to agree on TLS: the connection broke off ({0}); {MAYBE_PLAIN}")]
    Broken(#[source] io::Error),
}

/// Reads whom to trust: the issuers in this file and nobody else, or without one the system's. Read
/// anew for each connection, so that a renewed certificate counts without a restart.
///
/// # Errors
/// If there is no issuer to trust.
pub(super) async fn trust(ca: Option<&Path>) -> Result<TlsConnector, TlsError> {
    let ca = ca.map(Path::to_path_buf);
    let roots = tokio::task::spawn_blocking(move || match ca {
        Some(path) => roots_of(&path).map_err(|why| TlsError::Ca { path, why }),
        None => system_roots(),
    });
    let roots = roots.await.map_err(|error| TlsError::Handshake(error.to_string()))??;
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Handshake(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn roots_of(path: &Path) -> Result<RootCertStore, String> {
    let mut pem = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(CA_BYTES_MAX + 1).read_to_end(&mut pem).map_err(|error| error.to_string())?;
    if pem.len() as u64 > CA_BYTES_MAX {
        return Err(format!("it is longer than {CA_BYTES_MAX} bytes"));
    }
    let mut roots = RootCertStore::empty();
    for found in CertificateDer::pem_slice_iter(&pem) {
        let found = found.map_err(|_| "it is no PEM file".to_owned())?;
        roots.add(found).map_err(|error| format!("a certificate in it is damaged: {error}"))?;
    }
    if roots.is_empty() {
        let text = "it has no certificate in it; PEM is needed, with lines `BEGIN CERTIFICATE`";
        return Err(text.to_owned());
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Old and odd ones are there on many machines, and trusted by nobody.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 { Err(TlsError::NoRoots) } else { Ok(roots) }
}

/// Greets a server that has to be `host`.
///
/// # Errors
/// If it does not speak TLS, or cannot prove that it is.
pub(super) async fn greet(
    trusted: &TlsConnector,
    host: &str,
    stream: Counted,
    ca: Option<&Path>,
) -> Result<TlsStream<Counted>, TlsError> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| TlsError::Handshake(format!("no certificate can be for `{host}`")))?;
    trusted.connect(name, stream).await.map_err(|error| match cause(&error) {
        Some(cause) => TlsError::Handshake(in_words(cause, host, ca)),
        None => TlsError::Broken(error),
    })
}

/// What TLS says about a connection that has ended, once there was one.
pub(super) fn ending(error: &io::Error) -> Option<String> {
    match cause(error)? {
        Error::AlertReceived(alert) => Some(refusal(*alert)),
        error => Some(format!("it does not keep to TLS: {error}")),
    }
}

fn cause(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn in_words(error: &Error, host: &str, ca: Option<&Path>) -> String {
    match error {
        Error::InvalidCertificate(wrong) => of_certificate(wrong, host, ca),
        Error::InvalidMessage(_) => format!("what answers is not TLS; {MAYBE_PLAIN}"),
        Error::AlertReceived(alert) => refusal(*alert),
        Error::PeerIncompatible(why) => {
            format!("it speaks no TLS 1.2 or 1.3 that is safe ({why:?}); update the server")
        }
        error => error.to_string(),
    }
}

fn of_certificate(wrong: &CertificateError, host: &str, ca: Option<&Path>) -> String {
    match wrong {
        CertificateError::UnknownIssuer => match ca {
            Some(ca) => format!(
                "its certificate is not from an issuer in {}; name the file of the one that signed it as `ca` in the agent's entry",
                ca.display()
            ),
            None => "its certificate is from an issuer that this machine does not trust; if it is the right server, name the file of its issuer's certificate as `ca` in the agent's entry".to_owned(),
        },
        CertificateError::ExpiredContext { not_after, .. } => format!(
            "its certificate ended at {}; have it renewed there, unless the clock here is wrong",
            instant(*not_after)
        ),
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "its certificate begins at {}; look at the clocks here and there",
            instant(*not_before)
        ),
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names = match presented.as_slice() {
                [] => "no name at all (it needs a subjectAltName)".to_owned(),
                names => {
                    let plain = |name: &String| name.split('"').nth(1).unwrap_or(name).to_owned();
                    printable(&names.iter().map(plain).collect::<Vec<_>>().join(", "))
                }
            };
            format!(
                "its certificate is for {names}, not for {host}; use a name in `urls` that it is for, or have one made for {host}"
            )
        }
        CertificateError::BadSignature => format!(
            "its certificate names an issuer of {}, and another one of that name has signed it; where the issuer was made anew, take its new certificate",
            ca.map_or_else(|| "this system's".to_owned(), |ca| ca.display().to_string())
        ),
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "it shows an issuer's certificate as its own; have one made for the server that the issuer signed".to_owned()
        }
        wrong => format!("its certificate cannot be used ({wrong}); have another one made"),
    }
}

fn refusal(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "it asks for a certificate of ours, and Frontdesk has none to show; reach it through a proxy that has".to_owned()
        }
        AlertDescription::ProtocolVersion => {
            "it speaks neither TLS 1.2 nor 1.3; update the server".to_owned()
        }
        alert => format!("it refused with {alert:?}; its own log may say why"),
    }
}

fn instant(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds)
        .map_or_else(|_| format!("second {seconds}"), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_file_of_issuers_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let why = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            roots_of(&path).map(|roots| roots.len()).unwrap_err()
        };
        assert!(why(b"").contains("no certificate in it"));
        assert!(
            why(b"-----BEGIN CERTIFICATE-----\n???\n-----END CERTIFICATE-----\n").contains("PEM")
        );
        let junk = b"-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
        assert!(why(junk).contains("is damaged"));
        assert!(why(&vec![b'\n'; CA_BYTES_MAX as usize + 1]).contains("longer than 1048576"));
        assert!(why(&vec![b'\n'; CA_BYTES_MAX as usize]).contains("no certificate in it"));
        std::fs::remove_file(&path).unwrap();
        assert!(roots_of(&path).unwrap_err().contains("No such file"));
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let late = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_700_000_000));
        let words = |wrong| in_words(&Error::InvalidCertificate(wrong), "h.example", None);
        let begins = CertificateError::NotValidYetContext { time: late, not_before: late };
        assert!(words(begins).contains("begins at 2023-11-14T22:13:20Z; look at the clocks"));
        assert!(words(CertificateError::BadEncoding).contains("have another one made"));
        assert!(refusal(AlertDescription::CertificateRequired).contains("a proxy that has"));
        assert!(refusal(AlertDescription::ProtocolVersion).contains("update the server"));
        let old = tokio_rustls::rustls::PeerIncompatible::Tls12NotOfferedOrEnabled;
        assert!(in_words(&old.into(), "h", None).contains("update the server"));
        let over = io::Error::other(Error::AlertReceived(AlertDescription::InternalError));
        assert!(ending(&over).unwrap().contains("refused with InternalError"));
        assert_eq!(ending(&io::Error::other("else")), None);
    }
}
