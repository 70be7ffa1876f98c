//! Courses that come as zip archives.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use tandem_grading::{Original, Submission, limits, load_submissions, read_originals};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::course::write;
use crate::text;

fn archive(path: &Path, members: &[(&str, &[u8])]) -> PathBuf {
    let mut zip = ZipWriter::new(File::create(path).unwrap());
    for (name, content) in members {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap();
    path.to_owned()
}

fn names(list: &[Submission]) -> Vec<(&str, usize)> {
    list.iter()
        .map(|s| (s.name.as_str(), s.files.len()))
        .collect()
}

#[test]
fn an_archive_is_a_course_whatever_folder_it_is_in() {
    let dir = tempfile::tempdir().unwrap();
    let members: [(&str, &[u8]); 4] = [
        ("ann/Main.java", b"class Main {}"),
        ("ann/Help.java", b"class Help {}"),
        ("bob.py", b"x = 1"),
        ("__MACOSX/._bob.py", b"junk"),
    ];
    let flat = archive(&dir.path().join("flat.zip"), &members);
    let expected = [("ann", 2), ("bob", 1)];
    assert_eq!(names(&load_submissions(&[flat]).unwrap()), expected);
    let deep: Vec<(String, &[u8])> = members
        .iter()
        .map(|(name, content)| (format!("export/course/{name}"), *content))
        .collect();
    let deep: Vec<(&str, &[u8])> = deep.iter().map(|(n, c)| (n.as_str(), *c)).collect();
    let deep = archive(&dir.path().join("Deep.ZIP"), &deep);
    assert_eq!(names(&load_submissions(&[deep]).unwrap()), expected);
}

#[test]
fn an_archive_in_it_is_a_work_and_a_bad_one_is_its_owners_problem_alone() {
    let dir = tempfile::tempdir().unwrap();
    let inner = archive(
        &dir.path().join("i.zip"),
        &[("a.py", b"x = 1"), ("b.py", b"y = 2")],
    );
    let slip = archive(&dir.path().join("s.zip"), &[("../../evil.py", b"x = 1")]);
    let bomb = archive(
        &dir.path().join("b.zip"),
        &[
            ("a.txt", &vec![b'x'; 40 << 20]),
            ("b.txt", &vec![b'x'; 40 << 20]),
        ],
    );
    let read = |path: &Path| std::fs::read(path).unwrap();
    let outer = archive(
        &dir.path().join("outer.zip"),
        &[
            ("ann.zip", &read(&inner)),
            ("bad.zip", b"no archive"),
            ("bob.py", b"x = 1"),
            ("bomb.zip", &read(&bomb)),
            ("slip.zip", &read(&slip)),
        ],
    );
    let list = load_submissions(&[outer]).unwrap();
    assert_eq!(list.len(), 5);
    for one in &list {
        let problem = text(one.problem.as_ref());
        match one.name.as_str() {
            "ann" => assert_eq!((one.files.len(), problem), (2, "none")),
            "bob" => assert_eq!((one.files.len(), problem), (1, "none")),
            // Each of its files is larger than one may be, which makes it unreadable, and nothing else.
            "bomb" => assert!(problem.contains("larger than"), "{problem}"),
            "slip" => assert!(problem.contains("leads out"), "{problem}"),
            "bad" => assert!(problem.contains("no archive that can be read"), "{problem}"),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_name_that_leads_out_of_an_archive_is_said_and_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "../evil.py",
        "/etc/evil.py",
        "a/../../evil.py",
        "C:\\evil.py",
        "..\\evil.py",
    ] {
        let path = dir.path().join("x.zip");
        std::fs::write(
            &path,
            raw_zip(&[
                Raw::new(b"ok.py", b"x = 1"),
                Raw::new(name.as_bytes(), b"x"),
            ]),
        )
        .unwrap();
        let list = load_submissions(&[path]).unwrap();
        assert_eq!(list.len(), 2, "{name}");
        for one in &list {
            match one.name.as_str() {
                "ok" => assert_eq!(text(one.problem.as_ref()), "none"),
                _ => assert!(
                    text(one.problem.as_ref()).contains("leads out"),
                    "{name}: {one:?}"
                ),
            }
        }
    }
    assert!(!dir.path().join("evil.py").exists() && !Path::new("/etc/evil.py").exists());
    let none = dir.path().join("n.zip");
    std::fs::write(&none, b"PK").unwrap();
    let refused = load_submissions(&[none]).unwrap_err().to_string();
    assert!(refused.contains("no archive that can be read"), "{refused}");
}

/// A member as bytes, so that it may be wrong in any way.
struct Raw<'a> {
    name: &'a [u8],
    content: &'a [u8],
    flags: u16,
    method: u16,
    /// What is written of its size, if not the truth.
    size: Option<u32>,
    is_crc_wrong: bool,
    attributes: u32,
}

impl<'a> Raw<'a> {
    fn new(name: &'a [u8], content: &'a [u8]) -> Self {
        Self {
            name,
            content,
            flags: 0,
            method: 0,
            size: None,
            is_crc_wrong: false,
            attributes: 0,
        }
    }
}

/// A zip by APPNOTE.TXT, sections 4.3.7, 4.3.12 and 4.3.16.
fn raw_zip(members: &[Raw<'_>]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    let two = |n: usize| u16::try_from(n).unwrap().to_le_bytes();
    let four = |n: usize| u32::try_from(n).unwrap().to_le_bytes();
    for of in members {
        let at = out.len();
        let crc = crc32(of.content) ^ u32::from(of.is_crc_wrong);
        let size = of.size.unwrap_or(u32::try_from(of.content.len()).unwrap());
        let mut common = Vec::new();
        common.extend([20, 0]);
        common.extend(of.flags.to_le_bytes());
        common.extend(of.method.to_le_bytes());
        common.extend([0, 0, 0x21, 0]);
        common.extend(crc.to_le_bytes());
        common.extend(four(of.content.len()));
        common.extend(size.to_le_bytes());
        common.extend(two(of.name.len()));
        common.extend([0, 0]);
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend(of.name);
        out.extend(of.content);
        directory.extend(b"PK\x01\x02");
        directory.extend([20, 3]);
        directory.extend(&common);
        directory.extend([0; 6]);
        directory.extend(of.attributes.to_le_bytes());
        directory.extend(four(at));
        directory.extend(of.name);
    }
    let at = out.len();
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(two(members.len()));
    out.extend(two(members.len()));
    out.extend(four(directory.len()));
    out.extend(four(at));
    out.extend([0, 0]);
    out
}

/// Bit by bit, by the polynomial of ISO 3309: slow, and nobody else's code.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xEDB8_8320
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

/// A name, and its bytes.
type Student = (&'static str, &'static [u8]);

/// Names of a class, and the same in a code page, as Windows and DOS have it. The bytes are Python's.
const CLASSES: &[(&str, &[Student])] = &[
    (
        "cp850",
        &[
            ("Müller Jürgen", b"M\x81ller J\x81rgen"),
            ("Weiß Anna", b"Wei\xe1 Anna"),
            ("Björk Åsa", b"Bj\x94rk \x8fsa"),
            ("García José", b"Garc\xa1a Jos\x82"),
            ("Dupré François", b"Dupr\x82 Fran\x87ois"),
            ("Ødegård Søren", b"\x9ddeg\x86rd S\x9bren"),
        ],
    ),
    (
        "cp437",
        &[
            ("Müller", b"M\x81ller"),
            ("Schröder Jörg", b"Schr\x94der J\x94rg"),
            ("Dupré René", b"Dupr\x82 Ren\x82"),
            ("Åberg", b"\x8fberg"),
            ("Señor Muñoz", b"Se\xa4or Mu\xa4oz"),
            ("Weiß", b"Wei\xe1"),
        ],
    ),
    (
        "cp1252",
        &[
            ("Müller Jürgen", b"M\xfcller J\xfcrgen"),
            ("Weiß Anna", b"Wei\xdf Anna"),
            ("Björk Åsa", b"Bj\xf6rk \xc5sa"),
            ("García José", b"Garc\xeda Jos\xe9"),
            ("Dupré François", b"Dupr\xe9 Fran\xe7ois"),
            ("Ødegård Søren", b"\xd8deg\xe5rd S\xf8ren"),
        ],
    ),
    (
        "cp852",
        &[
            ("Dvořák Jiří", b"Dvo\xfd\xa0k Ji\xfd\xa1"),
            ("Nováková Šárka", b"Nov\xa0kov\xa0 \xe6\xa0rka"),
            ("Żak Łukasz", b"\xbdak \x9dukasz"),
            ("Němcová Božena", b"N\xd8mcov\xa0 Bo\xa7ena"),
            ("Wiśniewska Ewa", b"Wi\x98niewska Ewa"),
            ("Růžička Tomáš", b"R\x85\xa7i\x9fka Tom\xa0\xe7"),
        ],
    ),
    (
        "cp1250",
        &[
            ("Dvořák Jiří", b"Dvo\xf8\xe1k Ji\xf8\xed"),
            ("Nováková Šárka", b"Nov\xe1kov\xe1 \x8a\xe1rka"),
            ("Żak Łukasz", b"\xafak \xa3ukasz"),
            ("Němcová Božena", b"N\xecmcov\xe1 Bo\x9eena"),
            ("Wiśniewska Ewa", b"Wi\x9cniewska Ewa"),
            ("Růžička Tomáš", b"R\xf9\x9ei\xe8ka Tom\xe1\x9a"),
        ],
    ),
    (
        "cp866",
        &[
            ("Анна", b"\x80\xad\xad\xa0"),
            ("Олег", b"\x8e\xab\xa5\xa3"),
            ("Иванов Пётр", b"\x88\xa2\xa0\xad\xae\xa2 \x8f\xf1\xe2\xe0"),
            (
                "Смирнова Ольга",
                b"\x91\xac\xa8\xe0\xad\xae\xa2\xa0 \x8e\xab\xec\xa3\xa0",
            ),
            (
                "Кузнецов Дмитрий",
                b"\x8a\xe3\xa7\xad\xa5\xe6\xae\xa2 \x84\xac\xa8\xe2\xe0\xa8\xa9",
            ),
        ],
    ),
    (
        "cp1251",
        &[
            ("Анна", b"\xc0\xed\xed\xe0"),
            ("Олег", b"\xce\xeb\xe5\xe3"),
            ("Иванов Пётр", b"\xc8\xe2\xe0\xed\xee\xe2 \xcf\xb8\xf2\xf0"),
            (
                "Смирнова Ольга",
                b"\xd1\xec\xe8\xf0\xed\xee\xe2\xe0 \xce\xeb\xfc\xe3\xe0",
            ),
            (
                "Кузнецов Дмитрий",
                b"\xca\xf3\xe7\xed\xe5\xf6\xee\xe2 \xc4\xec\xe8\xf2\xf0\xe8\xe9",
            ),
        ],
    ),
    (
        "cp950",
        &[
            ("許志明", b"\xb3\x5c\xa7\xd3\xa9\xfa"),
            ("許美玲", b"\xb3\x5c\xac\xfc\xac\xc2"),
            ("王小華", b"\xa4\xfd\xa4p\xb5\xd8"),
            ("陳大文", b"\xb3\xaf\xa4j\xa4\xe5"),
            ("林怡君", b"\xaaL\xa9\xc9\xa7g"),
        ],
    ),
    (
        "cp936",
        &[
            ("王伟", b"\xcd\xf5\xce\xb0"),
            ("李娜", b"\xc0\xee\xc4\xc8"),
            ("张敏", b"\xd5\xc5\xc3\xf4"),
            ("刘洋", b"\xc1\xf5\xd1\xf3"),
            ("陈静", b"\xb3\xc2\xbe\xb2"),
        ],
    ),
    (
        "cp932",
        &[
            ("山田太郎", b"\x8eR\x93c\x91\xbe\x98Y"),
            ("佐藤花子", b"\x8d\xb2\x93\xa1\x89\xd4\x8eq"),
            ("鈴木一郎", b"\x97\xe9\x96\xd8\x88\xea\x98Y"),
            ("高橋さくら", b"\x8d\x82\x8b\xb4\x82\xb3\x82\xad\x82\xe7"),
            ("田中ケン", b"\x93c\x92\x86\x83P\x83\x93"),
        ],
    ),
    (
        "cp949",
        &[
            ("김철수", b"\xb1\xe8\xc3\xb6\xbc\xf6"),
            ("이영희", b"\xc0\xcc\xbf\xb5\xc8\xf1"),
            ("박지민", b"\xb9\xda\xc1\xf6\xb9\xce"),
            ("최수빈", b"\xc3\xd6\xbc\xf6\xba\xf3"),
            ("정하늘", b"\xc1\xa4\xc7\xcf\xb4\xc3"),
        ],
    ),
    (
        "utf-8",
        &[
            ("Müller Jürgen", b"M\xc3\xbcller J\xc3\xbcrgen"),
            ("許志明", b"\xe8\xa8\xb1\xe5\xbf\x97\xe6\x98\x8e"),
            ("Анна", b"\xd0\x90\xd0\xbd\xd0\xbd\xd0\xb0"),
            ("김철수", b"\xea\xb9\x80\xec\xb2\xa0\xec\x88\x98"),
            ("Dvořák Jiří", b"Dvo\xc5\x99\xc3\xa1k Ji\xc5\x99\xc3\xad"),
        ],
    ),
];

#[test]
fn names_in_the_code_pages_of_others_are_right_and_stay_apart() {
    let dir = tempfile::tempdir().unwrap();
    for (page, class) in CLASSES {
        // As single files, as folders, and with the flag for UTF-8 where it is wrong.
        for (end, flags) in [
            (&b".py"[..], 0),
            (&b"/main.py"[..], 0),
            (&b".py"[..], 1 << 11),
        ] {
            let named: Vec<Vec<u8>> = class.iter().map(|(_, name)| [name, end].concat()).collect();
            let members: Vec<Raw<'_>> = named
                .iter()
                .map(|name| Raw {
                    flags,
                    ..Raw::new(name, b"x = 1")
                })
                .collect();
            let path = dir.path().join("class.zip");
            std::fs::write(&path, raw_zip(&members)).unwrap();
            let list = load_submissions(&[path]).unwrap();
            let mut found: Vec<&str> = list.iter().map(|s| s.name.as_str()).collect();
            let mut expected: Vec<&str> = class.iter().map(|(name, _)| *name).collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{page}");
            let is_said = |s: &Submission| {
                let is_told = s.notes.iter().any(|n| n.contains("not UTF-8"));
                s.name.is_ascii() || is_told != (*page == "utf-8")
            };
            assert!(list.iter().all(is_said), "{page}");
        }
    }
}

/// Ways in which a member is broken, each with what is said of it.
const BROKEN: &[(&str, &str)] = &[
    ("encrypted", "encrypted"),
    ("crc", "damaged"),
    ("cut", "damaged"),
    ("packed", "packed with"),
    ("unknown", "packed with"),
    ("link", "links are not followed"),
    ("out", "leads out"),
    ("large", "larger than"),
    ("double", "several files"),
    ("both", "a folder of the archive has the same name"),
    ("binary", "not text"),
    ("inner", "no archive that can be read"),
];

/// A class of which each student has a good file, one with a long name, and one that is broken.
struct World {
    /// Each with the way in which its third file is broken.
    students: Vec<(Student, usize)>,
    flags: u16,
}

/// A name so long that no file system takes it.
fn long_name() -> String {
    "a long name ".repeat(22)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut draw = |most: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % u64::try_from(most).unwrap()).unwrap()
        };
        let (_, class) = CLASSES[draw(CLASSES.len())];
        let count = 2 + draw(class.len() - 2);
        let students = class.iter().take(count);
        let students = students.map(|one| (*one, draw(BROKEN.len()))).collect();
        let flags = if draw(2) == 0 { 0 } else { 1 << 11 };
        Self { students, flags }
    }

    /// Names of members, with the way in which each is broken.
    fn members(&self) -> Vec<(Vec<u8>, Option<usize>)> {
        let mut names = Vec::new();
        for ((_, student), way) in &self.students {
            let broken: &[u8] = match BROKEN[*way].0 {
                "out" => b"/../../broken.py",
                "inner" => b"/broken.zip",
                "both" => b"/broken.py/inside.py",
                _ => b"/broken.py",
            };
            names.push(([student, &b"/main.py"[..]].concat(), None));
            names.push(([student, broken].concat(), Some(*way)));
            if ["double", "both"].contains(&BROKEN[*way].0) {
                names.push(([student, &b"/broken.py"[..]].concat(), None));
            }
            let long = long_name();
            names.push((
                [student, &b"/"[..], long.as_bytes(), &b".py"[..]].concat(),
                None,
            ));
        }
        names
    }

    fn zip(&self) -> Vec<u8> {
        let names = self.members();
        let flags = self.flags;
        let members: Vec<Raw<'_>> = names
            .iter()
            .map(|(name, way)| {
                let good = Raw {
                    flags,
                    ..Raw::new(name, b"x = 1")
                };
                match way.map_or("", |way| BROKEN[way].0) {
                    "encrypted" => Raw {
                        flags: flags | 1,
                        ..good
                    },
                    "crc" => Raw {
                        is_crc_wrong: true,
                        ..good
                    },
                    "cut" => Raw {
                        method: 8,
                        content: b"\x4b",
                        ..good
                    },
                    "packed" => Raw { method: 14, ..good },
                    "unknown" => Raw { method: 77, ..good },
                    "link" => Raw {
                        attributes: 0o120_777 << 16,
                        ..good
                    },
                    "large" => Raw {
                        content: &[b'x'; 64],
                        size: Some(40 << 20),
                        ..good
                    },
                    "binary" => Raw {
                        content: b"x\0y",
                        ..good
                    },
                    _ => good,
                }
            })
            .collect();
        raw_zip(&members)
    }
}

