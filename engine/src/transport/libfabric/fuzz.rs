//! The parsers of this folder for fuzzing.

use super::wire::{Greeting, Key};

/// Handshakes and keys.
pub(crate) fn messages(bytes: &[u8]) {
    if let Ok(greeting) = Greeting::decode(bytes) {
        // The name of a provider is read with what is no text replaced, which may be longer than what was sent.
        let _ = Greeting::decode(&greeting.encode());
    }
    if let Ok(key) = Key::decode(bytes) {
        assert_eq!(Key::decode(&key.encode()), Ok(key));
    }
}

#[cfg(test)]
pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    let addresses = vec![vec![1; 16], vec![2; 28]];
    let greeting = Greeting { is_ready: true, provider: "efa".to_owned(), addresses };
    let key =
        Key { access: crate::memory::Access::Read, base: 4096, length: 1 << 30, keys: vec![1, u64::MAX] };
    vec![greeting.encode(), key.encode()]
}
