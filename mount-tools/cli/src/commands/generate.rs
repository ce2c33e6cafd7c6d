//! `tidefs completions` and `tidefs manpages`.

use std::fs;
use std::io;

use clap::{Command, CommandFactory as _};
use serde_json::json;

use crate::args::{Cli, CompletionsArgs, ManpagesArgs};
use crate::error::{CliError, Exit};
use crate::launch::daemon_program;
use crate::mount_helper::HelperArgs;
use crate::output::{Output, shown};

/// What tidefsd prints its manual page for.
const MAN_PAGE: &str = "--man-page";

pub(crate) fn completions(args: &CompletionsArgs, output: Output) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidefs", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    output.result(&json!({ "shell": args.shell.to_string(), "script": script }), || script.clone())
}

pub(crate) fn manpages(args: &ManpagesArgs, output: Output) -> Result<(), CliError> {
    let failed =
        |error: io::Error| CliError::system(format!("cannot write to {}", args.dir.display()), &error);
    fs::create_dir_all(&args.dir).map_err(failed)?;
    let mut written = Vec::new();
    let mut pages = pages().map_err(failed)?;
    pages.push(("tidefsd.8".to_owned(), page_of_the_daemon()?));
    for (name, page) in pages {
        let path = args.dir.join(name);
        fs::write(&path, page).map_err(failed)?;
        written.push(path);
    }
    let text = || written.iter().map(|path| format!("{}\n", path.display())).collect();
    let paths: Vec<String> = written.iter().map(|path| shown(path)).collect();
    output.result(&json!({ "written": paths }), text)
}

/// The page of tidefsd, which writes it itself: only it knows its options.
fn page_of_the_daemon() -> Result<Vec<u8>, CliError> {
    let missing = |what: String| {
        CliError::new(Exit::Failed, format!("tidefsd does not give its manual page: {what}"))
            .next_step("install tidefsd of the same version beside this program, or in PATH")
    };
    let output = daemon_program().arg(MAN_PAGE).output().map_err(|error| missing(error.to_string()))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(missing(output.status.to_string())),
    }
}

/// Names and contents of the other pages, one for each command.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    let mut cli = Cli::command();
    cli.build();
    collect(&cli, "tidefs", &mut pages)?;
    let mut helper = Vec::new();
    clap_mangen::Man::new(HelperArgs::command()).section("8").render(&mut helper)?;
    pages.push(("mount.tidefs.8".to_owned(), helper));
    Ok(pages)
}

fn collect(command: &Command, name: &str, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    let mut page = Vec::new();
    // A page's name is that of its file, and `name` needs a 'static text only for its own use in help.
    let titled = command.clone().display_name(name.to_owned());
    clap_mangen::Man::new(titled).title(name.to_owned()).render(&mut page)?;
    pages.push((format!("{name}.1"), page));
    for subcommand in command.get_subcommands().filter(|command| command.get_name() != "help") {
        collect(subcommand, &format!("{name}-{}", subcommand.get_name()), pages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_the_mount_helper_too() {
        let pages = pages().unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in
            ["tidefs.1", "tidefs-status.1", "tidefs-config-show.1", "tidefs-umount.1", "mount.tidefs.8"]
        {
            assert!(names.contains(&name), "{name} is missing in {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("help")), "{names:?}");
        let umount = &pages.iter().find(|(name, _)| name == "tidefs-umount.1").unwrap().1;
        assert!(String::from_utf8_lossy(umount).contains("discard"));
    }
}
