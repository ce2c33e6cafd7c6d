//! The names of all nodes in one place: 32 hexadecimal digits take 20 bytes, and no allocation of their own.
//!
//! Keys are hashes in hexadecimal, often with something in front or behind. The longest run of lower-case digits in
//! a name is kept in half its length, the rest as it is. Names of like size stand in cells of one size, many to a
//! chunk, so that neither an allocator's header nor its rounding is paid for each, and a table that grows copies
//! nothing.
//!
//! Invariants
//! - The encoding of a name is unique: names are equal exactly if their encodings are.
//! - A [`NameRef`] is released once; the cell may be another name's afterwards.
//! - A free cell holds the index of the next free one of its size in its first bytes.
//!
//! Limits: 2^32 names of one size. Cells that are free wait for names of their size; chunks are given back when no
//! name of the size is left.

use super::node::{NAME_LENGTH_MAX, Name};

/// Cells are whole multiples of this: it holds the link of a free one.
const GRAIN: usize = 4;
/// Lengths in front of an encoded name: what stands before the run, pairs of digits in it, what stands behind it.
const HEADER: usize = 3;
/// Longest encoding: a name of the greatest length without a digit in it.
const ENCODED_MAX: usize = HEADER + NAME_LENGTH_MAX;
/// Sizes of cells, the empty one of the empty name not counted.
const SIZES: usize = ENCODED_MAX.div_ceil(GRAIN);
/// Bytes of a chunk.
const CHUNK: usize = 16 * 1024;
/// The digits of each byte.
static PAIRS: [[u8; 2]; 256] = pairs();
/// End of a list of free cells.
const NO_CELL: u32 = u32::MAX;

/// Where a name stands. As small as it is because every node has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed)]
pub(super) struct NameRef {
    /// Size of the cell in grains; 0 for the empty name, which has no cell.
    grains: u8,
    index: u32,
}

impl NameRef {
    /// The empty name.
    pub(super) const NONE: Self = Self { grains: 0, index: 0 };
}

/// A name in the form in which it is stored.
struct Encoded {
    bytes: [u8; ENCODED_MAX],
    length: usize,
}

impl Encoded {
    /// Encodes a name of at most [`NAME_LENGTH_MAX`] bytes.
    fn of(name: &[u8]) -> Self {
        let mut encoded = Self { bytes: [0; ENCODED_MAX], length: 0 };
        if name.is_empty() || name.len() > NAME_LENGTH_MAX {
            return encoded;
        }
        let (start, pairs) = longest_run(name);
        let (before, rest) = name.split_at(start);
        let (run, after) = rest.split_at(pairs * 2);
        for length in [before.len(), pairs, after.len()] {
            encoded.push(u8::try_from(length).unwrap_or(u8::MAX));
        }
        before.iter().for_each(|&byte| encoded.push(byte));
        for pair in run.chunks_exact(2) {
            encoded.push(digit(pair[0]).unwrap_or(0) << 4 | digit(pair[1]).unwrap_or(0));
        }
        after.iter().for_each(|&byte| encoded.push(byte));
        encoded
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Start of the longest run of lower-case hexadecimal digits, the first of equal ones, and its pairs.
fn longest_run(name: &[u8]) -> (usize, usize) {
    let mut longest = (0, 0);
    let mut start = 0;
    for run in name.split(|&byte| digit(byte).is_none()) {
        if run.len() / 2 > longest.1 {
            longest = (start, run.len() / 2);
        }
        start += run.len() + 1;
    }
    longest
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

const fn pairs() -> [[u8; 2]; 256] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < pairs.len() {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
}

/// What a cell holds: what stands before the run, the run in half its length, and what stands behind it.
fn parts(cell: &[u8]) -> [&[u8]; 3] {
    let [before, pairs, after] = [cell[0], cell[1], cell[2]].map(usize::from);
    let (before, rest) = cell[HEADER..].split_at(before);
    let (run, rest) = rest.split_at(pairs);
    [before, run, &rest[..after]]
}

fn decode(cell: &[u8]) -> Name {
    let [before, run, after] = parts(cell);
    let mut bytes = [0; NAME_LENGTH_MAX];
    let mut length = 0;
    let digits = run.iter().flat_map(|&byte| PAIRS[usize::from(byte)]);
    for byte in before.iter().copied().chain(digits).chain(after.iter().copied()) {
        bytes[length] = byte;
        length += 1;
    }
    Name::of_checked(&bytes[..length])
}

/// Whether a cell holds that name. It is not encoded for that, which would take longer.
fn holds(cell: &[u8], name: &[u8]) -> bool {
    let [before, run, after] = parts(cell);
    let Some(digits) = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)) else {
        return false;
    };
    let (pairs, odd) = digits.as_chunks::<2>();
    odd.is_empty()
        && pairs.len() == run.len()
        && pairs.iter().zip(run).all(|(pair, &byte)| *pair == PAIRS[usize::from(byte)])
}

/// Cells of one size.
#[derive(Debug)]
struct Cells {
    size: usize,
    chunks: Vec<Box<[u8]>>,
    /// Cells that were handed out at some time: those after them were never used.
    touched: u32,
    live: u32,
    free: u32,
}

impl Cells {
    fn new(size: usize) -> Self {
        Self { size, chunks: Vec::new(), touched: 0, live: 0, free: NO_CELL }
    }

