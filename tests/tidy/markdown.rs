//! Just enough Markdown: headings with their anchors, tables, links, code fences.

/// One line of a document that is not inside a code fence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) number: usize,
    pub(crate) text: &'a str,
}

/// The lines outside code fences.
pub(crate) fn prose(text: &str) -> Vec<Line<'_>> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => lines.push(Line { number: index + 1, text: line }),
        }
    }
    lines
}

/// Text of the heading on this line, without its `#`.
pub(crate) fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    (1..=6).contains(&level).then(|| text.strip_prefix(' ')).flatten().map(str::trim)
}

/// Anchors of all headings, spelled as common renderers do: lower case, punctuation gone, spaces to hyphens, and a
/// number on repetition.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for title in prose(text).iter().filter_map(|line| heading(line.text)) {
        let slug: String = title
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let repeated = (1..).map(|count| format!("{slug}-{count}")).find(|slug| !found.contains(slug));
        found.push(if found.contains(&slug) { repeated.unwrap_or(slug) } else { slug });
    }
    found
}

/// The prose lines below the heading `title`, to the next heading of any level.
pub(crate) fn section<'a>(text: &'a str, title: &str) -> Option<Vec<Line<'a>>> {
    let lines = prose(text);
    let start = lines.iter().position(|line| heading(line.text) == Some(title))?;
    let rest = &lines[start + 1..];
    let end = rest.iter().position(|line| heading(line.text).is_some()).unwrap_or(rest.len());
    Some(rest[..end].to_vec())
}

/// The cells of a table row, trimmed, or `None` when the line is no row. A rule (`|---|`) gives its dashes.
pub(crate) fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let mut cells = Vec::new();
    let mut start = 0;
    let mut in_code = false;
    let mut escaped = false;
    for (at, c) in inner.char_indices() {
        match c {
            '`' => in_code = !in_code,
            '|' if !escaped && !in_code => {
                cells.push(inner[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        escaped = c == '\\';
    }
    cells.push(inner[start..].trim());
    Some(cells)
}

/// Whether these are the cells of the rule between a table's head and body.
pub(crate) fn is_rule(cells: &[&str]) -> bool {
    cells.iter().all(|cell| !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':')))
}

/// The code spans of a line: what stands between backticks.
pub(crate) fn code_spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// Targets of the inline links and reference definitions of a line, outside code spans.
pub(crate) fn link_targets(line: &str) -> Vec<String> {
    let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("_");
    let inline = plain.split("](").skip(1).filter_map(|after| after.split(')').next());
    let definition =
        plain.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    inline
        .chain(definition)
        .filter_map(|target| target.split_whitespace().next())
        .map(|target| target.trim_matches(['<', '>']).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_hide_headings_and_links() {
        let text = "# A\n```sh\n# not a heading\n```\n## A\n~~~\n```\n~~~\n## It's `x_y` (2)\n";
        assert_eq!(anchors(text), ["a", "a-1", "its-x_y-2"]);
    }

    #[test]
    fn rows_split_at_bars_outside_code() {
        assert_eq!(cells("| `a|b` | c \\| d | |"), Some(vec!["`a|b`", "c \\| d", ""]));
        assert_eq!(cells("no row"), None);
        assert!(is_rule(&cells("|---|:-:|").unwrap()));
        assert!(!is_rule(&cells("| a | |").unwrap()));
    }

    #[test]
    fn a_section_ends_at_the_next_heading() {
        let text = "# Top\n## Errors\nrow\n\n## Next\nother\n";
        let lines: Vec<&str> = section(text, "Errors").unwrap().iter().map(|line| line.text).collect();
        assert_eq!(lines, ["row", ""]);
        assert!(section(text, "Missing").is_none());
    }

    #[test]
    fn links_are_found_outside_code() {
        assert_eq!(link_targets("see [a](b.md#c \"title\"), `[x](y)` and [d](<e>)"), ["b.md#c", "e"]);
        assert_eq!(link_targets("[ref]: docs/a.md"), ["docs/a.md"]);
        assert_eq!(code_spans("a `b` c `d::e`"), ["b", "d::e"]);
    }
}
