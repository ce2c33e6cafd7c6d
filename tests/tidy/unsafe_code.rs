//! `unsafe` lives in few rooms, and each use says why it is sound.

use crate::lexer::Lexed;
use crate::{Problem, expect_tidy, tree};

/// Files beside `ffi.rs` and `memory/` that may hold `unsafe`, each with its reason.
const ALLOWED: &[(&str, &str)] = &[
    (
        "src/tier/eviction/memory_tests.rs",
        "the counting allocator that measures what an order of eviction costs",
    ),
    ("src/cluster/pulling.rs", "the word that nobody writes to what has arrived: it is hashed where it lies"),
];

/// Folders whose whole matter is a foreign interface, each with its reason.
const FOREIGN: &[(&str, &str)] = &[
    (
        "engine/libfabric-sys/src/",
        "declarations of libfabric's C interface, and the calls through its tables",
    ),
    ("engine/libfabric-strict/src/", "a provider of libfabric: the other side of the same interface"),
    ("mount-tools/client-python/src/", "buffers and capsules, by the interface of the interpreter"),
    ("mount-tools/client-c/src/", "functions that C calls: each takes pointers on its caller's word"),
];

/// Lines of `unsafe` blocks, functions, traits, implementations and foreign blocks.
fn unsafe_lines(lexed: &Lexed<'_>) -> Vec<(usize, bool)> {
    let is_unsafe = |(index, token): (usize, &crate::lexer::Token<'_>)| {
        // `unsafe extern "C" fn` is a function or its type; only a block of foreign declarations makes a claim.
        let is_foreign_fn = lexed.text(index + 1) == "extern" && lexed.text(index + 3) == "fn";
        let next = if is_foreign_fn { "fn" } else { lexed.text(index + 1) };
        // A function or a trait states a demand, in its documentation; the others make a claim.
        let is_claim = matches!(next, "{" | "impl" | "extern");
        let is_demand = matches!(next, "fn" | "trait");
        (token.text == "unsafe" && (is_claim || is_demand)).then_some((token.line, is_claim))
    };
    lexed.tokens.iter().enumerate().filter_map(is_unsafe).collect()
}

fn may_hold_unsafe(path: &str, allowed: &[(&str, &str)]) -> bool {
    path.ends_with("/ffi.rs")
        || path.contains("/memory/")
        || path.ends_with("/memory.rs")
        || path.starts_with("tests/")
        || path.contains("/tests/")
        || FOREIGN.iter().any(|(folder, _)| path.starts_with(folder))
        || allowed.iter().any(|(file, _)| *file == path)
}

fn check_place(path: &str, text: &str, allowed: &[(&str, &str)]) -> Vec<Problem> {
    if may_hold_unsafe(path, allowed) {
        return Vec::new();
    }
    let message = "`unsafe` outside ffi.rs and memory/: use a safe wrapper (nix, memmap2, the engine's memory), or \
                   add the file with its reason to ALLOWED in tests/tidy/unsafe_code.rs";
    unsafe_lines(&Lexed::new(text)).into_iter().map(|(line, _)| Problem::new(path, line, message)).collect()
}

/// Whether a comment with `SAFETY:` stands on `line`, or directly above the statement that `line` belongs to.
fn is_explained(lexed: &Lexed<'_>, text_lines: &[&str], line: usize) -> bool {
    let comment_on = |line: usize| lexed.comments.iter().find(|(at, _)| *at == line).map(|(_, text)| *text);
    let code_on = |line: usize| text_lines[line - 1].trim();
    let is_comment_only =
        |line: usize| comment_on(line).is_some_and(|comment| comment.trim() == code_on(line));
    let says_safety = |line: usize| comment_on(line).is_some_and(|comment| comment.contains("SAFETY:"));
    let mut first = line;
    while first > 1 && !is_comment_only(first - 1) {
        let before = code_on(first - 1);
        if before.is_empty() || before.ends_with([';', '{', '}', ',']) {
            break;
        }
        first -= 1;
    }
    let comments_above = (1..first).rev().take_while(|&above| is_comment_only(above));
    comments_above.chain(first..=line).any(says_safety)
}

fn check_comments(path: &str, text: &str) -> Vec<Problem> {
    let lexed = Lexed::new(text);
    let text_lines: Vec<&str> = text.lines().collect();
    unsafe_lines(&lexed)
        .into_iter()
        .filter(|&(line, is_claim)| is_claim && !is_explained(&lexed, &text_lines, line))
        .map(|(line, _)| {
            Problem::new(path, line, "`unsafe` without a `// SAFETY:` comment above it: say what makes it true, and who keeps it true")
        })
        .collect()
}

#[test]
fn unsafe_stays_in_its_rooms() {
    let problems: Vec<Problem> =
        tree::rust_files().iter().flat_map(|file| check_place(&file.path, &file.text, ALLOWED)).collect();
    expect_tidy("unsafe stays in its rooms", &problems);
}

#[test]
fn every_unsafe_says_why_it_is_sound() {
    let problems: Vec<Problem> =
        tree::rust_files().iter().flat_map(|file| check_comments(&file.path, &file.text)).collect();
    expect_tidy("every unsafe says why it is sound", &problems);
}

#[test]
fn every_allowed_file_still_holds_unsafe() {
    for (file, reason) in ALLOWED {
        let text = tree::read(file).unwrap_or_default();
        assert!(
            !unsafe_lines(&Lexed::new(&text)).is_empty(),
            "{file} needs no exception any more: remove it"
        );
        assert!(!reason.is_empty(), "the exception for {file} gives no reason");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_outside_its_rooms_is_found() {
        let text = "fn f() {\n    // SAFETY: a test.\n    unsafe { g() }\n}\nunsafe impl Send for X {}\n";
        assert_eq!(check_place("src/datapath/open.rs", text, &[]).len(), 2);
        assert_eq!(check_place("src/datapath/open.rs", text, &[("src/datapath/open.rs", "a reason")]), []);
        assert_eq!(check_place("engine/src/transport/verbs/ffi.rs", text, &[]), []);
        assert_eq!(check_place("src/tier/memory/pool.rs", text, &[]), []);
        assert_eq!(check_place("src/datapath/open.rs", "// unsafe {\nlet a = \"unsafe {\";", &[]), []);
    }

    #[test]
    fn an_unexplained_claim_is_found() {
        for text in [
            "unsafe { g() }",
            "// a comment without the word\nunsafe impl Send for X {}",
            "// SAFETY: of something else.\nlet a = 1;\nunsafe { g() };",
            "// SAFETY: too far away.\n\nunsafe { g() };",
            "unsafe extern \"C\" { fn f(); }",
        ] {
            assert_eq!(check_comments("engine/src/memory/a.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn an_explained_claim_passes() {
        for text in [
            "// SAFETY: a test.\nunsafe { g() }",
            "// SAFETY: a test\n// of two lines.\nlet a = unsafe { g() };",
            "// SAFETY: a test.\nlet a =\n    unsafe { g() };",
            "// SAFETY: a test.\nlet a = f(|x| {\n    // SAFETY: inside.\n    unsafe { g(x) }\n});",
            "let a = unsafe { g() }; // SAFETY: a test.",
            "/// # Safety\n/// Demands something.\nunsafe fn f() {}",
            "#[unsafe(no_mangle)]\nfn f() {}",
            "type F = unsafe extern \"C\" fn(u32) -> u32;",
        ] {
            assert_eq!(check_comments("engine/src/memory/a.rs", text), [], "{text}");
        }
    }
}
