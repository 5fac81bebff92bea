use super::{Exit, Failure, Shell};
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    pub(crate) json: bool,
}
pub(crate) fn run(_args: &Args, _shell: &mut Shell) -> Result<Exit, Failure> {
    Ok(Exit::Done)
}
