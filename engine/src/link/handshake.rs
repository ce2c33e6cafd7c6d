//! How two engines prove to each other that they belong to one cluster, before either says who it is.
//!
//! ```text
//! dialler  -> greeting: versions, purpose, nonce            acceptor
//!          <- greeting: versions, purpose, nonce
//!          -> proof of the dialler
//!          <- identity of the acceptor, with its proof
//!          -> identity of the dialler, with its proof
//!          <- verdict
//! ```
//! A proof is HMAC-SHA256 under the cluster key over the role, the cluster's name, both greetings and the identity
//! that goes with it. So an acceptor shows nothing but a nonce to a dialler that cannot make one, and closes.
//!
//! The versions of the two ends overlap or one of them closes; the highest that both speak is used.

use std::net::SocketAddr;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::ClusterKey;
use crate::error::Error;
use crate::types::PeerId;

/// Oldest and newest version of the protocol that this build speaks.
pub(super) const VERSIONS: Versions = Versions { min: 1, max: 1 };

pub(super) const GREETING_BYTES: usize = 48;
pub(super) const NONCE_BYTES: usize = 32;
pub(super) const PROOF_BYTES: usize = 32;
/// Longest identity that is read.
pub(super) const IDENTITY_BYTES_MAX: usize = 4096;

const MAGIC: [u8; 4] = *b"TDLH";

/// What allows a connection to be taken for more than a link: random, granted over a link.
pub(crate) type Token = [u8; 32];

/// A range of protocol versions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Versions {
    pub(super) min: u16,
    pub(super) max: u16,
}

impl Versions {
    /// The highest version in both.
    ///
    /// # Errors
    /// [`Error::VersionMismatch`] when there is none.
    pub(super) fn agree(self, theirs: Self) -> Result<u16, Error> {
        let newest = self.max.min(theirs.max);
        if newest >= self.min.max(theirs.min) {
            return Ok(newest);
        }
        let text = |versions: Self| format!("{} to {}", versions.min, versions.max).into();
        Err(Error::VersionMismatch { theirs: text(theirs), ours: text(self) })
    }
}

/// The first message of each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) versions: Versions,
    pub(super) nonce: [u8; NONCE_BYTES],
}

impl Greeting {
    /// A greeting with a nonce of its own.
    pub(super) fn fresh() -> Result<Self, Error> {
        let mut nonce = [0; NONCE_BYTES];
        fill_random(&mut nonce)?;
        Ok(Self { versions: VERSIONS, nonce })
    }

    pub(super) fn bytes(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.versions.min.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.versions.max.to_le_bytes());
        bytes[16..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Reads what [`Greeting::bytes`] made. Bytes 8..16 are for versions to come and are not looked at.
    pub(super) fn parse(bytes: &[u8; GREETING_BYTES]) -> Result<Self, Error> {
        let [m0, m1, m2, m3, a0, a1, b0, b1, _, _, _, _, _, _, _, _, nonce @ ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(Error::protocol("what answers is no engine of tidefs"));
        }
        let versions = Versions { min: u16::from_le_bytes([a0, a1]), max: u16::from_le_bytes([b0, b1]) };
        Ok(Self { versions, nonce })
    }
}

/// Which proof is made: one never serves as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Role {
    Dialler = 1,
    AcceptorIdentity = 2,
    DiallerIdentity = 3,
}

/// The key and the name of a cluster, ready to make proofs.
#[derive(Clone, Debug)]
pub(super) struct Prover {
    keyed: Hmac<Sha256>,
}

impl Prover {
    pub(super) fn new(cluster: &str, key: Option<&ClusterKey>) -> Self {
        let key = key.map_or(&[][..], ClusterKey::bytes);
        let Ok(mut keyed) = <Hmac<Sha256> as KeyInit>::new_from_slice(key) else {
            unreachable!("HMAC takes keys of any length (RFC 2104)")
        };
        keyed.update(b"tidefs link\0");
        keyed.update(&(cluster.len() as u64).to_le_bytes());
        keyed.update(cluster.as_bytes());
        Self { keyed }
    }

    fn mac(&self, role: Role, greetings: &Greetings, identity: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        mac.update(&[role as u8]);
        mac.update(&greetings.0);
        mac.update(&greetings.1);
        mac.update(identity);
        mac
    }

    pub(super) fn prove(&self, role: Role, greetings: &Greetings, identity: &[u8]) -> [u8; PROOF_BYTES] {
        self.mac(role, greetings, identity).finalize().into_bytes().into()
    }

    /// Whether `proof` is the right one; takes as long for a wrong one.
    pub(super) fn is_proof(
        &self,
        role: Role,
        greetings: &Greetings,
        identity: &[u8],
        proof: &[u8; PROOF_BYTES],
    ) -> bool {
        self.mac(role, greetings, identity).verify_slice(proof).is_ok()
    }
}

/// The greeting of the dialler, and that of the acceptor, as they were sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greetings(pub(super) [u8; GREETING_BYTES], pub(super) [u8; GREETING_BYTES]);

/// One boot of one host; processes with the same share memory and a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// Of this host; all zeros where the kernel does not tell.
    #[must_use]
    pub fn of_this_host() -> Self {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self::parse(&text).unwrap_or_default()
    }

    fn parse(text: &str) -> Option<Self> {
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        (digits.len() == 32)
            .then(|| u128::from_str_radix(&digits, 16).ok())
            .flatten()
            .map(|id| Self(id.to_be_bytes()))
    }
}

