//! Words as a shell takes them, for the commands that messages tell people to type.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// `path` as one word for a shell: as it is where no letter of it means anything to a shell, else in quotes.
///
/// What a terminal does not show, or what is not UTF-8, is written `$'\xHH'`, which bash, zsh and ksh know.
#[must_use]
pub fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    // It would be taken for an option.
    let prefix = if bytes.first() == Some(&b'-') { "./" } else { "" };
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./:@%+=,".contains(byte);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && bytes.iter().all(is_plain) => format!("{prefix}{text}"),
        Ok(text) if !text.chars().any(char::is_control) => {
            format!("'{prefix}{}'", text.replace('\'', r"'\''"))
        }
        _ => format!("$'{prefix}{}'", escaped(bytes)),
    }
}

/// What a command of `tidefs` takes at its end to find the daemons that keep their state in `dir`.
#[must_use]
pub fn state_dir_option(dir: &Path) -> String {
    format!(" --state-dir {}", quoted(dir))
}

/// `bytes` between `$'` and `'`.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        match byte {
            b' '..=b'~' if !matches!(byte, b'\\' | b'\'') => text.push(char::from(*byte)),
            _ => write!(text, "\\x{byte:02x}").expect("writing to a String cannot fail"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::process::Command;

    fn word(bytes: &[u8]) -> String {
        quoted(Path::new(OsStr::from_bytes(bytes)))
    }

    #[test]
    fn a_plain_path_stands_for_itself_and_others_are_quoted() {
        assert_eq!(word(b"/mnt/kv/llama/0a.bin"), "/mnt/kv/llama/0a.bin");
        assert_eq!(word(b"/mnt/k v/it's"), r"'/mnt/k v/it'\''s'");
        assert_eq!(word(b"-x"), "./-x");
        assert_eq!(word(b"a\n\xff'"), r"$'a\x0a\xff\x27'");
        assert_eq!(word(b""), "''");
        assert_eq!(state_dir_option(Path::new("/run/a b")), " --state-dir '/run/a b'");
    }

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for bytes in [&b"/a b/$HOME/`x`\"*?[~"[..], b"it's", b"\xc3\xa4 \\", b"tab\tand\xff9", b"~", b"#"] {
            let line = format!("printf %s {}", word(bytes));
            let Ok(read) = Command::new("bash").args(["-c", &line]).output() else { return };
            assert_eq!(read.stdout, bytes, "{line}");
        }
    }
}
