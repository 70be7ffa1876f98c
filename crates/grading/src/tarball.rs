//! Archives of tar, packed with gzip or not. They have no directory, so they are unpacked in memory, within limits.

use std::io::{self, Read};
use std::rc::Rc;

use flate2::read::MultiGzDecoder;
use tar::{Archive, EntryType};

use crate::archive::{Budget, LINK, parts};
use crate::code_page;
use crate::limits;

/// The content of a file, or why it cannot be read.
type Bytes = Result<Rc<Vec<u8>>, String>;

/// One entry.
pub(crate) struct Member {
    /// Parts of its name.
    pub(crate) path: Vec<String>,
    pub(crate) is_folder: bool,
    pub(crate) content: Bytes,
    /// The code page in which its name was, as a guess.
    pub(crate) code_page: Option<&'static str>,
}

/// True if a name is that of such an archive.
pub(crate) fn is_tar(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".tar", ".tar.gz", ".tgz"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// All members in their order.
///
/// # Errors
/// If it is none, is cut, or has more than the limits allow.
pub(crate) fn members(
    name: &str,
    bytes: impl Read,
    budget: &Budget,
) -> Result<Vec<Member>, String> {
    match name.to_ascii_lowercase().ends_with(".tar") {
        true => unpacked(bytes, budget),
        false => unpacked(MultiGzDecoder::new(bytes), budget),
    }
}

/// Counts the zeros at the end: an archive that is whole ends with blocks of them.
struct Tail<R> {
    inner: R,
    zeros: usize,
}

impl<R: Read> Read for Tail<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buf)?;
        let zeros = buf[..count]
            .iter()
            .rev()
            .take_while(|byte| **byte == 0)
            .count();
        self.zeros = zeros + if zeros == count { self.zeros } else { 0 };
        Ok(count)
    }
}

/// Bytes of a block.
const BLOCK: usize = 512;

fn unpacked(bytes: impl Read, budget: &Budget) -> Result<Vec<Member>, String> {
    let broken = |why: &dyn std::fmt::Display| {
        let most = limits::MAX_TAR_BYTES;
        format!("it is cut, damaged, or unpacks to more than {most} bytes: {why}")
    };
    // Headers and padding count, too: they are what comes out.
    let inner = bytes.take(limits::MAX_TAR_BYTES);
    let mut archive = Archive::new(Tail { inner, zeros: 0 });
    let mut raw: Vec<(Vec<u8>, bool, Bytes)> = Vec::new();
    for entry in archive.entries().map_err(|error| broken(&error))? {
        let mut entry = entry.map_err(|error| broken(&error))?;
        let most = limits::MAX_ARCHIVE_MEMBERS;
        if raw.len() == most {
            return Err(format!("it has more than {most} files"));
        }
        let name = entry.path_bytes().into_owned();
        let kind = entry.header().entry_type();
        let content = match kind {
            EntryType::Regular | EntryType::Continuous => content(&mut entry, budget),
            EntryType::Directory => Ok(Rc::default()),
            EntryType::Symlink | EntryType::Link => Err(LINK.to_owned()),
            // What tells of others, such as a comment of `git archive`.
            EntryType::XGlobalHeader => continue,
            _ => Err("it is no regular file".to_owned()),
        };
        raw.push((name, kind == EntryType::Directory, content));
    }
    let mut rest = archive.into_inner();
    // The end of gzip has a sum of all.
    let count = io::copy(&mut rest, &mut io::sink()).map_err(|error| broken(&error))?;
    budget.charge(count);
    if rest.zeros < BLOCK {
        return Err(broken(&"it has no end"));
    }
    let names: Vec<&[u8]> = raw.iter().map(|(name, ..)| name.as_slice()).collect();
    let (names, page) = code_page::read(&names);
    let member =
        |((name, is_guess), (_, is_folder, content)): ((String, bool), (_, bool, Bytes))| {
            let (path, leads_out) = parts(&name);
            Member {
                path,
                is_folder,
                content: match leads_out {
                    true => Err(format!("its name, {name:?}, leads out of the archive")),
                    false => content,
                },
                code_page: page.filter(|_| is_guess),
            }
        };
    Ok(names.into_iter().zip(raw).map(member).collect())
}

fn content(entry: &mut impl Read, budget: &Budget) -> Bytes {
    let limit = limits::MAX_INNER_ARCHIVE_BYTES;
    let bytes = budget.read(entry, limit, &|error| format!("it is damaged ({error})"))?;
    Ok(Rc::new(bytes))
}

/// The name of one without the end that says what it is.
pub(crate) fn stem(name: &str) -> Option<&str> {
    const END: &str = ".tar.gz";
    let at = name.len().checked_sub(END.len())?;
    let end = name.get(at..)?;
    end.eq_ignore_ascii_case(END).then(|| &name[..at])
}
