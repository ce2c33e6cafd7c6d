//! The parsers of this folder for fuzzing.

use super::wire::{Greeting, Key};

/// Handshakes and keys.
pub(crate) fn messages(bytes: &[u8]) {
    if let Ok(greeting) = Greeting::decode(bytes) {
        // The name of a provider is read with what is no text replaced, which may be longer than what was sent.
        let _ = Greeting::decode(&greeting.encode());
    }
    if let Ok(key) = Key::decode(bytes) {
        assert_eq!(Key::decode(&key.encode()).as_ref(), Ok(&key));
        // Wherever it points, it does so without a panic.
        let _ = [0, key.length / 2, key.length]
            .map(|offset| (key.place(0, offset), key.place(usize::MAX, offset)));
    }
}

#[cfg(test)]
pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    use super::layout::{Layout, Part};
    use crate::types::RailId;

    let addresses = vec![vec![1; 16], vec![2; 28]];
    let greeting = Greeting { is_ready: true, is_divided: true, provider: "efa".to_owned(), addresses };
    let access = crate::memory::Access::Read;
    let layout = Layout::Everywhere(None);
    let key = Key { access, base: 4096, length: 1 << 30, layout, keys: vec![1, u64::MAX] };
    let layout = Layout::Everywhere(Some(1 << 29));
    let keys = Key { base: 0, layout, keys: vec![1, 2, 3, u64::MAX], ..key.clone() };
    let part = |rail, from| Part { rail: RailId(rail), from, bytes: 1 << 29 };
    let parts = Key { layout: Layout::Divided(vec![part(1, 0), part(0, 1 << 29)]), ..key.clone() };
    vec![greeting.encode(), key.encode(), keys.encode(), parts.encode()]
}
