//! Every command line that the documents and the help show is one that the program takes.

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use super::{Cli, EXIT_CODES};

/// Where the checkout starts.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The words of the first command in `line`, as a shell splits them: to a comment, a pipe, or the next command.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            (None, '|' | ';' | '&' | '>' | '<') => break,
            (None, '#') if word.is_none() => break,
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// Why the program does not take the command `line`, if that is one of `tidefs` and it does not. A `fragment` may leave
/// out what a whole command line needs: it only names the command.
fn refusal(line: &str, fragment: bool) -> Option<String> {
    let mut words = words(line.trim_start().trim_start_matches("$ "));
    let wrappers = words.iter().take_while(|word| *word == "sudo" || word.contains('=')).count();
    words.drain(..wrappers);
    let program = words.first_mut()?;
    if Path::new(program.as_str()).file_name()? != "tidefs" {
        return None;
    }
    "tidefs".clone_into(program);
    // A line of fstab, or of the mount table.
    if words.get(2).is_some_and(|word| word == "tidefs") {
        return None;
    }
    let error = Cli::try_parse_from(&words).err()?;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::InvalidValue
            if fragment =>
        {
            None
        }
        _ => Some(format!("`{line}`: {error}")),
    }
}

/// Refusals of the commands in the code blocks and the code spans of a document.
fn refusals(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut prose = String::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            found.extend(refusal(line, false));
        } else {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    // No span reaches beyond its paragraph.
    let spans = prose.split("\n\n").flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
    found.extend(spans.filter_map(|span| refusal(&span.replace('\n', " "), true)));
    found
}

#[test]
fn every_command_in_the_documents_is_taken() {
    let mut files = vec![root().join("README.md")];
    let docs = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    files.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        found.extend(refusals(&text).into_iter().map(|refusal| format!("{}: {refusal}", file.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_exit_codes_in_the_documents_are_those_of_the_help() {
    let text = std::fs::read_to_string(root().join("docs/CONFIGURATION.md")).unwrap();
    let (_, section) = text.split_once("\n## Exit codes and JSON of `tidefs`\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let of_code = |line: &&str| line.starts_with('|') && line.contains(char::is_numeric);
    let rows: Vec<&str> = section.lines().filter(of_code).collect();
    let help = EXIT_CODES.trim_start_matches("Exit codes: ").trim_end_matches('.').split("; ");
    let expected: Vec<String> = help
        .map(|text| text.split_once(' ').unwrap())
        .map(|(code, meaning)| format!("| {code} | {meaning} |"))
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn every_command_shows_examples_and_each_is_taken() {
    let mut commands = vec![Cli::command()];
    let mut found = Vec::new();
    let mut examples = 0;
    let mut without = Vec::new();
    while let Some(command) = commands.pop() {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        if !command.has_subcommands() && !text.contains("\n  tidefs ") {
            without.push(command.get_name().to_owned());
        }
        // A long example goes on in the next line of the source, not of the text.
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("  tidefs ")).collect();
        examples += lines.len();
        found.extend(lines.into_iter().filter_map(|line| refusal(line, false)));
        commands.extend(command.get_subcommands().cloned());
    }
    assert!(found.is_empty() && examples > 20, "{examples} examples\n{}", found.join("\n"));
    assert_eq!(without, [""; 0], "commands whose help shows no example");
}

#[test]
fn a_command_that_is_not_taken_is_found_where_it_stands() {
    assert_eq!(
        refusals("```sh\nsudo tidefs status DIR # look\n```\n`tidefs evict` and `tidefs\nstatus`\n"),
        [""; 0]
    );
    for text in [
        "`tidefs nothing`",
        "`tidefs status\n--verbose`",
        "```\ntidefs evict\n```",
        "```\n$ tidefs list --sort=x | wc\n```",
    ] {
        assert_eq!(refusals(text).len(), 1, "{text}");
    }
}
