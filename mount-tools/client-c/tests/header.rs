//! The checked-in headers are those that the code makes. `TIDEFS_TEST_BLESS=1` writes them anew.

use std::fs;
use std::path::{Path, PathBuf};

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The header that cbindgen makes of these files by the configuration in `folder`.
fn made_of(folder: &Path, sources: &[&str]) -> String {
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("a configuration");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(folder.join("src").join(source));
    }
    let mut text = Vec::new();
    builder.generate().expect("a header").write(&mut text);
    let text = String::from_utf8(text).expect("a text");
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        // Links of Rust's documentation, what Rust demands of its own callers, and lists that only Rust can use.
        let line = line.replace("[`super::", "").replace("[`", "").replace("`]", "");
        if line.contains("_ALL {") {
            lines.pop_if(|before| before.starts_with("//"));
        } else if line.trim() != "// # Safety" {
            lines.push(line);
        }
    }
    lines.dedup_by(|later, earlier| later.is_empty() && earlier.is_empty());
    lines.join("\n") + "\n"
}

fn check(name: &str, made: &str) {
    let path = here().join("include").join(name);
    if std::env::var_os("TIDEFS_TEST_BLESS").is_some() {
        fs::write(&path, made).expect("write the header");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == made, "{name} is not what the code makes: run this test with TIDEFS_TEST_BLESS=1");
}

#[test]
fn the_header_of_the_library_is_up_to_date() {
    let sources = ["outcome.rs", "cache.rs", "view.rs", "writer.rs", "register.rs"];
    let made = made_of(&here(), &sources);
    // A function that is exported and not declared cannot be called.
    let exported = sources.iter().map(|source| fs::read_to_string(here().join("src").join(source)).unwrap());
    let exported: usize = exported.map(|text| text.matches("#[unsafe(no_mangle)]").count()).sum();
    let is_declaration = |line: &&str| {
        line.starts_with(|c: char| c.is_ascii_lowercase())
            && !line.starts_with("typedef")
            && line.contains("tidefs_")
            && line.contains('(')
    };
    assert_eq!(made.lines().filter(is_declaration).count(), exported, "{made}");
    check("tidefs.h", &made);
}

#[test]
fn the_header_of_the_ioctls_is_up_to_date() {
    let folder = here().join("../control-api");
    let sources =
        ["command.rs", "status.rs", "layout.rs", "records.rs", "mod.rs"].map(|name| format!("ioctl/{name}"));
    check("tidefs_ioctl.h", &made_of(&folder, &sources.each_ref().map(String::as_str)));
}
