//! A list of directories, as the SSD tier and scratch take it.

use std::path::PathBuf;

use serde::{Serialize, Serializer};

use super::patterns::SEPARATOR;
use super::schema::Shape;
use super::value::SettingValue;

/// Absolute paths, in order, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathList(Vec<PathBuf>);

impl PathList {
    /// A list of absolute paths.
    pub(super) fn of(paths: Vec<PathBuf>) -> Self {
        Self(paths)
    }

    /// The paths.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }
}

impl Serialize for PathList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl SettingValue for PathList {
    const KIND: &'static str = "a list of absolute paths";
    const SHAPE: Shape = Shape::List;

    fn read(text: &str) -> Result<Self, String> {
        let mut paths: Vec<PathBuf> = Vec::new();
        for part in text.split(SEPARATOR).filter(|_| !text.is_empty()) {
            let path = PathBuf::read(part).map_err(|reason| format!("`{part}`: {reason}"))?;
            if paths.contains(&path) {
                return Err(format!("`{part}` is named twice"));
            }
            paths.push(path);
        }
        Ok(Self(paths))
    }

    fn show(&self) -> String {
        let texts: Vec<String> = self.0.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        texts.join(&SEPARATOR.to_string())
    }
}

// A range of lists is always `any`.
impl PartialOrd for PathList {
    fn partial_cmp(&self, _other: &Self) -> Option<std::cmp::Ordering> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_is_shown() {
        for text in ["", "/a", "/a:/b/c"] {
            assert_eq!(PathList::read(text).unwrap().show(), text);
        }
        assert_eq!(PathList::read("/a:/b").unwrap().paths(), [PathBuf::from("/a"), PathBuf::from("/b")]);
        // A slash at the end, which shells add, makes no other directory of it.
        assert_eq!(PathList::read("/a/://b/./c/").unwrap().show(), "/a:/b/c");
        for text in ["a", "/a:", "/a:/a", "/a:/a/", "/a:b"] {
            assert!(PathList::read(text).is_err(), "{text}");
        }
    }
}
