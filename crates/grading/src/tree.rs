//! What stands in a folder, on disk or in an archive: the same to whoever looks for submissions.
//!
//! [`Place::of`] is where one begins; [`Place::entries`] gives what is in a folder, and [`Place::read`] the content of a file.
//! An archive is a folder. Nothing is lost: what cannot be read is there with the reason.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use unicode_normalization::UnicodeNormalization;

use crate::archive::{Archive, Budget, Content, LINK, Member};
use crate::files::{self, lossy};
use crate::limits;
use crate::tarball::{self, is_tar};

/// A name with what stands there.
#[derive(Clone)]
pub(crate) struct Entry {
    /// In one form of each accented letter.
    pub(crate) name: String,
    pub(crate) place: Place,
    /// What is good to know of it.
    pub(crate) note: Option<String>,
}

/// What stands at a name.
#[derive(Clone)]
pub(crate) enum Place {
    Disk(PathBuf),
    Folder(Rc<Vec<Entry>>),
    Member(Rc<Archive>, Content),
    Bytes(Rc<Vec<u8>>),
    /// It cannot be read, for this reason.
    Problem(String),
}

/// What kind of thing it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Folder,
    Archive,
    File,
    Problem,
}

/// True if a name is that of an archive.
pub(crate) fn is_archive(name: &str) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|e| e.eq_ignore_ascii_case("zip")) || is_tar(name)
}

/// A name without the last extension.
pub(crate) fn stem(name: &str) -> String {
    match tarball::stem(name) {
        Some(stem) => stem.to_owned(),
        None => lossy(Path::new(name).file_stem()),
    }
}

