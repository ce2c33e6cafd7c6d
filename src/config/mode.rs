//! Permission bits as people write them: in octal.

use std::fmt;

use serde::Serialize;

use super::value::SettingValue;

/// Permission bits of a file or directory, at most `0o7777`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct FileMode(pub u32);

impl FileMode {
    /// All permission bits.
    pub const ALL_BITS: Self = Self(0o7777);
}

impl fmt::Display for FileMode {
    /// Writes four octal digits, for example `1777`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl SettingValue for FileMode {
    const KIND: &'static str = "an octal mode";

    /// Reads `1777`, `01777` or `0o1777`: always octal, because nobody thinks of a mode in decimal.
    fn read(text: &str) -> Result<Self, String> {
        let digits = text.trim();
        let digits = digits.strip_prefix("0o").unwrap_or(digits);
        // `from_str_radix` would take a sign.
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err("this is not an octal number".to_owned());
        }
        u32::from_str_radix(digits, 8)
            .map(Self)
            .map_err(|_| "this is not an octal number that fits".to_owned())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_octal_however_it_is_written() {
        for text in ["1777", "01777", "0o1777"] {
            assert_eq!(FileMode::read(text), Ok(FileMode(0o1777)), "{text}");
        }
        for text in ["", "0x1ff", "888", "+755", "rwxr-xr-x"] {
            assert!(FileMode::read(text).is_err(), "{text}");
        }
        assert_eq!(FileMode(0o700).show(), "0700");
    }
}
