//! What leaves the gradebook, judged by another reader of tables and of archives.

use std::io::Read;

use proptest::prelude::*;
use tandem_grading::export::{
    Choice, Format, Refusal, Row, SheetKind, attendance, fill, outline, write,
};
use tandem_grading::review::{Decision, Review, Standing};
use tandem_grading::{Graded, Item, ItemKind, Origin, Points, Rubric, Student, System};

const TITLE: &str = "Sum of evens";
const COLUMN: &str = "Sum of evens (4711)";

fn rubric() -> Rubric {
    Rubric::parse(
        "id: evens\ntitle: Sum of evens\ntask: Add.\nmax_points: 10\ncriteria:\n\
         - {id: a, title: Result, description: The sum is right., max_points: 6, step: 0.5}\n\
         - {id: b, title: Style, description: Names say what they hold., max_points: 4, step: 1}\n",
    )
    .unwrap()
}

fn points(value: f64) -> Points {
    Points::from_f64(value).unwrap()
}

/// A submission with these points and this decision.
fn row(name: &str, given: Option<(f64, f64)>, decision: Decision) -> Row {
    row_of(name, &Origin::default(), given, decision)
}

fn row_of(name: &str, origin: &Origin, given: Option<(f64, f64)>, decision: Decision) -> Row {
    let rubric = rubric();
    let mut review = Review {
        decision,
        text_is_models: true,
        text: Some(vec![
            Item {
                kind: ItemKind::Strength,
                text: "It adds `n` & <all>.".to_owned(),
            },
            Item {
                kind: ItemKind::NextStep,
                text: "=Try \"zero\".".to_owned(),
            },
        ]),
        ..Review::default()
    };
    if let Some((a, b)) = given {
        review.points.insert("a".to_owned(), points(a));
        review.points.insert("b".to_owned(), points(b));
    }
    let standing = Standing::new(&rubric, None, &review);
    Row::new(name, origin, &standing)
}

fn approved(name: &str, a: f64, b: f64) -> Row {
    row(name, Some((a, b)), Decision::Approved)
}

fn records(bytes: &[u8], delimiter: u8) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(delimiter)
        .from_reader(bytes);
    let records = reader.byte_records().map(|record| {
        let record = record.unwrap();
        let cells = record
            .iter()
            .map(|cell| String::from_utf8_lossy(cell).into_owned());
        cells.collect()
    });
    records.collect()
}

/// As Canvas writes it: a mark, a row of policies, maxima with spaces before, read-only totals, a test student.
const CANVAS: &str = "\u{feff}Student,ID,SIS User ID,SIS Login ID,Section,Other (17),Sum of evens (4711),Current Score,Final Score\r\n\
    ,,,,,Manual Posting,,,\r\n\
    \"    Points Possible\",,,,,5.00,10.00,(read only),(read only)\r\n\
    \"Huber, Anna\",101,007,ahuber,\"G1, G2\",4.00,,80.0,80.0\r\n\
    \"Ōkubo, Ren\",102,008,rokubo,G1,,7.00,,\r\n\
    \"=\"\"=Evil, Eve\"\"\",103,009,eevil,G1,,10.00,,\r\n\
    \"Nobody, Nora\",104,010,nnobody,G1,3.00,,60.0,60.0\r\n\
    \"Excused, Emil\",105,011,eexcused,G1,,EX,,\r\n\
    \"Student, Test\",9999,,abc,G1,,,,\r\n";

