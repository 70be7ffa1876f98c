//! Copies without tandem: what the machine gives to anyone.

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context, bail};
use tandem_kv::KvBlock;
use tandem_kv::limits::TARGET_SEGMENT_BYTES;

/// Bytes that the receiving end reads at once.
const READ: usize = 2 << 20;
/// What the receiving end says when the sender has ended: all has been read.
const READ_ALL: u8 = 1;

/// Copies all planes into `to`.
pub fn memory(blocks: &[Arc<KvBlock>], to: &mut [u8]) {
    let mut rest = to;
    for plane in blocks.iter().flat_map(|b| &b.planes) {
        let (here, after) = rest.split_at_mut(plane.data.len());
        here.copy_from_slice(&plane.data);
        rest = after;
    }
}

/// Sends all planes over a new TCP connection, as much with each write as a segment has, and waits
/// until the other end has read them.
///
/// # Errors
/// If the connection fails.
pub fn send(to: SocketAddr, blocks: &[Arc<KvBlock>]) -> anyhow::Result<()> {
    let mut tcp = TcpStream::connect(to)?;
    tcp.set_nodelay(true)?;
    for block in blocks {
        let mut planes = block.planes.iter().map(|p| p.data.as_slice()).peekable();
        while planes.peek().is_some() {
            let mut bytes = 0;
            let mut slices = Vec::new();
            while let Some(plane) = planes.peek()
                && (slices.is_empty() || bytes + plane.len() <= TARGET_SEGMENT_BYTES as usize)
            {
                bytes += plane.len();
                slices.push(IoSlice::new(plane));
                planes.next();
            }
            write_all(&mut tcp, &mut slices)?;
        }
    }
    tcp.shutdown(std::net::Shutdown::Write)?;
    let mut answer = [0];
    tcp.read_exact(&mut answer)
        .context("the plain copy was not read to its end")?;
    match answer {
        [READ_ALL] => Ok(()),
        _ => bail!("the plain copy got a wrong answer"),
    }
}

fn write_all(tcp: &mut TcpStream, slices: &mut [IoSlice<'_>]) -> anyhow::Result<()> {
    let mut rest = slices;
    while !rest.is_empty() {
        let written = tcp.write_vectored(rest)?;
        if written == 0 {
            bail!("the plain copy was not taken");
        }
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

/// Reads what [`send`] sends, one connection after the other, into one buffer. Ends with the process.
pub fn sink(listener: &TcpListener) {
    let mut buffer = vec![1; READ];
    for tcp in listener.incoming().flatten() {
        if let Err(error) = read_all(tcp, &mut buffer) {
            tracing::warn!(%error, "plain copy");
        }
    }
}

fn read_all(mut tcp: TcpStream, buffer: &mut [u8]) -> std::io::Result<()> {
    while tcp.read(buffer)? > 0 {}
    tcp.write_all(&[READ_ALL])
}
