//! The shape of the tree: its top level, the size of its files, their first line, and what must not be in any.

use std::collections::BTreeSet;

use crate::tree::SourceFile;
use crate::{Problem, expect_tidy, tree};

/// Everything that stands at the top of the checkout. Nothing else does, and each of these must.
const TOP_LEVEL: &[&str] = &[
    ".ci",
    ".config",
    ".gitignore",
    ".typos.toml",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "deny.toml",
    "docs",
    "engine",
    "mount-tools",
    "packaging",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "src",
    "tests",
];

/// A file holds one idea and reads in one sitting.
const LINES_MAX: usize = 500;

/// Longer files, each with its reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// Starts of paths that exist on one machine only. In parts, or this file would break its own rule.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/tmp/bash", "_jobs"), concat!("/fa", "rm/"), concat!("/ro", "ot/")];

fn check_top_level(paths: &[String]) -> Vec<Problem> {
    let found: BTreeSet<&str> = paths.iter().filter_map(|path| path.split('/').next()).collect();
    let surplus = found.iter().filter(|name| !TOP_LEVEL.contains(name)).map(|name| {
        Problem::new(name, 0, "does not belong at the top level: move it into a folder, or see TOP_LEVEL")
    });
    let missing = TOP_LEVEL
        .iter()
        .filter(|name| !found.contains(*name))
        .map(|name| Problem::new(name, 0, "is missing at the top level"));
    surplus.chain(missing).collect()
}

fn check_length(file: &SourceFile, long_files: &[(&str, &str)]) -> Option<Problem> {
    let count = file.text.lines().count();
    let is_listed = long_files.iter().any(|(path, _)| *path == file.path);
    if is_listed && count <= LINES_MAX {
        return Some(Problem::new(&file.path, 0, "is short now: remove it from LONG_FILES"));
    }
    let message = format!("{count} lines, more than {LINES_MAX}: cut it where a second idea begins");
    (!is_listed && count > LINES_MAX).then(|| Problem::new(&file.path, 0, message))
}

fn check_module_page(file: &SourceFile) -> Option<Problem> {
    let message = "does not start with `//!`: say what the module is for, its invariants and its limits";
    (!file.text.starts_with("//!")).then(|| Problem::new(&file.path, 1, message))
}

fn check_machine_paths(file: &SourceFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for machine_path in MACHINE_PATHS {
            // A part of a longer path, `src/work/`, is no machine's.
            let is_start = |at: usize| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '}'))
            };
            if line.match_indices(machine_path).any(|(at, _)| is_start(at)) {
                let message =
                    format!("names {machine_path}, a path of one machine: make it relative, or a variable");
                problems.push(Problem::new(&file.path, index + 1, message));
            }
        }
    }
    problems
}

#[test]
fn the_top_level_holds_what_it_should() {
    expect_tidy("the top level holds what it should", &check_top_level(&tree::paths()));
}

#[test]
fn nothing_is_left_of_a_merge() {
    let is_left = |path: &String| [".orig", ".rej"].iter().any(|end| path.ends_with(end));
    let left = tree::paths().into_iter().filter(is_left);
    let problems: Vec<Problem> =
        left.map(|path| Problem::new(&path, 0, "is what a merge left behind: remove it")).collect();
    expect_tidy("nothing is left of a merge", &problems);
}

#[test]
fn files_are_short() {
    let code = tree::files(|path| [".rs", ".sh", ".py"].iter().any(|end| path.ends_with(end)));
    let mut problems: Vec<Problem> = code.iter().filter_map(|file| check_length(file, LONG_FILES)).collect();
    for (path, reason) in LONG_FILES {
        if reason.is_empty() || !code.iter().any(|file| file.path == *path) {
            problems.push(Problem::new(path, 0, "is in LONG_FILES but does not exist, or without a reason"));
        }
    }
    expect_tidy("files are short", &problems);
}

#[test]
fn every_file_says_what_it_is_for() {
    let problems: Vec<Problem> = tree::rust_files().iter().filter_map(check_module_page).collect();
    expect_tidy("every file says what it is for", &problems);
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    let problems: Vec<Problem> = tree::files(|_| true).iter().flat_map(check_machine_paths).collect();
    expect_tidy("no file names a path of one machine", &problems);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_stray_and_a_missing_entry_are_found() {
        let mut paths: Vec<String> = TOP_LEVEL.iter().map(|name| format!("{name}/x")).collect();
        assert_eq!(check_top_level(&paths), []);
        paths[0] = "notes.txt".to_owned();
        assert_eq!(check_top_level(&paths).len(), 2);
    }

    #[test]
    fn a_long_file_is_found_and_a_shortened_one_leaves_the_list() {
        let long = file("src/a.rs", &"x\n".repeat(LINES_MAX + 1));
        let short = file("src/a.rs", &"x\n".repeat(LINES_MAX));
        let listed = [("src/a.rs", "a reason")];
        assert!(check_length(&long, &[]).is_some());
        assert!(check_length(&long, &listed).is_none());
        assert!(check_length(&short, &[]).is_none());
        assert!(check_length(&short, &listed).is_some());
    }

    #[test]
    fn a_missing_module_page_is_found() {
        assert!(check_module_page(&file("src/a.rs", "use std::fs;")).is_some());
        assert!(check_module_page(&file("src/a.rs", "//! Why.\n")).is_none());
    }

    #[test]
    fn a_machine_path_is_found_but_not_as_part_of_a_longer_one() {
        let at = |prefix: &str| {
            let text = format!("first\nsee {prefix}{}main/x", MACHINE_PATHS[0]);
            check_machine_paths(&file("docs/a.md", &text))
                .iter()
                .map(|problem| problem.line)
                .collect::<Vec<_>>()
        };
        assert_eq!(at(""), [2]);
        assert_eq!(at("`"), [2]);
        assert_eq!(at("src"), []);
        assert_eq!(at("${target}"), []);
    }
}