#[test]
fn a_canvas_gradebook_comes_back_with_its_grades_and_nothing_else() {
    let rows = [
        approved("huberanna_101_5001_sum", 5.5, 4.0),
        approved("Ren Ōkubo", 3.0, 4.0),
        row("eevil", Some((6.0, 4.0)), Decision::Open),
        approved("eexcused", 6.0, 4.0),
        approved("somebody else", 6.0, 4.0),
    ];
    let seen = outline(CANVAS.as_bytes(), TITLE).unwrap();
    assert_eq!((seen.kind, seen.suggested), (SheetKind::Canvas, Some(6)));
    let titles: Vec<&str> = seen.columns.iter().map(|c| c.title.as_str()).collect();
    assert_eq!(titles, ["Other (17)", COLUMN]);
    let export = fill(CANVAS.as_bytes(), TITLE, &rows, &Choice::default()).unwrap();
    let expected = CANVAS.replace("\"G1, G2\",4.00,,80.0", "\"G1, G2\",4.00,9.50,80.0");
    assert_eq!(String::from_utf8(export.bytes.clone()).unwrap(), expected);
    let changes: Vec<_> = export
        .changes
        .iter()
        .map(|c| {
            (
                c.row,
                c.student.as_str(),
                c.column.as_str(),
                c.before.as_str(),
                c.after.as_str(),
            )
        })
        .collect();
    assert_eq!(changes, [(0, "Huber, Anna", COLUMN, "", "9.50")]);
    assert_eq!(export.grades, 2);
    let left: Vec<_> = export
        .left
        .iter()
        .map(|l| (l.row, l.why.as_str()))
        .collect();
    assert_eq!(
        left,
        [
            (4, "the file has no such student"),
            (3, "the file has “EX” there")
        ]
    );
    assert_eq!(export.absent, ["Nobody, Nora"]);
    let again = fill(&export.bytes, TITLE, &rows, &Choice::default()).unwrap();
    assert_eq!(
        (again.bytes, again.changes.len(), again.grades),
        (export.bytes, 0, 2)
    );
}

