//! What is known about a setting besides its value, and the macro that declares settings.
//!
//! [`settings!`](settings) makes from one declaration: a struct per section, [`Config`](super::Config) over the
//! sections, the table [`SETTINGS`], and the function that resolves every field in declared
//! order. A default may therefore use any field declared before it (`capacity` within its section,
//! `memory.capacity` from later ones).

use super::error::Cause;
use super::settings::SETTINGS;
use super::sources::Origin;
use super::value::SettingValue;

/// How many texts make a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One text.
    Single,
    /// One text; `-o key` alone means `true`.
    Switch,
    /// An array in a file; one text with `:` between the items elsewhere.
    List,
}

/// One setting: its names, its type in words and its reason.
#[derive(Debug)]
pub struct Setting {
    /// Its section, for example `memory`.
    pub section: &'static str,
    /// Its name within the section, for example `capacity`.
    pub name: &'static str,
    /// Section and name, for example `memory.capacity`.
    pub key: &'static str,
    /// Shorter names that `-o` takes too.
    pub aliases: &'static [&'static str],
    /// What a value is, in words.
    pub kind: &'static str,
    /// How many texts make a value.
    pub shape: Shape,
    /// A value one might write.
    pub example: &'static str,
    pub(super) document: &'static str,
    pub(super) default: fn() -> String,
    pub(super) range: fn() -> String,
    pub(super) check: fn(&str) -> Result<(), Cause>,
}

impl Setting {
    /// The environment variable of this setting, for example `TIDEFS_MEMORY_CAPACITY`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("TIDEFS_{}_{}", self.section, self.name).to_ascii_uppercase()
    }

    /// What it does and why one would change it.
    #[must_use]
    pub fn document(&self) -> &'static str {
        self.document.trim()
    }

    /// The default: a value, or how it is computed.
    #[must_use]
    pub fn default_text(&self) -> String {
        (self.default)()
    }

    /// The allowed values beyond their kind, empty if all are allowed.
    #[must_use]
    pub fn range_text(&self) -> String {
        (self.range)()
    }

    /// Checks type and range of one written value.
    ///
    /// # Errors
    /// [`Cause::Unreadable`] or [`Cause::OutOfRange`].
    pub fn check(&self, text: &str) -> Result<(), Cause> {
        (self.check)(text)
    }

    /// The name of this setting as one would write it where `origin` is, in backquotes.
    #[must_use]
    pub fn spelled_for(&self, origin: &Origin) -> String {
        match origin {
            Origin::Environment { .. } => format!("`{}`", self.variable()),
            Origin::File { .. } => format!("`{}` in section `[{}]`", self.name, self.section),
            Origin::Default | Origin::Flag { .. } => format!("`{}`", self.key),
        }
    }
}

/// The setting called `name`: its key, or one of its aliases.
#[must_use]
pub fn find_setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == name || setting.aliases.contains(&name))
}

/// The known setting whose name is most like `name`.
pub(super) fn nearest_setting(name: &str) -> &'static Setting {
    /// Longer than any name by far; bounds the work on hostile input.
    const COMPARED_CHARS_MAX: usize = 64;
    let name: String = name.chars().take(COMPARED_CHARS_MAX).collect::<String>().to_ascii_lowercase();
    let likeness = |setting: &Setting| {
        let to = |known: &str| strsim::normalized_damerau_levenshtein(known, &name);
        let whole = setting.aliases.iter().map(|alias| to(alias)).fold(to(setting.key), f64::max);
        // A name without its section is a worse hint: `capacity` is in two sections, but short for one of them.
        whole.max(0.9 * to(setting.name))
    };
    SETTINGS
        .iter()
        .max_by(|one, other| likeness(one).total_cmp(&likeness(other)))
        .expect("the table of settings is not empty")
}

/// The values a setting allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<T> {
    least: Option<T>,
    most: Option<T>,
}

impl<T: SettingValue + PartialOrd> Range<T> {
    /// Every value.
    pub const fn any() -> Self {
        Self { least: None, most: None }
    }

    /// `least` and everything above.
    pub const fn at_least(least: T) -> Self {
        Self { least: Some(least), most: None }
    }

