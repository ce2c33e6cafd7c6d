//! Settings that take one of a few words.

use serde::Serialize;

use super::value::SettingValue;

/// Declares an enum whose variants are words of the configuration.
macro_rules! choices {
    ($(
        $(#[$enum_doc:meta])*
        $name:ident {
            $(#[$first_doc:meta])* $first:ident = $first_word:literal
            $(, $(#[$doc:meta])* $variant:ident = $word:literal)+ $(,)?
        }
    )+) => {$(
        $(#[$enum_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum $name {
            $(#[$first_doc])*
            #[serde(rename = $first_word)]
            $first,
            $($(#[$doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Every choice, in the order of the documentation.
            pub const ALL: &'static [Self] = &[Self::$first, $(Self::$variant),+];

            /// The word that stands for this choice.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$first => $first_word,
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl SettingValue for $name {
            const KIND: &'static str = concat!("`", $first_word, "`" $(, " or `", $word, "`")+);

            fn read(text: &str) -> Result<Self, String> {
                let word = text.trim();
                Self::ALL.iter().copied().find(|choice| choice.as_str() == word)
                    .ok_or_else(|| format!("this is not {}", Self::KIND))
            }

            fn show(&self) -> String {
                self.as_str().to_owned()
            }
        }
    )+};
}

choices! {
    /// Whether the kernel serves the bytes of large objects without asking the daemon.
    Passthrough {
        /// Use passthrough where the kernel and the rights of the daemon allow it; warn where they do not.
        Auto = "auto",
        /// Refuse to start without passthrough.
        Always = "always",
        /// Serve each read and write by a request to the daemon.
        Never = "never",
        /// The same through the page cache.
        Cached = "cached",
    }

    /// Whether segments ask for huge pages.
    HugePages {
        /// Ask for huge pages, and report where the kernel gives small ones.
        Auto = "auto",
        /// Use base pages only.
        Never = "never",
    }

    /// The order in which objects leave.
    EvictionPolicy {
        /// Recency plus a bonus for use; objects with cached successors stay.
        LeafBonus = "leaf_bonus",
        /// The least recently used object leaves.
        Lru = "lru",
        /// Three FIFO queues with a ghost.
        S3Fifo = "s3fifo",
    }

    /// What a clean stop does with the cached bytes.
    OnStop {
        /// Leave them in memory for the next start.
        Keep = "keep",
        /// Give the memory back.
        Discard = "discard",
    }

    /// Whether large payload between hosts is sent without a copy in the kernel.
    ZeroCopy {
        /// Never.
        Off = "off",
        /// Where the kernel does not copy all the same.
        Auto = "auto",
        /// Always.
        On = "on",
    }

    /// How log lines are written.
    LogFormat {
        /// One line for people.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_reads_back_as_its_choice_and_other_words_name_the_choices() {
        for policy in EvictionPolicy::ALL {
            assert_eq!(EvictionPolicy::read(policy.as_str()), Ok(*policy));
        }
        let reason = EvictionPolicy::read("fifo").unwrap_err();
        assert_eq!(reason, "this is not `leaf_bonus` or `lru` or `s3fifo`");
    }

    #[test]
    fn a_choice_is_serialised_as_its_word() {
        assert_eq!(serde_json::to_string(&EvictionPolicy::S3Fifo).unwrap(), "\"s3fifo\"");
    }
}
