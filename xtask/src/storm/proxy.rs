//! A TCP proxy in front of Postgres, so that one seed's connections can be cut or silenced without
//! touching those of others.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Passes bytes until it is told to cut.
pub(super) struct Proxy {
    pub(super) port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
    is_over: Arc<AtomicBool>,
    /// Number of connections so far; silent ones have numbers below `silent`.
    count: Arc<AtomicU64>,
    silent: Arc<AtomicU64>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the listener, which then ends.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        self.cut();
    }
}

impl Proxy {
    /// Listens on its own port until it is dropped.
    pub(super) fn start(target: u16) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let open = Arc::new(Mutex::new(Vec::new()));
        let is_over = Arc::new(AtomicBool::new(false));
        let (count, silent) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (kept, over, counted, hushed) =
            (open.clone(), is_over.clone(), count.clone(), silent.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                // Postgres is down, so the client is disconnected at once.
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else {
                    continue;
                };
                let number = counted.fetch_add(1, Ordering::SeqCst);
                let silence = Silence {
                    number,
                    limit: hushed.clone(),
                };
                drop(pass(&kept, client, server, &silence));
            }
        });
        Ok(Self {
            port,
            open,
            is_over,
            count,
            silent,
        })
    }

    /// Silences all current connections: they stay open but pass nothing any more, as if a firewall
    /// had forgotten them.
    pub(super) fn silence(&self) {
        self.silent
            .store(self.count.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Cuts every connection.
    pub(super) fn cut(&self) {
        for stream in self
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

/// Whether a connection is silent: those numbered below the limit are.
#[derive(Clone)]
struct Silence {
    number: u64,
    limit: Arc<AtomicU64>,
}

impl Silence {
    fn holds(&self) -> bool {
        self.number < self.limit.load(Ordering::SeqCst)
    }
}

/// Connects a client and a server.
fn pass(
    open: &Mutex<Vec<TcpStream>>,
    client: TcpStream,
    server: TcpStream,
    silence: &Silence,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let pairs = [
        (client.try_clone()?, server.try_clone()?),
        (server.try_clone()?, client.try_clone()?),
    ];
    let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
    open.extend([client, server]);
    for (from, to) in pairs {
        let silence = silence.clone();
        thread::Builder::new()
            .stack_size(64 * 1024)
            .spawn(move || drop(copy(from, to, &silence)))?;
    }
    Ok(())
}

/// Drops what it reads while the connection is silent, without reporting anything, not even an end.
fn copy(mut from: TcpStream, mut to: TcpStream, silence: &Silence) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut buffer)?;
        let is_silent = silence.holds();
        if count == 0 {
            return if is_silent {
                Ok(())
            } else {
                to.shutdown(Shutdown::Both)
            };
        }
        if !is_silent {
            to.write_all(buffer.get(..count).unwrap_or_default())?;
        }
    }
}
