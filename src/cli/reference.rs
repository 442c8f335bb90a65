//! What is made of the command line itself: completions, manual pages, and the page of the reference.

use std::fmt::Write as _;
use std::io::stdout;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use super::Cli;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff completions bash > ~/.local/share/bash-completion/completions/bakeoff
  bakeoff completions zsh > ~/.zfunc/_bakeoff
  bakeoff completions fish > ~/.config/fish/completions/bakeoff.fish")]
pub(super) struct CompletionsOptions {
    shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff man ~/.local/share/man/man1")]
pub(super) struct ManOptions {
    /// The folder that the pages are written to; it is made where it is not there.
    folder: PathBuf,
}

pub(super) fn completions(options: &CompletionsOptions) {
    clap_complete::generate(options.shell, &mut Cli::command(), "bakeoff", &mut stdout());
}

/// One page a command: `bakeoff.1`, `bakeoff-run.1`, ….
pub(super) fn man(options: &ManOptions) -> anyhow::Result<()> {
    let folder = &options.folder;
    let shown = || folder.display().to_string();
    std::fs::create_dir_all(folder).with_context(shown)?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(shown)?;
    println!("the manual pages are in {}", folder.display());
    println!("next: man -l {}", folder.join("bakeoff.1").display());
    Ok(())
}

/// Every command with its help, as `docs/reference/cli.md` has it.
pub(super) fn page() -> String {
    let mut text = "# Command line\n\n\
        Written by `cargo xtask docs` from the program's own help.\n\n\
        What the command line says goes first (`--url`, `--api-key`, `--profile`), then the environment (`BAKEOFF_URL`, \
        `BAKEOFF_API_KEY`, `BAKEOFF_PROFILE`), then the profile that `bakeoff login` has kept. A profile that is named is not \
        sent the environment's key, and a profile's key goes to its own service only. `--output csv`, `--output md` and `--json` are for other programs: they print \
        nothing else on standard output. Colours and progress bars are for terminals, and off where output is piped.\n\n\
        Exit codes: 0 done, 1 not done, 64 wrong usage; each command's help says what else exits with 1, and `gate` has codes of \
        its own.\n"
        .to_owned();
    let mut all = Cli::command();
    all.build();
    pages(&all, &mut text);
    text
}

fn pages(command: &Command, text: &mut String) {
    let own = command.get_subcommands();
    for one in own.filter(|one| !one.is_hide_set() && one.get_name() != "help") {
        if one.has_subcommands() {
            pages(one, text);
            continue;
        }
        // What this environment says is no part of the page.
        let plain = one.clone().mut_args(|arg| arg.hide_env_values(true));
        let help = plain.term_width(100).render_help().to_string();
        let name = one.get_bin_name().unwrap_or(one.get_name());
        let help = help.trim_end();
        let _ = writeln!(text, "\n## {name}\n\n```text\n{help}\n```");
    }
}