/// Who an engine says it is, to an end that has proved itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) peer: PeerId,
    pub(super) boot: BootId,
    /// Where it listens.
    pub(super) addresses: Vec<SocketAddr>,
    /// Set by a dialler that wants a stream of bytes, not a link.
    pub(super) token: Option<Token>,
}

impl Identity {
    pub(super) fn bytes(&self) -> Result<Vec<u8>, Error> {
        let bytes = postcard::to_allocvec(self).map_err(|error| Error::protocol(error.to_string()))?;
        match bytes.len() {
            0..=IDENTITY_BYTES_MAX => Ok(bytes),
            _ => Err(Error::protocol("the list of addresses is too long to be sent")),
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        postcard::from_bytes(bytes)
            .map_err(|error| Error::protocol(format!("an identity does not parse: {error}")))
    }
}

/// What the acceptor makes of a dialler that it believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verdict {
    /// The connection is taken.
    Welcome = 1,
    /// There is a link between the two already, or it is being made from the other end.
    Duplicate = 2,
    /// The token was not granted, or not any more.
    UnknownToken = 3,
    /// A later incarnation of the dialler was seen, the dialler is the acceptor itself, or the acceptor is closing.
    Unwanted = 4,
}

impl Verdict {
    pub(super) fn parse(byte: u8) -> Result<Self, Error> {
        [Self::Welcome, Self::Duplicate, Self::UnknownToken, Self::Unwanted]
            .into_iter()
            .find(|verdict| *verdict as u8 == byte)
            .ok_or_else(|| Error::protocol(format!("verdict {byte} is not known")))
    }
}

pub(crate) fn fill_random(target: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(target)
        .map_err(|error| Error::System { what: "getrandom", cause: error.to_string().into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Incarnation, MemberId};
    use proptest::prelude::*;

    fn greetings() -> Greetings {
        let greeting = |byte| Greeting { versions: Versions { min: 1, max: 1 }, nonce: [byte; NONCE_BYTES] };
        Greetings(greeting(1).bytes(), greeting(2).bytes())
    }

    fn identity() -> Identity {
        Identity {
            peer: PeerId { member: MemberId(7), incarnation: Incarnation(300) },
            boot: BootId([9; 16]),
            addresses: vec!["10.0.0.1:7000".parse().unwrap(), "[fd00::1]:7000".parse().unwrap()],
            token: None,
        }
    }

    #[test]
    fn a_greeting_of_version_1_is_these_bytes() {
        let mut golden = b"TDLH\x01\0\x01\0\0\0\0\0\0\0\0\0".to_vec();
        golden.extend([1; 32]);
        assert_eq!(greetings().0.as_slice(), golden);
        assert_eq!(Greeting::parse(&greetings().0).unwrap().nonce, [1; 32]);
    }

    #[test]
    fn an_identity_of_version_1_is_these_bytes() {
        let mut golden = vec![7, 0xac, 2];
        golden.extend([9; 16]);
        golden.extend([2, 0, 10, 0, 0, 1, 0xd8, 0x36]);
        golden.extend([1, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xd8, 0x36, 0]);
        assert_eq!(identity().bytes().unwrap(), golden);
        assert_eq!(Identity::parse(&golden).unwrap(), identity());
    }

    #[test]
    fn a_proof_of_version_1_is_these_bytes() {
        let proof =
            Prover::new("test", Some(&ClusterKey::new(*b"key"))).prove(Role::Dialler, &greetings(), b"");
        let text: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "8320df243b919caea9c1bdcbf404037e06574dd0f8b90036cc4d35168e7d6d1e");
    }

    #[test]
    fn a_proof_holds_for_its_key_cluster_role_greetings_and_identity_only() {
        let key = ClusterKey::new(*b"key");
        let prover = Prover::new("test", Some(&key));
        let proof = prover.prove(Role::Dialler, &greetings(), b"me");
        assert!(prover.is_proof(Role::Dialler, &greetings(), b"me", &proof));
        assert!(!prover.is_proof(Role::DiallerIdentity, &greetings(), b"me", &proof));
        assert!(!prover.is_proof(Role::Dialler, &greetings(), b"you", &proof));
        let Greetings(ours, theirs) = greetings();
        assert!(!prover.is_proof(Role::Dialler, &Greetings(theirs, ours), b"me", &proof));
        for other in [
            Prover::new("test", None),
            Prover::new("toast", Some(&key)),
            Prover::new("test", Some(&ClusterKey::new(*b"kez"))),
        ] {
            assert!(!other.is_proof(Role::Dialler, &greetings(), b"me", &proof));
        }
    }

    #[test]
    fn the_highest_common_version_is_used_and_its_lack_is_named() {
        let versions = |min, max| Versions { min, max };
        assert_eq!(versions(1, 2).agree(versions(2, 3)), Ok(2));
        assert_eq!(versions(1, 1).agree(versions(1, 4)), Ok(1));
        let refused = versions(3, 4).agree(versions(1, 2)).unwrap_err();
        assert_eq!(refused, Error::VersionMismatch { theirs: "1 to 2".into(), ours: "3 to 4".into() });
    }

    #[test]
    fn a_boot_id_is_read_as_the_kernel_writes_it() {
        let parsed = BootId::parse("01020304-0506-0708-090a-0b0c0d0e0f10\n");
        assert_eq!(parsed, Some(BootId([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16])));
        assert_eq!(BootId::parse("0102"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_identity_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            if let Ok(identity) = Identity::parse(&bytes) {
                prop_assert_eq!(Identity::parse(&identity.bytes().unwrap()), Ok(identity));
            }
        }
    }
}
