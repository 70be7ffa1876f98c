//! The text that a person carries to another machine.

use tandem_cluster::{Authority, Token, TokenError};

fn token() -> Token {
    let authority = Authority::create().unwrap();
    Token::new("192.0.2.7:7300", authority.fingerprint()).unwrap()
}

#[test]
fn it_is_read_as_it_was_written() {
    let token = token();
    let text = token.reveal();
    assert!(text.len() < 160 && !text.contains(char::is_whitespace));
    for text in [text.clone(), format!("  {text}\n")] {
        let read: Token = text.parse().unwrap();
        assert!(read == token);
        assert_eq!(read.address(), "192.0.2.7:7300");
        assert_eq!(read.authority(), token.authority());
    }
    assert!(token.reveal() != self::token().reveal());
}

#[test]
fn every_damage_is_found() {
    let text = token().reveal();
    for length in 0..text.len() {
        assert!(text[..length].parse::<Token>().is_err(), "{length}");
    }
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        // The last character may hold bits that mean nothing; then it is not base64 either.
        assert!(changed.parse::<Token>().is_err(), "{at}");
    }
    let long = format!("{text}{}", "A".repeat(1000));
    assert_eq!(long.parse::<Token>(), Err(TokenError::Damaged));
    assert_eq!("".parse::<Token>(), Err(TokenError::Kind));
}

#[test]
fn only_what_can_be_connected_to_is_an_address() {
    let fingerprint = Authority::create().unwrap().fingerprint();
    for good in ["192.0.2.7:1", "[2001:db8::1]:7300", "spark.local:65535"] {
        assert_eq!(Token::new(good, fingerprint).unwrap().address(), good);
    }
    let long = format!("{}:1", "x".repeat(300));
    for bad in ["", "x", ":1", "x:0", "x:70000", "a b:1", "x\u{7}:1", &long] {
        let refused = Token::new(bad, fingerprint);
        assert_eq!(refused, Err(TokenError::Address(bad.to_owned())));
    }
}

#[test]
fn the_secret_shows_only_where_it_is_asked_for() {
    let token = token();
    let text = token.reveal();
    let shown = format!("{token:?} {token:#?}");
    assert!(shown.contains("192.0.2.7"));
    // Every piece of the token's secret part, in any alignment of base64.
    for piece in text.as_bytes().windows(12) {
        let piece = std::str::from_utf8(piece).unwrap();
        assert!(!shown.contains(piece), "{shown}");
    }
    for wrong in [text.clone() + "x", text.replace("join-1", "join-2")] {
        let error = wrong.parse::<Token>().unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(&text[20..40]), "{shown}");
    }
}
