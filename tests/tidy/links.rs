//! Relative links of documents lead somewhere: the file exists, and so does the heading behind `#`.

use std::path::Path;

use crate::{Problem, expect_tidy, markdown, tree};

fn is_external(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// `target` as seen from the folder of `file`, with `.` and `..` resolved. `None` when it leaves the checkout.
fn join(file: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        parts.clear();
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Dead links of one document. `lookup` says the text of a file, and `exists` whether a file or folder is there.
fn check(
    file: &str,
    text: &str,
    lookup: impl Fn(&str) -> Option<String>,
    exists: impl Fn(&str) -> bool,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for line in markdown::prose(text) {
        for target in markdown::link_targets(line.text).iter().filter(|target| !is_external(target)) {
            let (path, anchor) =
                target.split_once('#').map_or((target.as_str(), None), |(p, a)| (p, Some(a)));
            let resolved = if path.is_empty() { Some(file.to_owned()) } else { join(file, path) };
            let Some(resolved) = resolved.filter(|resolved| resolved == file || exists(resolved)) else {
                problems.push(Problem::new(file, line.number, format!("the link to {path} leads nowhere")));
                continue;
            };
            let body = if resolved == file { Some(text.to_owned()) } else { lookup(&resolved) };
            let is_dead = |anchor: &str| {
                resolved.ends_with(".md")
                    && body.is_some_and(|body| !markdown::anchors(&body).iter().any(|found| found == anchor))
            };
            if anchor.is_some_and(is_dead) {
                problems.push(Problem::new(
                    file,
                    line.number,
                    format!("{resolved} has no heading for {target}"),
                ));
            }
        }
    }
    problems
}

#[test]
fn no_link_is_dead() {
    let exists = |path: &str| Path::new(&tree::root()).join(path).exists();
    let problems: Vec<Problem> = tree::markdown_files()
        .iter()
        .flat_map(|file| check(&file.path, &file.text, tree::read, exists))
        .collect();
    expect_tidy("no link is dead", &problems);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(text: &str) -> usize {
        let lookup = |path: &str| (path == "docs/A.md").then(|| "# One heading\n".to_owned());
        check("docs/B.md", text, lookup, |path| matches!(path, "docs/A.md" | "README.md" | "src")).len()
    }

    #[test]
    fn dead_links_are_found() {
        for text in [
            "[a](C.md)",
            "[a](A.md#another-heading)",
            "[a](#nowhere)",
            "[a](../../outside.md)",
            "[a](A.md) [b](../A.md)",
            "[ref]: C.md",
        ] {
            assert_eq!(dead(text), 1, "{text}");
        }
    }

    #[test]
    fn living_links_pass() {
        for text in [
            "[a](A.md#one-heading) [b](../README.md) [c](../src) [d](/docs/A.md)",
            "# Here\n[a](#here) [b](https://example.org/x.md#y)",
            "```\n[a](C.md)\n```\n`[a](C.md)`",
        ] {
            assert_eq!(dead(text), 0, "{text}");
        }
    }
}
