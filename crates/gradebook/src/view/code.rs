//! A work's files: lines with colours, and the lines that evidence cites.

use std::collections::HashSet;

use tandem_grading::syntax::{Span, coloured};
use tandem_grading::{Graded, Material, Rubric, Shown, SourceFile, Submission};

use crate::limits::MAX_COLOURED;
use crate::paths::Paths;
use crate::store::Work;
use crate::view::queue::label;
use crate::view::words;

/// The work in the middle of the page.
pub(crate) struct Code {
    pub(crate) work: i64,
    /// Whose it is, as the page calls the student.
    pub(crate) label: String,
    pub(crate) prompt: String,
    pub(crate) files: Vec<CodeFile>,
    /// What was handed in before it or after it: words, the link and its words.
    pub(crate) others: Vec<(String, String, &'static str)>,
    /// Why there are none.
    pub(crate) problem: Option<String>,
    /// What is good to know, such as files that were not read.
    pub(crate) notes: Vec<String>,
    /// Name and text of each file of a solution, for those who grade.
    pub(crate) solutions: Vec<(String, String)>,
    /// The files as they were handed in: a link where one was kept, and the name.
    pub(crate) originals: Vec<(Option<String>, String)>,
}

/// One file.
pub(crate) struct CodeFile {
    /// From 0.
    pub(crate) index: usize,
    pub(crate) name: String,
    /// Criteria that cite it.
    pub(crate) cited: usize,
    pub(crate) blocks: Vec<Block>,
}

/// Lines in a row.
pub(crate) struct Block {
    /// What stands for them while they are folded; nothing if they are simply there.
    pub(crate) folded: Option<String>,
    pub(crate) is_open: bool,
    pub(crate) lines: Vec<Line>,
}

/// One line.
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) spans: Vec<Span>,
    /// Numbers of the criteria whose evidence it is, as shown.
    pub(crate) marks: String,
    /// Ids of them, with spaces.
    pub(crate) criteria: String,
    pub(crate) is_flagged: bool,
    /// Addresses of the pictures that it stands for.
    pub(crate) pictures: Vec<String>,
}

impl Code {
    pub(crate) fn new(
        paths: Paths,
        of: &Work,
        submission: &Submission,
        rubric: &Rubric,
        beside: (Option<&Work>, Option<i64>),
        names_hidden: bool,
    ) -> Self {
        let (work, graded) = (of.id, of.graded.as_ref());
        let mut budget = MAX_COLOURED;
        let shown = submission.shown(rubric);
        let files = submission.files.iter().zip(shown).enumerate();
        let file = |(index, (file, shown)): (usize, (&SourceFile, Vec<Shown<'_>>))| {
            let places = file.flags.iter().filter_map(|flag| flag.place.as_ref());
            let cites = Cites {
                rubric,
                graded,
                file,
                flagged: places.map(|place| place.line).collect(),
            };
            let mut view = code_file((paths, work, index), file, &shown, &cites, &mut budget);
            if names_hidden {
                view.name = submission.shown_name(file);
            }
            view
        };
        Self {
            work,
            label: label(&of.name, of.draw, names_hidden),
            prompt: paths.prompt(work),
            others: others(paths, beside, rubric),
            files: files.map(file).collect(),
            // What is said of files has their names in it.
            problem: submission.problem.as_ref().map(|p| match names_hidden {
                true => words::finding(p.kind).to_owned(),
                false => p.text.clone(),
            }),
            notes: graded
                .map_or(&submission.notes, |graded| &graded.notes)
                .iter()
                .filter(|note| !names_hidden || !submission.notes.contains(note))
                .cloned()
                .collect(),
            solutions: rubric
                .solutions
                .iter()
                .flat_map(Material::files)
                .map(|file| (file.name.clone(), file.lines.join("\n")))
                .collect(),
            originals: Vec::new(),
        }
    }

    /// With the files as they were handed in, by name and size; a name often is the student's.
    pub(crate) fn with_originals(
        mut self,
        paths: Paths,
        originals: &[(String, Option<u64>)],
        names_hidden: bool,
    ) -> Self {
        let one = |(place, (name, size)): (usize, &(String, Option<u64>))| {
            let name = match names_hidden {
                true => nameless(name, i64::try_from(place).unwrap_or(i64::MAX)),
                false => name.clone(),
            };
            (size.map(|_| paths.original(self.work, place)), name)
        };
        self.originals = originals.iter().enumerate().map(one).collect();
        self
    }
}

/// What a file is called where no student may be known by it.
pub(crate) fn nameless(name: &str, place: i64) -> String {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    format!("file {}.{extension}", place.saturating_add(1))
}

/// What was handed in before a work, and how far that was; and what took its place.
fn others(
    paths: Paths,
    (earlier, later): (Option<&Work>, Option<i64>),
    rubric: &Rubric,
) -> Vec<(String, String, &'static str)> {
    let earlier = earlier.map(|earlier| {
        let standing = earlier.standing(rubric);
        let state = words::state(standing.state());
        let points = standing.total().map_or(String::new(), |total| {
            format!(
                ", with {total} of {} points, which are not this one's",
                rubric.max_points
            )
        });
        (
            format!("Handed in again. The earlier one is {state}{points}."),
            paths.work(earlier.id),
            "Look at the earlier one",
        )
    });
    let later = later.map(|later| {
        (
            "This was handed in again, and counts no more.".to_owned(),
            paths.work(later),
            "Go to the one that counts",
        )
    });
    earlier.into_iter().chain(later).collect()
}

/// What cites lines of a file.
struct Cites<'a> {
    rubric: &'a Rubric,
    graded: Option<&'a Graded>,
    file: &'a SourceFile,
    flagged: HashSet<usize>,
}

