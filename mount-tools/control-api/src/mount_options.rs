//! How texts of mount options (`-o`) are put together: `capacity=8GiB,noexec,nofail`.
//!
//! An option ends at a comma; `\,` is a comma within one. Empty options are skipped, as mount(8) does. What options mean is known
//! to the daemon alone; its starter looks for a few.

/// The options of `text`, with their commas.
#[must_use]
pub fn split(text: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let current = options.last_mut().expect("it starts with one and only grows");
        match letter {
            ',' => options.push(String::new()),
            '\\' if letters.next_if_eq(&',').is_some() => current.push(','),
            other => current.push(other),
        }
    }
    options.retain(|option| !option.trim().is_empty());
    options
}

/// `value` as it stands in a text of options: at its end, if it ends with a backslash.
#[must_use]
pub fn escaped(value: &str) -> String {
    value.replace(',', r"\,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_comma_stays_in_its_value_and_other_backslashes_stay_as_they_are() {
        assert_eq!(split(r"log=info\,tidefs=debug,a=b\c,,d\"), [r"log=info,tidefs=debug", r"a=b\c", r"d\"]);
    }

    #[test]
    fn an_escaped_value_is_found_again_as_it_was() {
        let value = r"a,b\,c\\,";
        assert_eq!(split(&format!("ro,{},rw", escaped(value))), ["ro", value, "rw"]);
    }
}
