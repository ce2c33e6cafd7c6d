//! Splits Rust text into tokens and comments, so that no check is fooled by a string or a comment.
//!
//! Knows what the checks need and no more: identifiers, `::`, `=>`, literals as one token each, and every other
//! character as itself. Comments are kept apart, with their lines.

/// An identifier, a literal (`""`, `''`, `0`), a lifetime, or punctuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) line: usize,
}

impl Token<'_> {
    pub(crate) fn is_identifier(&self) -> bool {
        self.text.starts_with(is_identifier_start)
    }
}

/// What a file consists of.
#[derive(Debug, Default)]
pub(crate) struct Lexed<'a> {
    pub(crate) tokens: Vec<Token<'a>>,
    /// Line and text of each comment; one of several lines appears once for each.
    pub(crate) comments: Vec<(usize, &'a str)>,
}

impl<'a> Lexed<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let mut lexer = Lexer { rest: text, line: 1, lexed: Self::default() };
        while lexer.step() {}
        lexer.lexed
    }

    /// The text of the token at `index`, or nothing past the end.
    pub(crate) fn text(&self, index: usize) -> &'a str {
        self.tokens.get(index).map_or("", |token| token.text)
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    lexed: Lexed<'a>,
}

fn is_identifier_start(first: char) -> bool {
    first == '_' || first.is_alphabetic()
}

fn is_identifier_part(part: char) -> bool {
    part == '_' || part.is_alphanumeric()
}

impl<'a> Lexer<'a> {
    /// Takes one token, comment or white space. False at the end.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else { return false };
        if self.rest.starts_with("//") {
            let length = self.rest.find('\n').unwrap_or(self.rest.len());
            self.comment(length);
        } else if self.rest.starts_with("/*") {
            let length = block_comment_length(self.rest);
            self.comment(length);
        } else if first.is_whitespace() {
            self.advance(first.len_utf8());
        } else if let Some(length) = string_length(self.rest) {
            self.token("\"\"", length);
        } else if let Some(length) = char_length(self.rest) {
            self.token("''", length);
        } else if first == '\'' {
            let name = self.rest[1..].find(|part| !is_identifier_part(part)).unwrap_or(self.rest.len() - 1);
            self.token(&self.rest[..=name], name + 1);
        } else if is_identifier_start(first) {
            let raw = if self.rest.starts_with("r#") { 2 } else { 0 };
            let name = &self.rest[raw..];
            let length = name.find(|part| !is_identifier_part(part)).unwrap_or(name.len());
            self.token(&name[..length], raw + length);
        } else if first.is_ascii_digit() {
            let length = self.rest.find(|part| !is_identifier_part(part)).unwrap_or(self.rest.len());
            self.token("0", length);
        } else {
            let pair = ["::", "=>"].iter().any(|pair| self.rest.starts_with(pair));
            let length = if pair { 2 } else { first.len_utf8() };
            self.token(&self.rest[..length], length);
        }
        true
    }

    fn token(&mut self, text: &'a str, length: usize) {
        self.lexed.tokens.push(Token { text, line: self.line });
        self.advance(length);
    }

    fn comment(&mut self, length: usize) {
        let line = self.line;
        let text = &self.rest[..length];
        self.lexed.comments.extend(text.lines().enumerate().map(|(index, text)| (line + index, text)));
        self.advance(length);
    }

    fn advance(&mut self, length: usize) {
        let (taken, rest) = self.rest.split_at(length);
        self.line += taken.matches('\n').count();
        self.rest = rest;
    }
}

/// Length of the block comment at the start of `text`; such comments nest.
fn block_comment_length(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Length of the string literal at the start of `text`, with its prefix, or `None` when there is none.
fn string_length(text: &str) -> Option<usize> {
    let prefix = text.find(|part: char| !"rbc".contains(part)).filter(|&length| length <= 2)?;
    let raw = text[..prefix].contains('r');
    let after = &text[prefix..];
    let hashes = if raw { after.len() - after.trim_start_matches('#').len() } else { 0 };
    let body = after[hashes..].strip_prefix('"')?;
    let body_length = if raw {
        let end = format!("\"{}", "#".repeat(hashes));
        body.find(&end).map_or(body.len(), |at| at + end.len())
    } else {
        let mut escaped = false;
        let quote = |part: char| {
            let ends = part == '"' && !escaped;
            escaped = part == '\\' && !escaped;
            ends
        };
        body.find(quote).map_or(body.len(), |at| at + 1)
    };
    Some(prefix + hashes + 1 + body_length)
}

/// Length of the character or byte literal at the start of `text`; `None` for a lifetime or anything else.
fn char_length(text: &str) -> Option<usize> {
    let prefix = usize::from(text.starts_with("b'"));
    let body = text[prefix..].strip_prefix('\'')?;
    let first = body.chars().next()?;
    let end = if first == '\\' {
        let escape = body[1..].chars().next()?.len_utf8() + 1;
        body[escape..].find('\'')? + escape
    } else {
        let end = first.len_utf8();
        body[end..].starts_with('\'').then_some(end)?
    };
    Some(prefix + 1 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        Lexed::new(text).tokens.iter().map(|token| token.text).collect()
    }

    #[test]
    fn strings_and_comments_hide_what_they_hold() {
        let text = r###"let a = "unsafe \" {"; /* unsafe /* nested */ unsafe */ b(r#"use " crate"#, b"\\"); // unsafe"###;
        assert_eq!(texts(text), ["let", "a", "=", "\"\"", ";", "b", "(", "\"\"", ",", "\"\"", ")", ";"]);
        assert_eq!(Lexed::new(text).comments.len(), 2);
    }

    #[test]
    fn lifetimes_are_not_characters() {
        assert_eq!(
            texts(r"fn f<'a>(x: &'a u8) { '\'' ; b'\n'; 'é'; r#use::x }"),
            [
                "fn", "f", "<", "'a", ">", "(", "x", ":", "&", "'a", "u8", ")", "{", "''", ";", "''", ";",
                "''", ";", "use", "::", "x", "}"
            ]
        );
    }

    #[test]
    fn lines_are_counted_through_literals_and_comments() {
        let lexed = Lexed::new("\"a\nb\"\n/*\n*/ x\n// y\nz");
        let lines: Vec<usize> = lexed.tokens.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 4, 6]);
        assert_eq!(lexed.comments, [(3, "/*"), (4, "*/"), (5, "// y")]);
    }
}
