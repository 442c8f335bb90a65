//! Hundreds of ways to have the service call itself or its neighbours: none arrives.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// A resolver that says at each question what comes next, and the last thing for ever.
#[derive(Default)]
struct Script {
    answers: BTreeMap<String, Vec<Vec<IpAddr>>>,
    asked: AtomicUsize,
}

impl Resolve for Script {
    fn resolve(&self, name: Name) -> Resolving {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let answers = self.answers.get(name.as_str());
        let answer = answers.and_then(|all| all.get(asked).or(all.last()).cloned());
        Box::pin(async move {
            let found = answer.unwrap_or_default().into_iter();
            let found: Vec<SocketAddr> = found.map(|ip| SocketAddr::new(ip, 0)).collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// A server that counts whoever connects, and sends them on.
async fn trap(redirects_to: &str) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let reached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reached);
    let answer =
        format!("HTTP/1.1 307 On\r\nlocation: {redirects_to}\r\ncontent-length: 0\r\n\r\n");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (port, reached)
}

/// Spellings of addresses that nobody but us can reach.
const SPELLINGS: &str = "
localhost localhost. LOCALHOST 127.0.0.1 127.0.0.1. 127.1 127.0.1 127.255.255.254 127.8.8.8 0 0.0.0.0 0.0.0.1
0x7f000001 0x7f.1 0x7f.0.0.1 0177.0.0.1 0177.1 017700000001 2130706433 00000000000000000000177.1
0x0000000000000000007f.0.0.1 %31%32%37.0.0.1 １２７.0.0.1 ①②⑦.⓪.⓪.① 127。0。0。1 10.0.0.1 10.255.255.255 0xa.0.0.1
012.0.0.1 167772161 172.16.0.1 172.31.255.255 0xac100001 192.168.0.1 192.168.255.255 0xc0a80001 3232235521
169.254.169.254 0xa9fea9fe 2852039166 0251.0376.0251.0376 169.254.170.2 169.254.0.1 100.64.0.1 100.127.255.255
192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1
239.255.255.255 240.0.0.1 255.255.255.255 4294967295 192.31.196.1 192.52.193.1 192.175.48.1 [::] [::1]
[0:0:0:0:0:0:0:1] [0000::0001] [::ffff:127.0.0.1] [::ffff:7f00:1] [::ffff:10.0.0.1] [::ffff:169.254.169.254]
[::ffff:a9fe:a9fe] [::ffff:8.8.8.8] [::127.0.0.1] [::7f00:1] [::a9fe:a9fe] [64:ff9b::7f00:1]
[64:ff9b::169.254.169.254] [64:ff9b:1::a00:1] [2002:7f00:1::] [2002:a9fe:a9fe::1] [2002:c0a8:1::1] [2001::1]
[2001:0:7f00:1::] [2001:db8::1] [3fff::1] [fc00::1] [fd00::1] [fd00:ec2::254] [fd00:ec2::23] [fe80::1]
[febf::1] [fec0::1] [ff02::1] [ff05::1:3] [100::1] [5f00::1] [4000::1] [2001:10::1] [2001:20::1]
[2620:4f:8000::1] [::ffff:0:127.0.0.1] [1::1]
";

/// Those, and more of loopback and of the private networks.
fn hosts() -> Vec<String> {
    let mut hosts: Vec<String> = SPELLINGS.split_whitespace().map(str::to_owned).collect();
    for octet in (1..=255_u8).step_by(23) {
        hosts.push(format!("127.{octet}.{octet}.{octet}"));
        hosts.push(format!("10.{octet}.1.{octet}"));
        hosts.push(format!("0x7f.{octet}.0x{octet:x}.1"));
        hosts.push(format!("[::ffff:127.{octet}.0.1]"));
        hosts.push(format!("[fd{octet:02x}::1]"));
        hosts.push(format!("{}", 0x7f00_0000_u32 + u32::from(octet)));
    }
    hosts
}

#[tokio::test]
async fn no_target_inside_is_reached() {
    let (port, reached) = trap("http://127.0.0.1/").await;
    let resolver: Arc<dyn Resolve> = Arc::new(System);
    let outgoing = Outgoing::new(&[], &resolver).unwrap();
    let mut targets = Vec::new();
    for host in hosts() {
        // Plain, at its own port, with TLS.
        targets.push(format!("http://{host}:{port}/"));
        targets.push(format!("https://{host}/"));
        targets.push(format!("https://{host}:{port}/"));
    }
    for odd in [
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:70/_x",
        "data:text/plain,x",
        "//127.0.0.1/",
        "127.0.0.1",
        "http:127.0.0.1",
        "https:\\\\127.0.0.1\\",
        "https://user:password@example.com/",
        "https://127.0.0.1@example.com/",
        "https://example.com@127.0.0.1/",
        "https://example.com#@127.0.0.1:1/",
        "javascript:alert(1)",
        "unix:///run/docker.sock",
        "https://",
        "",
        " ",
        "https://example.com:22/",
        "http://example.com/",
        "https://example.com:25/",
        "https://exa mple.com/",
        "https://[::1",
        "https://[fe80::1%25eth0]/",
    ] {
        targets.push(odd.to_owned());
    }
    assert!(targets.len() >= 300, "{}", targets.len());
    for target in &targets {
        // A part after # is not sent, and the rest of that one is public.
        if target.contains('#') {
            continue;
        }
        let answer = outgoing
            .post(target, HeaderMap::new(), "{}".to_owned())
            .await;
        assert!(answer.is_err(), "{target}: {answer:?}");
    }
    assert_eq!(reached.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_name_stands_for_what_it_is_looked_up_as_and_for_nothing_later() {
    let (port, reached) = trap("http://127.0.0.1/").await;
    let (public, own): (IpAddr, IpAddr) =
        ("203.0.114.7".parse().unwrap(), "127.0.0.1".parse().unwrap());
    let metadata: IpAddr = "169.254.169.254".parse().unwrap();
    let names = [
        ("private.test", vec![vec![own]]),
        ("metadata.test", vec![vec![metadata]]),
        // Public when it is checked, private when it is called; and the other way round.
        ("rebinds.test", vec![vec![public], vec![own]]),
        ("rebinds-back.test", vec![vec![own], vec![public]]),
        (
            "mapped.test",
            vec![vec!["::ffff:127.0.0.1".parse().unwrap()]],
        ),
        ("nothing.test", vec![vec![]]),
    ];
    for (name, answers) in names {
        let script = Script {
            answers: [(name.to_owned(), answers)].into(),
            asked: AtomicUsize::new(usize::from(name == "rebinds.test")),
        };
        let resolver: Arc<dyn Resolve> = Arc::new(script);
        let outgoing = Outgoing::new(&[], &resolver).unwrap();
        for target in [
            format!("https://{name}/"),
            format!("https://{name}:{port}/"),
            format!("http://{name}:{port}/"),
        ] {
            let answer = outgoing
                .post(&target, HeaderMap::new(), String::new())
                .await;
            assert!(answer.is_err(), "{target}: {answer:?}");
        }
    }
    assert_eq!(reached.load(Ordering::Relaxed), 0);
}

/// An operator's own network may be called; a redirect from there to elsewhere is an answer, and not followed.
#[tokio::test]
async fn what_is_allowed_is_called_and_leads_nowhere_else() {
    let (inside, reached) = trap("http://127.0.0.1/").await;
    let (port, called) = trap(&format!("http://127.0.0.1:{inside}/")).await;
    let resolver: Arc<dyn Resolve> = Arc::new(System);
    let outgoing = Outgoing::new(&["127.0.0.1/32".parse().unwrap()], &resolver).unwrap();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let target = format!("http://{host}:{port}/");
        let answer = outgoing
            .post(&target, HeaderMap::new(), "{}".to_owned())
            .await;
        assert_eq!(answer.map(|answer| answer.status), Ok(307), "{target}");
    }
    let other = format!("http://127.0.0.2:{port}/");
    assert!(
        outgoing
            .post(&other, HeaderMap::new(), String::new())
            .await
            .is_err()
    );
    assert_eq!(
        (
            called.load(Ordering::Relaxed),
            reached.load(Ordering::Relaxed)
        ),
        (3, 0)
    );
}

#[test]
fn public_addresses_are_public() {
    for ip in [
        "8.8.8.8",
        "1.1.1.1",
        "52.94.236.248",
        "100.63.255.255",
        "100.128.0.1",
        "172.32.0.1",
        "192.0.1.1",
        "2606:4700::1111",
        "2a00:1450::1",
    ] {
        assert!(address::is_public(ip.parse().unwrap()), "{ip}");
    }
}
