//! The records of requests: a fixed part, then the bytes of a name where there is one. They lie one behind the other
//! without a gap.

use std::marker::PhantomData;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Refusal;

/// One entry of a request.
pub trait Record<'a>: Sized {
    /// Takes one from the start of `bytes`.
    fn take(bytes: &mut &'a [u8]) -> Option<Self>;
    /// Appends its bytes.
    fn put(&self, bytes: &mut Vec<u8>);
    /// Length of its bytes.
    fn length(&self) -> usize;
}

/// A path relative to the scope, without a leading slash. LOOKUP, PREFIX, PREFETCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a>(pub &'a [u8]);

/// An object to begin. CREATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// How long it may become.
    pub size: u64,
    /// Permissions, the umask taken off.
    pub mode: u32,
    /// Its name.
    pub name: Name<'a>,
}

/// References that follow each other. RELEASE, ABORT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// A begun object to seal. SEAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The reference that CREATE gave.
    pub reference: u64,
    /// Its length, at most what CREATE was asked for.
    pub length: u64,
}

/// A part of an object to copy out. GET_INTO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'a> {
    /// Where the part starts in the object.
    pub offset: u64,
    /// Its length; less is copied where the object ends.
    pub length: u64,
    /// Segment of the area.
    pub area: u64,
    /// Where it goes there.
    pub target: u64,
    /// The object.
    pub name: Name<'a>,
}

/// An object to make of bytes in an area. PUT_FROM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    /// Segment of the area.
    pub area: u64,
    /// Where its bytes start there.
    pub source: u64,
    /// Its length.
    pub length: u64,
    /// Permissions, the umask taken off.
    pub mode: u32,
    /// Its name.
    pub name: Name<'a>,
}

/// A part of a begun object that is as it will stay. READY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The reference that CREATE gave.
    pub reference: u64,
    /// Where the part starts.
    pub offset: u64,
    /// Its length.
    pub length: u64,
}

/// A part of an object to wait for. FOLLOW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follow<'a> {
    /// Where the part starts.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// Milliseconds to wait; the daemon waits for less when it finds them too many.
    pub wait_ms: u32,
    /// The object.
    pub name: Name<'a>,
}

/// Pin of PIN: none.
pub const PIN_NONE: u16 = 0;

/// Pin of PIN: it goes after all others.
pub const PIN_SOFT: u16 = 1;

/// Pin of PIN: it does not go.
pub const PIN_HARD: u16 = 2;

/// An object to pin. PIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin<'a> {
    /// Seconds for which a soft pin holds; 0 is without an end.
    pub ttl_s: u64,
    /// [`PIN_NONE`], [`PIN_SOFT`] or [`PIN_HARD`].
    pub pin: u16,
    /// The object.
    pub name: Name<'a>,
}

/// Record of CREATE. A name follows: 2 bytes of length, then its bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
struct CreateHead {
    size: U64,
    mode: U32,
}

/// Record of RELEASE and ABORT: the first reference and how many. Of SEAL: the reference and the length.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Pair {
    first: U64,
    second: U64,
}

/// Record of GET_INTO. A name follows.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct GetHead {
    offset: U64,
    length: U64,
    area: U64,
    target: U64,
}

/// Record of PUT_FROM. A name follows.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
struct PutHead {
    area: U64,
    source: U64,
    length: U64,
    mode: U32,
}

/// Record of READY.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReadyHead {
    reference: U64,
    offset: U64,
    length: U64,
}

/// Record of FOLLOW. A name follows.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
struct FollowHead {
    offset: U64,
    length: U64,
    wait_ms: U32,
}

/// Record of PIN. A name follows.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
struct PinHead {
    ttl_s: U64,
    pin: U16,
}

const _: () = {
    assert!(size_of::<ReadyHead>() == 24 && size_of::<FollowHead>() == 20 && size_of::<PinHead>() == 10);
    assert!(size_of::<CreateHead>() == 12 && size_of::<Pair>() == 16);
    assert!(size_of::<GetHead>() == 32 && size_of::<PutHead>() == 28);
};

/// Takes a fixed part from the start of `bytes`.
fn head<'a, T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &mut &'a [u8]) -> Option<&'a T> {
    let (head, rest) = T::ref_from_prefix(bytes).ok()?;
    *bytes = rest;
    Some(head)
}

impl<'a> Record<'a> for Name<'a> {
    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let length = head::<U16>(bytes)?.get();
        let (name, rest) = bytes.split_at_checked(usize::from(length))?;
        *bytes = rest;
        Some(Self(name))
    }

    /// A name too long for its length to be said is cut, and then names nothing: paths end at 4096 bytes.
    fn put(&self, bytes: &mut Vec<u8>) {
        let name = &self.0[..self.0.len().min(usize::from(u16::MAX))];
        bytes.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(name);
    }

    fn length(&self) -> usize {
        size_of::<U16>() + self.0.len().min(usize::from(u16::MAX))
    }
}

