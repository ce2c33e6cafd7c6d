//! A trace of requests: one JSON object a line, of which `hash_ids` alone is read.
//!
//! Each id names one block of the prompt, in prefix order; equal ids are equal blocks behind equal prefixes.

use std::io::{self, BufRead};

use serde::Deserialize;

/// One request: the blocks of its prompt, first to last.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Request {
    /// Identity of each block.
    #[serde(rename = "hash_ids")]
    pub(super) blocks: Vec<u64>,
}

/// Why a file is not a trace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    /// The file cannot be read.
    #[error("line {line}")]
    Unreadable {
        /// Number of the line, from 1.
        line: usize,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A line is not a request.
    #[error("line {line} is not a JSON object with a list of whole numbers `hash_ids`")]
    NotARequest {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// There is no block in the whole file.
    #[error("it holds no block")]
    Empty,
}

/// Reads a trace to its end. Blank lines are skipped.
///
/// # Errors
/// At the first line that is not a request, and when no line has a block.
pub(super) fn read_trace(reader: impl BufRead) -> Result<Vec<Request>, TraceError> {
    let mut requests = Vec::new();
    for (index, text) in reader.lines().enumerate() {
        let line = index + 1;
        let text = text.map_err(|source| TraceError::Unreadable { line, source })?;
        if !text.trim().is_empty() {
            let request = serde_json::from_str(&text);
            requests.push(request.map_err(|source| TraceError::NotARequest { line, source })?);
        }
    }
    if requests.iter().all(|request: &Request| request.blocks.is_empty()) {
        Err(TraceError::Empty)
    } else {
        Ok(requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_of_each_line_are_read_in_order() {
        let text = "{\"timestamp\": 0, \"hash_ids\": [3, 1, 2]}\n\n{\"hash_ids\": []}\n";
        let requests = read_trace(text.as_bytes()).unwrap();
        assert_eq!(requests, [Request { blocks: vec![3, 1, 2] }, Request { blocks: vec![] }]);
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let bad = ["{\"hash_ids\": [1]}\nnot json\n", "{\"hash_ids\": [1]}\n{\"hash_ids\": [-1]}\n"];
        for text in bad {
            let error = read_trace(text.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with("line 2 "), "{error}");
        }
    }

    #[test]
    fn a_line_without_ids_is_a_bad_line() {
        let error = read_trace("{\"timestamp\": 1}\n".as_bytes()).unwrap_err();
        assert!(matches!(error, TraceError::NotARequest { line: 1, .. }), "{error}");
    }

    #[test]
    fn a_trace_without_blocks_is_refused() {
        assert!(matches!(read_trace("\n".as_bytes()), Err(TraceError::Empty)));
        assert!(matches!(read_trace("{\"hash_ids\": []}\n".as_bytes()), Err(TraceError::Empty)));
    }
}