#[test]
fn as_many_students_come_out_as_went_in_whatever_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("class.zip");
    let long = format!("{}.py", long_name());
    for seed in 0..240 {
        let world = World::new(seed);
        std::fs::write(&path, world.zip()).unwrap();
        let list = load_submissions(std::slice::from_ref(&path)).unwrap();
        // A name that leads out of its folder stands where the rest of it says.
        let mut expected: Vec<(&str, usize)> = world
            .students
            .iter()
            .map(|((name, _), way)| (*name, *way))
            .collect();
        expected.sort_unstable();
        let found: Vec<&str> = list.iter().map(|s| s.name.as_str()).collect();
        let names: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
        assert_eq!(found.len(), names.len(), "seed {seed}: {found:?}");
        for (one, (_, way)) in list.iter().zip(expected) {
            let (kind, what) = BROKEN[way];
            assert_eq!(text(one.problem.as_ref()), "none", "seed {seed} {kind}");
            let has = |name: &str| one.files.iter().any(|f| f.name == name);
            assert!(has("main.py") && has(&long), "seed {seed} {kind}: {one:?}");
            let flags = one.flags.iter().map(|flag| flag.text.as_str());
            let mut said = one.notes.iter().map(String::as_str).chain(flags);
            let names_it = said.any(|said| {
                said.contains(what) && (said.contains("broken") || said.contains("zip"))
            });
            assert!(
                names_it,
                "seed {seed} {kind}: {:?} {:?}",
                one.notes, one.flags
            );
        }
    }
}

