//! Who signs the certificates of a cluster, and whether each of them counts now: rustls does not look at the dates of those that
//! it is told to trust.
//!
//! An authority that is out of date signs for nobody: what it signed is refused, whatever the dates of that are. Connections
//! that were made before go on.

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

pub(super) fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

/// The certificates of the authorities, at least one.
pub(super) struct Authorities {
    all: Vec<CertificateDer<'static>>,
    /// Of all of them.
    store: RootCertStore,
}

impl Authorities {
    /// # Errors
    /// When one of them cannot be read.
    pub(super) fn new(all: Vec<CertificateDer<'static>>) -> Result<Self, Error> {
        let places: Vec<usize> = (0..all.len()).collect();
        let mut authorities = Self { all, store: RootCertStore::empty() };
        authorities.store = authorities.store(&places)?;
        Ok(authorities)
    }

    /// Those at `places`, to be trusted.
    pub(super) fn store(&self, places: &[usize]) -> Result<RootCertStore, Error> {
        let mut store = RootCertStore::empty();
        for &place in places {
            store.add(self.all[place].clone())?;
        }
        Ok(store)
    }

    /// The places of those that count at `now`.
    ///
    /// # Errors
    /// When none does: why the last of them does not.
    pub(super) fn in_date(&self, now: UnixTime) -> Result<Vec<usize>, Error> {
        let mut found = Vec::new();
        let mut refusal = None;
        for (place, certificate) in self.all.iter().enumerate() {
            match self.check_dates(certificate, now) {
                Ok(()) => found.push(place),
                Err(error) => refusal = Some(error),
            }
        }
        refusal.filter(|_| found.is_empty()).map_or(Ok(found), Err)
    }

    /// Has the library look at the dates, as if a peer had shown the certificate: it looks at them first, and refuses it for
    /// another reason if they are good. One that is too old a kind for that has nothing said of its dates.
    fn check_dates(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
        let Ok(shown) = ParsedCertificate::try_from(certificate) else { return Ok(()) };
        let algorithms = provider().signature_verification_algorithms.all;
        let checked = verify_server_cert_signed_by_trust_anchor(&shown, &self.store, &[], now, algorithms);
        match checked {
            Err(Error::InvalidCertificate(
                error @ (CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }),
            )) => Err(Error::InvalidCertificate(error)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

    use super::*;

    fn valid(from: i32, until: i32) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(until, 1, 1));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    /// About the first of January of a year.
    fn year(year: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_556_952))
    }

    #[test]
    fn an_authority_counts_between_its_dates() {
        let authorities = Authorities::new(vec![valid(2010, 2020), valid(2015, 2030)]).unwrap();
        let in_date = |at| authorities.in_date(year(at));
        assert_eq!(in_date(2012), Ok(vec![0]));
        assert_eq!(in_date(2018), Ok(vec![0, 1]));
        assert_eq!(in_date(2025), Ok(vec![1]));
        for (at, why) in [(2005, "not valid yet"), (2035, "expired")] {
            let refused = in_date(at).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
