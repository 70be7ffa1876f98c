//! Names in an archive, in the code pages of the systems that made it.
//!
//! An archive says of a name that it is UTF-8, or nothing. What is no UTF-8 was written in the code page of somebody's
//! Windows. All such names of an archive are looked at together, and the page is taken under which they read best.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{
    BIG5, EUC_KR, Encoding, GBK, SHIFT_JIS, WINDOWS_1250, WINDOWS_1251, WINDOWS_1252, WINDOWS_1253,
    WINDOWS_1254,
};
use oem_cp::code_table::DECODING_TABLE_CP_MAP;

/// A code page.
#[derive(Clone, Copy)]
enum Page {
    Web(&'static Encoding),
    /// Of DOS, by its number.
    Oem(u16),
}

/// Pages that are tried, with what a person calls them. Of two that read as well, the first is taken.
const PAGES: &[(&str, Page)] = &[
    ("code page 850", Page::Oem(850)),
    ("code page 437", Page::Oem(437)),
    ("code page 852", Page::Oem(852)),
    ("code page 866", Page::Oem(866)),
    ("Windows-1252", Page::Web(WINDOWS_1252)),
    ("Windows-1250", Page::Web(WINDOWS_1250)),
    ("Windows-1251", Page::Web(WINDOWS_1251)),
    ("code page 857", Page::Oem(857)),
    ("Windows-1254", Page::Web(WINDOWS_1254)),
    ("code page 737", Page::Oem(737)),
    ("Windows-1253", Page::Web(WINDOWS_1253)),
    ("GBK", Page::Web(GBK)),
    ("Big5", Page::Web(BIG5)),
    ("Shift_JIS", Page::Web(SHIFT_JIS)),
    ("EUC-KR", Page::Web(EUC_KR)),
];

/// What the detector's own guess is worth, for each byte that is no ASCII.
const GUESS: i64 = 3;

impl Page {
    fn read(self, name: &[u8]) -> Option<String> {
        match self {
            Self::Web(page) => page
                .decode_without_bom_handling_and_without_replacement(name)
                .map(Into::into),
            Self::Oem(number) => DECODING_TABLE_CP_MAP
                .get(&number)?
                .decode_string_checked(name),
        }
    }
}

/// The names as text, each with whether that is a guess; and the code page that was guessed.
pub(crate) fn read(names: &[&[u8]]) -> (Vec<(String, bool)>, Option<&'static str>) {
    let odd: Vec<&[u8]> = names
        .iter()
        .filter(|name| std::str::from_utf8(name).is_err())
        .copied()
        .collect();
    let page = match odd.is_empty() {
        true => None,
        false => best(&odd),
    };
    let text = |name: &&[u8]| match (std::str::from_utf8(name), page) {
        (Ok(text), _) => (text.to_owned(), false),
        // It is none of the pages: what differs stays different.
        (Err(_), None) => (name.iter().map(|byte| char::from(*byte)).collect(), true),
        (Err(_), Some((_, page))) => {
            let text = page.read(name);
            (
                text.unwrap_or_else(|| name.escape_ascii().to_string()),
                true,
            )
        }
    };
    (
        names.iter().map(text).collect(),
        page.map(|(label, _)| label),
    )
}

/// The page under which names read best.
fn best(names: &[&[u8]]) -> Option<(&'static str, Page)> {
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(&names.join(&b'\n'), true);
    let guess = detector.guess(None, Utf8Detection::Deny);
    let bytes = names.iter().flat_map(|name| name.iter());
    let odd = i64::try_from(bytes.filter(|byte| !byte.is_ascii()).count()).unwrap_or(i64::MAX);
    let worth = |page: &Page| -> Option<i64> {
        let read: Option<Vec<String>> = names.iter().map(|name| page.read(name)).collect();
        let all: i64 = read?.iter().map(|name| likeness(name)).sum();
        let is_guess = match page {
            Page::Web(page) => *page == guess,
            Page::Oem(number) => *number == 866 && guess == encoding_rs::IBM866,
        };
        Some(
            all + if is_guess {
                odd.saturating_mul(GUESS)
            } else {
                0
            },
        )
    };
    let rated = PAGES
        .iter()
        .filter_map(|(label, page)| Some((worth(page)?, *label, *page)));
    // The first of those that are worth the most.
    let best = rated.reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map(|(_, label, page)| (label, page))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Script {
    Ascii,
    Latin,
    Cyrillic,
    Greek,
    Han,
    Kana,
    Hangul,
    /// A sign, a letter of another script, or nothing at all.
    Sign,
}

fn script(c: char) -> Script {
    match c {
        _ if c.is_ascii_alphabetic() => Script::Ascii,
        'À'..='ɏ' if c.is_alphabetic() => Script::Latin,
        'Ά'..='ώ' if c.is_alphabetic() => Script::Greek,
        'Ѐ'..='ґ' => Script::Cyrillic,
        '\u{3041}'..='\u{30FF}' => Script::Kana,
        '\u{4E00}'..='\u{9FFF}' => Script::Han,
        '\u{AC00}'..='\u{D7A3}' => Script::Hangul,
        _ => Script::Sign,
    }
}

/// How much a text is like a name: letters of one script in a word, small ones behind large ones.
fn likeness(text: &str) -> i64 {
    let mut sum = 0;
    let mut last: Option<char> = None;
    for c in text.chars() {
        let own = script(c);
        let before = last.map(script);
        if !c.is_ascii() {
            sum += match own {
                Script::Sign => -6,
                // Of the letters of Latin, those of many languages are likelier than those of one.
                Script::Latin
                    if "äöüßéèêàâáíóúñçåøæãõÄÖÜÉÇşğıİąęłńśźżčďěňřšťůýžŠŽČő".contains(c) =>
                {
                    3
                }
                Script::Latin => 1,
                // They take two bytes.
                Script::Han | Script::Hangul | Script::Kana => 3,
                _ => 2,
            };
        }
        if let (Some(before), Some(last)) = (before, last) {
            let is_word = before != Script::Sign && own != Script::Sign;
            let is_one = |a, b| {
                a == b
                    || matches!(
                        (a, b),
                        (Script::Ascii, Script::Latin)
                            | (Script::Latin, Script::Ascii)
                            | (Script::Han, Script::Kana)
                            | (Script::Kana, Script::Han)
                    )
            };
            if is_word && !is_one(before, own) {
                sum -= 6;
            }
            if is_word
                && (!c.is_ascii() || !last.is_ascii())
                && last.is_lowercase()
                && c.is_uppercase()
            {
                sum -= 4;
            }
        }
        last = Some(c);
    }
    sum
}
