//! What the machine says of itself: name, address, memory.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

/// The host's name, fit for a broker's name: what is illegal in a topic's name becomes a hyphen.
#[must_use]
pub fn name() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let legal = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' };
    let name: String = text.trim().chars().take(100).map(legal).collect();
    if name.is_empty() { "DEFAULT_BROKER".into() } else { name }
}

/// The first address that other machines could use; loopback when there is none.
#[must_use]
pub fn first_usable_address() -> IpAddr {
    routed_address()
        .or_else(|| std::fs::read_to_string("/proc/net/fib_trie").ok().and_then(|text| local_address(&text)))
        .unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Memory of the machine, in bytes.
#[must_use]
pub fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(2 << 20) << 10
}

/// The address that packets to the outside would carry. Connecting a datagram socket sends nothing.
fn routed_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0))).ok()?;
    socket.connect(SocketAddr::from(([192, 0, 2, 1], 9))).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// The first address of this host in the kernel's table of routes that is not loopback: the line before `/32 host LOCAL`.
fn local_address(table: &str) -> Option<IpAddr> {
    let mut last = None;
    for line in table.lines() {
        if let Some(text) = line.trim().strip_prefix("|-- ") {
            last = text.parse::<Ipv4Addr>().ok();
        } else if line.contains("/32 host LOCAL")
            && let Some(ip) = last.filter(|ip| !ip.is_loopback())
        {
            return Some(ip.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernel_s_routes() {
        let table = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 172.17.0.255\n        /32 link BROADCAST\n     |-- 172.17.0.2\n        /32 host LOCAL\n";
        assert_eq!(local_address(table), Some(Ipv4Addr::new(172, 17, 0, 2).into()));
        assert_eq!(local_address("     |-- 127.0.0.1\n        /32 host LOCAL\n"), None);
    }

    #[test]
    fn this_host_has_a_name_an_address_and_memory() {
        assert!(message::names::check_topic(name().as_bytes()).is_ok());
        assert!(!first_usable_address().is_unspecified());
        assert!(memory_bytes() > 64 << 20);
    }
}
