//! Whose certificates are let in: those that an authority of the cluster signed for its name.
//!
//! An authority may sign for others too, as that of a company does. Whoever dials checks the name of whom it dials by itself;
//! for who accepts the library checks the signature alone.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

/// What a certificate of who dials must be: all that the library asks for, and of the cluster's name.
#[derive(Debug)]
pub(super) struct Members {
    signed: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl Members {
    /// # Errors
    /// When no authority is among the roots.
    pub(super) fn new(
        roots: Arc<RootCertStore>,
        provider: Arc<CryptoProvider>,
        name: ServerName<'static>,
    ) -> Result<Self, Error> {
        let signed = WebPkiClientVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { signed, name })
    }
}

/// Whether the certificate bears the name.
///
/// # Errors
/// When it does not, or cannot be read.
pub(super) fn check_name(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
}

impl ClientCertVerifier for Members {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        check_name(end_entity, &self.name).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}