impl Cites<'_> {
    /// Numbers, from 1, and ids of the criteria whose evidence a line is.
    fn of(&self, line: usize) -> Vec<(usize, &str)> {
        let Some(graded) = self.graded else {
            return Vec::new();
        };
        let criteria = (1..).zip(&self.rubric.criteria);
        let is_cited = |id: &str| {
            let result = graded.criteria.iter().find(|c| c.id == id);
            result.is_some_and(|result| {
                result.evidence.iter().any(|e| {
                    e.file == self.file.name && (e.line_start..=e.line_end).contains(&line)
                })
            })
        };
        criteria
            .filter(|(_, c)| is_cited(&c.id))
            .map(|(number, c)| (number, c.id.as_str()))
            .collect()
    }
}

fn code_file(
    (paths, work, index): (Paths, i64, usize),
    file: &SourceFile,
    shown: &[Shown<'_>],
    cites: &Cites<'_>,
    budget: &mut usize,
) -> CodeFile {
    let mut coloured = coloured(file, budget).into_iter();
    let mut line = |number: usize| {
        let cited = cites.of(number);
        let marks: Vec<String> = cited.iter().map(|(n, _)| n.to_string()).collect();
        let criteria: Vec<&str> = cited.iter().map(|(_, id)| *id).collect();
        Line {
            number,
            spans: coloured.next().unwrap_or_default(),
            marks: marks.join(" "),
            criteria: criteria.join(" "),
            is_flagged: cites.flagged.contains(&number),
            pictures: file
                .pictures
                .iter()
                .filter(|(at, _)| *at == number)
                .map(|(_, picture)| paths.picture(work, &picture.digest))
                .collect(),
        }
    };
    let mut blocks: Vec<Block> = Vec::new();
    for part in shown {
        match part {
            Shown::Line(number, _) => {
                let next = line(*number);
                match blocks.last_mut() {
                    Some(block) if block.folded.is_none() => block.lines.push(next),
                    _ => blocks.push(Block {
                        folded: None,
                        is_open: true,
                        lines: vec![next],
                    }),
                }
            }
            Shown::Same(first, last) => {
                let lines: Vec<Line> = (*first..=*last).map(&mut line).collect();
                let count = lines.len();
                blocks.push(Block {
                    folded: Some(match count {
                        1 => "1 line of the template, unchanged".to_owned(),
                        count => format!("{count} lines of the template, unchanged"),
                    }),
                    is_open: lines.iter().any(|l| !l.marks.is_empty() || l.is_flagged),
                    lines,
                });
            }
            Shown::Gone(count) => blocks.push(Block {
                folded: Some(match count {
                    1 => "here 1 line of the template was deleted".to_owned(),
                    count => format!("here {count} lines of the template were deleted"),
                }),
                is_open: false,
                lines: Vec::new(),
            }),
        }
    }
    let all = blocks.iter().flat_map(|block| &block.lines);
    let mut criteria: Vec<&str> = all.flat_map(|l| l.criteria.split_whitespace()).collect();
    criteria.sort_unstable();
    criteria.dedup();
    CodeFile {
        index,
        name: file.name.clone(),
        cited: criteria.len(),
        blocks,
    }
}
