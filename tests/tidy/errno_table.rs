//! What a program sees: `src/fuse/errno.rs` and the table in docs/SEMANTICS.md § Errors say the same.
//!
//! The code is one `match` whose arms read `Error::Variant { .. } => Self::ENOENT, // comment` (also
//! `Errno::ENOENT`, and alternatives joined by `|`). The table's rows read ``| `Variant` | `ENOENT` | ... |``.
//! An arm without an errno by name is `varies` in the table. A variant of another enum than `Error` is spelled with
//! its enum, `TierError::Full`, in the table too.

use crate::lexer::Lexed;
use crate::{Problem, expect_tidy, markdown, tree};

const CODE: &str = "src/fuse/errno.rs";
const TABLE: &str = "docs/SEMANTICS.md";
const VARIES: &str = "varies";

/// An error with the errno it becomes, and where that is said.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    variant: String,
    errno: String,
    line: usize,
}

fn is_errno(name: &str) -> bool {
    name.len() > 2
        && name.starts_with('E')
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
}

/// The arms of every `match` outside the module of tests.
fn rows_of_code(text: &str) -> Vec<Row> {
    let code = text.split("#[cfg(test)]").next().unwrap_or(text);
    let lexed = Lexed::new(code);
    let mut rows = Vec::new();
    // Variants of the arm being read, and those of the last arm until its errno is seen.
    let mut pattern: Vec<Row> = Vec::new();
    let mut is_value = false;
    for (at, token) in lexed.tokens.iter().enumerate() {
        let is_variant = token.text.ends_with("Error") && lexed.text(at + 1) == "::" && !is_value;
        if is_variant {
            let name = lexed.text(at + 2);
            let variant =
                if token.text == "Error" { name.to_owned() } else { format!("{}::{name}", token.text) };
            pattern.push(Row { variant, errno: VARIES.to_owned(), line: token.line });
        } else if token.text == "=>" {
            is_value = true;
        } else if is_value && is_errno(token.text) && lexed.text(at.wrapping_sub(1)) == "::" {
            let errno = token.text.to_owned();
            rows.extend(pattern.drain(..).map(|row| Row { errno: errno.clone(), ..row }));
        } else if is_value && matches!(token.text, "," | "}") {
            rows.append(&mut pattern);
            is_value = false;
        }
    }
    rows
}

fn rows_of_table(text: &str) -> Option<Vec<Row>> {
    let row = |line: &markdown::Line<'_>| {
        let cells = markdown::cells(line.text)?;
        let variant = cells.first()?.strip_prefix('`')?.strip_suffix('`')?.to_owned();
        let errno = cells.get(1)?.trim_matches('`').to_owned();
        Some(Row { variant, errno, line: line.number })
    };
    Some(markdown::section(text, "Errors")?.iter().filter_map(row).collect())
}

fn compare(code: &[Row], table: &[Row]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for row in code {
        match table.iter().find(|other| other.variant == row.variant) {
            None => problems.push(Problem::new(
                CODE,
                row.line,
                format!(
                    "{TABLE} § Errors lacks the row: | `{}` | `{}` | when | what to do |",
                    row.variant, row.errno
                ),
            )),
            Some(other) if other.errno != row.errno => problems.push(Problem::new(
                TABLE,
                other.line,
                format!("`{}` is {} here and {} in {CODE}:{}", row.variant, other.errno, row.errno, row.line),
            )),
            Some(_) => {}
        }
    }
    for row in table.iter().filter(|row| !code.iter().any(|other| other.variant == row.variant)) {
        let message = format!("no arm of {CODE} handles `{}`: remove the row, or write the arm", row.variant);
        problems.push(Problem::new(TABLE, row.line, message));
    }
    problems
}

#[test]
fn the_error_table_is_what_the_code_does() {
    let Some(code) = tree::read(CODE) else {
        println!("{CODE} does not exist yet, so there is nothing to compare {TABLE} with");
        return;
    };
    let code = rows_of_code(&code);
    assert!(!code.is_empty(), "{CODE} has no arm of the form `Error::Variant => Self::ENOENT`");
    let table = tree::read(TABLE).as_deref().and_then(rows_of_table);
    let table = table.unwrap_or_else(|| panic!("{TABLE} has no section `Errors` with a table"));
    expect_tidy("the error table is what the code does", &compare(&code, &table));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MATCH: &str = "
        fn from(error: &Error) -> Self {
            match error {
                Error::NoSource { .. } => Self::ENOENT, // a miss: the caller recomputes
                Error::Full { need, .. } | Error::Pinned => Errno::ENOSPC,
                crate::tier::TierError::Io(error) => error.raw_os_error().map_or(X, Y),
                Error::Last => {
                    Self::EPERM
                }
            }
        }
        #[cfg(test)]
        mod tests { fn f() { match e { Error::Unused => Errno::EIO } } }";

    fn pairs(rows: &[Row]) -> Vec<(&str, &str)> {
        rows.iter().map(|row| (row.variant.as_str(), row.errno.as_str())).collect()
    }

    #[test]
    fn arms_are_read() {
        let rows = rows_of_code(MATCH);
        let expected = [
            ("NoSource", "ENOENT"),
            ("Full", "ENOSPC"),
            ("Pinned", "ENOSPC"),
            ("TierError::Io", VARIES),
            ("Last", "EPERM"),
        ];
        assert_eq!(pairs(&rows), expected);
        assert_eq!(rows[0].line, 4);
    }

    #[test]
    fn a_missing_a_different_and_a_surplus_row_are_found() {
        let table = "## Errors\n| Error | errno | When |\n|---|---|---|\n| `NoSource` | `ENOENT` | x |\n\
                     | `Full` | `EIO` | x |\n| `Pinned` | `ENOSPC` | x |\n| `TierError::Io` | varies | x |\n\
                     | `Gone` | `EIO` | x |\n## Next\n| `Other` | `EIO` |\n";
        let table = rows_of_table(table).unwrap();
        let messages: Vec<String> =
            compare(&rows_of_code(MATCH), &table).iter().map(ToString::to_string).collect();
        assert_eq!(messages.len(), 3, "{messages:?}");
        assert!(
            messages[0].contains("docs/SEMANTICS.md:5") && messages[0].contains("ENOSPC in"),
            "{messages:?}"
        );
        assert!(messages[1].contains("lacks the row") && messages[1].contains("`Last`"), "{messages:?}");
        assert!(messages[2].contains("`Gone`"), "{messages:?}");
    }

    #[test]
    fn equal_tables_pass() {
        let rows = rows_of_code(MATCH);
        assert_eq!(compare(&rows, &rows), []);
    }
}
