//! What stands in for encryption in a build without the feature `tls`: nothing can be encrypted.

use std::io::{self, IoSlice};

use super::TlsConfig;
use super::stream::Nonblocking;
use crate::error::Error;

/// Cannot be made.
#[derive(Debug)]
pub(super) enum Encryption {}

/// Cannot be made.
#[derive(Debug)]
pub(super) enum Session {}

impl Encryption {
    pub(super) fn open(_: &TlsConfig) -> Result<Self, Error> {
        let cause = "this build is without the feature `tls`".into();
        Err(Error::Unavailable { transport: "tls", looked_for: "rustls".into(), cause })
    }

    pub(super) fn dialled(&self) -> io::Result<Session> {
        match *self {}
    }

    pub(super) fn accepted(&self) -> io::Result<Session> {
        match *self {}
    }
}

impl Session {
    pub(super) fn wants_write(&self) -> bool {
        match *self {}
    }

    pub(super) fn shake_hands(&self, _: &dyn Nonblocking) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn try_read(&self, _: &dyn Nonblocking, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn try_write(&self, _: &dyn Nonblocking, _: &[IoSlice<'_>]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn try_flush(&self, _: &dyn Nonblocking) -> io::Result<()> {
        match *self {}
    }
}
