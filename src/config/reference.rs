//! Writes the tables of `docs/CONFIGURATION.md` from the declared settings.
//!
//! A test compares them with what stands between two markers in the file, so that the page cannot drift.

use std::fmt::Write as _;

use super::exit::ExitStatus;
use super::schema::Setting;
use super::settings::{SECTIONS, SETTINGS};

/// The settings, a section and a table each, in Markdown.
#[must_use]
pub fn reference_markdown() -> String {
    let mut text = String::new();
    for (section, document) in SECTIONS {
        let heading = format!("### `[{section}]`\n\n{}\n\n", document.trim());
        text.push_str(&heading);
        text.push_str("| key | value | default | what it does, and when to change it |\n|---|---|---|---|\n");
        for setting in SETTINGS.iter().filter(|setting| setting.section == *section) {
            text.push_str(&row(setting));
        }
        text.push('\n');
    }
    text.push_str("### Exit codes of `tidefsd`\n\n| code | meaning |\n|---|---|\n");
    for (status, meaning) in ExitStatus::ALL {
        writeln!(text, "| {} | {meaning} |", status.code()).expect("writing to a String cannot fail");
    }
    text
}

fn row(setting: &Setting) -> String {
    let names = setting.aliases.iter().fold(format!("`{}`", setting.key), |mut names, alias| {
        names.push_str(&format!("<br>`-o {alias}`"));
        names
    });
    let range = setting.range_text();
    let value = if range.is_empty() { setting.kind.to_owned() } else { format!("{}, {range}", setting.kind) };
    format!(
        "| {names}<br>`{}` | {value}; e.g. `{}` | {} | {} |\n",
        setting.variable(),
        setting.example,
        setting.default_text(),
        setting.document()
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const BEGIN: &str = "<!-- settings: begin (generated from src/config/settings.rs) -->\n";
    const END: &str = "<!-- settings: end -->";

    /// Set to rewrite the tables instead of comparing them.
    const BLESS_VARIABLE: &str = "TIDEFS_TEST_BLESS";

    #[test]
    fn configuration_md_shows_the_declared_settings() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/CONFIGURATION.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let begin = page.find(BEGIN).expect("the page has the first marker") + BEGIN.len();
        let end = page.find(END).expect("the page has the last marker");
        let expected = format!("\n{}\n", reference_markdown());
        if std::env::var_os(BLESS_VARIABLE).is_some() {
            std::fs::write(&path, format!("{}{expected}{}", &page[..begin], &page[end..])).unwrap();
            return;
        }
        assert!(
            page[begin..end] == expected,
            "docs/CONFIGURATION.md differs from the settings; run this test once with {BLESS_VARIABLE}=1.\n\
             It should say:\n{expected}"
        );
    }

    #[test]
    fn no_text_of_a_setting_breaks_the_table() {
        for setting in SETTINGS {
            let row = row(setting);
            assert_eq!(row.matches('|').count(), 5, "{row}");
            assert_eq!(row.lines().count(), 1, "{row}");
        }
    }
}
