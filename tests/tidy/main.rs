//! Checks that the tree keeps the rules it set itself, by reading it.
//!
//! Shows: imports point one way; foreign types and `unsafe` stay in their rooms; the error table, the options and
//! the tests that documents name exist; no link is dead; the README shows what its script does. How: a small lexer over
//! every file that git knows (or would add), no build. Each check is a function from text to [`Problem`]s, so that beside
//! the test of the tree stand tests that feed it bad text: a check that cannot fail is no check.
//!
//! A failure says file, line, rule and what to do. Where a rule must bend, a table beside it takes the exception
//! with its reason; an exception that is no longer needed fails as well.

mod errno_table;
mod imports;
mod layout;
mod lexer;
mod links;
mod markdown;
mod promises;
mod transcript;
mod tree;
mod unsafe_code;

use std::fmt;

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Path from the root of the checkout.
    file: String,
    /// Line from 1; 0 when the whole file is meant.
    line: usize,
    /// What is wrong, and what to do.
    message: String,
}

impl Problem {
    pub(crate) fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}: {}", self.file, self.message),
        }
    }
}

/// Fails the calling test with every problem on a line of its own.
#[track_caller]
pub(crate) fn expect_tidy(rule: &str, problems: &[Problem]) {
    let lines: Vec<String> = problems.iter().map(|problem| format!("  {problem}")).collect();
    assert!(problems.is_empty(), "{rule}: {} problem(s)\n{}", problems.len(), lines.join("\n"));
}
