//! The files of the checkout: what git tracks, or would with `git add`.
//!
//! Without git (a source archive, or a checkout owned by another user) every file is taken but those below
//! `target`, which comes to the same in a clean tree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file with its text. Files that are not UTF-8 are left out: no rule here is about them.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Path from the root of the checkout, with `/` between its parts.
    pub(crate) path: String,
    pub(crate) text: String,
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Paths of all files, sorted.
pub(crate) fn paths() -> Vec<String> {
    let mut paths = paths_from_git().unwrap_or_else(|| {
        let mut found = Vec::new();
        walk(&root(), "", &mut found);
        found
    });
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// All files whose path fits `wanted`.
pub(crate) fn files(wanted: impl Fn(&str) -> bool) -> Vec<SourceFile> {
    paths()
        .into_iter()
        .filter(|path| wanted(path))
        .filter_map(|path| fs::read_to_string(root().join(&path)).ok().map(|text| SourceFile { path, text }))
        .collect()
}

/// The text of one file, or `None` when it does not exist.
pub(crate) fn read(path: &str) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

/// All Rust files.
pub(crate) fn rust_files() -> Vec<SourceFile> {
    files(|path| path.ends_with(".rs"))
}

/// All Markdown files.
pub(crate) fn markdown_files() -> Vec<SourceFile> {
    files(|path| path.ends_with(".md"))
}

fn paths_from_git() -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let listing = String::from_utf8(output.stdout).ok()?;
    // A file deleted but not yet committed is still listed.
    let exists = |path: &&str| !path.is_empty() && root().join(path).is_file();
    Some(listing.split('\0').filter(exists).map(str::to_owned).collect())
        .filter(|paths: &Vec<_>| !paths.is_empty())
}

fn walk(folder: &Path, prefix: &str, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && path != "target" && name != ".git" => {
                walk(&entry.path(), &format!("{path}/"), found);
            }
            Ok(kind) if kind.is_file() => found.push(path),
            _ => {}
        }
    }
}

#[test]
fn the_tree_is_found_with_and_without_git() {
    let mut walked = Vec::new();
    walk(&root(), "", &mut walked);
    for path in ["Cargo.toml", "tests/tidy/tree.rs", "engine/src/lib.rs"] {
        assert!(paths().iter().any(|found| found == path), "{path} is not in the listing");
        assert!(walked.iter().any(|found| found == path), "{path} is not found by walking");
    }
    assert!(!walked.iter().any(|path| path.starts_with("target/")));
}
