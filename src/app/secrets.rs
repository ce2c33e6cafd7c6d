//! What the files hold that the settings of a cluster name: its secret, certificates, a password.
//!
//! They are read before anything is touched: one that cannot be used is a wrong setting, and is told with all others that are.

use std::path::Path;

use tidefs_engine::link::{ClusterKey, TlsConfig};

use super::Failure;
use super::check::contradiction;
use crate::config::{ClusterSettings, Effective, ExitStatus, OptionalFile, Problem};
use crate::replace::read_whole;

/// Longest file that is read: hundreds of certificates.
const FILE_BYTES_MAX: usize = 1 << 20;

/// How the parts of a PEM file are called in it.
const CERTIFICATE: &str = "CERTIFICATE";
const PRIVATE_KEY: &str = "PRIVATE KEY";

/// A secret that is shorter can be guessed.
const KEY_BYTES_MIN: usize = 16;

/// All of it. Empty where there is no cluster.
#[derive(Default)]
pub(super) struct Secrets {
    /// Proof of belonging.
    pub(super) key: Option<ClusterKey>,
    /// Encryption between members.
    pub(super) tls: Option<TlsConfig>,
    /// For etcd, where members meet by it.
    pub(super) etcd: EtcdSecrets,
}

/// What etcd wants to see, and who it is.
#[derive(Default)]
#[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "a build without etcd asks nobody with it"))]
pub(super) struct EtcdSecrets {
    pub(super) authority: Option<Vec<u8>>,
    pub(super) identity: Option<Vec<u8>>,
    /// `NAME:PASSWORD`.
    pub(super) user: Option<Vec<u8>>,
}

impl Secrets {
    /// Reads all files.
    ///
    /// # Errors
    /// Every one that cannot be used, together.
    pub(super) fn read(effective: &Effective) -> Result<Self, Failure> {
        let settings = &effective.config.cluster;
        if !settings.is_clustered() {
            return Ok(Self::default());
        }
        let mut reader = Reader { effective, problems: Vec::new() };
        let secrets = Self {
            key: reader.key(settings),
            tls: reader.tls(settings),
            etcd: match settings.coordinator.get() {
                Some(_) => EtcdSecrets::default(),
                None => reader.etcd(settings),
            },
        };
        match reader.problems.is_empty() {
            true => Ok(secrets),
            false => {
                let lines: Vec<String> = reader.problems.iter().map(ToString::to_string).collect();
                Err(Failure::new(ExitStatus::Configuration, lines.join("\n")))
            }
        }
    }
}

/// Reads files, and notes what is wrong with them.
struct Reader<'a> {
    effective: &'a Effective,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn wrong(&mut self, key: &str, reason: String, next_step: &str) {
        self.problems.push(contradiction(self.effective, key, reason, next_step));
    }

    /// The content of a file, if one is given.
    fn file(&mut self, key: &str, file: &OptionalFile) -> Option<Vec<u8>> {
        match read_whole(file.path()?, FILE_BYTES_MAX) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                let reason = format!("the file cannot be read: {error}");
                self.wrong(key, reason, "correct its path or permissions");
                None
            }
        }
    }

    fn key(&mut self, settings: &ClusterSettings) -> Option<ClusterKey> {
        const KEY: &str = "cluster.key_file";
        let bytes = self.file(KEY, &settings.key_file)?;
        // A file that was written with an editor ends with a line break; the secret does not.
        let secret = bytes.trim_ascii_end();
        if secret.len() < KEY_BYTES_MIN {
            let reason =
                format!("the file holds {} bytes, at least {KEY_BYTES_MIN} are needed", secret.len());
            self.wrong(KEY, reason, "make one with `head -c 32 /dev/urandom | base64 > FILE`");
            return None;
        }
        Some(ClusterKey::new(secret))
    }

    /// The files themselves are read again by who encrypts.
    fn tls(&mut self, settings: &ClusterSettings) -> Option<TlsConfig> {
        const AUTHORITY: &str = "cluster.tls_authority";
        const IDENTITY: &str = "cluster.tls_identity";
        let before = self.problems.len();
        self.file(AUTHORITY, &settings.tls_authority);
        self.file(IDENTITY, &settings.tls_identity);
        match (settings.tls_authority.path(), settings.tls_identity.path()) {
            (None, None) => None,
            (Some(authority), Some(identity)) => {
                let encryption = encryption(authority, identity, settings);
                // What cannot be read was told already.
                if self.problems.len() == before
                    && let Err(error) = encryption.check()
                {
                    let next_step = "correct the file that is named: both hold PEM, and the certificate bears cluster.tls_name";
                    self.wrong(IDENTITY, error.to_string(), next_step);
                }
                Some(encryption)
            }
            (authority, _) => {
                let (set, missing) =
                    if authority.is_some() { (AUTHORITY, IDENTITY) } else { (IDENTITY, AUTHORITY) };
                let reason = format!("{missing} is not set: encryption between members needs both");
                self.wrong(set, reason, "set both, or neither");
                None
            }
        }
    }

    fn etcd(&mut self, settings: &ClusterSettings) -> EtcdSecrets {
        if cfg!(not(feature = "etcd")) {
            let next_step =
                "build it with the feature `etcd`, or name one of the hosts with cluster.coordinator";
            self.wrong("cluster.etcd", "this tidefsd was built without etcd".to_owned(), next_step);
        }
        EtcdSecrets {
            authority: self.pem("cluster.etcd_authority", &settings.etcd_authority, &[CERTIFICATE]),
            identity: self.pem("cluster.etcd_identity", &settings.etcd_identity, &[CERTIFICATE, PRIVATE_KEY]),
            user: self.user("cluster.etcd_user_file", &settings.etcd_user_file),
        }
    }

    /// `NAME:PASSWORD`.
    fn user(&mut self, key: &str, file: &OptionalFile) -> Option<Vec<u8>> {
        let line = self.file(key, file)?;
        let name_end = line.trim_ascii_end().iter().position(|byte| *byte == b':');
        if name_end.is_some_and(|end| end > 0 && end + 1 < line.trim_ascii_end().len()) {
            return Some(line);
        }
        self.wrong(
            key,
            "the file does not hold a name and a password".to_owned(),
            "write NAME:PASSWORD into it",
        );
        None
    }

    /// The content of a file that holds each of `parts` as PEM; the words that such a part begins with.
    fn pem(&mut self, key: &str, file: &OptionalFile, parts: &[&str]) -> Option<Vec<u8>> {
        let text = self.file(key, file)?;
        let holds = |part: &&&str| String::from_utf8_lossy(&text).contains(&format!("{part}-----"));
        let Some(missing) = parts.iter().find(|part| !holds(part)) else { return Some(text) };
        let reason = format!("the file holds no {} as PEM", missing.to_lowercase());
        self.wrong(key, reason, "write it into the file, from -----BEGIN to -----END");
        None
    }
}

/// One file holds the certificate and its key; each is found in it.
fn encryption(authority: &Path, identity: &Path, settings: &ClusterSettings) -> TlsConfig {
    TlsConfig {
        authority: authority.to_owned(),
        certificate: identity.to_owned(),
        key: identity.to_owned(),
        name: settings.tls_name.0.clone(),
    }
}
