//! What goes over the wire comes back, each version of a key is these bytes, and what cannot be is refused.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        (is_ready, is_divided) in any::<(bool, bool)>(), provider in "[a-z;_]{0,40}",
        addresses in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..=64), 1..=RAILS_MAX),
        base: u64, length: u64, is_writable: bool,
        keys in proptest::collection::vec(any::<u64>(), 1..=RAILS_MAX),
    ) {
        let greeting = Greeting { is_ready, is_divided: is_ready && is_divided, provider, addresses };
        prop_assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
        let access = if is_writable { Access::ReadWrite } else { Access::Read };
        let length = length.min(u64::MAX - base);
        let key = Key { access, base, length, layout: Layout::Everywhere(None), keys };
        let bytes = key.encode();
        prop_assert!(bytes.len() <= 256 && name_of(&bytes).is_none());
        prop_assert_eq!(Key::decode(&bytes), Ok(key));
    }

    #[test]
    fn keys_of_several_registrations_are_decoded_and_each_byte_has_its_own(
        has_addresses: bool, rails in 1_usize..=15, chunk in 1_u64..1 << 40, more in 1_u64..16,
        last in any::<u64>(), at in any::<u64>(),
    ) {
        let length = chunk * more + last % chunk + u64::from(more == 1);
        let length = length.min(chunk * REGISTRATIONS_MAX);
        let count = length.div_ceil(chunk);
        prop_assume!(count >= 2);
        let base = if has_addresses { 1 << 45 } else { 0 };
        let keys = (0..rails as u64 * count).map(|index| index * 3).collect();
        let key = Key { access: Access::Read, base, length, layout: Layout::Everywhere(Some(chunk)), keys };
        let bytes = key.encode();
        prop_assert!(bytes.len() <= KEY_BYTES_MAX && name_of(&bytes) == Some(KEYS_NAME));
        prop_assert_eq!(Key::decode(&bytes), Ok(key.clone()));
        let offset = at % length;
        for rail in 0..rails {
            let expected = (rail as u64 * count + offset / chunk) * 3;
            let address = if has_addresses { base + offset } else { offset % chunk };
            prop_assert_eq!(key.place(rail, offset), Ok((address, expected)));
        }
        prop_assert!(key.place(rails, 0).is_err());
        // An operation of no bytes at the end.
        prop_assert!(key.place(rails - 1, length).is_ok());
        for cut in 0..bytes.len() {
            prop_assert!(Key::decode(&bytes[..cut]).is_err(), "{}", cut);
        }
    }

    #[test]
    fn keys_of_parts_are_decoded_and_each_byte_has_one_rail(
        has_addresses: bool, at in any::<u64>(),
        parts in proptest::collection::vec((0..RAILS_MAX, 1_u64..1 << 40), 1..=PARTS_MAX),
    ) {
        let mut length = 0;
        let part = |&(rail, bytes): &(usize, u64)| {
            let part = Part { rail: RailId(u16::try_from(rail).unwrap()), from: length, bytes };
            length += bytes;
            part
        };
        let parts: Vec<Part> = parts.iter().map(part).collect();
        let keys = (0..parts.len() as u64).map(|index| index << 30).collect();
        let (base, layout) = (if has_addresses { 1 << 45 } else { 0 }, Layout::Divided(parts.clone()));
        let key = Key { access: Access::Read, base, length, layout, keys };
        let bytes = key.encode();
        prop_assert!(bytes.len() <= KEY_BYTES_MAX && name_of(&bytes) == Some(PARTS_NAME));
        prop_assert_eq!(Key::decode(&bytes), Ok(key.clone()));
        let offset = at % length;
        let index = parts.iter().position(|part| (part.from..part.from + part.bytes).contains(&offset)).unwrap();
        let address = if has_addresses { base + offset } else { offset - parts[index].from };
        for rail in 0..RAILS_MAX {
            let has_it = rail == usize::from(parts[index].rail.0);
            let place = has_it.then_some((address, (index as u64) << 30));
            prop_assert_eq!(key.place(rail, offset).ok(), place);
        }
        let last = parts[parts.len() - 1];
        prop_assert!(key.place(usize::from(last.rail.0), length).is_ok(), "no bytes at the end");
        for cut in 0..bytes.len() {
            prop_assert!(Key::decode(&bytes[..cut]).is_err(), "{}", cut);
        }
    }

    #[test]
    fn what_is_accepted_as_a_key_has_few_keys_and_a_place_for_each_byte(
        version in 1_u8..=2, rails in 0_u8..40, has_long_keys: bool, base: u64, length: u64,
        chunk in any::<u64>(), count in 0_usize..300, at in any::<u64>(),
    ) {
        let width = if has_long_keys { 8 } else { 4 };
        let chunk = if chunk % 3 == 0 { chunk } else { (length / 16).saturating_add(chunk % 1000) };
        let mut bytes = vec![version, 1, width, rails];
        bytes.extend([base, length].iter().flat_map(|number| number.to_le_bytes()));
        let chunks = if version == 1 { 1 } else {
            bytes.extend(chunk.to_le_bytes());
            length.checked_div(chunk).map_or(1, |_| length.div_ceil(chunk))
        };
        // Mostly as many as there should be.
        let wanted = usize::try_from(chunks).unwrap_or(usize::MAX).saturating_mul(usize::from(rails));
        let keys = if count > 30 && wanted < 1000 { wanted } else { count };
        bytes.extend(std::iter::repeat_n(1, keys * usize::from(width)));
        if let Ok(key) = Key::decode(&bytes) {
            prop_assert!(key.keys.len() <= KEYS_MAX && key.encode().len() <= KEY_BYTES_MAX);
            prop_assert_eq!(Key::decode(&key.encode()), Ok(key.clone()));
            let offset = at.checked_rem(length).unwrap_or_default();
            for rail in 0..usize::from(rails) {
                prop_assert!(key.place(rail, offset).is_ok());
            }
            prop_assert!(key.place(usize::from(rails), offset).is_err());
        }
    }

    #[test]
    fn other_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Greeting::decode(&bytes);
        let _ = Key::decode(&bytes);
        let _ = Greeting::decode(&[MAGIC, bytes.as_slice()].concat());
        for version in [KEY_VERSION, KEYS_VERSION, PARTS_VERSION] {
            let _ = Key::decode(&[&[version][..], bytes.as_slice()].concat());
        }
    }
}

