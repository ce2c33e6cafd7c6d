//! Sockets as links want them: listening on both families, and noticing a peer that fell silent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, TcpListener};
use std::time::Duration;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::TcpStream;

use crate::error::Error;

/// Connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;
/// Keepalive probes without an answer that end a connection.
const PROBES: u32 = 2;

/// Listens on each of `wanted`. A `[::]` on a host without IPv6 becomes `0.0.0.0`.
///
/// # Errors
/// [`Error::CannotListen`] for the first of them that refuses.
pub(super) fn listen(wanted: &[SocketAddr]) -> Result<Vec<TcpListener>, Error> {
    let mut listeners = Vec::with_capacity(wanted.len());
    for &address in wanted {
        let twin = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        // Of port 0 each gets a port of its own, so that none stands in the way of the other.
        let has_twin = address.port() != 0 && wanted.contains(&twin);
        let listener = match bind(address, has_twin) {
            Err(error) if is_absent_family(&error) && address.ip().is_unspecified() && !has_twin => {
                bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())), false)
            }
            bound => bound,
        };
        listeners.push(listener.map_err(|error| cannot_listen(address, &error))?);
    }
    Ok(listeners)
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> Error {
    let port = address.port();
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "another socket of this host has that port (`ss -ltnp 'sport = :{port}'` shows whose it is): end its process, or \
             listen on another port"
        ),
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this host has that address: listen on one that `ip address` shows".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "low ports are for processes with CAP_NET_BIND_SERVICE: listen on one from 1024 on".to_owned()
        }
        _ => "listen on another address".to_owned(),
    };
    Error::CannotListen {
        address: address.to_string().into(),
        cause: error.to_string().into(),
        remedy: remedy.into(),
        is_absent: error.kind() == io::ErrorKind::AddrNotAvailable,
    }
}

fn is_absent_family(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

fn bind(address: SocketAddr, is_v6_only: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(is_v6_only)?;
    }
    // A restarted engine takes its port back although old connections are still in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Sets what every connection has: no delay for small frames, and an end after `silence_max` without a sign of the
/// other side, whether bytes are under way (`TCP_USER_TIMEOUT`) or not (keepalive).
pub(super) fn prepare(socket: &TcpStream, silence_max: Duration) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(silence_max))?;
    let step = (silence_max / (PROBES + 1)).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(step).with_interval(step).with_retries(PROBES))
}