#[test]
fn one_student_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let one: &[(&str, usize)] = &[("one", 2)];
    type Found<'a> = &'a [(&'a str, usize)];
    let table: &[(&[&str], Found<'_>)] = &[
        // A student's project, in whatever folder.
        (
            &[
                "Ada Lovelace_501_assignsubmission_file/main.py",
                "Ada Lovelace_501_assignsubmission_file/x.py",
            ],
            &[("Ada Lovelace", 2)],
        ),
        (&["project/src/a.py", "project/README.md"], one),
        (&["src/a.py", "README.md"], one),
        (&["main.py", "utils.py"], one),
        (&["Nina/src/a.py", "Nina/test/b.py"], one),
        (&["hw1/mean.py"], &[("one", 1)]),
        (
            &["Thumbs.db", "hw1/ann.py", "hw1/bob.py"],
            &[("ann", 1), ("bob", 1)],
        ),
        // Courses.
        (&["hw1/ann.py", "hw1/bob.py"], &[("ann", 1), ("bob", 1)]),
        (
            &["hw1/ann/main.py", "hw1/bob/main.py"],
            &[("ann", 1), ("bob", 1)],
        ),
        (&["ann.py", "main.py"], &[("ann", 1), ("main", 1)]),
        (&["ann/a.py", "bob/"], &[("ann", 1), ("bob", 0)]),
    ];
    for (members, expected) in table {
        let members: Vec<(&str, &[u8])> =
            members.iter().map(|name| (*name, &b"x = 1"[..])).collect();
        let zip = path("one.zip");
        let mut writer = ZipWriter::new(File::create(&zip).unwrap());
        for (name, content) in members {
            if name.ends_with('/') {
                writer
                    .add_directory(name, SimpleFileOptions::default())
                    .unwrap();
            } else {
                writer
                    .start_file(name, SimpleFileOptions::default())
                    .unwrap();
                writer.write_all(content).unwrap();
            }
        }
        writer.finish().unwrap();
        assert_eq!(&names(&load_submissions(&[zip]).unwrap()), expected);
    }
}

#[test]
fn archives_of_students_are_read_wherever_a_folder_may_be() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    // Archives of students: in a folder, each alone, in a student's own folder.
    std::fs::create_dir_all(path("zips")).unwrap();
    std::fs::create_dir_all(path("deep/ann")).unwrap();
    let project: [(&str, &[u8]); 2] = [
        ("AnnAbel_HW1/main.py", b"x = 1"),
        ("AnnAbel_HW1/util.py", b"y = 1"),
    ];
    let ann = archive(&path("zips/ann_hw1.zip"), &project);
    let bob = archive(&path("zips/bob_hw1.zip"), &[("main.py", b"x = 1")]);
    let both = [("ann_hw1", 2), ("bob_hw1", 1)];
    assert_eq!(names(&load_submissions(&[path("zips")]).unwrap()), both);
    assert_eq!(names(&load_submissions(&[ann.clone(), bob]).unwrap()), both);
    std::fs::copy(&ann, path("deep/ann/AnnAbel.zip")).unwrap();
    std::fs::write(path("deep/ann/photo.jpg"), b"x").unwrap();
    std::fs::write(path("deep/bob.py"), b"x = 1").unwrap();
    let list = load_submissions(&[path("deep")]).unwrap();
    assert_eq!(names(&list), [("ann", 2), ("bob", 1)]);
    // The folder and the archive that the student packed have the student's name: no page and no model sees it.
    let shown = serde_json::to_string(&list[0]).unwrap();
    assert!(!shown.contains("AnnAbel"), "{shown}");
    assert_eq!(list[0].files[0].name, "main.py");
}

#[test]
fn what_is_too_large_is_its_owners_problem_and_nothing_of_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bomb.zip");
    // A size that is a lie, and one student with more text than anybody reads.
    let lie = Raw {
        size: Some(u32::MAX - 1),
        ..Raw::new(b"ann.py", b"x = 1")
    };
    let text = "x = 1\n".repeat(160_000);
    let names: Vec<String> = (0..12).map(|i| format!("bob/{i:02}.py")).collect();
    let mut members = vec![lie, Raw::new(b"eve.py", b"x = 1")];
    members.extend(
        names
            .iter()
            .map(|name| Raw::new(name.as_bytes(), text.as_bytes())),
    );
    std::fs::write(&path, raw_zip(&members)).unwrap();
    let list = load_submissions(&[path]).unwrap();
    let problem = |i: usize| text_of(&list[i]);
    assert_eq!(list.len(), 3);
    assert!(problem(0).contains("larger than"), "{}", problem(0));
    assert!(problem(1).contains("bytes of text"), "{}", problem(1));
    assert!(list[1].files.is_empty(), "nothing of it is kept");
    assert_eq!(problem(2), "none");
}

