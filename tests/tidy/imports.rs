//! Imports go one way, and foreign types stay in the folder that wraps them.
//!
//! The order is that of docs/ARCHITECTURE.md. A folder (or file) directly below `src` or `engine/src` is a
//! *component*; it may name components of lower layers and itself. Siblings of one layer do not see each other,
//! but for the lowest layer, which is vocabulary.
//!
//! Limit: `use` lines and written-out `crate::` and `super::` paths are read, in code of tests too; a path made by
//! a macro is not.

use crate::lexer::{Lexed, Token};
use crate::{Problem, expect_tidy, tree};

/// The components of one crate, the lowest layer first.
struct Layers {
    folder: &'static str,
    layers: &'static [&'static [&'static str]],
}

const DAEMON: Layers = Layers {
    folder: "src/",
    layers: &[
        &["config", "ffi", "replace", "telemetry"],
        &["namespace", "tier", "cluster"],
        &["datapath"],
        &["fuse", "control"],
        &["app"],
        &["fuzz"],
    ],
};

const ENGINE: Layers = Layers {
    folder: "engine/src/",
    layers: &[
        &["types", "error", "metrics", "time", "rng", "sync"],
        &["memory", "topology"],
        &["link"],
        &["transport"],
        &["plan"],
        &["queue"],
        &["request"],
        &["engine"],
        &["fuzz"],
    ],
};

/// An edge that is allowed although it breaks the order.
struct Exception {
    /// Start of the importing file's path.
    file: &'static str,
    /// Start of the imported path, without `crate::`.
    path: &'static str,
    reason: &'static str,
}

const EXCEPTIONS: &[Exception] = &[];

/// Where the names of a foreign crate may appear: (crate, path starts, what to do elsewhere).
const CONFINED: &[(&str, &[&str], &str)] = &[
    ("fuser", &["src/fuse/", "src/app.rs"], "take the daemon's own types, which src/fuse translates"),
    ("clap", &["src/main.rs", "src/config/", "mount-tools/cli/"], "take the parsed configuration"),
    ("etcd_client", &["src/cluster/coordinator/etcd/"], "go through the Coordinator trait"),
];

/// A path as written in code, resolved against the module it stands in.
#[derive(Debug, PartialEq, Eq)]
struct NamedPath<'a> {
    /// Whether the segments start at the root of the file's own crate; else the first may be a foreign crate.
    in_crate: bool,
    segments: Vec<&'a str>,
    line: usize,
}

/// The module that the file at `path`, relative to the crate's source folder, is.
fn module_of(path: &str) -> Vec<&str> {
    let mut module: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    if matches!(module.last(), Some(&("mod" | "lib" | "main"))) {
        module.pop();
    }
    module
}

/// Every path of two segments or more, and every leaf of every `use` tree.
fn named_paths<'a>(lexed: &Lexed<'a>, module: &[&'a str]) -> Vec<NamedPath<'a>> {
    let mut found = Vec::new();
    let mut here = module.to_vec();
    // Depth of braces at which each inline module of `here` was opened.
    let mut opened = Vec::new();
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(token) = lexed.tokens.get(at) {
        let mut next = at + 1;
        match token.text {
            "mod" if lexed.text(at + 2) == "{" => {
                here.push(lexed.text(at + 1));
                opened.push(depth);
                depth += 1;
                next = at + 3;
            }
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if opened.last() == Some(&depth) {
                    opened.pop();
                    here.pop();
                }
            }
            // `use<'a>` is a precise capture, not an import.
            "use" if lexed.text(at + 1) != "<" => {
                let mut leaves = Vec::new();
                next = use_tree(lexed, at + 1, &[], &mut leaves);
                found.extend(leaves.into_iter().map(|leaf| resolve(&here, &leaf, token.line)));
            }
            _ if token.is_identifier() && lexed.text(at + 1) == "::" => {
                let (segments, end) = path_from(lexed, at);
                let is_start = at == 0 || lexed.text(at - 1) != "::";
                if is_start {
                    found.push(resolve(&here, &segments, token.line));
                }
                next = end;
            }
            _ => {}
        }
        at = next;
    }
    found
}

/// The path of plain segments that starts at `at`, and the index behind it.
fn path_from<'a>(lexed: &Lexed<'a>, at: usize) -> (Vec<&'a str>, usize) {
    let mut segments = vec![lexed.text(at)];
    let mut end = at + 1;
    while lexed.text(end) == "::" && lexed.tokens.get(end + 1).is_some_and(Token::is_identifier) {
        segments.push(lexed.text(end + 1));
        end += 2;
    }
    (segments, end.max(at + 1))
}