#[test]
fn points_of_another_maximum_are_refused_or_written_as_the_same_share() {
    let sheet = CANVAS.replace("5.00,10.00,", "5.00,100.00,");
    let rows = [approved("101", 5.5, 4.0), approved("ahuber", 0.0, 0.0)];
    let refused = fill(sheet.as_bytes(), TITLE, &rows[..1], &Choice::default());
    let Err(Refusal::Maximum { possible, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!((possible - 100.0).abs() < 1e-9);
    let choice = Choice {
        scales: true,
        ..Choice::default()
    };
    let export = fill(sheet.as_bytes(), TITLE, &rows[1..], &choice).unwrap();
    assert_eq!(export.changes[0].after, "0.00");
    let named = [approved("Anna Huber", 5.5, 4.0)];
    let export = fill(sheet.as_bytes(), TITLE, &named, &choice).unwrap();
    assert_eq!(export.changes[0].after, "95.00");
    // Nobody's grade goes where two could be meant, or into a column that nobody chose.
    let both = [
        approved("ahuber", 6.0, 4.0),
        approved("Anna Huber", 1.0, 1.0),
    ];
    let export = fill(sheet.as_bytes(), TITLE, &both, &choice).unwrap();
    assert_eq!((export.changes.len(), export.left.len()), (0, 2));
    // Who is not approved is in no list of those that are.
    let both = [
        approved("ahuber", 6.0, 4.0),
        row("Anna Huber", Some((1.0, 1.0)), Decision::Open),
    ];
    let export = fill(sheet.as_bytes(), TITLE, &both, &choice).unwrap();
    assert_eq!(export.left.iter().map(|l| l.row).collect::<Vec<_>>(), [0]);
    let short = sheet.replace("\"G1, G2\",4.00,,80.0,80.0", "\"G1, G2\"");
    let export = fill(short.as_bytes(), TITLE, &named, &choice).unwrap();
    assert_eq!(
        (export.bytes, export.changes.len()),
        (short.into_bytes(), 0)
    );
    assert!(
        export.left[0].why.contains("has 5 cells, its header 9"),
        "{:?}",
        export.left
    );
    let unknown = fill(sheet.as_bytes(), "Another", &named, &choice);
    assert_eq!(unknown.unwrap_err(), Refusal::Column);
}

/// A submission of a system, with what it knows the student by.
fn of(system: System, name: &str, ids: &[&str]) -> Row {
    let student = Student {
        name: name.to_owned(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    let origin = Origin {
        system,
        students: vec![student],
        ..Origin::default()
    };
    row_of(name, &origin, Some((6.0, 4.0)), Decision::Approved)
}

const ALIKE_MOODLE: &str = "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed\n\
        Participant 3,Zed Zorn,z@x.edu,s,,10.00,Yes\nParticipant 4711,Bob Box,bob@x.edu,s,,10.00,Yes\n\
        Participant 5,Ann Abel,ann@x.edu,s,,10.00,Yes\n";
const ALIKE_CANVAS: &str = "Student,ID,SIS User ID,SIS Login ID,Section,Sum of evens (1)\n\
        \"Abel, Al\",500,123,al,S,\n\"Doe, Jane\",222,9,jane,S,\n\"Zorn, Zed\",901234,8,zed,S,\n";

/// Whose grade is filled in, if somebody's is.
fn check(sheet: &str, column: usize, row: Row, expected: Option<&str>) {
    let choice = Choice {
        column: Some(column),
        ..Choice::default()
    };
    let name = row.name.clone();
    let export = fill(sheet.as_bytes(), "any", &[row], &choice).unwrap();
    let filled: Vec<&str> = export.changes.iter().map(|c| c.student.as_str()).collect();
    assert_eq!(
        filled,
        expected.into_iter().collect::<Vec<_>>(),
        "{name} in {sheet}"
    );
    assert_eq!(export.left.len(), usize::from(expected.is_none()), "{name}");
}

/// What is the same in letters may be somebody else: nobody gets a grade for that.
#[test]
fn nobody_gets_a_grade_for_letters_that_are_alike() {
    let (moodle, canvas) = (ALIKE_MOODLE, ALIKE_CANVAS);
    let plain = |name| approved(name, 6.0, 4.0);
    let system = |system, name, ids: &[&str]| of(system, name, ids);
    for (sheet, column, row, expected) in [
        // Numbers in a name are no participant's, and an upload is no user.
        (moodle, 4, plain("Jane Doe 3"), None),
        (moodle, 4, plain("anna_4711"), None),
        (canvas, 5, plain("roe_112_901234_hw"), None),
        // Each kind counts alone, and decides where both sides have it.
        (canvas, 5, system(System::Canvas, "bell", &["123"]), None),
        (canvas, 5, system(System::Canvas, "doejane", &["111"]), None),
        (
            canvas,
            5,
            system(System::Canvas, "whoever", &["222"]),
            Some("Doe, Jane"),
        ),
        (
            moodle,
            4,
            system(System::Gradescope, "Ann Abel", &["4711", "ann@x.edu"]),
            Some("Ann Abel"),
        ),
        (
            moodle,
            4,
            system(System::Gradescope, "Ann Abel", &["4711", "ann@y.edu"]),
            None,
        ),
        (
            moodle,
            4,
            system(System::Moodle, "Ann Abel", &["5"]),
            Some("Ann Abel"),
        ),
        (
            moodle,
            4,
            system(System::Moodle, "Ann Abel 5", &["5"]),
            Some("Ann Abel"),
        ),
        // Moodle numbers groups as it does participants.
        (moodle, 4, system(System::Moodle, "Team A", &["5"]), None),
        // A login of GitHub is none of the school, and what fits another row, too, is nobody's.
        (
            canvas,
            5,
            system(System::Classroom, "jane", &["jane"]),
            None,
        ),
        (
            "ID,Name,Email,Grade\n12,Zed,zed@x.edu,\n40,Ann,ann@x.edu,\n",
            3,
            system(System::Gradescope, "Ann", &["12", "ann@x.edu"]),
            None,
        ),
        (
            "ID,Name,Email,Grade\n12,Annabel,a.b@x.edu,\n40,Zed,zed@x.edu,\n",
            3,
            system(System::Gradescope, "Ann", &["12", "ann@x.edu"]),
            Some("Annabel"),
        ),
    ] {
        check(sheet, column, row, expected);
    }
}

/// A part of a name is no name, and a cell that belongs to something else is no key.
#[test]
fn nobody_gets_a_grade_for_a_part_of_a_row() {
    let plain = |name| approved(name, 6.0, 4.0);
    let system = of;
    for (sheet, column, row, expected) in [
        // A partner, a part of a name, a first name are nobody's key.
        (
            "Name,Partner,Grade\nanna,ben,\nben,anna,\n",
            2,
            plain("anna"),
            Some("anna"),
        ),
        (
            "Name,Login,Grade\nAnna Meyer,am123,\nBob Meyer,meyer,\n",
            2,
            plain("anna_meyer"),
            Some("Anna Meyer"),
        ),
        (
            "Name;Vorname;Punkte\nMeyer;Anna;\nMax;Otto;\nKurz;Max;\n",
            2,
            plain("Max"),
            None,
        ),
        ("Name,Grade\nAnn Abel,\n", 1, plain("Anna Bel"), None),
        // The address of somebody else in a row is no key of it.
        (
            "Name,Email,Partner email,Grade\nAnna Abel,anna@x.edu,ben@x.edu,\n",
            3,
            system(System::Gradescope, "Ben", &["7", "ben@x.edu"]),
            None,
        ),
    ] {
        check(sheet, column, row, expected);
    }
}

#[test]
fn nobody_gets_a_grade_for_words_of_another_column() {
    let plain = |name| approved(name, 6.0, 4.0);
    let (system, canvas) = (of, ALIKE_CANVAS);
    for (sheet, column, row, expected) in [
        // A comma without quotes moves the cells behind it.
        ("Name,HW1,HW2\nDoe, Jane,5,\n", 2, plain("Doe"), None),
        ("Name,HW1,HW2\nanna,9,5,\n", 2, plain("anna"), None),
        // Parts of a name, in words that are known and in others.
        (
            "Last,First,Grade\nMax,Otto,\nHuber,Max,\n",
            2,
            plain("max"),
            None,
        ),
        (
            "Nom,Prénom,Note\nMax,Otto,\nHuber,Max,\n",
            2,
            plain("max"),
            None,
        ),
        (
            "Sukunimi,Etunimi,Arvosana\nMax,Otto,\nHuber,Max,\n",
            2,
            plain("max"),
            None,
        ),
        (
            "Sukunimi,Etunimi,Arvosana\nMax,Otto,\nHuber,Max,\n",
            2,
            plain("otto_max"),
            Some("Max, Otto"),
        ),
        // Two names of which Canvas makes the same letters.
        (
            "Name,Grade\n\"Li, Na\",\nLina,\n",
            1,
            system(System::Canvas, "lina", &["101"]),
            None,
        ),
        // A tone makes another name.
        ("Name,Grade\nป้า,\n", 1, plain("ป่า"), None),
        // A number or a login of the school, whichever the course took for folders.
        (
            canvas,
            5,
            system(System::Nbgrader, "8", &["8"]),
            Some("Zorn, Zed"),
        ),
        (
            "ID,Email,Grade\n7,ann@x.edu,\n",
            2,
            plain("ann@x.edu"),
            Some("7"),
        ),
        (
            "ID,Grade\n\"=\"\"007\"\"\",\n",
            1,
            plain("007"),
            Some("=\"007\""),
        ),
        (
            canvas,
            5,
            system(System::Nbgrader, "zed", &["zed"]),
            Some("Zorn, Zed"),
        ),
    ] {
        check(sheet, column, row, expected);
    }
}

/// Names of a plain course may look like those of Canvas: they are of nobody whom Canvas knows.
#[test]
fn a_number_in_the_name_of_a_plain_course_is_no_user() {
    let sheet = "Student,ID,Section,Sum of evens (1)\n\"Zorn, Zed\",2024,S,\n";
    let plain = Origin {
        folder: "exam_2024_05_anna.py".to_owned(),
        ..Origin::default()
    };
    let points = Some((6.0, 4.0));
    let row = row_of("exam_2024_05_anna", &plain, points, Decision::Approved);
    let export = fill(sheet.as_bytes(), TITLE, &[row], &Choice::default()).unwrap();
    assert_eq!((export.changes.len(), export.left.len()), (0, 1));
}

/// A number is written as its column has numbers, whatever stands in others; a grade that is locked gets no feedback, and
/// one in the file that is no longer approved is named.
#[test]
fn numbers_are_those_of_their_column_and_what_is_left_is_said() {
    let rows = [
        approved("ann", 5.5, 4.0),
        row("bob", Some((1.0, 1.0)), Decision::Open),
    ];
    for (sheet, grade) in [
        ("Name;Datum;Punkte\nann;01.10;\nbob;02.10;\n", "9,50"),
        (
            "Name,Salary,Grade\nann,\"1,234\",\nbob,\"2,000\",9.5\n",
            "9.50",
        ),
        (
            "Name,Salary,Grade\nann,\"1,5\",\nbob,\"2,5\",\"9,5\"\n",
            "9,50",
        ),
    ] {
        let choice = Choice {
            column: Some(2),
            ..Choice::default()
        };
        let export = fill(sheet.as_bytes(), "any", &rows, &choice).unwrap();
        assert_eq!(export.changes[0].after, grade, "{sheet}");
        let stale = export
            .unapproved
            .iter()
            .map(|left| left.row)
            .collect::<Vec<_>>();
        assert_eq!(
            stale,
            if sheet.contains("9.5") || sheet.contains("9,5") {
                vec![1]
            } else {
                vec![]
            }
        );
    }
    let thousand = CANVAS.replace("5.00,10.00,", "5.00,\"1,000\",");
    let choice = Choice {
        scales: true,
        ..Choice::default()
    };
    let export = fill(
        thousand.as_bytes(),
        TITLE,
        &[approved("ahuber", 5.5, 4.0)],
        &choice,
    );
    assert_eq!(export.unwrap().changes[0].after, "950.00");
    // An empty line at the end makes no other table of a worksheet.
    let locked = format!("{}\n", MOODLE[0].0).replace("\n\n", "\n,,,,,,,,,\n");
    let choice = Choice {
        with_feedback: true,
        ..Choice::default()
    };
    let export = fill(
        locked.as_bytes(),
        "any",
        &[approved("Ben Öz", 6.0, 4.0)],
        &choice,
    )
    .unwrap();
    assert_eq!((export.changes.len(), export.left.len()), (0, 1));
    assert_eq!(export.bytes, locked.into_bytes());
}

/// Worksheets of Moodle in the languages of its sites.
const MOODLE: [(&str, &str); 3] = [
    (
        "Identifier,\"Full name\",\"Email address\",Status,Grade,\"Maximum Grade\",\"Grade can be changed\",\"Last modified (submission)\",\"Last modified (grade)\",\"Feedback comments\"\n\
         \"Participant 71\",\"Anna Huber\",anna@x.org,\"Submitted for grading\",,10.00,Yes,\"Monday, 5 October 2026, 9:00 AM\",-,\n\
         \"Participant 72\",\"Ben Öz\",ben@x.org,\"Submitted for grading\",4.00,10.00,No,-,-,\n",
        "9.50",
    ),
    (
        "ID;\"Vollständiger Name\";\"E-Mail-Adresse\";Status;Bewertung;Bestwertung;\"Bewertung kann geändert werden\";\"Zuletzt geändert (Abgabe)\";\"Zuletzt geändert (Bewertung)\";\"Feedback als Kommentar\"\r\n\
         \"Teilnehmer/in 71\";\"Anna Huber\";anna@x.org;Abgegeben;;10,00;Ja;-;-;\r\n\
         \"Teilnehmer/in 72\";\"Ben Öz\";ben@x.org;Abgegeben;4,00;10,00;Nein;-;-;\r\n",
        "9,50",
    ),
    (
        "Identificador,\"Nombre completo\",\"Dirección de correo\",Estatus,Calificación,\"Calificación máxima\",\"La calificación puede ser cambiada\",\"Última modificación (entrega)\",\"Última modificación (calificación)\",\"Comentarios de retroalimentación\"\n\
         \"Participante 71\",\"Anna Huber\",anna@x.org,Enviado,,\"10,00\",Sí,-,-,\n\
         \"Participante 72\",\"Ben Öz\",ben@x.org,Enviado,\"4,00\",\"10,00\",No,-,-,\n",
        "\"9,50\"",
    ),
];

#[test]
fn a_moodle_worksheet_is_filled_in_in_any_language() {
    let rows = [
        approved("Anna Huber_71_assignsubmission_file", 5.5, 4.0),
        approved("Ben Öz", 6.0, 4.0),
    ];
    for (sheet, grade) in MOODLE {
        let seen = outline(sheet.as_bytes(), "any").unwrap();
        assert_eq!(
            (seen.kind, seen.suggested),
            (SheetKind::Moodle, Some(4)),
            "{sheet}"
        );
        assert!(seen.takes_feedback, "{sheet}");
        let export = fill(sheet.as_bytes(), "any", &rows, &Choice::default()).unwrap();
        let text = String::from_utf8(export.bytes).unwrap();
        let place = |text: &str| {
            let line = text.lines().nth(1).unwrap().to_owned();
            let delimiter = if line.contains(';') { ";" } else { "," };
            (line, delimiter)
        };
        let (line, delimiter) = place(sheet);
        // The first empty cell of the first student, and nothing else.
        let filled = line.replacen(
            &format!("{delimiter}{delimiter}"),
            &format!("{delimiter}{grade}{delimiter}"),
            1,
        );
        assert_eq!(text, sheet.replace(&line, &filled));
        assert_eq!(export.left.len(), 1);
        assert!(export.left[0].why.contains("cannot be changed"));
        let choice = Choice {
            with_feedback: true,
            ..Choice::default()
        };
        let export = fill(sheet.as_bytes(), "any", &rows, &choice).unwrap();
        let cells = records(&export.bytes, delimiter.as_bytes()[0]);
        let html = cells[1].last().unwrap();
        assert!(
            html.contains("It adds <code>n</code> &amp; &lt;all&gt;."),
            "{html}"
        );
        assert!(html.contains("9.5 of 10 points") && html.contains("AI-assisted"));
        assert_eq!(
            fill(&export.bytes, "any", &rows, &choice).unwrap().changes,
            []
        );
    }
}

/// Names that are hidden, a word for yes that is not known, and a column that looks like grades.
#[test]
fn a_worksheet_is_known_by_what_stands_in_it() {
    let hidden = "Identifier,Status,Grade,Maximum Grade,Grade can be changed\n\
         Participant 71,Submitted for grading,,10.00,Yes\nParticipant 72,Submitted for grading,,10.00,Yes\n";
    let rows = [of(System::Moodle, "Participant 72", &["72"])];
    let export = fill(hidden.as_bytes(), "any", &rows, &Choice::default()).unwrap();
    assert_eq!(export.changes[0].student, "Participant 72");
    assert_eq!(export.absent, ["Participant 71"]);
    let rows = [
        of(System::Moodle, "Anna Huber", &["71"]),
        of(System::Moodle, "Ben Öz", &["72"]),
    ];
    for (yes, no, count) in [("Taip", "Ne", 1), ("Wé", "Wá", 0), ("Wé", "Wé", 2)] {
        let sheet = MOODLE[0]
            .0
            .replace(",Yes,", &format!(",{yes},"))
            .replace(",No,", &format!(",{no},"));
        let export = fill(sheet.as_bytes(), "any", &rows, &Choice::default()).unwrap();
        assert_eq!(export.grades, count, "{yes} {no}");
    }
    // A date that nobody has, and a text that is the same number for all.
    let header = MOODLE[0].0.lines().next().unwrap();
    let sheet = format!(
        "{},Online text\nParticipant 71,Anna Huber,a@x.org,Submitted,,10.00,Yes,-,-,,10\n",
        header
    );
    let export = fill(sheet.as_bytes(), "any", &rows[..1], &Choice::default()).unwrap();
    assert_eq!(export.changes[0].column, "Grade");
}

#[test]
fn a_table_whose_letters_are_not_known_is_refused() {
    for (sheet, why) in [
        (&b"\xef\xbb\xbfName,Grade\nH\xfcbner,\n"[..], "UTF-8"),
        (b"PK\x03\x04x", "save it as CSV"),
        (b"sep=;\nName;Grade\nann;\n", "delete that line"),
    ] {
        let refused = outline(sheet, "any").unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    // Quiz scores are no column of another assignment.
    let sheet = CANVAS.replace(COLUMN, "Quiz 1 (55)");
    assert_eq!(outline(sheet.as_bytes(), TITLE).unwrap().suggested, None);
}

#[test]
fn a_table_in_a_code_page_keeps_it() {
    let (sheet, _, _) = encoding_rs::WINDOWS_1252
        .encode("Name;Matrikel;Note\nHübner, Jörg;0012345;\nWeiß, Eva;0012346;\n");
    let choice = Choice {
        column: Some(2),
        ..Choice::default()
    };
    let rows = [
        approved("0012345", 5.5, 4.0),
        approved("Eva Weiß", 1.0, 1.0),
    ];
    let export = fill(&sheet, "any", &rows, &choice).unwrap();
    let (text, _, _) = encoding_rs::WINDOWS_1252.decode(&export.bytes);
    assert_eq!(
        text,
        "Name;Matrikel;Note\nHübner, Jörg;0012345;9,50\nWeiß, Eva;0012346;2,00\n"
    );
    assert_eq!(
        fill(&sheet, "any", &rows, &Choice::default()).unwrap_err(),
        Refusal::Column
    );
    for (bytes, why) in [
        (&b"a,\"b\n1,2\n"[..], "a quote is not closed"),
        (&b"\xff\xfea\0,\0"[..], "no CSV file of UTF-8"),
        (&b"alone\n"[..], "no rows"),
    ] {
        let error = outline(bytes, "any").unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

fn files(zip: &[u8]) -> Vec<(String, String)> {
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(zip)).unwrap();
    let count = archive.len();
    let file = |i| {
        let mut file = archive.by_index(i).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        (file.name().unwrap().into_owned(), text)
    };
    (0..count).map(file).collect()
}

#[test]
fn own_forms_have_what_was_approved_and_say_who_approved_it() {
    let rows = [
        approved("0012", 5.5, 4.0),
        row("open", Some((6.0, 4.0)), Decision::Open),
        row("without", Some((6.0, 4.0)), Decision::WithoutPoints),
        approved("=cmd", 6.0, 4.0),
    ];
    let written = |format| write(format, ("evens", TITLE), &rows).unwrap().bytes;
    let table = written(Format::Csv);
    assert!(table.starts_with("\u{feff}submission,".as_bytes()));
    let table = records(&table[3..], b',');
    let names: Vec<&str> = table.iter().map(|cells| cells[0].as_str()).collect();
    assert_eq!(names, ["submission", "=\"0012\"", "'=cmd"]);
    assert_eq!(table[1][1..5], ["9.5", "10", "5.5", "4"]);
    let json: serde_json::Value = serde_json::from_slice(&written(Format::Json)).unwrap();
    assert_eq!(json["submissions"].as_array().unwrap().len(), 2);
    for (format, paths) in [
        (Format::Feedback, &["0012.md", "0012.html"][..]),
        (Format::Moodle, &["0012/feedback.html"]),
        (Format::Nbgrader, &["feedback/0012/evens/feedback.html"]),
        (Format::Gradescope, &["0012/results.json"]),
    ] {
        let files = files(&written(format));
        for path in paths {
            let found = files.iter().find(|(name, _)| name == path);
            let (_, text) = found.unwrap_or_else(|| panic!("{format:?} lacks {path}"));
            assert!(text.contains("9.5") && !text.contains("<all>"), "{text}");
        }
        assert!(
            files
                .iter()
                .all(|(name, _)| !name.contains("open") && !name.contains("without"))
        );
        let of_pages = files.iter().filter(|(name, _)| name.ends_with("html"));
        assert!(
            of_pages
                .into_iter()
                .all(|(_, text)| text.contains("AI-assisted"))
        );
    }
}

/// What a person graded alone is not called a model's, also where a run had a result without points for it.
#[test]
fn a_model_has_a_part_only_where_it_gave_something() {
    let rubric = rubric();
    let review = Review {
        decision: Decision::Approved,
        points: [("a".to_owned(), points(1.0)), ("b".to_owned(), points(1.0))].into(),
        ..Review::default()
    };
    let text = r#"{"name": "x", "status": "failed", "reasons": [], "score": null, "max_score": 10, "criteria": [],
        "feedback": null, "flags": [], "notes": [], "jobs": []}"#;
    let nothing: Graded = serde_json::from_str(text).unwrap();
    let with = |model: Option<&Graded>| {
        let standing = Standing::new(&rubric, model, &review);
        let row = Row::new("x", &Origin::default(), &standing);
        row.grade().unwrap().is_assisted
    };
    let mut scored = nothing.clone();
    scored.score = Some(2.0);
    let mut written = nothing.clone();
    written.feedback = Some("Fine.".to_owned());
    assert!(!with(None) && !with(Some(&nothing)));
    assert!(with(Some(&scored)) && with(Some(&written)));
}

/// A cell of any gradebook: quotes, delimiters, line ends and letters of any script.
fn any_cell() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[a-zß東,;\"\n =+-]{0,6}").unwrap()
}

fn raw(cell: &str, always: bool) -> String {
    let needs = always || cell.contains([',', ';', '"', '\n', '\t']);
    match needs {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

proptest! {
    /// Whatever a gradebook looks like and whatever was decided: the cells that change are those of approved grades, the
    /// rest comes back byte for byte, and a second export changes nothing.
    #[test]
    fn no_cell_changes_but_for_an_approved_grade(
        cells in proptest::collection::vec((any_cell(), proptest::option::of(0..=20u32), 0..3u32), 1..12),
        delimiter in proptest::sample::select(vec![b',', b';', b'\t']),
        end in proptest::sample::select(vec!["\n", "\r\n"]),
        quotes in any::<bool>(),
        mark in any::<bool>(),
    ) {
        let d = char::from(delimiter);
        let mut sheet = if mark { "\u{feff}".to_owned() } else { String::new() };
        sheet.push_str(&["Student", "ID", "Section", COLUMN, "Final"].join(&d.to_string()));
        sheet.push_str(end);
        let mut rows = Vec::new();
        for (i, (noise, before, decision)) in cells.iter().enumerate() {
            let id = (1000 + i).to_string();
            let before = before.map(|n| format!("{n}.00")).unwrap_or_default();
            let line = [&format!("S{i}"), &id, noise, &before, noise].map(|cell| raw(cell, quotes));
            sheet.push_str(&line.join(&d.to_string()));
            sheet.push_str(end);
            let decision = [Decision::Open, Decision::Approved, Decision::WithoutPoints][*decision as usize];
            rows.push(row(&format!("x_{id}_77{i:02}_f"), Some((3.0, f64::from(u8::try_from(i % 5).unwrap()))), decision));
        }
        let export = fill(sheet.as_bytes(), TITLE, &rows, &Choice::default()).unwrap();
        let (old, new) = (records(sheet.as_bytes(), delimiter), records(&export.bytes, delimiter));
        prop_assert_eq!(old.len(), new.len());
        let mut changed = 0;
        for (i, (old, new)) in old.iter().zip(&new).enumerate() {
            for (column, (old, new)) in old.iter().zip(new).enumerate() {
                if old == new {
                    continue;
                }
                changed += 1;
                prop_assert_eq!(column, 3);
                prop_assert_eq!(cells[i - 1].2, 1);
                let expected = 3.0 + ((i - 1) % 5) as f64;
                prop_assert_eq!(new.replace(',', ".").parse::<f64>().unwrap(), expected);
            }
        }
        prop_assert_eq!(changed, export.changes.len());
        prop_assert_eq!(export.grades, cells.iter().filter(|(_, _, d)| *d == 1).count());
        if changed == 0 {
            prop_assert_eq!(&export.bytes, sheet.as_bytes());
        }
        let again = fill(&export.bytes, TITLE, &rows, &Choice::default()).unwrap();
        prop_assert_eq!(again.changes.len(), 0);
        prop_assert_eq!(again.bytes, export.bytes);
    }
}

/// As nbgrader exports it: a row for each student and assignment, and names that nobody has filled in.
const OF_NBGRADER: &str = "assignment,duedate,timestamp,student_id,last_name,first_name,email,raw_score,score,max_score\n\
    ps1,,,bitdiddle,,,,1.5,1.5,10.0\n\
    ps2,,,bitdiddle,,,,,,10.0\n\
    ps1,,,hacker,,,,3.0,3.0,10.0\n\
    ps2,,,hacker,,,,,,10.0\n";

fn of_nbgrader(name: &str, given: Option<(f64, f64)>) -> Row {
    let origin = Origin {
        system: System::Nbgrader,
        students: vec![Student {
            name: name.to_owned(),
            ids: vec![name.to_owned()],
        }],
        ..Origin::default()
    };
    row_of(name, &origin, given, Decision::Approved)
}

#[test]
fn a_table_of_several_assignments_takes_the_grades_of_one() {
    let origins: Vec<Origin> = ["bitdiddle", "hacker"]
        .map(|name| Origin {
            system: System::Nbgrader,
            students: vec![Student {
                name: name.to_owned(),
                ids: vec![name.to_owned()],
            }],
            ..Origin::default()
        })
        .to_vec();
    let all: Vec<(&str, &Origin)> = vec![("bitdiddle", &origins[0]), ("hacker", &origins[1])];
    let found = attendance(OF_NBGRADER.as_bytes(), &all).unwrap();
    assert_eq!(found.students, [vec!["bitdiddle"], vec!["hacker"]]);
    assert_eq!(found.doubts, [None, None]);
    assert!(found.absent.is_empty(), "{:?}", found.absent);
    let rows = [
        of_nbgrader("bitdiddle", Some((6.0, 3.0))),
        of_nbgrader("hacker", Some((2.0, 1.0))),
    ];
    let score = Choice {
        column: Some(8),
        ..Choice::default()
    };
    let export = fill(OF_NBGRADER.as_bytes(), "ps2", &rows, &score).unwrap();
    let table = records(&export.bytes, b',');
    let scores: Vec<&str> = table.iter().skip(1).map(|row| row[8].as_str()).collect();
    assert_eq!(scores, ["1.5", "9.00", "3.0", "3.00"]);
    // Of an assignment that the table does not have, nothing is written.
    let export = fill(OF_NBGRADER.as_bytes(), "ps3", &rows, &score).unwrap();
    assert_eq!((export.grades, export.left.len()), (0, 2));
    // Its own maximum is another one.
    let other = OF_NBGRADER.replace("10.0", "23.0");
    let refused = fill(other.as_bytes(), "ps2", &rows, &score);
    assert!(
        matches!(refused, Err(Refusal::Maximum { .. })),
        "{refused:?}"
    );
}
