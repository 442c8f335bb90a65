//! `bakeoff open [ID]`: the dashboard, logged in by a link that works once.

use std::io::{IsTerminal, stdout};

use anyhow::bail;
use bakeoff_api::sessions::LoginLink;
use clap::Args;

use crate::cli::any_id::AnyId;
use crate::cli::client::{Client, Target};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff open
  bakeoff open exp_0190… --print")]
pub(in crate::cli) struct OpenOptions {
    /// An experiment (exp_), a trial (trl_) or a pipeline (pip_); the overview when absent.
    id: Option<AnyId>,
    /// Print the link, and start no browser: other users of this machine can see what a browser is started with.
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    target: Target,
}

pub(in crate::cli) async fn run(options: OpenOptions) -> anyhow::Result<()> {
    let page = page(options.id)?;
    let client = Client::new(&options.target)?;
    let link: LoginLink = client.post("/v1/login-links", b"").await?;
    let token = link.path.trim_start_matches('/');
    let address = format!("{}{page}{token}", client.url());
    // Piped, or over a connection without a screen, the link itself is what is wanted.
    if options.print || !stdout().is_terminal() || open::that_detached(&address).is_err() {
        println!("{address}");
        eprintln!(
            "it logs in once, until {}",
            link.ends_at.format("%H:%M UTC")
        );
    } else {
        println!("opened {}{page}", client.url());
    }
    Ok(())
}

/// The page's path.
fn page(id: Option<AnyId>) -> anyhow::Result<String> {
    let Some(id) = id else {
        return Ok("/".to_owned());
    };
    let folder = match id {
        AnyId::Experiment(_) => "experiments",
        AnyId::Trial(_) => "trials",
        AnyId::Pipeline(_) => "pipelines",
        _ => bail!("{id} has no page of its own: name an experiment, a trial or a pipeline"),
    };
    Ok(format!("/{folder}/{id}"))
}
