//! Sockets: exclusive listeners, and what a core asks of a connection besides sending and receiving.
//!
//! A port has one listener: no SO_REUSEPORT, so that a port which another process listens on is an error.

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

/// Connections that may wait to be accepted; the kernel cuts it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Binds and listens. SO_REUSEADDR lets a restart have a port whose old connections linger; a port that is listened on is
/// an error (`AddrInUse`), as is an address that is not ours.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &addr)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// An accepted socket as the ring wants it (blocking mode; small writes leave at once), and its peer. Errors: the peer is
/// gone already.
pub fn accepted(socket: OwnedFd) -> io::Result<(TcpStream, SocketAddr)> {
    let stream = TcpStream::from(socket);
    let peer = stream.peer_addr()?;
    stream.set_nodelay(true)?;
    Ok((stream, peer))
}

/// Ends both directions: what the ring has under way on it ends too.
pub fn abort(stream: &TcpStream) {
    // Fails when the peer has ended it already, which is as good.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Ends our sending, after what was sent.
pub fn end_sending(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Write);
}

/// Bytes that the peer has acknowledged since the connection began: whether a reader is alive.
pub fn acknowledged_bytes(stream: &TcpStream) -> io::Result<u64> {
    /// Place of `tcpi_bytes_acked` in the kernel's `tcp_info` (since Linux 4.1).
    const BYTES_ACKED: usize = 120;
    let mut info = [0u8; 256];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, and the number written to `len`; both live over the call.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let field = info[..len as usize].get(BYTES_ACKED..BYTES_ACKED + 8).ok_or(io::ErrorKind::Unsupported)?;
    Ok(u64::from_ne_bytes(field.try_into().expect("8 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_taken_port_is_an_error() {
        let first = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let error = listen(first.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_port_can_be_had_again_at_once() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr().unwrap();
        let client = TcpStream::connect(addr).unwrap();
        let (server, _) = listener.accept().unwrap();
        drop((server, listener));
        drop(client);
        listen(addr).unwrap();
    }

    #[test]
    fn acknowledged_bytes_follow_the_reader() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, peer) = accepted(listener.accept().unwrap().0.into()).unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        let before = acknowledged_bytes(&server).unwrap();
        server.write_all(&[1; 1000]).unwrap();
        client.read_exact(&mut [0; 1000]).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while acknowledged_bytes(&server).unwrap() < before + 1000 {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        abort(&server);
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    }
}
