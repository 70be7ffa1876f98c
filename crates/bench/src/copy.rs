//! Copies without tandem: what the machine gives to anyone.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use tandem_handoff::KvBlock;
use tandem_handoff::limits::TARGET_SEGMENT_BYTES;

use super::engine::Cache;

/// Bytes that the receiving end reads at once where it throws them away.
const READ: usize = 2 << 20;
/// What the receiving end says when the sender has ended: all has been read.
const READ_ALL: u8 = 1;

/// What becomes of the bytes at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fate {
    /// They are put into its planes, as a handoff does: a copy.
    Kept = 1,
    /// They are read into one buffer again and again: what the loopback carries.
    ThrownAway = 2,
}

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
pub fn send(to: SocketAddr, blocks: &[Arc<KvBlock>], fate: Fate) -> anyhow::Result<()> {
    let mut tcp = TcpStream::connect(to)?;
    tcp.set_nodelay(true)?;
    tcp.write_all(&[fate as u8])?;
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

/// Reads what [`send`] sends, one connection after the other; `tokens` are those of all planes, in
/// blocks of `step`. Ends with the process.
pub fn sink(listener: &TcpListener, cache: &Mutex<Cache>, tokens: u32, step: u32) {
    let mut buffer = vec![1; READ];
    for mut tcp in listener.incoming().flatten() {
        let read = fate(&mut tcp).and_then(|fate| match fate {
            Fate::ThrownAway => throw_away(&mut tcp, &mut buffer),
            Fate::Kept => {
                let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
                keep(&mut tcp, &mut cache, tokens, step)
            }
        });
        if let Err(error) = read.and_then(|()| tcp.write_all(&[READ_ALL])) {
            tracing::warn!(%error, "plain copy");
        }
    }
}

fn fate(tcp: &mut TcpStream) -> std::io::Result<Fate> {
    let mut fate = [0];
    tcp.read_exact(&mut fate)?;
    let all = [Fate::Kept, Fate::ThrownAway];
    let found = all.into_iter().find(|f| *f as u8 == fate[0]);
    found.ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

fn throw_away(tcp: &mut TcpStream, buffer: &mut [u8]) -> std::io::Result<()> {
    while tcp.read(buffer)? > 0 {}
    Ok(())
}

fn keep(tcp: &mut TcpStream, cache: &mut Cache, tokens: u32, step: u32) -> std::io::Result<()> {
    for start in (0..tokens).step_by(step as usize) {
        let block = cache.rows(start..tokens.min(start + step));
        let mut slices: Vec<IoSliceMut<'_>> = block.map(IoSliceMut::new).collect();
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            let read = tcp.read_vectored(rest)?;
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            IoSliceMut::advance_slices(&mut rest, read);
        }
    }
    Ok(())
}