    /// `least` to `most`, both included.
    pub const fn between(least: T, most: T) -> Self {
        Self { least: Some(least), most: Some(most) }
    }

    /// Whether `value` is allowed.
    pub fn contains(&self, value: &T) -> bool {
        self.least.as_ref().is_none_or(|least| value >= least)
            && self.most.as_ref().is_none_or(|most| value <= most)
    }

    /// The range in words, empty for [`Range::any`].
    pub fn describe(&self) -> String {
        match (&self.least, &self.most) {
            (None, None) => String::new(),
            (Some(least), None) => format!("at least `{}`", least.show()),
            (None, Some(most)) => format!("at most `{}`", most.show()),
            (Some(least), Some(most)) => format!("`{}` to `{}`", least.show(), most.show()),
        }
    }
}

/// Reads `text` as a `T` within `range`.
pub(super) fn read_within<T: SettingValue + PartialOrd>(text: &str, range: &Range<T>) -> Result<T, Cause> {
    let value = T::read(text).map_err(|reason| Cause::Unreadable { reason, expected: T::KIND.to_owned() })?;
    if range.contains(&value) { Ok(value) } else { Err(Cause::OutOfRange { range: range.describe() }) }
}

/// Declares the settings. See [`super::settings`] for the form.
macro_rules! settings {
    (
        |$host:ident, $mount:ident|
        $(
            $(#[doc = $section_document:literal])+
            $section:ident: $Section:ident {
                $(
                    $(#[doc = $document:literal])+
                    $field:ident: $Type:ty {
                        default: $default:expr $(, $default_text:literal)?;
                        range: $range:expr;
                        $(alias: $alias:literal;)?
                        example: $example:literal;
                    }
                )+
            }
        )+
    ) => {
        $(
            $(#[doc = $section_document])+
            #[derive(Clone, Debug, PartialEq, Serialize)]
            pub struct $Section {
                $(
                    $(#[doc = $document])+
                    #[doc = ""]
                    #[doc = settings!(@default_document $default $(, $default_text)?)]
                    pub $field: $Type,
                )+
            }
        )+

        /// Every setting, resolved: what the daemon runs with.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub struct Config {
            $(
                $(#[doc = $section_document])+
                pub $section: $Section,
            )+
        }

        /// Every setting, in the order of the documentation.
        pub static SETTINGS: &[Setting] = &[
            $($(
                Setting {
                    section: stringify!($section),
                    name: stringify!($field),
                    key: concat!(stringify!($section), ".", stringify!($field)),
                    aliases: &[$($alias)?],
                    kind: <$Type as SettingValue>::KIND,
                    shape: <$Type as SettingValue>::SHAPE,
                    example: $example,
                    document: concat!($($document),+),
                    default: || settings!(@default_text $Type, $default $(, $default_text)?),
                    range: || { let range: Range<$Type> = $range; range.describe() },
                    check: |text| read_within::<$Type>(text, &$range).map(drop),
                },
            )+)+
        ];

        /// What each section is for, in the order of the documentation.
        pub(super) static SECTIONS: &[(&str, &str)] =
            &[$((stringify!($section), concat!($($section_document),+))),+];

        impl Config {
            /// Takes each setting from `given`, or its default for this host and mount.
            pub(super) fn resolve(given: &mut Given, $host: &Host, $mount: &MountPlace) -> Self {
                $(
                    let $section = {
                        $(
                            let $field: $Type = given.take(
                                concat!(stringify!($section), ".", stringify!($field)),
                                &$range,
                                $default,
                            );
                        )+
                        $Section { $($field),+ }
                    };
                )+
                Self { $($section),+ }
            }
        }
    };
    (@default_text $Type:ty, $default:expr) => {
        format!("`{}`", <$Type as SettingValue>::show(&$default))
    };
    (@default_text $Type:ty, $default:expr, $text:literal) => { $text.to_owned() };
    (@default_document $default:expr) => { concat!("Default: `", stringify!($default), "`.") };
    (@default_document $default:expr, $text:literal) => { concat!("Default: ", $text, ".") };
}
pub(super) use settings;