    /// Chunk and offset of a cell.
    fn place(&self, index: u32) -> (usize, usize) {
        let index = usize::try_from(index).expect("tidefs runs on 64-bit hosts");
        let per_chunk = CHUNK / self.size;
        (index / per_chunk, index % per_chunk * self.size)
    }

    fn cell(&self, index: u32) -> &[u8] {
        let (chunk, offset) = self.place(index);
        &self.chunks[chunk][offset..offset + self.size]
    }

    fn cell_mut(&mut self, index: u32) -> &mut [u8] {
        let (chunk, offset) = self.place(index);
        &mut self.chunks[chunk][offset..offset + self.size]
    }

    fn store(&mut self, encoded: &[u8]) -> u32 {
        let index = if self.free == NO_CELL {
            let index = self.touched;
            self.touched = index.checked_add(1).expect("fewer than 2^32 inodes, and each has one name");
            if self.place(index).0 == self.chunks.len() {
                self.chunks.push(vec![0; CHUNK].into());
            }
            index
        } else {
            let index = self.free;
            self.free = u32::from_le_bytes(self.link(index));
            index
        };
        self.live += 1;
        self.cell_mut(index)[..encoded.len()].copy_from_slice(encoded);
        index
    }

    fn release(&mut self, index: u32) {
        self.live -= 1;
        if self.live == 0 {
            *self = Self::new(self.size);
            return;
        }
        let link = self.free.to_le_bytes();
        self.cell_mut(index)[..GRAIN].copy_from_slice(&link);
        self.free = index;
    }

    fn link(&self, index: u32) -> [u8; GRAIN] {
        let cell = self.cell(index);
        [cell[0], cell[1], cell[2], cell[3]]
    }
}

/// All names.
#[derive(Debug)]
pub(super) struct Names {
    /// By size in grains, less one.
    sizes: Vec<Cells>,
}

impl Names {
    /// No names.
    pub(super) fn new() -> Self {
        Self { sizes: (1..=SIZES).map(|grains| Cells::new(grains * GRAIN)).collect() }
    }

    /// Keeps a name.
    pub(super) fn store(&mut self, name: &Name) -> NameRef {
        let encoded = Encoded::of(name.as_bytes());
        let grains = encoded.length.div_ceil(GRAIN);
        match grains.checked_sub(1) {
            None => NameRef::NONE,
            Some(size) => NameRef {
                grains: u8::try_from(grains).expect("the longest encoding has 65 grains"),
                index: self.sizes[size].store(encoded.as_bytes()),
            },
        }
    }

    /// The name that was kept.
    pub(super) fn get(&self, name: NameRef) -> Name {
        self.cell(name).map_or_else(Name::none, decode)
    }

    /// Whether it is this one.
    pub(super) fn is(&self, name: NameRef, bytes: &[u8]) -> bool {
        self.cell(name).is_some_and(|cell| holds(cell, bytes))
    }

    /// Forgets a name. The reference means nothing any more.
    pub(super) fn release(&mut self, name: NameRef) {
        if let Some(size) = usize::from(name.grains).checked_sub(1) {
            self.sizes[size].release(name.index);
        }
    }