fn text_of(one: &Submission) -> &str {
    text(one.problem.as_ref())
}

/// An archive of tar, packed with gzip.
fn tarred(members: &[(&str, &[u8])]) -> Vec<u8> {
    let packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut tar = tar::Builder::new(packed);
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(bytes.len()).unwrap());
        // As somebody writes it who leads out of the folder: the builder refuses to.
        let field = &mut header.as_old_mut().name;
        field[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        tar.append(&header, *bytes).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

#[test]
fn an_archive_of_tar_is_read_as_one_of_zip() {
    let dir = tempfile::tempdir().unwrap();
    let inner = tarred(&[("src/a.py", b"x = 1"), ("src/b.py", b"x = 2")]);
    let members: &[(&str, &[u8])] = &[
        ("course/anna.tgz", &inner),
        ("course/ben/a.py", b"x = 3"),
        ("course/../../eve.py", b"x = 4"),
        ("/course/joe.py", b"x = 5"),
        ("course/änne.py", b"x = 6"),
    ];
    let whole = tarred(members);
    write(dir.path(), "course.tar.gz", &whole);
    let path = dir.path().join("course.tar.gz");
    let list = load_submissions(std::slice::from_ref(&path)).unwrap();
    let of = |name: &str| list.iter().find(|one| one.name == name);
    let files = |name| of(name).map(|one| one.files.len());
    assert_eq!(
        (files("anna"), files("ben"), files("änne")),
        (Some(2), Some(1), Some(1)),
        "{list:?}"
    );
    let refused = list.iter().filter(|one| {
        one.problem
            .as_ref()
            .is_some_and(|p| p.text.contains("leads out"))
    });
    assert_eq!(refused.count(), 2);
    // Cut anywhere, it is refused as a whole or read as far as it says that it goes; nobody's file is half a file.
    for at in (1..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..at]).unwrap();
        assert!(
            load_submissions(std::slice::from_ref(&path)).is_err(),
            "{at}"
        );
    }
    // A small file that unpacks to more than the memory is for.
    let packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut tar = tar::Builder::new(packed);
    for i in 0..9 {
        let mut header = tar::Header::new_gnu();
        header.set_size(limits::MAX_INNER_ARCHIVE_BYTES);
        let zeros = std::io::Read::take(std::io::repeat(0), limits::MAX_INNER_ARCHIVE_BYTES);
        tar.append_data(&mut header, format!("{i}/a.py"), zeros)
            .unwrap();
    }
    std::fs::write(&path, tar.into_inner().unwrap().finish().unwrap()).unwrap();
    let refused = load_submissions(std::slice::from_ref(&path)).unwrap_err();
    assert!(
        refused.to_string().contains("unpacks to more than"),
        "{refused}"
    );
}

