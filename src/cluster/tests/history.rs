//! What became of a name in a simulation, and so what may be seen of it.

/// What became of the changes of a name, in order: what they leave, and whether they were answered with success.
#[derive(Debug, Default)]
pub(super) struct History {
    /// `None` for a removal.
    pub(super) changes: Vec<(Option<Vec<u8>>, bool)>,
    /// Somebody may have let go of it.
    pub(super) may_be_missing: bool,
    /// Somebody let go of a copy of it.
    pub(super) may_be_short: bool,
}

impl History {
    /// What may stand there now: what succeeded last, and what was tried since.
    pub(super) fn allowed(&self) -> Vec<Option<&[u8]>> {
        let last = self.changes.iter().rposition(|(_, is_done)| *is_done).unwrap_or(0);
        let mut allowed: Vec<Option<&[u8]>> =
            self.changes.iter().skip(last).map(|(bytes, _)| bytes.as_deref()).collect();
        if !self.changes.iter().any(|(_, is_done)| *is_done) {
            allowed.push(None);
        }
        allowed
    }
}

#[test]
fn a_look_up_that_misses_what_is_there_would_be_noticed() {
    let history = History {
        changes: vec![(Some(vec![1]), true), (None, true), (Some(vec![2]), false)],
        ..History::default()
    };
    assert_eq!(history.allowed(), [None, Some(&[2_u8][..])]);
    let written = History { changes: vec![(Some(vec![1]), true)], ..History::default() };
    assert_eq!(written.allowed(), [Some(&[1_u8][..])]);
}
