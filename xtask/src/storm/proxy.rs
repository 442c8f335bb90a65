//! A TCP proxy in front of Postgres, so that a seed's connections can be cut without touching its neighbours'.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Passes bytes until it is told to cut.
pub(super) struct Proxy {
    pub(super) port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
    is_over: Arc<AtomicBool>,
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
    /// Listens on a port of its own until it is dropped.
    pub(super) fn start(target: u16) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let open = Arc::new(Mutex::new(Vec::new()));
        let is_over = Arc::new(AtomicBool::new(false));
        let (kept, over) = (open.clone(), is_over.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                // Postgres is away: so is the client, at once.
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                drop(pass(&kept, client, server));
            }
        });
        Ok(Self { port, open, is_over })
    }

    /// Cuts every connection.
    pub(super) fn cut(&self) {
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

fn pass(open: &Mutex<Vec<TcpStream>>, client: TcpStream, server: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let pairs = [(client.try_clone()?, server.try_clone()?), (server.try_clone()?, client.try_clone()?)];
    let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
    open.extend([client, server]);
    for (mut from, mut to) in pairs {
        thread::Builder::new().stack_size(64 * 1024).spawn(move || {
            drop(io::copy(&mut from, &mut to));
            drop(to.shutdown(Shutdown::Both));
        })?;
    }
    Ok(())
}