/// As many files come out as went in, each under its submission.
#[test]
fn originals_are_those_of_their_submissions() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("course/anna/main.py", &b"x = 1"[..]),
        ("course/anna/docs/report.pdf", b"%PDF"),
        ("course/anna/.DS_Store", b"x"),
        ("course/anna/node_modules/x.js", b"x"),
        ("course/ben.docx", b"PK"),
    ] {
        write(dir.path(), name, bytes);
    }
    let paths = [dir.path().join("course")];
    let names: Vec<String> = load_submissions(&paths)
        .unwrap()
        .into_iter()
        .map(|s| s.name)
        .collect();
    let mut found = Vec::new();
    let mut keep = |index: usize, original: Original| {
        found.push((names[index].clone(), original.name, original.bytes.unwrap()));
        true
    };
    read_originals(&paths, &crate::course::rubric(), &mut keep).unwrap();
    let found: Vec<(&str, &str, &[u8])> = found
        .iter()
        .map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_slice()))
        .collect();
    let expected: [(&str, &str, &[u8]); 3] = [
        ("anna", "docs/report.pdf", b"%PDF"),
        ("anna", "main.py", b"x = 1"),
        ("ben", "ben.docx", b"PK"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn projects_of_several_folders_are_no_courses_among_others() {
    let dir = tempfile::tempdir().unwrap();
    let flat: &[(&str, &[u8])] = &[
        ("Main.java", b"class Main {}"),
        ("Help.java", b"class Help {}"),
    ];
    let packages: &[(&str, &[u8])] = &[
        ("model/A.java", b"class A {}"),
        ("view/B.java", b"class B {}"),
        ("Main.java", b"class Main {}"),
    ];
    let all: Vec<PathBuf> = [
        ("ann.zip", flat),
        ("ben.zip", packages),
        ("cleo.zip", flat),
        ("dan.zip", packages),
        ("eve.zip", flat),
    ]
    .map(|(name, members)| archive(&dir.path().join(name), members))
    .to_vec();
    let list = load_submissions(&all).unwrap();
    assert_eq!(
        names(&list),
        [("ann", 2), ("ben", 3), ("cleo", 2), ("dan", 3), ("eve", 2)]
    );
    // Where most have folders of students, they are courses, such as two sections.
    let section: &[(&str, &[u8])] = &[("ada/a.py", b"x = 1"), ("bob/a.py", b"x = 2")];
    let other: &[(&str, &[u8])] = &[("cy/a.py", b"x = 3"), ("di/a.py", b"x = 4")];
    let sections = [("one.zip", section), ("two.zip", other)];
    let sections = sections.map(|(name, members)| archive(&dir.path().join(name), members));
    let list = load_submissions(&sections).unwrap();
    assert_eq!(names(&list), [("ada", 1), ("bob", 1), ("cy", 1), ("di", 1)]);
}

#[test]
fn a_zero_byte_in_a_text_is_shown_and_loses_no_line() {
    let dir = tempfile::tempdir().unwrap();
    let source = [
        b"class A {\n    // odd \0 byte\n}\n".as_slice(),
        &b"// more\n".repeat(20),
    ]
    .concat();
    let zip = archive(
        &dir.path().join("c.zip"),
        &[
            ("ann/A.java", &source),
            ("ann/B.java", b"class B {}"),
            ("bob.py", b"x"),
        ],
    );
    let list = load_submissions(&[zip]).unwrap();
    let ann = &list[0];
    assert_eq!(ann.files.len(), 2, "{:?}", ann.flags);
    assert_eq!(
        ann.files[0].lines[..3],
        ["class A {", "    // odd \u{2400} byte", "}"]
    );
    assert!(
        ann.flags
            .iter()
            .any(|flag| flag.text.contains("zero bytes")),
        "{:?}",
        ann.flags
    );
    // What is no text stays out.
    let binary = [b"\0\0\0\x01".as_slice(), b"class".as_slice()].concat();
    let zip = archive(
        &dir.path().join("d.zip"),
        &[
            ("ann/A.java", &binary),
            ("ann/B.java", b"class B {}"),
            ("bob.py", b"x"),
        ],
    );
    assert_eq!(load_submissions(&[zip]).unwrap()[0].files.len(), 1);
}
