//! Feedback that scores is found, feedback that does not is left alone.

use tandem_grading::{ItemKind, check_feedback, items};

#[test]
fn scores_are_found() {
    for text in [
        "You get 7/10 for this.",
        "That is 85%.",
        "Well done: 85 %",
        "points: 3",
        "I give 3 points.",
        "Score: 4",
        "Grade: B",
        "grade = A",
        "Your score is 9.",
        "7 out of 10",
        "**Score:** 4",
        "`7/10`",
        "8,5 Points",
        "That costs two lines; full marks otherwise.",
        "I deducted for style.",
        "You lost points for the names.",
        "This would be a passing grade.",
        "Note: 2,3",
        "Das sind 3 Punkte.",
        "Volle Punktzahl!",
        "8 von 10",
        "Tu nota es 7",
        "Grade: B+",
        "9 percent",
        "`Score: 7/10`",
        "`8 points`",
        "`(7/10)`",
        "```x```\nScore: 4",
    ] {
        assert!(!check_feedback(text).is_empty(), "{text}");
    }
}

#[test]
fn plain_feedback_passes() {
    for text in [
        "Your loop works. Use a list comprehension as the next step.",
        "In line 7 the variable `x` is never used.",
        "Check `n % 2` once more.",
        "```python\nscore = 7 / 10\nprint(85 % 3)\n```",
        "You point out the edge case; a good point.",
        "The function returns 3 and 4 for both calls.",
        "Try the cases 1, 2 and 3 / other inputs.",
        "See line 12.",
        "Loop from 0 to 10.",
        "`a[0]` is the first one, and a[0] is not a[1].",
        "`x = 1/2` is 0 here.",
        "Note: a loop is enough, and note that it ends.",
        "Every value of `range(0, 10)` is used.",
        "Write `n % 2 == 0`, not `n % 10`.",
        "Two points stand out: the names and the tests.",
        "Sortiere die Werte von a bis z.",
        "It returns straight away.",
        "The pointer points off the end.",
        "Note: 3 lines repeat.",
        "Note 2 things here.",
    ] {
        assert_eq!(check_feedback(text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn headings_say_what_is_advice() {
    for (heading, is_advice) in [
        ("## Next steps", true),
        ("**To improve:**", true),
        ("### Areas for growth", true),
        ("## Nächste Schritte", true),
        ("**À améliorer**", true),
        ("## Strengths", false),
        ("**Problem solving:**", false),
        ("## Step-by-step structure", false),
    ] {
        let found = items(&format!("{heading}\n- One thing."));
        assert_eq!(found[0].kind == ItemKind::NextStep, is_advice, "{heading}");
    }
}
