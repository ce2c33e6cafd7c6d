//! Commands that an answer names, made to mean the daemon that was asked when they are typed as they stand.
//!
//! Who writes such an answer, the daemon most of all, does not know by which options it was found.

/// `text` with `options` at the end of each command of `tidefs` between its backticks. What only shows help or a version
/// needs none.
pub(crate) fn pointed(text: &str, options: &str) -> String {
    let marks = text.matches('`').count();
    let mut pointed = String::with_capacity(text.len() + options.len());
    for (index, part) in text.split('`').enumerate() {
        if index > 0 {
            pointed.push('`');
        }
        pointed.push_str(part);
        let is_between_marks = !index.is_multiple_of(2) && index < marks;
        if is_between_marks && asks_a_daemon(part) {
            pointed.push_str(options);
        }
    }
    pointed
}

fn asks_a_daemon(words: &str) -> bool {
    let names_a_command = |rest: &str| rest.starts_with(|first: char| first.is_ascii_lowercase());
    words.strip_prefix("tidefs ").is_some_and(names_a_command) && !words.ends_with("--help")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_get_the_options_and_other_words_do_not() {
        let told = |text| pointed(text, " --state-dir /s");
        assert_eq!(
            told("`tidefs tier add` gives it a disk"),
            "`tidefs tier add --state-dir /s` gives it a disk"
        );
        assert_eq!(
            told("move it, `tidefs tier drain`, or see `tidefs list`"),
            "move it, `tidefs tier drain --state-dir /s`, or see `tidefs list --state-dir /s`"
        );
        for text in [
            "compare `tidefs --version` and `tidefsd --version`",
            "as is said in `tidefs tier add --help`",
            "leave `limit` out` tidefs list` to list all",
            "an end that is open: `tidefs list",
            "",
        ] {
            assert_eq!(told(text), text);
        }
        assert_eq!(pointed("`tidefs list` shows pins", ""), "`tidefs list` shows pins");
    }
}
