//! Course notes: what makes a rubric's guidelines long without saying anything about the submission.

use crate::dice::Dice;

const WHO: [&str; 8] = [
    "Students",
    "Beginners",
    "Both groups of the course",
    "Those who repeat the course",
    "Whoever hands in early",
    "Pairs",
    "Guests from other courses",
    "Most of them",
];
const MAY: [&str; 6] = [
    "may use",
    "have not met",
    "have practised",
    "were shown",
    "need not know",
    "often ask about",
];
const WHAT: [&str; 16] = [
    "the debugger",
    "recursion",
    "regular expressions",
    "version control",
    "the shell",
    "type annotations",
    "sorting",
    "dictionaries and maps",
    "reading files",
    "exceptions",
    "data frames",
    "streams",
    "classes",
    "random numbers",
    "plots",
    "the standard library",
];
const WHEN: [&str; 8] = [
    "in the first week",
    "since the second exercise",
    "before the break",
    "in the lecture",
    "in the tutorials",
    "at the end of the term",
    "on the second sheet",
    "after the test",
];
const REMARKS: [&str; 14] = [
    "Late hand-ins are handled by the office.",
    "Tabs and spaces are a matter of taste.",
    "Questions of grading go to the tutors first.",
    "The sample solution is one of several good ones.",
    "Speed does not matter for inputs of this size.",
    "Any editor will do.",
    "The sheet was revised once; both versions are valid.",
    "Files may have any name.",
    "Output may be in any language.",
    "It counts what the code does, not who wrote it.",
    "The numbers in the examples are invented.",
    "Working alone and working in pairs are both fine.",
    "Line length is not limited.",
    "A second hand-in replaces the first.",
];

/// Notes for one rubric: none for every second one, otherwise one to `most`, few more often
/// than many; none at all if `most` is 0.
pub(crate) fn draw(most: usize, dice: &mut Dice) -> String {
    if most == 0 || dice.chance(50) {
        return String::new();
    }
    let draw = dice.below(most);
    let numbered = dice.chance(60);
    let mut text = String::new();
    for number in 1..=1 + draw * draw / most {
        let note = if dice.chance(40) {
            dice.pick(&REMARKS).to_owned()
        } else {
            let [who, may, what, when] = [
                dice.pick(&WHO),
                dice.pick(&MAY),
                dice.pick(&WHAT),
                dice.pick(&WHEN),
            ];
            format!("{who} {may} {what} {when}.")
        };
        if numbered {
            text.push_str(&format!(" Note {number}:"));
        }
        text.push(' ');
        text.push_str(&note);
    }
    text
}
