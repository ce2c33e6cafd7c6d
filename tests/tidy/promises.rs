//! What documents name exists: the test behind each promise, and the options shown in examples.

use std::collections::BTreeSet;

use crate::lexer::Lexed;
use crate::{Problem, expect_tidy, markdown, tree};

const SEMANTICS: &str = "docs/SEMANTICS.md";
const CONFIGURATION: &str = "docs/CONFIGURATION.md";
/// Stands in the column of tests until there is one. `| pending |` is honest; an empty cell is an oversight.
const PENDING: &str = "pending";

fn functions(text: &str) -> Vec<&str> {
    let lexed = Lexed::new(text);
    let is_name = |at: &usize| lexed.text(*at) == "fn";
    (0..lexed.tokens.len()).filter(is_name).map(|at| lexed.text(at + 1)).collect()
}

/// Rows whose column `Test` names a function that does not exist, or nothing.
fn check_tests(file: &str, text: &str, functions: &BTreeSet<&str>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut column = None;
    for line in markdown::prose(text) {
        let Some(cells) = markdown::cells(line.text) else {
            column = None;
            continue;
        };
        let Some(at) = column else {
            // The head of a table; one without such a column gets an index that no row has.
            column = Some(cells.iter().position(|cell| *cell == "Test").unwrap_or(usize::MAX));
            continue;
        };
        let Some(cell) = cells.get(at).filter(|_| !markdown::is_rule(&cells)) else { continue };
        let names = markdown::code_spans(cell);
        if names.is_empty() && !cell.starts_with(PENDING) {
            problems.push(Problem::new(
                file,
                line.number,
                "this promise names no test: name one, or say `pending`",
            ));
        }
        for name in names {
            let function = name.rsplit("::").next().unwrap_or(name);
            if !functions.contains(function) {
                let message = format!("no test is called `{function}`: write it, or correct the name");
                problems.push(Problem::new(file, line.number, message));
            }
        }
    }
    problems
}

/// Keys that a line gives to tidefs as mount options: `-o key=value,...`, or the options of an fstab line.
fn option_keys(line: &str) -> Vec<&str> {
    if line.contains("tmpfs") {
        return Vec::new();
    }
    let ends = |c: char| c.is_whitespace() || matches!(c, '`' | '"' | '\'' | ')' | '|');
    let mut lists: Vec<&str> = line.split("-o ").skip(1).filter_map(|rest| rest.split(ends).next()).collect();
    if let ["tidefs", _, "tidefs", options, ..] = line.split_whitespace().collect::<Vec<_>>()[..] {
        lists.push(options);
    }
    let is_key = |key: &&str| {
        !key.is_empty()
            && *key != "key"
            && key.chars().all(|c| c.is_ascii_lowercase() || matches!(c, '_' | '.' | '0'..='9'))
    };
    lists
        .into_iter()
        .flat_map(|list| list.split(','))
        .filter_map(|option| option.split_once('='))
        .map(|(key, _)| key)
        .filter(is_key)
        .collect()
}

fn check_options(file: &str, text: &str, known: &BTreeSet<&str>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for key in option_keys(line).into_iter().filter(|key| !known.contains(key)) {
            let message =
                format!("the option `{key}` is not in {CONFIGURATION}: correct it, or document it there");
            problems.push(Problem::new(file, index + 1, message));
        }
    }
    problems
}

#[test]
fn every_promise_names_a_test_that_exists() {
    let sources = tree::rust_files();
    let functions: BTreeSet<&str> = sources.iter().flat_map(|file| functions(&file.text)).collect();
    let text = tree::read(SEMANTICS).unwrap_or_else(|| panic!("{SEMANTICS} does not exist"));
    expect_tidy("every promise names a test", &check_tests(SEMANTICS, &text, &functions));
}

#[test]
fn every_option_in_an_example_is_documented() {
    let configuration = tree::read(CONFIGURATION).unwrap_or_default();
    let spans = configuration.lines().flat_map(markdown::code_spans);
    // Short names stand there as `-o capacity`.
    let known: BTreeSet<&str> = spans.map(|span| span.strip_prefix("-o ").unwrap_or(span)).collect();
    // The document itself shows mistakes on purpose, and a test of src/config compares it with the settings.
    let wanted =
        |path: &str| path != CONFIGURATION && (path.ends_with(".md") || path.starts_with("packaging/"));
    let problems: Vec<Problem> =
        tree::files(wanted).iter().flat_map(|file| check_options(&file.path, &file.text, &known)).collect();
    expect_tidy("every option in an example is documented", &problems);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_without_a_living_test_is_found() {
        let known = functions("#[test]\nfn a_fact() {}\nfn helper() {}").into_iter().collect();
        let row = |cell: &str| {
            let text = format!("| Promise | Test |\n|---|---|\n| x | {cell} |\n");
            check_tests(SEMANTICS, &text, &known).len()
        };
        assert_eq!(row("`a_fact`"), 0);
        assert_eq!(row("`tests/fuse/read.rs::a_fact`, `helper`"), 0);
        assert_eq!(row("pending"), 0);
        assert_eq!(row(""), 1);
        assert_eq!(row("`a_lie`"), 1);
        assert_eq!(row("`a_fact`, `a_lie`"), 1);
        assert_eq!(check_tests(SEMANTICS, "| Term | Meaning |\n|---|---|\n| x | |\n", &known), []);
    }

    #[test]
    fn an_unknown_option_is_found_in_every_spelling() {
        let known = BTreeSet::from(["capacity", "on_stop"]);
        let found = |text: &str| check_options("README.md", text, &known).len();
        assert_eq!(found("tidefsd /mnt/kv -o on_stop=discard,capacity=8GiB"), 0);
        assert_eq!(found("`mount -t tidefs tidefs /mnt/kv -o capacty=8GiB`"), 1);
        assert_eq!(found("tidefs /mnt/kv tidefs capacity=8GiB,nofail,on_sotp=keep 0 0"), 1);
        assert_eq!(found("tidefsd DIR [-o key=value,...]"), 0);
        assert_eq!(found("mount -t tmpfs -o huge=within_size none /mnt"), 0);
    }
}
