//! Zip archives: read where they are, member by member, and never unpacked to a disk.
//!
//! [`Archive::open`] or [`Archive::of_bytes`], then [`Archive::members`] lists it, and [`Archive::read`] gives the content of
//! one. Names, sizes and kinds are what somebody wrote there: what counts is what comes out, within limits.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::DeflateDecoder;
use rawzip::extra_fields::ExtraFieldId;
use rawzip::{
    CompressionMethod, FileReader, RECOMMENDED_BUFFER_SIZE, ReaderAt, ZipArchive,
    ZipArchiveEntryWayfinder, ZipFileHeaderRecord, ZipLocator,
};

use crate::code_page;
use crate::limits;

/// Why a link is not read.
pub(crate) const LINK: &str = "it is a symbolic link; links are not followed";

/// An archive, on disk or out of another one.
pub(crate) struct Archive {
    zip: ZipArchive<Source>,
}

enum Source {
    File(FileReader),
    Bytes(Vec<u8>),
}

impl ReaderAt for Source {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read_at(buf, offset),
            Self::Bytes(bytes) => bytes.as_slice().read_at(buf, offset),
        }
    }
}

/// What may still come out of all archives that are read together.
pub(crate) struct Budget {
    bytes: Cell<u64>,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Cell::new(limits::MAX_ARCHIVE_BYTES),
        }
    }

    /// Counts what came out and was read by nobody.
    pub(crate) fn charge(&self, count: u64) {
        self.bytes.set(self.bytes.get().saturating_sub(count));
    }

    /// Reads what has at most `limit` bytes; what was read counts, also where it is too much.
    ///
    /// # Errors
    /// What is broken, or larger.
    pub(crate) fn read(
        &self,
        from: &mut dyn Read,
        limit: u64,
        broken: &dyn Fn(&io::Error) -> String,
    ) -> Result<Vec<u8>, String> {
        // One byte more than it may have tells that it has more.
        let most = limit.saturating_add(1).min(self.bytes.get());
        let mut bytes = Vec::new();
        let read = from.take(most).read_to_end(&mut bytes);
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.bytes.set(self.bytes.get().saturating_sub(count));
        read.map_err(|error| broken(&error))?;
        match count > limit {
            true => Err(format!("it is larger than {limit} bytes")),
            false => Ok(bytes),
        }
    }

    /// Why nothing more is read, if so.
    pub(crate) fn exceeded(&self) -> Option<String> {
        let most = limits::MAX_ARCHIVE_BYTES;
        (self.bytes.get() == 0).then(|| format!("it unpacks to more than {most} bytes"))
    }
}

/// One entry of an archive.
pub(crate) struct Member {
    /// Parts of its name.
    pub(crate) path: Vec<String>,
    pub(crate) is_folder: bool,
    /// How to read it, or why it cannot be.
    pub(crate) content: Result<Content, String>,
    /// The code page in which its name was, as a guess.
    pub(crate) code_page: Option<&'static str>,
}

/// Where the content of a member is.
#[derive(Clone, Copy)]
pub(crate) struct Content {
    at: ZipArchiveEntryWayfinder,
    is_stored: bool,
    /// What the archive says of its size.
    pub(crate) size: u64,
}

fn unreadable(error: impl std::fmt::Display) -> String {
    format!("it is no archive that can be read: {error}")
}