impl Entry {
    /// What is at a path, by its last name.
    pub(crate) fn of(path: &Path) -> Self {
        let name: String = lossy(path.file_name()).nfc().collect();
        Self {
            name: if name.is_empty() {
                "submission".to_owned()
            } else {
                name
            },
            place: Place::Disk(path.to_owned()),
            note: None,
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        match &self.place {
            Place::Folder(_) => Shape::Folder,
            Place::Problem(_) => Shape::Problem,
            Place::Disk(path) => match std::fs::symlink_metadata(path) {
                Ok(meta) if meta.is_dir() => Shape::Folder,
                Ok(meta) if meta.is_file() && is_archive(&self.name) => Shape::Archive,
                Ok(meta) if meta.is_file() => Shape::File,
                _ => Shape::Problem,
            },
            Place::Member(..) | Place::Bytes(_) if is_archive(&self.name) => Shape::Archive,
            Place::Member(..) | Place::Bytes(_) => Shape::File,
        }
    }

    /// True if there may be more below it.
    pub(crate) fn is_folder(&self) -> bool {
        matches!(self.shape(), Shape::Folder | Shape::Archive)
    }

    /// What is in a folder or an archive, in the order of the names.
    ///
    /// # Errors
    /// A folder or an archive that cannot be read, as a whole.
    pub(crate) fn entries(&self, budget: &Budget) -> Result<Vec<Entry>, String> {
        let archive = match (&self.place, self.shape()) {
            (Place::Folder(entries), _) => return Ok(entries.to_vec()),
            (Place::Disk(path), Shape::Folder) => return of_disk(path),
            (Place::Disk(path), _) if is_tar(&self.name) => {
                let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
                let file = std::io::BufReader::new(file);
                return Ok(of_tar(tarball::members(&self.name, file, budget)?));
            }
            (Place::Disk(path), _) => Archive::open(path)?,
            (Place::Problem(problem), _) => return Err(problem.clone()),
            (Place::Member(..) | Place::Bytes(_), _) => {
                let bytes = self.read(limits::MAX_INNER_ARCHIVE_BYTES, budget)?;
                if is_tar(&self.name) {
                    let members = tarball::members(&self.name, bytes.as_slice(), budget)?;
                    return Ok(of_tar(members));
                }
                Archive::of_bytes(bytes)?
            }
        };
        of_zip(Rc::new(archive))
    }

    /// The content of a file, if it has at most `limit` bytes.
    ///
    /// # Errors
    /// What cannot be read, or is larger.
    pub(crate) fn read(&self, limit: u64, budget: &Budget) -> Result<Vec<u8>, String> {
        match &self.place {
            Place::Disk(path) => files::read_bounded(path, limit).map_err(|e| e.to_string()),
            Place::Member(archive, content) => archive.read(content, limit, budget),
            Place::Bytes(bytes) => match u64::try_from(bytes.len()).is_ok_and(|n| n <= limit) {
                true => Ok(bytes.to_vec()),
                false => Err(format!("it is larger than {limit} bytes")),
            },
            Place::Problem(problem) => Err(problem.clone()),
            Place::Folder(_) => Err("it is a folder".to_owned()),
        }
    }

    /// How many bytes a file has, as far as that is told.
    pub(crate) fn size(&self) -> Option<u64> {
        match &self.place {
            Place::Disk(path) => std::fs::symlink_metadata(path).ok().map(|meta| meta.len()),
            Place::Member(_, content) => Some(content.size),
            Place::Bytes(bytes) => u64::try_from(bytes.len()).ok(),
            Place::Folder(_) | Place::Problem(_) => None,
        }
    }

    /// Why it is no file and no folder.
    pub(crate) fn problem(&self) -> Option<String> {
        match (&self.place, self.shape()) {
            (Place::Problem(problem), _) => Some(problem.clone()),
            (Place::Disk(path), Shape::Problem) => Some(match std::fs::symlink_metadata(path) {
                Ok(meta) if meta.file_type().is_symlink() => LINK.to_owned(),
                Ok(_) => "it is no regular file".to_owned(),
                Err(error) => format!("cannot be read: {error}"),
            }),
            _ => None,
        }
    }
}

fn of_disk(folder: &Path) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| e.to_string())? {
        entries.push(Entry::of(&entry.map_err(|e| e.to_string())?.path()));
        // A submission may have fewer; more than these are not even listed.
        if entries.len() > limits::MAX_ARCHIVE_MEMBERS {
            return Err(format!(
                "it has more than {} entries",
                limits::MAX_ARCHIVE_MEMBERS
            ));
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// A folder of an archive while its members come, in the order of the names.
#[derive(Default)]
struct Folder {
    names: BTreeMap<String, Named>,
}

/// What an archive has under one name: it may have several files, and a folder beside them.
#[derive(Default)]
struct Named {
    files: Vec<Place>,
    folder: Option<Folder>,
}

impl Folder {
    /// The folder of a name, made where there is none.
    fn folder(&mut self, name: &str) -> &mut Self {
        let named = self.names.entry(name.to_owned()).or_default();
        named.folder.get_or_insert_default()
    }

    fn put(&mut self, name: &str, place: Place) {
        let named = self.names.entry(name.to_owned()).or_default();
        named.files.push(place);
    }

    fn into_entries(self) -> Vec<Entry> {
        let taken: HashSet<String> = self.names.keys().cloned().collect();
        let mut entries = Vec::new();
        for (name, Named { files, folder }) in self.names {
            let note = match (files.len(), folder.is_some()) {
                (0, _) | (1, false) => None,
                (1, true) => Some("a folder of the archive has the same name".to_owned()),
                _ => Some(format!(
                    "the archive has several files that are called {name}"
                )),
            };
            let mut files = all_named(&name, files, &taken);
            for file in &mut files {
                file.note.clone_from(&note);
            }
            match folder {
                None => entries.extend(files),
                // They become files of it, so that a student with both stays one.
                Some(folder) => {
                    files.extend(folder.into_entries());
                    files.sort_by(|a, b| a.name.cmp(&b.name));
                    entries.push(Entry {
                        name,
                        place: Place::Folder(Rc::new(files)),
                        note: None,
                    });
                }
            }
        }
        entries
    }
}

/// Files of one name: each but the first gets a number that no other name has.
fn all_named(name: &str, files: Vec<Place>, taken: &HashSet<String>) -> Vec<Entry> {
    let (stem, extension) = match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => (stem, format!(".{extension}")),
        _ => (name, String::new()),
    };
    let numbered = (2..).map(|number| format!("{stem} ({number}){extension}"));
    let free = numbered.filter(|name| !taken.contains(name));
    let names = std::iter::once(name.to_owned()).chain(free);
    let entry = |(place, name)| Entry {
        name,
        place,
        note: None,
    };
    files.into_iter().zip(names).map(entry).collect()
}

fn of_zip(archive: Rc<Archive>) -> Result<Vec<Entry>, String> {
    let place = |member: Member| Placed {
        path: member.path,
        is_folder: member.is_folder,
        place: match member.content {
            Ok(content) => Place::Member(Rc::clone(&archive), content),
            Err(problem) => Place::Problem(problem),
        },
        code_page: member.code_page,
    };
    Ok(of_members(archive.members()?.into_iter().map(place)))
}

fn of_tar(members: Vec<tarball::Member>) -> Vec<Entry> {
    let place = |member: tarball::Member| Placed {
        path: member.path,
        is_folder: member.is_folder,
        place: member.content.map_or_else(Place::Problem, Place::Bytes),
        code_page: member.code_page,
    };
    of_members(members.into_iter().map(place))
}

/// A member of an archive, of whatever kind.
struct Placed {
    path: Vec<String>,
    is_folder: bool,
    place: Place,
    /// The code page in which its name was, as a guess.
    code_page: Option<&'static str>,
}

fn of_members(members: impl Iterator<Item = Placed>) -> Vec<Entry> {
    let mut root = Folder::default();
    let mut guesses: HashMap<String, &'static str> = HashMap::new();
    for Placed {
        path,
        is_folder,
        place,
        code_page,
    } in members
    {
        let path: Vec<String> = path.iter().map(|part| part.nfc().collect()).collect();
        let Some((name, folders)) = path.split_last() else {
            continue;
        };
        if let (Some(page), Some(first)) = (code_page, path.first().filter(|p| !p.is_ascii())) {
            guesses.insert(first.clone(), page);
        }
        // Deeper ones are said to be too deep, as those on disk are.
        let mut folder = &mut root;
        for name in folders.iter().take(MAX_DEPTH) {
            folder = folder.folder(name);
        }
        match is_folder {
            true => _ = folder.folder(name),
            false => folder.put(name, place),
        }
    }
    let mut entries = root.into_entries();
    for entry in &mut entries {
        if let Some(page) = guesses.get(&entry.name) {
            entry.note = Some(format!(
                "its name is not UTF-8; read as {page}, which is a guess"
            ));
        }
    }
    entries
}

/// Deepest folder of an archive that is made; what is below stands in it.
const MAX_DEPTH: usize = 4 * limits::MAX_FOLDER_DEPTH;