#[test]
fn each_version_of_a_key_is_these_bytes() {
    let layout = Layout::Everywhere(None);
    let one = Key { access: Access::Read, base: 0x10, length: 5, layout, keys: vec![7, 8] };
    let golden =
        [&[1, 0, 4, 2, 0x10, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0][..], &[7, 0, 0, 0, 8, 0, 0, 0]];
    assert_eq!(one.encode(), golden.concat());
    let layout = Layout::Everywhere(Some(3));
    let several = Key { access: Access::ReadWrite, layout, keys: vec![7, 1 << 32], ..one.clone() };
    let golden = [
        &[2, 1, 8, 1, 0x10, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0][..],
        &[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
    ];
    assert_eq!(several.encode(), golden.concat());
    assert_eq!(Key::decode(&golden.concat()), Ok(several));
    let part = |rail, from, bytes| Part { rail: RailId(rail), from, bytes };
    let parts = Key { layout: Layout::Divided(vec![part(1, 0, 3), part(0, 3, 2)]), ..one };
    let golden = [
        &[3, 0, 4, 2, 0x10, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2][..],
        &[1, 3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0],
    ];
    assert_eq!(parts.encode(), golden.concat());
    assert_eq!(Key::decode(&golden.concat()), Ok(parts));
}

#[test]
fn a_rail_that_does_not_have_a_region_is_told_from_one_that_has() {
    let key = |layout, keys| Key { access: Access::Read, base: 0, length: 6, layout, keys };
    let one = key(Layout::Everywhere(None), vec![7, NO_KEY, 8]);
    assert_eq!(Key::decode(&one.encode()), Ok(one.clone()));
    assert_eq!([0, 1, 2].map(|rail| one.is_at(rail)), [true, false, true]);
    assert_eq!([1, 2, 3].map(|rail| one.keys_at(RailId(rail))), [Some(vec![NO_KEY]), Some(vec![8]), None]);
    let several = key(Layout::Everywhere(Some(3)), vec![NO_KEY, NO_KEY, 1, 2]);
    assert_eq!(Key::decode(&several.encode()), Ok(several.clone()));
    assert_eq!([0, 1].map(|rail| several.is_at(rail)), [false, true]);
    assert_eq!([1, 2].map(|rail| several.keys_at(RailId(rail))), [Some(vec![1, 2]), None]);
    let part = |rail, from| Part { rail: RailId(rail), from, bytes: 2 };
    let parts = key(Layout::Divided(vec![part(1, 0), part(0, 2), part(1, 4)]), vec![3, 4, 5]);
    assert_eq!([0, 1, 2].map(|rail| parts.keys_at(RailId(rail))), [vec![4], vec![3, 5], vec![]].map(Some));
}

#[test]
fn an_address_of_zeros_is_that_of_no_nic() {
    assert!(is_open(&[0, 0, 7]));
    assert!(!is_open(&[0; 32]) && !is_open(&[]));
}

#[test]
fn an_older_engine_takes_no_peer_for_ready_that_is_not() {
    let greeting = |is_ready| Greeting {
        is_ready,
        is_divided: true,
        provider: "efa".to_owned(),
        addresses: vec![vec![1]],
    };
    let byte = |is_ready| greeting(is_ready).encode()[MAGIC.len()];
    assert_eq!((byte(false), byte(true)), (0, 3));
}

#[test]
fn parts_that_cannot_be_are_refused() {
    let refused = |length: u64, rails: u8, parts: &[(u8, u64)]| {
        let mut bytes = [&[3, 0, 4, rails][..], &[0, length].map(u64::to_le_bytes).concat()].concat();
        bytes.push(u8::try_from(parts.len()).unwrap());
        for (rail, part) in parts {
            bytes.extend([&[*rail][..], &part.to_le_bytes(), &[0; 4]].concat());
        }
        Key::decode(&bytes).unwrap_err().to_string()
    };
    assert!(refused(10, 2, &[]).contains("0 parts"));
    assert!(refused(10, 2, &[(0, 1); PARTS_MAX + 1]).contains("113 parts of one region, of 1 to 112"));
    assert!(refused(10, 2, &[(0, 5), (2, 5)]).contains("at rail 2 of 2"));
    assert!(refused(10, 2, &[(1, 5), (0, 0), (0, 5)]).contains("a part of 0 bytes"));
    assert!(refused(10, 2, &[(1, 5), (0, 6)]).contains("a part of 6 bytes"));
    assert!(refused(10, 2, &[(1, 5), (0, u64::MAX)]).contains("a part of 18446744073709551615 bytes"));
    assert!(refused(10, 2, &[(1, 5), (0, 4)]).contains("parts of 9 bytes in all, of 10"));
    assert!(refused(10, 3, &[(1, 5), (0, 5)]).contains("parts of 10 bytes"));
}

#[test]
fn registrations_that_cannot_be_are_refused() {
    let refused = |length: u64, chunk: u64, rails: u8| {
        let numbers = [0, length, chunk].map(u64::to_le_bytes).concat();
        let keys = vec![0; 4 * usize::from(rails) * 32];
        Key::decode(&[&[2, 0, 4, rails][..], &numbers, &keys].concat()).unwrap_err().to_string()
    };
    assert!(refused(4096, 0, 1).contains("registrations of 0 bytes"));
    assert!(refused(0, 4096, 1).contains("of 0 in all"));
    assert!(refused(4096, 4096, 1).contains("registrations of 4096 bytes"));
    assert!(refused(u64::MAX, 1, 1).contains("registrations of 1 bytes"));
    assert!(refused(17, 1, 1).contains("registrations of 1 bytes"));
    assert!(refused(16, 1, 16).contains("256 keys of one region, of at most 252"));
    assert!(refused(2, 1, 30).contains("30 keys of 4 bytes"));
    assert!(refused(2, 1, 29).contains("bytes behind the end"));
}

#[test]
fn memory_that_goes_on_beyond_the_last_address_is_refused() {
    let key = |base, length| {
        let layout = Layout::Everywhere(None);
        let key = Key { access: Access::Read, base, length, layout, keys: vec![1] };
        Key::decode(&key.encode())
    };
    assert!(key(u64::MAX - 4096, 4096).is_ok());
    let refused = key(u64::MAX - 4095, 4096).unwrap_err().to_string();
    assert!(refused.contains("beyond the last address"), "{refused}");
}

#[test]
fn a_cut_message_is_refused() {
    let whole = Greeting {
        is_ready: true,
        is_divided: true,
        provider: "efa".to_owned(),
        addresses: vec![vec![1, 2, 3]],
    };
    let bytes = whole.encode();
    for length in 0..bytes.len() {
        assert!(Greeting::decode(&bytes[..length]).is_err(), "{length}");
    }
}
