//! The types a setting can have: how a text becomes one, and how it is written back.
//!
//! Invariant: `T::read(&value.show())` gives `value` again, so what `tidefs config show` prints can be pasted
//! into a file or an option.

use std::path::{Path, PathBuf};

use tidefs_engine::types::ByteCount;

use super::schema::Shape;

/// A type that the value of a setting can have.
pub trait SettingValue: Sized {
    /// What is expected, in words that complete `expects ...`.
    const KIND: &'static str;
    /// How many texts make one value.
    const SHAPE: Shape = Shape::Single;

    /// Reads a value.
    ///
    /// # Errors
    /// A sentence that says what is wrong with `text`, without its key or place.
    fn read(text: &str) -> Result<Self, String>;

    /// Writes the value such that [`SettingValue::read`] gives it again.
    fn show(&self) -> String;
}

impl SettingValue for ByteCount {
    const KIND: &'static str = "a size";

    fn read(text: &str) -> Result<Self, String> {
        let size: Self = text.parse().map_err(|_| "this is not a size".to_owned())?;
        // `ByteCount` saturates, so the largest value stands for everything that does not fit.
        if size.get() == u64::MAX {
            return Err("this is more than any machine has".to_owned());
        }
        Ok(size)
    }

    fn show(&self) -> String {
        const UNITS: [(&str, u64); 4] =
            [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        let bytes = self.get();
        UNITS
            .iter()
            .find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor))
            .map_or_else(|| bytes.to_string(), |(unit, factor)| format!("{}{unit}", bytes / factor))
    }
}

macro_rules! whole_number {
    ($($type:ty),+) => {$(
        impl SettingValue for $type {
            const KIND: &'static str = "a whole number";

            fn read(text: &str) -> Result<Self, String> {
                text.trim().parse().map_err(|_| "this is not a whole number that fits".to_owned())
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )+};
}
whole_number!(u16, u32, u64, usize);

impl SettingValue for f64 {
    const KIND: &'static str = "a number";

    fn read(text: &str) -> Result<Self, String> {
        let number: Self = text.trim().parse().map_err(|_| "this is not a number".to_owned())?;
        if number.is_finite() { Ok(number) } else { Err("this is not a finite number".to_owned()) }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for bool {
    const KIND: &'static str = "`true` or `false`";
    const SHAPE: Shape = Shape::Switch;

    fn read(text: &str) -> Result<Self, String> {
        match text.trim() {
            "true" | "yes" | "on" => Ok(true),
            "false" | "no" | "off" => Ok(false),
            _ => Err("this is neither `true` nor `false`".to_owned()),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for PathBuf {
    const KIND: &'static str = "an absolute path";

    fn read(text: &str) -> Result<Self, String> {
        if text.contains('\0') {
            return Err("a path holds no NUL byte".to_owned());
        }
        if !Path::new(text).is_absolute() {
            return Err("this is not an absolute path (`~` and variables are not expanded)".to_owned());
        }
        // Rebuilding from components drops `//`, `/./` and a final `/`, so that paths compare by value.
        Ok(Path::new(text).components().collect())
    }

    fn show(&self) -> String {
        self.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_written_in_the_largest_unit_that_keeps_every_byte() {
        for (bytes, text) in
            [(0, "0"), (1 << 33, "8GiB"), (3 << 19, "1536KiB"), (1000, "1000"), (1 << 40, "1TiB")]
        {
            assert_eq!(ByteCount(bytes).show(), text);
        }
    }

    #[test]
    fn a_size_that_does_not_fit_is_refused_instead_of_saturated() {
        assert!(ByteCount::read("99999999PiB").is_err());
        assert!(ByteCount::read("-1GiB").is_err());
        assert!(ByteCount::read("").is_err());
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused() {
        for text in ["nan", "inf", "-inf", "1e999"] {
            assert!(f64::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn relative_paths_are_refused_because_a_daemon_has_no_useful_working_directory() {
        assert!(PathBuf::read("state").is_err());
        assert!(PathBuf::read("~/state").is_err());
        assert_eq!(PathBuf::read("/run//tidefs/").unwrap().as_os_str(), "/run/tidefs");
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back_as_the_same_value(
            bytes in 0..u64::MAX, number in any::<u64>(), ratio in 0.0..1e9f64, switch in any::<bool>(),
        ) {
            prop_assert_eq!(ByteCount::read(&ByteCount(bytes).show()), Ok(ByteCount(bytes)));
            prop_assert_eq!(u64::read(&number.show()), Ok(number));
            prop_assert_eq!(f64::read(&ratio.show()), Ok(ratio));
            prop_assert_eq!(bool::read(&switch.show()), Ok(switch));
        }

        #[test]
        fn no_text_makes_a_reader_panic(text in ".*") {
            let _ = ByteCount::read(&text);
            let _ = u16::read(&text);
            let _ = f64::read(&text);
            let _ = bool::read(&text);
            let _ = PathBuf::read(&text);
        }
    }
}
