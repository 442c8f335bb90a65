//! Which addresses are public. Everything that IANA lists as not globally reachable is not, nor is an IPv6 address that
//! has an IPv4 address in it, whatever that one is (RFC 6890 and its registries).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// First octets and prefix lengths of IPv4 networks that are not public.
const V4: [([u8; 4], u32); 18] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 31, 196, 0], 24),
    ([192, 52, 193, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([192, 175, 48, 0], 24),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// The only IPv6 network that is in use for public addresses, and what is not public in it.
const V6_GLOBAL: ([u16; 8], u32) = ([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
const V6: [([u16; 8], u32); 5] = [
    // Protocol assignments, Teredo among them.
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
    // Documentation.
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
    // 6to4: an IPv4 address behind it.
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
    // AS112.
    ([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48),
];

/// Whether an address can be reached by everybody, so that nobody gains by having us call it.
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !V4.iter().any(|(net, length)| {
            is_within(
                u32::from(ip).into(),
                u32::from(Ipv4Addr::from(*net)).into(),
                96 + length,
            )
        }),
        IpAddr::V6(ip) => {
            let is_in = |(net, length): &([u16; 8], u32)| {
                is_within(u128::from(ip), u128::from(Ipv6Addr::from(*net)), *length)
            };
            is_in(&V6_GLOBAL) && !V6.iter().any(is_in)
        }
    }
}

/// Whether two addresses agree in so many first bits of 128.
fn is_within(ip: u128, net: u128, length: u32) -> bool {
    (ip ^ net).checked_shr(128 - length).unwrap_or(0) == 0
}

/// Whether an address is in one of the networks; one that is mapped into IPv6 is looked at as what it is.
pub fn is_in(nets: &[IpNet], ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    nets.iter().any(|net| net.contains(&ip))
}