impl Archive {
    /// Opens a file.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|e| e.to_string())?;
        let size = file.metadata().map_err(|e| e.to_string())?.len();
        Self::locate(Source::File(FileReader::from(file)), size)
    }

    /// The same of bytes that came out of another archive.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn of_bytes(bytes: Vec<u8>) -> Result<Self, String> {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Self::locate(Source::Bytes(bytes), size)
    }

    fn locate(source: Source, size: u64) -> Result<Self, String> {
        let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
        let found = ZipLocator::new().locate_in_reader(source, &mut buffer, size);
        let zip = found.map_err(|(_, error)| unreadable(error))?;
        Ok(Self { zip })
    }

    /// All members in their order.
    ///
    /// # Errors
    /// A directory that cannot be read, or more in it than the limits allow.
    pub(crate) fn members(&self) -> Result<Vec<Member>, String> {
        let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
        let mut entries = self.zip.entries(&mut buffer);
        let mut raw: Vec<(Vec<u8>, bool, Result<Content, String>)> = Vec::new();
        while let Some(entry) = entries.next_entry().map_err(unreadable)? {
            let most = limits::MAX_ARCHIVE_MEMBERS;
            if raw.len() == most {
                return Err(format!("it has more than {most} files"));
            }
            raw.push((name(&entry), entry.is_dir(), content(&entry)));
        }
        let names: Vec<&[u8]> = raw.iter().map(|(name, ..)| name.as_slice()).collect();
        let (names, page) = code_page::read(&names);
        let members = names.into_iter().zip(raw);
        let member =
            |((name, is_guess), (_, is_folder, content)): ((String, bool), (_, bool, _))| {
                let (path, leads_out) = parts(&name);
                Member {
                    path,
                    is_folder: is_folder || name.ends_with('\\'),
                    content: match leads_out {
                        true => Err(format!("its name, {name:?}, leads out of the archive")),
                        false => content,
                    },
                    code_page: page.filter(|_| is_guess),
                }
            };
        Ok(members.map(member).collect())
    }

    /// The content of a member, if it has at most `limit` bytes.
    ///
    /// # Errors
    /// What is broken, or larger.
    pub(crate) fn read(
        &self,
        content: &Content,
        limit: u64,
        budget: &Budget,
    ) -> Result<Vec<u8>, String> {
        if content.size > limit {
            return Err(format!("it is larger than {limit} bytes"));
        }
        let broken = |error: &dyn std::fmt::Display| format!("it is damaged ({error})");
        let entry = self.zip.get_entry(content.at).map_err(|e| broken(&e))?;
        let packed = entry.reader();
        let unpacked: Box<dyn Read + '_> = match content.is_stored {
            true => Box::new(packed),
            false => Box::new(DeflateDecoder::new(packed)),
        };
        let mut verified = entry.verifying_reader(unpacked);
        budget.read(&mut verified, limit, &|error| broken(error))
    }
}

/// The bytes of a name: those that a program adds in UTF-8, where they belong to the name that is there.
fn name(entry: &ZipFileHeaderRecord<'_>) -> Vec<u8> {
    const VERSION: u8 = 1;
    let path = entry.file_path();
    let own = path.as_bytes();
    let fields = entry.extra_fields();
    let unicode = fields
        .filter(|(id, _)| *id == ExtraFieldId::INFO_ZIP_UNICODE_PATH)
        .find_map(|(_, data)| {
            let (head, text) = data.split_at_checked(5)?;
            let (version, crc) = head.split_first()?;
            let is_of_own = *crc == rawzip::crc32(own).to_le_bytes();
            (*version == VERSION && is_of_own).then_some(text)
        });
    unicode.unwrap_or(own).to_vec()
}

/// How a member is read, or why it cannot be.
fn content(entry: &ZipFileHeaderRecord<'_>) -> Result<Content, String> {
    if entry.mode().is_symlink() {
        return Err(LINK.to_owned());
    }
    if entry.flags().is_encrypted() {
        return Err("it is encrypted; ask for it without a password".to_owned());
    }
    let method = entry.compression_method();
    let is_stored = method == CompressionMethod::STORE;
    if !is_stored && method != CompressionMethod::DEFLATE {
        let name = method.name().unwrap_or("an unknown method");
        return Err(format!("it is packed with {name}; ask for a plain zip"));
    }
    Ok(Content {
        at: entry.wayfinder(),
        is_stored,
        size: entry.uncompressed_size_hint(),
    })
}

/// The parts of a name, and whether it leads out of its folder: then those are left out that do.
pub(crate) fn parts(name: &str) -> (Vec<String>, bool) {
    let is_drive = |part: &str| part.len() == 2 && part.ends_with(':');
    let all = || {
        name.split(['/', '\\'])
            .filter(|part| !part.is_empty() && *part != ".")
    };
    let is_out = |part: &str| part == ".." || is_drive(part);
    let leads_out = name.starts_with(['/', '\\']) || all().any(is_out);
    let inside = all().filter(|part| !is_out(part));
    (inside.map(str::to_owned).collect(), leads_out)
}
