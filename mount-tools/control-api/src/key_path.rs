//! A key as text: names are bytes to the kernel, JSON and terminals want characters.
//!
//! Printable UTF-8 stands for itself. A backslash, a control character and each byte that is not UTF-8 are
//! written `\xHH`. So a name can neither break a line of output nor steer a terminal, and no two keys look alike.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Path of a key below its mount, escaped as the module page says. No leading slash; empty is the mount's root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyPath(String);

/// Why a text is not the path of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseKeyPathError {
    /// A backslash that does not start `\xHH`.
    #[error("`{text}` is not a path of a key: write a backslash as \\x5c and any other byte as \\xHH")]
    Escape {
        /// The text.
        text: String,
    },
    /// A name that no file has: empty, `.`, `..`, or with a NUL.
    #[error("`{text}` is not a path of a key: no name in it may be empty, `.` or `..`, or hold a NUL")]
    Name {
        /// The text.
        text: String,
    },
}

impl KeyPath {
    /// What people call the mount's root, whose path is empty.
    pub const ROOT_IN_WORDS: &str = "the mount's root";

    /// The mount's root.
    #[must_use]
    pub const fn root() -> Self {
        Self(String::new())
    }

    /// Escapes `bytes`, a path relative to the mount. Leading and trailing slashes are dropped.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut escaped = String::with_capacity(bytes.len());
        for chunk in trim_slashes(bytes).utf8_chunks() {
            for character in chunk.valid().chars() {
                if character == '\\' || character.is_control() {
                    let mut buffer = [0; 4];
                    push_escaped(&mut escaped, character.encode_utf8(&mut buffer).as_bytes());
                } else {
                    escaped.push(character);
                }
            }
            push_escaped(&mut escaped, chunk.invalid());
        }
        Self(escaped)
    }

    /// Escapes `path`, which is relative to the mount.
    #[must_use]
    pub fn from_path(path: &Path) -> Self {
        Self::from_bytes(path.as_os_str().as_bytes())
    }

    /// The bytes that the kernel knows the path by.
    ///
    /// # Errors
    /// A backslash that does not start `\xHH`, and names that no file has.
    pub fn to_bytes(&self) -> Result<Vec<u8>, ParseKeyPathError> {
        let bytes = unescape(&self.0)?;
        let bytes = trim_slashes(&bytes);
        let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
        if !bytes.is_empty() && !bytes.split(|byte| *byte == b'/').all(is_name) {
            return Err(ParseKeyPathError::Name { text: self.0.clone() });
        }
        Ok(bytes.to_vec())
    }

    /// The escaped text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What people call it in a sentence: the key in backticks, or `the mount's root`.
    #[must_use]
    pub fn in_words(&self) -> String {
        if self.is_root() { Self::ROOT_IN_WORDS.to_owned() } else { format!("`{self}`") }
    }

    /// Whether this is the mount's root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The bytes that `text` stands for, escaped as the module page says; any path, not only that of a key.
///
/// # Errors
/// A backslash that does not start `\xHH`.
pub fn unescape(text: &str) -> Result<Vec<u8>, ParseKeyPathError> {
    let error = || ParseKeyPathError::Escape { text: text.to_owned() };
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('\\');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let hex = part.strip_prefix('x').and_then(|rest| rest.get(..2)).ok_or_else(error)?;
        if !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(error());
        }
        bytes.push(u8::from_str_radix(hex, 16).map_err(|_| error())?);
        bytes.extend_from_slice(&part.as_bytes()[3..]);
    }
    Ok(bytes)
}

fn trim_slashes(mut bytes: &[u8]) -> &[u8] {
    while let [b'/', rest @ ..] | [rest @ .., b'/'] = bytes {
        bytes = rest;
    }
    bytes
}

fn push_escaped(text: &mut String, bytes: &[u8]) {
    use fmt::Write as _;
    for byte in bytes {
        write!(text, "\\x{byte:02x}").expect("writing to a String cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_names_stand_for_themselves() {
        assert_eq!(KeyPath::from_bytes("/llama/ä b/0.bin".as_bytes()).as_str(), "llama/ä b/0.bin");
    }

    #[test]
    fn control_characters_backslashes_and_stray_bytes_are_escaped() {
        let path = KeyPath::from_bytes(b"a\x1b[31m\\\xff\n");
        assert_eq!(path.as_str(), r"a\x1b[31m\x5c\xff\x0a");
    }

    #[test]
    fn every_byte_string_comes_back_as_it_was() {
        let all: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        assert_eq!(KeyPath::from_bytes(&all).to_bytes(), Ok(all));
    }

    #[test]
    fn names_that_no_file_has_are_refused() {
        for text in ["a//b", "a/./b", "..", "../a", r"a\x00b", r"a/\x2e\x2e"] {
            let error = KeyPath(text.to_owned()).to_bytes().unwrap_err();
            assert!(matches!(error, ParseKeyPathError::Name { .. }), "{error}");
        }
        assert_eq!(KeyPath::root().to_bytes(), Ok(Vec::new()));
    }

    #[test]
    fn a_broken_escape_is_refused_and_named() {
        for text in [r"a\", r"a\x", r"a\x4", r"a\xzz", r"a\n", r"a\x+1", "a\\x\u{e4}"] {
            let error = KeyPath(text.to_owned()).to_bytes().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
