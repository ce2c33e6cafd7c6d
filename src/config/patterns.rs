//! Which file names are temporary: names that a writer gives a file until it renames it.
//!
//! A pattern is matched against the last component of a path, byte by byte, so names that are not UTF-8 are
//! fine. The defaults match the temporary names of every client whose code was read (the test lists them) and
//! none of their final names.

use std::ffi::OsStr;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Serialize, Serializer};

use super::schema::Shape;
use super::value::SettingValue;

/// What separates patterns where a list is one text (environment, `-o`).
pub(super) const SEPARATOR: char = ':';

/// A set of shell patterns over file names.
#[derive(Clone, Debug)]
pub struct NamePatterns {
    patterns: Vec<String>,
    set: GlobSet,
}

impl NamePatterns {
    /// Patterns that match the temporary names of known clients.
    pub const TEMPORARY: [&'static str; 4] = ["*.tmp", ".tmp*", "*.tmp.*", "*.tmp????????"];

    /// Compiles `patterns`. An empty list matches nothing.
    ///
    /// # Errors
    /// A sentence that names the first pattern that cannot be used, and why.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut texts = Vec::new();
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            if pattern.is_empty() {
                return Err("a pattern is empty".to_owned());
            }
            if pattern.contains(['/', '\0', SEPARATOR]) {
                return Err(format!(
                    "pattern `{pattern}` has a `/` or `:`, but it is matched against a name"
                ));
            }
            let glob = GlobBuilder::new(pattern)
                .literal_separator(true)
                .build()
                .map_err(|error| format!("pattern `{pattern}` is malformed: {}", error.kind()))?;
            set.add(glob);
            texts.push(pattern.to_owned());
        }
        let set = set.build().map_err(|error| format!("the patterns do not compile: {}", error.kind()))?;
        Ok(Self { patterns: texts, set })
    }

    /// The default of `names.temporary`.
    #[must_use]
    pub fn temporary() -> Self {
        Self::new(Self::TEMPORARY).expect("the built-in patterns compile: a test reads each of them")
    }

    /// Whether `name`, one component of a path, matches any pattern.
    #[must_use]
    pub fn matches(&self, name: &OsStr) -> bool {
        self.set.is_match(Path::new(name))
    }

    /// The patterns as they were written.
    #[must_use]
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }
}

impl PartialEq for NamePatterns {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl PartialOrd for NamePatterns {
    /// Patterns have no order of meaning; this one is of their texts.
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.patterns.partial_cmp(&other.patterns)
    }
}

impl Serialize for NamePatterns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.patterns.serialize(serializer)
    }
}

impl SettingValue for NamePatterns {
    const KIND: &'static str = "a list of name patterns";
    const SHAPE: Shape = Shape::List;

    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Self::new([]);
        }
        Self::new(text.split(SEPARATOR))
    }

    fn show(&self) -> String {
        self.patterns.join(&SEPARATOR.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    /// Temporary names as the clients' code makes them.
    const TEMPORARY_NAMES: &[(&str, &str)] = &[
        ("safetensors", ".tmpA1b2C3"),
        ("vLLM FS tier", "9f86d081884c7d65_48213.tmp"),
        ("llm-d", "00ab12_1f3c.bin_x7.tmp"),
        ("SGLang file", ".3b241101-e2bb-4255-8caf-4136c566a962.tmp"),
        ("LMCache fs", "model-SEP-7b@1@0@5eb63bbbe01eeed0.tmp"),
        ("LMCache GDS data", "model%407b.kvcache.safetensors.tmpk3J9x0Qz"),
        ("LMCache GDS metadata", "model%407b.kvcache.safetensors.metadata.tmp0a1b2c3d"),
        ("LMCache NIXL dynamic", "5eb63bbb.bin.tmp.3b241101e2bb42558caf4136c566a962"),
        ("LMCache NIXL dynamic, bare", ".tmp.3b241101e2bb42558caf4136c566a962"),
        ("UCM", "0123456789abcdef0123456789abcdef.tmp"),
    ];

    /// Names under which the same clients look their data up.
    const FINAL_NAMES: &[&str] = &[
        "model.layers.0.self_attn.attn.safetensors",
        "encoder_cache.safetensors",
        "config.json",
        "9f86d081884c7d65.bin",
        "2cf24dba5fb0a30e_Qwen_Qwen3-32B_0_8.bin",
        "2cf24dba5fb0a30e.mamba_Qwen3_0_8.bin",
        "2cf24dba5fb0a30e_Llama-3-70B_k",
        "2cf24dba5fb0a30e_Llama-3-70B_v",
        "meta-llama-Llama-3@8@0@5eb63bbbe01eeed0@bfloat16.pt",
        "meta-llama-SEP-Llama-3@8@0@5eb63bbb.data",
        "model@0x00000008@0@5eb63bbbe01eeed0@salt.data",
        "vllm%40llama.kvcache.safetensors",
        "vllm%40llama.kvcache.safetensors.metadata",
        "0123456789abcdef0123456789abcdef",
        "block_17_pool_0.bin",
        "obj_3_a1b2.bin",
        "req-42.safetensors.lock",
        "dynamo-kvbm-disk-cache-aB3dE6",
    ];

    #[test]
    fn the_defaults_match_the_temporary_name_of_every_known_client() {
        let patterns = NamePatterns::temporary();
        for (client, name) in TEMPORARY_NAMES {
            assert!(patterns.matches(OsStr::new(name)), "{client}: {name}");
        }
    }

    #[test]
    fn the_defaults_match_no_final_name_of_any_known_client() {
        let patterns = NamePatterns::temporary();
        for name in FINAL_NAMES {
            assert!(!patterns.matches(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn every_default_pattern_is_needed() {
        for dropped in NamePatterns::TEMPORARY {
            let rest = NamePatterns::TEMPORARY.into_iter().filter(|pattern| *pattern != dropped);
            let patterns = NamePatterns::new(rest).unwrap();
            let missed = TEMPORARY_NAMES.iter().any(|(_, name)| !patterns.matches(OsStr::new(name)));
            assert!(missed, "{dropped} matches nothing that the others do not");
        }
    }

    #[test]
    fn names_that_are_not_utf8_are_matched_by_their_bytes() {
        assert!(NamePatterns::temporary().matches(OsStr::from_bytes(b"\xff\xfe.tmp")));
    }

    #[test]
    fn an_empty_list_matches_nothing_and_reads_back() {
        let none = NamePatterns::read("").unwrap();
        assert!(!none.matches(OsStr::new("a.tmp")));
        assert_eq!(none.show(), "");
    }

    #[test]
    fn a_pattern_that_cannot_match_a_name_is_refused_and_named() {
        for (text, named) in [("a/b", "`a/b`"), ("*.tmp::x", "empty"), ("[z", "`[z`")] {
            let reason = NamePatterns::read(text).unwrap_err();
            assert!(reason.contains(named), "{text}: {reason}");
        }
    }
}
