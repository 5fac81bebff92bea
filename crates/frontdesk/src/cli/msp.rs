//! `frontdesk msp`: MSP on stdio, and the same where this program is called `muse`, the name by
//! which MSP's SDKs look for their host. The work is in [`crate::shim`].

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use super::out::Out;
use super::{Exit, Failure, tell};

/// Arguments of `msp`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Give this to an MSP client as its host, or install this program under the \
                  name `muse`: its SDKs start `muse serve`.\n\n\
                  Example:\n  ln -s \"$(command -v frontdesk)\" ~/.local/bin/muse"
)]
pub(crate) struct Args {}

impl Args {
    /// Serves the client until it closes stdin.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        crate::shim::run(crate::shim::ShimOptions { face: "msp", ..Default::default() })
    }
}

/// Whether the program was called by the name of an MSP host.
pub(super) fn is_muse(name: &OsStr) -> bool {
    Path::new(name).file_stem().is_some_and(|stem| stem == "muse")
}

/// What a program called `muse` does: it serves, and has no other command. Flags of other hosts
/// promise things (a sandbox, no writes) that are not ours to keep, so they are refused.
pub(super) fn muse(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let told = match args.as_slice() {
        [only] if only == "serve" => {
            let served = Args {}.run();
            return served
                .unwrap_or_else(|error| tell(&Failure::Other(error), &mut Out::standard()).into());
        }
        [] => "this `muse` is Frontdesk and serves MSP only; say `muse serve`".to_owned(),
        [first, rest @ ..] if first == "serve" => {
            format!("`muse serve` takes no arguments here; {:?} is one", rest[0])
        }
        [first, ..] => format!("this `muse` is Frontdesk and has no {first:?}; say `muse serve`"),
    };
    tell(&Failure::Usage(told), &mut Out::standard());
    Exit::Usage.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_decides_and_everything_but_serve_is_wrong_usage() {
        assert!(is_muse(OsStr::new("/opt/bin/muse")) && is_muse(OsStr::new("muse")));
        assert!(!is_muse(OsStr::new("frontdesk")) && !is_muse(OsStr::new("amuse")));
        for args in [&[][..], &["run"], &["serve", "--disable-sandbox"]] {
            let code = muse(args.iter().map(OsString::from));
            assert_eq!(code, ExitCode::from(Exit::Usage), "{args:?}");
        }
    }
}