/// Where to dial a peer that says it listens at `told` and was last seen at `seen`: an address that means "any" is
/// replaced by the one it was seen at, and that host comes first. A link-local address keeps its scope, or gets that of
/// the interface it was seen by: without one it cannot be dialled.
pub(super) fn candidates(told: &[SocketAddr], seen: Option<SocketAddr>) -> Vec<SocketAddr> {
    let place = seen.map(|seen| canonical(seen, 0));
    let seen = seen.map(|seen| seen.ip().to_canonical());
    let mut found: Vec<SocketAddr> = Vec::with_capacity(told.len());
    for address in told {
        let is_seen = address.ip().is_unspecified() || Some(address.ip()) == seen;
        let address = match place {
            Some(place) if is_seen && scope(address) == 0 => canonical(place, address.port()),
            _ => *address,
        };
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found.sort_by_key(|address| Some(address.ip().to_canonical()) != seen);
    found
}

/// `address` with this port, as IPv4 where it is IPv4 in disguise.
fn canonical(address: SocketAddr, port: u16) -> SocketAddr {
    match (address, address.ip().to_canonical()) {
        (SocketAddr::V6(v6), IpAddr::V6(ip)) => SocketAddrV6::new(ip, port, 0, v6.scope_id()).into(),
        (_, ip) => SocketAddr::new(ip, port),
    }
}

/// The interface that an address is of; 0 for any.
fn scope(address: &SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}

/// Where peers are told that listeners are which are `bound`: what is advertised counts, where anything is.
pub(super) fn told(bound: Vec<SocketAddr>, advertise: &[SocketAddr]) -> Vec<SocketAddr> {
    if advertise.is_empty() {
        return bound;
    }
    let port = bound.first().map_or(0, SocketAddr::port);
    let with_port = |address: &SocketAddr| match address.port() {
        0 => SocketAddr::new(address.ip(), port),
        _ => *address,
    };
    advertise.iter().map(with_port).collect()
}

/// Where peers reach listeners that are `bound`: an address that means "any" is replaced by those of the interfaces that
/// are up, and by the loopback only where there are no others.
pub(super) fn published(bound: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_bound_v4 = |port: u16| bound.contains(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    let mut found: Vec<SocketAddr> = Vec::new();
    for &address in bound {
        if !address.ip().is_unspecified() {
            found.push(address);
            continue;
        }
        let takes = |ip: &IpAddr| match address.ip() {
            IpAddr::V4(_) => ip.is_ipv4(),
            IpAddr::V6(_) => ip.is_ipv6() || !is_bound_v4(address.port()),
        };
        let here: Vec<IpAddr> = interface_addresses().into_iter().filter(takes).collect();
        let mut reachable: Vec<IpAddr> = here.iter().copied().filter(|ip| !ip.is_loopback()).collect();
        if reachable.is_empty() {
            reachable = here;
        }
        found.extend(reachable.into_iter().map(|ip| SocketAddr::new(ip, address.port())));
    }
    let mut seen = std::collections::HashSet::new();
    found.retain(|address| seen.insert(*address));
    if found.is_empty() { bound.to_vec() } else { found }
}

/// Addresses of interfaces that are up, but for those that mean something on one link only.
fn interface_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let address = |interface: InterfaceAddress| {
        let is_up = interface.flags.contains(InterfaceFlags::IFF_UP);
        let address = interface.address.filter(|_| is_up)?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        v4.or_else(v6)
    };
    let is_wide = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    interfaces.filter_map(address).filter(is_wide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_advertised_is_told_in_place_of_what_is_bound() {
        let addresses =
            |texts: &[&str]| -> Vec<SocketAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let bound = addresses(&["[::]:7000", "0.0.0.0:7001"]);
        assert_eq!(told(bound.clone(), &[]), bound);
        let advertised = addresses(&["192.0.2.1:0", "[2001:db8::1]:9"]);
        assert_eq!(told(bound, &advertised), addresses(&["192.0.2.1:7000", "[2001:db8::1]:9"]));
    }

    #[test]
    fn any_becomes_where_the_peer_was_seen_and_that_host_comes_first() {
        let told: Vec<SocketAddr> =
            ["10.0.0.1:7", "[::]:8", "10.0.0.2:9", "0.0.0.0:8"].map(|text| text.parse().unwrap()).to_vec();
        let seen = Some("[::ffff:10.0.0.2]:5".parse().unwrap());
        let found: Vec<String> = candidates(&told, seen).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.2:8", "10.0.0.2:9", "10.0.0.1:7"]);
        assert_eq!(candidates(&told, None), told);
    }

    #[test]
    fn a_link_local_address_is_dialled_by_its_interface() {
        let addresses = |texts: [&str; 3]| texts.map(|text| text.parse::<SocketAddr>().unwrap());
        let seen = Some("[fe80::2%3]:5".parse().unwrap());
        let found = candidates(&addresses(["[::]:8", "[fe80::2]:9", "[fe80::7%4]:10"]), seen);
        assert_eq!(found, addresses(["[fe80::2%3]:8", "[fe80::2%3]:9", "[fe80::7%4]:10"]));
    }

    #[test]
    fn what_is_published_can_be_dialled() {
        let any: [SocketAddr; 2] = ["[::]:0", "0.0.0.0:0"].map(|text| text.parse().unwrap());
        for wanted in [&any[..1], &any[..]] {
            let listeners = listen(wanted).unwrap();
            let bound: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
            let published = published(&bound);
            for bound in &bound {
                assert!(published.iter().any(|address| address.port() == bound.port()), "{bound}");
            }
            for address in published {
                assert!(!address.ip().is_unspecified(), "{address}");
                assert!(std::net::TcpStream::connect(address).is_ok(), "{address}");
            }
        }
        let exact = ["127.0.0.1:7", "[::1]:8"].map(|text| text.parse().unwrap());
        assert_eq!(super::published(&exact), exact);
    }

    #[test]
    fn an_address_that_cannot_be_listened_on_is_named_with_the_cause_and_what_helps() {
        let taken = listen(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let address = taken[0].local_addr().unwrap();
        let refused = listen(&[address]).unwrap_err();
        assert!(matches!(refused, Error::CannotListen { is_absent: false, .. }), "{refused:?}");
        let refused = refused.to_string();
        let wanted = format!("cannot listen on {address}: Address already in use");
        assert!(refused.starts_with(&wanted), "{refused}");
        assert!(refused.contains(&format!("`ss -ltnp 'sport = :{}'`", address.port())), "{refused}");
        assert!(refused.ends_with("or listen on another port"), "{refused}");
        // TEST-NET-1 (RFC 5737): no host has it.
        let absent = listen(&["192.0.2.1:0".parse().unwrap()]).unwrap_err();
        assert!(matches!(absent, Error::CannotListen { is_absent: true, .. }), "{absent:?}");
        let absent = absent.to_string();
        assert!(absent.contains("192.0.2.1:0") && absent.contains("`ip address`"), "{absent}");
    }

    #[test]
    fn one_port_serves_both_families_by_one_socket_or_by_two() {
        let one = listen(&["[::]:0".parse().unwrap()]).unwrap();
        let port = one[0].local_addr().unwrap().port();
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        drop(one);
        let both = [format!("[::]:{port}"), format!("0.0.0.0:{port}")].map(|text| text.parse().unwrap());
        let two = listen(&both).unwrap();
        assert_eq!(two.len(), 2);
    }
}