/// Collects the leaves of the `use` tree at `at`; returns the index of the token that ends it.
fn use_tree<'a>(
    lexed: &Lexed<'a>,
    mut at: usize,
    prefix: &[&'a str],
    leaves: &mut Vec<Vec<&'a str>>,
) -> usize {
    let mut path = prefix.to_vec();
    while at < lexed.tokens.len() {
        match lexed.text(at) {
            "{" => {
                at += 1;
                while !matches!(lexed.text(at), "}" | "") {
                    at = use_tree(lexed, at, &path, leaves);
                    if lexed.text(at) == "," {
                        at += 1;
                    }
                }
                return at + 1;
            }
            ";" | "," | "}" => break,
            "as" => at += 2,
            "::" => at += 1,
            segment => {
                path.push(segment);
                at += 1;
            }
        }
    }
    leaves.push(path);
    at
}

fn resolve<'a>(here: &[&'a str], written: &[&'a str], line: usize) -> NamedPath<'a> {
    let supers = written.iter().take_while(|segment| **segment == "super").count();
    let (base, skipped) = match written.first() {
        Some(&"crate") => (&here[..0], 1),
        Some(&"self") => (here, 1),
        Some(&"super") => (&here[..here.len().saturating_sub(supers)], supers),
        _ => return NamedPath { in_crate: false, segments: written.to_vec(), line },
    };
    NamedPath { in_crate: true, segments: [base, &written[skipped..]].concat(), line }
}

impl Layers {
    fn layer_of(&self, component: &str) -> Option<usize> {
        self.layers.iter().position(|layer| layer.contains(&component))
    }

    /// Upward and sideways edges of one file. `path` is below `self.folder`.
    fn check(&self, path: &str, text: &str, exceptions: &[Exception]) -> Vec<Problem> {
        let inner = &path[self.folder.len()..];
        let module = module_of(inner);
        let Some(&component) = module.first().filter(|_| inner != "lib.rs" && inner != "main.rs") else {
            return Vec::new();
        };
        let Some(layer) = self.layer_of(component) else {
            let message = format!(
                "`{component}` has no layer: give it one in tests/tidy/imports.rs and docs/ARCHITECTURE.md"
            );
            return vec![Problem::new(path, 0, message)];
        };
        let lexed = Lexed::new(text);
        let mut problems = Vec::new();
        for named in named_paths(&lexed, &module).iter().filter(|named| named.in_crate) {
            let Some(&target) = named.segments.first() else { continue };
            let Some(target_layer) = self.layer_of(target) else { continue };
            let is_below = target_layer < layer || (target_layer == layer && layer == 0);
            let full = named.segments.join("::");
            let is_excepted = exceptions.iter().any(|e| path.starts_with(e.file) && full.starts_with(e.path));
            if target != component && !is_below && !is_excepted {
                let message = format!(
                    "`{component}` names `crate::{full}`, which is {}: move the item down, or pass it in through \
                     an argument or a trait of `{component}`",
                    if target_layer == layer { "a sibling" } else { "above it" }
                );
                problems.push(Problem::new(path, named.line, message));
            }
        }
        problems
    }
}

fn check_confined(path: &str, text: &str) -> Vec<Problem> {
    let lexed = Lexed::new(text);
    let mut problems = Vec::new();
    for named in named_paths(&lexed, &[]) {
        for (foreign, homes, instead) in CONFINED {
            let is_foreign = !named.in_crate && named.segments.first() == Some(foreign);
            if is_foreign && !homes.iter().any(|home| path.starts_with(home)) {
                let message = format!("`{foreign}` belongs in {}: {instead}", homes.join(", "));
                problems.push(Problem::new(path, named.line, message));
            }
        }
    }
    problems
}

#[test]
fn imports_go_one_way() {
    let mut problems = Vec::new();
    let mut all_edges = Vec::new();
    for layers in [DAEMON, ENGINE] {
        for file in tree::files(|path| path.starts_with(layers.folder) && path.ends_with(".rs")) {
            problems.extend(layers.check(&file.path, &file.text, EXCEPTIONS));
            all_edges.extend(layers.check(&file.path, &file.text, &[]));
        }
    }
    for Exception { file, path, reason } in EXCEPTIONS {
        assert!(!reason.is_empty(), "the exception for {file} gives no reason");
        let is_used = all_edges.iter().any(|problem| {
            problem.file.starts_with(file) && problem.message.contains(&format!("crate::{path}"))
        });
        if !is_used {
            problems.push(Problem::new(
                "tests/tidy/imports.rs",
                0,
                format!("the exception {file} -> {path} is not needed any more: remove it"),
            ));
        }
    }
    expect_tidy("imports go one way", &problems);
}

#[test]
fn foreign_types_stay_where_they_are_wrapped() {
    let files = tree::files(|path| {
        path.ends_with(".rs")
            && ["src/", "engine/src/", "mount-tools/"].iter().any(|home| path.starts_with(home))
    });
    let problems: Vec<Problem> =
        files.iter().flat_map(|file| check_confined(&file.path, &file.text)).collect();
    expect_tidy("foreign types stay where they are wrapped", &problems);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(layers: &Layers, path: &str, text: &str) -> Vec<usize> {
        let mut lines: Vec<usize> =
            layers.check(path, text, &[]).iter().map(|problem| problem.line).collect();
        lines.dedup();
        lines
    }

    #[test]
    fn an_upward_import_is_found_in_every_spelling() {
        for text in [
            "use crate::fuse::Session;",
            "use crate::{config::Config, fuse::{self, ops::Read as R}};",
            "use crate::{\n    fuse,\n};",
            "fn f() { crate::fuse::start(); }",
            "use super::super::fuse::Session;",
            "pub(in crate::fuse) fn f() {}",
            "mod tests { use super::super::super::fuse::Session; }",
            "macro_rules! m { () => { $crate::fuse::start() } }",
        ] {
            assert_eq!(lines(&DAEMON, "src/tier/memory.rs", text), [1], "{text}");
        }
    }

    #[test]
    fn downward_and_own_imports_pass() {
        for text in [
            "use crate::config::Config; use crate::tier::eviction::Eviction;",
            "use super::eviction; use std::fs; use self::pool::Pool;",
            "mod tests { use super::*; use super::super::eviction; }",
            "// use crate::fuse::Session;\nlet text = \"crate::fuse::Session\";",
            "fn f() -> impl Iterator<Item = u8> + use<'_> { g() }",
        ] {
            assert_eq!(lines(&DAEMON, "src/tier/memory.rs", text), [], "{text}");
        }
        assert_eq!(lines(&DAEMON, "src/lib.rs", "pub use crate::fuse::Session;"), []);
        assert_eq!(lines(&DAEMON, "src/app.rs", "use crate::fuse::Session;"), []);
    }

    #[test]
    fn siblings_do_not_see_each_other() {
        assert_eq!(lines(&DAEMON, "src/tier/mod.rs", "\nuse crate::namespace::Handle;"), [2]);
        assert_eq!(lines(&DAEMON, "src/control/mod.rs", "use crate::fuse::Session;"), [1]);
        assert_eq!(lines(&DAEMON, "src/telemetry.rs", "use crate::config::Key;"), []);
        assert_eq!(lines(&ENGINE, "engine/src/memory/mod.rs", "use crate::topology::Node;"), [1]);
        assert_eq!(lines(&ENGINE, "engine/src/types.rs", "use crate::memory::Mapping;"), [1]);
    }

    #[test]
    fn a_component_without_a_layer_is_refused() {
        assert_eq!(lines(&DAEMON, "src/helpers/mod.rs", ""), [0]);
        assert_eq!(lines(&DAEMON, "src/util.rs", ""), [0]);
    }

    #[test]
    fn an_exception_covers_its_own_path_only() {
        let exceptions = [Exception { file: "src/namespace/", path: "tier::eviction", reason: "test" }];
        let check = |text| DAEMON.check("src/namespace/inode.rs", text, &exceptions).len();
        assert_eq!(check("use crate::tier::eviction::ObjectSlot;"), 0);
        assert_eq!(check("use crate::tier::memory::Pool;"), 1);
    }

    #[test]
    fn a_foreign_type_outside_its_room_is_found() {
        let text = "use fuser::{Filesystem, Request};\nfn f(r: fuser::ReplyEntry) {}";
        assert_eq!(check_confined("src/datapath/open.rs", text).len(), 3);
        assert_eq!(check_confined("src/datapath/open.rs", "use fuser;").len(), 1);
        assert_eq!(check_confined("src/fuse/dispatch.rs", text), []);
        assert_eq!(check_confined("src/datapath/open.rs", "let fuser = 1; // fuser::Request"), []);
    }
}