    fn cell(&self, name: NameRef) -> Option<&[u8]> {
        let size = usize::from(name.grains).checked_sub(1)?;
        Some(self.sizes[size].cell(name.index))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(bytes: &[u8]) -> Name {
        Name::new(bytes).unwrap()
    }

    /// Bytes of the cell that a name takes.
    fn cell_bytes(bytes: &str) -> usize {
        Encoded::of(bytes.as_bytes()).length.next_multiple_of(GRAIN)
    }

    #[test]
    fn a_reference_to_a_name_takes_five_bytes() {
        assert_eq!(size_of::<NameRef>(), 5);
    }

    #[test]
    fn hashes_take_little_more_than_half_their_digits() {
        assert_eq!(cell_bytes(&"0123456789abcdef".repeat(2)), 20);
        assert_eq!(cell_bytes(&"0123456789abcdef".repeat(4)), 36);
        assert_eq!(cell_bytes(&format!("{}.bin", "fe".repeat(32))), 40);
        assert_eq!(cell_bytes(&format!("block_{}_0", "a1".repeat(16))), 28);
    }

    #[test]
    fn names_that_differ_in_what_is_not_compressed_differ() {
        let mut names = Names::new();
        let pairs =
            [("abc", "ab"), ("ab", "abc"), ("aB", "ab"), ("0a", "0a0a"), ("x.0", "x.00"), ("0a", "0A")];
        let parts = [("x0ax", "x"), ("x0ax", "x0a"), ("x0ax", "0ax"), ("0ab", "0a"), ("0a", ""), ("xx", "x")];
        for (stored, other) in pairs.into_iter().chain(parts) {
            let kept = names.store(&name(stored.as_bytes()));
            assert!(names.is(kept, stored.as_bytes()), "{stored}");
            assert!(!names.is(kept, other.as_bytes()), "{stored} and {other}");
        }
    }

    #[test]
    fn cells_are_used_again_and_chunks_given_back() {
        let mut names = Names::new();
        let all: Vec<_> =
            (0..5000).map(|number| names.store(&name(format!("x{number:06}").as_bytes()))).collect();
        let size = usize::from(all[0].grains) - 1;
        let chunks = names.sizes[size].chunks.len();
        all[..2500].iter().for_each(|&one| names.release(one));
        let again: Vec<_> =
            (0..2500).map(|number| names.store(&name(format!("y{number:06}").as_bytes()))).collect();
        assert_eq!(names.sizes[size].chunks.len(), chunks);
        for (number, &one) in again.iter().enumerate() {
            assert_eq!(names.get(one), name(format!("y{number:06}").as_bytes()));
        }
        all[2500..].iter().chain(&again).for_each(|&one| names.release(one));
        assert!(names.sizes[size].chunks.is_empty());
    }

    fn any_name() -> impl Strategy<Value = Vec<u8>> {
        let bytes = prop::collection::vec(any::<u8>(), 1..=NAME_LENGTH_MAX);
        let keys = "[a-z._-]{0,9}[0-9a-f]{0,70}([A-Z._][0-9a-f]{1,9}){0,3}".prop_map(String::into_bytes);
        prop_oneof![bytes, keys].prop_filter("a name", |bytes| Name::new(bytes).is_ok())
    }

    proptest! {
        /// Names come and go; those that are there read back whole and equal themselves only.
        #[test]
        fn every_name_reads_back(steps in prop::collection::vec((any_name(), any::<prop::sample::Index>(), any::<bool>()), 1..60)) {
            let mut names = Names::new();
            let mut kept: Vec<(Vec<u8>, NameRef)> = Vec::new();
            for (bytes, index, leaves) in steps {
                if leaves && !kept.is_empty() {
                    let (_, gone) = kept.swap_remove(index.index(kept.len()));
                    names.release(gone);
                }
                for (other, stored) in &kept {
                    prop_assert_eq!(names.is(*stored, &bytes), *other == bytes);
                }
                let stored = names.store(&name(&bytes));
                kept.push((bytes, stored));
                for (bytes, stored) in &kept {
                    prop_assert_eq!(&names.get(*stored), &name(bytes));
                    prop_assert!(names.is(*stored, bytes));
                    prop_assert!(!names.is(*stored, &bytes[1..]) && !names.is(*stored, &bytes[..bytes.len() - 1]));
                }
            }
        }
    }
}
