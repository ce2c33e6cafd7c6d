//! What the settings of a cluster are made of: words with spaces between, since addresses hold every other separator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use tidefs_engine::engine::TransportChoice;

use super::settings::ClusterSettings;
use super::value::SettingValue;

/// Makes a type of a list of words.
macro_rules! words {
    ($($(#[$about:meta])* $name:ident of $item:ty, $kind:literal, $read:expr, $show:expr;)+) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(Vec<$item>);

        impl $name {
            /// The items, in order.
            #[must_use]
            pub fn items(&self) -> &[$item] {
                &self.0
            }
        }

        impl SettingValue for $name {
            const KIND: &'static str = $kind;

            fn read(text: &str) -> Result<Self, String> {
                let read: fn(&str) -> Result<$item, String> = $read;
                text.split_whitespace().map(read).collect::<Result<_, _>>().map(Self)
            }

            fn show(&self) -> String {
                let show: fn(&$item) -> String = $show;
                self.0.iter().map(show).collect::<Vec<_>>().join(" ")
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.show())
            }
        }
    )+};
}

words! {
    /// Where etcd answers.
    Endpoints of String, "URLs with spaces between", read_endpoint, Clone::clone;
    /// Where something listens.
    Addresses of SocketAddr, "addresses with spaces between", read_address, ToString::to_string;
    /// Labels of a host.
    Labels of (String, String), "`NAME=VALUE` with spaces between", read_label, |(name, value)| format!("{name}={value}");
}

fn read_endpoint(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match host {
        Some(host) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("`{text}` is not like `http://HOST:2379`")),
    }
}

fn read_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("`{text}` is not like `10.0.0.1:7400` or `[::]:7400`"))
}

fn read_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err(format!("`{text}` is not like `topology.rack=r1`")),
    }
}

impl Labels {
    /// The labels by name; of two with one name the later counts.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<String, String> {
        self.0.iter().cloned().collect()
    }
}

/// A file that need not be given.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct OptionalFile(Option<PathBuf>);

impl OptionalFile {
    /// The file, if one is given.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.as_deref()
    }
}

impl SettingValue for OptionalFile {
    const KIND: &'static str = "an absolute path, or nothing";

    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() { Ok(Self(None)) } else { PathBuf::read(text).map(Some).map(Self) }
    }

    fn show(&self) -> String {
        self.0.as_ref().map(SettingValue::show).unwrap_or_default()
    }
}

/// An address that need not be given, by name or number.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct OptionalAddress(Option<String>);

impl OptionalAddress {
    /// `HOST:PORT`, if one is given.
    #[must_use]
    pub fn get(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl SettingValue for OptionalAddress {
    const KIND: &'static str = "`HOST:PORT`, or nothing";

    fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self(None));
        }
        let is_any = text.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_unspecified());
        if is_any {
            return Err(format!("`{text}` is an address of every host; name the one that coordinates"));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0) => {
                Ok(Self(Some(text.to_owned())))
            }
            _ => Err(format!("`{text}` is not like `10.0.0.1:7401` or `gpu-1:7401`")),
        }
    }

    fn show(&self) -> String {
        self.0.clone().unwrap_or_default()
    }
}

impl ClusterSettings {
    /// Whether this host is to be one of several.
    #[must_use]
    pub fn is_clustered(&self) -> bool {
        self.coordinator.get().is_some() || !self.etcd.items().is_empty()
    }
}

/// A text of one line.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Word(pub String);

impl SettingValue for Word {
    const KIND: &'static str = "a word";

    fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.chars().any(|letter| letter.is_whitespace() || letter.is_control()) {
            return Err("a word holds no spaces".to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

/// What moves bytes between hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transports {
    /// The engine's choice.
    pub choice: TransportChoice,
    text: String,
}

impl Default for Transports {
    fn default() -> Self {
        Self { choice: TransportChoice::Auto, text: "auto".to_owned() }
    }
}

impl SettingValue for Transports {
    const KIND: &'static str = "`auto`, or names of transports with `+` between";

    fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let choice = text.replace('+', ",").parse().map_err(|error| format!("{error}"))?;
        Ok(Self { choice, text: text.to_owned() })
    }

    fn show(&self) -> String {
        self.text.clone()
    }
}

impl PartialOrd for Transports {
    /// Choices have no order of meaning; this one is of their texts.
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.text.partial_cmp(&other.text)
    }
}

impl Serialize for Transports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.show())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_shown() {
        for text in ["", "http://10.0.0.1:2379", "http://a:1 https://[::1]:2"] {
            assert_eq!(Endpoints::read(text).unwrap().show(), text);
        }
        assert_eq!(Addresses::read(" 10.0.0.1:0\n[::]:7400 ").unwrap().show(), "10.0.0.1:0 [::]:7400");
        for text in ["", "10.0.0.1:7401", "[fe80::1]:7401", "gpu-1.example.org:7401"] {
            assert_eq!(OptionalAddress::read(text).unwrap().show(), text);
        }
        let labels = Labels::read("topology.rack=r1 zone=a").unwrap();
        assert_eq!(labels.by_name()["topology.rack"], "r1");
    }

    #[test]
    fn what_is_no_address_is_refused_by_name() {
        assert!(Endpoints::read("10.0.0.1:2379").unwrap_err().contains("`10.0.0.1:2379`"));
        assert!(Addresses::read("10.0.0.1").unwrap_err().contains("10.0.0.1"));
        assert!(Labels::read("rack").unwrap_err().contains("rack"));
        assert!(Word::read("two words").is_err());
        for text in ["10.0.0.1", "gpu-1:", "gpu-1:0", "gpu-1:70000", ":7401"] {
            assert!(OptionalAddress::read(text).unwrap_err().contains(text));
        }
        assert!(OptionalAddress::read("[::]:7401").unwrap_err().contains("every host"));
        assert!(Transports::read("pigeon").unwrap_err().contains("pigeon"));
    }
}