impl<'a> Record<'a> for Create<'a> {
    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let head: &CreateHead = head(bytes)?;
        Some(Self { size: head.size.get(), mode: head.mode.get(), name: Name::take(bytes)? })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend(CreateHead { size: self.size.into(), mode: self.mode.into() }.as_bytes());
        self.name.put(bytes);
    }

    fn length(&self) -> usize {
        size_of::<CreateHead>() + self.name.length()
    }
}

impl<'a> Record<'a> for Range {
    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let pair: &Pair = head(bytes)?;
        Some(Self { first: pair.first.get(), count: pair.second.get() })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend(Pair { first: self.first.into(), second: self.count.into() }.as_bytes());
    }

    fn length(&self) -> usize {
        size_of::<Pair>()
    }
}

impl<'a> Record<'a> for Seal {
    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let pair: &Pair = head(bytes)?;
        Some(Self { reference: pair.first.get(), length: pair.second.get() })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend(Pair { first: self.reference.into(), second: self.length.into() }.as_bytes());
    }

    fn length(&self) -> usize {
        size_of::<Pair>()
    }
}

impl<'a> Record<'a> for Get<'a> {
    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let head: &GetHead = head(bytes)?;
        let (offset, length) = (head.offset.get(), head.length.get());
        let (area, target) = (head.area.get(), head.target.get());
        Some(Self { offset, length, area, target, name: Name::take(bytes)? })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        let head = GetHead {
            offset: self.offset.into(),
            length: self.length.into(),
            area: self.area.into(),
            target: self.target.into(),
        };
        bytes.extend(head.as_bytes());
        self.name.put(bytes);
    }

    fn length(&self) -> usize {
        size_of::<GetHead>() + self.name.length()
    }
}

impl<'a> Record<'a> for Put<'a> {
    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let head: &PutHead = head(bytes)?;
        let (area, source, length) = (head.area.get(), head.source.get(), head.length.get());
        Some(Self { area, source, length, mode: head.mode.get(), name: Name::take(bytes)? })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        let head = PutHead {
            area: self.area.into(),
            source: self.source.into(),
            length: self.length.into(),
            mode: self.mode.into(),
        };
        bytes.extend(head.as_bytes());
        self.name.put(bytes);
    }

    fn length(&self) -> usize {
        size_of::<PutHead>() + self.name.length()
    }
}

impl<'a> Record<'a> for Ready {
    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let head: &ReadyHead = head(bytes)?;
        let (reference, offset, length) = (head.reference.get(), head.offset.get(), head.length.get());
        Some(Self { reference, offset, length })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        let (reference, offset, length) = (self.reference.into(), self.offset.into(), self.length.into());
        bytes.extend(ReadyHead { reference, offset, length }.as_bytes());
    }

    fn length(&self) -> usize {
        size_of::<ReadyHead>()
    }
}

impl<'a> Record<'a> for Follow<'a> {
    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let head: &FollowHead = head(bytes)?;
        let (offset, length, wait_ms) = (head.offset.get(), head.length.get(), head.wait_ms.get());
        Some(Self { offset, length, wait_ms, name: Name::take(bytes)? })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        let (offset, length, wait_ms) = (self.offset.into(), self.length.into(), self.wait_ms.into());
        bytes.extend(FollowHead { offset, length, wait_ms }.as_bytes());
        self.name.put(bytes);
    }

    fn length(&self) -> usize {
        size_of::<FollowHead>() + self.name.length()
    }
}

impl<'a> Record<'a> for Pin<'a> {
    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let head: &PinHead = head(bytes)?;
        Some(Self { ttl_s: head.ttl_s.get(), pin: head.pin.get(), name: Name::take(bytes)? })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend(PinHead { ttl_s: self.ttl_s.into(), pin: self.pin.into() }.as_bytes());
        self.name.put(bytes);
    }

    fn length(&self) -> usize {
        size_of::<PinHead>() + self.name.length()
    }
}

/// The records of a request, known to be whole.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a, R> {
    count: usize,
    bytes: &'a [u8],
    of: PhantomData<fn() -> R>,
}

impl<'a, R: Record<'a>> Records<'a, R> {
    /// Takes `count` records from the start of `bytes`. What follows them is padding.
    ///
    /// # Errors
    /// [`Refusal::Records`] when there are fewer.
    pub fn parse(count: usize, bytes: &'a [u8]) -> Result<Self, Refusal> {
        let mut rest = bytes;
        for index in 0..count {
            R::take(&mut rest).ok_or(Refusal::Records { index })?;
        }
        Ok(Self { count, bytes: &bytes[..bytes.len() - rest.len()], of: PhantomData })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = R> + use<'a, R> {
        let mut rest = self.bytes;
        // All are whole, so none ends the row early; the count tells collectors how many to expect.
        (0..self.count).map_while(move |_| R::take(&mut rest))
    }
}
