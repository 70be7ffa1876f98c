//! Stop strings and UTF-8 over any chunking.

use proptest::prelude::*;
use tandem_engine::stop::{InvalidStop, MAX_STOP_BYTES, MAX_STOPS, Pushed, StopMatcher, validate};

fn strings(stops: &[&str]) -> Vec<String> {
    stops.iter().map(|s| (*s).to_owned()).collect()
}

/// Pushes chunks; gives the text and whether it stopped.
fn stream(stops: &[&str], chunks: &[&[u8]]) -> (String, bool) {
    let mut matcher = StopMatcher::new(&strings(stops));
    let mut text = String::new();
    for chunk in chunks {
        let Pushed { text: new, stopped } = matcher.push(chunk);
        text += &new;
        if stopped {
            assert_eq!(matcher.finish(), "");
            return (text, true);
        }
    }
    (text + &matcher.finish(), false)
}

/// The whole text, cut before the stop string that begins first.
fn expected(stops: &[&str], bytes: &[u8]) -> (String, bool) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    match stops.iter().filter_map(|stop| text.find(stop)).min() {
        Some(at) => (text[..at].to_owned(), true),
        None => (text, false),
    }
}

/// Stop strings, chunks, the text and whether it stopped.
type Case = (
    &'static [&'static str],
    &'static [&'static [u8]],
    &'static str,
    bool,
);

#[test]
fn examples() {
    let cases: &[Case] = &[
        (&[], &[b"plain ", b"text"], "plain text", false),
        (&["END"], &[b"a E", b"N", b"D b"], "a ", true),
        (&["END"], &[b"a E", b"N", b"E b"], "a ENE b", false),
        (&["aab"], &[b"aaa", b"ab"], "aa", true),
        (&["\n\n", "x"], &[b"one\n", b"\nx"], "one", true),
        (&[], &[&[0xc3], &[0xa9]], "é", false),
        (&["é"], &[b"caf", &[0xc3], &[0xa9]], "caf", true),
        (&[], &[&[0xf0, 0x9f], b"a"], "\u{fffd}a", false),
        (
            &[],
            &[b"ends in half", &[0xe2, 0x82]],
            "ends in half\u{fffd}",
            false,
        ),
        (
            &[""],
            &[b"empty stops are ignored"],
            "empty stops are ignored",
            false,
        ),
    ];
    for (stops, chunks, text, stopped) in cases {
        let got = stream(stops, chunks);
        assert_eq!(got, ((*text).to_owned(), *stopped), "{stops:?} {chunks:?}");
    }
}

#[test]
fn text_comes_out_as_soon_as_it_is_certain() {
    let mut matcher = StopMatcher::new(&strings(&["<end>"]));
    let texts: Vec<String> = ["Hi ", "<", "b", "<en", "d", "e", "<end", ">"]
        .iter()
        .map(|chunk| matcher.push(chunk.as_bytes()).text)
        .collect();
    assert_eq!(texts, ["Hi ", "", "<b", "", "", "<ende", "", ""]);
    let after = matcher.push(b"more");
    assert_eq!((after.text.as_str(), after.stopped), ("", true));
}

#[test]
fn limits_name_the_string_at_fault() {
    let long = "x".repeat(MAX_STOP_BYTES + 1);
    let cases = [
        (vec![String::from("a"); MAX_STOPS], Ok(())),
        (
            vec![String::from("a"); MAX_STOPS + 1],
            Err(InvalidStop::TooMany(MAX_STOPS + 1)),
        ),
        (strings(&["a", ""]), Err(InvalidStop::Empty(1))),
        (
            vec![long.clone()],
            Err(InvalidStop::TooLong {
                index: 0,
                bytes: long.len(),
            }),
        ),
        (vec!["x".repeat(MAX_STOP_BYTES)], Ok(())),
    ];
    for (stops, result) in cases {
        assert_eq!(validate(&stops), result);
    }
}

/// Bytes in which characters, pieces of them and stop strings are likely.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec!["a", "b", "ab", "aab", "é", "日", "🦀", "ébé", "\u{fffd}"])
            .prop_map(|s| s.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..4),
        1 => prop::sample::select(vec![vec![0xf0, 0x9f], vec![0xe6, 0x97], vec![0xc3], vec![0xa9]]),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn cut(bytes: &[u8], mut cuts: Vec<usize>) -> Vec<&[u8]> {
    cuts.iter_mut().for_each(|cut| *cut %= bytes.len() + 1);
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect()
}

proptest! {
    #[test]
    fn any_chunking_gives_the_text_of_the_whole(
        bytes in bytes(),
        cuts in prop::collection::vec(any::<usize>(), 0..60),
        stops in prop::sample::subsequence(vec!["aab", "ba", "é日", "🦀a", "\u{fffd}b", "bab"], 0..4),
    ) {
        let chunks = cut(&bytes, cuts);
        let (text, stopped) = stream(&stops, &chunks);
        // A stop string that ends in the replacement of an unfinished character is not looked
        // for: the answer ended by itself.
        prop_assert_eq!((text, stopped), expected(&stops, &bytes));
    }
}
